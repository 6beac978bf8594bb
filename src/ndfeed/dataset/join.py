"""Datasets one after the other: their columns, part behind part."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ndfeed.dataset.checks import joined_checks
from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.field import Field
from ndfeed.errors import SchemaError
from ndfeed.index.table import Ints, Table, concat


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
    # Groups may share a table: it is joined once for all of them.
    tables: dict[tuple[int, int], Table] = {}
    for a, b in zip(first, second, strict=True):
        key = id(a.table), id(b.table)
        tables[key] = tables.get(key) or concat([a.table, b.table])
    return tuple(
        _joined(a, b, tables[id(a.table), id(b.table)]) for a, b in zip(first, second, strict=True)
    )


def _names(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    return [tuple(column.field.name for column in group.columns) for group in groups]


def _singly(groups: Sequence[Group]) -> list[Group]:
    """A group for each column, by name."""
    alone = [replace(group, columns=(c,)) for group in groups for c in group.columns]
    return sorted(alone, key=lambda group: group.columns[0].field.name)


def _joined(first: Group, second: Group, table: Table) -> Group:
    shift = len(first.table.file)
    theirs = {column.field.name: column for column in second.columns}
    columns = tuple(_column(c, theirs[c.field.name], table, shift) for c in first.columns)
    starts = np.concatenate([first.starts, second.starts[1:] + first.starts[-1]])
    checks = joined_checks(
        first.checks, len(first.starts) - 1, second.checks, len(second.starts) - 1
    )
    return Group(starts, columns, first.mapped and second.mapped, checks)


def _column(a: Column, b: Column, table: Table, shift: int) -> Column:
    if a.field.type != b.field.type:
        raise SchemaError(
            b.table.path(int(b.file[0])),
            f"field {a.field.name!r}: {a.field.dtype} expected as in the first dataset, "
            f"found {b.field.dtype}; save both with one dtype",
        )
    field = Field(a.field.name, a.field.dtype, _shape(a.field, b.field), a.field.type)
    if field.shape is None and (a.offsets is not None or b.offsets is not None):
        raise SchemaError(
            b.table.path(int(b.file[0])),
            f"field {a.field.name!r}: {a.field.shape_text} expected as in the first dataset, found "
            f"{b.field.shape_text}; samples of packed datasets need one number of dimensions",
        )
    arrays = np.concatenate([a.arrays, b.arrays + shift])
    whole = np.concatenate([a.whole, b.whole])
    offsets, extents = (
        _places(getattr(a, name), getattr(b, name), a, b, shift) for name in ("offsets", "extents")
    )
    return Column(field, table, arrays, whole, offsets, extents)


def _places(
    first: Ints | None, second: Ints | None, a: Column, b: Column, shift: int
) -> Ints | None:
    """Places in the table of one column's parts and then of another's, where any has one."""
    if first is None and second is None:
        return None
    mine = np.full(len(a.arrays), -1) if first is None else first
    theirs = np.full(len(b.arrays), -1) if second is None else second
    return np.concatenate([mine, np.where(theirs < 0, -1, theirs + shift)])


def _shape(a: Field, b: Field) -> tuple[int | None, ...] | None:
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return None
    return tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True))
