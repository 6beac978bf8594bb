"""Joins small batches that maps made into groups, for adapters that take several at a time.

Guarantees:

- A group is consecutive batches, concatenated; split where they were joined, they are the same.
- Nobody waits for a group to become full: a batch that took long completes its group.
- An error comes after the batches before it.
"""

import time
from collections.abc import Iterator

import numpy as np

from ndfeed.dataset.map_steps import Batch
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.engine import BatchGroup

_QUICK = 0.005  # seconds: a batch that takes this long is delivered by itself


def nbytes(batch: Batch) -> int:
    """Count the bytes of all arrays of a batch."""
    found = 0
    for values in batch.values():
        size = getattr(values, "nbytes", None)
        if size is None:
            size = sum(getattr(one, "nbytes", 0) for one in values)
        found += size
    return found


def join_batches(batches: Iterator[Batch], most: int, pool: Pool) -> Iterator[Batch | BatchGroup]:
    """Yield batches, as ``BatchGroup`` of up to ``most`` bytes where several come quickly.

    Only batches that are alike are joined.
    """
    some: list[Batch] = []
    room = most
    began = time.perf_counter()
    try:
        for batch in batches:
            size = nbytes(batch)
            if some and (size > room or not _are_alike(some[0], batch)):
                yield _concatenate(some, pool)
                some, room = [], most
            some.append(batch)
            room -= size
            if time.perf_counter() - began > _QUICK:
                yield _concatenate(some, pool)
                some, room = [], most
                began = time.perf_counter()
    except Exception:
        if some:
            yield _concatenate(some, pool)
        raise
    if some:
        yield _concatenate(some, pool)


def _concatenate(some: list[Batch], pool: Pool) -> Batch | BatchGroup:
    """Copy batches into one group; one alone stays as it is."""
    if len(some) == 1:
        return some[0]
    made: Batch = {}
    for name, first in some[0].items():
        parts = [batch[name] for batch in some]
        room = pool.array(sum(map(len, parts)), first.dtype, first.shape[1:])
        made[name] = np.concatenate(parts, out=room)
    return BatchGroup(made, len(some))


def _are_alike(one: Batch, other: Batch) -> bool:
    """Do both batches have the same names, dtypes and sample shapes?"""
    return one.keys() == other.keys() and all(
        isinstance(a, np.ndarray)
        and isinstance(b := other[name], np.ndarray)
        and (a.dtype, a.shape[1:]) == (b.dtype, b.shape[1:])
        for name, a in one.items()
    )
