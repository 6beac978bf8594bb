"""What is a sample? Rows of axis 0, or whole files, never a guess that could be wrong.

``auto`` takes rows where one file stands alone and its arrays share their first length, or
where the caller gave the shape of a sample (raw files). It takes files where some array has
no axis, or first lengths differ within a file: rows are no reading then. Everything else
could be read both ways and is refused, with both readings in the message.
"""

import warnings
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.field import Field
from ndfeed.errors import AmbiguousError, FieldError, SchemaError, UnsupportedError, shown
from ndfeed.formats.types import delivered, itemsize, named, plain
from ndfeed.index.table import Ints, Table

Sample = Literal["auto", "row", "file"]

BARE = "data"
_SHOWN_FIELDS = 4


class Reading(NamedTuple):
    """One way to read a table: as rows or as files, how many, and why."""

    sample: Literal["row", "file"]
    samples: int
    why: str


class Layout(NamedTuple):
    """The arrays of a table by field: ``arrays[name][file]`` is a place in the table."""

    table: Table
    arrays: dict[str, Ints]
    lengths: dict[str, Ints]  # per file: the first length, -1 where there is no axis
    typed: bool  # did opaque elements get a type?


def layout(
    table: Table, fields: tuple[str, ...] | None, dtype: object, prefix: str | None
) -> Layout:
    """The fields that every file of the table has, under the names that the dataset uses."""
    numbers: dict[str, list[int]] = {}
    for number, own in enumerate(table.names):
        name = _field_name(own, prefix)
        if fields is None or name in fields:
            numbers.setdefault(name, []).append(number)  # bare in some files, named in others
    found = {name: np.flatnonzero(np.isin(table.name, own)) for name, own in numbers.items()}
    for name in fields or ():
        if name not in found:
            known = [_field_name(own, prefix) for own in table.names]
            raise FieldError(name, known, table.path(0))
    for name, arrays in found.items():
        _check_present(table, name, arrays)
    dtypes = _typed(table, found, dtype)
    typed = dtypes != table.dtypes
    if typed:
        table = replace(table, dtypes=dtypes)
    for name, arrays in found.items():
        _check_types(table, name, arrays)
    ordered = found if fields is None else {name: found[name] for name in fields}
    dims = table.dims
    first = np.where(dims[:, 0] > 0, dims[:, 1] if dims.shape[1] > 1 else -1, -1)
    return Layout(table, ordered, {n: first[table.shape[a]] for n, a in ordered.items()}, typed)


def _field_name(own: str, prefix: str | None) -> str:
    if prefix is None:
        return own or BARE
    return f"{prefix}/{own}" if own else prefix


def _check_present(table: Table, name: str, arrays: Ints) -> None:
    """Every file must have the field, once."""
    present = np.bincount(table.file[arrays], minlength=table.files)
    if (present == 1).all():
        return
    file = int(np.flatnonzero(present != 1)[0])
    if present[file] > 1:
        raise SchemaError(table.path(file), f"field {name!r} is there twice")
    has = int(np.flatnonzero(present)[0])
    raise SchemaError(
        table.path(file),
        f"field {name!r} is missing; {shown(table.path(has))} has it, as have "
        f"{int((present > 0).sum()):,} of {table.files:,} files: open files of one kind, or "
        f"choose what all have with fields=",
    )


def _typed(table: Table, found: dict[str, Ints], dtype: object) -> tuple[str, ...]:
    """Give opaque elements their type: the caller's, or bfloat16 for those of two bytes."""
    used = {int(t) for arrays in found.values() for t in np.unique(table.dtype[arrays])}
    opaque = [t for t in used if table.dtypes[t] in ("|V1", "|V2")]
    dtypes = list(table.dtypes)
    meant = None if dtype is None else named(dtype)
    for t in opaque:
        file = int(table.file[np.flatnonzero(table.dtype == t)[0]])
        if meant is not None and itemsize(meant) == itemsize(dtypes[t]):
            dtypes[t] = meant
        elif dtypes[t] == "|V1":
            raise UnsupportedError(
                table.path(file),
                'elements of one opaque byte ("V1"): which type they are is not in the file; '
                'give it, for example dtype="float8_e4m3fn" or dtype="uint8"',
            )
        else:
            warnings.warn(
                f"{shown(table.path(file))}: two-byte opaque elements are read as bfloat16, which "
                f"np.save writes so; dtype='bfloat16' says you know",
                UserWarning,
                stacklevel=4,
            )
            dtypes[t] = "bfloat16"
    return tuple(dtypes)


def all_raw(table: Table) -> bool:
    """Are all files raw ones?"""
    return all(table.formats[number] == "raw" for number in np.unique(table.format))


def _check_types(table: Table, name: str, arrays: Ints) -> None:
    """All files must agree on a field's type, but for the byte order."""
    kinds = {plain(table.dtypes[t]): int(t) for t in np.unique(table.dtype[arrays])}
    if len(kinds) <= 1:
        return
    expected = plain(table.dtypes[table.dtype[arrays[0]]])
    other = next(kind for kind in kinds if kind != expected)
    at = arrays[np.isin(table.dtype[arrays], kinds[other])][0]
    raise SchemaError(
        table.path(int(table.file[at])),
        f"field {name!r} is {delivered(other)}, in {shown(table.path(int(table.file[arrays[0]])))} "
        f"it is {delivered(expected)}; save all files with one dtype",
    )


def readings(found: Layout, sample: Sample) -> list[Reading]:
    """Every way the table may be read: one, unless ``auto`` cannot tell."""
    files = found.table.files
    as_files = Reading("file", files, 'sample="file"')
    problem = _no_rows(found)
    if sample == "file":
        return [as_files]
    if sample == "row":
        if problem is not None:
            raise SchemaError(*problem)
        return [Reading("row", _rows(found), 'sample="row"')]
    if problem is not None:
        return [as_files._replace(why=problem[1])]
    as_rows = Reading("row", _rows(found), "one file alone")
    if files == 1:
        return [as_rows]
    if all_raw(found.table):
        return [as_rows._replace(why="raw files, with the shape of one sample given")]
    return [as_files, as_rows]


def _no_rows(found: Layout) -> tuple[bytes, str] | None:
    """The file and the reason that rows are no reading, if they are none."""
    names = list(found.lengths)
    lengths = np.stack([found.lengths[name] for name in names])
    for row, name in zip(lengths, names, strict=True):
        if (row < 0).any():
            file = int(np.flatnonzero(row < 0)[0])
            return found.table.path(file), f"{name!r} has no axis: there are no rows in it"
    differ = (lengths != lengths[0]).any(axis=0)
    if differ.any():
        file = int(np.flatnonzero(differ)[0])
        other = int(np.flatnonzero(lengths[:, file] != lengths[0, file])[0])
        return found.table.path(file), (
            f"first lengths differ: {names[0]!r} has {lengths[0, file]}, {names[other]!r} "
            f"{lengths[other, file]}; fields= chooses fields of one length to read as rows"
        )
    return None


def _rows(found: Layout) -> int:
    return int(next(iter(found.lengths.values())).sum())


def refuse(source: object, found: Layout) -> AmbiguousError:
    """The error that shows both readings."""
    as_files, as_rows = (_shapes(group(found, kind)) for kind in ("file", "row"))
    return AmbiguousError(
        str(source),
        f'could be read two ways; say which: sample="file" gives {found.table.files:,} samples, '
        f'each a whole file: {as_files}; sample="row" gives {_rows(found):,} samples, each a row '
        f"of axis 0: {as_rows}",
    )


def _shapes(made: Group) -> str:
    fields = [str(column.field) for column in made.columns]
    more = ", …" if len(fields) > _SHOWN_FIELDS else ""
    return ", ".join(fields[:_SHOWN_FIELDS]) + more


def group(found: Layout, sample: Literal["row", "file"], *, mapped: bool = True) -> Group:
    """The table's columns, read as rows or as files."""
    whole = sample == "file"
    table = found.table
    counts = np.ones(table.files, np.int64) if whole else next(iter(found.lengths.values()))
    starts = np.concatenate([[0], np.cumsum(counts)])
    columns = tuple(
        Column(_field(table, name, arrays, whole), table, arrays, np.full(len(arrays), whole))
        for name, arrays in found.arrays.items()
    )
    return Group(starts, columns, mapped)


def _field(table: Table, name: str, arrays: Ints, whole: bool) -> Field:
    kind = plain(table.dtypes[table.dtype[arrays[0]]])
    return Field(name, delivered(kind), common_shape(table, arrays, whole), kind)


def common_shape(table: Table, arrays: Ints, whole: bool) -> tuple[int | None, ...] | None:
    """The shape that samples share, ``None`` for lengths, or all of it, that differ."""
    dims = table.dims[np.unique(table.shape[arrays])]
    if (dims[:, 0] != dims[0, 0]).any():
        return None
    low, high = dims.min(axis=0).tolist(), dims.max(axis=0).tolist()
    axes = range(1 if whole else 2, 1 + low[0])
    return tuple(low[i] if low[i] == high[i] else None for i in axes)
