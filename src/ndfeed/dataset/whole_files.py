"""Reads samples that are whole files: open, read straight into the batch, close, file by file.

Files are visited in the order of the table, whatever the order of the batch, and each once.
Raw arrays that lie close together come with one read; the bytes between them are read too and
dropped. The checksum of a stored member is compared the first time this process reads it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column
from ndfeed.dataset.decoding import Bytes, decode, decode_into, inline_all, is_inline, view
from ndfeed.dataset.destination import Destination
from ndfeed.dataset.read_timing import inflating, reading
from ndfeed.files.file import File, Stretch, fetch
from ndfeed.formats import inflate
from ndfeed.formats.description import DEFLATE, INLINE, RAW
from ndfeed.formats.inflate import checksum_error, crc32
from ndfeed.index.table import Ints

_GAP = 4096
_AT_ONCE = 1 << 20


class _Run(NamedTuple):
    """Columns read with one call. Per column and file: bytes before it, and its own."""

    columns: list[int]
    begins: Ints
    gaps: Ints
    sizes: Ints


class WholeFiles:
    """Fills batches whose samples are whole files."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self._columns = columns
        self._inline = [i for i, c in enumerate(columns) if (c.coding == INLINE).all()]
        self._direct = [i for i, c in enumerate(columns) if not (c.coding.any() or c.strided.any())]
        self._others = len(columns) - len(self._inline) - len(self._direct)
        # Per column and file: there is no checksum, or it was compared.
        self._sound = [column.table.crc[column.arrays] < 0 for column in columns]

    def fill(self, part: Ints, targets: Sequence[Destination]) -> None:
        """Read the files ``part`` into ``targets``, one for each column."""
        order = np.argsort(part, kind="stable")
        files = part[order]
        fresh = np.ones(len(files), bool)
        fresh[1:] = files[1:] != files[:-1]
        once = order[fresh]
        if self._others:
            self._fill_each(part[once], once.tolist(), targets)
        else:
            self._fill_directly(part[once], once.tolist(), targets)
            for c in self._inline:
                targets[c].array[...] = inline_all(self._columns[c], part)
        for target, column in zip(targets, self._columns, strict=True):
            if column.any_swapped:
                which = np.zeros(len(part), bool)
                which[once] = (column.swapped & ~column.strided)[part[once]]
                target.swap(which)
        if len(once) < len(part):
            source = np.repeat(once, np.diff(np.append(np.flatnonzero(fresh), len(files))))
            for at in np.flatnonzero(~fresh).tolist():
                for target in targets:
                    target.copy(int(source[at]), int(order[at]))

    def _fill_directly(self, part: Ints, at: list[int], targets: Sequence[Destination]) -> None:
        """Read raw arrays in C order, with as few reads as their places allow."""
        for run in self._runs(part):
            unchecked = any(not self._sound[c][part].all() for c in run.columns)
            table = self._columns[run.columns[0]].table
            if unchecked:
                # A member's checksum covers the .npy header before it.
                skip = table.skip[self._columns[run.columns[0]].arrays[part]]
                run.gaps[0] = np.minimum(skip, _GAP)
                run.begins[:] -= run.gaps[0]
            files = self._columns[run.columns[0]].file[part]
            stretches = map(
                Stretch,
                table.paths_of(files),
                table.identity[files].tolist(),
                run.begins.tolist(),
                self._buffers(run, at, targets),
                (run.gaps.sum(axis=0) + run.sizes.sum(axis=0)).tolist(),
            )
            with reading():
                if not unchecked:
                    fetch(stretches)
                    continue
                every = zip(part.tolist(), stretches, run.gaps.T.tolist(), strict=True)
                for p, stretch, gaps in every:
                    fetch((stretch,))
                    self._check(stretch, p, run.columns, gaps)

    def _runs(self, part: Ints) -> Iterator[_Run]:
        """Yield the raw columns by place, split wherever some file has a large gap."""
        if not self._direct:
            return
        starts = np.stack([self._columns[c].first[part] for c in self._direct])
        sizes = np.stack([self._columns[c].nbytes[part] for c in self._direct])
        order = np.argsort(starts[:, 0], kind="stable")
        starts, sizes = starts[order], sizes[order]
        gaps = np.zeros_like(starts)
        gaps[1:] = starts[1:] - starts[:-1] - sizes[:-1]
        apart = ((gaps < 0) | (gaps > _GAP)).any(axis=1)
        ends = [*np.flatnonzero(apart).tolist(), len(order)]
        columns = [self._direct[i] for i in order.tolist()]
        for first, end in zip([0, *ends], ends, strict=False):
            if first < end:
                gaps[first] = 0
                run = slice(first, end)
                yield _Run(columns[run], starts[first].copy(), gaps[run], sizes[run])

    def _buffers(
        self, run: _Run, at: list[int], targets: Sequence[Destination]
    ) -> Iterator[list[memoryview]]:
        """For every file: return where its bytes go, and a buffer for those between them."""
        memories = [
            [targets[c].memory(i, size) for i, size in zip(at, sizes, strict=True)]
            for c, sizes in zip(run.columns, run.sizes.tolist(), strict=True)
        ]
        if not run.gaps.any():
            yield from map(list, zip(*memories, strict=True))
            return
        holes = [memoryview(bytearray(_GAP)) for _ in run.columns]
        for gaps, parts in zip(run.gaps.T.tolist(), zip(*memories, strict=True), strict=True):
            found = []
            for gap, hole, memory in zip(gaps, holes, parts, strict=True):
                if gap:
                    found.append(hole[:gap])
                found.append(memory)
            yield found

    def _check(self, stretch: Stretch, part: int, columns: list[int], gaps: list[int]) -> None:
        """Compare the checksums of the members just read that were not compared before."""
        held = iter(stretch.buffers)
        for c, gap in zip(columns, gaps, strict=True):
            before = next(held) if gap else memoryview(b"")
            data = next(held)
            if not self._sound[c][part]:
                skip = int(self._columns[c].table.skip[self._columns[c].arrays[part]])
                if skip <= gap:
                    self._compare(stretch.path, c, part, before[gap - skip :], data)

    def _compare(
        self, path: bytes, c: int, part: int, header: bytes | memoryview, data: memoryview
    ) -> None:
        """Compare a member's checksum, if this is all of it."""
        column = self._columns[c]
        array = int(column.arrays[part])
        if len(header) + len(data) == column.table.length[array]:
            wanted, found = int(column.table.crc[array]), crc32(data, crc32(header))
            if found != wanted:
                raise checksum_error(path, wanted, found)
        self._sound[c][part] = True

    def _fill_each(self, part: Ints, at: list[int], targets: Sequence[Destination]) -> None:
        """Read files with arrays that are coded or strided; small ones are decoded from memory."""
        begins, ends, simple = self._spans(part)
        small = simple & (ends - begins <= _AT_ONCE)
        places = np.array(at, np.int64)
        lengths = (ends - begins)[small]
        # In groups small enough that what is read stays in the CPU cache until it is decoded.
        group = np.cumsum(lengths) // _AT_ONCE
        for chunk in np.split(np.flatnonzero(small), np.flatnonzero(np.diff(group)) + 1):
            if len(chunk):
                spans = begins[chunk], ends[chunk]
                self._fill_small(part[chunk], spans, places[chunk].tolist(), targets)
        self._fill_large(part[~small], places[~small].tolist(), targets)

    def _spans(self, part: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """For every file return the range that holds its streams, and whether all are simple."""
        begins = np.full(len(part), np.iinfo(np.int64).max)
        ends = np.zeros(len(part), np.int64)
        simple = np.ones(len(part), bool)
        for column in self._columns:
            table, arrays, coding = column.table, column.arrays[part], column.coding[part]
            simple &= ((coding == RAW) | (coding == DEFLATE)) & ~column.strided[part]
            begins = np.minimum(begins, table.offset[arrays])
            ends = np.maximum(ends, table.offset[arrays] + table.length[arrays])
        return begins, ends, simple

    def _fill_small(
        self, part: Ints, spans: tuple[Ints, Ints], at: list[int], targets: Sequence[Destination]
    ) -> None:
        """Read all files first, then decode: fewer calls, and fewer switches between threads."""
        table, files = self._columns[0].table, self._columns[0].file[part]
        begins, lengths = spans[0], spans[1] - spans[0]
        stops = np.cumsum(lengths)
        held = memoryview(bytearray(int(stops[-1])))
        paths = list(table.paths_of(files))
        rooms = [
            [held[a:b]] for a, b in zip((stops - lengths).tolist(), stops.tolist(), strict=True)
        ]
        known = table.identity[files].tolist()
        with reading():
            fetch(map(Stretch, paths, known, begins.tolist(), rooms, lengths.tolist()))
        with inflating():
            self._decode_small(part, begins, paths, rooms, at, targets)

    def _decode_small(
        self,
        part: Ints,
        begins: Ints,
        paths: list[bytes],
        rooms: list[list[memoryview]],
        at: list[int],
        targets: Sequence[Destination],
    ) -> None:
        for c, (column, target) in enumerate(zip(self._columns, targets, strict=True)):
            sound = self._sound[c]
            streams = _streams(column, part, begins)
            for p, i, path, (data,), stream in zip(
                part.tolist(), at, paths, rooms, streams, strict=True
            ):
                _decode(path, stream, data, target.memory(i, stream.nbytes), not sound[p])
                sound[p] = True

    def _fill_large(self, part: Ints, at: list[int], targets: Sequence[Destination]) -> None:
        """Read array by array, whatever the coding, order and size."""
        table = self._columns[0].table
        for p, i in zip(part.tolist(), at, strict=True):
            number = int(self._columns[0].file[p])
            with File(table.path(number), table.expected(number)) as file:
                held = _Held(file)
                for c, (column, target) in enumerate(zip(self._columns, targets, strict=True)):
                    _read_array(held, column, p, target, i)
                    if not self._sound[c][p] and column.coding[p] == RAW and not column.strided[p]:
                        array = int(column.arrays[p])
                        header = file.read(int(table.offset[array]), int(table.skip[array]))
                        data = target.memory(i, int(column.nbytes[p]))
                        self._compare(file.path, c, p, header, data)


class _Stream(NamedTuple):
    """Where one array lies within the range of its file that was read."""

    start: int
    length: int
    skip: int
    decoded: int
    crc: int
    raw: bool
    nbytes: int


def _streams(column: Column, part: Ints, begins: Ints) -> Iterator[_Stream]:
    """Yield a column's arrays in some files, as plain numbers."""
    table, arrays = column.table, column.arrays[part]
    columns = (
        table.offset[arrays] - begins,
        table.length[arrays],
        table.skip[arrays],
        table.decoded[arrays],
        table.crc[arrays],
        column.coding[part] == RAW,
        column.nbytes[part],
    )
    return map(_Stream, *(values.tolist() for values in columns))


def _decode(path: bytes, stream: _Stream, data: memoryview, out: memoryview, checked: bool) -> None:
    """Decode a raw or deflated stream that is in memory already."""
    own = data[stream.start : stream.start + stream.length]
    if not stream.raw:
        if checked:
            inflate.whole(path, own, stream.decoded, stream.skip, out, stream.crc)
        else:
            inflate.again(path, own, stream.decoded, stream.skip, out)
        return
    out[:] = own[stream.skip : stream.skip + stream.nbytes]
    if checked and (found := crc32(own)) != stream.crc:
        raise checksum_error(path, stream.crc, found)


class _Held:
    """An open file and the stream decoded last: a structured member serves many columns."""

    def __init__(self, file: File) -> None:
        self.file = file
        self._offset = -1
        self._stream: Bytes | None = None

    def stream(self, column: Column, part: int) -> Bytes:
        """Decode the whole stream of a part."""
        offset = int(column.table.offset[column.arrays[part]])
        if self._stream is None or self._offset != offset:
            self._stream = None  # before the next one is allocated: one is held at a time
            self._stream, self._offset = decode(self.file, column, part), offset
        return self._stream


def _read_array(held: _Held, column: Column, part: int, target: Destination, at: int) -> None:
    """Read one array of an open file, whatever its coding and order, into sample ``at``."""
    file = held.file
    size = int(column.nbytes[part])
    if is_inline(column, part):
        target.sample(at)[...] = inline_all(column, np.array([part]))[0]
    elif not size:
        return
    elif column.strided[part]:
        data = held.stream(column, part)
        skip = int(column.table.skip[column.arrays[part]])
        target.sample(at)[...] = view(column, part, data, skip)[0]
    elif column.coding[part] == RAW:
        with reading():
            file.read_into(int(column.first[part]), [target.memory(at, size)])
    else:
        with inflating():
            decode_into(file, column, part, target.memory(at, size))
