"""Files made byte by byte, so that each part of one can lie on its own."""

import io
import struct
import warnings
import zlib
from dataclasses import dataclass

import numpy as np

FULL = 0xFFFFFFFF


def saved(array, version=None):
    """The bytes that NumPy writes."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of versions that old readers do not know
        np.lib.format.write_array(file, np.asanyarray(array), version)
    return file.getvalue()


def npy(descr, shape, data=b"", *, fortran=False, version=1, align=64):
    """A .npy file; ``descr`` and ``shape`` are Python source text or values."""
    spelled = [text if isinstance(text, str) else repr(text) for text in (descr, shape)]
    if isinstance(descr, str) and descr[:1] not in "'\"[({":
        spelled[0] = repr(descr)
    text = f"{{'descr': {spelled[0]}, 'fortran_order': {fortran}, 'shape': {spelled[1]}, }}"
    return npy_text(text, data, version=version, align=align)


def npy_text(text, data=b"", *, version=1, align=64, length=None):
    """A .npy file with this header text, or one that claims to be ``length`` long."""
    encoded = text.encode("utf-8" if version == 3 else "latin-1")
    start = 10 if version == 1 else 12
    encoded += b" " * (-(start + len(encoded) + 1) % align) + b"\n"
    size = (len(encoded) if length is None else length).to_bytes(start - 8, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + encoded + data


@dataclass
class Entry:
    """A zip member. What is ``None`` is told truthfully."""

    name: str | bytes
    data: bytes = b""  # as stored
    method: int = 0
    size: int | None = None
    stored: int | None = None
    crc: int | None = None
    flags: int = 0
    header: int | None = None
    local_name: bytes | None = None
    local_extra: bytes = b""
    extra: bytes = b""
    descriptor: bytes = b""
    disk: int = 0

    @property
    def raw(self):
        return self.name.encode() if isinstance(self.name, str) else self.name


def deflated(name, content, level=6, **lies):
    """A deflated member of some content."""
    squeeze = zlib.compressobj(level, zlib.DEFLATED, -15)
    data = squeeze.compress(content) + squeeze.flush()
    given = {"size": len(content), "crc": zlib.crc32(content)} | lies
    return Entry(name, data, 8, **given)


def archive(*entries, junk=b"", comment=b"", zip64=False, **lies):
    """A zip archive. ``lies`` replace ``count``, ``directory``, ``start``, ``locator`` and such."""
    body = bytearray()
    central = bytearray()
    for entry in entries:
        size = len(entry.data) if entry.size is None else entry.size
        stored = len(entry.data) if entry.stored is None else entry.stored
        crc = zlib.crc32(entry.data) if entry.crc is None else entry.crc
        header = len(body) if entry.header is None else entry.header
        local_name = entry.raw if entry.local_name is None else entry.local_name
        body += struct.pack(
            "<4sHHHHHIIIHH", b"PK\x03\x04", 20, entry.flags, entry.method, 0, 33, crc,
            min(stored, FULL), min(size, FULL), len(local_name), len(entry.local_extra),
        )  # fmt: skip
        body += local_name + entry.local_extra + entry.data + entry.descriptor
        extra = entry.extra
        if max(size, stored, header) >= FULL and not extra:
            wide = [struct.pack("<Q", n) for n in (size, stored, header) if n >= FULL]
            extra = struct.pack("<HH", 1, 8 * len(wide)) + b"".join(wide)
        central += struct.pack(
            "<4sHHHHHHIIIHHHHHII", b"PK\x01\x02", 20, 20, entry.flags, entry.method, 0, 33, crc,
            min(stored, FULL), min(size, FULL), len(entry.raw), len(extra), 0, entry.disk, 0, 0,
            min(header, FULL),
        )  # fmt: skip
        central += entry.raw + extra
    count = lies.get("count", len(entries))
    directory = lies.get("directory", len(central))
    start = lies.get("start", len(body))
    end = b""
    if zip64:
        place = lies.get("locator", len(body) + len(central))
        end += struct.pack(
            "<4sQHHIIQQQQ", b"PK\x06\x06", lies.get("rest", 44), 45, 45, 0, 0, count, count,
            directory, start,
        )  # fmt: skip
        end += lies.get("between", b"")
        end += struct.pack("<4sIQI", b"PK\x06\x07", 0, place, 1)
        count, directory, start = 0xFFFF, FULL, FULL
    end += struct.pack(
        "<4sHHHHIIH", b"PK\x05\x06", lies.get("disk", 0), 0, count, count, directory, start,
        lies.get("comment_length", len(comment)),
    )  # fmt: skip
    return junk + bytes(body) + bytes(central) + end + comment
