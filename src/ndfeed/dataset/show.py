"""A dataset as text: a small table, how samples were understood, and why."""

from typing import TYPE_CHECKING

import numpy as np

from ndfeed.formats.array import CODINGS

if TYPE_CHECKING:
    from ndfeed.dataset.dataset import Dataset


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


def codings(ds: "Dataset") -> dict[str, str]:
    """How the bytes of each field are stored."""
    return {
        column.field.name: ", ".join(CODINGS[c] for c in np.unique(column.coding).tolist())
        for group in ds.groups
        for column in group.columns
    }


def reading(ds: "Dataset") -> str:
    """How samples were understood, and why."""
    kinds = {bool(w) for group in ds.groups for c in group.columns for w in np.unique(c.whole)}
    words = {
        frozenset((True,)): "a sample is a whole file",
        frozenset((False,)): "a sample is a row of axis 0",
        frozenset((True, False)): "samples are rows of some files and others whole",
    }
    return f"{words.get(frozenset(kinds), 'no samples')} ({ds.why})"


def table(ds: "Dataset") -> str:
    """The text that ``repr`` gives."""
    files = len(ds.files)
    head = (
        f"ndfeed.Dataset: {len(ds):,} sample{'s' * (len(ds) != 1)}, {size(ds.nbytes)}, "
        f"{files:,} file{'s' * (files != 1)}"
    )
    stored = codings(ds)
    lines = [("field", "dtype", "shape", "stored")]
    lines += [
        (field.name, field.dtype_text, field.shape_text, stored.get(field.name, ""))
        for field in ds.fields.values()
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    rows = [
        "  " + "  ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    foot = ["  " + reading(ds)]
    if ds.steps:
        foot.append(f"  then {len(ds.steps)} step{'s' * (len(ds.steps) != 1)} on every batch")
    return "\n".join([head, *rows, *foot])
