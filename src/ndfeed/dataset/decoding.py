"""Decodes arrays that cannot be mapped: compressed, strided, or stored in the index itself.

``view`` lays an array over the bytes of its stream; ``decode`` reads and decodes a stream;
``Decoded`` caches those that will be needed again.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.arguments import computed_once
from ndfeed.dataset.column import Column
from ndfeed.errors import FormatError
from ndfeed.files import platform_calls
from ndfeed.files.file import File
from ndfeed.formats import inflate
from ndfeed.formats.description import DEFLATE, INLINE, LATIN1, RAW
from ndfeed.formats.dtypes import EXTENDED, delivered
from ndfeed.index.table import Ints, Table

if TYPE_CHECKING:
    from ndfeed.dataset.large_members import Large

Bytes = NDArray[np.uint8]
Key = tuple[int, int, int]  # a table, a file in it, and where a stream starts in that

# Decodes the whole stream of a part in another process; ``None`` where that is not to be done.
Elsewhere = Callable[[Column, int], Bytes | None]

_AT_ONCE = 1 << 20
_MOST_KEPT = 512 << 20


def stored_dtype(table: Table, array: int) -> np.dtype:
    """Return the NumPy dtype of an array's values as they are read."""
    name = table.dtypes[table.dtype[array]]
    return delivered(name) if name in EXTENDED else np.dtype(name)


def view(column: Column, part: int, data: Bytes, start: int) -> NDArray[np.generic]:
    """View the samples of a part; ``data[start]`` is the first byte of its first element."""
    table, array = column.table, int(column.arrays[part])
    dtype = stored_dtype(table, array)
    shape = table.dimensions(int(table.shape[array]))
    strides = table.strides[array]
    steps = None if strides < 0 else table.dimensions(int(strides))
    # Through opaque bytes: NumPy makes arrays of some dtypes only as views of others.
    opaque = np.dtype((np.void, dtype.itemsize))
    found = np.ndarray(shape, opaque, data, start, steps).view(dtype)
    return found[None] if column.whole[part] else found


def inline_all(column: Column, part: Ints) -> NDArray[np.generic]:
    """Return scalars that the index holds itself, one for each ``part``."""
    dtype = delivered(column.field.type)
    bits = column.table.offset[column.arrays[part]].astype("<i8").view(np.uint8)
    return np.ascontiguousarray(bits.reshape(-1, 8)[:, : dtype.itemsize]).view(dtype).reshape(-1)


def decoded_bytes(column: Column, part: int) -> int:
    """Return the bytes of the whole stream of a part, decoded unless it is raw."""
    table, array = column.table, int(column.arrays[part])
    return int((table.length if table.coding[array] == RAW else table.decoded)[array])


def decode(file: File, column: Column, part: int) -> Bytes:
    """Read the whole stream of a part, decoded unless it is raw."""
    size = decoded_bytes(column, part)
    platform_calls.require_memory(size, file.path)
    out = np.empty(size, np.uint8)
    decode_whole(file, column, part, out)
    return out


def decode_whole(file: File, column: Column, part: int, out: Bytes) -> None:
    """Read the whole stream of a part into ``out``, decoded unless it is raw."""
    table, array = column.table, int(column.arrays[part])
    if table.coding[array] != RAW:
        decode_into(file, column, part, out.data, 0)
        return
    file.read_into(int(table.offset[array]), [out.data])
    crc = int(table.crc[array])
    if crc >= 0 and (found := inflate.crc32(out)) != crc:
        raise inflate.checksum_error(file.path, crc, found)


def decode_into(
    file: File, column: Column, part: int, out: memoryview, skip: int | None = None
) -> None:
    """Decode a part's stream into ``out``, from byte ``skip`` on: by default its elements."""
    table, array = column.table, int(column.arrays[part])
    offset, length = int(table.offset[array]), int(table.length[array])
    coding, crc = int(table.coding[array]), int(table.crc[array])
    size = int(table.decoded[array])
    if skip is None:
        skip = int(table.skip[array])
    if coding == LATIN1:
        out[:] = memoryview(_from_text(file, table, array))[skip : skip + len(out)]
    elif coding == DEFLATE and length <= _AT_ONCE and size <= _AT_ONCE:
        inflate.whole(file.path, file.read(offset, length), size, skip, out, crc)
    else:
        inflate.stream(file, (offset, length), coding, size, skip, out, crc)


def verify(columns: Sequence[Column]) -> None:
    """Compare the checksums of all stored members of columns of one table, each once."""
    table = columns[0].table
    # By place: the columns of a structured array are one member, perhaps of thousands.
    members = {
        (int(table.file[array]), int(table.offset[array])): array
        for column in columns
        for array in column.arrays[
            (table.crc[column.arrays] >= 0) & (column.coding == RAW)
        ].tolist()
    }
    for (number, start), array in members.items():
        wanted, end = int(table.crc[array]), start + int(table.length[array])
        with File(table.path(number), table.expected(number)) as file:
            found = 0
            for at in range(start, end, _AT_ONCE):
                found = inflate.crc32(file.read(at, min(_AT_ONCE, end - at)), found)
        if found != wanted:
            raise inflate.checksum_error(file.path, wanted, found)


def _from_text(file: File, table: Table, array: int) -> bytes:
    offset = int(table.offset[array])
    try:
        found = file.read(offset, int(table.length[array])).decode("utf-8").encode("latin-1")
    except UnicodeError:
        raise FormatError(file.path, "bytes kept as text are damaged", offset) from None
    if len(found) != table.decoded[array]:
        raise FormatError(file.path, "bytes kept as text have another length", offset)
    return found


def nowhere(column: Column, part: int) -> None:
    """Decode nothing: the calling thread does."""


class Decoded:
    """A cache of decoded streams, least recently used dropped first. Thread-safe.

    Holds at most ``limit`` bytes, including streams being decoded, except that the newest stream
    is always kept: it had to be decoded whole anyway, and the next row is most likely in it too.
    Streams too large for that are handled by ``large``, if there is one. A stream that several
    threads want is decoded by one of them, in another process if ``elsewhere`` does that.
    """

    def __init__(
        self, limit: int, large: "Large | None" = None, elsewhere: Elsewhere = nowhere
    ) -> None:
        self.limit = limit
        self.large = large  # handles the streams that are not to be decoded whole in memory
        self.elsewhere = elsewhere
        self._lock = threading.Lock()
        self._streams: OrderedDict[Key, Bytes] = OrderedDict()
        self._under_way: dict[Key, SimpleQueue[None]] = {}  # with a queue that signals the end
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of memory of all streams cached or being decoded."""
        return self._held + (0 if self.large is None else self.large.held)

    @property
    def room(self) -> int:
        """Bytes that may be decoded ahead of use: of memory, or of a disk if one is used."""
        return self.limit if self.large is None or self.large.forward else self.large.budget

    def stream(self, key: Key, size: int, decode: Callable[[], Bytes]) -> Bytes:
        """Return the stream cached under ``key``, or else ``size`` bytes from ``decode``."""
        found = self.cached(key)
        return self._stream(key, size, decode) if found is None else found

    def cached(self, key: Key) -> Bytes | None:
        """Return the stream cached under ``key``, if there is one."""
        with self._lock:
            found = self._streams.get(key)
            if found is not None:
                self._streams.move_to_end(key)
            return found

    def _stream(self, key: Key, size: int, decode: Callable[[], Bytes]) -> Bytes:
        """Wait for another thread that decodes the stream, or decode it."""
        mine: SimpleQueue[None] = SimpleQueue()
        found = None
        try:
            while True:
                with self._lock:
                    if key in self._streams:
                        self._streams.move_to_end(key)
                        return self._streams[key]
                    told = self._under_way.get(key)
                    if told is None:
                        self._make_room(size)
                        self._held += size
                        self._under_way[key] = mine
                        break
                told.get()
                told.put(None)  # for the next thread that waits
            found = decode()
            return found
        finally:
            # Here, and without a call in it: an interrupt finds all of this done or none.
            with self._lock:
                if key in self._under_way and self._under_way[key] is mine:
                    del self._under_way[key]
                    self._held -= size
                    if found is not None:
                        self._streams[key] = found
                        self._held += found.nbytes
            mine.put(None)

    def _make_room(self, size: int) -> None:
        while self._streams and self._held + size > self.limit:
            oldest = next(iter(self._streams))
            self._held -= self._streams[oldest].nbytes
            del self._streams[oldest]

    def retire(self, keys: Iterable[Key]) -> None:
        """Drop these streams before any others: they will not be needed soon."""
        with self._lock:
            for key in keys:
                if key in self._streams:
                    self._streams.move_to_end(key, last=False)

    def clear(self) -> None:
        """Drop every stream."""
        with self._lock:
            self._held -= sum(stream.nbytes for stream in self._streams.values())
            self._streams.clear()
        if self.large is not None:
            self.large.clear()


def kept_by_default() -> int:
    """Bytes of decoded streams that reading caches for each source by default."""
    return min(_MOST_KEPT, platform_calls.memory_bytes() // 16)


def key_of(column: Column, part: int) -> Key:
    """Return the key under which a part's stream is cached."""
    table, array = column.table, int(column.arrays[part])
    return id(table), int(table.file[array]), int(table.offset[array])


def is_inline(column: Column, part: int) -> bool:
    """Does the index hold this array itself?"""
    return int(column.coding[part]) == INLINE


@computed_once
def are_inline(column: Column) -> bool:
    """Does the index hold every array of a column itself?"""
    return bool((column.coding == INLINE).all())
