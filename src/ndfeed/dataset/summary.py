"""A dataset as text: a small table, how samples were interpreted, and why."""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Group
from ndfeed.errors import shown
from ndfeed.formats.description import CODINGS

if TYPE_CHECKING:
    from ndfeed.dataset.column import Column
    from ndfeed.dataset.dataset import Dataset

_SHOWN_FIELDS = 100
_ODD = 0.9  # if this share of the files has one shape, the others are odd


def size(count: float) -> str:
    """Bytes for people.

    >>> size(0), size(2047), size(3_500_000)
    ('0 B', '2.05 kB', '3.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"


def codings(ds: "Dataset", names: Iterable[str]) -> dict[str, str]:
    """Say how the bytes of some fields are stored."""
    columns = {column.field.name: column for group in ds.groups for column in group.columns}
    return {
        name: ", ".join(CODINGS[c] for c in np.unique(columns[name].coding).tolist())
        for name in names
        if name in columns
    }


READINGS = {
    "row": "a sample is a row of axis 0",
    "file": "a sample is a whole file",
    "item": "a sample is an item of a list",
    "both": "samples are rows of some files and others whole",
    "none": "no samples",
}


def sample_kind(ds: "Dataset") -> str:
    """Return how samples were interpreted: one of ``READINGS``."""
    columns = [column for group in ds.groups for column in group.columns]
    # Computed fields say nothing, unless everything was loaded into memory.
    found = [c.whole[_in_files(c)] for c in columns]
    found = found if any(map(len, found)) else [c.whole for c in columns]
    kinds = {bool(one) for whole in found if len(whole) for one in (whole.min(), whole.max())}
    if len(kinds) != 1:
        return "both" if kinds else "none"
    if False in kinds:
        return "row"
    return "item" if any(is_list(group) for group in ds.groups) else "file"


def is_list(group: Group) -> bool:
    """Does a file hold several whole arrays of a field? Then it holds a list of them."""
    return bool(len(group.starts) - 1 > group.table.files) and not group.table.sealed


def reading(ds: "Dataset") -> str:
    """Say how samples were interpreted, and why."""
    return f"{READINGS[sample_kind(ds)]} ({ds.why})"


def odd_shapes(ds: "Dataset") -> list[str]:
    """For each field that is ragged because of few files: name the first, and how many agree."""
    columns = [column for group in ds.groups for column in group.columns]
    return [odd_shape(c) for c in columns if c.field.ragged and c.offsets is None and _is_odd(c)]


def _is_odd(column: Column) -> bool:
    _, counts = np.unique(column.table.shape[column.arrays], return_counts=True)
    return bool(len(counts) > 1 and counts.max() >= _ODD * counts.sum())


def odd_shape(column: Column) -> str:
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


def _in_files(column: "Column") -> NDArray[np.bool_]:
    """Per part of a column: is it in a file?"""
    memory = np.array([name == "memory" for name in column.table.formats], bool)
    return ~memory[column.table.format[column.file]]


def table(ds: "Dataset") -> str:
    """Return the text of ``repr``."""
    files = len(ds.files)
    head = (
        f"ndfeed.Dataset: {len(ds):,} sample{'s' * (len(ds) != 1)}, {size(ds.nbytes)}, "
        f"{files:,} file{'s' * (files != 1)}"
    )
    fields = list(islice(ds.fields.values(), _SHOWN_FIELDS))
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
    foot += [f"  {line}" for line in odd_shapes(ds)]
    if ds.steps:
        foot.append(f"  then {len(ds.steps)} step{'s' * (len(ds.steps) != 1)} on every batch")
    return "\n".join([head, *rows, *foot])
