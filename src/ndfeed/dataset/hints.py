"""What a caller probably meant: text for errors."""

import os
import re

import numpy as np

from ndfeed.errors import shown
from ndfeed.index.table import Table

_MOST_FILES = 8
_DIGITS = re.compile(r"\d+")


def separate_fields(table: Table) -> str:
    """The call that opens a few .npy files of different names as the fields of one dataset.

    Nothing where there are many files, or they are numbered: those are of one kind.
    """
    if not 2 <= table.files <= _MOST_FILES or table.names != ("",):
        return ""
    paths = [os.fsdecode(path) for path in table.paths_of(np.arange(table.files))]
    stems = [os.path.basename(path).partition(".")[0] for path in paths]
    if len({_DIGITS.sub("", stem) for stem in stems}) < len(stems):
        return ""
    # X_train and y_train are "x" and "y", and belong apart from X_test and y_test.
    rest = stems[0].partition("_")[2]
    chosen = {
        stem.partition("_")[0].lower(): path
        for stem, path in zip(stems, paths, strict=True)
        if stem.partition("_")[2] == rest
    }
    if len(chosen) < 2:
        chosen = dict(zip(stems, paths, strict=True))
    fields = ", ".join(f'"{shown(name)}": "{shown(path)}"' for name, path in chosen.items())
    return f"if each file is a field, write ndfeed.open({{{fields}}})"
