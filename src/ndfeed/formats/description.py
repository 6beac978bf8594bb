"""What a format module returns for a file: where its arrays are, never their values."""

from typing import NamedTuple

import numpy as np

# How the bytes of an array are stored. The numbers are on disk in the index: never reuse one.
RAW = 0  # uncompressed: any part can be read alone
DEFLATE = 1  # a raw deflate stream (a member of an npz)
GZIP = 2  # one or more gzip members
INLINE = 3  # a scalar of up to 8 bytes, stored in ``offset`` itself
LATIN1 = 4  # bytes written as UTF-8 text, one character per byte (NumPy arrays inside a .pt)
CODINGS = ("raw", "deflate", "gzip", "inline", "text")

# The formats of files. Cached tables have these names, or the first of them: add to the end.
FORMATS = (
    "npy", "npz", "npy.gz", "pt", "safetensors", "raw", "pt list", "memory", "megatron", "csr",
)  # fmt: skip

NO_CRC = -1
# One less than NumPy's own limit: a batch adds an axis.
MOST_DIMENSIONS = 31 if np.lib.NumpyVersion(np.__version__) < "2.0.0" else 63
MOST_BYTES = 1 << 63  # more than any array has: byte counts are signed 64-bit numbers
# Deflate cannot compress by more than 1032, so a larger ratio in a header is false.
MOST_RATIO = 1100


class Stream(NamedTuple):
    """Where an array's bytes are, as its container records it; see ``Array``."""

    offset: int
    length: int
    coding: int = RAW
    crc: int = NO_CRC
    decoded: int = 0

    @property
    def held(self) -> int:
        """Bytes of the stream when decoded."""
        return self.decoded if self.coding else self.length


class Array(NamedTuple):
    """One array in a file.

    Its stream is ``length`` bytes of the file from ``offset``. Decoded, the first element is
    ``skip`` bytes into the stream. ``strides`` are in bytes, ``None`` for C order. ``crc`` is
    that of the decoded stream, or ``NO_CRC``; ``decoded`` is that stream's length if it is
    compressed. ``dtype`` is a name that ``dtypes`` knows.
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


class Description(NamedTuple):
    """All arrays of one file, and remarks for users.

    Names are distinct, unless the format is "pt list": there each name occurs once per item.
    """

    format: str
    arrays: tuple[Array, ...]
    notes: tuple[str, ...] = ()
    narrowed: bool = False  # was something left out that cannot be read and was not requested?


BARE = "data"  # the field name of an array without a name
Wanted = frozenset[str]  # the names of the fields that a caller requested


def is_wanted(name: str, wanted: Wanted | None) -> bool:
    """Return whether array ``name`` is a requested field, or contains or belongs to one."""
    if wanted is None or not name or name in wanted:
        return True
    return any(one.startswith(f"{name}/") or name.startswith(f"{one}/") for one in wanted)


def c_strides(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the strides of an array in C order, with elements of ``size`` bytes."""
    strides = []
    for n in reversed(shape):
        strides.append(size)
        size *= n
    return tuple(reversed(strides))


def fortran_strides(shape: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    """Return the strides of a Fortran-ordered array, ``None`` if C order has the same."""
    if sum(n != 1 for n in shape) <= 1 or 0 in shape:
        return None
    strides = []
    for n in shape:
        strides.append(size)
        size *= n
    return tuple(strides)


def bare(name: str, key: str) -> str:
    """Return the field name of part ``key`` of array ``name``, which is empty for a bare array."""
    return f"{name}/{key}" if name else key
