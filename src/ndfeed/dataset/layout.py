"""The fields that files have, and where each lies in the table of arrays.

A file may hold a list of similar items, read as rows, or as one sample with a field for each. In
the table such a file has the format "pt list", and its arrays are named within their item: a list
of 20 dicts with the keys "x" and "y" has 20 arrays "x" and 20 arrays "y", item by item. Read as a
whole file, each array is a separate field, with the position before its name.
"""

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple, NoReturn, Optional

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset import arguments
from ndfeed.errors import FieldError, SchemaError, UnsupportedError, shown
from ndfeed.formats.description import BARE, bare
from ndfeed.formats.dtypes import check_possible, delivered, itemsize, named, plain, widest_text
from ndfeed.index.table import Ints, Table

_FORMAT = "pt list"


def _are_lists(table: Table) -> NDArray[np.bool_] | None:
    """Per file: is it a list of similar items? ``None`` where no file is."""
    if _FORMAT not in table.formats:
        return None
    found = table.format == table.formats.index(_FORMAT)
    return found if found.any() else None


def _count_items(table: Table, lists: NDArray[np.bool_]) -> Ints:
    """Per file: how many items its list has; 1 for other files."""
    first = np.searchsorted(table.file, np.arange(table.files))
    alike = table.name == table.name[first][table.file]  # the first array's name: once per item
    counts = np.bincount(table.file[alike], minlength=table.files)
    return np.where(lists, counts, 1)


def _by_position(table: Table, lists: NDArray[np.bool_]) -> Table:
    """Return the table with every array of a list named by its position too: ``3``, or ``3/x``."""
    counts = np.bincount(table.file, minlength=table.files)
    place = np.arange(len(table.file)) - (np.cumsum(counts) - counts)[table.file]
    item = place // np.maximum(counts // _count_items(table, lists), 1)[table.file]
    item[~lists[table.file]] = -1
    names: dict[str, int] = {}
    numbers = [
        names.setdefault(table.names[n] if i < 0 else _name_item(i, table.names[n]), len(names))
        for i, n in zip(item.tolist(), table.name.tolist(), strict=True)
    ]
    return replace(table, name=np.array(numbers, np.int32), names=tuple(names))


def _name_item(item: int, name: str) -> str:
    return bare(str(item), name) if name else str(item)


Sample = Literal["auto", "row", "file"]


class Layout(NamedTuple):
    """The arrays of a table by field and part: ``arrays[i, part]`` is a place in the table.

    A part is a file, or an item of a list where a file holds one. ``lengths`` is the number of rows
    of each array: its first length, -1 where there is no axis; an item is one. A file may hold
    100,000 fields, so checks are vectorized over all fields.
    """

    table: Table
    names: tuple[str, ...]
    arrays: Ints
    lengths: Ints
    typed: bool  # did opaque elements get a dtype?
    types: tuple[str, ...]  # per field: the dtype it is read as
    items: NDArray[np.bool_]  # per part: is it an item of a list?
    as_files: Optional["Layout"] = None  # how lists may be read as whole files, if they may


def layout(
    table: Table,
    fields: tuple[str, ...] | None,
    dtype: object,
    prefix: str | None,
    sample: Sample = "auto",
) -> Layout:
    """Find the fields that every file of the table has, under the dataset's names."""
    listed = _are_lists(table)
    if listed is None:
        return _layout(table, fields, dtype, prefix, np.ones(table.files, np.int64))
    once = np.ones(table.files, np.int64)
    if sample == "file":
        return _layout(_by_position(table, listed), fields, dtype, prefix, once)
    try:
        found = _layout(table, fields, dtype, prefix, _count_items(table, listed), listed)
    except FieldError:
        if sample == "row":
            raise
        try:  # fields= may name items by their position
            return _layout(_by_position(table, listed), fields, dtype, prefix, once)
        except (FieldError, SchemaError):
            pass
        raise
    if sample == "row" or table.files == 1:
        return found
    try:
        return found._replace(
            as_files=_layout(_by_position(table, listed), fields, dtype, prefix, once)
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
    """Do the same for files with ``counts`` arrays of each field: one, or one per item."""
    known = [_field_name(own, prefix) for own in table.names]
    names = tuple(dict.fromkeys(known if fields is None else fields))
    there = set(known)
    for name in names:
        if name not in there:
            raise FieldError(name, known, table.path(0))
    if not names:
        raise SchemaError(
            table.path(0), "there are no fields to read", remedy="name one of its arrays"
        )
    arrays = _by_field(table, names, known, counts)
    casts = _casts(table, dtype, known)
    dtypes = _set_dtypes(table, names, arrays, dtype if casts is None else casts)
    typed = dtypes != table.dtypes
    if typed:
        table = replace(table, dtypes=dtypes)
    types = _types(table, names, arrays, casts or {})
    dims = table.dims
    first = np.where(dims[:, 0] > 0, dims[:, 1] if dims.shape[1] > 1 else -1, -1)
    lengths = first[table.shape[arrays]]
    items = np.zeros(arrays.shape[1], bool)
    if listed is not None:
        items = listed[table.file[arrays[0]]]
        lengths[:, items] = 1
    return Layout(table, names, arrays, lengths, typed, types, items)


def _field_name(own: str, prefix: str | None) -> str:
    if prefix is None:
        return own or BARE
    return f"{prefix}/{own}" if own else prefix


def _by_field(table: Table, names: tuple[str, ...], known: list[str], each: Ints) -> Ints:
    """Find the arrays of each of ``names``, file by file.

    Every file must have as many of each as ``each`` says. ``known`` has the field of each of the
    table's own names. An array that is unnamed in some files and named in others has two.
    """
    if len(known) == 1:  # so it is the only field, and all arrays are its own
        arrays, counts = np.arange(len(table.name)), np.array([len(table.name)])
    else:
        places = {name: place for place, name in enumerate(names)}
        # As small a dtype as possible: NumPy sorts integers of up to 16 bits in linear time.
        place_of = np.array([places.get(name, len(names)) for name in known])
        field = place_of.astype(np.min_scalar_type(len(names)))[table.name]
        arrays = np.argsort(field, kind="stable")
        counts = np.bincount(field, minlength=len(names) + 1)[:-1]
        arrays = arrays[: int(counts.sum())]
    owners = np.repeat(np.arange(table.files), each)
    shape = len(names), len(owners)
    even = not np.count_nonzero(counts != len(owners))
    if not even or np.count_nonzero(table.file[arrays].reshape(shape) != owners):
        for name, own in zip(names, np.split(arrays, np.cumsum(counts)[:-1]), strict=True):
            _check_present(table, name, own, each)
    return arrays.reshape(shape)


def _check_present(table: Table, name: str, arrays: Ints, each: Ints) -> None:
    """Check that every file has the field, as often as ``each`` says."""
    present = np.bincount(table.file[arrays], minlength=table.files)
    if (present == each).all():
        return
    file = int(np.flatnonzero(present != each)[0])
    if present[file] > each[file]:
        raise SchemaError(table.path(file), f"field {name!r} appears twice")
    has = int(np.flatnonzero(present)[0])
    raise SchemaError(
        table.path(file),
        f"field {name!r} is missing, but {int((present > 0).sum()):,} of {table.files:,} files "
        f"have it, such as {shown(table.path(has))}",
        remedy="open files of one kind, or choose the fields that all files have with fields=",
    )


def _casts(table: Table, dtype: object, known: list[str]) -> dict[str, str] | None:
    """Return the dtypes that fields are read as; ``None`` unless the caller gave a dict."""
    if not isinstance(dtype, Mapping):
        return None
    for name in dtype:
        if name not in known:
            raise FieldError(name, known, table.path(0))
    return {name: named(wanted) for name, wanted in dtype.items()}


def _set_dtypes(
    table: Table, names: tuple[str, ...], arrays: Ints, dtype: object
) -> tuple[str, ...]:
    """Give opaque elements their dtype: the caller's, or bfloat16 for those of two bytes."""
    if not {"|V1", "|V2"}.intersection(table.dtypes):
        return table.dtypes
    used = np.unique(table.dtype[arrays]).tolist()
    opaque = [t for t in used if table.dtypes[t] in ("|V1", "|V2")]
    dtypes = list(table.dtypes)
    for t in opaque:
        meant = _meant(dtype, names, (table.dtype[arrays] == t).any(axis=1).tolist())
        file = int(table.file[np.flatnonzero(table.dtype == t)[0]])
        if meant is not None and itemsize(meant) == itemsize(dtypes[t]):
            dtypes[t] = meant
        elif dtypes[t] == "|V1":
            raise UnsupportedError(
                table.path(file),
                'elements of one opaque byte ("V1"): which type they are is not in the file',
                remedy='give it, for example dtype="float8_e4m3fn" or dtype="uint8"',
            )
        else:
            warnings.warn(
                f"{shown(table.path(file))}: two-byte opaque elements are read as bfloat16, which "
                f"np.save writes like this; pass dtype='bfloat16' to confirm and silence this "
                f"warning",
                UserWarning,
                stacklevel=6,
            )
            dtypes[t] = "bfloat16"
    return tuple(dtypes)


def _meant(dtype: object, names: tuple[str, ...], opaque: list[bool]) -> str | None:
    """Return the dtype that the caller gave for all opaque fields of one width, if any."""
    if not isinstance(dtype, Mapping):
        return None if dtype is None else named(dtype)
    meant = {dtype[n]: n for n, one in zip(names, opaque, strict=True) if one and n in dtype}
    if len(meant) > 1:
        raise ValueError(f"dtype= must give the opaque fields {list(meant.values())} one type")
    return next(iter(meant), None)


def all_raw(table: Table) -> bool:
    """Are all files raw ones?"""
    return all(table.formats[number] == "raw" for number in np.unique(table.format))


def _types(
    table: Table, names: tuple[str, ...], arrays: Ints, casts: Mapping[str, str]
) -> tuple[str, ...]:
    """Return each field's dtype: that of all files, the widest text, or the caller's."""
    dtype = table.dtype[arrays]
    kinds = [plain(name) for name in table.dtypes]
    types = [kinds[t] for t in dtype[:, 0].tolist()]
    differ = (dtype != dtype[:, :1]).any(axis=1).tolist() if len(kinds) > 1 else ()
    for i in (i for i, one in enumerate(differ) if one):
        found = {kinds[t] for t in np.unique(dtype[i]).tolist()}
        if names[i] not in casts and len(found) > 1:
            types[i] = widest_text(found) or _refuse_odd(table, names[i], arrays[i])
    places = {name: i for i, name in enumerate(names)}
    for name, wanted in casts.items():
        if name in places:
            for t in np.unique(dtype[places[name]]).tolist():
                check_possible(name, kinds[t], wanted)
            types[places[name]] = plain(wanted)
    return tuple(types)


def _refuse_odd(table: Table, name: str, arrays: Ints) -> NoReturn:
    """Name the first file of the rarest dtype, and how many agree on another."""
    kinds = [plain(table.dtypes[t]) for t in table.dtype[arrays].tolist()]
    (usual, most), *_, (odd, _) = Counter(kinds).most_common()
    other = table.path(int(table.file[arrays[kinds.index(usual)]]))
    agree = f"{most:,} of {len(kinds):,} files" if most > 1 else shown(other)
    hint = arguments.suggest_field_dict(table)
    raise SchemaError(
        table.path(int(table.file[arrays[kinds.index(odd)]])),
        f"field {name!r} is {delivered(odd)}, in {agree} it is {delivered(usual)}",
        remedy=f"to read all as one type, open with "
        f"dtype={{{name!r}: {str(delivered(usual))!r}}}{hint and f'; {hint}'}",
    )
