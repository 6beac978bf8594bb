"""Reads rows of compressed arrays in ascending order: each stream decoded once, in bounded memory.

A row must be contiguous in the stream. That is so in C order, and for the leaves of a structured
array, which share a stream and are read together; not in Fortran order.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Group, is_converted
from ndfeed.dataset.decoding import stored_dtype
from ndfeed.dataset.large_members import first_of_streams
from ndfeed.dataset.row_ranges import stretches
from ndfeed.errors import ChangedError, Error, MissingError
from ndfeed.files.file import File
from ndfeed.formats.description import DEFLATE, GZIP, RAW, c_strides
from ndfeed.formats.inflate import Decoding
from ndfeed.index.cache import doubt
from ndfeed.index.table import Ints, Table

Values = NDArray[Any] | list[NDArray[Any]]


def find_streams(group: Group) -> list[tuple[Column, ...]]:
    """Return the columns of a group that are best read this way, those of one stream together."""
    if group.by_file or not first_of_streams(group).all():
        return []
    shared: dict[bytes, list[Column]] = {}
    for column in group.columns:
        coded = (column.coding == DEFLATE) | (column.coding == GZIP)
        straight = not is_converted(column) and _has_contiguous_rows(column)
        if coded.any() and (coded | (column.coding == RAW)).all() and straight:
            key = column.table.offset[column.arrays].tobytes() + column.file.tobytes()
            shared.setdefault(key, []).append(column)
    return [tuple(columns) for columns in shared.values()]


def _has_contiguous_rows(column: Column) -> bool:
    """Does every part have contiguous rows, one after the other?"""
    if column.lead > 1 or column.offsets is not None:  # samples start anywhere
        return False
    table = column.table
    kinds = np.unique(
        np.stack([table.shape[column.arrays], table.strides[column.arrays], column.whole]), axis=1
    )
    for shape, strides, whole in kinds.T.tolist():
        if strides < 0 or whole:
            continue
        lengths, steps = table.dimensions(shape), table.dimensions(strides)
        inner = sum((n - 1) * step for n, step in zip(lengths[1:], steps[1:], strict=True) if n)
        if steps[0] <= inner or min(steps) < 0:
            return False
    return True


def start_decoding(file: File, table: Table, array: int) -> Decoding:
    """Start to decode the stream of an array in its open file."""
    place = int(table.offset[array]), int(table.length[array])
    facts = int(table.coding[array]), int(table.decoded[array]), int(table.crc[array])
    return Decoding(file, place, *facts)


class StreamCursor:
    """Moves forward through the streams of some columns. Use in one thread."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self.columns = columns
        self._part = -1
        self._file: File | None = None
        self._decoding: Decoding | None = None

    def read(self, part: Ints, row: Ints) -> list[Values]:
        """Read samples at ascending places, for each column: an array, or a list where ragged."""
        found = [_allocate(column, part) for column in self.columns]
        for start, end in stretches(len(part), part[1:] != part[:-1]):
            if start < end:
                self._read_part(int(part[start]), row[start:end], start, found)
        return found

    def _read_part(self, part: int, row: Ints, at: int, found: Sequence[Values]) -> None:
        views = [_SampleLayout(column, part) for column in self.columns]
        if not max(view.span for view in views):
            return
        self._open_part(part)
        base = min(view.skip for view in views)
        span = max(view.skip - base + view.span for view in views)
        step = max(view.step for view in views)
        once, place = np.unique(row, return_inverse=True)
        for start, end in stretches(len(once), np.diff(once) != 1):
            first = base + int(once[start]) * step
            if len(once) == len(row) and self._read_directly(
                views[0], found[0], first, at, start, end
            ):
                continue
            data = np.empty((end - start - 1) * step + span, np.uint8)
            self._fetch(first, data)
            mine = np.flatnonzero((place >= start) & (place < end))
            for view, out in zip(views, found, strict=True):
                samples = view.view_samples(data, view.skip - base, end - start)[
                    place[mine] - start
                ]
                if isinstance(out, list):
                    for i, value in zip((at + mine).tolist(), samples, strict=True):
                        out[i][...] = value
                else:
                    out[at + mine] = samples

    def _read_directly(
        self, view: "_SampleLayout", out: Values, first: int, at: int, start: int, end: int
    ) -> bool:
        """Decode rows ``start`` to ``end`` in place, if they need no conversion."""
        if isinstance(out, list) or len(self.columns) > 1:
            return False
        if not view.plain or out.dtype != view.dtype:
            return False
        self._fetch(first, out[at + start : at + end].reshape(-1).view(np.uint8))
        return True

    def _open_part(self, part: int) -> None:
        """Open the stream of a part at its start."""
        if part == self._part:
            return
        self.finish()
        column = self.columns[0]
        table, array = column.table, int(column.arrays[part])
        number = int(table.file[array])
        try:
            self._file = File(table.path(number), table.expected(number))
        except (ChangedError, MissingError):
            doubt(table)
            raise
        self._part = part
        if column.coding[part] != RAW:
            self._decoding = start_decoding(self._file, table, array)

    def _fetch(self, start: int, out: NDArray[np.uint8]) -> None:
        memory: memoryview = out.data
        file = self._file
        if file is None:
            return
        try:
            if self._decoding is not None:
                self._decoding.skip(start - self._decoding.at)
                self._decoding.read_into(memory)
            else:
                column = self.columns[0]
                offset = int(column.table.offset[column.arrays[self._part]])
                file.read_into(offset + start, [memory])
        except Error:
            file.recheck()  # a file that changed while it was read may look damaged
            raise

    def finish(self) -> None:
        """Decode the rest of the current stream, so that its checksum is compared."""
        file, decoding = self._file, self._decoding
        self._part, self._file, self._decoding = -1, None, None
        if file is not None:
            with file:
                if decoding is not None:
                    decoding.finish()

    def close(self) -> None:
        """Close the current stream as it is."""
        if self._file is not None:
            self._file.close()
        self._part, self._file, self._decoding = -1, None, None


class _SampleLayout:
    """How the samples of a part lie in its stream."""

    def __init__(self, column: Column, part: int) -> None:
        table, array = column.table, int(column.arrays[part])
        self.dtype = stored_dtype(table, array)
        self.skip = int(table.skip[array])
        shape = table.dimensions(int(table.shape[array]))
        place = int(table.strides[array])
        size = self.dtype.itemsize
        steps = c_strides(shape, size) if place < 0 else table.dimensions(place)
        whole = bool(column.whole[part])
        self.shape = shape if whole else shape[1:]
        self.strides = steps if whole else steps[1:]
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        self.span = 0 if 0 in self.shape else last + size
        self.step = self.span if whole else steps[0]
        self.plain = place < 0

    def view_samples(self, data: NDArray[np.uint8], start: int, count: int) -> NDArray[Any]:
        """View ``count`` samples in ``data``, the first from ``start`` on."""
        # Through opaque bytes: NumPy makes arrays of some dtypes only as views of others.
        opaque = np.dtype((np.void, self.dtype.itemsize))
        shape, strides = (count, *self.shape), (self.step, *self.strides)
        if not self.span:
            return np.empty(shape, self.dtype)
        return np.ndarray(shape, opaque, data, start, strides).view(self.dtype)


def _allocate(column: Column, part: Ints) -> Values:
    field = column.field
    if field.ragged:
        return [np.empty(shape, field.dtype) for shape in column.shapes(part)]
    return np.empty((len(part), *field.lengths), field.dtype)
