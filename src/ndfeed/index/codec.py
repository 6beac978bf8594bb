"""Tables as bytes: for the cache, and for the memory that other processes read them from.

    offset  bytes  content
    0       8      magic, b"NDFINDEX"
    8       8      H, length of the header, little-endian; the header is padded to 8 bytes
    16      4      CRC-32 of everything behind this field, little-endian
    20      4      version, now 1, little-endian
    24      H      header: UTF-8 JSON, {"extra", "values", "columns"}
    24+H    …      the columns, each from a multiple of 8, little-endian, C order

A reader refuses another version and, if asked to check, a wrong CRC.
"""

import hashlib
import json
import os
from dataclasses import fields
from typing import Any

import numpy as np

from ndfeed.formats.inflate import crc32
from ndfeed.index.table import Table

VERSION = 1
MAGIC = b"NDFINDEX"
_FIXED = 24
_CRC_END = 20
_UNSAVED = ("owner", "sealed")


def encode(table: Table, extra: dict[str, Any] | None = None) -> list[bytes | memoryview]:
    """The table, and a few JSON values that go with it."""
    columns: dict[str, Any] = {}
    values: dict[str, Any] = {}
    data: list[bytes | memoryview] = []
    start = 0
    for field in fields(Table):
        value = getattr(table, field.name)
        if isinstance(value, np.ndarray):
            plain = np.ascontiguousarray(value)
            columns[field.name] = [plain.dtype.str, list(plain.shape), start]
            data += [memoryview(plain.reshape(-1).view(np.uint8)), bytes(-plain.nbytes % 8)]  # type: ignore[arg-type, list-item]
            start += plain.nbytes + -plain.nbytes % 8
        elif field.name not in _UNSAVED:
            values[field.name] = os.fsdecode(value) if isinstance(value, bytes) else value
    header = json.dumps({"extra": extra or {}, "values": values, "columns": columns}).encode()
    header += b" " * (-len(header) % 8)
    version = VERSION.to_bytes(4, "little")
    check = crc32(header, crc32(version))
    for piece in data:
        check = crc32(piece, check)
    fixed = MAGIC + len(header).to_bytes(8, "little") + check.to_bytes(4, "little") + version
    return [fixed, header, *data]


def decode(data: bytes | memoryview, *, checked: bool) -> tuple[Table, dict[str, Any]]:
    """The table and what goes with it; its columns are views of ``data``."""
    end = _FIXED + int.from_bytes(data[8:16], "little")
    if bytes(data[:8]) != MAGIC or end > len(data):
        raise ValueError("not an index")
    if checked and crc32(memoryview(data)[_CRC_END:]) != int.from_bytes(data[16:20], "little"):
        raise ValueError("the checksum is wrong")
    if int.from_bytes(data[20:24], "little") != VERSION:
        raise ValueError(f"not an index of version {VERSION}")
    header = json.loads(bytes(data[_FIXED:end]))
    columns = {
        name: np.frombuffer(data, dtype, int(np.prod(shape)), end + start).reshape(shape)
        for name, (dtype, shape, start) in header["columns"].items()
    }
    values = header["values"]
    values["base"] = os.fsencode(values["base"])
    for name in ("names", "dtypes", "formats", "ignored"):
        values[name] = tuple(values[name])
    values["notes"] = tuple((file, text) for file, text in values["notes"])
    return Table(**columns, **values), header["extra"]


def fingerprint(table: Table) -> str:
    """Short text that differs where names, sizes, types or places of the data do.

    The folder they lie in and their times do not count: a copy of the data is the same data.
    """
    digest = hashlib.sha256(repr((table.names, table.dtypes, table.dims.tolist())).encode())
    for column in (
        table.path_bytes, table.path_ends, table.identity[:, 2], table.file, table.name,
        table.dtype, table.shape, table.strides, table.offset, table.skip, table.coding,
    ):  # fmt: skip
        digest.update(np.ascontiguousarray(column).view(np.uint8))
    return digest.hexdigest()[:16]
