"""Small batches that maps made, brought into pieces for an adapter that takes several at a time.

Guarantees:

- A piece is batches in a row, end to end; cut where they were joined, they are the same.
- Nobody waits for a piece to become full: with a batch that took long it is handed over.
- What goes wrong comes behind the batches before it.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ndfeed.dataset.step import Batch
from ndfeed.loader.engine import Several
from ndfeed.loader.fill import nbytes
from ndfeed.loader.pool import Pool

_QUICK = 0.005  # seconds: a batch that takes as long is worth handing over by itself


class Joiner:
    """Makes pieces of at most ``most`` bytes, or of one batch, in memory of the pool."""

    def __init__(self, pool: Pool, most: int) -> None:
        self._pool = pool
        self._most = most

    def __call__(self, batches: Iterator[Batch]) -> Iterator[Any]:
        """The batches, several at a time as ``Several`` where they come quickly and are alike."""
        some: list[Batch] = []
        room = self._most
        began = time.perf_counter()
        try:
            for batch in batches:
                size = nbytes(batch)
                if some and (size > room or not _alike(some[0], batch)):
                    yield self._joined(some)
                    some, room = [], self._most
                some.append(batch)
                room -= size
                if time.perf_counter() - began > _QUICK:
                    yield self._joined(some)
                    some, room = [], self._most
                    began = time.perf_counter()
        except Exception:
            if some:
                yield self._joined(some)
            raise
        if some:
            yield self._joined(some)

    def _joined(self, some: list[Batch]) -> Any:  # noqa: ANN401
        if len(some) == 1:
            return some[0]
        made: Batch = {}
        for name, first in some[0].items():
            parts = [batch[name] for batch in some]
            room = self._pool.array(sum(map(len, parts)), first.dtype, first.shape[1:])
            made[name] = np.concatenate(parts, out=room)
        return Several(made, len(some))


def _alike(one: Batch, other: Batch) -> bool:
    """Are these arrays of the same names, types and shapes of samples?"""
    return one.keys() == other.keys() and all(
        isinstance(a, np.ndarray)
        and isinstance(b := other[name], np.ndarray)
        and (a.dtype, a.shape[1:]) == (b.dtype, b.shape[1:])
        for name, a in one.items()
    )
