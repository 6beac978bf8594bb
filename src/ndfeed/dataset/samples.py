"""Decides what a sample is, a row of axis 0 or a whole file, and shows a dataset as text.

Never by a guess that could be wrong: ``auto`` takes rows for a single file whose arrays share their
first length, or where the caller gave the shape of a sample (raw files). It takes files where some
array is a scalar, or first lengths differ within a file: rows make no sense then. Everything else
could be read both ways and is refused, with both readings in the message. The items of a list
(``layout``) are rows; several files of lists of one length could also be samples.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset import arguments
from ndfeed.dataset.column import Column, Field, Group, columns_of
from ndfeed.dataset.layout import Layout, Sample, all_raw
from ndfeed.dataset.origins import is_memory
from ndfeed.errors import AmbiguousError, SchemaError, shown, shown_size
from ndfeed.formats.description import CODINGS
from ndfeed.formats.dtypes import delivered
from ndfeed.index.table import Ints, Table

if TYPE_CHECKING:
    from ndfeed.dataset.dataset import Dataset

_SHOWN_FIELDS = 4


class Reading(NamedTuple):
    """One way to read a table: as rows or as files, how many, and why."""

    sample: Literal["row", "file"]
    samples: int
    why: str


def readings(found: Layout, sample: Sample) -> list[Reading]:
    """Return every way the table may be read: one, unless ``auto`` cannot tell."""
    files = found.table.files
    as_files = Reading("file", files, 'sample="file"')
    if sample == "file":
        return [as_files]
    listed, problem = np.count_nonzero(found.items) > 0, _no_rows(found)
    if problem is not None:
        if sample == "row" or listed:
            raise problem
        return [as_files._replace(why="; ".join(filter(None, (problem.problem, problem.remedy))))]
    as_rows = Reading("row", _rows(found), "one file alone")
    if sample == "row":
        return [as_rows._replace(why='sample="row"')]
    if listed:
        as_rows = as_rows._replace(why="items of the same kind, read as rows")
        return [as_rows] if found.as_files is None else [as_files, as_rows]
    if files == 1:
        return [as_rows]
    if all_raw(found.table):
        return [as_rows._replace(why="raw files, with the shape of one sample given")]
    return [as_files, as_rows]


def _no_rows(found: Layout) -> SchemaError | None:
    """Return the error that says why rows make no sense, if they do not."""
    names, lengths = found.names, found.lengths
    if np.count_nonzero(lengths < 0):
        i = int(np.flatnonzero((lengths < 0).any(axis=1))[0])
        file = int(np.flatnonzero(lengths[i] < 0)[0])
        problem = f"{names[i]!r} is a scalar (0-dimensional), so it has no rows"
        return SchemaError(found.table.path(file), problem)
    if len(names) == 1:
        return None
    differ = (lengths != lengths[0]).any(axis=0)
    if differ.any():
        file = int(np.flatnonzero(differ)[0])
        other = int(np.flatnonzero(lengths[:, file] != lengths[0, file])[0])
        return SchemaError(
            found.table.path(file),
            f"first lengths differ: {names[0]!r} has {lengths[0, file]}, {names[other]!r} "
            f"{lengths[other, file]}",
            remedy="fields= chooses fields of one length to read as rows",
        )
    return None


def _rows(found: Layout) -> int:
    return int(found.lengths[0].sum())


def refuse(source: object, found: Layout) -> AmbiguousError:
    """Make the error that shows both readings."""
    as_files, as_rows = (_shapes(group(found, kind)) for kind in ("file", "row"))
    hint = arguments.suggest_field_dict(found.table)
    return AmbiguousError(
        str(source),
        "could be read in two ways",
        remedy=f'choose one: sample="file" gives {found.table.files:,} '
        f'samples, each a whole file: {as_files}; sample="row" gives {_rows(found):,} samples, '
        f"each "
        f"{'an item of a list' if found.items.any() else 'a row of axis 0'}: {as_rows}"
        f"{hint and f'; {hint}'}",
    )


def _shapes(made: Group) -> str:
    fields = [str(column.field) for column in made.columns]
    more = ", …" if len(fields) > _SHOWN_FIELDS else ""
    return ", ".join(fields[:_SHOWN_FIELDS]) + more


def group(found: Layout, sample: Literal["row", "file"], *, mapped: bool = True) -> Group:
    """Make a group of the table's columns, read as rows or as files."""
    if sample == "file" and found.as_files is not None:
        found = found.as_files
    table, parts = found.table, found.arrays.shape[1]
    counts = np.ones(parts, np.int64) if sample == "file" else found.lengths[0]
    starts = np.zeros(parts + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    # One for all columns: a column never changes.
    whole = np.full(parts, True) if sample == "file" else found.items
    columns = tuple(
        Column(field, table, arrays, whole)
        for field, arrays in zip(_fields(found, whole), found.arrays, strict=True)
    )
    return Group(starts, columns, mapped)


def _fields(found: Layout, whole: NDArray[np.bool_]) -> Iterator[Field]:
    table, shapes = found.table, found.table.shape[found.arrays]
    same = (shapes == shapes[:, :1]).all(axis=1)
    if np.count_nonzero(whole) not in (0, len(whole)):
        same[:] = False
    dims = table.dims[shapes[:, 0]].tolist()
    cut = 1 if whole[0] else 2
    for name, kind, own, alike, shape in zip(
        found.names, found.types, shapes, same.tolist(), dims, strict=True
    ):
        common = tuple(shape[cut : 1 + shape[0]]) if alike else _common_shape(table, own, whole)
        yield Field(name, delivered(kind), common, kind)


def _common_shape(
    table: Table, shapes: Ints, whole: NDArray[np.bool_]
) -> tuple[int | None, ...] | None:
    """Return what the sample shapes share: ``None`` for lengths that differ, or for all."""
    dims = table.dims[np.unique(shapes[whole])]
    rows = table.dims[np.unique(shapes[~whole])]
    if len(rows):  # without their first axis
        cut = np.zeros_like(rows)
        cut[:, 0] = rows[:, 0] - 1
        cut[:, 1:-1] = rows[:, 2:]
        dims = np.concatenate([dims, cut])
    if (dims[:, 0] != dims[0, 0]).any():
        return None
    low, high = dims.min(axis=0).tolist(), dims.max(axis=0).tolist()
    axes = range(1, 1 + low[0])
    return tuple(low[i] if low[i] == high[i] else None for i in axes)


_TABLE_FIELDS = 100
_ODD = 0.9  # if this share of the files has one shape, the others are odd


def codings(ds: "Dataset", names: Iterable[str]) -> dict[str, str]:
    """Say how the bytes of some fields are stored."""
    columns = {column.field.name: column for column in columns_of(ds.groups)}
    return {
        name: ", ".join(CODINGS[c] for c in np.unique(columns[name].coding).tolist())
        for name in names
        if name in columns
    }


READINGS = {
    "row": "a sample is a row of axis 0",
    "file": "a sample is a whole file",
    "range": "a sample is a range of rows",
    "item": "a sample is an item of a list",
    "window": "a sample is a window of rows",
    "crop": "a sample is a crop of an array",
    "several": "samples are of several kinds",
    "both": "samples are rows of some files and others whole",
    "none": "no samples",
}


def sample_kind(ds: "Dataset") -> str:
    """Return how samples were interpreted: one of ``READINGS``."""
    kinds_of_groups = {group.kind for group in ds.groups} - {""}
    if kinds_of_groups:
        return kinds_of_groups.pop() if len(kinds_of_groups) == 1 else "several"
    columns = columns_of(ds.groups)
    # Computed fields say nothing, unless everything was loaded into memory.
    found = [c.whole[~is_memory(c.table)[c.file]] for c in columns]
    found = found if any(map(len, found)) else [c.whole for c in columns]
    kinds = {bool(one) for whole in found if len(whole) for one in (whole.min(), whole.max())}
    if len(kinds) != 1:
        return "both" if kinds else "none"
    if False in kinds:
        return "range" if all(c.offsets is not None for c in columns) else "row"
    return "item" if any(_is_list(group) for group in ds.groups) else "file"


def _is_list(group: Group) -> bool:
    """Does a file hold several whole arrays of a field? Then it holds a list of them."""
    return bool(len(group.starts) - 1 > group.table.files) and not group.table.sealed


def reading(ds: "Dataset") -> str:
    """Say how samples were interpreted, and why."""
    return f"{READINGS[sample_kind(ds)]} ({ds.why})"


def _odd_shapes(ds: "Dataset") -> list[str]:
    """For each field that is ragged because of few files: name the first, and how many agree."""
    columns = columns_of(ds.groups)
    return [_odd_shape(c) for c in columns if c.field.ragged and c.offsets is None and _is_odd(c)]


def _is_odd(column: Column) -> bool:
    _, counts = np.unique(column.table.shape[column.arrays], return_counts=True)
    return bool(len(counts) > 1 and counts.max() >= _ODD * counts.sum())


def _odd_shape(column: Column) -> str:
    """Name the first file whose samples have an unusual shape, and how many have the usual one."""
    shapes = column.table.shape[column.arrays]
    kinds, first, counts = np.unique(shapes, return_index=True, return_counts=True)
    usual = int(counts.argmax())
    odd = int(first[kinds != kinds[usual]].min())
    most, own = column.shapes(np.array([first[usual], odd]))
    path = shown(column.table.path(int(column.file[odd])))
    return (
        f"{shown(column.field.name)} is {most} in {counts[usual]:,} of {len(shapes):,} files; "
        f"{path} has {own}"
    )


def table(ds: "Dataset") -> str:
    """Return the text of ``repr``."""
    files = len(ds.files)
    head = (
        f"ndfeed.Dataset: {len(ds):,} sample{'s' * (len(ds) != 1)}, {shown_size(ds.nbytes)}, "
        f"{files:,} file{'s' * (files != 1)}"
    )
    fields = list(islice(ds.fields.values(), _TABLE_FIELDS))
    stored = codings(ds, [field.name for field in fields])
    lines = [("field", "dtype", "shape", "stored")]
    lines += [
        (shown(field.name), field.dtype_text, field.shape_text, stored.get(field.name, ""))
        for field in fields
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    rows = [
        "  " + "  ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    more = len(ds.fields) - len(fields)
    foot = [f"  … and {more:,} more fields"] if more else []
    foot.append(f"  {shown(reading(ds))}")
    foot += [f"  {line}" for line in _odd_shapes(ds)]
    for name, classes in ds.classes.items():
        if name not in ds.fields:  # a map left it out
            continue
        foot.append(shown(f"  {describe_classes(name, classes)}"))
    if ds.mixture is not None:
        foot.append(shown(f"  a mixture: {ds.mixture}"))
    if ds.steps:
        foot.append(f"  then {len(ds.steps)} step{'s' * (len(ds.steps) != 1)} on every batch")
    return "\n".join([head, *rows, *foot])


def describe_classes(name: str, classes: Sequence[str]) -> str:
    """Say which classes the codes of a field stand for; only the first are named."""
    listed = ", ".join(map(repr, classes[:_SHOWN_FIELDS]))
    more = ", …" * (len(classes) > _SHOWN_FIELDS)
    return f"{name} is one of {len(classes):,} class{'es' * (len(classes) != 1)}: {listed}{more}"


def warn_of_scattered_rows(group: Group) -> None:
    """Warn once about the cost of rows of Fortran-ordered arrays."""
    if not np.count_nonzero(group.table.strides >= 0):
        return
    for column in group.columns:
        for part in np.flatnonzero(column.strided & ~column.whole)[:1].tolist():
            array = int(column.arrays[part])
            table = column.table
            strides = table.dimensions(int(table.strides[array]))
            if len(strides) > 1 and strides[0] < max(strides[1:]) and column.nbytes[part] > 0:
                warnings.warn(
                    f"{shown(table.path(int(column.file[part])))}: Fortran order: a row of "
                    f"{shown_size(int(column.nbytes[part]))} is scattered over "
                    f"{shown_size(int(table.length[array]))}; save "
                    "np.ascontiguousarray(array) to read rows at full speed",
                    UserWarning,
                    stacklevel=5,
                )
                return


def warn_of_skipped(table: Table) -> None:
    """Warn how many files were skipped, and what was wrong with the first."""
    if table.skipped:
        warnings.warn(
            f"{len(table.skipped):,} of {len(table.skipped) + table.files:,} files cannot be read "
            f"and are skipped (ds.skipped lists them), the first: {table.skipped[0]}",
            UserWarning,
            stacklevel=4,
        )
