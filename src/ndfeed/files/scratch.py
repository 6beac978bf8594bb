"""Disk space for data that does not fit in memory: unnamed files that vanish with their user.

Bytes are written once, by position, and read through a map. Nobody else can reach the files, so the
maps need no guard, and the system may drop their pages from memory at any time. ``Forward`` is the
other way to hold data that does not fit: only the bytes in use, in memory.

A file is made where ``tempfile`` makes them (``TMPDIR``), or else in ``/var/tmp``; never on a file
system that is itself memory (tmpfs).
"""

import contextlib
import mmap
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import ResourceError
from ndfeed.files import limits
from ndfeed.files.file import close_quietly
from ndfeed.files.platform_calls import can, out_of_memory

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_ALIGNED = mmap.ALLOCATIONGRANULARITY
# Addresses that take no memory until they are used. Python names the flag only since 3.13.
_NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
ELSEWHERE = "set TMPDIR to a folder on a disk with more room"
# Divisor of the free space: the share that is left for others.
_LEFT_FREE = 10
# Sizes of files that hold several pieces: small at first, then large, so that they stay few.
_FIRST_SLAB = 4 << 20
_MOST_SLAB = 256 << 20
_FILES = 64


def folder() -> str | None:
    """Return the folder for temporary files on a disk; ``None`` if none is on one."""
    if not can.scratch:
        return None
    found = (place for place in (_usual(), "/var/tmp") if place and _on_disk(place))
    return next(found, None)


def room_in(place: str | None) -> int:
    """Return how many bytes may be written to a folder."""
    if place is None:
        return 0
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        return 0
    return free - free // _LEFT_FREE


def _usual() -> str | None:
    try:
        return tempfile.gettempdir()
    except OSError:  # nowhere to write
        return None


def _on_disk(place: str) -> bool:
    try:
        device = os.stat(place).st_dev
    except OSError:
        return False
    return os.access(place, os.W_OK) and limits.kind_of_file_system(device) not in _IN_MEMORY


class Scratch:
    """``size`` bytes on a disk, in an unnamed file. ``data`` shows what was written."""

    def __init__(self, size: int, place: str) -> None:
        self.size = size
        self._place = place
        self._fd, remove = _make_file(place)
        self._remove = weakref.finalize(self, remove)
        try:
            # Reserved first: writing to a map without disk space would end the process.
            if can.allocate:
                os.posix_fallocate(self._fd, 0, size)
            else:
                os.ftruncate(self._fd, size)
            access = mmap.ACCESS_READ if can.pwrite else mmap.ACCESS_WRITE
            self._map = mmap.mmap(self._fd, size, access=access)
        except OSError as error:
            self._remove()
            raise self._write_error(error) from None
        if hasattr(mmap, "MADV_RANDOM"):
            # Otherwise the system reads a hundred pages for each that is not in memory.
            self._map.madvise(mmap.MADV_RANDOM)
        self.data: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.data.flags.writeable = False

    def write(self, at: int, data: memoryview) -> None:
        """Write ``data`` at ``at``."""
        if not can.pwrite:
            self._map[at : at + len(data)] = data
            return
        try:
            while len(data):
                done = os.pwrite(self._fd, data, at)
                at += done
                data = data[done:]
        except OSError as error:
            raise self._write_error(error) from None

    def _write_error(self, error: OSError) -> ResourceError:
        problem = f"{self.size / 1e6:,.0f} MB cannot be written: {error.strerror}"
        return ResourceError(self._place, problem, remedy=ELSEWHERE)


def no_room(place: str | None, size: int, room: int) -> ResourceError:
    """Make the error for ``size`` bytes that fit on no disk."""
    found = f"{room / 1e6:,.0f} MB are free in {place}" if place else "there is no folder for it"
    problem = f"{size / 1e6:,.0f} MB of temporary disk space needed, {found}"
    return ResourceError("temporary files", problem, remedy=ELSEWHERE)


def _make_file(place: str) -> tuple[int, Callable[[], None]]:
    """Return a descriptor of a new file, and the function that disposes of it."""
    flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
    with contextlib.suppress(OSError):  # a file system that has no unnamed files
        if hasattr(os, "O_TMPFILE"):
            fd = os.open(place, flags | os.O_TMPFILE, 0o600)
            return fd, partial(close_quietly, fd)
    try:
        fd, name = tempfile.mkstemp(prefix="ndfeed-", dir=place)
    except OSError as error:
        problem = f"no file can be made: {error.strerror}"
        raise ResourceError(place, problem, remedy=ELSEWHERE) from None
    try:
        os.unlink(name)
    except OSError:  # Windows: not while it is open
        pid = os.getpid()
        return fd, lambda: _end(fd, name, pid)
    return fd, partial(close_quietly, fd)


def _end(fd: int, name: str, pid: int) -> None:
    close_quietly(fd)
    if pid == os.getpid():
        with contextlib.suppress(OSError):  # still mapped by somebody
            os.unlink(name)


class Piece:
    """Bytes of a file in ``Slabs``: written once, then read through ``data``."""

    __slots__ = ("_scratch", "_start", "data", "given_up")

    def __init__(self, scratch: Scratch, start: int, size: int) -> None:
        self._scratch = scratch
        self._start = start
        self.data = scratch.data[start : start + size]
        self.given_up = False  # its space is needed for others; ``data`` stays valid

    def write(self, at: int, data: memoryview) -> None:
        """Write ``data`` at ``at``, relative to the piece's start."""
        self._scratch.write(self._start + at, data)


class Slabs:
    """Pieces of a few large files in one folder; the oldest are dropped when space is short.

    One file per piece would need one descriptor each. Thread-safe.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.budget = room_in(place)
        self._lock = threading.Lock()
        self._slabs: deque[tuple[Scratch, list[Piece]]] = deque()
        self._used = 0  # bytes of the newest file
        self._next = _FIRST_SLAB
        self._most = max(_MOST_SLAB, self.budget // _FILES)

    def piece(self, size: int) -> Piece:
        """Reserve ``size`` bytes."""
        with self._lock:
            if not self._slabs or self._used + size > self._slabs[-1][0].size:
                self._grow(size)
            scratch, pieces = self._slabs[-1]
            made = Piece(scratch, self._used, size)
            pieces.append(made)
            self._used += -(-size // _ALIGNED) * _ALIGNED
            return made

    def _grow(self, size: int) -> None:
        size = -(-max(size, 1) // _ALIGNED) * _ALIGNED
        while (room := room_in(self.place)) < size and self._slabs:
            for piece in self._slabs.popleft()[1]:
                piece.given_up = True
        if room < size:
            raise no_room(self.place, size, room)
        self._slabs.append((Scratch(max(size, min(self._next, room)), self.place), []))
        self._used = 0
        self._next = min(2 * self._next, self._most)

    def clear(self) -> None:
        """Drop every piece."""
        with self._lock:
            for _, pieces in self._slabs:
                for piece in pieces:
                    piece.given_up = True
            self._slabs.clear()


class Forward:
    """``size`` bytes of addresses of which only some are backed by memory.

    What was written can be read until ``forget`` releases its memory; then it reads as zeros.
    """

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        try:
            self._map = mmap.mmap(-1, size, flags)
        except OSError as error:  # a limit on addresses (ulimit -v)
            raise out_of_memory(size) from error
        self.data: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def forget(self, start: int, end: int) -> None:
        """Release the memory of bytes [start, end), except for a last page used in part."""
        start, end = start - start % _ALIGNED, end - end % _ALIGNED
        if end > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)
