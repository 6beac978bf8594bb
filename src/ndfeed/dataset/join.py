"""Datasets one after the other: their columns, part behind part."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.field import Field
from ndfeed.errors import SchemaError
from ndfeed.index.table import Table, concat


def joined(first: Sequence[Group], second: Sequence[Group]) -> tuple[Group, ...]:
    """Groups of the samples of ``first`` and then those of ``second``."""
    names, others = (_names(groups) for groups in (first, second))
    if sorted(sum(names, ())) != sorted(sum(others, ())):
        raise SchemaError(
            second[0].table.path(0),
            f"fields {sorted(sum(names, ()))} expected as in {first[0].table.path(0).decode()}, "
            f"found {sorted(sum(others, ()))}; select the ones both have",
        )
    if [set(group) for group in names] != [set(group) for group in others]:
        first, second = _singly(first), _singly(second)
    return tuple(_joined(a, b) for a, b in zip(first, second, strict=True))


def _names(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    return [tuple(column.field.name for column in group.columns) for group in groups]


def _singly(groups: Sequence[Group]) -> list[Group]:
    """A group for each column, by name."""
    alone = [replace(group, columns=(c,)) for group in groups for c in group.columns]
    return sorted(alone, key=lambda group: group.columns[0].field.name)


def _joined(first: Group, second: Group) -> Group:
    table = concat([first.table, second.table])
    shift = len(first.table.file)
    theirs = {column.field.name: column for column in second.columns}
    columns = tuple(_column(c, theirs[c.field.name], table, shift) for c in first.columns)
    starts = np.concatenate([first.starts, second.starts[1:] + first.starts[-1]])
    return Group(starts, columns, first.mapped and second.mapped)


def _column(a: Column, b: Column, table: Table, shift: int) -> Column:
    if a.field.type != b.field.type:
        raise SchemaError(
            b.table.path(int(b.file[0])),
            f"field {a.field.name!r}: {a.field.dtype} expected as in the first dataset, "
            f"found {b.field.dtype}; save both with one dtype",
        )
    field = Field(a.field.name, a.field.dtype, _shape(a.field, b.field), a.field.type)
    arrays = np.concatenate([a.arrays, b.arrays + shift])
    return Column(field, table, arrays, np.concatenate([a.whole, b.whole]))


def _shape(a: Field, b: Field) -> tuple[int | None, ...] | None:
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return None
    return tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True))
