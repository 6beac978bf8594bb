"""The samples to be packed: read, mapped and measured, including those larger than memory.

``RowReader`` belongs to one task and one thread. It keeps files and streams open between two
batches; compressed arrays of many rows must be read in ascending order.

Samples too large for memory are copied some elements at a time, field by field. That needs values
that are contiguous in a file or in a stream. Values that are scattered (Fortran order) or go
through a map are held whole, since one sample is the smallest unit there.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.arguments import lazy
from ndfeed.dataset.column import Column, Field, Group, columns_of, is_converted, sample_shapes
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.decoding import Decoded, stored_dtype, verify
from ndfeed.dataset.destination import Arrays
from ndfeed.dataset.global_rng import seed_globals
from ndfeed.dataset.map_steps import Batch, apply_steps
from ndfeed.dataset.origins import Origin
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import freeze, is_ascending, select_rows
from ndfeed.errors import ChangedError
from ndfeed.files.file import File, Identity, changed, refuse
from ndfeed.formats.description import DEFLATE, GZIP, INLINE, RAW
from ndfeed.index.table import Ints, Table
from ndfeed.packing.streams import StreamCursor, find_streams, start_decoding

NAMES = "file"  # the field with the names of source files
_AT_ONCE = 1 << 16


class SourceRows:
    """A dataset as the source of a pack. Shared by threads; it holds nothing open."""

    def __init__(self, ds: Dataset, *, names: bool, in_order: bool = False) -> None:
        self.ds = ds
        self.rows = freeze(ds.rows)
        self.names = names
        self.streams = [
            find_streams(group) if is_ascending(group.rows) else [] for group in ds.groups
        ]
        # Columns that are not read as streams are read as the dataset reads them, except that data
        # read once, from the first byte to the last, is not worth a map's page faults.
        self.others = [
            _drop_columns(group, [c for columns in found for c in columns], mapped=not in_order)
            for group, found in zip(ds.groups, self.streams, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.ds)

    def samples(self, rows: Ints) -> Ints:
        """Return the samples, in the groups, of rows of the dataset."""
        return select_rows(self.rows, rows)

    @lazy
    def is_ascending(self) -> bool:
        """Are the rows in the order in which they are stored?"""
        return is_ascending(self.rows)

    @property
    def is_contiguous(self) -> bool:
        """Are the rows consecutive, with none left out?"""
        rows = self.rows
        every = rows is None or (isinstance(rows, range) and rows.step == 1)
        return every and all(group.rows is None for group in self.ds.groups)

    @lazy
    def row_bytes(self) -> int | None:
        """Bytes of every sample as read; ``None`` where they differ."""
        columns = columns_of(self.ds.groups)
        if self.names or not all(column.even for column in columns):
            return None
        return sum(int(column.nbytes[0]) for column in columns)

    def sizes(self, rows: Ints) -> Ints:
        """Return the bytes of some samples as read."""
        if self.row_bytes is not None:
            return np.full(len(rows), self.row_bytes, np.int64)
        samples = self.samples(rows)
        total = np.zeros(len(rows), np.int64)
        for group in self.ds.groups:
            for column in group.columns:
                total += _sample_bytes(group, column, samples)
        if self.names:
            total += self._path_lengths(samples)
        return total

    def shapes(self, name: str, rows: Ints) -> Ints:
        """Return the shapes of samples of a stored ragged field, one in each row."""
        samples = self.samples(rows)
        if self.names and name == NAMES:
            return self._path_lengths(samples).reshape(-1, 1)
        for group in self.ds.groups:
            for column in group.columns:
                if column.field.name == name:
                    return _sample_shapes(group, column, samples)
        raise KeyError(name)

    @lazy
    def decoded_group(self) -> Group | None:
        """The largest group whose parts must not be decoded twice, if there is one."""
        held = [
            (max(int(c.table.decoded[c.arrays].max(initial=0)) for c in group.columns), i)
            for i, group in enumerate(self.ds.groups)
            if not group.one_each and group.rows is None and _is_compressed(group)
        ]
        return self.ds.groups[max(held)[1]] if held else None

    def path_of(self, row: int) -> str:
        """Return the file that has a row."""
        file = self._origin.files_of(self.samples(np.array([row])))[0]
        return os.fsdecode(self._origin.table.path(int(file)))

    def file_names(self, samples: Ints) -> list[NDArray[Any]]:
        """Return the names of the files of some samples, relative to their common folder."""
        file = self._origin.files_of(samples)
        ends, text = self._origin.table.path_ends, self._origin.table.path_bytes
        pairs = zip(ends[file].tolist(), ends[file + 1].tolist(), strict=True)
        return [text[start:end] for start, end in pairs]

    def _path_lengths(self, samples: Ints) -> Ints:
        file = self._origin.files_of(samples)
        ends = self._origin.table.path_ends
        return ends[file + 1] - ends[file]

    @lazy
    def _origin(self) -> Origin:
        return self.ds.origin

    def check_unchanged(self) -> None:
        """Refuse sources that changed since they were indexed."""
        tables = {id(group.table): group.table for group in self.ds.groups}
        for table in tables.values():
            if not table.sealed:
                _check_unchanged(table)


def _sample_bytes(group: Group, column: Column, samples: Ints) -> Ints:
    if column.offsets is None:
        return column.nbytes[group.locate(samples).part]
    found: Ints = _sample_shapes(group, column, samples).prod(axis=1) * column.field.dtype.itemsize
    return found


def _sample_shapes(group: Group, column: Column, samples: Ints) -> Ints:
    """Return the shapes of samples of one rank, one in each row."""
    rank = len(column.field.shape or ())
    if column.offsets is not None:
        found = reader_of(group).shapes(group, column, samples)
        return np.asarray(found, np.int64).reshape(len(samples), rank)
    return sample_shapes(column, group.locate(samples).part)


def _check_unchanged(table: Table) -> None:
    for start in range(0, table.files, _AT_ONCE):
        files = np.arange(start, min(start + _AT_ONCE, table.files))
        expected = table.identity[files].tolist()
        for path, before in zip(table.paths_of(files), expected, strict=True):
            try:
                after = Identity.of(os.stat(path))
            except FileNotFoundError:
                raise ChangedError(
                    path, "removed since it was indexed", remedy="put it back"
                ) from None
            except OSError as error:
                refuse(path, error)
            if tuple(after) != tuple(before):
                raise changed(path, Identity(*before), after)


def _drop_columns(group: Group, columns: Iterable[object], *, mapped: bool) -> Group | None:
    dropped = {id(column) for column in columns}
    kept = tuple(column for column in group.columns if id(column) not in dropped)
    mapped &= group.mapped
    if len(kept) == len(group.columns) and mapped == group.mapped:
        return group
    return replace(group, columns=kept, mapped=mapped) if kept else None


def _is_compressed(group: Group) -> bool:
    return any(bool(((c.coding != RAW) & (c.coding != INLINE)).any()) for c in group.columns)


class _RowGenerators:
    """Random generators fixed by the rows of a batch, whatever else is in it."""

    def __init__(self, rows: Ints) -> None:
        self._rows = rows

    def batch(self, step: int) -> np.random.Generator:
        """Return the generator for the batch that starts with this row."""
        return np.random.default_rng([step, int(self._rows[0])])

    def sample(self, step: int, at: int) -> np.random.Generator:
        """Return the generator for one row."""
        return np.random.default_rng([step, int(self._rows[at])])


class _ReusedBuffers(threading.local):
    """Per-thread memory that is reused: new pages cost as much as a copy."""

    def __init__(self) -> None:
        self.buffers: dict[str, NDArray[np.uint8]] = {}

    def array(self, field: Field, count: int) -> NDArray[Any]:
        """Return an array for samples of one shape, valid until the next batch."""
        size = count * (field.nbytes or 0)
        held = self.buffers.get(field.name)
        if held is None or len(held) < size:
            held = self.buffers[field.name] = np.empty(size, np.uint8)
        return held[:size].view(field.dtype).reshape(count, *(field.shape or ()))


_buffers = _ReusedBuffers()


def _reuse_arrays(group: Group, count: int) -> dict[str, Arrays]:
    """Return arrays for columns that are copied; gathered ones come in their own memory."""
    if group.mapped and not group.by_file:
        return {}
    fields = [column.field for column in group.columns]
    return {field.name: _buffers.array(field, count) for field in fields if field.nbytes}


Observer = Callable[[Column, Ints, Ints, Any], None]


class RowReader:
    """Reads batches for one task. Leaving the context without an error checks what is open.

    ``observe`` is called for columns that are not read as streams, as they were read: with the
    column, where its parts start, the samples, and their values. ``seeds_globals`` is for worker
    processes: elsewhere the global random generators belong to the user.
    """

    def __init__(
        self, source: SourceRows, observe: Observer | None = None, *, seeds_globals: bool = False
    ) -> None:
        self._source = source
        self._observe = observe
        self._seeds_globals = seeds_globals
        self._cursors = [[StreamCursor(columns) for columns in found] for found in source.streams]
        self._decoded = Decoded(0)  # only the newest stream is kept

    def read(self, rows: Ints) -> Batch:
        """Return what the columns are to hold of some rows, before any cast."""
        ds = self._source.ds
        samples = self._source.samples(rows)
        batch: Batch = dict.fromkeys(ds.names)
        for group, rest, cursors in zip(ds.groups, self._source.others, self._cursors, strict=True):
            if rest is not None:
                room = {} if ds.steps else _reuse_arrays(rest, len(samples))
                for target in reader_of(rest).fill(rest, samples, room, self._decoded):
                    batch[target.column.field.name] = target.arrays
                    if self._observe is not None:
                        self._observe(target.column, rest.starts, samples, target.arrays)
            for cursor in cursors:
                every = zip(cursor.columns, cursor.read(*group.locate(samples)), strict=True)
                batch.update({column.field.name: values for column, values in every})
        if ds.steps:
            batch = self._apply_maps(batch, rows)
        if self._source.names:
            batch[NAMES] = self._source.file_names(samples)
        return batch

    def _apply_maps(self, batch: Batch, rows: Ints) -> Batch:
        if self._seeds_globals:
            seed_globals(int(rows[0]).to_bytes(8, "little"))
        return apply_steps(batch, self._source.ds.steps, _RowGenerators(rows))

    def read_column(self, group: Group, column: Column, samples: Ints) -> Arrays:
        """Read samples of one column as they are stored."""
        alone = replace(group, columns=(column,))
        return reader_of(alone).fill(alone, samples, {}, self._decoded)[0].arrays

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        for cursors in self._cursors:
            for cursor in cursors:
                if error is None:
                    cursor.finish()
                else:
                    cursor.close()


Chunks = Iterator[NDArray[Any]]


def read_chunks(
    source: SourceRows, reader: RowReader, row: int, most: int
) -> Iterator[tuple[str, Chunks]]:
    """Yield every field of a row, and its values in flat arrays of at most ``most`` bytes."""
    sample = source.samples(np.array([row]))
    for group in source.ds.groups:
        place = group.locate(sample)
        part, own = int(place.part[0]), int(place.row[0])
        for column in group.columns:
            name = column.field.name
            if column.nbytes[part] > most and _can_stream(column, part):
                yield name, _stream_values(column, part, own, most)
            else:
                values = np.asarray(reader.read_column(group, column, sample)[0])
                yield name, iter([values.reshape(-1)])
    if source.names:
        yield NAMES, iter(source.file_names(sample))


def _can_stream(column: Column, part: int) -> bool:
    known = int(column.coding[part]) in (RAW, DEFLATE, GZIP)
    straight = not column.strided[part] and not is_converted(column)
    return known and straight and column.offsets is None


def _stream_values(column: Column, part: int, row: int, most: int) -> Chunks:
    table, array = column.table, int(column.arrays[part])
    number = int(table.file[array])
    dtype = stored_dtype(table, array)
    size = int(column.nbytes[part])
    start = int(column.first[part]) + row * size
    step = max(most // dtype.itemsize, 1) * dtype.itemsize
    stored = int(table.coding[array]) == RAW
    if stored and column.whole[part]:  # else checked when rows are packed, once for all of them
        one = np.array([part])
        verify([replace(column, arrays=column.arrays[one], whole=column.whole[one])])
    with File(table.path(number), table.expected(number)) as file:
        decoding = None if stored else start_decoding(file, table, array)
        if decoding is not None:
            decoding.skip(start)
        for at in range(0, size, step):
            data = np.empty(min(step, size - at), np.uint8)
            memory: memoryview = data.data
            if decoding is None:
                file.read_into(start + at, [memory])
            else:
                decoding.read_into(memory)
            yield data.view(dtype)
        if decoding is not None:
            decoding.finish()
