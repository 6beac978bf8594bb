"""Mapped files, guarded against writers.

Writing over a mapped file in place would show a reader torn data, and shortening it would
kill the process (SIGBUS). So a map is used only under a read lease: the kernel makes whoever
opens the file for writing wait until the lease is given up, and tells us that somebody does.

- A call that touches few files takes their leases, checks that the files are still those that
  were indexed, and gives the leases back when it is done: a writer waits microseconds.
- A call that touches many files keeps their leases, and looks every half second whether a
  writer waits for one. The kernel makes writers wait ``lease-break-time``, 45 s by default.
- Where leases are refused (another owner, a network file system, a writer that was there
  first), size, mtime and inode are compared before every call instead.

Whatever the way, a changed file is ``ChangedError``. A file that was deleted, or replaced by
renaming another over it, keeps its old bytes for as long as it is mapped; replacing is an
error, deleting is not.
"""

import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from mmap import mmap
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import ChangedError, SourceError
from ndfeed.files import system
from ndfeed.files.file import File, Identity, changed
from ndfeed.files.system import can, fcntl

_FEW = 8
_LOOK_EVERY = 0.5  # seconds; far below any sensible lease-break-time
_MOST_MAPS = 16_384  # a quarter of Linux's default vm.max_map_count


class Files(Protocol):
    """Numbered files with the identity they should have."""

    @property
    def files(self) -> int: ...

    def path(self, file: int, /) -> bytes: ...

    def expected(self, file: int, /) -> Identity: ...


class _Budget:
    """Descriptors that maps may hold in this process: half of what it may have open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.used = 0

    def reserve(self, count: int) -> bool:
        with self.lock:
            if self.used + count > min(system.open_files_limit() // 2, 2 * _MOST_MAPS):
                return False
            self.used += count
            return True

    def release(self, count: int) -> None:
        with self.lock:
            self.used -= count

    def forget(self) -> None:
        """In a forked child: nothing is mapped by anything that lives on."""
        self.__init__()  # type: ignore[misc]


_budget = _Budget()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_budget.forget)


class _Map:
    """One mapped file."""

    __slots__ = ("bytes", "file", "holders", "kept", "leased", "map", "number")

    def __init__(self, number: int, file: File, guarded: bool) -> None:
        self.number = number
        self.file = file
        self.map: mmap = system.map_whole(file.fd)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self.map, np.uint8)
        self.holders = 0
        self.leased = False
        self.kept = not guarded  # sealed memory cannot change: nothing to lease

    def lease(self) -> None:
        """Ask to be told before anybody writes; some files cannot be leased."""
        if not can.lease:
            return
        try:
            # The signal that says so is ignored by default; we look instead.
            fcntl.fcntl(self.file.fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self.file.fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            self.leased = True
        except OSError:
            self.leased = False

    def give_up(self) -> None:
        """Let writers go on."""
        if self.leased:
            self.leased = False
            fcntl.fcntl(self.file.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def wanted(self) -> bool:
        """Does a writer wait for the lease, or has it been taken away?"""
        return fcntl.fcntl(self.file.fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK


class Maps:
    """The files of a table, mapped when first used. Safe to use from several threads.

    ``guarded=False`` is for memory of our own that can no longer change.
    """

    def __init__(self, files: Files, *, guarded: bool = True) -> None:
        cost = files.files * (1 if can.untracked_maps else 2)
        if files.files > _MOST_MAPS or not _budget.reserve(cost):
            raise SourceError(files.path(0), "too many files to map them all")
        self._finalizer = weakref.finalize(self, _release, cost, os.getpid())
        self.pid = os.getpid()
        self.address = np.zeros(files.files, np.int64)
        self._files = files
        self._guarded = guarded
        self._maps: list[_Map | None] = [None] * files.files
        self._lock = threading.Lock()
        self._looked = time.monotonic()

    def bytes(self, file: int) -> NDArray[np.uint8]:
        """All bytes of a file that is in use, see ``using``."""
        found = self._maps[file]
        assert found is not None, "bytes() outside using()"
        return found.bytes

    @contextmanager
    def using(self, files: Sequence[int]) -> Iterator[None]:
        """Map ``files`` (each once) and keep writers away meanwhile."""
        if not self._guarded or len(files) > _FEW:
            self._use_many(files)
            yield
            return
        held: list[_Map] = []
        try:
            with self._lock:
                for file in files:
                    held.append(self._hold(file))
            yield
        finally:
            with self._lock:
                for one in held:
                    one.holders -= 1
                    if not one.holders and not one.kept:
                        one.give_up()

    def _hold(self, file: int) -> _Map:
        one = self._maps[file] or self._open(file)
        if one.leased:
            if one.wanted():
                self._refuse(one)
        else:
            if not one.holders and not one.kept:
                one.lease()
            self._compare(one)
        one.holders += 1
        return one

    def _use_many(self, files: Sequence[int]) -> None:
        with self._lock:
            now = time.monotonic()
            if self._guarded and now - self._looked > _LOOK_EVERY:
                self._looked = now
                for one in self._maps:
                    if one is not None and one.leased and one.wanted():
                        self._refuse(one)
            for file in files:
                one = self._maps[file] or self._open(file)
                if not one.leased and self._guarded:
                    if not one.kept:
                        one.lease()
                        one.kept = True
                    self._compare(one)

    def _open(self, number: int) -> _Map:
        file = File(self._files.path(number))
        try:
            if self._guarded:
                file.expect(self._files.expected(number))
            one = _Map(number, file, self._guarded)
        except BaseException:
            file.close()
            raise
        self._maps[number] = one
        self.address[number] = one.bytes.__array_interface__["data"][0]
        return one

    def _compare(self, one: _Map) -> None:
        """Refuse a file whose size, times or place differ from what was indexed."""
        status = os.fstat(one.file.fd)
        expected = self._files.expected(one.number)
        found = Identity.of(status)
        if found == expected and not status.st_nlink:  # deleted, or replaced?
            try:
                found = Identity.of(os.stat(one.file.path))
            except OSError:
                return
        if found != expected:
            one.give_up()
            raise changed(one.file.path, expected, found)

    def _refuse(self, one: _Map) -> None:
        one.give_up()
        one.kept = False
        raise ChangedError(
            one.file.path, "somebody opened the file for writing; open the dataset again"
        )

    def close(self) -> None:
        """Unmap everything that no array refers to any more, and let writers go on."""
        with self._lock:
            for one in self._maps:
                if one is not None:
                    one.file.close()
            self._maps = [None] * len(self._maps)
            self.address[:] = 0
        self._finalizer()


def _release(count: int, pid: int) -> None:
    if pid == os.getpid():
        _budget.release(count)
