"""Reads rows into host buffers, and groups small batches for adapters.

Guarantees for groups of batches that maps made:

- A group is consecutive batches, concatenated; split where they were joined, they are the same.
- Nobody waits for a group to become full: a batch that took long completes its group.
- An error comes after the batches before it.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.decoding import Decoded
from ndfeed.dataset.destination import Arrays
from ndfeed.dataset.map_steps import Batch
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import select_rows
from ndfeed.files import platform_calls
from ndfeed.loading.batch_maker import nbytes
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.engine import BatchGroup
from ndfeed.loading.ragged import PLAIN, Pads, Ragged, Room
from ndfeed.order.permutation import Ints

_Even = tuple[str, np.dtype[Any], tuple[int, ...]]  # name, type and shape of a sample


class HostSource:
    """Reads the stored fields of a dataset. Thread-safe."""

    def __init__(
        self, ds: Dataset, ragged: Ragged, pool: Pool, decoded: Decoded, pads: Pads | None = None
    ) -> None:
        self.ds = ds
        self.pool = pool
        self.decoded = decoded
        self._pads: Pads = pads or {}
        self._ragged = "list" if ds.steps else ragged  # maps are given lists
        self._empty: Batch = dict.fromkeys(ds.names)
        self._even = [
            [
                (c.field.name, c.field.dtype, c.field.lengths)
                for c in group.columns
                if not c.field.ragged
            ]
            for group in ds.groups
        ]
        self._uneven = [[c for c in group.columns if c.field.ragged] for group in ds.groups]

    def read(self, rows: Ints) -> Batch:
        """Read the stored fields of ``rows``."""
        ds, count = self.ds, len(rows)
        samples = rows if ds.rows is None else select_rows(ds.rows, rows)
        batch = self._empty.copy()
        try:
            for group, even, uneven in zip(ds.groups, self._even, self._uneven, strict=True):
                room = partial(self._room, count, even)
                if uneven:
                    self._read_uneven(group, samples, uneven, room(), batch)
                else:
                    reader_of(group).lend(group, samples, room, batch, self.decoded)
        except MemoryError as error:
            what = f"a batch of {count:,} samples"
            raise platform_calls.translate_os_error(
                error, ds.groups[0].table.path(0), what
            ) from None
        return batch

    def _room(self, count: int, even: Sequence[_Even]) -> dict[str, NDArray[Any]]:
        return {name: self.pool.array(count, dtype, shape) for name, dtype, shape in even}

    def _read_uneven(
        self,
        group: Group,
        samples: Ints,
        uneven: list[Column],
        arrays: dict[str, NDArray[Any]],
        batch: Batch,
    ) -> None:
        """Read a group with ragged columns, straight into their form where possible."""
        reader = reader_of(group)
        given: dict[str, Arrays] = {**arrays}
        rooms: list[Room] = []
        for column in uneven if self._ragged != "list" else ():
            shapes = reader.shapes(group, column, samples)
            pad = self._pads.get(column.field.name, PLAIN)
            room = Room(column.field, shapes, self._ragged, self.pool, pad)
            if room.laid is not None:
                located = column.offsets is not None and (column.offsets >= 0).all()
                given[column.field.name] = room.laid if located else room.samples()
                rooms.append(room)
        batch.update(arrays)
        for target in reader.fill(group, samples, given, self.decoded):
            if target.column.field.ragged and target.laid is None:
                batch[target.column.field.name] = target.ragged
        for room in rooms:
            batch[room.field.name] = room


_QUICK = 0.005  # seconds: a batch that takes this long is delivered by itself


class Joiner:
    """Groups batches up to ``most`` bytes, at least one batch, in pooled memory."""

    def __init__(self, pool: Pool, most: int) -> None:
        self._pool = pool
        self._most = most

    def __call__(self, batches: Iterator[Batch]) -> Iterator[Any]:
        """Yield the batches, as ``BatchGroup`` where several come quickly and are alike."""
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
        return BatchGroup(made, len(some))


def _alike(one: Batch, other: Batch) -> bool:
    """Do both batches have the same names, dtypes and sample shapes?"""
    return one.keys() == other.keys() and all(
        isinstance(a, np.ndarray)
        and isinstance(b := other[name], np.ndarray)
        and (a.dtype, a.shape[1:]) == (b.dtype, b.shape[1:])
        for name, a in one.items()
    )
