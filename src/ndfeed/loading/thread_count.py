"""Chooses the number of threads: first an estimate, then what turns out to be fastest.

Python threads help where their work releases the GIL (large copies, decompression, waiting for a
disk) and hurt where it is many short calls, as with small files in the page cache. So the estimate
goes by the cost of a sample; while the consumer has to wait, one thread more or fewer is tried now
and then, and kept if batches then come faster.
"""

import time
from collections.abc import Callable

from ndfeed.dataset.column import Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_places import LARGE_ROW, find_pieces
from ndfeed.dataset.reader import reader_of
from ndfeed.files import platform_calls
from ndfeed.formats.description import INLINE, RAW

_MOST = 16
_SMALL_FILE = 256 << 10
_PER_THREAD = 1 << 10  # bytes of a row for every thread
_MAY_WAIT = 0.1  # share of the time that the consumer may wait before anything is tried
_GAIN = 1.05
_AT_FIRST = 4  # looks before anything is tried: the estimate is mostly right
_LONGEST = 64  # looks between two tries that failed


def guess_threads(ds: Dataset) -> int:
    """Estimate a number of threads to start with."""
    cores = platform_calls.cores()
    if ds.steps:
        return min(max(cores, 2), _MOST)
    return min(max((_guess_for_group(group, cores) for group in ds.groups), default=1), _MOST)


def _guess_for_group(group: Group, cores: int) -> int:
    columns = group.columns
    if any(((c.coding != RAW) & (c.coding != INLINE)).any() for c in columns):
        return cores
    size = sum(int(c.nbytes.mean()) for c in columns if len(c.nbytes))
    if group.by_file:
        return cores if size >= _SMALL_FILE else 1
    if len(group.starts) > 2 and size <= LARGE_ROW and not _releases_gil(group):
        return 1
    # The smaller the rows, the more of the time threads need the GIL.
    return min(max(size // _PER_THREAD, 2), cores)


def _releases_gil(group: Group) -> bool:
    """Does gathering rows from many files release the GIL, at least for the larger fields?"""
    maps = reader_of(group).maps
    large = [c for c in group.columns if c.plain and c.size >= _PER_THREAD]
    return all(find_pieces(c, maps) is not None for c in large)


class Tuner:
    """Tries other numbers of threads while the consumer waits. Called by one thread at a time."""

    def __init__(self, first: int, set_threads: Callable[[int], None]) -> None:
        self.threads = first
        self._set_threads = set_threads
        self._most = max(_MOST, first)
        self._at = time.perf_counter()
        self._rows = 0
        self._waited = 0.0
        self._rate = 0.0  # with the number that is kept
        self._tried = 0  # the number being tried, or 0
        self._settling = True
        self._wait = _AT_FIRST
        self._looks = 0
        self._upwards = True

    def look(self, rows: int, waited: float) -> None:
        """Judge what was delivered since the last call; ``waited`` is seconds waited so far."""
        now = time.perf_counter()
        taken = now - self._at
        rate = (rows - self._rows) / taken
        waits = (waited - self._waited) / taken > _MAY_WAIT
        self._at, self._rows, self._waited = now, rows, waited
        if self._settling:
            self._settling = False  # includes batches that were in progress before the change
        elif self._tried:
            self._judge(rate)
        elif waits and rate:
            self._rate = rate
            self._looks += 1
            if self._looks >= self._wait:
                self._try()

    def _try(self) -> None:
        self._looks = 0
        step = max(self.threads // 2, 1)
        other = self.threads + step if self._upwards else self.threads - step
        other = min(max(other, 1), self._most)
        if other == self.threads:
            self._upwards = not self._upwards
            return
        self._tried = other
        self._settling = True
        self._set_threads(other)

    def _judge(self, rate: float) -> None:
        better = rate > self._rate * _GAIN
        if better:
            self.threads, self._rate, self._wait = self._tried, rate, 1
        else:
            self._settling = True
            self._set_threads(self.threads)
            self._upwards = not self._upwards
            self._wait = min(self._wait * 2, _LONGEST)
        self._tried = 0

    def restart(self, rows: int, waited: float) -> None:
        """Start over after a pause: neither the pause counts nor the first batches."""
        self._settling = True
        self._at, self._rows, self._waited = time.perf_counter(), rows, waited
