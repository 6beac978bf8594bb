"""From a description to the bytes it stands for, and a watch over what parsing may not do.

For tests of formats: the library's own reading is tested elsewhere, so a description is turned
into bytes here by NumPy alone, which refuses a view that leaves its buffer.
"""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from ndfeed.files.file import File
from ndfeed.formats import detect, zip
from ndfeed.formats.array import INLINE, LATIN1
from ndfeed.formats.types import itemsize

FORBIDDEN = ("import", "compile", "exec", "open", "marshal.", "pickle.", "subprocess.", "socket.")
FORBIDDEN += ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "ctypes.", "code.")
"".encode("cp437")  # old zip names: loads its table at first use, which is an import
_watching = False
_seen: list[str] = []


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
        return {member.name: member for member in zip.members(file)[0]}


def _hook(event, args):
    if _watching and event.startswith(FORBIDDEN):
        _seen.append(f"{event} {args!r:.200}")
        raise RuntimeError(f"forbidden while parsing: {event}")


sys.addaudithook(_hook)


@contextmanager
def watch():
    """Fail on imports, code, processes, sockets and opened files inside the block."""
    global _watching
    _seen.clear()
    _watching = True
    try:
        yield
    finally:
        _watching = False
        assert not _seen, _seen


@st.composite
def damaged(draw, samples):
    """One of ``samples`` after a few flips, cuts, insertions, deletions and splices."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(("flip", "set", "cut", "insert", "delete", "splice")))
        if how in ("flip", "set") and at < len(data):
            data[at] = data[at] ^ (1 << at % 8) if how == "flip" else draw(st.integers(0, 255))
        elif how == "cut":
            del data[at:]
        elif how == "insert":
            data[at:at] = draw(st.binary(max_size=12))
        elif how == "delete":
            del data[at : at + draw(st.integers(1, 12))]
        elif how == "splice":
            start = draw(st.integers(0, len(data)))
            data[at:at] = data[start : start + draw(st.integers(1, 40))]
    return bytes(data)
