"""Memory without a name that other processes can map.

On Linux it is a memfd, sealed once it is filled: nobody can change or shorten it, and it is
gone when the last process lets go. It never touches /dev/shm. Elsewhere it is a temporary
file, removed by the process that made it.

A pickled handle names the process that has the memory, so it can be opened by any process of
the same user on the same machine while that process lives; once opened it does not depend
on it.
"""

import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from mmap import MAP_SHARED, mmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import MissingError, SourceError
from ndfeed.files.file import FLAGS, refuse
from ndfeed.files.system import can, fcntl, free_memory, map_whole

_GONE = "the process that held this memory is gone, or on another machine; open the data anew"


class Handle(NamedTuple):
    """Where shared memory is to be found while its owner lives."""

    path: bytes
    size: int
    device: int
    inode: int


class Shared:
    """``size`` bytes of memory, filled once through ``fill``."""

    def __init__(self, size: int) -> None:
        self.size = size
        free = free_memory()
        if can.memfd and free is not None and size > free:
            # The system would not refuse it, but end some process to make room.
            raise SourceError("shared memory", f"{size} bytes cannot be had, {free} are free")
        if can.memfd:
            self._fd = os.memfd_create("ndfeed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self.path = f"/proc/self/fd/{self._fd}".encode()
        else:
            self._fd, name = tempfile.mkstemp(prefix="ndfeed-")
            self.path = os.fsencode(name)
            weakref.finalize(self, _remove, self.path, os.getpid())
        self._close = weakref.finalize(self, os.close, self._fd)
        try:
            # Reserve first: filling a hole that the machine cannot back would be SIGBUS.
            if hasattr(os, "posix_fallocate") and size:
                os.posix_fallocate(self._fd, 0, size)
            else:
                os.ftruncate(self._fd, size)
        except OSError as error:
            self._close()
            problem = f"{size} bytes cannot be had: {error.strerror}"
            refuse(b"shared memory", OSError(error.errno, problem))

    def fill(self, write: Callable[[NDArray[np.uint8]], None]) -> None:
        """Let ``write`` fill the memory, then seal it."""
        if self.size:
            if sys.platform == "win32":
                view = mmap(self._fd, self.size)
            else:
                view = mmap(self._fd, self.size, MAP_SHARED)
            write(np.frombuffer(view, np.uint8))
            # A view that something still refers to forbids the seal, so none may be left.
            view.close()
        if can.memfd:
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)

    def view(self) -> NDArray[np.uint8]:
        """The memory, read-only."""
        if not self.size:
            return np.empty(0, np.uint8)
        # Through a read-only descriptor: older kernels refuse to map sealed memory otherwise.
        fd = os.open(self.path, FLAGS)
        try:
            return np.frombuffer(map_whole(fd), np.uint8)
        finally:
            os.close(fd)

    def handle(self) -> Handle:
        """What another process needs to ``attach``."""
        path = self.path
        if can.memfd:
            path = f"/proc/{os.getpid()}/fd/{self._fd}".encode()
        status = os.fstat(self._fd)
        return Handle(path, self.size, status.st_dev, status.st_ino)

    def __reduce__(self) -> "tuple[Callable[[Handle], Shared], tuple[Handle]]":
        return Shared.attach, (self.handle(),)

    @staticmethod
    def attach(handle: Handle) -> "Shared":
        """The memory behind a handle; ``MissingError`` where it cannot be reached."""
        try:
            fd = os.open(handle.path, FLAGS)
        except OSError:
            raise MissingError(b"shared memory", _GONE) from None
        status = os.fstat(fd)
        if (status.st_size, status.st_dev, status.st_ino) != handle[1:]:
            os.close(fd)
            raise MissingError(b"shared memory", _GONE)
        made = object.__new__(Shared)
        made.size, made._fd = handle.size, fd
        made.path = f"/proc/self/fd/{fd}".encode() if can.memfd else handle.path
        made._close = weakref.finalize(made, os.close, fd)
        return made

    @classmethod
    def of(cls, pieces: Sequence[bytes | memoryview]) -> "Shared":
        """Memory that holds ``pieces`` one after the other."""
        made = cls(sum(len(piece) for piece in pieces))

        def write(out: NDArray[np.uint8]) -> None:
            at = 0
            for piece in pieces:
                out[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                at += len(piece)

        made.fill(write)
        return made


def _remove(path: bytes, pid: int) -> None:
    if pid == os.getpid():
        try:
            os.unlink(path)
        except OSError:
            return
