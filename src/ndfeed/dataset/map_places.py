"""Chooses where files are mapped, so that the rows of many files form one array.

``np.take`` gathers rows from an array without the GIL, straight into the batch. Rows of several
mapped files form such an array if they lie whole rows apart: if their addresses have the same
remainder modulo their size. Maps begin at pages, but at which pages can be chosen. Where that does
not help, as rows begin at odd places in some files, pieces of rows may still lie that way.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Group, Place
from ndfeed.files.map_room import Places, can_place
from ndfeed.files.maps import Maps, Records
from ndfeed.files.platform_calls import PAGE
from ndfeed.index.table import Ints

LARGE_ROW = 16 << 10  # bytes above which one copy per row is as fast as one call for all
_MOST_PIECES = 4  # of a row: more are slower than to index by address


class Pieces:
    """Pieces of ``size`` bytes that all rows of all files of a column consist of.

    Their addresses have a common ``remainder`` modulo their size. Thread-safe.
    """

    def __init__(self, column: Column, size: int, remainder: int) -> None:
        self.size, self.remainder = size, remainder
        self._column = column
        self._per_row = column.pitch // size
        self._steps = np.arange(column.size // size)
        # The first piece of every part, and of which records: replaced as one object.
        self._known: tuple[Records, Ints] | None = None

    def find(self, maps: Maps, place: Place, file: Ints) -> tuple[NDArray[np.void], Ints]:
        """Return all pieces, and the numbers of those of some rows, whose files were entered."""
        found = maps.records(self.size, self.size, self.remainder)
        number = place.row * self._per_row if self._per_row > 1 else place.row
        number = number + self._find_first(maps, found, place, file)
        if len(self._steps) > 1:
            number = (number[:, None] + self._steps).reshape(-1)
        return found[1], number

    def _find_first(self, maps: Maps, records: Records, place: Place, file: Ints) -> Ints:
        """Return the first piece of each row's part."""
        known, column = self._known, self._column
        # Whenever a file is mapped, there are other records: these have all files of ``place``.
        if known is None or known[0] is not records:
            if len(column.first) > len(place.row):
                address = maps.address[file] + column.first[place.part]
                return (address - records[0]) // self.size
            first = (maps.address[column.file] + column.first - records[0]) // self.size
            self._known = known = records, first
        return known[1][place.part]


def place_files(group: Group) -> Places | None:
    """Choose where files are mapped: such that the largest rows lie whole rows apart."""
    columns = [c for c in group.columns if _is_short(c) and c.pitch == c.size]
    if len(group.starts) <= 2 or not columns:
        return None
    column = max(columns, key=lambda one: one.size)
    if not can_place(column.size):
        return None
    remainder = np.zeros(group.table.files, np.int64)
    # Maps begin at pages, so rows do at what divides both a page and a row.
    common = math.gcd(column.size, PAGE)
    remainder[column.file] = (column.first[0] - column.first) // common * common
    return Places(column.size, remainder % column.size)


def _is_short(column: Column) -> bool:
    return column.plain and 0 < column.size <= LARGE_ROW


def find_pieces(column: Column, maps: Maps | None) -> Pieces | None:
    """Return the pieces that rows of a plain column consist of; ``None`` if they are too small."""
    if maps is None or not (_is_short(column) and len(column.first)):
        return None
    pages = Places(PAGE, np.zeros(column.table.files, np.int64))
    size, remainder = max(_find_common(column, one) for one in (pages, maps.places or pages))
    return Pieces(column, size, remainder) if column.size // size <= _MOST_PIECES else None


def _find_common(column: Column, places: Places) -> tuple[int, int]:
    """Return the largest size and the remainder that all rows have in common."""
    first = column.first + places.remainder[column.file]
    common = math.gcd(column.size, column.pitch, places.step)
    size = int(np.gcd.reduce(first - first[0], initial=common))
    return size, int(first[0]) % size
