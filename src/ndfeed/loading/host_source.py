"""Reads rows into host buffers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.decoding import Decoded
from ndfeed.dataset.destination import Arrays
from ndfeed.dataset.map_steps import Batch
from ndfeed.dataset.ranges import are_alike
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import select_rows
from ndfeed.files import platform_calls
from ndfeed.loading.batch_builder import Source
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.options import Options
from ndfeed.loading.ragged import PLAIN, Room
from ndfeed.order.permutation import Ints

_Even = tuple[str, np.dtype[Any], tuple[int, ...]]  # name, type and shape of a sample


class HostSource(Source):
    """Reads the stored fields of a dataset. Thread-safe."""

    def __init__(self, ds: Dataset, options: Options, pool: Pool, decoded: Decoded) -> None:
        self.ds = ds
        self.pool = pool
        self.decoded = decoded
        self._options = options
        self._pads = options.pads
        self._ragged = "list" if ds.steps else options.ragged  # maps are given lists
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

    def only(self, names: Sequence[str]) -> "HostSource":
        """Return the same for some of the fields."""
        return self.of(self.ds.select(*names))

    def of(self, ds: Dataset) -> "HostSource":
        """Return the same for another dataset."""
        return HostSource(ds, self._options, self.pool, self.decoded)

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
                given[column.field.name] = room.laid if are_alike(column) else room.samples()
                rooms.append(room)
        batch.update(arrays)
        for target in reader.fill(group, samples, given, self.decoded):
            if target.column.field.ragged and target.laid is None:
                batch[target.column.field.name] = target.ragged
        for room in rooms:
            batch[room.field.name] = room
