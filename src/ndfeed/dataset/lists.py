"""Files that hold a list of like things, which are rows, or one sample with a field for each.

In the table such a file has the format "pt list", and its arrays are named within their item: a
list of 20 dicts with the keys "x" and "y" has 20 arrays "x" and 20 arrays "y", item by item. Read
as a whole file, each array is a field of its own, with the position before its name.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ndfeed.formats.array import bare
from ndfeed.index.table import Ints, Table

_FORMAT = "pt list"


def are_lists(table: Table) -> NDArray[np.bool_] | None:
    """Per file: is it a list of like things? Nothing where no file is."""
    if _FORMAT not in table.formats:
        return None
    found = table.format == table.formats.index(_FORMAT)
    return found if found.any() else None


def count_items(table: Table, lists: NDArray[np.bool_]) -> Ints:
    """Per file: how many items its list has; 1 for other files."""
    first = np.searchsorted(table.file, np.arange(table.files))
    alike = table.name == table.name[first][table.file]  # the first array's name: once per item
    counts = np.bincount(table.file[alike], minlength=table.files)
    return np.where(lists, counts, 1)


def by_position(table: Table, lists: NDArray[np.bool_]) -> Table:
    """The table with every array of a list named by its position too: ``3``, or ``3/x``."""
    counts = np.bincount(table.file, minlength=table.files)
    place = np.arange(len(table.file)) - (np.cumsum(counts) - counts)[table.file]
    item = place // np.maximum(counts // count_items(table, lists), 1)[table.file]
    item[~lists[table.file]] = -1
    names: dict[str, int] = {}
    numbers = [
        names.setdefault(table.names[n] if i < 0 else _named(i, table.names[n]), len(names))
        for i, n in zip(item.tolist(), table.name.tolist(), strict=True)
    ]
    return replace(table, name=np.array(numbers, np.int32), names=tuple(names))


def _named(item: int, name: str) -> str:
    return bare(str(item), name) if name else str(item)
