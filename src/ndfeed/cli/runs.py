"""A loader run for a while: what it gave, and where its threads' time went."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ndfeed.loader.report import Report


class _Loader(Protocol):
    def __iter__(self) -> Any: ...  # noqa: ANN401

    def report(self) -> Report: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Ran:
    """Batches that were taken, and what the loader's threads did meanwhile.

    ``stages`` and ``idle`` are seconds of all threads together, over the same stretch of time as
    ``rows`` and ``seconds``.
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
        """Samples a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    def count(self, report: Report) -> None:
        """Add what the loader says about a pass."""
        self.passes += 1
        self.threads = report.threads
        self._add(report, 1)

    def leave_out(self, report: Report) -> None:
        """Take off what the threads did in this pass before the measurement began."""
        self._add(report, -1)

    def _add(self, report: Report, sign: int) -> None:
        self.idle += sign * report.waiting_for_consumer
        for name, seconds in report.stages.items():
            self.stages[name] = self.stages.get(name, 0.0) + sign * seconds


def run(loader: _Loader, seconds: float, warm_up: float = 0.0) -> Ran:
    """Take batches for so many seconds, epoch after epoch, and close the loader.

    The measurement begins behind the first batch, which waits for the threads to start. With
    ``warm_up`` it begins so many seconds later, and behind the batches that were made ahead in the
    meantime: they would come in one burst.
    """
    found = Ran()
    until: float | None = None  # when the measurement may begin; then, nothing is left to wait for
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
                    found.row_bytes = nbytes(batch) / max(length(batch), 1)
                    found.leave_out(loader.report())
                    began = time.perf_counter()
            if began:
                found.count(loader.report())
            if empty:
                break
    finally:
        loader.close()
    return found


def _is_drained(report: Report, taken: int) -> bool:
    """Was everything delivered that was made before there was anybody to take it?"""
    return report.ready == 0 or taken > report.depth


class Epochs(NamedTuple):
    """Whole epochs that followed each other."""

    rows: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """Samples a second."""
        return self.rows / self.seconds


def run_epochs(loader: _Loader, at_least: float, at_most: float) -> Epochs | None:
    """Take whole epochs after the first for ``at_least`` seconds, and close the loader.

    Nothing is returned if that would take more than ``at_most`` seconds. Only whole epochs say
    what a loader gives: within one it may wait for a file, and deliver what is in it in a burst.
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


def length(batch: Any) -> int:  # noqa: ANN401
    """Samples of a batch, whatever its form."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return len(next(iter(values)))


def nbytes(batch: Any) -> int:  # noqa: ANN401
    """Bytes of a batch, or of a list of arrays in it."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return sum(one.nbytes if hasattr(one, "nbytes") else nbytes(one) for one in values)
