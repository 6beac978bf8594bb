"""What a format module says about a file: where its arrays lie, never what they hold."""

import math
from typing import NamedTuple

from ndfeed.formats.types import itemsize

# How the bytes of an array are stored. The numbers are on disk in the index: never reuse one.
RAW = 0  # as they are: any part can be read alone
DEFLATE = 1  # a raw deflate stream (a member of an npz)
GZIP = 2  # one or more gzip members
INLINE = 3  # a scalar of up to 8 bytes, kept in ``offset`` itself
LATIN1 = 4  # bytes written as UTF-8 text, one character a byte (NumPy arrays inside a .pt)
CODINGS = ("raw", "deflate", "gzip", "inline", "text")

NO_CRC = -1
MOST_DIMENSIONS = 64


class Array(NamedTuple):
    """One array in a file.

    Its stream is ``length`` bytes of the file from ``offset``. Decoded, the first element lies
    ``skip`` bytes into the stream. ``strides`` are in bytes, ``None`` for C order. ``crc`` is
    that of the decoded stream, or ``NO_CRC``; ``decoded`` is that stream's length where it is
    compressed. ``dtype`` is a name that ``types`` knows.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    skip: int = 0
    coding: int = RAW
    strides: tuple[int, ...] | None = None
    crc: int = NO_CRC
    decoded: int = 0

    @property
    def extent(self) -> int:
        """Bytes from the first element to behind the last, as stored when decoded."""
        size = itemsize(self.dtype)
        if 0 in self.shape:
            return 0
        if self.strides is None:
            return size * math.prod(self.shape)
        return size + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))


class Description(NamedTuple):
    """All arrays of one file, and remarks a person may want to read."""

    format: str
    arrays: tuple[Array, ...]
    notes: tuple[str, ...] = ()


def fortran_strides(shape: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    """Strides of a Fortran-ordered array, ``None`` where C order is the same thing."""
    if sum(n != 1 for n in shape) <= 1 or 0 in shape:
        return None
    strides = []
    for n in shape:
        strides.append(size)
        size *= n
    return tuple(strides)


def bare(name: str, key: str) -> str:
    """The field name of part ``key`` of array ``name``; the bare array has no name."""
    return f"{name}/{key}" if name else key
