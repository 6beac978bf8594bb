"""Reads rows of streams that are too large to be kept decoded in memory.

Rows that come in order are taken from a window that moves over the stream: it is decoded
forwards, and all but the last ``keep`` bytes are dropped. A row before the window means decoding
from the start again. Once as much was decoded as the stream is long, and where rows are not
contiguous (Fortran order), the stream is decoded into an unnamed file on disk and read from
there; see ``files.scratch``.
"""

import codecs
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.arguments import computed_once
from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.decoding import Bytes, Decoded, Elsewhere, Key, key_of, nowhere
from ndfeed.dataset.read_timing import inflating, spent
from ndfeed.errors import FormatError, ResourceError
from ndfeed.files import scratch
from ndfeed.files.file import File
from ndfeed.files.platform_calls import can
from ndfeed.files.scratch import Forward, Piece, Slabs
from ndfeed.formats import inflate
from ndfeed.formats.description import DEFLATE, GZIP, INLINE, LATIN1, RAW, c_strides
from ndfeed.formats.dtypes import itemsize
from ndfeed.formats.inflate import Decoding
from ndfeed.index.table import Ints

Chosen = slice | Ints

# Bytes of a large stream that are kept before the row that was read last.
_KEPT_BEHIND = 32 << 20
_STEP = 1 << 20  # bytes decoded at a time
_TOGETHER = 8 << 20  # bytes of the stream from which rows are taken at a time


class _Stretch(NamedTuple):
    """Rows of a stream: where the first starts, how far apart they are, and how long."""

    first: int
    step: int
    span: int


def _stretch(column: Column, part: int) -> _Stretch | None:
    """Say how the rows of a part lie in its stream; ``None`` where rows are not contiguous."""
    table, array = column.table, int(column.arrays[part])
    if column.coding[part] not in (DEFLATE, GZIP) or column.whole[part] or column.lead > 1:
        return None
    shape, place = table.dimensions(int(table.shape[array])), int(table.strides[array])
    size = itemsize(table.dtypes[table.dtype[array]])
    steps = c_strides(shape, size) if place < 0 else table.dimensions(place)
    inner = sum((n - 1) * step for n, step in zip(shape[1:], steps[1:], strict=True))
    # Rows may overlap, as windows do, if what they share is kept anyway.
    if min(steps) < 0 or (steps[0] < inner + size and inner + size > _STEP):
        return None
    return _Stretch(int(table.skip[array]), steps[0], inner + size)


def stream_size(column: Column, part: int) -> int:
    """Bytes of a part's stream once it is decoded."""
    table, array = column.table, int(column.arrays[part])
    return int(max(table.decoded[array], table.length[array]))


@computed_once
def largest_stream(column: Column) -> int:
    """Bytes of the largest stream of a column once it is decoded."""
    table, arrays = column.table, column.arrays
    return int(np.maximum(table.decoded[arrays], table.length[arrays]).max(initial=0))


def runs_forward(column: Column, part: int) -> bool:
    """Can rows that come in order be taken from a stream that is decoded once?"""
    return can.sparse and _stretch(column, part) is not None


class Streams(NamedTuple):
    """The streams of a group that hold several rows each and cannot be read row by row."""

    columns: list[Column]  # those that have any
    sizes: Ints  # per part: bytes of all its streams together
    most: int  # most streams that a part has

    @classmethod
    def of(cls, group: Group) -> "Streams":
        """List the streams of a group."""
        several = _count_together(group) > 1
        columns = [c for c in group.columns if not group.by_file and _find_coded(c, several).any()]
        sizes = np.zeros(len(group.starts) - 1, np.int64)
        counts = np.zeros(len(group.starts) - 1, np.int64)
        seen: list[Ints] = []
        for column in columns:
            table, arrays = column.table, column.arrays
            places = table.offset[arrays]
            fresh = _find_coded(column, several)
            for earlier in seen:  # the columns of a structured array share a stream
                fresh &= places != earlier
            seen.append(places)
            counts += fresh
            sizes += np.where(fresh, np.maximum(table.decoded[arrays], table.length[arrays]), 0)
        return cls(columns, sizes, int(counts.max(initial=0)))


def _find_coded(column: Column, several: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Per part: does its stream hold ``several`` rows that cannot be read alone?"""
    return np.asarray((column.coding != RAW) & (column.coding != INLINE) & several)


def _count_together(group: Group) -> NDArray[np.float64]:
    """Per part: how many samples are in its streams, in this part or in others."""
    number = np.cumsum(first_of_streams(group)) - 1
    found: NDArray[np.float64] = np.bincount(number, np.diff(group.starts))[number]
    return found


def first_of_streams(group: Group) -> NDArray[np.bool_]:
    """Per part: is it the first, or in other streams than the part before it?"""
    new = np.ones(len(group.starts) - 1, bool)
    if group.kind == "window" and len(new):
        new[1:] = False
        for column in group.columns:
            places = column.file, column.table.offset[column.arrays]
            new[1:] |= np.any([one[1:] != one[:-1] for one in places], axis=0)
    return new


class _Window:
    """The bytes [low, at) of a stream that is decoded forwards."""

    def __init__(self, column: Column, part: int) -> None:
        table, array = column.table, int(column.arrays[part])
        number = int(table.file[array])
        self.low = self.at = 0
        self._file = File(table.path(number), table.expected(number))
        self._close = weakref.finalize(self, self._file.close)
        place = int(table.offset[array]), int(table.length[array])
        self._size, crc = int(table.decoded[array]), int(table.crc[array])
        self._decoding = Decoding(self._file, place, int(table.coding[array]), self._size, crc)
        self._memory = Forward(self._size)
        self.data = self._memory.data
        spent.streams += 1

    def reach(self, start: int, end: int, keep: int) -> None:
        """Decode up to the bytes [start, end), keeping ``keep`` bytes before them if available."""
        if start - keep > self.at:
            self._memory.forget(self.low, self.at + _STEP)
            self._decoding.skip(start - keep - self.at)
            self.low = self.at = start - keep
        while self.at < end:
            upto = min(self.at + _STEP, end)
            self._decoding.read_into(self.data[self.at : upto].data)
            self.at = upto
            self._forget(min(start, upto - keep))
        if self.at == self._size:
            self._decoding.finish()
        self._file.recheck()

    def _forget(self, before: int) -> None:
        if before - self.low >= _STEP:
            self._memory.forget(self.low, before)
            self.low = before


class _Entry:
    """What is known of one stream."""

    __slots__ = ("lock", "piece", "spent", "window")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.window: _Window | None = None
        self.piece: Piece | None = None
        self.spent = 0  # bytes decoded in windows that were dropped


class Large:
    """Reads rows of large streams. Thread-safe.

    Streams of more than ``share`` bytes are large. Windows keep ``keep`` bytes, and there are at
    most ``windows`` of them. With ``forward=False`` every stream is decoded to disk at once: for
    rows that come in no order.
    """

    def __init__(self, share: int, keep: int, windows: int, *, forward: bool = True) -> None:
        self.share = share
        self.forward = forward
        self._keep = keep
        self._most = windows
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._slabs: Slabs | None = None
        self.budget = 0 if forward else scratch.room_in(scratch.folder())

    @property
    def held(self) -> int:
        """Bytes of memory that windows have."""
        with self._lock:
            windows = [entry.window for entry in self._entries.values()]
        return sum(window.at - window.low for window in windows if window is not None)

    @property
    def on_disk(self) -> int:
        """Bytes of streams that were decoded to disk."""
        with self._lock:
            pieces = [entry.piece for entry in self._entries.values()]
        return sum(p.data.nbytes for p in pieces if p is not None and not p.given_up)

    def rows(self, column: Column, part: int, rows: Ints) -> Iterator[tuple[Chosen, Bytes]]:
        """Yield some of ``rows`` at a time, by their place, and a stream with at least their bytes.

        What is yielded is valid until the next iteration.
        """
        entry = self._entry(column, part)
        stretch = _stretch(column, part) if self.forward and can.sparse else None
        piece = entry.piece
        if piece is None or piece.given_up:
            with entry.lock:
                piece = entry.piece
                if piece is None or piece.given_up:
                    if stretch is not None and self._goes_on(entry, column, part, stretch, rows):
                        yield from self._forwards(entry, column, part, stretch, rows)
                        return
                    piece = entry.piece = self._spill(column, part)
                    entry.window = None
        yield slice(None), piece.data

    def prepare(self, column: Column, part: int) -> None:
        """Decode a stream that is to be read from disk, unless that is done."""
        if not self.forward:
            for _ in self.rows(column, part, np.empty(0, np.int64)):
                pass

    def clear(self) -> None:
        """Drop every stream."""
        with self._lock:
            self._entries.clear()
            if self._slabs is not None:
                self._slabs.clear()

    def _entry(self, column: Column, part: int) -> _Entry:
        key = key_of(column, part)
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            having = [one for one in self._entries.values() if one.window is not None]
            for old in having[: -self._most]:
                if old is not entry and old.lock.acquire(blocking=False):
                    try:
                        if old.window is not None:
                            old.spent += old.window.at
                        old.window = None
                    finally:
                        old.lock.release()
            return entry

    def _goes_on(
        self, entry: _Entry, column: Column, part: int, stretch: _Stretch, rows: Ints
    ) -> bool:
        """Can these rows come from a window? Not if it would have to restart too often."""
        window = entry.window
        if not len(rows):
            return True
        start = stretch.first + int(rows.min()) * stretch.step
        if window is not None and start >= window.low:
            return True
        if window is not None:
            # Rows read in order to the end and now from the start are another pass.
            over = window.at >= stream_size(column, part) and start <= self._keep
            entry.spent = 0 if over else entry.spent + window.at
            entry.window = None
        if entry.spent < stream_size(column, part):
            return True
        try:
            self._disk(stream_size(column, part))
        except ResourceError:
            return True  # slow but correct
        return False

    def _forwards(
        self, entry: _Entry, column: Column, part: int, stretch: _Stretch, rows: Ints
    ) -> Iterator[tuple[Chosen, Bytes]]:
        order = np.argsort(rows, kind="stable")
        starts = stretch.first + rows[order] * stretch.step
        at = 0
        while at < len(order):
            stop = int(np.searchsorted(starts, starts[at] + _TOGETHER, side="right"))
            with inflating():
                if entry.window is None:
                    entry.window = _Window(column, part)
                end = int(starts[stop - 1]) + stretch.span
                try:
                    entry.window.reach(int(starts[at]), end, self._keep)
                except BaseException:
                    entry.window = None  # nobody knows how far it got
                    raise
            yield order[at:stop], entry.window.data
            at = stop

    def _disk(self, size: int) -> Slabs:
        with self._lock:
            if self._slabs is None:
                place = scratch.folder()
                if place is None:
                    raise scratch.no_room(None, size, 0)
                self._slabs = Slabs(place)
            if self._slabs.budget < size:
                raise scratch.no_room(self._slabs.place, size, self._slabs.budget)
            return self._slabs

    def _spill(self, column: Column, part: int) -> Piece:
        size = stream_size(column, part)
        table, number = column.table, int(column.file[part])
        try:
            piece = self._disk(size).piece(size)
        except ResourceError as error:
            raise ResourceError(table.path(number), error.problem, remedy=error.remedy) from None
        with inflating(), File(table.path(number), table.expected(number)) as file:
            at = 0
            for data in _pieces(file, column, part):
                piece.write(at, data)
                at += len(data)
        spent.streams += 1
        return piece


def make_decoded_cache(
    streams: Sequence[Streams],
    limit: int,
    keep: int | None = None,
    elsewhere: Elsewhere = nowhere,
) -> Decoded:
    """Return a cache for decoded streams in ``limit`` bytes of memory, read mostly in order.

    A batch needs a stream of every column, so all of a part's together must fit; where they do
    not, those that have more than their share are large.
    """
    together = sum(int(one.sizes.max(initial=0)) for one in streams)
    count = max(sum(one.most for one in streams), 1)
    share = limit if together <= limit else limit // count
    # Two windows each: one file may be left only after the next was started.
    kept = share // 2 if keep is None else min(share // 2, keep)
    return Decoded(limit, Large(share, max(kept, _STEP), 2 * count), elsewhere)


def make_cache(group: Group, limit: int) -> Decoded:
    """Return a cache of decoded streams of a group's files, in ``limit`` bytes of memory."""
    small = sum(largest_stream(column) for column in group.columns) <= limit
    return make_decoded_cache([] if small else [Streams.of(group)], limit, _KEPT_BEHIND)


def _pieces(file: File, column: Column, part: int) -> Iterator[memoryview]:
    """Decode the stream of a part in chunks; its checksum is compared at the end."""
    table, array = column.table, int(column.arrays[part])
    offset, length = int(table.offset[array]), int(table.length[array])
    coding, crc = int(column.coding[part]), int(table.crc[array])
    if coding == LATIN1:
        yield from _from_text(file, offset, length)
        return
    if coding == RAW:
        found = 0
        for at in range(offset, offset + length, _STEP):
            data = file.read(at, min(_STEP, offset + length - at))
            found = inflate.crc32(data, found)
            yield memoryview(data)
        if crc >= 0 and found != crc:
            raise inflate.checksum_error(file.path, crc, found)
        return
    size = int(table.decoded[array])
    decoding = Decoding(file, (offset, length), coding, size, crc)
    room = memoryview(bytearray(min(_STEP, size)))
    while decoding.at < size:
        some = room[: min(len(room), size - decoding.at)]
        decoding.read_into(some)
        yield some
    decoding.finish()


def _from_text(file: File, offset: int, length: int) -> Iterator[memoryview]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(offset, offset + length, _STEP):
            size = min(_STEP, offset + length - at)
            text = decoder.decode(file.read(at, size), final=at + size == offset + length)
            yield memoryview(text.encode("latin-1"))
    except UnicodeError:
        raise FormatError(file.path, "bytes kept as text are damaged", offset) from None
