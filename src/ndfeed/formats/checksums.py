"""CRC-32 of bytes in two pieces, from those of the pieces: also where isal is not installed.

Appending a zero bit to a message is a linear map of its checksum over GF(2), so appending n of
them is a product of such maps: one for each bit of n, each the square of the one before.
"""

from collections.abc import Callable

from ndfeed.formats.inflate import engine

_POLYNOMIAL = 0xEDB88320
_Matrix = list[int]


def combined_slowly(first: int, second: int, length: int) -> int:
    """The checksum of bytes with checksum ``first``, then ``length`` with ``second``."""
    power = _squared(_squared([_POLYNOMIAL, *(1 << bit for bit in range(31))]))
    while length:
        power = _squared(power)
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


def _squared(matrix: _Matrix) -> _Matrix:
    return [_times(matrix, column) for column in matrix]


combined: Callable[[int, int, int], int] = getattr(engine, "crc32_combine", combined_slowly)
