"""The zip container, as far as .npz and .pt files need it.

Sizes and places come from the central directory alone; a local header is read once per
member, to step over its name and extra field, which differ from the central ones. Zip64,
data descriptors, archive comments and leading bytes (self-extractors) are understood.

Stricter than Python's zipfile, so that no two readers see two archives: the end record's
comment ends the file, zip64 records lie where they say they do, each entry lies before the
next and the last before the directory, a local header names its own member, names have no
NUL, and the directory holds the promised entries and nothing else. Also refused: several disks,
more than ``_MOST_MEMBERS`` entries, names of over ``_MOST_NAME`` bytes. What a member is
compressed with or whether it is encrypted is the caller's business: ``Member`` says so.
"""

import struct
from typing import NamedTuple, NoReturn

from ndfeed.errors import FormatError, LimitError, UnsupportedError
from ndfeed.files.file import File

MAGIC = b"PK\x03\x04"
EMPTY = b"PK\x05\x06"
STORED, DEFLATED = 0, 8
ENCRYPTED = 0x1
METHODS = {1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}

_END = struct.Struct("<4sHHHHIIH")
_LOCATOR = struct.Struct("<4sIQI")
# magic, size of the rest, disk, first disk, entries here, entries, directory's size and start
_END64 = struct.Struct("<4sQ4xIIQQQQ")
# magic, flags, method, crc, stored, size, name, extra, comment, disk, header
_CENTRAL = struct.Struct("<4s4xHH4xIIIHHHH6xI")
_LOCAL = struct.Struct("<4s22xHH")
_TAIL = _END.size + 0xFFFF
_SHORT_TAIL = 2048
_MOST_MEMBERS = 1_000_000
_MOST_DIRECTORY = 256 << 20
_MOST_NAME = 1024
_UTF8 = 0x800
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF


class Member(NamedTuple):
    """One entry of the central directory.

    ``header`` is where its local header begins, ``end`` where the next one does or the
    directory; ``raw`` is the name as it is stored.
    """

    name: str
    method: int
    flags: int
    crc: int
    stored: int
    size: int
    header: int
    end: int
    raw: bytes


# A member whose end is not known yet: header, name, method, flags, crc, stored, size, raw.
_Entry = tuple[int, str, int, int, int, int, int, bytes]


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
    entries: list[_Entry] = []
    at = 0
    for _ in range(place.entries):
        entry, at = _entry(file.path, data, at, place)
        entries.append(entry)
    if at != len(data):
        raise FormatError(
            file.path,
            f"a directory of {place.entries} entries and {at} bytes expected, found {len(data)}",
            place.start,
        )
    notes = (f"{place.shift} bytes before the archive are ignored",) if place.shift else ()
    return _bounded(file.path, entries, place.start), notes


def data_offset(file: File, member: Member) -> int:
    """Where the bytes of ``member`` begin."""
    start = member.header + _LOCAL.size
    local = file.read(member.header, _LOCAL.size + len(member.raw))
    magic, name, extra = _LOCAL.unpack_from(local)
    if magic != MAGIC or name != len(member.raw) or local[_LOCAL.size :] != member.raw:
        raise FormatError(file.path, f"no local header of member {member.name!r}", member.header)
    start += name + extra
    if start + member.stored > member.end:
        raise FormatError(
            file.path,
            f"member {member.name!r} of {member.stored} bytes ends at byte "
            f"{start + member.stored}, in what begins at {member.end}: a zip bomb, or damaged",
            member.header,
        )
    return int(start)


def _directory(file: File) -> _Directory:
    """Find the end record, the zip64 one before it if there is one, and what they point to."""
    at, tail = _end_record(file)
    _, disk, first, here, entries, size, start, _ = _END.unpack_from(tail, at)
    if disk or first or here != entries:
        _refuse_disks(file.path)
    end = file.size - len(tail) + at
    shift = end - size - start
    if end >= _LOCATOR.size:
        locator = file.read(end - _LOCATOR.size, _LOCATOR.size)
        if locator.startswith(b"PK\x06\x07"):
            end, entries, size, start, shift = _zip64(file, locator, end - _LOCATOR.size)
    if shift < 0 or start + shift + size != end or entries * _CENTRAL.size > size:
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
        tail = file.tail(length)
        at = len(tail) - _END.size
        while (at := tail.rfind(EMPTY, 0, at + 4)) >= 0:
            comment = int.from_bytes(tail[at + _END.size - 2 : at + _END.size], "little")
            if at + _END.size + comment == len(tail):
                return at, tail
            at -= 1
        if len(tail) == file.size:
            break
    raise FormatError(
        file.path,
        "a zip end record expected, none found: the file is truncated, was written only in "
        "part, or has other bytes behind it; copy or save it again",
    )


def _zip64(file: File, locator: bytes, end: int) -> tuple[int, int, int, int, int]:
    """Place, entries, directory's size and start, and shift, from the zip64 end record.

    It ends where its locator begins; the difference to where that says it begins is the shift.
    """
    _, disk, said, disks = _LOCATOR.unpack(locator)
    for place in (end - _END64.size, said):
        if not 0 <= place <= end - _END64.size:
            continue
        magic, rest, *numbers = _END64.unpack(file.read(place, _END64.size))
        if magic == b"PK\x06\x06" and place + 12 + rest == end:
            disk_here, disk_start, here, entries, size, start = numbers
            if disk or disks > 1 or disk_here or disk_start or here != entries:
                _refuse_disks(file.path)
            return place, entries, size, start, place - said
    raise FormatError(file.path, "the zip64 end record is not where it should be", end)


def _refuse_disks(path: bytes) -> NoReturn:
    raise UnsupportedError(path, "an archive over several disks; join it first")


def _entry(path: bytes, data: bytes, at: int, place: _Directory) -> tuple[_Entry, int]:
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
    if b"\0" in raw or name_length > _MOST_NAME:
        problem = f"names of at most {_MOST_NAME} bytes and no zeros expected, found {raw!r:.80}"
        raise LimitError(path, problem, place.start + at)
    name = raw.decode("ascii") if raw.isascii() else _name(path, raw, flags)
    if stored == _FULL32 or size == _FULL32 or header == _FULL32:
        extra = data[extras : extras + extra_length]
        size, stored, header = _wide(path, extra, name, (size, stored, header))
    if disk not in (0, _FULL16):
        _refuse_disks(path)
    return (header + place.shift, name, method, flags, crc, stored, size, raw), end


def _name(path: bytes, raw: bytes, flags: int) -> str:
    try:
        return raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise FormatError(path, f"member name {raw!r:.80} is not UTF-8") from None


def _wide(
    path: bytes, extra: bytes, name: str, values: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Size, stored and header from the zip64 extra field: those that are full in the entry."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            field = extra[at + 4 : at + 4 + length]
            numbers = iter([field[i : i + 8] for i in range(0, len(field) - 7, 8)])
            found = [next(numbers, b"") if value == _FULL32 else None for value in values]
            if b"" in found:
                break
            size, stored, header = (
                value if wide is None else int.from_bytes(wide, "little")
                for value, wide in zip(values, found, strict=True)
            )
            return size, stored, header
        at += 4 + length
    raise FormatError(
        path,
        f"member {name!r} is over 4 GB and has no zip64 sizes: its writer lost them; "
        f"write it again with NumPy",
    )


def _bounded(path: bytes, entries: list[_Entry], end: int) -> list[Member]:
    """The members with their ends. They must lie before the directory and apart."""
    headers = sorted([entry[0] for entry in entries])
    following = dict(zip(headers, [*headers[1:], end], strict=False))
    found = []
    for header, name, method, flags, crc, stored, size, raw in entries:
        end = following[header]
        if header + _LOCAL.size + stored > end:
            raise FormatError(
                path, f"member {name!r} overlaps another or the directory: a zip bomb", header
            )
        found.append(Member(name, method, flags, crc, stored, size, header, end, raw))
    if len(following) < len(headers):
        raise FormatError(path, "two members in one place: a zip bomb")
    return found
