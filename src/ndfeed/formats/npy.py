"""The .npy format, versions 1.0, 2.0 and 3.0.

    offset  bytes  content
    0       6      magic, b"\\x93NUMPY"
    6       2      version, major and minor
    8       2 / 4  H, length of the header, little-endian: 2 bytes in 1.0, 4 in 2.0 and 3.0
    10 / 12 H      header: a Python dict literal in Latin-1 (UTF-8 in 3.0) with exactly the
                   keys descr, fortran_order and shape
    …              elements, C or Fortran order

Differences to NumPy, on purpose: the header may have up to 256 KiB, since no compiler sees it
(NumPy stops at 10,000 characters, or at none with ``allow_pickle``); object arrays are refused
always; a structured array is described as one array per leaf field, with strides.

The same module reads .npy streams inside other containers: ``header_bytes`` says how much of
one to fetch, ``arrays`` what it holds.
"""

import math
import re
from functools import lru_cache
from typing import NamedTuple

from ndfeed.errors import FormatError, LimitError, TruncatedError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats.array import (
    MOST_DIMENSIONS,
    NO_CRC,
    RAW,
    Array,
    Description,
    bare,
    fortran_strides,
)
from ndfeed.formats.literal import Literal, parse
from ndfeed.formats.types import canonical, itemsize

MAGIC = b"\x93NUMPY"
PREFIX = 12
MOST_HEADER = 256 * 1024
_MOST_FIELDS = 4096
_MOST_KNOWN = 1024

_COMMON = re.compile(
    r"\{'descr': '([<>|][a-zA-Z][0-9]{1,3})', 'fortran_order': (True|False), "
    r"'shape': \(([0-9, ]*)\), \} *\n?"
)
_FORTRAN = (
    "Fortran order: one row is scattered over the whole array; np.ascontiguousarray before "
    "saving makes reading rows many times faster"
)
_REMEDY_OBJECTS = (
    "holds Python objects (pickled), which are never unpickled; save the numbers instead: "
    "np.savez(path, name=array, …) for a dict, a rectangular or padded array for a list"
)


class Leaf(NamedTuple):
    """One field of an element: its name, type, own shape, and place within the element."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int


class Header(NamedTuple):
    """What a .npy header says. ``size`` is that of one element, ``leaves`` its fields."""

    leaves: tuple[Leaf, ...]
    size: int
    fortran: bool
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * math.prod(self.shape)


def describe(file: File) -> Description:
    """The arrays of a .npy file: one, or one per leaf of a structured dtype."""
    start, header = read_header(file)
    found, notes = arrays(file.path, "", header, offset=0, length=file.size, skip=start)
    spare = file.size - start - header.nbytes
    if spare:
        notes += (f"{spare} bytes behind the array are ignored",)
    return Description("npy", found, notes)


def read_header(file: File) -> tuple[int, Header]:
    """Length of the preamble and what it says."""
    start = header_bytes(file.path, file.read(0, min(PREFIX, file.size)), file.size)
    return start, header_of(file.path, file.read(0, start))


def header_bytes(path: bytes, prefix: bytes, size: int, at: int = 0) -> int:
    """Length of magic, version and header, from the first ``PREFIX`` of ``size`` bytes."""
    if len(prefix) < PREFIX:
        raise TruncatedError(path, f"a .npy header expected, {len(prefix)} bytes present", at)
    version = prefix[6], prefix[7]
    if version == (1, 0):
        start = 10 + int.from_bytes(prefix[8:10], "little")
    elif version in ((2, 0), (3, 0)):
        start = 12 + int.from_bytes(prefix[8:12], "little")
    else:
        raise UnsupportedError(
            path, f".npy version 1.0, 2.0 or 3.0 expected, found {version[0]}.{version[1]}", at
        )
    if start > MOST_HEADER:
        raise LimitError(
            path, f"a header of at most {MOST_HEADER} bytes expected, found {start}", at
        )
    if start > size:
        raise TruncatedError(path, f"a header of {start} bytes promised, {size} present", at)
    return start


def header_of(path: bytes, preamble: bytes, at: int = 0) -> Header:
    """What a whole preamble (magic, version, header) says."""
    try:
        return _known(preamble) if len(preamble) <= _MOST_KNOWN else _header(preamble)
    except UnsupportedError as error:  # raised with no path: one memo serves all files
        raise UnsupportedError(path, error.problem, at or None) from None
    except ValueError as error:
        raise FormatError(path, f"the .npy header is wrong: {error}", at or None) from None


def _header(preamble: bytes) -> Header:
    start = 10 if preamble[6] == 1 else 12
    try:
        text = preamble[start:].decode("utf-8" if preamble[6] == 3 else "latin-1")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    if match := _COMMON.fullmatch(text):
        descr, fortran, dims = match.groups()
        parts = [part.strip() for part in dims.split(",")]
        if all(parts[:-1]) and (len(parts) > 1 or not parts[0]) and "" not in parts[:-1]:
            dtype = canonical(descr) if descr[1] != "O" else _refuse_objects()
            shape = _checked_shape(tuple(int(part) for part in parts if part))
            return Header((Leaf("", dtype, (), 0),), itemsize(dtype), fortran == "True", shape)
    return _from_literal(parse(text))


# Files of one folder mostly share their header to the byte, so it is parsed once.
_known = lru_cache(maxsize=4096)(_header)


def _refuse_objects() -> str:
    raise UnsupportedError("", _REMEDY_OBJECTS)


def _from_literal(value: Literal) -> Header:
    if not isinstance(value, dict) or set(value) != {"descr", "fortran_order", "shape"}:
        raise ValueError("a dict with the keys descr, fortran_order and shape expected")
    fortran, shape = value["fortran_order"], value["shape"]
    if not isinstance(fortran, bool):
        raise ValueError(f"fortran_order must be True or False, got {fortran!r}")
    if not isinstance(shape, tuple):
        raise ValueError(f"shape must be a tuple, got {shape!r:.80}")
    leaves, size, outer = _element(value["descr"])
    return Header(tuple(leaves), size, fortran, _checked_shape(shape + outer))


def _checked_shape(shape: tuple[Literal, ...]) -> tuple[int, ...]:
    if len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"at most {MOST_DIMENSIONS} dimensions expected, found {len(shape)}")
    for n in shape:
        if not isinstance(n, int) or isinstance(n, bool) or not 0 <= n < 1 << 63:
            raise ValueError(f"lengths must be whole numbers in [0, 2**63), got {n!r:.80}")
    if math.prod(n or 1 for n in shape) >= 1 << 63:  # type: ignore[misc]
        raise ValueError("more than 2**63 elements")
    return shape  # type: ignore[return-value]


def _element(descr: Literal) -> tuple[list[Leaf], int, tuple[int, ...]]:
    """The leaves of an element type, its size, and the shape of a top-level sub-array."""
    if isinstance(descr, tuple) and len(descr) == 2 and isinstance(descr[1], (tuple, int)):
        inner, shape = descr
        leaves, size, outer = _element(inner)
        return leaves, size, _checked_shape(shape if isinstance(shape, tuple) else (shape,)) + outer
    leaves, size = _leaves("", descr, 0)
    if not leaves:
        raise ValueError("a structured dtype without fields")
    return leaves, size, ()


def _leaves(name: str, descr: Literal, start: int) -> tuple[list[Leaf], int]:
    """Every leaf below one descr, with names joined by "/", and the bytes it takes."""
    if isinstance(descr, str):
        if descr.lstrip("<>|=") == "O":
            _refuse_objects()
        dtype = canonical(descr)
        return [Leaf(name, dtype, (), start)], itemsize(dtype)
    if not isinstance(descr, list):
        raise ValueError(f"not a dtype: {descr!r:.80}")
    leaves: list[Leaf] = []
    size = 0
    for entry in descr:
        found, width = _entry(name, entry, start + size)
        leaves += found
        size += width
        if len(leaves) > _MOST_FIELDS:
            raise ValueError(f"at most {_MOST_FIELDS} fields expected")
    names = [leaf.name for leaf in leaves]
    if len(set(names)) != len(names):
        raise ValueError("two fields of one name")
    if size == 0:
        raise ValueError("a structured dtype of no bytes")
    return leaves, size


def _entry(name: str, entry: Literal, start: int) -> tuple[list[Leaf], int]:
    """The leaves of one entry of a structured descr, and the bytes it takes."""
    if not isinstance(entry, tuple) or len(entry) not in (2, 3):
        raise ValueError(f"(name, type) or (name, type, shape) expected, found {entry!r:.80}")
    title, kind = entry[0], entry[1]
    own = title[1] if isinstance(title, tuple) and len(title) == 2 else title
    if not isinstance(own, str):
        raise ValueError(f"a field name expected, found {own!r:.80}")
    shape: tuple[int, ...] = ()
    if len(entry) == 3:
        given = entry[2]
        shape = _checked_shape(given if isinstance(given, tuple) else (given,))
    if own == "" and isinstance(kind, str) and re.fullmatch(r"[|<>=]?V[0-9]{1,9}", kind):
        return [], int(kind.lstrip("|<>=")[1:])  # padding
    below, width = _leaves(bare(name, own), kind, start)
    if len(below) > 1 and math.prod(shape) != 1:
        raise UnsupportedError(
            "", f"field {own!r} is an array of structures; save its parts as arrays of their own"
        )
    if len(below) == 1:
        below = [below[0]._replace(shape=shape + below[0].shape)]
    return below, width * math.prod(shape)


def arrays(
    path: bytes,
    name: str,
    header: Header,
    *,
    offset: int,
    length: int,
    skip: int,
    coding: int = RAW,
    crc: int = NO_CRC,
    decoded: int | None = None,
) -> tuple[tuple[Array, ...], tuple[str, ...]]:
    """Descriptions of the array that ``header`` announces, and remarks on it.

    ``decoded`` is the length of the decoded stream where the container tells it.
    """
    held = length if coding == RAW else decoded
    if held is not None and skip + header.nbytes > held:
        raise TruncatedError(
            path, f"{skip + header.nbytes} bytes promised by the header, {held} present"
        )
    found: list[Array] = []
    order = fortran_strides(header.shape, header.size) if header.fortran else None
    whole = len(header.leaves) == 1 and not header.leaves[0].name
    for leaf in header.leaves:
        strides = order
        if not whole or (order and leaf.shape):
            outer = order or _c_strides(header.shape, header.size)
            strides = outer + _c_strides(leaf.shape, itemsize(leaf.dtype))
        found.append(
            Array(
                bare(name, leaf.name) if leaf.name else name,
                leaf.dtype,
                header.shape + leaf.shape,
                offset,
                length,
                skip + leaf.start,
                coding,
                strides,
                crc,
                decoded or 0,
            )
        )
    return tuple(found), (_FORTRAN,) if order else ()


def _c_strides(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    strides = []
    for n in reversed(shape):
        strides.append(size)
        size *= n
    return tuple(reversed(strides))
