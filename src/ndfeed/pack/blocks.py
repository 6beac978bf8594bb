"""The offsets of a ragged column: do they rise, and to which samples do values belong?

Where blocks of a column lie and which are damaged is in ``formats.blocks``.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ndfeed.files.file import File
from ndfeed.formats.blocks import damaged as damaged
from ndfeed.formats.blocks import rows as rows
from ndfeed.formats.blocks import span as span
from ndfeed.formats.manifest import Column
from ndfeed.index.table import Ints


class Order:
    """Watches the offsets of a ragged column: do they rise from 0 to ``values``?

    For blocks that several threads read in any order, each block in one piece after the other.
    """

    def __init__(self, column: Column, values: int) -> None:
        self._values = values
        self._first: Ints = np.zeros(column.blocks + 1, np.int64)
        self._last: Ints = np.full(column.blocks + 1, -1)
        self._falls = np.zeros(column.blocks + 1, bool)

    def look(self, block: int, piece: NDArray[np.uint8]) -> None:
        """See a piece of a block."""
        if block == 0 or not len(piece):
            return
        numbers = piece.view("<i8")
        if self._last[block] < 0:
            self._first[block] = numbers[0]
        elif numbers[0] < self._last[block]:
            self._falls[block] = True
        self._falls[block] |= bool((numbers[1:] < numbers[:-1]).any())
        self._last[block] = numbers[-1]

    def wrong(self) -> list[int]:
        """Blocks whose offsets do not follow on those before, when all have been seen."""
        falls = self._falls
        falls[1] |= bool(self._first[1] != 0)
        falls[2:] |= self._first[2:] < self._last[1:-1]
        falls[-1] |= bool(self._last[-1] != self._values)
        return np.flatnonzero(falls).tolist()


class Offsets(Sequence[int]):
    """Offsets in an open file, read one at a time: to search among them, however many."""

    def __init__(self, file: File, column: Column) -> None:
        self._file = file
        self._column = column

    def __len__(self) -> int:
        return self._column.rows

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        data = self._file.read(self._column.header + 8 * index, 8)
        return int.from_bytes(data, "little", signed=True)

    def samples(self, first: int, last: int) -> tuple[int, int]:
        """The samples [a, b) to which the values [first, last) belong."""
        begin = max(bisect_right(self, first) - 1, 0)
        return begin, max(min(bisect_left(self, last), len(self) - 1), begin)
