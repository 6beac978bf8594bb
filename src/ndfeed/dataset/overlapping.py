"""Arrays over the same bytes as others, whose rows may overlap: what windows and crops are read as.

A window of rows is an array of one axis more, with the stride of the rows twice: once from one
window to the next, once from row to row. So nothing is copied or listed: windows are read like
the rows of any strided array, however many there are.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Group, Place
from ndfeed.dataset.row_ranges import Ranges, find_cuts
from ndfeed.dataset.row_selection import PartNumbers
from ndfeed.formats.dtypes import itemsize
from ndfeed.index.table import Ints, Table

_MOST_READ = 3  # bytes read for each byte of a box


@dataclass(frozen=True, eq=False)
class Overlap:
    """Arrays to be made of those of a column: of its ``parts``, from byte ``start`` of their first.

    One row for each: the lengths and the strides of its axes, in bytes.
    """

    column: Column
    parts: Ints
    start: Ints
    lengths: Ints
    steps: Ints


def axes_of(column: Column, parts: Ints) -> tuple[Ints, Ints]:
    """Return the lengths and the strides of the arrays of some parts, one in each row.

    All must have the same number of axes.
    """
    table, arrays = column.table, column.arrays[parts]
    dims = table.dims[table.shape[arrays]]
    rank = int(dims[0, 0]) if len(dims) else 0
    lengths = dims[:, 1 : 1 + rank]
    sizes = np.array([itemsize(name) for name in table.dtypes])[table.dtype[arrays]]
    # In C order: from the last axis to the first.
    inwards = np.concatenate([sizes[:, None], lengths[:, :0:-1]], axis=1)[:, :rank]
    steps = np.cumprod(inwards, axis=1)[:, ::-1]
    places = table.strides[arrays]
    given = np.flatnonzero(places >= 0)
    if len(given):
        steps = steps.copy()
        steps[given] = table.dims[places[given], 1 : 1 + rank]
    return lengths, steps


def sample_axes_of(column: Column, parts: Ints, rank: int) -> tuple[Ints, Ints, Ints]:
    """Return lengths and strides of the axes that samples have in some parts, and of their rows.

    The last are 0 for parts that are a whole sample each. Samples have ``rank`` axes.
    """
    lengths, steps = (np.empty((len(parts), rank), np.int64) for _ in range(2))
    row = np.zeros(len(parts), np.int64)
    whole = column.whole[parts]
    for at in (np.flatnonzero(whole), np.flatnonzero(~whole)):
        if not len(at):
            continue
        some, own = axes_of(column, parts[at])
        if some.shape[1] != rank:  # there is one for rows
            row[at] = own[:, 0]
            some, own = some[:, 1:], own[:, 1:]
        lengths[at], steps[at] = some, own
    return lengths, steps, row


def cuts_of(group: Group) -> Ints:
    """Return the samples of a group before which its rows are interrupted, and the end."""
    if group.rows is None:
        return group.starts
    if isinstance(group.rows, PartNumbers):
        return group.rows.starts  # one row for all samples of a part
    if isinstance(group.rows, range | Ranges) and len(group):
        cuts = find_cuts(group.rows, group.starts)
        if cuts is not None:
            return cuts
    breaks = group.locate(np.arange(len(group))).find_breaks()
    return np.concatenate([[0], breaks, [len(group)]])


def row_step(group: Group) -> int:
    """Return how many rows further the next sample of a group lies, where it goes on."""
    return 0 if isinstance(group.rows, PartNumbers) else 1


def overlay(overlaps: Sequence[Overlap]) -> list[tuple[Table, Ints]]:
    """Make the arrays; return for each overlap its table, and where its arrays are in it.

    What had one table has one again, so that files are mapped and decoded once for all.
    """
    made: list[tuple[Table, Ints]] = [(one.column.table, one.parts) for one in overlaps]
    for table in {id(one.column.table): one.column.table for one in overlaps}.values():
        own = [at for at, one in enumerate(overlaps) if one.column.table is table]
        new = _make_table(table, [overlaps[at] for at in own])
        ends = np.cumsum([0, *(len(overlaps[at].parts) for at in own)]).tolist()
        for at, first, end in zip(own, ends, ends[1:], strict=False):
            made[at] = new, np.arange(first, end)
    return made


def add_places(group: Group, leads: Sequence[int]) -> Group:
    """Return a group whose parts number their samples along as many axes; new ones have length 1.

    The samples of a column must have the same number of axes.
    """
    every = [
        [np.flatnonzero(kind) for kind in (column.whole, ~column.whole) if kind.any()]
        for column in group.columns
    ]
    pairs = list(zip(group.columns, leads, strict=True))
    todo = zip(pairs, every, strict=True)
    made = iter(overlay([_longer(*pair, parts) for pair, own in todo for parts in own]))
    columns = []
    for (column, lead), own in zip(pairs, every, strict=True):
        arrays = np.empty(len(column.arrays), np.int64)
        table = column.table
        for parts in own:
            table, arrays[parts] = next(made)
        whole = np.zeros(len(arrays), bool)
        columns.append(replace(column, table=table, arrays=arrays, whole=whole, lead=lead))
    return replace(group, columns=tuple(columns))


def _longer(column: Column, lead: int, parts: Ints) -> Overlap:
    """Make some parts, all of them whole or none, with axes of length 1 before those of samples."""
    lengths, steps = axes_of(column, parts)
    whole = bool(column.whole[parts].any())
    at = np.zeros(lead, np.int64) if whole else np.full(lead - column.lead, column.lead)
    longer = np.insert(lengths, at, 1, axis=1), np.insert(steps, at, 0, axis=1)
    return Overlap(column, parts, np.zeros(len(parts), np.int64), *longer)


def _make_table(table: Table, overlaps: Sequence[Overlap]) -> Table:
    sources: Ints = np.concatenate([one.column.arrays[one.parts] for one in overlaps])
    dims: list[Ints] = []
    shape, strides = (
        np.concatenate([_number_rows(getattr(one, name), dims) for one in overlaps])
        for name in ("lengths", "steps")
    )
    width = max(block.shape[1] for block in dims)
    padded = [np.pad(block, ((0, 0), (0, width - block.shape[1]))) for block in dims]
    skip: Ints = table.skip[sources] + np.concatenate([one.start for one in overlaps])
    every = np.concatenate(padded)
    per_array = {
        name: getattr(table, name)[sources]
        for name in ("file", "name", "dtype", "offset", "length", "decoded", "crc", "coding")
    }
    return replace(
        table,
        **per_array,
        skip=skip,
        shape=shape.astype(np.int32),
        strides=strides.astype(np.int32),
        dims=every,
        digest=_derive_digest(table, sources, skip, shape, strides, every),
    )


def _derive_digest(table: Table, *made: Ints) -> str:
    """Return a digest of other arrays over the files of a table, if it has one."""
    if not table.digest:
        return ""
    digest = hashlib.sha256(table.digest.encode())
    for one in made:
        digest.update(np.ascontiguousarray(one, np.int64).tobytes())
    return digest.hexdigest()


def _number_rows(rows: Ints, dims: list[Ints]) -> Ints:
    """Add the distinct rows of an array to ``dims``, and return the place of each there."""
    base = sum(len(block) for block in dims)
    if len(rows) and (rows == rows[0]).all():
        different, which = rows[:1], np.zeros(len(rows), np.int64)
    else:
        different, which = np.unique(rows, axis=0, return_inverse=True)
    ranks = np.full((len(different), 1), rows.shape[1], np.int64)
    dims.append(np.concatenate([ranks, different], axis=1))
    return base + which.reshape(-1)


def stretch_bytes(column: Column) -> int:
    """Return how many bytes of a sample are contiguous, at least, in every part; samples are even.

    ``find_stretches`` returns stretches of as many, or multiples.
    """
    lengths, steps = axes_of(column, np.arange(len(column.arrays)))
    return _merge(column, lengths, steps)[0]


def _merge(column: Column, lengths: Ints, steps: Ints) -> tuple[int, int]:
    """Return the bytes of a stretch, and the number of axes that say where stretches begin."""
    size, axis = itemsize(column.field.type), lengths.shape[1]
    while axis > column.lead and (steps[:, axis - 1] == size).all():
        axis -= 1
        size *= int(lengths[0, axis])
    return size, axis


def find_stretches(column: Column, place: Place) -> tuple[Ints, int]:
    """Return where the contiguous stretches of samples begin, a row for each, and their bytes.

    They are in the order of the samples' elements. Parts are raw and their samples of one shape.
    """
    part, rest = place
    lengths, steps = axes_of(column, part)
    start = column.first[part]
    for axis in reversed(range(column.lead)):
        start = start + rest % lengths[:, axis] * steps[:, axis]
        rest = rest // lengths[:, axis]
    size, end = _merge(column, lengths, steps)
    start = start[:, None]
    for axis in range(column.lead, end):
        within = np.arange(lengths[0, axis]) * steps[:, axis, None]
        start = (start[:, :, None] + within[:, None]).reshape(len(part), -1)
    return start, size


class Boxes:
    """Where the bytes of a part's samples lie, if each is a box out of an array.

    Bytes between those of the box are read too where there are few. ``start`` has the first byte
    of each sample, ``offsets`` those of its stretches behind it, all of ``span`` bytes.
    """

    def __init__(self, column: Column, part: int, rows: Ints) -> None:
        lengths, signed = (one[0].tolist() for one in axes_of(column, np.array([part])))
        lead, steps = column.lead, list(map(abs, signed))
        numbers = np.unravel_index(rows, lengths[:lead])
        self.start: Ints = int(column.first[part]) + sum(
            at * step for at, step in zip(numbers, signed[:lead], strict=True)
        )
        # Axes that go backwards are read forwards, from their last element.
        self._order = tuple(slice(None, None, -1 if step < 0 else 1) for step in signed[lead:])
        self.start += sum(
            min((n - 1) * step, 0) for n, step in zip(lengths[lead:], signed[lead:], strict=True)
        )
        self._shape, self._steps = lengths[lead:], steps[lead:]
        table = column.table
        self._item = itemsize(table.dtypes[table.dtype[column.arrays[part]]])
        self.span = self._item
        self._loops: list[int] = []
        useful = self._item
        for axis in sorted(range(len(self._shape)), key=lambda i: self._steps[i]):
            n, step = self._shape[axis], self._steps[axis]
            useful *= n
            merged = self.span + (n - 1) * step
            if self._loops or merged > _MOST_READ * useful:
                self._loops.append(axis)
            else:
                self.span = merged
        self.offsets: Ints = np.zeros(1, np.int64)
        if 0 in self._shape:  # nothing to read
            self.span, self._loops, self.offsets = 0, [], self.offsets[:0]
        for axis in reversed(self._loops):
            steps_of = np.arange(self._shape[axis]) * self._steps[axis]
            self.offsets = (self.offsets[:, None] + steps_of).reshape(-1)

    def view(self, data: NDArray[np.uint8], dtype: np.dtype) -> NDArray[Any]:
        """View a sample in the bytes of its stretches, which were read one after the other."""
        steps, size = list(self._steps), self.span
        for axis in self._loops:
            steps[axis] = size
            size *= self._shape[axis]
        opaque = np.dtype((np.void, self._item))
        return np.ndarray(self._shape, opaque, data, 0, steps)[self._order].view(dtype)
