"""Collates the ragged fields of a batch, and joins small batches that maps made into groups.

Groups are for adapters that take several batches at a time. Guarantees:

- A group is consecutive batches, concatenated; split where they were joined, they are the same.
- Nobody waits for a group to become full: a batch that took long completes its group.
- An error comes after the batches before it.
"""

import time
from collections.abc import Iterator, Mapping

import numpy as np

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_fields import with_lists
from ndfeed.dataset.map_steps import Batch, as_samples
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.engine import BatchGroup
from ndfeed.loading.options import Options, stored_fields
from ndfeed.loading.ragged import (
    PLAIN,
    Room,
    collate_ragged,
    count_padding,
    field_of_samples,
    owner,
)

_QUICK = 0.005  # seconds: a batch that takes this long is delivered by itself


class Collator:
    """Gives ragged fields the form that ``ragged=`` asks for. Thread-safe."""

    def __init__(self, ds: Dataset, options: Options, pool: Pool) -> None:
        self._ragged, self._pads, self._pool = options.ragged, options.pads, pool
        self._stored = {field.name: field for field in stored_fields(ds)}
        # Fields that count as ragged even in a batch whose samples all have one shape: those whose
        # lengths or offsets are requested, and those that are padded to a fixed length.
        names = options.structure.names or ()
        self._always = {owner(name, [name.rpartition("_")[0]], self._ragged) for name in names}
        self._always |= set(self._pads)

    def collate_stored(self, batch: Batch) -> Batch:
        """Collate a batch as it was read."""
        made: Batch = {}
        for name, values in batch.items():
            if isinstance(values, Room):
                made |= values.batch  # read straight into its form
            elif self._stored[name].ragged:
                pad = self._pads.get(name, PLAIN)
                made |= collate_ragged(self._stored[name], values, self._ragged, self._pool, pad)
            else:
                made[name] = values
        return made

    def collate_mapped(self, batch: Batch, known: Mapping[str, Field]) -> Batch:
        """Collate a batch that maps made; ``known`` are the fields of all batches, if learned.

        Which fields are ragged does not depend on the batch.
        """
        if self._ragged == "list":
            return with_lists(batch, known)
        made: Batch = {}
        for name, values in batch.items():
            field = known.get(name)
            ragged = field is not None and field.ragged
            listed = isinstance(values, list | tuple)
            if len(values) and (listed or ragged or name in self._always):
                samples = as_samples(values)
                field = field_of_samples(name, samples, field if ragged else None)
                pad = self._pads.get(name, PLAIN)
                made |= collate_ragged(field, samples, self._ragged, self._pool, pad)
            else:
                made[name] = values
        return made

    def count_padding(self, batch: Batch) -> tuple[int, int]:
        """Return how long all samples of a batch are together, and how much of it is padding."""
        return count_padding(batch, self._stored) if self._ragged == "pad" else (0, 0)

    def make_empty(self, fields: Mapping[str, Field]) -> Batch:
        """Return a batch of no samples, with the fields it would have."""
        made: Batch = {}
        for name, field in fields.items():
            shape = field.lengths
            if self._ragged != "list" and (field.ragged or name in self._always):
                uneven = Field(name, field.dtype, (None,) * len(shape), field.type)
                known = field if field.ragged else uneven
                pad = self._pads.get(name, PLAIN)
                made |= Room(known, [], self._ragged, self._pool, pad).batch
            else:
                made[name] = [] if field.ragged else np.empty((0, *shape), field.dtype)
        return made


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
    return BatchGroup(made, len(some), len(parts[0]))


def _are_alike(one: Batch, other: Batch) -> bool:
    """Do both batches have the same names, dtypes and sample shapes?"""
    return one.keys() == other.keys() and all(
        isinstance(a, np.ndarray)
        and isinstance(b := other[name], np.ndarray)
        and (a.dtype, a.shape[1:]) == (b.dtype, b.shape[1:])
        for name, a in one.items()
    )
