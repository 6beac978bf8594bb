"""The .npy format, versions 1.0, 2.0 and 3.0.

    offset  bytes  content
    0       6      magic, b"\\x93NUMPY"
    6       2      version, major and minor
    8       2 / 4  H, length of the header, little-endian: 2 bytes in 1.0, 4 in 2.0 and 3.0
    10 / 12 H      header: a Python dict literal in Latin-1 (UTF-8 in 3.0) with exactly the
                   keys descr, fortran_order and shape
    …              elements, C or Fortran order; anything after them is ignored

Intentional differences from NumPy:

- The header may have up to 256 KiB, without an option: it is never compiled. (NumPy stops at
  10,000 characters because of Python's compiler, and has no limit with ``allow_pickle``.)
- Object arrays are always refused, with a remedy.
- A structured array is described as one array per leaf field, with strides; nested names are
  joined by "/". Entire records are not available; use ``np.load`` if you need them. Fields without
  a name are refused.
- Elements of zero bytes (``|S0``, ``|V0``) are refused: a header alone could announce 10**15 of
  them. So are arrays of rank 64, since a batch has one axis more.
- ``10L``, as Python 2 wrote it, causes no warning, and is read in 3.0 as well.
- Some types that ml_dtypes writes and NumPy cannot read: see ``dtypes``.

The same module reads .npy streams inside other containers: ``header_bytes`` returns how much of
one to fetch, ``header_of`` parses it, ``arrays`` returns where its arrays are.
"""

import math
import re
from functools import lru_cache
from typing import NamedTuple, cast

from ndfeed.errors import FormatError, LimitError, TruncatedError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats.description import (
    MOST_BYTES,
    MOST_DIMENSIONS,
    RAW,
    Array,
    Description,
    Stream,
    bare,
    c_strides,
    fortran_strides,
)
from ndfeed.formats.dtypes import UnknownDtypeError, canonical, itemsize
from ndfeed.formats.untrusted_text import Literal, parse

MAGIC = b"\x93NUMPY"
PREFIX = 12
MOST_HEADER = 256 * 1024
_MOST_FIELDS = 4096
_MOST_NAME = 1024
_MOST_KNOWN = 1024
_MOST_DIGITS = 21

_COMMON = re.compile(
    r"\{'descr': '([<>|][a-zA-Z][0-9]{1,3})', 'fortran_order': (True|False), "
    r"'shape': \(((?:(?:0|[1-9][0-9]{0,39}), ?)*)(0|[1-9][0-9]{0,39})?\), \} *\n?"
)
_NUMBER = re.compile("[0-9]+")
_PADDING = re.compile(r"[|<>=]?V([0-9]{1,9})")
_FORTRAN = (
    "Fortran order: one row is scattered over the whole array; np.ascontiguousarray before "
    "saving makes reading rows many times faster"
)
_OBJECTS = "holds Python objects (pickled), which are never unpickled"
_NUMBERS = (
    "save the numbers instead: np.savez(path, name=array, …) for a dict, a rectangular or padded "
    "array for a list"
)
_KNOWN_DTYPE = "save it again in a dtype that NumPy reads on every machine"


class Leaf(NamedTuple):
    """One field of an element: its offset and shape, with strides in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    strides: tuple[int, ...]


class Header(NamedTuple):
    """A parsed preamble of ``length`` bytes, followed by ``nbytes`` of elements.

    ``alone`` describes a .npy file that ends with them.
    """

    length: int
    nbytes: int
    alone: Description


class Element(NamedTuple):
    """The type of an element. ``filled``: does a single leaf cover every byte?"""

    leaves: tuple[Leaf, ...]
    size: int
    filled: bool


def describe(file: File) -> Description:
    """Describe the arrays of a .npy file: one, or one per leaf of a structured dtype."""
    head = file.head()
    length = header_bytes(file.path, head, file.size)
    header = header_of(file.path, head[:length] if length <= len(head) else file.read(0, length))
    spare = file.size - length - header.nbytes
    if not spare:
        return header.alone
    found = arrays(file.path, "", header, Stream(0, file.size))
    notes = (*header.alone.notes, f"{spare} bytes after the array are ignored")
    return Description("npy", found, notes)


def preamble(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return what ``np.save`` writes before a C-ordered array: version 1.0, padded to 64 bytes."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    if shape:  # space for a longer first axis, as NumPy leaves it since 1.23
        text += " " * (_MOST_DIGITS - len(str(shape[0])))
    length = 11 + len(text)
    text += " " * (-length % 64) + "\n"
    return MAGIC + b"\1\0" + len(text).to_bytes(2, "little") + text.encode("latin-1")


def header_bytes(path: bytes, prefix: bytes, size: int, at: int = 0) -> int:
    """Return the length of magic, version and header, from the ``PREFIX`` of ``size`` bytes."""
    if len(prefix) < PREFIX:
        raise TruncatedError(path, f"expected a .npy header, found only {len(prefix)} bytes", at)
    version = prefix[6:8]
    if version == b"\1\0":
        length = 10 + prefix[8] + 256 * prefix[9]
    elif version in (b"\2\0", b"\3\0"):
        length = 12 + int.from_bytes(prefix[8:12], "little")
    else:
        raise UnsupportedError(
            path,
            f"expected .npy version 1.0, 2.0 or 3.0, found {version[0]}.{version[1]}",
            at,
            remedy="save it again with np.save",
        )
    if length > MOST_HEADER:
        raise LimitError(
            path, f"expected a header of at most {MOST_HEADER} bytes, found {length}", at
        )
    if length > size:
        raise TruncatedError(path, f"expected a header of {length} bytes, found {size}", at)
    return length


def header_of(path: bytes, preamble: bytes, at: int = 0) -> Header:
    """Parse a complete preamble (magic, version, header)."""
    try:
        return _known(preamble) if len(preamble) <= _MOST_KNOWN else _header(preamble)
    except FormatError as error:  # raised with no path: the cache serves all files
        raise type(error)(path, error.problem, at or None, error.remedy) from None
    except ValueError as error:
        raise FormatError(path, f"the .npy header is wrong: {error}", at or None) from None


def arrays(path: bytes, name: str, header: Header, stream: Stream) -> tuple[Array, ...]:
    """Return the arrays that ``header`` announces, in the stream that begins with it."""
    promised = header.length + header.nbytes
    if promised > stream.held:
        whose = f" of {name!r}" if name else ""
        raise TruncatedError(
            path, f"expected {promised} bytes according to the header{whose}, found {stream.held}"
        )
    at, length, coding, crc, decoded = stream
    found = []
    for own, dtype, shape, _, _, skip, _, strides, _, _ in header.alone.arrays:
        full = bare(name, own) if own else name
        found.append(Array(full, dtype, shape, at, length, skip, coding, strides, crc, decoded))
    return tuple(found)


def _header(preamble: bytes) -> Header:
    begin = 10 if preamble[6] == 1 else 12
    try:
        text = preamble[begin:].decode("utf-8" if preamble[6] == 3 else "latin-1")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    match = _COMMON.fullmatch(text)
    if match and (match[3] or not match[4]):  # (5) is not a tuple
        element, fortran = _common(match[1]), match[2] == "True"
        shape = _lengths(tuple(map(int, _NUMBER.findall(match[3] + (match[4] or "")))))
    else:
        element, fortran, shape = _from_literal(parse(text))
    length, nbytes = len(preamble), _check_size(shape, element.size)
    order = fortran_strides(shape, element.size) if fortran else None
    found = placed(element, shape, order, length, length + nbytes)
    return Header(length, nbytes, Description("npy", found, (_FORTRAN,) if order else ()))


# Files of one folder usually have identical headers, so each is parsed once.
_known = lru_cache(maxsize=1024)(_header)


def _from_literal(value: Literal) -> tuple[Element, bool, tuple[int, ...]]:
    if not isinstance(value, dict) or set(value) != {"descr", "fortran_order", "shape"}:
        raise ValueError("expected a dict with the keys descr, fortran_order and shape")
    fortran, shape = value["fortran_order"], value["shape"]
    if not isinstance(fortran, bool):
        raise ValueError(f"fortran_order must be True or False, got {fortran!r:.80}")
    if not isinstance(shape, tuple):
        raise ValueError(f"shape must be a tuple, got {shape!r:.80}")
    return element_of(value["descr"]), fortran, _lengths(shape)


def _lengths(given: Literal) -> tuple[int, ...]:
    """Return a shape, or one length of it, as given in a header."""
    shape = given if isinstance(given, tuple) else (given,)
    _check_rank(shape)
    for n in shape:
        if type(n) is not int or n < 0:
            raise ValueError(f"lengths must be whole numbers from 0 up, got {n!r:.80}")
    return cast("tuple[int, ...]", shape)


def placed(
    element: Element, outer: tuple[int, ...], order: tuple[int, ...] | None, begin: int, end: int
) -> tuple[Array, ...]:
    """Return the leaves of all elements, in C order unless ``order`` has the strides."""
    steps = order if element.filled or order else c_strides(outer, element.size)
    placed = []
    for name, dtype, own, start, strides in element.leaves:
        shape = outer + own
        if own:
            _check_rank(shape)
            _check_size(shape, itemsize(dtype))
        full = None if steps is None or not shape else steps + strides
        if 0 in shape:  # it has no bytes, so its position does not matter
            start, full = 0, None
        placed.append(Array(name, dtype, shape, 0, end, begin + start, RAW, full))
    return tuple(placed)


def _check_rank(shape: tuple[Literal, ...]) -> None:
    if len(shape) > MOST_DIMENSIONS:
        raise LimitError("", f"expected at most {MOST_DIMENSIONS} dimensions, found {len(shape)}")


def _check_size(shape: tuple[int, ...], size: int) -> int:
    """Return the bytes of all elements; empty arrays are checked as if without their zeros."""
    if size * math.prod([n or 1 for n in shape]) >= MOST_BYTES:
        raise LimitError("", f"expected fewer than 2**63 bytes, found the shape {shape!r:.80}")
    return size * math.prod(shape)


def element_of(descr: Literal) -> Element:
    """Return the type in a header's ``descr``; ``(type, shape)`` is a sub-array at the top."""
    if isinstance(descr, tuple) and len(descr) == 2:
        return _repeat(element_of(descr[0]), _lengths(descr[1]))
    return _type("", descr, 0)


# Most arrays have one of a few plain types.
_common = lru_cache(maxsize=256)(element_of)


def _type(name: str, descr: Literal, start: int) -> Element:
    """Return a plain type, or the fields of a structured one, with names joined by "/"."""
    if isinstance(descr, list):
        return _structure(name, descr, start)
    if not isinstance(descr, str):
        raise ValueError(f"not a dtype: {descr!r:.80}")
    dtype, size = _plain(descr)
    return Element((Leaf(name, dtype, (), start, ()),), size, True)


@lru_cache(maxsize=256)
def _plain(descr: str) -> tuple[str, int]:
    """Return the name and size of a plain type."""
    if descr.lstrip("<>|=").startswith("O"):
        raise UnsupportedError("", _OBJECTS, remedy=_NUMBERS)
    try:
        dtype = canonical(descr)
    except UnknownDtypeError as error:
        raise UnsupportedError("", f"cannot be read: {error}", remedy=_KNOWN_DTYPE) from None
    return dtype, itemsize(dtype)


def _structure(name: str, entries: list[Literal], start: int) -> Element:
    leaves: list[Leaf] = []
    size = 0
    filled = len(entries) == 1
    for entry in entries:
        found, width, full = _entry(name, entry, start + size)
        leaves += found
        size += width
        filled &= full
        if len(leaves) > _MOST_FIELDS:
            raise LimitError("", f"expected at most {_MOST_FIELDS} fields, found more")
    if not leaves or not size:
        raise ValueError("a structured dtype without fields or bytes")
    if len({leaf.name for leaf in leaves}) < len(leaves):
        raise ValueError("two fields of one name")
    return Element(tuple(leaves), size, filled)


def _entry(name: str, entry: Literal, start: int) -> Element:
    """Return one field of a structured dtype: (name, type) or (name, type, shape)."""
    if not isinstance(entry, tuple) or len(entry) not in (2, 3):
        raise ValueError(f"expected (name, type) or (name, type, shape), found {entry!r:.80}")
    own, kind = entry[:2]
    shape = _lengths(entry[2]) if len(entry) == 3 else ()
    if isinstance(own, tuple) and len(own) == 2:  # (title, name)
        own = own[1]
    if own == "" and isinstance(kind, str) and (padding := _PADDING.fullmatch(kind)):
        return Element((), int(padding[1]) * math.prod(shape), False)
    if not isinstance(own, str) or not own:
        raise ValueError(f"expected a field name, found {own!r:.80}")
    full = bare(name, own)
    if len(full) > _MOST_NAME:
        raise LimitError("", f"expected field names of at most {_MOST_NAME} characters")
    found = _type(full, kind, start)
    return _repeat(found, shape) if shape else found


def _repeat(element: Element, shape: tuple[int, ...]) -> Element:
    """Return an array of ``shape`` of such elements as one element."""
    steps = c_strides(shape, element.size)
    leaves = [
        leaf._replace(shape=shape + leaf.shape, strides=steps + leaf.strides)
        for leaf in element.leaves
    ]
    return Element(tuple(leaves), _check_size(shape, element.size), element.filled)
