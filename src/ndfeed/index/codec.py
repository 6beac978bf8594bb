"""Convert tables to bytes and back, for the cache and for memory shared with other processes.

    offset  bytes  content
    0       8      magic, b"NDFINDEX"
    8       4      CRC-32 of everything after this field, little-endian
    12      4      version, now 2, little-endian
    16      8      H, length of the header, little-endian; a multiple of 8
    24      H      header: UTF-8 JSON, {"values", "columns"}, padded with spaces
    24+H    …      the columns, each from a multiple of 8, little-endian, C order

``columns`` has the dtype, the shape and the first byte of each, counted from 24+H. Values and
columns that are stored with a table but not part of it have names that begin with "+".

A reader refuses another version and, if asked to check, a wrong CRC. Names, dtypes and ranks of
columns and the types of values are a closed set, so nothing in the bytes chooses a NumPy dtype.
``validate`` checks whether the numbers are consistent.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.formats.inflate import crc32
from ndfeed.index.table import Table

VERSION = 2
MAGIC = b"NDFINDEX"
_FIXED = 24
_CRC_END = 12
_UNSAVED = ("owner", "sealed", "caches", "skipped", "narrowed")
_DTYPES: dict[str, np.dtype] = {
    "|u1": np.dtype("|u1"),
    "<i4": np.dtype("<i4"),
    "<i8": np.dtype("<i8"),
}
# Every column of a table, with its dtype and rank, and every value with its type.
_COLUMNS = {
    "path_bytes": ("|u1", 1), "path_ends": ("<i8", 1), "identity": ("<i8", 2), "format": ("|u1", 1),
    "file": ("<i4", 1), "name": ("<i4", 1), "dtype": ("<i4", 1), "shape": ("<i4", 1),
    "strides": ("<i4", 1), "offset": ("<i8", 1), "length": ("<i8", 1), "skip": ("<i8", 1),
    "decoded": ("<i8", 1), "crc": ("<i8", 1), "coding": ("|u1", 1), "dims": ("<i8", 2),
}  # fmt: skip
_VALUES = {
    "base": str, "formats": list, "names": list, "dtypes": list, "notes": list, "remarked": int,
    "ignored": list, "passed_over": int, "digest": str,
}  # fmt: skip
_TEXTS = ("formats", "names", "dtypes", "ignored")


def encode(table: Table, extra: Mapping[str, Any] | None = None) -> list[bytes | memoryview]:
    """Encode the table, and numbers or arrays that go with it."""
    everything = {f.name: getattr(table, f.name) for f in fields(Table) if f.name not in _UNSAVED}
    if not table.digest:
        del everything["digest"]  # only packed datasets have one
    everything["base"] = table.base.decode("latin-1")  # any bytes, whatever the locale
    everything |= {f"+{name}": value for name, value in (extra or {}).items()}
    columns: dict[str, Any] = {}
    values: dict[str, Any] = {}
    data: list[bytes | memoryview] = []
    start = 0
    for name, value in everything.items():
        if not isinstance(value, np.ndarray):
            values[name] = value
            continue
        plain = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        columns[name] = [plain.dtype.str, list(plain.shape), start]
        data += [plain.reshape(-1).view(np.uint8).data, bytes(-plain.nbytes % 8)]
        start += plain.nbytes + -plain.nbytes % 8
    header = json.dumps({"values": values, "columns": columns}).encode()
    header += b" " * (-len(header) % 8)
    fixed = VERSION.to_bytes(4, "little") + len(header).to_bytes(8, "little")
    check = 0
    for piece in (fixed, header, *data):
        check = crc32(piece, check)
    return [MAGIC + check.to_bytes(4, "little") + fixed, header, *data]


def decode(
    data: bytes | memoryview,
    *,
    checked: bool,
    caches: tuple[bytes, ...] = (),
) -> tuple[Table, dict[str, Any]]:
    """The table and what goes with it; its columns are views of ``data``.

    ``caches`` is not in the data: it is the table's, where it is known.
    """
    end = _FIXED + int.from_bytes(data[16:24], "little")
    if bytes(data[:8]) != MAGIC or len(data) < _FIXED or end > len(data):
        raise ValueError("not an index")
    if checked and crc32(memoryview(data)[_CRC_END:]) != int.from_bytes(data[8:12], "little"):
        raise ValueError("the checksum is wrong")
    if int.from_bytes(data[12:16], "little") != VERSION:
        raise ValueError(f"not an index of version {VERSION}")
    values, extra, columns = _header(bytes(data[_FIXED:end]))
    rest = memoryview(data)[end:]
    for name, place in columns.items():
        if name in _COLUMNS:
            values[name] = _column(rest, name, place)
        else:
            extra[name[1:]] = _column(rest, name, place)
    values["base"] = values["base"].encode("latin-1")
    for name in _TEXTS:
        values[name] = tuple(values[name])
    values["notes"] = tuple((file, text) for file, text in values["notes"])
    return Table(**values, caches=caches), extra


def _header(text: bytes) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Parse a header, which must have all that a table needs and nothing else.

    Returns the table's values, the values stored with it, and the columns of both.
    """
    try:
        found = json.loads(text.decode())  # as text: from bytes, json would guess the encoding
    except RecursionError:
        raise ValueError("the header is nested too deep") from None
    if type(found) is not dict or found.keys() != {"values", "columns"}:
        raise ValueError("the header must have values and columns")
    values, columns = found["values"], found["columns"]
    if type(values) is not dict or type(columns) is not dict:
        raise ValueError("values and columns must be objects")
    extra = {name[1:]: values.pop(name) for name in values.keys() - _VALUES if name[:1] == "+"}
    if values.keys() | {"digest"} != _VALUES.keys():
        raise ValueError("the values are not those of a table")
    others = columns.keys() - _COLUMNS
    if len(columns) - len(others) < len(_COLUMNS) or any(name[:1] != "+" for name in others):
        raise ValueError("the columns are not those of a table")
    if any(type(value) is not _VALUES[name] for name, value in values.items()):
        raise ValueError("a value has another type")
    _check_texts(values)
    return values, extra, columns


def _check_texts(values: dict[str, Any]) -> None:
    for name in _TEXTS:
        if not set(map(type, values[name])) <= {str}:
            raise ValueError("expected text in a list")
    for note in values["notes"]:
        if type(note) is not list or [type(part) for part in note] != [int, str]:
            raise ValueError("a note must be a file and text")


def _column(data: memoryview, name: str, place: object) -> NDArray[Any]:
    """Return one column as a view of ``data``, within its bounds."""
    if type(place) is not list or len(place) != 3 or type(place[1]) is not list:
        raise ValueError(f"the place of column {name:.40} is malformed")
    dtype, shape, start = place
    kind = _DTYPES.get(dtype) if type(dtype) is str else None
    if kind is None or (dtype, len(shape)) != _COLUMNS.get(name, (dtype, 1)):
        raise ValueError(f"column {name:.40} has another dtype or rank")
    count = 1
    for number in shape:
        if type(number) is not int or number < 0:
            raise ValueError(f"column {name:.40} has a length below 0")
        count *= number
    if type(start) is not int or start < 0:
        raise ValueError(f"column {name:.40} has a place below 0")
    if start + count * kind.itemsize > len(data) or start % 8:
        raise ValueError(f"column {name:.40} reaches beyond the end")
    if not count:  # NumPy accepts no empty buffer
        return np.zeros([min(n, 1 << 32) for n in shape], kind)
    return np.ndarray(shape, kind, data, start)


def fingerprint(table: Table) -> str:
    """Return a short text that differs if names, sizes, types or offsets of the data do.

    Folders and times do not count: a copy of the data is the same data. The fingerprint of a
    packed dataset is the start of its manifest's digest.
    """
    if table.digest:
        return table.digest[:16]
    digest = hashlib.sha256(repr((table.names, table.dtypes, table.dims.tolist())).encode())
    # Memory of a process has no name that another one would know it by.
    paths = () if table.sealed else (table.path_bytes, table.path_ends)
    for column in (
        *paths, table.identity[:, 2], table.file, table.name,
        table.dtype, table.shape, table.strides, table.offset, table.skip, table.coding,
    ):  # fmt: skip
        digest.update(np.ascontiguousarray(column).view(np.uint8).data)
    return digest.hexdigest()[:16]
