"""Samples decoded once into shared memory, as one file that nobody can change.

Samples of one shape lie row by row; ragged ones end to end, each from a multiple of 64
bytes. The memory is described by a table like any file, so it is read as files are, only
without guarding.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.field import Field
from ndfeed.files.file import File
from ndfeed.files.shared import Shared
from ndfeed.formats.array import Array, Description
from ndfeed.index import codec
from ndfeed.index.build import table_of
from ndfeed.index.table import Table, joined_paths

_ALIGNED = 64


class Held:
    """Samples in shared memory: what they are, how many, and the table of where they lie."""

    def __init__(self, fields: tuple[Field, ...], count: int, table: Table, memory: Shared) -> None:
        self.fields = fields
        self.count = count
        self.memory = memory
        self.table = _placed(table, memory)
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
        return _arrived, (self.fields, self.count, self._encoded, self.memory)


def _arrived(fields: tuple[Field, ...], count: int, table: Shared, memory: Shared) -> Held:
    return Held(fields, count, codec.decode(table.view().data, checked=False)[0], memory)


def _placed(table: Table, memory: Shared) -> Table:
    """The table with its one file being ``memory``."""
    path_bytes, path_ends = joined_paths(b"", [memory.path])
    return replace(
        table, base=b"", path_bytes=path_bytes, path_ends=path_ends, owner=memory, sealed=True
    )


Shapes = dict[str, list[tuple[int, ...]]]
Room = dict[str, list[NDArray[Any]] | NDArray[Any]]


def hold(fields: Sequence[Field], count: int, shapes: Shapes, fill: Callable[[Room], None]) -> Held:
    """Room for ``count`` samples, filled by ``fill``; ``shapes`` has those of ragged fields."""
    arrays: list[Array] = []
    end = 0
    for field in fields:
        for shape in shapes[field.name] if field.ragged else [(count, *(field.shape or ()))]:
            size = math.prod(shape) * field.dtype.itemsize  # type: ignore[arg-type]
            arrays.append(Array(field.name, field.type, shape, end, size))  # type: ignore[arg-type]
            end += -(-size // _ALIGNED) * _ALIGNED
    memory = Shared(end)
    memory.fill(lambda data: fill(_views(fields, arrays, data)))
    with File(memory.path) as file:
        table = table_of(file, Description("memory", tuple(arrays)))
    return Held(tuple(fields), count, table, memory)


def _views(fields: Sequence[Field], arrays: Sequence[Array], data: NDArray[np.uint8]) -> Room:
    """The memory as arrays to fill, by field: one, or one for each ragged sample."""
    found: dict[str, list[NDArray[Any]]] = {field.name: [] for field in fields}
    dtypes = {field.name: field.dtype for field in fields}
    for array in arrays:
        part = data[array.offset : array.offset + array.length]
        found[array.name].append(part.view(dtypes[array.name]).reshape(array.shape))
    return {f.name: found[f.name] if f.ragged else found[f.name][0] for f in fields}
