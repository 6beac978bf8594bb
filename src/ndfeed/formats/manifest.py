"""The manifest of a packed dataset: ``ndfeed.json``, next to folders of plain ``.npy`` columns.

UTF-8 JSON, the same bytes for the same dataset, at most 256 MiB:

    {"ndfeed":1,                                    the format's version
    "rows":n,                                       samples in all parts
    "fields":[
    {"name":"image","dtype":"<f4","shape":[3,null]}, …],      null: varies between samples
    "parts":[
    {"folder":"00000","rows":n,"columns":[
    {"field":"image","role":"values","file":"image.values.npy","rows":…,"bytes":…,"header":128,
     "rows_per_block":k,"crc32":"…"}, …]}, …],                (on one line)
    "source":{…},                                   optional: what the dataset was made from
    "digest":"…"}                                   SHA-256, and a line break

The digest covers all bytes before ``,"digest":`` with its line break. Keys are in this
order; there are no others. A part has the columns of every field, in the order of the fields:

    role     of                          dtype, shape
    rows     fields of one shape         the field's, (n, *shape)
    values   ragged fields               the field's, (values, *shape[1:]) if only the first
                                         length varies, else (elements,)
    offsets  ragged fields               <i8, (n + 1,): sample i has values [offsets[i],
                                         offsets[i + 1]), from 0 to the number of values
    shapes   ragged fields in which      <i8, (n, rank)
             other lengths vary, too

A column is a .npy file of version 1.0, C order, little-endian, whose ``header`` (magic to line
break) is a multiple of 64 bytes. Types that NumPy lacks (bfloat16, float8 and so on) are opaque
elements in it, ``|V2`` or ``|V1``, and are named in the manifest. ``crc32`` has eight hex digits
for the header, then for every ``rows_per_block`` rows.

Values are checked when they are created, so every manifest that is written can be read.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ndfeed.errors import FormatError, ManifestError, UnsupportedError, shown
from ndfeed.formats.description import MOST_BYTES, MOST_DIMENSIONS
from ndfeed.formats.dtypes import EXTENDED, canonical, itemsize
from ndfeed.formats.filenames import make_stems
from ndfeed.formats.untrusted_text import Json, parse_json

NAME = b"ndfeed.json"
VERSION = 1
MOST_MANIFEST = 256 << 20
MOST_BLOCKS = 1 << 16
_BLOCK = 1 << 20
_MOST_FIELDS = 100_000
_MOST_COLUMNS = 1_000_000
_MOST_VALUES = 20_000_000
_MOST_NAME = 4096
_DEEPEST = 8
_ALIGNED = 64
_MOST_HEADER = 1 << 16

Role = Literal["rows", "values", "offsets", "shapes"]
Shape = tuple[int | None, ...]

_ON_DISK = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9._%-]{0,254}")
_HEX = re.compile(r"(?:[0-9a-f]{8})+")
_DIGEST = re.compile(rb',\n"digest":"([0-9a-f]{64})"\}\n\Z')


@dataclass(frozen=True, slots=True)
class Field:
    """One field. ``shape`` is that of a sample, with ``None`` for lengths that vary."""

    name: str
    dtype: str
    shape: Shape

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > _MOST_NAME:
            raise ValueError(f"field names have 1 to {_MOST_NAME} characters")
        try:
            self.name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"field name {self.name!r:.80} is no text") from None
        if canonical(self.dtype) != self.dtype or self.dtype.startswith(">"):
            raise ValueError(f"{self}: expected a little-endian dtype, found {self.dtype[:40]!r}")
        if len(self.shape) >= MOST_DIMENSIONS:
            raise ValueError(f"{self}: expected fewer than {MOST_DIMENSIONS} dimensions")
        if any(n is not None and (type(n) is not int or n < 0) for n in self.shape):
            raise ValueError(f"{self}: lengths must be whole numbers or null")
        if math.prod(n or 1 for n in self.shape) * itemsize(self.dtype) >= MOST_BYTES:
            raise ValueError(f"{self}: expected fewer than 2**63 bytes")

    @property
    def roles(self) -> tuple[Role, ...]:
        """The contents of each column of the field, in order."""
        if None not in self.shape:
            return ("rows",)
        return ("values", "offsets", "shapes") if None in self.shape[1:] else ("values", "offsets")

    def stored(self, role: Role) -> tuple[str, tuple[int, ...]]:
        """Return the dtype in a column's header, and the shape of one of its rows."""
        if role == "offsets":
            return "<i8", ()
        if role == "shapes":
            return "<i8", (len(self.shape),)
        dtype = f"|V{EXTENDED[self.dtype]}" if self.dtype in EXTENDED else self.dtype
        if "shapes" in self.roles:
            return dtype, ()
        kept = self.shape if role == "rows" else self.shape[1:]
        return dtype, tuple(n for n in kept if n is not None)

    def row_bytes(self, role: Role) -> int:
        """Return the bytes of one row of a column."""
        dtype, shape = self.stored(role)
        return math.prod(shape) * itemsize(dtype)

    def __str__(self) -> str:
        return f"field {shown(self.name[:100])!r}"


@dataclass(frozen=True, slots=True)
class Column:
    """One .npy file of a part: its size, and the checksums of its blocks.

    ``crc32`` has eight hex digits for the header's ``header`` bytes and for each block.
    """

    field: str
    role: Role
    file: str
    rows: int
    nbytes: int
    header: int
    rows_per_block: int
    crc32: str

    def __post_init__(self) -> None:
        _check_name(self.file)
        for number in (self.rows, self.nbytes, self.header, self.rows_per_block):
            if type(number) is not int or not 0 <= number < MOST_BYTES:
                raise ValueError(f"{self}: expected whole numbers in [0, 2**63)")
        if self.header % _ALIGNED or not 0 < self.header <= _MOST_HEADER:
            raise ValueError(f"{self}: expected a header of a multiple of {_ALIGNED} bytes")
        if self.rows_per_block < 1 or self.blocks > MOST_BLOCKS:
            raise ValueError(f"{self}: expected at most {MOST_BLOCKS:,} blocks of a row or more")
        if not _HEX.fullmatch(self.crc32) or len(self.crc32) != 8 + 8 * self.blocks:
            raise ValueError(f"{self}: crc32 needs 8 hex digits for each of {1 + self.blocks}")

    @property
    def blocks(self) -> int:
        """The number of blocks of rows, without the header."""
        return -(-self.rows // self.rows_per_block)

    def checksum(self, block: int) -> int:
        """Return the checksum of a block; block 0 is the header."""
        return int(self.crc32[8 * block : 8 * block + 8], 16)

    def checksums(self) -> list[int]:
        """Return the checksums of the header and of all blocks."""
        return [int.from_bytes(b, "big") for b in _fours(bytes.fromhex(self.crc32))]

    def __str__(self) -> str:
        return f"column {shown(self.file[:100])!r}"


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the samples: a folder with the columns of every field."""

    folder: str
    rows: int
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        _check_name(self.folder)
        if type(self.rows) is not int or not 0 <= self.rows < MOST_BYTES:
            raise ValueError(f"part {self.folder!r}: rows must be a number in [0, 2**63)")
        if len({column.file.lower() for column in self.columns}) < len(self.columns):
            raise ValueError(f"part {self.folder!r}: two columns are in one file")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything known about a packed dataset except its data.

    ``source`` is a plain JSON object: text, non-negative integers, ``True``, ``False``,
    ``None``, lists and dicts.
    """

    fields: tuple[Field, ...]
    parts: tuple[Part, ...]
    source: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("expected at least one field")
        if len({one.name for one in self.fields}) < len(self.fields):
            raise ValueError("two fields of one name")
        if not self.parts:
            raise ValueError("expected at least one part")
        if len({part.folder.lower() for part in self.parts}) < len(self.parts):
            raise ValueError("two parts in one folder")
        if self.rows >= MOST_BYTES:
            raise ValueError("expected fewer than 2**63 rows")
        roles = [(one, role) for one in self.fields for role in one.roles]
        for part in self.parts:
            _check_columns(part, roles)

    @property
    def rows(self) -> int:
        """The number of samples in all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest, in hex: datasets with the same digest hold the same data."""
        return hashlib.sha256(self._signed()).hexdigest()

    def encoded(self) -> bytes:
        """Return the bytes of ``ndfeed.json``."""
        signed = self._signed()
        digest = hashlib.sha256(signed).hexdigest()
        return signed + f',\n"digest":"{digest}"}}\n'.encode()

    def _signed(self) -> bytes:
        fields = ",\n".join(
            _json({"name": f.name, "dtype": f.dtype, "shape": f.shape}) for f in self.fields
        )
        parts = ",\n".join(_part_json(part) for part in self.parts)
        text = f'{{"ndfeed":{VERSION},\n"rows":{self.rows},\n'
        text += f'"fields":[\n{fields}],\n"parts":[\n{parts}]'
        if self.source is not None:
            text += f',\n"source":{_json(dict(self.source), sort_keys=True)}'
        return text.encode()


def parse(data: bytes, path: bytes) -> Manifest:
    """Parse a manifest ``data`` that was read from ``path``; the digest is compared first."""
    if len(data) > MOST_MANIFEST:
        raise ManifestError(path, f"expected at most {MOST_MANIFEST} bytes, found {len(data)}")
    match = _DIGEST.search(data[-80:])
    if match is None:
        raise ManifestError(path, "expected a manifest that ends with its digest")
    signed = data[: len(data) - len(match[0])]
    found = hashlib.sha256(signed).hexdigest()
    if found != match[1].decode():
        raise ManifestError(path, f"expected digest {match[1].decode()[:16]}…, found {found[:16]}…")
    try:
        whole = parse_json(
            signed + b"}",
            objects=_MOST_COLUMNS,
            values=_MOST_VALUES,
            deepest=_DEEPEST,
            what="columns",
        )
        return _manifest(whole, path)
    except (UnsupportedError, ManifestError):
        raise
    except FormatError as error:
        raise ManifestError(path, error.problem) from None
    except (ValueError, RecursionError) as error:
        raise ManifestError(path, f"the manifest is wrong: {error}") from None


def file_names(fields: Sequence[Field]) -> dict[tuple[str, Role], str]:
    """Return the file name of each column, by field and role."""
    named = zip(fields, make_stems([one.name for one in fields]), strict=True)
    return {
        (one.name, role): f"{stem}.npy" if role == "rows" else f"{stem}.{role}.npy"
        for one, stem in named
        for role in one.roles
    }


def rows_per_block(row_bytes: int, rows: int) -> int:
    """Return how many rows share a checksum: about 1 MiB, and at most 65,536 blocks per column."""
    return max(_BLOCK // max(row_bytes, 1), -(-rows // MOST_BLOCKS), 1)


def _check_name(name: str) -> None:
    """Check that a name is in the dataset's own folder."""
    if not _ON_DISK.fullmatch(name):
        raise ValueError(f"expected a plain name of letters, digits and ._%-, found {name!r:.80}")


def _check_columns(part: Part, roles: Sequence[tuple[Field, Role]]) -> None:
    """Check that a part has the columns of all fields, with the right numbers of rows and bytes."""
    listed = [(column.field, column.role) for column in part.columns]
    if listed != [(one.name, role) for one, role in roles]:
        raise ValueError(
            f"part {part.folder!r}: expected the columns of all fields, in their order"
        )
    for column, (one, role) in zip(part.columns, roles, strict=True):
        wanted = {"values": column.rows, "offsets": part.rows + 1}.get(role, part.rows)
        if column.rows != wanted:
            raise ValueError(f"{column}: expected {wanted} rows, found {column.rows}")
        size = column.header + column.rows * one.row_bytes(role)
        if column.nbytes != size:
            raise ValueError(f"{column}: expected {size} bytes, found {column.nbytes}")


def _json(value: object, *, sort_keys: bool = False) -> str:
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys
    )


def _part_json(part: Part) -> str:
    columns = ",\n".join(
        _json(
            {
                "field": c.field,
                "role": c.role,
                "file": c.file,
                "rows": c.rows,
                "bytes": c.nbytes,
                "header": c.header,
                "rows_per_block": c.rows_per_block,
                "crc32": c.crc32,
            }
        )
        for c in part.columns
    )
    return f'{{"folder":{_json(part.folder)},"rows":{part.rows},"columns":[\n{columns}]}}'


def _manifest(whole: Json, path: bytes) -> Manifest:
    if type(whole) is not dict or type(whole.get("ndfeed")) is not int:
        raise ValueError('expected an object with the key "ndfeed"')
    if whole["ndfeed"] != VERSION:
        raise UnsupportedError(
            path,
            f"expected format version {VERSION}, found {whole['ndfeed']}",
            remedy="a newer ndfeed wrote it: upgrade",
        )
    values = _values(whole, ("ndfeed", "rows", "fields", "parts"), optional="source")
    source = whole.get("source")
    if "source" in whole and type(source) is not dict:
        raise ValueError("source must be an object")
    fields = tuple(map(_field, _list(values[2])))
    if len(fields) > _MOST_FIELDS:
        raise ValueError(f"expected at most {_MOST_FIELDS:,} fields")
    made = Manifest(fields, tuple(map(_part, _list(values[3]))), source)
    if made.rows != values[1]:
        raise ValueError(f"expected {values[1]!r:.40} rows, but the parts have {made.rows}")
    return made


def _field(entry: Json) -> Field:
    name, dtype, shape = _values(entry, ("name", "dtype", "shape"))
    return Field(_text(name), _text(dtype), tuple(_list(shape)))


def _part(entry: Json) -> Part:
    folder, rows, columns = _values(entry, ("folder", "rows", "columns"))
    return Part(_text(folder), rows, tuple(map(_column, _list(columns))))


def _column(entry: Json) -> Column:
    keys = ("field", "role", "file", "rows", "bytes", "header", "rows_per_block", "crc32")
    name, role, file, rows, nbytes, header, per_block, crc = _values(entry, keys)
    return Column(_text(name), role, _text(file), rows, nbytes, header, per_block, _text(crc))


def _values(entry: Json, keys: tuple[str, ...], optional: str = "") -> list[Any]:
    """Return the values of an object that has exactly these keys."""
    if type(entry) is not dict or not entry.keys() - {optional} == set(keys):
        raise ValueError(f"expected an object with the keys {', '.join(keys)}")
    return [entry[key] for key in keys]


def _list(value: Json) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"expected a list, found {value!r:.40}")
    return value


def _text(value: Json) -> str:
    if type(value) is not str:
        raise ValueError(f"expected text, found {value!r:.40}")
    return value


def _fours(data: bytes) -> list[bytes]:
    return [data[i : i + 4] for i in range(0, len(data), 4)]
