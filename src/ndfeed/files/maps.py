"""Mapped files, guarded against writers.

Writing over a mapped file in place would show a reader torn data, and shortening it would
kill the process (SIGBUS). So a map is used only under a read lease: the kernel makes whoever
opens the file for writing wait until the lease is given up, 45 s at most by default, and says
that somebody waits.

Guarantees:

- Between ``enter`` and ``leave`` the files entered are those that were indexed, and no lease
  that was held at ``enter`` is given up. Whoever has entered must leave before it enters again.
  An interrupt (Ctrl-C) at any moment leaves nobody counted as reading who is not.
- A writer waits a quarter of a second or two, not 45: while leases are held a thread, the
  ``keeper``, has them looked at, and what a writer waits for is given up; everything is that
  was not used for a second.
- A file whose lease was taken away, or whose size, mtime or inode differ from what was
  indexed, is ``ChangedError`` at ``enter``.
- Where leases cannot be had (another owner, a network file system), size, mtime and inode are
  compared at every ``enter``, and are to be compared again by ``recheck`` before ``leave``: no
  torn data, but a file that is shortened in between is fatal; ``mapped=False`` is the way out.
- A file that somebody has open for writing is ``Unmappable`` at ``enter``, and so is one that
  the system will not map for want of descriptors or maps: it can be read by position.

While the leases hold, entering costs one look at a vector of flags and no system call. A file
that was deleted keeps its bytes for as long as it is mapped; one that was replaced by renaming
another over it is an error.
"""

import contextlib
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from mmap import mmap
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import ChangedError, DeniedError, MissingError, SourceError
from ndfeed.files import system
from ndfeed.files.file import File, Identity, changed
from ndfeed.files.keeper import keeper
from ndfeed.files.system import can, fcntl

_MOMENT = 0.0005
_TRUST = 20.0  # seconds; half of the default lease-break-time
_IDLE_LOOKS = 4
_MOST_MAPS = 16_384  # a quarter of Linux's default vm.max_map_count


class Files(Protocol):
    """Numbered files with the identity they should have."""

    @property
    def files(self) -> int:
        """How many there are."""
        ...

    def path(self, file: int, /) -> bytes:
        """Where a file is."""
        ...

    def expected(self, file: int, /) -> Identity:
        """What it was when it was indexed."""
        ...


class Unmappable(SourceError):
    """A file that cannot be mapped, or not now; it can still be read by position."""


class _Map:
    """One mapped file."""

    __slots__ = ("bytes", "ctime", "file", "leased", "map", "number", "taken")

    def __init__(self, number: int, file: File) -> None:
        self.number = number
        self.file = file
        self.map: mmap = system.map_whole(file.fd)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self.map, np.uint8)
        self.ctime = file.status.st_ctime_ns
        self.leased = False
        self.taken = False  # a writer has had the file since it was mapped

    def lease(self) -> None:
        """Make writers wait; some files cannot be leased."""
        self.taken |= self.leased and self.wanted()
        if can.lease and not self.leased and not self.taken:
            try:
                # The signal that tells of a writer must be one that is ignored: SIGIO, the
                # default, would end the process. Giving up a lease brings the default back.
                fcntl.fcntl(self.file.fd, fcntl.F_SETSIG, signal.SIGURG)
                fcntl.fcntl(self.file.fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                self.leased = True
            except BlockingIOError:
                raise Unmappable(self.file.path, "somebody has it open for writing") from None
            except OSError:
                self.leased = False

    def give_up(self) -> None:
        """Let writers go on."""
        if self.leased:
            self.leased = False
            with contextlib.suppress(OSError):  # the kernel may have taken it away
                fcntl.fcntl(self.file.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def wanted(self) -> bool:
        """Does a writer wait for the lease, or has the kernel taken it away?"""
        return fcntl.fcntl(self.file.fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK

    def disturbed(self) -> bool:
        """Does a writer wait, or may another file have come in this one's place?"""
        return self.wanted() or os.fstat(self.file.fd).st_ctime_ns != self.ctime


class _Span:
    """A stretch of this process's addresses as records of ``size`` bytes, ``step`` apart."""

    def __init__(self, start: int, length: int, size: int, step: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (start, True),
            "shape": (max((length - size) // step + 1, 0),),
            "strides": (step,),
            "typestr": f"|V{size}",
        }


class Maps:
    """The files of a table, mapped when first used. Safe to use from several threads.

    ``guarded=False`` is for memory of our own that can no longer change.
    """

    def __init__(self, files: Files, *, guarded: bool = True) -> None:
        cost = files.files * (1 if can.untracked_maps else 2)
        if files.files > _MOST_MAPS or not keeper.reserve(cost):
            raise SourceError(files.path(0), "too many files to map them all")
        self.address = np.zeros(files.files, np.int64)
        self._ready = np.zeros(files.files, bool)
        self._files = files
        self._guarded = guarded
        self._maps: list[_Map | None] = [None] * files.files
        weakref.finalize(self, _close, self._maps, cost, keeper.generation).atexit = False
        self._lock = threading.Lock()
        self._giving_up = threading.Lock()
        self._records: dict[tuple[int, int], tuple[int, NDArray[np.void]]] = {}
        # One entry for everybody who reads. A list grows and shrinks in one step of the
        # interpreter; a method written in Python could be interrupted before its first line.
        self._inside: list[None] = []
        self.leave: Callable[[], None] = self._inside.pop
        self._closing = False
        self._unused = 0
        self._trusted = 0.0  # until when leases are believed without a look at them
        self.unleased = False  # was any lease refused? Then recheck before leave

    def bytes(self, file: int) -> NDArray[np.uint8]:
        """All bytes of a file that was entered."""
        found = self._maps[file]
        if found is None:
            raise RuntimeError(f"file {file} was not entered")
        return found.bytes

    def fd(self, file: int) -> int:
        """The descriptor of a file that was entered."""
        found = self._maps[file]
        if found is None:
            raise RuntimeError(f"file {file} was not entered")
        return found.file.fd

    def records(self, size: int, step: int = 1) -> tuple[int, NDArray[np.void]]:
        """Records of ``size`` bytes from any byte of any file mapped so far.

        Record ``i`` begins at the address returned, plus ``i * step``. Between the files there
        may be nothing at all: only addresses within files that were entered may be read.
        """
        found = self._records.get((size, step))
        if found is None:
            with self._lock:  # or a file mapped meanwhile would be left out for ever
                used = np.flatnonzero(self.address)
                low = int(self.address[used].min())
                high = max(int(self.address[i]) + len(self.bytes(i)) for i in used.tolist())
                span = np.asarray(_Span(low, high - low, size, step))
                found = self._records[size, step] = low, span
        return found

    def enter(self, files: int | NDArray[np.int64]) -> None:
        """Map ``files`` if need be, check them, and keep writers away until ``leave``."""
        while True:
            try:
                self._inside.append(None)
                self._unused = 0
                if not self._closing:
                    if time.monotonic() > self._trusted:
                        self._distrust()
                    ready = self._ready[files]
                    if not (ready if ready.ndim == 0 else ready.all()):
                        self._prepare(np.unique(files).tolist())
                    return
            except BaseException:
                self._inside.pop()
                raise
            self._inside.pop()
            time.sleep(_MOMENT)

    def _distrust(self) -> None:
        """Nobody has looked for long, as when the process was stopped: leases may be gone."""
        with self._lock:
            self._trusted = time.monotonic() + _TRUST if self._guarded else math.inf
            if self._guarded:
                self._ready[:] = False

    def recheck(self, files: int | NDArray[np.int64]) -> None:
        """Compare those that are not leased once more: what was copied may be torn."""
        for number in np.unique(files).tolist():
            one = self._maps[number]
            if one is not None and self._guarded and not self._ready[number]:
                self._compare(one)

    def _prepare(self, files: list[int]) -> None:
        if self._guarded and can.lease:
            keeper.keep(self)  # before there is a lease: none may be left alone
        with self._lock:
            for number in files:
                one = self._maps[number] or self._open(number)
                if not self._guarded:
                    self._ready[number] = True
                elif not self._ready[number]:
                    one.lease()
                    self._compare(one)
                    self._ready[number] = one.leased
                    self.unleased |= not one.leased

    def _open(self, number: int) -> _Map:
        path, expected = self._files.path(number), self._files.expected(number)
        try:
            file = File(path, expected if self._guarded else None)
        except (MissingError, DeniedError):
            raise
        except SourceError as error:  # out of descriptors, for one
            raise Unmappable(path, error.problem) from None
        try:
            one = self._maps[number] = _Map(number, file)
        except BaseException as error:
            file.close()
            if isinstance(error, OSError | ValueError):  # ValueError: it is empty by now
                raise Unmappable(path, f"cannot be mapped: {error}") from None
            raise
        self.address[number] = one.bytes.__array_interface__["data"][0]
        self._records = {}
        return one

    def _compare(self, one: _Map) -> None:
        """Refuse a file that is not, or may not be, the one that was indexed.

        Its lease is left to the keeper: others may be reading under it.
        """
        status = os.fstat(one.file.fd)
        expected = self._files.expected(one.number)
        found = Identity.of(status)
        if found == expected and status.st_ctime_ns != one.ctime:
            try:
                found = Identity.of(os.stat(one.file.path))
                one.ctime = status.st_ctime_ns  # another mode, or one more name: no matter
            except OSError:
                found = expected  # deleted: asked again each time, for what comes in its place
        if found != expected:
            one.ctime = -1  # a file that was replaced stays so
            raise changed(one.file.path, expected, found)
        if one.taken:
            raise ChangedError(
                one.file.path, "opened for writing since it was indexed; open the dataset again"
            )

    def tend(self) -> bool:
        """Give up what writers wait for, or all when idle; is there anything left to tend?"""
        began = time.monotonic()
        with self._lock:
            self._unused += 1
            idle = self._unused > _IDLE_LOOKS
            leased = [one for one in self._maps if one is not None and one.leased]
            over = [one for one in leased if idle or one.disturbed()]
        self._give_up(over)
        self._trusted = began + _TRUST  # not before: leases may have been lost unseen
        return not idle

    @property
    def used(self) -> bool:
        """Has anybody read since the last look?"""
        return not self._unused

    def release(self) -> None:
        """Give up every lease, as before a fork."""
        with self._lock:
            over = [one for one in self._maps if one is not None and one.leased]
        self._give_up(over)

    def _give_up(self, over: list[_Map]) -> None:
        """Give up leases once nobody is reading."""
        if not over:
            return
        with self._giving_up:
            try:
                self._closing = True
                while self._inside:
                    time.sleep(_MOMENT)
                with self._lock:
                    self._ready[[one.number for one in over]] = False
                    for one in over:
                        one.taken |= one.leased and one.wanted()
                        one.give_up()
            finally:
                self._closing = False


def _close(maps: list[_Map | None], cost: int, generation: int) -> None:
    """What is left to do when nobody uses the maps any more."""
    for one in maps:
        if one is not None:
            one.file.close()
    keeper.release(cost, generation)
