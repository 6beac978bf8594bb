"""From a description to the bytes it stands for.

For tests of formats: the library's own reading is tested elsewhere, so a description is turned
into bytes here by NumPy alone, which refuses a view that leaves its buffer.
"""

import os
from pathlib import Path

import numpy as np

from ndfeed.files.file import File
from ndfeed.formats import detect, ziparchive
from ndfeed.formats.description import INLINE, LATIN1
from ndfeed.formats.dtypes import itemsize


def describe(path):
    """What the format that claims the file says about it."""
    with File(os.fsencode(path)) as file:
        return detect.describe(file)


def arrays(path):
    """The described arrays by name."""
    return {array.name: array for array in describe(path).arrays}


def content(array, raw):
    """The elements of ``array`` in C order, from the bytes of its file."""
    size = itemsize(array.dtype)
    stream = raw[array.offset : array.offset + array.length] if array.coding != INLINE else b""
    if array.coding == INLINE:
        assert array.shape == ()
        assert array.length == 0
        stream = array.offset.to_bytes(8, "little", signed=True)[:size]
    else:
        assert len(stream) == array.length
    if array.coding == LATIN1:
        stream = stream.decode().encode("latin-1")
        assert len(stream) == array.decoded
    if 0 in array.shape:
        return b""
    return np.ndarray(array.shape, f"V{size}", stream, array.skip, array.strides).tobytes()


def contents(path):
    """Dtype, shape and bytes of every array of a file, by name."""
    raw = Path(path).read_bytes()
    return {a.name: (a.dtype, a.shape, content(a, raw)) for a in describe(path).arrays}


def members(path):
    """The members of an archive as ``zip`` lists them."""
    with File(os.fsencode(path)) as file:
        return {member.name: member for member in ziparchive.members(file)[0]}
