"""Decode the codings of array streams, with bounded output.

Uses isal where it is installed, which is about three times as fast as zlib, and zlib otherwise.
Nothing here writes more than the caller's buffer holds: a stream that is longer is an error,
whatever its container states. A decompressor is used for one stream only.
"""

import zlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NoReturn, Protocol

from ndfeed.errors import ChecksumError, FormatError, TruncatedError
from ndfeed.files.file import File
from ndfeed.formats.description import DEFLATE, GZIP

engine: ModuleType = zlib
try:
    from isal import isal_zlib
except ImportError:
    pass
else:
    engine = isal_zlib

crc32: Callable[..., int] = engine.crc32

_BITS = {DEFLATE: -15, GZIP: 31}
# Pieces that stay in the L2 cache between decoding and copying.
_PIECE_IN = 64 << 10
_PIECE_OUT = 1 << 20
# Most headers fit into this many bytes, before and after decoding.
_HEAD_IN = 1024
_HEAD_OUT = 512
_FEW = 2048


class _Stream(Protocol):
    """The part of zlib's decompressor that is used."""

    eof: bool
    unconsumed_tail: bytes
    unused_data: bytes

    def decompress(self, data: bytes | memoryview, max_length: int = ..., /) -> bytes: ...


def head(file: File, place: tuple[int, int], coding: int, wanted: int) -> bytes:
    """Return the beginning of the stream at ``place``: ``wanted`` bytes or more, unless it ends."""
    offset, length = place
    data = file.read(offset, min(_HEAD_IN, length))
    # zlib is faster for so few bytes.
    decoder = zlib.decompressobj(_BITS[coding])
    try:
        begin = decoder.decompress(data, _HEAD_OUT)
    except zlib.error as error:
        _refuse_stream(file.path, str(error), offset)
    if len(begin) >= wanted:
        return begin
    found = bytearray()
    for piece in _pieces(file, offset, length, coding):
        found += piece
        if len(found) >= wanted:
            break
    return bytes(found)


def whole(
    path: bytes, data: bytes | memoryview, size: int, skip: int, out: memoryview, crc: int
) -> None:
    """Decode a deflate stream of ``size`` bytes held in memory; ``out`` begins at ``skip``."""
    # zlib for a label's few bytes: it finishes before isal has started.
    decoder = zlib if size < _FEW else engine
    stream: _Stream = decoder.decompressobj(wbits=_BITS[DEFLATE])
    try:
        decoded = stream.decompress(data, size + 1)
    except decoder.error as error:
        raise FormatError(path, f"the deflate stream is damaged: {error}") from None
    _check_length(path, len(decoded), size)
    if crc >= 0 and crc32(decoded) != crc:
        raise checksum_error(path, crc, crc32(decoded))
    out[:] = memoryview(decoded)[skip : skip + len(out)]


def again(path: bytes, data: bytes | memoryview, size: int, skip: int, out: memoryview) -> None:
    """Decode a deflate stream whose checksum and ``size`` have been verified before.

    This takes one step, which releases the GIL once instead of once per piece; with several
    threads it is faster than ``whole``, whose output is bounded.
    """
    decoder = zlib if size < _FEW else engine
    try:
        decoded = decoder.decompress(data, wbits=_BITS[DEFLATE], bufsize=size)
    except decoder.error as error:
        raise FormatError(path, f"the deflate stream is damaged: {error}") from None
    _check_length(path, len(decoded), size)
    out[:] = memoryview(decoded)[skip : skip + len(out)]


def stream(
    file: File, place: tuple[int, int], coding: int, size: int, skip: int, out: memoryview, crc: int
) -> None:
    """Decode the stream at ``place`` (offset and length) of ``file``; ``out`` begins at ``skip``.

    Reads and decodes in pieces, holding nothing but ``out``. The decoded stream must have
    ``size`` bytes, and the checksum ``crc`` unless that is negative; gzip has its own, which
    its decoder checks.
    """
    decoding = Decoding(file, place, coding, size, crc)
    decoding.skip(skip)
    decoding.read_into(out)
    decoding.finish()


class Decoding:
    """A stream of ``file`` at ``place``, decoded sequentially in bounded memory.

    The decoded stream must have ``size`` bytes and the checksum ``crc``, unless that is negative:
    ``finish`` checks both. ``at`` is how many bytes were read or skipped.
    """

    def __init__(
        self, file: File, place: tuple[int, int], coding: int, size: int, crc: int
    ) -> None:
        self.at = 0
        self._path = file.path
        self._pieces = _pieces(file, *place, coding)
        self._size = size
        self._crc = crc
        self._seen = 0
        self._decoded = 0
        self._rest = memoryview(b"")

    def read_into(self, out: memoryview) -> None:
        """Fill ``out`` with the next bytes."""
        while len(out):
            piece = self._next(len(out))
            out[: len(piece)] = piece
            out = out[len(piece) :]

    def skip(self, count: int) -> None:
        """Skip the next ``count`` bytes."""
        while count:
            count -= len(self._next(count))

    def finish(self) -> None:
        """Decode the rest, and check the length and checksum of the entire stream."""
        while self._more():
            self._rest = self._rest[:0]
        self.at = self._decoded
        _check_length(self._path, self._decoded, self._size)
        if self._crc >= 0 and self._seen != self._crc:
            raise checksum_error(self._path, self._crc, self._seen)

    def _next(self, most: int) -> memoryview:
        if not self._more():
            _check_length(self._path, self._decoded, self._size)
            raise TruncatedError(self._path, f"{self._size} bytes decoded, more are wanted")
        found, self._rest = self._rest[:most], self._rest[most:]
        self.at += len(found)
        return found

    def _more(self) -> bool:
        """Return whether there are, or may be, decoded bytes that were not returned yet."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._decoded += len(piece)
            if self._decoded > self._size:
                _check_length(self._path, self._decoded, self._size)
            if self._crc >= 0:
                self._seen = crc32(piece, self._seen)
            self._rest = memoryview(piece)
        return True


def _pieces(file: File, offset: int, length: int, coding: int) -> Iterator[bytes]:
    """Yield the decoded stream in pieces; consecutive gzip members count as one stream."""
    end = offset + length
    decoder: _Stream = engine.decompressobj(wbits=_BITS[coding])
    data = piece = b""
    while True:
        # After a full piece, more output may be left that needs no more input.
        if not data and len(piece) < _PIECE_OUT:
            if offset == end:
                raise TruncatedError(file.path, "the compressed stream ends early", offset)
            data, offset = _input(file, offset, end)
        try:
            piece = decoder.decompress(data, _PIECE_OUT)
        except engine.error as error:
            _refuse_stream(file.path, str(error), offset)
        data = decoder.unconsumed_tail
        yield piece
        if decoder.eof:
            if coding == GZIP:
                data, offset = _next_member(file, decoder.unused_data, offset, end)
            if coding != GZIP or not data:
                return
            decoder, piece = engine.decompressobj(wbits=_BITS[GZIP]), b""


def _input(file: File, offset: int, end: int) -> tuple[bytes, int]:
    """Return the next bytes to decode, and the offset of those after them."""
    size = min(_PIECE_IN, end - offset)
    return file.read(offset, size), offset + size


def _next_member(file: File, data: bytes, offset: int, end: int) -> tuple[bytes, int]:
    """Return what follows a gzip member: another member, or only zeros up to the end."""
    while True:
        data = data.lstrip(b"\0")
        if len(data) < 2 and offset < end:
            more, offset = _input(file, offset, end)
            data += more
            continue
        if data and not data.startswith(b"\x1f\x8b"):
            raise FormatError(
                file.path,
                "the bytes after the gzip stream are not another gzip member",
                offset - len(data),
            )
        return data, offset


def _refuse_stream(path: bytes, problem: str, offset: int) -> NoReturn:
    if "check" in problem.lower() or "crc" in problem.lower():
        found = (
            "the checksum at the end of the compressed stream does not match: the bytes are damaged"
        )
        raise ChecksumError(path, found, offset) from None
    raise FormatError(path, f"the compressed stream is damaged: {problem}", offset) from None


def _check_length(path: bytes, found: int, wanted: int) -> None:
    if found < wanted:
        raise TruncatedError(
            path, f"expected {wanted} bytes according to the header, decoded {found}"
        )
    if found > wanted:
        raise FormatError(path, f"expected {wanted} bytes according to the header, decoded more")


def checksum_error(path: bytes, wanted: int, found: int) -> ChecksumError:
    """Make the error for bytes whose checksum differs from the stored one."""
    return ChecksumError(
        path,
        f"expected checksum {wanted:08x}, found {found:08x}: the bytes are damaged",
        remedy="copy or save the file again",
    )
