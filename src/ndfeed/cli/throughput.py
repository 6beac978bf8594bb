"""Measures rates: of a loader, with the time that its threads spent, and of the disk."""

import itertools
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset import readahead
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.row_selection import select_rows
from ndfeed.files import platform_calls
from ndfeed.files.file import File
from ndfeed.loading.report import Report

Batch = Mapping[str, Any] | Sequence[Any]


class _Loader(Protocol):
    def __iter__(self) -> Iterator[Batch]: ...

    def report(self) -> Report: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Ran:
    """A loader run: the batches taken from it, and how its threads spent that time.

    ``stages`` and ``idle`` are seconds of all threads together, over the same time as ``rows`` and
    ``seconds``.
    """

    rows: int = 0
    seconds: float = 0.0
    passes: int = 0
    threads: int = 0
    row_bytes: float = 0.0  # of a sample as it was delivered
    stages: dict[str, float] = field(default_factory=dict)
    idle: float = 0.0

    @property
    def rows_per_second(self) -> float:
        """Samples per second."""
        return self.rows / self.seconds if self.seconds else 0.0

    def count(self, report: Report) -> None:
        """Add what the loader reports about a pass."""
        self.passes += 1
        self.threads = report.threads
        self._add(report, 1)

    def subtract(self, report: Report) -> None:
        """Subtract what the threads did in this pass before the measurement began."""
        self._add(report, -1)

    def _add(self, report: Report, sign: int) -> None:
        self.idle += sign * report.waiting_for_consumer
        for name, seconds in report.stages.items():
            self.stages[name] = self.stages.get(name, 0.0) + sign * seconds


def run(loader: _Loader, seconds: float, warm_up: float = 0.0) -> Ran:
    """Take batches for some seconds, epoch after epoch, and close the loader.

    The measurement starts after the first batch, which waits for the threads to start. With
    ``warm_up`` it starts that many seconds later, and after the batches that were prefetched in the
    meantime: those would come in one burst.
    """
    found = Ran()
    until: float | None = None  # when the measurement may start
    began = 0.0
    taken = 0  # batches before the measurement
    try:
        while not found.rows or found.seconds < seconds:
            empty = True
            for batch in loader:
                empty = False
                now = time.perf_counter()
                if began:
                    found.rows += length(batch)
                    found.seconds = now - began
                    if found.seconds > seconds:
                        break
                    continue
                until = now + warm_up if until is None else until
                taken += 1
                if now >= until and (not warm_up or _is_drained(loader.report(), taken)):
                    found.row_bytes = batch_bytes(batch) / max(length(batch), 1)
                    found.subtract(loader.report())
                    began = time.perf_counter()
            if began:
                found.count(loader.report())
            if empty:
                break
    finally:
        loader.close()
    return found


def _is_drained(report: Report, taken: int) -> bool:
    """Have all batches been taken that were prefetched before the measurement?"""
    return report.ready == 0 or taken > report.depth


class Epochs(NamedTuple):
    """Whole epochs, one after the other."""

    rows: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """Samples per second."""
        return self.rows / self.seconds


def run_epochs(loader: _Loader, at_least: float, at_most: float) -> Epochs | None:
    """Take whole epochs after the first for ``at_least`` seconds, and close the loader.

    Returns ``None`` if that would take more than ``at_most`` seconds. Only whole epochs show how
    fast a loader is: within one it may wait for a file, and deliver what is in it in a burst.
    """
    first, rows, began = True, 0, time.perf_counter()
    give_up = began + at_most
    try:
        while True:
            for batch in loader:
                if time.perf_counter() > give_up:
                    return None
                rows += 0 if first else length(batch)
            now = time.perf_counter()
            if first:
                first, began = False, now
            elif not rows:
                return None
            elif now - began >= at_least:
                return Epochs(rows, now - began)
    finally:
        loader.close()


def length(batch: Batch) -> int:
    """Count the samples of a batch, whatever its form."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return len(next(iter(values)))


def batch_bytes(batch: Batch) -> int:
    """Count the bytes of a batch, or of a list of arrays in it."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return sum(one.nbytes if hasattr(one, "nbytes") else batch_bytes(one) for one in values)


_DRIVER = ("/dev/nvidiactl", "/dev/dxg")  # on Linux itself, and within Windows


def may_have_device() -> bool:
    """May there be a CUDA device? Importing torch to be sure takes seconds."""
    if sys.platform == "linux" and not any(map(os.path.exists, _DRIVER)):
        return False
    return find_spec("torch") is not None


THREADS = 16  # a disk serves many requests at once faster than one after the other
_AT_ONCE = 1 << 20
_TOGETHER = 64  # stretches that a thread takes at a time
_LOOKS = 32
_TRIES = 5  # pages that were just read or written are not dropped at once


class Piece(NamedTuple):
    """Stretches of one file."""

    path: bytes
    stretches: Sequence[tuple[int, int]]


class Volume(NamedTuple):
    """How much was read, and in how many seconds."""

    nbytes: int
    seconds: float


def locate_pieces(ds: Dataset, rows: NDArray[np.int64]) -> list[Piece]:
    """Locate samples in files, in pieces that threads can share."""
    samples = select_rows(ds.rows, rows)
    found = []
    for group in ds.groups:
        if group.table.sealed:
            continue
        for path, stretches in readahead.stretches(group, samples):
            short = list(itertools.chain.from_iterable(map(_cut, stretches)))
            found += [
                Piece(path, short[at : at + _TOGETHER]) for at in range(0, len(short), _TOGETHER)
            ]
    return found


def _cut(stretch: tuple[int, int]) -> list[tuple[int, int]]:
    start, end = stretch
    return [(at, min(at + _AT_ONCE, end)) for at in range(start, end, _AT_ONCE)]


def count_bytes(found: Sequence[Piece]) -> int:
    """Count the bytes of all stretches, in whole pages."""
    return sum(end - start for piece in found for start, end in piece.stretches)


def drop(found: Sequence[Piece]) -> None:
    """Drop these files from the page cache, where the system allows it."""
    for _ in range(_TRIES):
        for path in dict.fromkeys(piece.path for piece in found):
            with File(path) as file:
                platform_calls.drop(file.fd)
        if is_cold(found):
            return


def is_cold(found: Sequence[Piece]) -> bool:
    """Are most of these stretches not in the page cache?

    Looks at other places every time: the system may start to read what was looked at.
    """
    if not found:
        return False
    rng = np.random.default_rng()
    missing = 0
    for at in rng.integers(len(found), size=_LOOKS):
        start, end = found[at].stretches[rng.integers(len(found[at].stretches))]
        with File(found[at].path) as file:
            missing += not platform_calls.resident(
                file.fd, rng.integers(start, min(end, file.size))
            )
    return 2 * missing > _LOOKS


def read(found: Sequence[Piece], seconds: float, threads: int) -> Volume:
    """Read stretches until all are read or ``seconds`` have passed."""
    began = time.perf_counter()
    until = began + seconds

    def read_some(mine: Sequence[Piece]) -> int:
        done = 0
        for piece in mine:
            if time.perf_counter() > until:
                break
            done += _read(piece)
        return done

    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(read_some, (found[first::threads] for first in range(threads))))
    return Volume(done, time.perf_counter() - began)


def _read(piece: Piece) -> int:
    buffer = memoryview(bytearray(max(end - start for start, end in piece.stretches)))
    done = 0
    with File(piece.path) as file:
        for start, end in piece.stretches:
            length = min(end, file.size) - start  # pages reach beyond the end
            if length > 0:
                file.read_into(start, [buffer[:length]])
                done += end - start
    return done
