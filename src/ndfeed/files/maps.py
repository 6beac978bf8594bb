"""Map files, guarded against writers.

Overwriting a mapped file in place would show a reader torn data, and truncating it would kill the
process (SIGBUS). So a map is read under a read lease where the system grants one: the kernel makes
processes that open the file for writing wait until the lease is given up, 45 s at most by default,
and notifies us.

Guarantees:

- What ``read`` returns was copied, complete, from the files that were indexed: otherwise it raises
  ``ChangedError``. No lease is given up while ``read`` copies. An interrupt (Ctrl-C) at any moment
  leaves no reader counted that is not reading.
- A writer waits a quarter of a second or two, not 45 s: while leases are held a thread, the
  ``keeper``, checks them and gives up those that a writer waits for, and all that were not used
  for a second.
- A lease is trusted for less than a second after the last check, by a clock that runs while the
  machine sleeps. So a process that was stopped for longer than writers wait detects it.
- Files that cannot be leased (another user's, a network file system's) are compared with what
  was indexed after every read; one that is truncated while it is read is ``ChangedError`` too
  (``files.map_guard``). Where that cannot work, such a file is ``Unmappable``.
- A file that somebody has open for writing is ``Unmappable``, and so is one that the system will
  not map for lack of descriptors or maps: it can be read by position.

While leases hold, ``read`` checks a vector of flags and a clock, and makes no system call. A file
that was deleted keeps its bytes as long as it is mapped; one that was replaced by renaming another
over it is an error.
"""

import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import ChangedError, DeniedError, MissingError, SourceError
from ndfeed.files import map_guard
from ndfeed.files.file import File, Identity, changed
from ndfeed.files.map_guard import MappedFile, acquire_until, keeper
from ndfeed.files.map_guard import Unmappable as Unmappable
from ndfeed.files.map_room import Places, Room
from ndfeed.files.platform_calls import can, elapsed

T = TypeVar("T")
Records = tuple[int, NDArray[np.void]]  # and the address of the first

_MOMENT = 0.0005
# Seconds for which leases are trusted after a check: below the second that is the shortest
# lease-break-time, above the time between two checks of the keeper.
_TRUST = 0.9
_IDLE_LOOKS = 4
_WRITTEN = "opened for writing since it was indexed"
_AGAIN = "open the dataset again"
_MOST_MAPS = 16_384  # a quarter of Linux's default vm.max_map_count
_MOST_PLACED = _MOST_MAPS // 2


class Files(Protocol):
    """Numbered files with the identity they should have."""

    @property
    def files(self) -> int:
        """Number of files."""
        ...

    def path(self, file: int, /) -> bytes:
        """Return the path of a file."""
        ...

    def expected(self, file: int, /) -> Identity:
        """Return its identity when it was indexed."""
        ...


class _Span:
    """A range of this process's addresses as records of ``size`` bytes, ``step`` apart."""

    def __init__(self, start: int, length: int, size: int, step: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (start, True),
            "shape": (max((length - size) // step + 1, 0),),
            "strides": (step,),
            "typestr": f"|V{size}",
        }


class Maps:
    """The files of a table, mapped on first use. Thread-safe.

    ``guarded=False`` is for memory of our own that can no longer change.
    """

    def __init__(self, files: Files, *, guarded: bool = True, places: Places | None = None) -> None:
        if guarded and not (can.lease or can.catch_sigbus or can.maps_keep_size):
            raise SourceError(files.path(0), "cannot be mapped without a guard against writers")
        self._room = None if places is None else _reserve(files, places)
        placed = self._room is not None  # then what lies between two files is a map, too
        self.places = places if placed else None
        fds, maps = files.files * (1 if can.untracked_maps or placed else 2), files.files << placed
        if maps > _MOST_MAPS or not keeper.reserve(fds, maps):
            raise SourceError(files.path(0), "too many files to map them all")
        self.address = np.zeros(files.files, np.int64)
        self._ready = np.zeros(files.files, bool)  # mapped, and guarded if necessary
        self._complete = False  # are all files ready?
        self._files = files
        self._guarded = guarded
        self._maps: list[MappedFile | None] = [None] * files.files
        weakref.finalize(self, _close, self._maps, fds, maps, keeper.generation).atexit = False
        self._lock, self._giving_up = threading.Lock(), threading.Lock()
        self._records: dict[tuple[int, int, int], Records] = {}
        # One entry for each reader. Appending to and popping from a list is atomic; a method
        # written in Python could be interrupted before its first line.
        self._inside: list[None] = []
        self.leave: Callable[[], None] = self._inside.pop
        self._closing = False
        self._unused = 0
        self._trusted = 0.0  # until when leases are trusted without a check
        self._lost: list[int] = []  # files of which a page could not be read
        self.unleased = False  # was any lease refused? Then files are compared after each read

    def bytes(self, file: int) -> NDArray[np.uint8]:
        """Return all bytes of a file that was entered."""
        return (self._maps[file] or self._get_entered(file)).bytes  # called for every large row

    def fd(self, file: int) -> int:
        """Return the descriptor of a file that was entered."""
        return self._get_entered(file).file.fd

    def _get_entered(self, file: int) -> MappedFile:
        found = self._maps[file]
        if found is None:
            raise RuntimeError(f"file {file} was not entered")
        return found

    def records(self, size: int, step: int = 1, remainder: int = 0) -> Records:
        """Return records of ``size`` bytes, ``step`` apart, from all files mapped so far.

        The first one's address has the ``remainder``. Read only from files that were entered.
        """
        found = self._records.get((size, step, remainder))
        if found is None:
            with self._lock:  # otherwise a file mapped meanwhile would be left out forever
                low, high = self._find_range()
                low += (remainder - low) % step
                span = np.asarray(_Span(low, high - low, size, step))
                found = self._records[size, step, remainder] = low, span
        return found

    def _find_range(self) -> tuple[int, int]:
        """Return the addresses between which all files are that are mapped."""
        if self._room is not None:
            return self._room.start, self._room.stop
        used = np.flatnonzero(self.address).tolist()
        ends = [int(self.address[i]) + len(self.bytes(i)) for i in used]
        return int(self.address[used].min()), max(ends)

    def read(self, files: int | NDArray[np.int64], copy: Callable[..., T], *args: Any) -> T:
        """Call ``copy(*args)``, which may read the bytes of ``files`` but must not keep a view.

        This is the only way to read mapped bytes. It takes a function because the end of a
        ``with`` statement, if written in Python, can be lost to an interrupt.
        """
        while True:
            try:
                self._inside.append(None)
                self._unused = 0
                if not self._closing:
                    until = self._trusted
                    if not self._complete or elapsed() > until:
                        until = self._prepare(files)
                    try:
                        found = copy(*args)
                    except Exception:  # torn bytes may look like any error
                        self.check(files, until)
                        raise
                    if self.unleased or self._lost or elapsed() > until:
                        self.recheck(files)
                    return found
            finally:
                self._inside.pop()
            time.sleep(_MOMENT)

    def enter(self, files: int | NDArray[np.int64]) -> float:
        """Keep writers from ``files`` until ``leave``, for a GPU; return until when to trust it."""
        while True:
            try:
                self._inside.append(None)
                self._unused = 0
                if not self._closing:
                    return self._prepare(files)
            except BaseException:
                self._inside.pop()
                raise
            self._inside.pop()
            time.sleep(_MOMENT)

    def _prepare(self, files: int | NDArray[np.int64]) -> float:
        """Map and guard ``files``; return until when their leases can be trusted."""
        until = self._trusted  # before any check: no later check may prolong it
        if elapsed() > until:
            until = self._distrust()
        if not self._complete:
            ready = self._ready[files]
            if np.count_nonzero(ready) != ready.size:
                self._map(_list_files(files, len(self._ready)))
        return until

    def _distrust(self) -> float:
        """Check again after a long time, as when the process was stopped: leases may be gone."""
        with self._lock:
            until = elapsed() + _TRUST if self._guarded else math.inf
            if self._guarded:
                self._complete = False
                self._ready[:] = False
            self._trusted = until
            return until

    def check(self, files: int | NDArray[np.int64], until: float) -> None:
        """Refuse what was copied unless it is certain that nobody wrote meanwhile."""
        if self.unleased or self._lost or elapsed() > until:
            self.recheck(files)

    def recheck(self, files: int | NDArray[np.int64]) -> None:
        """Compare ``files`` again: what was copied may be torn, or zeros."""
        for number in _list_files(files, len(self._ready)) if self._guarded else ():
            one = self._maps[number]
            if one is not None:
                one.look()
                _compare(one, self._lost)

    def _map(self, files: list[int]) -> None:
        if self._guarded and can.lease:
            keeper.keep(self)  # before there is a lease: none may be unattended
        caught = not self._guarded or map_guard.ensure() or can.maps_keep_size
        with self._lock:
            new = [number for number in files if self._maps[number] is None]
            try:
                for number in files:
                    one = self._maps[number] or self._open(number)
                    if self._guarded and not self._ready[number]:
                        self._guard(one, caught)
            except Unmappable:
                self._forget(new)
                raise
            self._ready[files] = True
            self._complete = bool(self._ready.all())

    def _guard(self, one: MappedFile, caught: bool) -> None:
        one.lease()
        _compare(one, self._lost)
        self.unleased |= not one.leased
        if not (one.leased or caught):
            raise Unmappable(one.file.path, "cannot be guarded against writers")

    def _forget(self, files: list[int]) -> None:
        """Drop maps that nobody has used yet: reading by position needs their descriptors."""
        self._records = {}
        for number in files:
            one, self._maps[number], self.address[number] = self._maps[number], None, 0
            if one is not None:
                one.file.close()
            if self._room is not None:
                del one
                self._room.clear(number)

    def _open(self, number: int) -> MappedFile:
        path, expected = self._files.path(number), self._files.expected(number)
        file = _open_file(path, expected if self._guarded else None)
        try:
            one = MappedFile(number, file, expected, self._room)
            self.address[number] = start = one.bytes.__array_interface__["data"][0]
            if self._guarded:
                map_guard.watch(one.bytes, start, self._lost, number)
            self._records = {}
            self._maps[number] = one  # last: any call before may be interrupted
        except BaseException as error:
            self.address[number] = 0
            file.close()
            if isinstance(error, OSError | ValueError):  # ValueError: the file is empty by now
                raise Unmappable(path, f"cannot be mapped: {error}") from None
            raise
        return one

    def tend(self) -> bool:
        """Give up what writers wait for, or all when idle; return whether any are left."""
        began = elapsed()
        map_guard.ensure()
        with self._lock:
            self._unused += 1
            idle = self._unused > _IDLE_LOOKS
            leased = [one for one in self._maps if one is not None and one.leased]
            over = [one for one in leased if idle or one.disturbed()]
        self._give_up(over)
        self._trusted = began + _TRUST  # not before: leases may have been lost unnoticed
        return not idle

    @property
    def used(self) -> bool:
        """Whether anybody has read since the last check."""
        return not self._unused

    def release(self, until: float = math.inf) -> bool:
        """Give up every lease, as before a fork, unless somebody still reads at ``until``."""
        if not acquire_until(self._lock, until):
            return False
        try:
            over = [one for one in self._maps if one is not None and one.leased]
        finally:
            self._lock.release()
        return self._give_up(over, until)

    def _give_up(self, over: list[MappedFile], until: float = math.inf) -> bool:
        """Give up leases once nobody is reading; none if that is not before ``until``."""
        if not over:
            return True
        if not acquire_until(self._giving_up, until):
            return False
        try:
            self._closing = True
            while self._inside:
                if elapsed() > until:
                    return False
                time.sleep(_MOMENT)
            with self._lock:
                self._complete = False
                self._ready[[one.number for one in over]] = False
                for one in over:
                    one.taken |= one.leased and one.wanted()
                    one.give_up()
            return True
        finally:
            self._closing = False
            self._giving_up.release()


def _reserve(files: Files, places: Places) -> Room | None:
    """Reserve addresses for all files; nothing if there are too few or too many files."""
    if files.files > _MOST_PLACED:
        return None
    try:
        return Room([files.expected(number).size for number in range(files.files)], places)
    except OSError:
        return None


def _open_file(path: bytes, expected: Identity | None) -> File:
    try:
        return File(path, expected)
    except (MissingError, DeniedError):
        raise
    except SourceError as error:  # for example out of descriptors
        raise Unmappable(path, error.problem, remedy=error.remedy) from None


def _compare(one: MappedFile, lost: list[int]) -> None:
    """Refuse a file that may not be the one that was indexed; the keeper has its lease."""
    path, expected = one.file.path, one.expected
    if one.found is None:
        found = one.identity()
        if found == expected and not one.taken:
            if one.number in lost:
                raise Unmappable(path, "a part of it could not be read")
            return
        if found == expected:
            raise ChangedError(path, _WRITTEN, remedy=_AGAIN)
        one.found = found  # a file that was replaced stays so
    raise changed(path, expected, one.found)


def _close(files: list[MappedFile | None], fds: int, maps: int, generation: int) -> None:
    """Clean up when nobody uses the maps any more."""
    for one in files:
        if one is not None:
            if generation == keeper.generation:  # closing does not end a lease that a child has
                one.give_up()
            one.file.close()
    keeper.release(fds, maps, generation)


def _list_files(files: int | NDArray[np.int64], count: int) -> list[int]:
    """List each of ``files`` once, out of ``count`` (np.unique would import modules)."""
    wanted = np.zeros(count, bool)
    wanted[files] = True
    return np.flatnonzero(wanted).tolist()
