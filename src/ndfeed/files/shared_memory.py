"""Unnamed memory that other processes can map.

On Linux it is a memfd, sealed once it is filled: nobody can change or truncate it, and it is
freed when the last process releases it. It never touches /dev/shm. Elsewhere it is a temporary
file, removed by the process that made it.

A pickled handle names the process that has the memory, so it can be opened by any process of
the same user on the same machine while that process lives; once opened, the memory no longer
depends on it.
"""

import contextlib
import errno
import os
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from mmap import MAP_SHARED, mmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import MissingError, ResourceError
from ndfeed.files import platform_calls
from ndfeed.files.file import FLAGS, close_quietly, status_of
from ndfeed.files.platform_calls import can, fcntl, free_memory, map_whole

_LESS = "take() fewer samples, or select() fields"
_GONE = "the process that held this memory is gone, or on another machine"
_AGAIN = "open the data again"
_PATIENCE, _MOMENT = 1.0, 0.002  # seconds


# Alignment with which other libraries use memory in place; otherwise they copy it.
ALIGNED = 64


def align(size: int) -> int:
    """Round up to where the next array may begin."""
    return -(-size // ALIGNED) * ALIGNED


class Handle(NamedTuple):
    """Where shared memory is found while its owner lives."""

    path: bytes
    size: int
    device: int
    inode: int


class Shared:
    """``size`` bytes of memory, filled once through ``fill``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._fd, self.path = _allocate(size)
        if not can.memfd:
            weakref.finalize(self, _remove, self.path, os.getpid())
        self._close = weakref.finalize(self, close_quietly, self._fd)

    def fill(self, write: Callable[[NDArray[np.uint8]], None]) -> None:
        """Let ``write`` fill the memory, then seal it."""
        if self.size:
            view = _map_memory(self._fd, self.size)
            write(np.frombuffer(view, np.uint8))
            # A view that is still referenced prevents sealing, so none may be left.
            view.close()
        if can.memfd:
            self._seal()

    def _seal(self) -> None:
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals)
                return
            except OSError as error:
                # A process that helped to fill it may have been killed just now.
                if error.errno != errno.EBUSY or time.monotonic() > until:
                    problem = f"cannot be sealed: {error.strerror}"
                    raise ResourceError("shared memory", problem, remedy=_LESS) from None
            time.sleep(_MOMENT)

    def view(self) -> NDArray[np.uint8]:
        """Return the memory, read-only."""
        if not self.size:
            return np.empty(0, np.uint8)
        # Through a read-only descriptor: older kernels refuse to map sealed memory otherwise.
        try:
            fd = os.open(self.path, FLAGS)
        except OSError as error:
            raise _map_error(self.size, error) from None
        try:
            return np.frombuffer(map_whole(fd), np.uint8)
        except OSError as error:
            raise _map_error(self.size, error) from None
        finally:
            close_quietly(fd)

    def handle(self) -> Handle:
        """Return what another process needs for ``attach``."""
        return _handle(self._fd, self.path, self.size)

    def __reduce__(self) -> "tuple[Callable[[Handle], Shared], tuple[Handle]]":
        return Shared.attach, (self.handle(),)

    @staticmethod
    def attach(handle: Handle) -> "Shared":
        """Open the memory of a handle; ``MissingError`` if it cannot be reached."""
        fd = _open_memory(handle, FLAGS)
        made = object.__new__(Shared)
        made.size, made._fd = handle.size, fd
        made.path = f"/proc/self/fd/{fd}".encode() if can.memfd else handle.path
        made._close = weakref.finalize(made, close_quietly, fd)
        return made

    @classmethod
    def of(cls, pieces: Sequence[bytes | memoryview]) -> "Shared":
        """Make memory that holds ``pieces`` one after the other."""
        made = cls(sum(len(piece) for piece in pieces))

        def write(out: NDArray[np.uint8]) -> None:
            at = 0
            for piece in pieces:
                out[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                at += len(piece)

        made.fill(write)
        return made


_forks = [0]  # how often this process was forked


def _count_fork() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_count_fork)


def count_forks() -> int:
    """Return how often this process was forked: its children may see what it had before."""
    return _forks[0]


class Block(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Memory that several processes write to, as bytes; ``handle`` is for the others.

    It is freed with the last reference to it in the process that made it. Others may still have it
    mapped, but it takes no memory then; unless that process was forked meanwhile, since the child
    may use it.
    """

    handle: Handle
    pinned = False  # may a GPU copy from it directly?

    @classmethod
    def of(cls, size: int) -> "Block":
        """Allocate ``size`` bytes."""
        fd, path = _allocate(size)
        try:
            made = np.frombuffer(_map_memory(fd, size), np.uint8).view(cls)
        except BaseException:
            close_quietly(fd)
            if not can.memfd:
                _remove(path, os.getpid())
            raise
        made.handle = _handle(fd, path, size)
        # Not at exit, when somebody may still read it.
        weakref.finalize(made, _free, fd, os.getpid(), count_forks()).atexit = False
        if not can.memfd:
            weakref.finalize(made, _remove, path, os.getpid())
        return made


def _free(fd: int, pid: int, forks: int) -> None:
    if can.memfd and pid == os.getpid() and forks == count_forks():
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
    close_quietly(fd)


def attach(handle: Handle) -> NDArray[np.uint8]:
    """Map a block of another process, to read and to write."""
    fd = _open_memory(handle, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    try:
        return np.frombuffer(_map_memory(fd, handle.size), np.uint8)
    finally:
        close_quietly(fd)


def _allocate(size: int) -> tuple[int, bytes]:
    """Return a descriptor of new memory, and the path by which this process finds it."""
    free = free_memory()
    if can.memfd and free is not None and size > free:
        # The system would not refuse, but kill some process to free memory.
        problem = f"{size} bytes cannot be had, {free} are free"
        raise ResourceError("shared memory", problem, remedy=_LESS)
    try:
        fd, path = _new()
    except OSError as error:
        raise ResourceError(
            "shared memory", f"cannot be made: {error.strerror}", remedy=_LESS
        ) from None
    try:
        # Reserve first: filling a hole that the machine cannot back would raise SIGBUS.
        if hasattr(os, "posix_fallocate") and size:
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
    except OSError as error:
        close_quietly(fd)
        if not can.memfd:
            _remove(path, os.getpid())
        problem = f"{size} bytes cannot be had: {error.strerror}"
        raise ResourceError("shared memory", problem, remedy=_LESS) from None
    return fd, path


def _new() -> tuple[int, bytes]:
    if can.memfd:
        fd = os.memfd_create("ndfeed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        return fd, f"/proc/self/fd/{fd}".encode()
    fd, name = tempfile.mkstemp(prefix="ndfeed-")
    return fd, os.fsencode(name)


def _map_memory(fd: int, size: int) -> mmap:
    try:
        return mmap(fd, size) if sys.platform == "win32" else mmap(fd, size, MAP_SHARED)
    except OSError as error:
        raise _map_error(size, error) from None


def _map_error(size: int, error: OSError) -> ResourceError:
    problem = f"{size} bytes cannot be mapped: {error.strerror}"
    return ResourceError("shared memory", problem, remedy=platform_calls.MORE_MEMORY)


def _handle(fd: int, path: bytes, size: int) -> Handle:
    if can.memfd:
        path = f"/proc/{os.getpid()}/fd/{fd}".encode()
    status = status_of(b"shared memory", fd)
    return Handle(path, size, status.st_dev, status.st_ino)


def _open_memory(handle: Handle, flags: int) -> int:
    """Return a descriptor of memory that some process holds."""
    try:
        fd = os.open(handle.path, flags)
    except OSError:
        raise MissingError(b"shared memory", _GONE, remedy=_AGAIN) from None
    status = status_of(b"shared memory", fd)
    if (status.st_size, status.st_dev, status.st_ino) != handle[1:]:
        close_quietly(fd)
        raise MissingError(b"shared memory", _GONE, remedy=_AGAIN)
    return fd


def _remove(path: bytes, pid: int) -> None:
    if pid == os.getpid():
        try:
            os.unlink(path)
        except OSError:
            return
