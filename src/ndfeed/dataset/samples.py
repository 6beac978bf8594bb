"""What is a sample? Rows of axis 0, or whole files, never a guess that could be wrong.

``auto`` takes rows where one file stands alone and its arrays share their first length, or
where the caller gave the shape of a sample (raw files). It takes files where some array has
no axis, or first lengths differ within a file: rows are no reading then. Everything else
could be read both ways and is refused, with both readings in the message.
"""

import warnings
from collections.abc import Iterator
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
    """The arrays of a table by field and file: ``arrays[i, file]`` is a place in the table.

    ``lengths`` has the first length of each, -1 where there is no axis. A file may hold 100,000
    fields, so what is asked about every field is asked about all of them at once.
    """

    table: Table
    names: tuple[str, ...]
    arrays: Ints
    lengths: Ints
    typed: bool  # did opaque elements get a type?


def layout(
    table: Table, fields: tuple[str, ...] | None, dtype: object, prefix: str | None
) -> Layout:
    """The fields that every file of the table has, under the names that the dataset uses."""
    known = [_field_name(own, prefix) for own in table.names]
    names = tuple(dict.fromkeys(known if fields is None else fields))
    there = set(known)
    for name in names:
        if name not in there:
            raise FieldError(name, known, table.path(0))
    if not names:
        raise SchemaError(table.path(0), "there are no fields to read; name one of its arrays")
    arrays = _by_field(table, names, known)
    dtypes = _typed(table, arrays, dtype)
    typed = dtypes != table.dtypes
    if typed:
        table = replace(table, dtypes=dtypes)
    _check_types(table, names, arrays)
    dims = table.dims
    first = np.where(dims[:, 0] > 0, dims[:, 1] if dims.shape[1] > 1 else -1, -1)
    return Layout(table, names, arrays, first[table.shape[arrays]], typed)


def _field_name(own: str, prefix: str | None) -> str:
    if prefix is None:
        return own or BARE
    return f"{prefix}/{own}" if own else prefix


def _by_field(table: Table, names: tuple[str, ...], known: list[str]) -> Ints:
    """The arrays of each of ``names``, file by file; every file must have each of them, once.

    ``known`` has the field of each of the table's own names. An array that is bare in some files
    and named in others has two.
    """
    places = {name: place for place, name in enumerate(names)}
    # As small a type as can be: NumPy sorts numbers of up to 16 bits in linear time.
    place_of = np.array([places.get(name, len(names)) for name in known])
    field = place_of.astype(np.min_scalar_type(len(names)))[table.name]
    arrays = np.argsort(field, kind="stable")
    counts = np.bincount(field, minlength=len(names) + 1)[:-1]
    arrays = arrays[: int(counts.sum())]
    shape = len(names), table.files
    even = (counts == table.files).all()
    if not even or (table.file[arrays].reshape(shape) != np.arange(table.files)).any():
        for name, own in zip(names, np.split(arrays, np.cumsum(counts)[:-1]), strict=True):
            _check_present(table, name, own)
    return arrays.reshape(shape)


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


def _typed(table: Table, arrays: Ints, dtype: object) -> tuple[str, ...]:
    """Give opaque elements their type: the caller's, or bfloat16 for those of two bytes."""
    used = np.unique(table.dtype[arrays]).tolist()
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


def _check_types(table: Table, names: tuple[str, ...], arrays: Ints) -> None:
    """All files must agree on a field's type, but for the byte order."""
    dtype = table.dtype[arrays]
    for i in np.flatnonzero((dtype != dtype[:, :1]).any(axis=1)).tolist():
        kinds = {plain(table.dtypes[t]): t for t in np.unique(dtype[i]).tolist()}
        expected = plain(table.dtypes[dtype[i, 0]])
        for other in kinds:
            if other == expected:
                continue
            file = int(np.flatnonzero(dtype[i] == kinds[other])[0])
            raise SchemaError(
                table.path(file),
                f"field {names[i]!r} is {delivered(other)}, in {shown(table.path(0))} it is "
                f"{delivered(expected)}; save all files with one dtype",
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
    names, lengths = found.names, found.lengths
    for i in np.flatnonzero((lengths < 0).any(axis=1))[:1].tolist():
        file = int(np.flatnonzero(lengths[i] < 0)[0])
        return found.table.path(file), f"{names[i]!r} has no axis: there are no rows in it"
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
    return int(found.lengths[0].sum())


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
    counts = np.ones(table.files, np.int64) if whole else found.lengths[0]
    starts = np.concatenate([[0], np.cumsum(counts)])
    each = np.full(table.files, whole)  # one for all: a column never changes
    columns = tuple(
        Column(field, table, arrays, each)
        for field, arrays in zip(_fields(found, whole), found.arrays, strict=True)
    )
    return Group(starts, columns, mapped)


def _fields(found: Layout, whole: bool) -> Iterator[Field]:
    table, shapes = found.table, found.table.shape[found.arrays]
    same = (shapes == shapes[:, :1]).all(axis=1).tolist()
    dims = table.dims[shapes[:, 0]].tolist()
    dtypes = table.dtype[found.arrays[:, 0]].tolist()
    cut = 1 if whole else 2
    for name, dtype, own, alike, shape in zip(found.names, dtypes, shapes, same, dims, strict=True):
        kind = plain(table.dtypes[dtype])
        common = tuple(shape[cut : 1 + shape[0]]) if alike else _common_shape(table, own, whole)
        yield Field(name, delivered(kind), common, kind)


def _common_shape(table: Table, shapes: Ints, whole: bool) -> tuple[int | None, ...] | None:
    """What several shapes share: ``None`` for lengths that differ, or for all of it."""
    dims = table.dims[np.unique(shapes)]
    if (dims[:, 0] != dims[0, 0]).any():
        return None
    low, high = dims.min(axis=0).tolist(), dims.max(axis=0).tolist()
    axes = range(1 if whole else 2, 1 + low[0])
    return tuple(low[i] if low[i] == high[i] else None for i in axes)
