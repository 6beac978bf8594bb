"""A dataset as text: a small table, how samples were understood, and why."""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import shown
from ndfeed.formats.array import CODINGS

if TYPE_CHECKING:
    from ndfeed.dataset.column import Column
    from ndfeed.dataset.dataset import Dataset

_SHOWN_FIELDS = 100


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
    """How the bytes of some fields are stored."""
    columns = {column.field.name: column for group in ds.groups for column in group.columns}
    return {
        name: ", ".join(CODINGS[c] for c in np.unique(columns[name].coding).tolist())
        for name in names
        if name in columns
    }


def reading(ds: "Dataset") -> str:
    """How samples were understood, and why."""
    columns = [column for group in ds.groups for column in group.columns]
    # What is computed beside files says nothing, unless all was loaded into memory.
    found = [c.whole[_in_files(c)] for c in columns]
    found = found if any(map(len, found)) else [c.whole for c in columns]
    kinds = {bool(one) for whole in found if len(whole) for one in (whole.min(), whole.max())}
    words = {
        frozenset((True,)): "a sample is a whole file",
        frozenset((False,)): "a sample is a row of axis 0",
        frozenset((True, False)): "samples are rows of some files and others whole",
    }
    return f"{words.get(frozenset(kinds), 'no samples')} ({ds.why})"


def _in_files(column: "Column") -> NDArray[np.bool_]:
    """Per part of a column: is it in a file?"""
    memory = np.array([name == "memory" for name in column.table.formats], bool)
    return ~memory[column.table.format[column.file]]


def table(ds: "Dataset") -> str:
    """The text that ``repr`` gives."""
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
    if ds.steps:
        foot.append(f"  then {len(ds.steps)} step{'s' * (len(ds.steps) != 1)} on every batch")
    return "\n".join([head, *rows, *foot])
