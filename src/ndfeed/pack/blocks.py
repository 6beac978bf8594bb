"""The blocks of one column: where they lie, and which of them are damaged.

Block 0 is the header, block i the rows [(i - 1) * k, i * k) with k rows to a block, as in the
manifest's list of checksums. They are read by position in pieces of bounded size, so a block may
be larger than memory; reading and checking let other threads run.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import SourceError, TruncatedError
from ndfeed.files.file import File
from ndfeed.formats.inflate import crc32
from ndfeed.formats.manifest import Column
from ndfeed.index.table import Ints

_PIECE = 512 << 10

Look = Callable[[int, NDArray[np.uint8]], None]


def span(column: Column, row_bytes: int, block: int) -> tuple[int, int]:
    """The bytes [start, end) of a block."""
    if block == 0:
        return 0, column.header
    first, last = rows(column, block)
    return column.header + first * row_bytes, column.header + last * row_bytes


def rows(column: Column, block: int) -> tuple[int, int]:
    """The rows [first, last) of a block other than the header."""
    first = (block - 1) * column.rows_per_block
    return first, min(first + column.rows_per_block, column.rows)


def damaged(
    file: File, column: Column, row_bytes: int, blocks: range, look: Look | None = None
) -> list[int]:
    """Those of ``blocks`` that cannot be read or have another checksum than the manifest's.

    ``look`` is shown every piece of a block with the block's number.
    """
    memory = np.empty(_PIECE, np.uint8)
    found = []
    for block in blocks:
        start, end = span(column, row_bytes, block)
        try:
            checksum = 0
            for piece in _pieces(file, start, end, memory):
                checksum = crc32(piece, checksum)
                if look is not None:
                    look(block, piece)
        except (SourceError, TruncatedError):
            found.append(block)
            continue
        if checksum != column.checksum(block):
            found.append(block)
    return found


def _pieces(
    file: File, start: int, end: int, memory: NDArray[np.uint8]
) -> Iterator[NDArray[np.uint8]]:
    """The bytes [start, end), in turn in the same memory."""
    for at in range(start, end, len(memory)):
        piece = memory[: min(len(memory), end - at)]
        file.read_into(at, [piece.data])
        yield piece


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
