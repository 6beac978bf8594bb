"""Joins datasets: the samples of one after those of the other.

Where their steps differ, a hidden field says which dataset a sample belongs to. Stored fields
that one of them lacks, or has in another form, are constant in its samples, which takes no
memory: no step uses them there.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.block_checks import join_checks
from ndfeed.dataset.column import Column, Computed, Field, Group, Place, columns_of
from ndfeed.dataset.in_memory import make_constant
from ndfeed.dataset.map_steps import Route, Routed, Step, hidden
from ndfeed.dataset.overlapping import add_places
from ndfeed.dataset.row_selection import PartNumbers, Rows, join_rows
from ndfeed.dataset.stored import MEMORY
from ndfeed.errors import FieldError, SchemaError
from ndfeed.formats.dtypes import delivered, widest_text
from ndfeed.index.table import Ints, Table, concat

_MOST_ROUTES = (1 << 16) - 1


def join_groups(first: Sequence[Group], second: Sequence[Group]) -> tuple[Group, ...]:
    """Return groups of the samples of ``first`` and then those of ``second``."""
    names, others = (_names(groups) for groups in (first, second))
    if sorted(sum(names, ())) != sorted(sum(others, ())):
        raise SchemaError(
            _name_file(second[0].table),
            f"expected fields {sorted(sum(names, ()))} as in {_name_file(first[0].table)}, "
            f"found {sorted(sum(others, ()))}",
            remedy="select the ones both have",
        )
    if [set(group) for group in names] != [set(group) for group in others]:
        first, second = _split_columns(first), _split_columns(second)
    pairs = [_match_places(a, b) for a, b in zip(first, second, strict=True)]
    # Groups may share a table: it is joined once for all of them.
    tables: dict[tuple[int, int], Table] = {}
    for a, b in pairs:
        key = id(a.table), id(b.table)
        tables[key] = tables.get(key) or concat([a.table, b.table])
    return tuple(_join(a, b, tables[id(a.table), id(b.table)]) for a, b in pairs)


def _match_places(first: Group, second: Group) -> tuple[Group, Group]:
    """Return the groups with as many axes that count places, where one has crops."""
    others = {column.field.name: column for column in second.columns}
    every = [(column, others[column.field.name]) for column in first.columns]
    if all(a.lead == b.lead for a, b in every):
        return first, second
    leads = {a.field.name: max(a.lead, b.lead) for a, b in every}
    return _add_places(first, leads), _add_places(second, leads)


def _add_places(group: Group, leads: Mapping[str, int]) -> Group:
    wanted = [leads[column.field.name] for column in group.columns]
    if all(c.lead == lead for c, lead in zip(group.columns, wanted, strict=True)):
        return group
    for column in group.columns:
        if column.offsets is not None or column.field.shape is None:
            raise SchemaError(
                _name_file(column.table, int(column.file[0])),
                f"field {column.field.name!r} cannot be added to crops",
                remedy="use in_memory() or pack() first, or crop it in a map",
            )
    return add_places(group, wanted)


def _name_file(table: Table, number: int = 0) -> str:
    """Return a file as messages name it."""
    return MEMORY if table.sealed else os.fsdecode(table.path(number))


def _names(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    return [tuple(column.field.name for column in group.columns) for group in groups]


def _split_columns(groups: Sequence[Group]) -> list[Group]:
    """Make a group for each column, by name."""
    alone = [replace(group, columns=(c,)) for group in groups for c in group.columns]
    return sorted(alone, key=lambda group: group.columns[0].field.name)


def _join(first: Group, second: Group, table: Table) -> Group:
    shift = len(first.table.file)
    theirs = {column.field.name: column for column in second.columns}
    columns = tuple(_column(c, theirs[c.field.name], table, shift) for c in first.columns)
    starts = np.concatenate([first.starts, second.starts[1:] + first.starts[-1]])
    rows: Rows | PartNumbers
    if isinstance(first.rows, PartNumbers) and isinstance(second.rows, PartNumbers):
        rows = PartNumbers(np.concatenate([first.rows.starts, second.rows.starts[1:] + len(first)]))
    else:
        _check_listed(first, second)
        rows = join_rows(first.rows, len(first), second.rows, len(second), int(first.starts[-1]))
    checks = join_checks(first.checks, len(first.starts) - 1, second.checks, len(second.starts) - 1)
    kinds = {one.kind for one in (first, second) if one.kind or not one.table.sealed}
    kind = "several" if len(kinds) > 1 else "".join(kinds)  # what is in memory may be constants
    return Group(starts, columns, first.mapped and second.mapped, checks, kind, rows)


def _check_listed(first: Group, second: Group) -> None:
    """Refuse crops that nobody has chosen from beside samples with a list of numbers.

    All crops that are possible would have to be listed as well.
    """
    sides = first, second
    listed = any(one.rows is not None for one in sides)
    if listed and any(one.rows is None and one.kind == "crop" for one in sides):
        names = ", ".join(repr(column.field.name) for column in first.columns)
        raise ValueError(
            f"{names}: crops cannot be added to samples of other sources of a dict, or to labels "
            "that were given after crops(); call in_memory() first, or with_labels() before crops()"
        )


def _column(a: Column, b: Column, table: Table, shift: int) -> Column:
    kind = a.field.type
    if kind != b.field.type:
        kind = widest_text({kind, b.field.type}) or _refuse_types(a, b)
    field = Field(a.field.name, delivered(kind), _shape(a.field, b.field), kind)
    if field.shape is None and (a.offsets is not None or b.offsets is not None):
        raise SchemaError(
            _name_file(b.table, int(b.file[0])),
            f"field {a.field.name!r}: expected {a.field.shape_text} as in the first dataset, found "
            f"{b.field.shape_text}",
            remedy="samples of packed datasets need one number of dimensions",
        )
    pad, computed = _join_crops(a, b)
    arrays = np.concatenate([a.arrays, b.arrays + shift])
    whole = np.concatenate([a.whole, b.whole])
    offsets, extents = (
        _places(getattr(a, name), getattr(b, name), a, b, shift) for name in ("offsets", "extents")
    )
    cut = a.cut or b.cut
    return Column(field, table, arrays, whole, offsets, extents, a.lead, pad, computed, cut)


def _join_crops(a: Column, b: Column) -> tuple[float | None, Computed | None]:
    """Return what crops of two columns are filled up with, and what computes their places."""
    name = a.field.name
    if (a.computed is None) != (b.computed is None):
        raise ValueError(
            f"field {name!r} says where crops lie in one dataset and is stored in the other; leave "
            "it out with select()"
        )
    sizes = a.field.shape, b.field.shape
    pads = {pad for pad in (a.pad, b.pad) if pad is not None}
    if len(pads) > 1 or ((pads or a.computed) and sizes[0] != sizes[1]):
        raise ValueError(
            f"crops of {name!r} differ in pad= or in size: pad={a.pad} of {a.field.shape_text} and "
            f"pad={b.pad} of {b.field.shape_text}; give both the same, to add or mix them"
        )
    pad = pads.pop() if pads else None
    if a.computed is None or b.computed is None:
        return pad, None
    return pad, JoinedPlaces(a.computed, b.computed, len(a.arrays))


class JoinedPlaces:
    """Computes where crops of one dataset and then those of another lie."""

    def __init__(self, first: Computed, second: Computed, parts: int) -> None:
        self._ways = first, second
        self._parts = parts

    def __call__(self, place: Place) -> NDArray[Any]:
        """Return what each dataset says of its own crops."""
        mine = place.part < self._parts
        own = self._ways[0](Place(place.part[mine], place.row[mine]))
        found = np.empty((len(mine), *own.shape[1:]), own.dtype)
        found[mine] = own
        found[~mine] = self._ways[1](Place(place.part[~mine] - self._parts, place.row[~mine]))
        return found


def _refuse_types(a: Column, b: Column) -> NoReturn:
    name, dtype = a.field.name, a.field.dtype_text
    raise SchemaError(
        _name_file(b.table, int(b.file[0])),
        f"field {name!r}: expected {dtype} as in the first dataset, found {b.field.dtype_text}",
        remedy=f"open one of them with dtype={{{name!r}: {dtype!r}}}, or use map to convert it",
    )


def _places(
    first: Ints | None, second: Ints | None, a: Column, b: Column, shift: int
) -> Ints | None:
    """Join the table places of two columns' parts, where any has one."""
    if first is None and second is None:
        return None
    mine = np.full(len(a.arrays), -1) if first is None else first
    theirs = np.full(len(b.arrays), -1) if second is None else second
    return np.concatenate([mine, np.where(theirs < 0, -1, theirs + shift)])


def _shape(a: Field, b: Field) -> tuple[int | None, ...] | None:
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return None
    return tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True))


def rename_fields(groups: Sequence[Group], names: Mapping[str, str]) -> tuple[Group, ...]:
    """Return the groups with other names for some of their fields."""
    return tuple(
        replace(
            group,
            columns=tuple(
                replace(c, field=replace(c.field, name=names.get(c.field.name, c.field.name)))
                for c in group.columns
            ),
        )
        for group in groups
    )


def renamed_names(known: Sequence[str], names: Mapping[str, str], path: str) -> tuple[str, ...]:
    """Return the known names with some replaced; refuses unknown names and duplicates."""
    for name in names if known else ():
        if name not in known:
            raise FieldError(name, known, path)
    made = tuple(names.get(name, name) for name in known)
    for at, name in enumerate(made):
        if name in made[:at]:
            raise ValueError(
                f"rename would give two fields the name {name!r}; rename the other one too, or "
                "leave it out with select()"
            )
    return made


def agreed_names(
    first: Mapping[str, Field], second: Mapping[str, Field], path: str
) -> tuple[str, ...] | None:
    """Return the fields that two datasets make, which must agree; ``None`` if neither says any."""
    if not first or not second:
        return tuple(first or second) or None
    if set(first) != set(second):
        raise SchemaError(
            path,
            f"expected fields {sorted(first)} as in the first dataset, found {sorted(second)}",
            remedy="select(), rename() or map() them to agree before adding",
        )
    for name, field in first.items():
        other = second[name].dtype
        if field.dtype != other and not (field.dtype.kind == other.kind and other.kind in "US"):
            raise SchemaError(
                path,
                f"field {name!r}: expected {field.dtype} as in the first dataset, found {other}",
                remedy="convert one of them with map()",
            )
    return tuple(first)


_Side = tuple[Sequence[Group], tuple[Step, ...]]


def route_steps(
    first: _Side, second: _Side, names: tuple[str, ...] | None
) -> tuple[tuple[Group, ...], Routed, bool]:
    """Return groups of the samples of both, a step that routes each sample, and if they are alike.

    They are if all stored fields of one are in the other, in the same form.
    """
    groups, steps = first
    known = _stored_fields(groups)
    if len(steps) == 1 and isinstance(steps[0], Routed) and len(steps[0].routes) <= _MOST_ROUTES:
        field, routes = steps[0].field, steps[0].routes
        number = known[field]
    else:
        field = hidden("dataset", {*known, *_stored_fields(second[0])})
        number = Field(field, np.dtype(np.uint16), (), "<u2")
        routes = (Route(tuple((name, name) for name in known), steps),)
        groups = (*groups, make_constant([number], len(groups[0]), 0))
    theirs, route = _place_fields(second, routes, known)
    theirs = (*theirs, make_constant([number], len(theirs[0]), len(routes)))
    made, alike = _join_padded(groups, theirs)
    return made, Routed(field, (*routes, route), names), alike


def _stored_fields(groups: Sequence[Group]) -> dict[str, Field]:
    return {column.field.name: column.field for column in columns_of(groups)}


def _place_fields(
    side: _Side, routes: Sequence[Route], known: Mapping[str, Field]
) -> tuple[tuple[Group, ...], Route]:
    """Rename a side's fields to known ones that have the same form, or else to new names."""
    alike: dict[tuple[object, ...], str] = {}
    for route in routes:
        for stored, name in route.fields:
            alike.setdefault((name, known[stored].type, known[stored].shape), stored)
    groups, steps = side
    names: dict[str, str] = {}
    for name, field in _stored_fields(groups).items():
        new = name if name not in known else hidden(name, known)
        names[name] = alike.get((name, field.type, field.shape), new)
    return rename_fields(groups, names), Route(
        tuple((new, name) for name, new in names.items()), steps
    )


def _join_padded(first: Sequence[Group], second: Sequence[Group]) -> tuple[tuple[Group, ...], bool]:
    """Join groups; fields that one side lacks are constant there. Also return if neither does."""
    sides = first, second
    shared = _stored_fields(first).keys() & _stored_fields(second).keys()
    both = [_select_fields(side, shared) for side in sides]
    own = [_select_fields(side, _stored_fields(side).keys() - shared) for side in sides]
    made = list(join_groups(*both))
    for group in own[0]:
        fields = [column.field for column in group.columns]
        made += join_groups([group], [make_constant(fields, len(second[0]))])
    for group in own[1]:
        fields = [column.field for column in group.columns]
        made += join_groups([make_constant(fields, len(first[0]))], [group])
    return tuple(made), not any(own)


def _select_fields(groups: Sequence[Group], names: Collection[str]) -> list[Group]:
    """Return the groups with only some of their fields; groups without any are dropped."""
    kept = (
        replace(group, columns=tuple(c for c in group.columns if c.field.name in names))
        for group in groups
    )
    return [group for group in kept if group.columns]
