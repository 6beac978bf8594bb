"""Combine CRC-32 checksums, and check the blocks of packed columns.

The CRC-32 of joined bytes is computed from those of the two pieces, also without isal. Appending
a zero bit to a message is a linear map of its checksum over GF(2), so appending n of them is a
product of such maps: one for each bit of n, each the square of the one before.

The blocks of a packed column are numbered as in the manifest's list of checksums: block 0 is the
header, block i the rows [(i - 1) * k, i * k), with k rows per block. They are read by position in
pieces of bounded size, so a block may be larger than memory; reading and checking release the GIL.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import SourceError, TruncatedError
from ndfeed.files.file import File
from ndfeed.formats.inflate import crc32, engine
from ndfeed.formats.manifest import Column

_POLYNOMIAL = 0xEDB88320
_Matrix = list[int]


def combine_crc32(first: int, second: int, length: int) -> int:
    """Return the checksum of bytes with checksum ``first``, then ``length`` with ``second``."""
    power = _square(_square([_POLYNOMIAL, *(1 << bit for bit in range(31))]))
    while length:
        power = _square(power)
        if length & 1:
            first = _times(power, first)
        length >>= 1
    return first ^ second


def _times(matrix: _Matrix, vector: int) -> int:
    found = 0
    for column in matrix:
        if not vector:
            break
        if vector & 1:
            found ^= column
        vector >>= 1
    return found


def _square(matrix: _Matrix) -> _Matrix:
    return [_times(matrix, column) for column in matrix]


combined: Callable[[int, int, int], int] = getattr(engine, "crc32_combine", combine_crc32)


_PIECE = 512 << 10

Look = Callable[[int, NDArray[np.uint8]], None]


def block_span(column: Column, row_bytes: int, block: int) -> tuple[int, int]:
    """Return the bytes [start, end) of a block."""
    if block == 0:
        return 0, column.header
    first, last = block_rows(column, block)
    return column.header + first * row_bytes, column.header + last * row_bytes


def block_rows(column: Column, block: int) -> tuple[int, int]:
    """Return the rows [first, last) of a block other than the header."""
    first = (block - 1) * column.rows_per_block
    return first, min(first + column.rows_per_block, column.rows)


def find_damaged(
    file: File, column: Column, row_bytes: int, blocks: Iterable[int], look: Look | None = None
) -> list[int]:
    """Return those of ``blocks`` that are unreadable or whose checksum is not the manifest's.

    ``look`` is called with the number of a block and every piece of it.
    """
    memory = np.empty(_PIECE, np.uint8)
    found = []
    for block in blocks:
        start, end = block_span(column, row_bytes, block)
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
    """Yield the bytes [start, end) in pieces, reusing the same memory."""
    for at in range(start, end, len(memory)):
        piece = memory[: min(len(memory), end - at)]
        file.read_into(at, [piece.data])
        yield piece
