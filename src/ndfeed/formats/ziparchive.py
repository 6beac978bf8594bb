"""The zip container, as far as .npz and .pt files need it.

Sizes and offsets come from the central directory alone; a local header is read once per
member, to skip its name and extra field, which differ from the central ones. Zip64, data
descriptors, archive comments and leading bytes (self-extractors) are supported.

Stricter than Python's zipfile, so that no two readers see different archives: the end record's
comment ends the file, zip64 records are where they claim to be, each entry ends before the next
and the last before the directory, a local header names its own member, names have no NUL, and the
directory has the announced entries and nothing else. Also refused: several disks, more than
``_MOST_MEMBERS`` entries, names of over ``_MOST_NAME`` bytes. ``Member`` tells the caller how a
member is compressed and whether it is encrypted.
"""

import codecs
import struct
from itertools import pairwise
from operator import eq
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
_DISKS = "an archive over several disks"
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
# Looked up here: using a codec by name for the first time imports its module.
_CP437 = codecs.lookup("cp437").decode


class Member(NamedTuple):
    """One entry of the central directory.

    ``header`` is where its local header begins, ``end`` where the next one or the directory
    does; ``raw`` is the name as stored.
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


def members(file: File) -> tuple[list[Member], tuple[str, ...]]:
    """Return every member in the order of the central directory, and remarks on the archive."""
    start, size, count, shift = _directory(file)
    if count > _MOST_MEMBERS or size > _MOST_DIRECTORY:
        raise LimitError(file.path, f"expected at most {_MOST_MEMBERS} members, found {count}")
    data = file.read(start, size)
    entries: list[_Entry] = []
    at = 0
    try:
        for _ in range(count):
            entry, at = _entry(data, at, shift)
            entries.append(entry)
    except FormatError as error:
        raise type(error)(file.path, error.problem, start + at, error.remedy) from None
    if at != size:
        raise FormatError(
            file.path,
            f"expected a directory of {at} bytes for {count} entries, found {size}",
            start,
        )
    notes = (f"{shift} bytes before the archive are ignored",) if shift else ()
    return _check_bounds(file.path, entries, start), notes


def data_offset(file: File, member: Member) -> int:
    """Return where the bytes of ``member`` begin."""
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


def _directory(file: File) -> tuple[int, int, int, int]:
    """Return start, size and entries of the central directory, and the bytes before the archive.

    They come from the end record, and from the zip64 record before it if there is one.
    """
    at, tail = _end_record(file)
    _, disk, first, here, entries, size, start, _ = _END.unpack_from(tail, at)
    if disk or first or here != entries:
        raise UnsupportedError(file.path, _DISKS, remedy="join it first")
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
    return start + shift, size, entries, shift


def _end_record(file: File) -> tuple[int, bytes]:
    """Return the file's tail, and where in it the end record begins."""
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
        "expected a zip end record, found none: the file is truncated, was written only in "
        "part, or is followed by other bytes",
        remedy="copy or save it again",
    )


def _zip64(file: File, locator: bytes, end: int) -> tuple[int, int, int, int, int]:
    """Return offset, entries, directory's size and start, and shift, from the zip64 end record.

    It ends where its locator begins; the shift is its offset minus the one the locator states.
    """
    _, disk, said, disks = _LOCATOR.unpack(locator)
    for place in (end - _END64.size, said):
        if not 0 <= place <= end - _END64.size:
            continue
        magic, rest, *numbers = _END64.unpack(file.read(place, _END64.size))
        if magic == b"PK\x06\x06" and place + 12 + rest == end:
            disk_here, disk_start, here, entries, size, start = numbers
            if disk or disks > 1 or disk_here or disk_start or here != entries:
                raise UnsupportedError(file.path, _DISKS, remedy="join it first")
            return place, entries, size, start, place - said
    raise FormatError(file.path, "the zip64 end record is not where it should be", end)


def _entry(data: bytes, at: int, shift: int) -> tuple[_Entry, int]:
    """Parse the entry at ``at``; return it and where the next one begins. Errors have no path."""
    names = at + _CENTRAL.size
    if names > len(data):
        raise FormatError("", "the central directory ends early")
    magic, flags, method, crc, stored, size, name_length, extra_length, comment, disk, header = (
        _CENTRAL.unpack_from(data, at)
    )
    extras = names + name_length
    end = extras + extra_length + comment
    if magic != b"PK\x01\x02" or end > len(data):
        raise FormatError("", "the central directory is damaged")
    raw = data[names:extras]
    name = raw.decode("ascii") if raw.isascii() else _decode_name(raw, flags)
    if "\0" in name or name_length > _MOST_NAME:
        problem = f"expected names of at most {_MOST_NAME} bytes and no zeros, found {name!r:.80}"
        raise LimitError("", problem)
    if stored == _FULL32 or size == _FULL32 or header == _FULL32:
        extra = data[extras : extras + extra_length]
        size, stored, header = _wide(extra, name, (size, stored, header))
    if disk not in (0, _FULL16):
        raise UnsupportedError("", _DISKS, remedy="join it first")
    return (header + shift, name, method, flags, crc, stored, size, raw), end


def _decode_name(raw: bytes, flags: int) -> str:
    try:
        return raw.decode() if flags & _UTF8 else _CP437(raw)[0]
    except UnicodeDecodeError:
        raise FormatError("", f"member name {raw!r:.80} is not UTF-8") from None


def _wide(extra: bytes, name: str, values: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return size, stored and header from the zip64 extra field, where the entry's are full."""
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
        "",
        f"member {name!r} is over 4 GB and has no zip64 sizes: its writer lost them",
        remedy="write it again with NumPy",
    )


def _check_bounds(path: bytes, entries: list[_Entry], end: int) -> list[Member]:
    """Return the members with their ends; they must be before the directory and not overlap."""
    headers = [entry[0] for entry in entries]
    # Sorted, not in a dict: a file could choose numbers that all have the same hash.
    ascending = sorted(headers)
    if any(map(eq, ascending, ascending[1:])):
        raise FormatError(path, "two members in one place: a zip bomb")
    ends = [*headers[1:], end][: len(headers)]
    if headers != ascending:
        order = sorted(range(len(headers)), key=headers.__getitem__)
        for one, following in pairwise(order):
            ends[one] = headers[following]
        ends[order[-1]] = end
    found = []
    for (header, name, method, flags, crc, stored, size, raw), end in zip(
        entries, ends, strict=True
    ):
        if header + _LOCAL.size + stored > end:
            raise FormatError(
                path, f"member {name!r} overlaps another or the directory: a zip bomb", header
            )
        found.append(Member(name, method, flags, crc, stored, size, header, end, raw))
    return found
