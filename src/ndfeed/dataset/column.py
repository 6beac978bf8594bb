"""Fields of a sample, and where their values lie in files.

A *part* is an array of some file; its samples are the rows of its first axis, or (``whole``)
the array itself, one sample, or (``located``) ranges of its rows whose ends are in another
array, as packed datasets store ragged fields. Windows and crops are arrays whose rows overlap:
an axis that counts their places stands before the array's own, with the same stride. The parts
of a column follow each other, so sample ``i`` belongs to the part whose ``starts`` bracket it. A
*group* is columns over the same parts of the same files: they are located once and, where files
are read whole, opened once.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.arguments import computed_once, lazy
from ndfeed.dataset.row_selection import PartNumbers, Rows, select_rows
from ndfeed.errors import shown
from ndfeed.formats.description import RAW, c_strides
from ndfeed.formats.dtypes import EXTENDED, delivered, itemsize, plain, swapped
from ndfeed.index.table import Ints, Table


@dataclass(frozen=True, slots=True)
class Field:
    """One named array of a sample.

    ``shape`` has ``None`` where samples differ, and is ``None`` itself where they differ in
    rank. ``dtype`` is what NumPy delivers; ``type`` names the element type even where NumPy does
    not have it and delivers its bits (``bfloat16`` without ml_dtypes).
    """

    name: str
    dtype: np.dtype
    shape: tuple[int | None, ...] | None
    type: str

    @property
    def ragged(self) -> bool:
        """Do samples of this field differ in shape?"""
        return self.shape is None or None in self.shape

    @property
    def lengths(self) -> tuple[int, ...]:
        """The shape of a sample as plain numbers, 0 where samples differ."""
        return tuple(n or 0 for n in self.shape or ())

    @property
    def nbytes(self) -> int | None:
        """Bytes of one sample; ``None`` where samples differ."""
        return None if self.ragged else math.prod(self.lengths) * self.dtype.itemsize

    @property
    def dtype_text(self) -> str:
        """The simplest name of the element type."""
        return self.type if self.type in EXTENDED else str(self.dtype)

    @property
    def shape_text(self) -> str:
        """The shape of a sample, with dots where samples differ."""
        return "(…)" if self.shape is None else str(self.shape).replace("None", "…")

    def __str__(self) -> str:
        return f"{shown(self.name)} {self.dtype_text} {self.shape_text}"


if TYPE_CHECKING:
    from ndfeed.dataset.block_checks import Checks


class Place(NamedTuple):
    """Samples, each by its part and its row within it."""

    part: Ints
    row: Ints

    def find_breaks(self) -> Ints:
        """Return the samples that do not follow the one before them in its part."""
        follows = (self.part[1:] == self.part[:-1]) & (self.row[1:] == self.row[:-1] + 1)
        return np.flatnonzero(~follows) + 1


Computed = Callable[[Place], NDArray[Any]]  # gives samples by where they lie


@dataclass(frozen=True, eq=False)
class Column:
    """One field's samples. Per part: its place in the table, and whether it is one sample.

    ``offsets`` are the places of the arrays that say where samples begin and end, ``extents``
    those of their shapes, if these are stored; -1 for parts that have none. See ``offsets``.
    ``lead`` axes of every part number its samples: more than one for crops, which start anywhere
    in several axes.
    """

    field: Field
    table: Table
    arrays: Ints
    whole: NDArray[np.bool_]
    offsets: Ints | None = None
    extents: Ints | None = None
    lead: int = 1
    pad: float | None = None  # what crops are filled up with
    computed: Computed | None = None
    cut: bool = False  # do the crops of a case differ?

    @lazy
    def first(self) -> Ints:
        """Per part: where its first element lies in the file (raw) or the decoded stream."""
        table, arrays = self.table, self.arrays
        raw = table.coding[arrays] == RAW
        return table.skip[arrays] + np.where(raw, table.offset[arrays], 0)

    @lazy
    def file(self) -> Ints:
        """Per part: its file."""
        return self.table.file[self.arrays].astype(np.int64)

    @lazy
    def coding(self) -> NDArray[np.uint8]:
        """Per part: how its bytes are stored."""
        return self.table.coding[self.arrays]

    @lazy
    def strided(self) -> NDArray[np.bool_]:
        """Per part: is it anything but C order?"""
        return np.asarray(self.table.strides[self.arrays] >= 0)

    @lazy
    def nbytes(self) -> Ints:
        """Per part: bytes of one sample as read; for located samples, of one of their values."""
        known, shape = _sizes(self.table), self.table.shape[self.arrays]
        if self.pad is not None:
            filled: Ints = self._fill_up(known.lengths[shape, self.lead :]).prod(axis=1)
            return filled * itemsize(self.field.type)
        row = known.row if self.lead == 1 else known.lengths[:, self.lead :].prod(axis=1)
        elements = np.where(self.whole, known.whole[shape], row[shape])
        sizes: Ints = elements * itemsize(self.field.type)
        return sizes

    @lazy
    def swapped(self) -> NDArray[np.bool_]:
        """Per part: are its elements in non-native byte order?"""
        return _sizes(self.table).swapped[self.table.dtype[self.arrays]]

    @lazy
    def plain(self) -> bool:
        """Is every part raw, with samples of one size, ``pitch`` apart, and the field's dtype?"""
        known = not self.coding.any() and not self.field.ragged and not is_converted(self)
        return bool(known and (self.pitch or not self.size))

    @lazy
    def size(self) -> int:
        """Bytes of one sample of a plain column."""
        return int(self.nbytes[0]) if len(self.nbytes) else 0

    @lazy
    def pitch(self) -> int:
        """Bytes from one contiguous sample to the next in all parts; 0 where that differs."""
        if not self.strided.any():
            return self.size
        # Samples have one shape, so they are contiguous if their own axes have these strides.
        lengths = self.field.lengths
        inner = c_strides(lengths, itemsize(self.field.type))
        apart = set() if self.strided.all() else {self.size}
        if self.lead != 1 or self.whole.any():
            return 0
        for place in np.unique(self.table.strides[self.arrays[self.strided]]).tolist():
            first, *own = self.table.dimensions(place)
            if any(n > 1 and a != b for n, a, b in zip(lengths, own, inner, strict=True)):
                return 0
            apart.add(first)
        return max(apart.pop(), 0) if len(apart) == 1 else 0

    @lazy
    def even(self) -> bool:
        """Do all samples have the same size?"""
        same = len(self.nbytes) and (self.nbytes == self.nbytes[0]).all()
        return bool(same and self.offsets is None)

    @lazy
    def any_swapped(self) -> bool:
        """Is any part in non-native byte order?"""
        return bool(self.swapped.any())

    def shapes(self, part: Ints) -> list[tuple[int, ...]]:
        """Return the shape of one sample of each part; for located ones see ``offsets``."""
        dims = self.table.dims[self.table.shape[self.arrays[part]]].tolist()
        skipped = np.where(self.whole[part], 1, 1 + self.lead).tolist()
        found = [tuple(row[s : 1 + row[0]]) for row, s in zip(dims, skipped, strict=True)]
        if self.pad is None or not found:
            return found
        return [tuple(shape) for shape in self._fill_up(np.array(found)).tolist()]

    def _fill_up(self, shapes: Ints) -> Ints:
        """Return the shapes that crops have once they are filled up."""
        made = shapes.copy()
        for axis, length in enumerate(self.field.shape or ()):
            if length is not None:
                made[:, axis] = length
        return made


def sample_shapes(column: Column, part: Ints) -> Ints:
    """Return the shape of one sample of each part, a row each; all have the field's rank."""
    dims = column.table.dims[column.table.shape[column.arrays[part]]]
    skipped = np.where(column.whole[part], 1, 1 + column.lead)
    axes = skipped[:, None] + np.arange(len(column.field.shape or ()))
    found = np.take_along_axis(dims, axes, axis=1)
    return found if column.pad is None else column._fill_up(found)


def total_bytes(column: Column, starts: Ints) -> int:
    """Return the bytes of all samples of a column as delivered."""
    counts = np.diff(starts)
    if column.offsets is not None:
        counts = np.where(column.offsets >= 0, lengths(column.table, column.arrays), counts)
    return int((column.nbytes * counts).sum())


def has_crops(column: Column) -> bool:
    """Are its samples crops, or the places of crops?"""
    return column.lead > 1 or column.computed is not None


@computed_once
def is_converted(column: Column) -> bool:
    """Does any part have another dtype than the field, apart from byte order?"""
    other = _sizes(column.table).plain != column.field.type
    return bool(other.any() and other[column.table.dtype[column.arrays]].any())


def widest_stored(column: Column) -> int:
    """Bytes of one element of the widest dtype that is stored in any part."""
    types = np.unique(column.table.dtype[column.arrays]).tolist()
    return max(itemsize(column.table.dtypes[number]) for number in types)


def with_type(column: Column, kind: str) -> Column:
    """Return the column with another dtype for its field."""
    return replace(column, field=replace(column.field, dtype=delivered(kind), type=kind))


def as_stored(column: Column) -> Column:
    """Return the column before any conversion, where all parts have one dtype."""
    return _undo_conversion(column) if is_converted(column) else column


@computed_once
def _undo_conversion(column: Column) -> Column:
    kinds = np.unique(_sizes(column.table).plain[column.table.dtype[column.arrays]])
    return with_type(column, str(kinds[0])) if len(kinds) == 1 else column


class _Sizes(NamedTuple):
    """Per shape: its elements, and those of a row. Per dtype: swapped or not, name."""

    lengths: Ints  # with ones for axes that it does not have
    whole: Ints
    row: Ints
    swapped: NDArray[np.bool_]
    plain: NDArray[np.str_]  # without the byte order


# A table may have 100,000 columns of as many shapes: computed once for all of them.
_known_sizes: WeakKeyDictionary[Table, _Sizes] = WeakKeyDictionary()


def _sizes(table: Table) -> _Sizes:
    found = _known_sizes.get(table)
    if found is None:
        dims = table.dims
        used = np.arange(dims.shape[1] - 1) < dims[:, :1]
        lengths = np.where(used, dims[:, 1:], 1)
        found = _known_sizes[table] = _Sizes(
            lengths,
            lengths.prod(axis=1),
            lengths[:, 1:].prod(axis=1),
            np.array([swapped(name) for name in table.dtypes], bool),
            np.array([plain(name) for name in table.dtypes], np.str_),
        )
    return found


def lengths(table: Table, arrays: Ints) -> Ints:
    """Return the first length of each of some arrays, which have one."""
    found: Ints = table.dims[table.shape[arrays], 1]
    return found


_MOST_LISTED = 1 << 16  # samples of a group whose parts are listed


@dataclass(frozen=True, eq=False)
class Group:
    """Columns over the same parts. ``starts`` has the first sample of each, and the end."""

    starts: Ints
    columns: tuple[Column, ...]
    mapped: bool = True  # may the files be mapped?
    checks: "Checks | None" = None  # checksums to compare when blocks are first read
    kind: str = ""  # what samples are where not rows or files: "window", "crop", "several"
    rows: Rows | PartNumbers = None  # which samples of the parts these are, if not all in order

    def __len__(self) -> int:
        return int(self.starts[-1]) if self.rows is None else len(self.rows)

    @property
    def table(self) -> Table:
        """The files of this group."""
        return self.columns[0].table

    @property
    def one_each(self) -> bool:
        """Does every part hold just one sample?"""
        return self.even == 1

    @lazy
    def by_file(self) -> bool:
        """Is a sample a whole file? Then each is opened, read and closed."""
        column = self.columns[0]
        parts = len(self.starts) - 1
        return self.one_each and bool(column.whole.all()) and parts <= column.table.files

    @lazy
    def even(self) -> int:
        """How many samples every part holds, 0 where they differ."""
        counts = np.diff(self.starts)
        return int(counts[0]) if len(counts) and (counts == counts[0]).all() else 0

    def locate(self, samples: Ints) -> Place:
        """Find the part and row of each sample."""
        if self.rows is not None:
            samples = select_rows(self.rows, samples)
        if len(self.starts) == 2:
            return Place(np.zeros(len(samples), np.int64), samples)
        if self.one_each:
            return Place(samples, np.zeros(len(samples), np.int64))
        if self.even:
            part = samples // self.even  # np.divmod takes several times longer
            return Place(part, samples - part * self.even)
        part = self._find_parts(samples)
        return Place(part, samples - self.starts[part])

    def _find_parts(self, samples: Ints) -> Ints:
        """Return the part of each sample where parts differ in length."""
        if self._nearby is None:
            found: Ints = np.searchsorted(self.starts, samples, side="right") - 1
            return found
        shift, nearby = self._nearby
        part = nearby.take(samples >> shift)
        part += samples >= self.starts.take(part + 1)
        return part

    @lazy
    def _nearby(self) -> tuple[int, Ints] | None:
        """The parts of every 2**shift-th sample; ``None`` if that would be a long list.

        At most one part begins between two of these samples, so one comparison finds the part of
        any sample. Where samples come in any order, a binary search takes many times longer.
        """
        n, shortest = int(self.starts[-1]), int(np.diff(self.starts).min(initial=_MOST_LISTED))
        shift = shortest.bit_length() - 1
        if shift < 0 or n >> shift >= _MOST_LISTED:
            return None
        listed = np.arange(0, n, 1 << shift)
        return shift, np.searchsorted(self.starts, listed, side="right") - 1


def columns_of(groups: Iterable[Group]) -> list[Column]:
    """Return the columns of all groups, in order."""
    return [column for group in groups for column in group.columns]
