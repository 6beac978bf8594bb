"""The safetensors format.

    offset  bytes  content
    0       8      N, length of the header, little-endian, at most 100,000,000
    8       N      header: a JSON object in UTF-8 that begins with "{", padded with spaces
    8 + N   …      the tensors: C order, little-endian, end to end, the last one at the file's end

The header maps names to {"dtype": text, "shape": [n, …], "data_offsets": [begin, end]}, with
offsets from the end of the header, and "__metadata__" to a dict of text. In order of their
offsets the tensors must tile the file: no gaps, no overlaps, nothing after them.

This reader is as strict as the reference, and stricter in the following: no key may appear twice,
nothing may precede the "{", an entry is an object, a tensor has no more dimensions than NumPy
supports, the nonzero lengths of an empty tensor give a size below 2**63, and there are at most
100,000 tensors.

Types of less than a byte (F4, F6_…) are delivered as the bytes they are packed in. A tensor of a
type that is not known here is refused by name, unless the caller requests other fields only.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

from ndfeed.errors import FormatError, LimitError, TruncatedError, UnsupportedError, shown
from ndfeed.files.file import File
from ndfeed.formats.description import (
    MOST_BYTES,
    MOST_DIMENSIONS,
    Array,
    Description,
    Wanted,
    is_wanted,
)
from ndfeed.formats.dtypes import itemsize
from ndfeed.formats.untrusted_text import Json, parse_json

MOST_HEADER = 100_000_000
_MOST_TENSORS = 100_000
_MOST_VALUES = 2_000_000
_MOST_NAME = 4096
_MOST_NOTES = 50
_MOST_KEPT = 64 << 10
_DEEPEST = 3

_TYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4",
    "I32": "<i4", "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
    "C64": "<c8", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_BITS = {name: 8 * itemsize(dtype) for name, dtype in _TYPES.items()}
_PACKED = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


class Header(NamedTuple):
    """A parsed header: tensors in order, their total bytes, and remarks.

    ``unknown`` has the names of tensors whose dtype is not known, which ``arrays`` lacks, and what
    to say about each.
    """

    arrays: tuple[Array, ...]
    nbytes: int
    notes: tuple[str, ...]
    unknown: tuple[tuple[str, str], ...]


def looks_like(head: bytes, size: int) -> bool:
    """Return whether a file of ``size`` bytes that begins with ``head`` may be of this kind."""
    length = int.from_bytes(head[:8], "little")
    return 2 <= length <= MOST_HEADER and 8 + length <= size and head[8:9] == b"{"


def describe(file: File, wanted: Wanted | None = None) -> Description:
    """Describe the tensors of a safetensors file, in the order in which they are stored.

    A tensor of an unknown dtype is refused, unless it is not ``wanted``.
    """
    if file.size < 8:
        raise TruncatedError(file.path, f"expected a header, found only {file.size} bytes")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > MOST_HEADER:
        raise LimitError(
            file.path, f"expected a header of at most {MOST_HEADER} bytes, found {length}"
        )
    start = 8 + length
    if start > file.size:
        raise TruncatedError(
            file.path, f"expected a header of {length} bytes, found {file.size - 8}", 8
        )
    text = file.read(8, length)
    header = _parse(file.path, text)
    if start + header.nbytes != file.size:
        kind = TruncatedError if start + header.nbytes > file.size else FormatError
        raise kind(
            file.path,
            f"expected {start + header.nbytes} bytes according to the header, found {file.size}",
            start,
        )
    notes = _leave_out(file.path, header, wanted) if header.unknown else header.notes
    placed = [
        Array(name, dtype, shape, start + offset, nbytes)
        for name, dtype, shape, offset, nbytes, *_ in header.arrays
    ]
    return Description("safetensors", tuple(placed), notes, bool(header.unknown))


def _leave_out(path: bytes, header: Header, wanted: Wanted | None) -> tuple[str, ...]:
    """Return the remarks of a file with unknown dtypes, if no field that has one is wanted."""
    for name, problem in header.unknown:
        if is_wanted(name, wanted):
            remedy = "leave it out by naming the others: fields=[...]"
            raise UnsupportedError(path, problem, 8, remedy if header.arrays else None)
    left_out = [f"{problem}: left out" for _, problem in header.unknown]
    return _notes(left_out + list(header.notes))


def _parse(path: bytes, text: bytes) -> Header:
    try:
        return _parse_cached(text) if len(text) <= _MOST_KEPT else _header(text)
    except FormatError as error:  # raised with no path: the cache serves all files
        raise type(error)(path, error.problem, 8, error.remedy) from None
    except ValueError as error:
        raise FormatError(path, f"the safetensors header is wrong: {error}", 8) from None


# Files of one folder usually have identical headers, so each is parsed once.
@lru_cache(maxsize=256)
def _parse_cached(text: bytes) -> Header:
    return _header(text)


def _header(text: bytes) -> Header:
    """Parse a header; offsets are relative to its end."""
    if text[:1] != b"{":
        raise ValueError("it must begin with '{'")
    entries = parse_json(
        text, objects=_MOST_TENSORS, values=_MOST_VALUES, deepest=_DEEPEST, what="tensors"
    )
    metadata = entries.pop("__metadata__", None)
    packed: list[str] = []
    unknown: dict[str, str] = {}
    arrays = [_array(name, entry, packed, unknown) for name, entry in entries.items()]
    arrays.sort(key=lambda array: (array.offset, array.length))
    end = 0
    for array in arrays:
        if array.offset != end:
            found = f"{_quote(array.name)} begins at {array.offset}"
            raise ValueError(f"tensors must lie end to end: expected byte {end}, but {found}")
        end += array.length
    known = tuple(array for array in arrays if array.name not in unknown)
    return Header(known, end, _notes(packed + _remarks(metadata)), tuple(unknown.items()))


def _quote(name: str) -> str:
    return f"tensor {shown(name[:100])!r}"


def _array(name: str, entry: Json, packed: list[str], unknown: dict[str, str]) -> Array:
    """Parse one entry of the header; its offset is relative to the header's end.

    Adds what there is to say about it to ``packed`` or ``unknown``.
    """
    if len(name) > _MOST_NAME:
        raise LimitError("", f"expected names of at most {_MOST_NAME} characters")
    if type(entry) is not dict or not entry.keys() >= {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{_quote(name)} needs dtype, shape and data_offsets")
    kind, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if type(kind) is not str or type(shape) is not list or type(span) is not list:
        raise ValueError(f"{_quote(name)}: dtype must be text, shape and data_offsets lists")
    _check_numbers(name, shape, span)
    begin, end = span
    bits = _BITS.get(kind) or _PACKED.get(kind)
    if bits is None:
        unknown[name] = f"{_quote(name)} has the unknown dtype {shown(kind[:40])!r}"
        return Array(name, kind, tuple(shape), begin, end - begin)
    total = bits * math.prod(shape)
    if total % 8 or total != 8 * (end - begin):
        raise ValueError(
            f"{_quote(name)} of {kind}{shape!r:.80} needs {total} bits, "
            f"its offsets hold {8 * (end - begin)}"
        )
    if kind in _PACKED:
        packed.append(f"{_quote(name)} is {kind}{shape!r:.80}: delivered as its packed bytes")
        return Array(name, "|u1", (end - begin,), begin, end - begin)
    return Array(name, _TYPES[kind], tuple(shape), begin, end - begin)


def _check_numbers(name: str, shape: list[Any], span: list[Any]) -> None:
    """Check that lengths and offsets are integers that fit, and not booleans."""
    if len(shape) > MOST_DIMENSIONS:
        raise UnsupportedError(
            "",
            f"{_quote(name)} has {len(shape)} dimensions, at most {MOST_DIMENSIONS} are read",
        )
    for number in (*shape, *span):
        if type(number) is not int or not 0 <= number < MOST_BYTES:
            raise ValueError(f"{_quote(name)}: expected whole numbers in [0, 2**63)")
    if len(span) != 2 or span[0] > span[1]:
        raise ValueError(f"{_quote(name)}: data_offsets must be [begin, end]")
    if 8 * math.prod(n for n in shape if n) >= MOST_BYTES:  # also for empty tensors
        raise LimitError("", f"{_quote(name)} has lengths that no array can have")


def _remarks(metadata: Json) -> list[str]:
    if metadata is None:
        return []
    if type(metadata) is not dict or any(type(text) is not str for text in metadata.values()):
        raise ValueError("__metadata__ must map text to text")
    return [shown(f"metadata {key[:100]}: {text[:200]}")[:200] for key, text in metadata.items()]


def _notes(found: list[str]) -> tuple[str, ...]:
    more = len(found) - _MOST_NOTES
    if more <= 0:
        return tuple(found)
    return (*found[:_MOST_NOTES], f"… and {more:,} more remarks")
