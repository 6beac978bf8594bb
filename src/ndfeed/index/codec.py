"""Tables as bytes: for the cache, and for the memory that other processes read them from.

    offset  bytes  content
    0       8      magic, b"NDFINDEX"
    8       4      CRC-32 of everything behind this field, little-endian
    12      4      version, now 1, little-endian
    16      8      H, length of the header, little-endian; a multiple of 8
    24      H      header: UTF-8 JSON, {"values", "columns"}, padded with spaces
    24+H    …      the columns, each from a multiple of 8, little-endian, C order

``columns`` has the dtype, the shape and the first byte of each, counted from 24+H. What is
kept beside a table has a name that begins with "+" and is a value or a column too.

A reader refuses another version and, if asked to check, a wrong CRC.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ndfeed.formats.inflate import crc32
from ndfeed.index.table import Table

VERSION = 1
MAGIC = b"NDFINDEX"
_FIXED = 24
_CRC_END = 12
_UNSAVED = ("owner", "sealed", "caches")


def encode(table: Table, extra: Mapping[str, Any] | None = None) -> list[bytes | memoryview]:
    """The table, and numbers or arrays that go with it."""
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


def decode(data: bytes | memoryview, *, checked: bool) -> tuple[Table, dict[str, Any]]:
    """The table and what goes with it; its columns are views of ``data``."""
    end = _FIXED + int.from_bytes(data[16:24], "little")
    if bytes(data[:8]) != MAGIC or end > len(data):
        raise ValueError("not an index")
    if checked and crc32(memoryview(data)[_CRC_END:]) != int.from_bytes(data[8:12], "little"):
        raise ValueError("the checksum is wrong")
    if int.from_bytes(data[12:16], "little") != VERSION:
        raise ValueError(f"not an index of version {VERSION}")
    header = json.loads(bytes(data[_FIXED:end]))
    found: dict[str, Any] = header["values"]
    for name, (dtype, shape, start) in header["columns"].items():
        column = np.frombuffer(data, dtype, math.prod(shape), end + start)
        found[name] = column.reshape(shape)
    extra = {name[1:]: found.pop(name) for name in list(found) if name.startswith("+")}
    found["base"] = found["base"].encode("latin-1")
    for name in ("names", "dtypes", "formats", "ignored"):
        found[name] = tuple(found[name])
    found["notes"] = tuple((file, text) for file, text in found["notes"])
    return Table(**found), extra


def fingerprint(table: Table) -> str:
    """Short text that differs where names, sizes, types or places of the data do.

    The folder they lie in and their times do not count: a copy of the data is the same data.
    A packed dataset's is the start of its manifest's digest.
    """
    if table.digest:
        return table.digest[:16]
    digest = hashlib.sha256(repr((table.names, table.dtypes, table.dims.tolist())).encode())
    for column in (
        table.path_bytes, table.path_ends, table.identity[:, 2], table.file, table.name,
        table.dtype, table.shape, table.strides, table.offset, table.skip, table.coding,
    ):  # fmt: skip
        digest.update(np.ascontiguousarray(column).view(np.uint8).data)
    return digest.hexdigest()[:16]
