"""A loader run for a while: what it gave, and where its threads' time went."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ndfeed.loader.report import Report


class _Loader(Protocol):
    def __iter__(self) -> Any: ...  # noqa: ANN401

    def report(self) -> Report: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Ran:
    """Batches that were taken: those behind the first, which also starts the threads."""

    rows: int = 0
    seconds: float = 0.0
    passes: int = 0
    threads: int = 0
    row_bytes: float = 0.0  # of a sample as it was delivered
    made: int = 0  # rows of the passes that ``stages`` are of
    stages: dict[str, float] = field(default_factory=dict)  # seconds of all threads together

    @property
    def rows_per_second(self) -> float:
        """Samples a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    def count(self, report: Report) -> None:
        """Add what the loader says of a pass."""
        self.passes += 1
        self.threads = report.threads
        self.made += report.rows
        for name, seconds in report.stages.items():
            self.stages[name] = self.stages.get(name, 0.0) + seconds


def run(loader: _Loader, seconds: float) -> Ran:
    """Take batches for so many seconds, epoch after epoch, and close the loader."""
    found = Ran()
    began = 0.0
    try:
        while not found.rows or found.seconds < seconds:
            taken = 0
            for batch in loader:
                taken += 1
                if not began:
                    found.row_bytes = nbytes(batch) / max(length(batch), 1)
                    began = time.perf_counter()
                    continue
                found.rows += length(batch)
                found.seconds = time.perf_counter() - began
                if found.seconds > seconds:
                    break
            found.count(loader.report())
            if not taken:
                break
    finally:
        loader.close()
    return found


def length(batch: Any) -> int:  # noqa: ANN401
    """Samples of a batch, whatever its form."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return len(next(iter(values)))


def nbytes(batch: Any) -> int:  # noqa: ANN401
    """Bytes of a batch, or of a list of arrays in it."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return sum(one.nbytes if hasattr(one, "nbytes") else nbytes(one) for one in values)
