"""The fields that files have, and where each lies: arrays of a table by field and part."""

import warnings
from dataclasses import replace
from typing import Literal, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset import lists
from ndfeed.errors import FieldError, SchemaError, UnsupportedError, shown
from ndfeed.formats.types import delivered, itemsize, named, plain
from ndfeed.index.table import Ints, Table

Sample = Literal["auto", "row", "file"]

BARE = "data"


class Layout(NamedTuple):
    """The arrays of a table by field and part: ``arrays[i, part]`` is a place in the table.

    A part is a file, or an item of a list where a file holds one. ``lengths`` has how many rows
    each array is: its first length, -1 where there is no axis; an item is one. A file may hold
    100,000 fields, so what is asked about every field is asked about all of them at once.
    """

    table: Table
    names: tuple[str, ...]
    arrays: Ints
    lengths: Ints
    typed: bool  # did opaque elements get a type?
    items: NDArray[np.bool_]  # per part: is it an item of a list?
    as_files: Optional["Layout"] = None  # how lists may be read as whole files, if they may


def layout(
    table: Table,
    fields: tuple[str, ...] | None,
    dtype: object,
    prefix: str | None,
    sample: Sample = "auto",
) -> Layout:
    """The fields that every file of the table has, under the names that the dataset uses."""
    listed = lists.are_lists(table)
    if listed is None:
        return _layout(table, fields, dtype, prefix, np.ones(table.files, np.int64))
    once = np.ones(table.files, np.int64)
    if sample == "file":
        return _layout(lists.by_position(table, listed), fields, dtype, prefix, once)
    try:
        found = _layout(table, fields, dtype, prefix, lists.count_items(table, listed), listed)
    except FieldError:
        if sample == "row":
            raise
        try:  # fields= may name items by their position
            return _layout(lists.by_position(table, listed), fields, dtype, prefix, once)
        except (FieldError, SchemaError):
            pass
        raise
    if sample == "row" or table.files == 1:
        return found
    try:
        return found._replace(
            as_files=_layout(lists.by_position(table, listed), fields, dtype, prefix, once)
        )
    except (FieldError, SchemaError):  # of several lengths, or there are other files
        return found


def _layout(
    table: Table,
    fields: tuple[str, ...] | None,
    dtype: object,
    prefix: str | None,
    counts: Ints,
    listed: NDArray[np.bool_] | None = None,
) -> Layout:
    """The same for files with ``counts`` arrays of each field: one, or one for each item."""
    known = [_field_name(own, prefix) for own in table.names]
    names = tuple(dict.fromkeys(known if fields is None else fields))
    there = set(known)
    for name in names:
        if name not in there:
            raise FieldError(name, known, table.path(0))
    if not names:
        raise SchemaError(table.path(0), "there are no fields to read; name one of its arrays")
    arrays = _by_field(table, names, known, counts)
    dtypes = _typed(table, arrays, dtype)
    typed = dtypes != table.dtypes
    if typed:
        table = replace(table, dtypes=dtypes)
    _check_types(table, names, arrays)
    dims = table.dims
    first = np.where(dims[:, 0] > 0, dims[:, 1] if dims.shape[1] > 1 else -1, -1)
    lengths = first[table.shape[arrays]]
    items = np.zeros(arrays.shape[1], bool)
    if listed is not None:
        items = listed[table.file[arrays[0]]]
        lengths[:, items] = 1
    return Layout(table, names, arrays, lengths, typed, items)


def _field_name(own: str, prefix: str | None) -> str:
    if prefix is None:
        return own or BARE
    return f"{prefix}/{own}" if own else prefix


def _by_field(table: Table, names: tuple[str, ...], known: list[str], each: Ints) -> Ints:
    """The arrays of each of ``names``, file by file.

    Every file must have as many of each as ``each`` says. ``known`` has the field of each of the
    table's own names. An array that is bare in some files and named in others has two.
    """
    places = {name: place for place, name in enumerate(names)}
    # As small a type as can be: NumPy sorts numbers of up to 16 bits in linear time.
    place_of = np.array([places.get(name, len(names)) for name in known])
    field = place_of.astype(np.min_scalar_type(len(names)))[table.name]
    arrays = np.argsort(field, kind="stable")
    counts = np.bincount(field, minlength=len(names) + 1)[:-1]
    arrays = arrays[: int(counts.sum())]
    owners = np.repeat(np.arange(table.files), each)
    shape = len(names), len(owners)
    even = (counts == len(owners)).all()
    if not even or (table.file[arrays].reshape(shape) != owners).any():
        for name, own in zip(names, np.split(arrays, np.cumsum(counts)[:-1]), strict=True):
            _check_present(table, name, own, each)
    return arrays.reshape(shape)


def _check_present(table: Table, name: str, arrays: Ints, each: Ints) -> None:
    """Every file must have the field, as often as ``each`` says."""
    present = np.bincount(table.file[arrays], minlength=table.files)
    if (present == each).all():
        return
    file = int(np.flatnonzero(present != each)[0])
    if present[file] > each[file]:
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
