"""The zip container, as far as .npz and .pt files need it.

Sizes and places come from the central directory alone; a local header is read once per
member, to step over its name and extra field, which differ from the central ones. Zip64,
data descriptors, archive comments and leading bytes (self-extractors) are understood.

Refused: several disks, overlapping entries, entries outside the file, more than
``_MOST_MEMBERS`` entries, local headers that name another member. What a member is
compressed with or whether it is encrypted is the caller's business: ``Member`` says so.
"""

import struct
from typing import NamedTuple

from ndfeed.errors import FormatError, LimitError, UnsupportedError
from ndfeed.files.file import File

MAGIC = b"PK\x03\x04"
EMPTY = b"PK\x05\x06"
STORED, DEFLATED = 0, 8
ENCRYPTED = 0x1
METHODS = {1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}

_END = struct.Struct("<4sHHHHIIH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
# magic, flags, method, crc, stored, size, name, extra, comment, disk, header
_CENTRAL = struct.Struct("<4s4xHH4xIIIHHHH6xI")
_LOCAL = struct.Struct("<4s22xHH")
_TAIL = _END.size + 0xFFFF
_SHORT_TAIL = 4096
_MOST_MEMBERS = 1_000_000
_MOST_DIRECTORY = 256 << 20
_UTF8 = 0x800
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF


class Member(NamedTuple):
    """One entry of the central directory. ``header`` is where its local header begins."""

    name: str
    method: int
    flags: int
    crc: int
    stored: int
    size: int
    header: int


class _Directory(NamedTuple):
    """Where the central directory lies. ``shift`` is the length of what precedes the archive."""

    start: int
    size: int
    entries: int
    shift: int


def members(file: File) -> tuple[list[Member], tuple[str, ...]]:
    """Every member in the order of the central directory, and remarks on the archive."""
    place = _directory(file)
    if place.entries > _MOST_MEMBERS or place.size > _MOST_DIRECTORY:
        raise LimitError(
            file.path, f"at most {_MOST_MEMBERS} members expected, found {place.entries}"
        )
    data = file.read(place.start, place.size)
    found: list[Member] = []
    at = 0
    for _ in range(place.entries):
        member, at = _entry(file.path, data, at, place)
        found.append(member)
    _check_places(file.path, found, place.start)
    notes = (f"{place.shift} bytes before the archive are ignored",) if place.shift else ()
    return found, notes


def data_offset(file: File, member: Member) -> int:
    """Where the bytes of ``member`` begin."""
    local = file.read(member.header, _LOCAL.size)
    magic, name, extra = _LOCAL.unpack(local)
    if magic != MAGIC:
        raise FormatError(file.path, f"no local header of member {member.name!r}", member.header)
    start = int(member.header + _LOCAL.size + name + extra)
    if start + member.stored > file.size:
        raise FormatError(
            file.path,
            f"member {member.name!r} of {member.stored} bytes ends at byte "
            f"{start + member.stored}, behind the file's {file.size}",
            member.header,
        )
    return start


def _directory(file: File) -> _Directory:
    """Find the end record, the zip64 one before it if there is one, and what they point to."""
    at, tail = _end_record(file)
    base = file.size - len(tail)
    _, disk, first, here, entries, size, start, _ = _END.unpack_from(tail, at)
    if disk or first or here != entries:
        raise UnsupportedError(file.path, "an archive over several disks; join it first")
    end = base + at
    if entries == _FULL16 or _FULL32 in (size, start) or _has_locator(tail, at):
        wide = _zip64(file, end)
        if wide is not None:
            end, entries, size, start = wide
    shift = end - size - start
    if shift < 0 or entries * _CENTRAL.size > size:
        raise FormatError(
            file.path,
            f"a central directory of {entries} entries in {size} bytes at byte {start} "
            f"does not fit before its end record",
            end,
        )
    return _Directory(start + shift, size, entries, shift)


def _end_record(file: File) -> tuple[int, bytes]:
    """The file's tail, and where in it the end record begins."""
    for length in (_SHORT_TAIL, _TAIL):
        length = min(length, file.size)
        tail = file.read(file.size - length, length)
        at = len(tail) - _END.size
        while (at := tail.rfind(EMPTY, 0, at + 4)) >= 0:
            comment = _END.unpack_from(tail, at)[-1] if at + _END.size <= len(tail) else -1
            if at + _END.size + comment == len(tail):
                return at, tail
            at -= 1
        if length == file.size:
            break
    raise FormatError(
        file.path,
        "a zip end record expected, none found: the file is truncated or was written "
        "only in part; copy or save it again",
    )


def _has_locator(tail: bytes, at: int) -> bool:
    return tail[max(at - _LOCATOR.size, 0) : at].startswith(b"PK\x06\x07")


def _zip64(file: File, end: int) -> tuple[int, int, int, int] | None:
    """End, entries, size and start from the zip64 end record, if one is announced."""
    if end < _LOCATOR.size:
        return None
    magic, disk, at, disks = _LOCATOR.unpack(file.read(end - _LOCATOR.size, _LOCATOR.size))
    if magic != b"PK\x06\x07":
        return None
    # The record lies right before its locator, unless bytes precede the archive.
    for place in (end - _LOCATOR.size - _END64.size, at):
        if 0 <= place <= end - _LOCATOR.size - _END64.size:
            record = _END64.unpack(file.read(place, _END64.size))
            if record[0] == b"PK\x06\x06":
                _, _, _, _, disk_here, disk_start, here, entries, size, start = record
                if disk or disks > 1 or disk_here or disk_start or here != entries:
                    raise UnsupportedError(
                        file.path, "an archive over several disks; join it first"
                    )
                return place, entries, size, start
    raise FormatError(file.path, "the zip64 end record is missing", end)


def _entry(path: bytes, data: bytes, at: int, place: _Directory) -> tuple[Member, int]:
    """The entry at ``at`` of the directory, and where the next one begins."""
    if at + _CENTRAL.size > len(data):
        raise FormatError(path, f"{place.entries} entries promised, the directory ends early")
    magic, flags, method, crc, stored, size, name_length, extra_length, comment, disk, header = (
        _CENTRAL.unpack_from(data, at)
    )
    names = at + _CENTRAL.size
    extras = names + name_length
    end = extras + extra_length + comment
    if magic != b"PK\x01\x02" or end > len(data):
        raise FormatError(path, "the central directory is damaged", place.start + at)
    raw = data[names:extras]
    try:
        name = raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise FormatError(path, f"member name {raw!r:.80} is not UTF-8", place.start + at) from None
    if _FULL32 in (stored, size, header):
        extra = data[extras : extras + extra_length]
        size, stored, header = _wide(path, extra, name, size, stored, header)
    if disk not in (0, _FULL16):
        raise UnsupportedError(path, "an archive over several disks; join it first")
    return Member(name, method, flags, crc, stored, size, header + place.shift), end


def _wide(
    path: bytes, extra: bytes, name: str, size: int, stored: int, header: int
) -> tuple[int, int, int]:
    """Sizes and place from the zip64 extra field: only those that are full in the entry."""
    values = [size, stored, header]
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            field = extra[at + 4 : at + 4 + length]
            for i, value in enumerate(values):
                if value == _FULL32 and len(field) >= 8:
                    values[i] = int.from_bytes(field[:8], "little")
                    field = field[8:]
            return values[0], values[1], values[2]
        at += 4 + length
    if _FULL32 in (size, stored):
        raise FormatError(
            path,
            f"member {name!r} is over 4 GB and has no zip64 sizes: its writer lost them; "
            f"write it again with NumPy",
        )
    return size, stored, header


def _check_places(path: bytes, found: list[Member], end: int) -> None:
    """Entries must lie before the directory and apart from each other."""
    spans = sorted((member.header, member.stored, member.name) for member in found)
    free = 0
    for header, stored, name in spans:
        if header < free:
            raise FormatError(path, f"member {name!r} overlaps another: a zip bomb", header)
        free = header + _LOCAL.size + stored
    if free > end:
        raise FormatError(path, f"member {spans[-1][2]!r} overlaps the central directory")
