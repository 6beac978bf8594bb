"""Where crops lie: which case each of them is of, and where it starts, computed from its number."""

from dataclasses import replace

import numpy as np

from ndfeed.dataset.column import Computed, Field, Group, Place
from ndfeed.dataset.in_memory import make_constant
from ndfeed.dataset.row_selection import Rows, Runs, select_rows
from ndfeed.index.table import Ints

CASE, CORNER = "case", "corner"


class Corners:
    """Computes where crops start from their numbers."""

    def __init__(self, places: Ints) -> None:
        self._places = places

    def __call__(self, place: Place) -> Ints:
        """Return the corner of each crop."""
        rest, found = place.row, []
        for axis in reversed(range(self._places.shape[1])):
            rest, at = np.divmod(rest, self._places[place.part, axis])
            found.append(at)
        return np.stack(found[::-1], axis=1)


class Cases:
    """Computes which case crops are of from their numbers."""

    def __init__(self, runs: Runs, rows: Rows) -> None:
        self._runs = runs
        self._rows = None if rows is None else select_rows(rows, np.arange(len(rows)))
        self._order = None if self._rows is None else np.argsort(self._rows, kind="stable")

    def __call__(self, place: Place) -> Ints:
        """Return the row of each crop's case, in the dataset that the crops were made of."""
        case: Ints = self._runs.first[place.part] + place.row // self._runs.counts[place.part]
        if self._rows is None or self._order is None:
            return case
        at = np.searchsorted(self._rows, case, sorter=self._order)
        return self._order[at]


def make_places(runs: Runs, rows: Rows, axes: int) -> Group:
    """Make the fields that say which of ``rows`` a crop is of, and where it starts."""
    fields = (
        Field(CASE, np.dtype(np.int64), (), "<i8"),
        Field(CORNER, np.dtype(np.int64), (axes,), "<i8"),
    )
    made = make_constant(fields, 1, 0)
    ways: tuple[Computed, ...] = Cases(runs, rows), Corners(runs.places)
    count = len(runs.first)
    columns = tuple(
        replace(
            column,
            arrays=np.repeat(column.arrays, count),
            whole=np.zeros(count, bool),
            computed=way,
            cut=column.field.name == CORNER,
        )
        for column, way in zip(made.columns, ways, strict=True)
    )
    return Group(runs.starts, columns, kind="crop")
