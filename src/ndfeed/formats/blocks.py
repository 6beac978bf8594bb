"""The blocks of one column of a packed dataset: where they lie, and which of them are damaged.

Block 0 is the header, block i the rows [(i - 1) * k, i * k) with k rows to a block, as in the
manifest's list of checksums. They are read by position in pieces of bounded size, so a block may
be larger than memory; reading and checking let other threads run.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import SourceError, TruncatedError
from ndfeed.files.file import File
from ndfeed.formats.inflate import crc32
from ndfeed.formats.manifest import Column

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
    file: File, column: Column, row_bytes: int, blocks: Iterable[int], look: Look | None = None
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
