"""Samples decoded once into shared memory, as one file that nobody can change.

Samples of one shape lie row by row; ragged ones end to end, each from a multiple of 64 bytes. A
table describes the memory like any file, so it is read as files are, only without guarding.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Field, Group
from ndfeed.dataset.decoding import verify
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import select_rows
from ndfeed.files.file import File
from ndfeed.files.shared_memory import Shared
from ndfeed.formats.description import INLINE, Array, Description
from ndfeed.index import codec
from ndfeed.index.build import make_table
from ndfeed.index.table import Table, joined_paths
from ndfeed.progress import Bar

if TYPE_CHECKING:
    from ndfeed.dataset.dataset import Dataset

_ALIGNED = 64
_LOADED_AT_ONCE = 64 << 20
_ZEROS = 1 << 16


class Held:
    """Samples in shared memory: what they are, how many, and the table of where they lie."""

    def __init__(self, fields: tuple[Field, ...], count: int, table: Table, memory: Shared) -> None:
        self.fields = fields
        self.count = count
        self.memory = memory
        self.table = with_memory(table, memory)
        self._encoded: Shared | None = None

    def groups(self) -> tuple[Group, ...]:
        """The samples as groups: one for all fields of one shape, one for each ragged one."""
        rows: list[Column] = []
        groups: list[Group] = []
        at = 0
        for field in self.fields:
            if field.ragged:
                arrays = np.arange(at, at + self.count)
                column = Column(field, self.table, arrays, np.ones(self.count, bool))
                groups.append(Group(np.arange(self.count + 1), (column,)))
                at += self.count
            else:
                rows.append(Column(field, self.table, np.array([at]), np.zeros(1, bool)))
                at += 1
        if rows:
            groups.insert(0, Group(np.array([0, self.count]), tuple(rows)))
        return tuple(groups)

    def __reduce__(self) -> tuple[Callable[..., "Held"], tuple[Any, ...]]:
        if self._encoded is None:
            self._encoded = Shared.of(codec.encode(self.table))
        return _unpickle, (self.fields, self.count, self._encoded, self.memory)


def _unpickle(fields: tuple[Field, ...], count: int, table: Shared, memory: Shared) -> Held:
    return Held(fields, count, codec.decode(table.view().data, checked=False)[0], memory)


def with_memory(table: Table, memory: Shared) -> Table:
    """Return the table with ``memory`` as its one file."""
    path_bytes, path_ends = joined_paths(b"", [memory.path])
    return replace(
        table, base=b"", path_bytes=path_bytes, path_ends=path_ends, owner=memory, sealed=True
    )


Shapes = dict[str, list[tuple[int, ...]]]
Room = dict[str, list[NDArray[Any]] | NDArray[Any]]


def hold(fields: Sequence[Field], count: int, shapes: Shapes, fill: Callable[[Room], None]) -> Held:
    """Allocate ``count`` samples and ``fill`` them; ``shapes`` has those of ragged fields."""
    arrays: list[Array] = []
    end = 0
    for field in fields:
        for shape in shapes[field.name] if field.ragged else [(count, *field.lengths)]:
            size = math.prod(shape) * field.dtype.itemsize
            arrays.append(Array(field.name, field.type, shape, end, size))
            end += -(-size // _ALIGNED) * _ALIGNED
    memory = Shared(end)
    memory.fill(lambda data: fill(_views(fields, arrays, data)))
    with File(memory.path) as file:
        table = make_table(file, Description("memory", tuple(arrays)))
    return Held(tuple(fields), count, table, memory)


def _views(fields: Sequence[Field], arrays: Sequence[Array], data: NDArray[np.uint8]) -> Room:
    """Return the memory as arrays to fill, by field: one, or one for each ragged sample."""
    found: dict[str, list[NDArray[Any]]] = {field.name: [] for field in fields}
    dtypes = {field.name: field.dtype for field in fields}
    for array in arrays:
        part = data[array.offset : array.offset + array.length]
        found[array.name].append(part.view(dtypes[array.name]).reshape(array.shape))
    return {f.name: found[f.name] if f.ragged else found[f.name][0] for f in fields}


def load_in_memory(ds: "Dataset") -> Held:
    """Load every sample of ``ds`` into shared memory."""
    for group in ds.groups:
        if not group.by_file:  # whole files are compared as they are read
            verify(group.columns)
    fields = list(ds.fields.values())
    every = select_rows(ds.rows, np.arange(len(ds)))
    shapes = {
        column.field.name: [tuple(s) for s in reader_of(group).shapes(group, column, every)]
        for group in ds.groups
        for column in group.columns
        if column.field.ragged
    }
    at_once = max(1, _LOADED_AT_ONCE * len(ds) // max(ds.nbytes, 1))

    def fill(room: Room) -> None:
        even = {name: own for name, own in room.items() if isinstance(own, np.ndarray)}
        uneven = ds.select(*shapes) if shapes else None
        with Bar("loading", len(ds)) as bar:
            for start in range(0, len(ds), at_once):
                end = min(start + at_once, len(ds))
                rows = np.arange(start, end)
                if even:
                    ds.read_into(rows, {name: own[start:end] for name, own in even.items()})
                for name, values in uneven.read(rows).items() if uneven is not None else ():
                    for row, value in zip(rows.tolist(), values, strict=True):
                        room[name][row][...] = value
                bar.advance(len(rows))

    return hold(fields, len(ds), shapes, fill)


_memory_of_zeros: list[Shared] = []  # one for all that need no more


def make_constant(fields: Sequence[Field], count: int, number: int | None = None) -> Group:
    """Make ``count`` samples that take no memory: zeros, or ``number`` in integer fields.

    Ragged samples have no elements.
    """
    arrays: list[Array] = []
    for field in fields:
        shape = (count, *((0,) if field.shape is None else field.lengths))
        size = field.dtype.itemsize
        if number is None:
            strides = (0,) * len(shape)
            arrays.append(Array(field.name, field.type, shape, 0, size, strides=strides))
        else:
            arrays.append(Array(field.name, field.type, shape, number, 0, coding=INLINE))
    memory = _zeros(max(field.dtype.itemsize for field in fields))
    with File(memory.path) as file:
        table = with_memory(make_table(file, Description("memory", tuple(arrays))), memory)
    columns = tuple(
        Column(replace(field, shape=array.shape[1:]), table, np.array([at]), np.zeros(1, bool))
        for at, (field, array) in enumerate(zip(fields, arrays, strict=True))
    )
    return Group(np.array([0, count]), columns)


def _zeros(size: int) -> Shared:
    """Return memory of at least ``size`` zeros."""
    if _memory_of_zeros and size <= _ZEROS:
        return _memory_of_zeros[0]
    made = Shared(max(size, _ZEROS))
    made.fill(lambda data: None)
    if size <= _ZEROS:
        _memory_of_zeros.append(made)
    return made
