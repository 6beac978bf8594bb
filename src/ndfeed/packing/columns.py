"""The files of a packed dataset while they are written, and where rows go in them.

A *stretch* is consecutive bytes of a column that were written. It has a start and an end, in
bytes after the header, and a checksum for its share of every block that it touches. Stretches
that together cover a column give the checksums of its blocks without reading it again.

``OrderedStore`` writes consecutive rows of the target, and knows the checksums of what it wrote.
``ScatteredStore`` writes rows from anywhere to anywhere; their checksums are computed by reading
the columns when all rows are written.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.arguments import lazy
from ndfeed.dataset.row_ranges import stretches as find_stretches
from ndfeed.files.folder import Folder
from ndfeed.files.write import Output
from ndfeed.formats.checksums import combined
from ndfeed.formats.inflate import crc32
from ndfeed.formats.manifest import Column, Field, Part, Role, file_names, rows_per_block
from ndfeed.formats.npy import preamble
from ndfeed.index.table import Ints

_SUMMED = 64 << 20  # bytes that one task reads for their checksums


class Spot(NamedTuple):
    """A column: its part, the place of its field, its role."""

    part: int
    field: int
    role: Role

    def __str__(self) -> str:
        return f"{self.part}.{self.field}.{self.role}"


class ColumnFile(NamedTuple):
    """A column's file: its name below the dataset's folder, and what is in it."""

    name: bytes
    rows: int
    row_bytes: int
    header: bytes
    per_block: int

    @property
    def data(self) -> int:
        """Bytes after the header."""
        return self.rows * self.row_bytes

    @property
    def size(self) -> int:
        """Bytes in total."""
        return len(self.header) + self.data

    @property
    def block(self) -> int:
        """Bytes of a whole block."""
        return self.per_block * self.row_bytes


@dataclass(frozen=True)
class Columns:
    """All columns: fields, and for each part its folder's number, rows and numbers of values.

    ``values`` has a list for each part, with the number of values of each ragged field and
    ``None`` for other fields, or where it is not known yet.
    """

    fields: tuple[Field, ...]
    first: int
    rows: tuple[int, ...]
    values: tuple[tuple[int | None, ...], ...]

    def folder(self, part: int) -> str:
        """The name of a part's folder."""
        return f"{self.first + part:05}"

    def spots(self) -> list[Spot]:
        """Every column, in the order of the manifest."""
        return [
            Spot(part, number, role)
            for part in range(len(self.rows))
            for number, field in enumerate(self.fields)
            for role in field.roles
        ]

    def known_spots(self) -> list[Spot]:
        """Every column whose number of rows is known by now."""
        return [
            spot
            for spot in self.spots()
            if spot.role != "values" or self.values[spot.part][spot.field] is not None
        ]

    @property
    def known_bytes(self) -> int:
        """The size of all files, as far as it is known."""
        return sum(self.file(spot).size for spot in self.known_spots())

    def sum_ranges(self) -> list[tuple[Spot, int, int]]:
        """The byte ranges after headers to read for checksums, cut between blocks."""
        found = []
        for spot in self.spots():
            if spot.role in ("rows", "values"):
                file = self.file(spot)
                step = max(_SUMMED // max(file.block, 1), 1) * file.block
                starts = range(0, file.data, step or 1)
                found += [(spot, at, min(at + step, file.data)) for at in starts]
        return found

    def file(self, spot: Spot) -> ColumnFile:
        """The file of a column."""
        field = self.fields[spot.field]
        rows = self.rows[spot.part]
        if spot.role == "values":
            known = self.values[spot.part][spot.field]
            if known is None:
                raise ValueError(f"{field}: its number of values is not known yet")
            rows = known
        elif spot.role == "offsets":
            rows += 1
        dtype, shape = field.stored(spot.role)
        size = field.row_bytes(spot.role)
        name = f"{self.folder(spot.part)}/{self._names[field.name, spot.role]}"
        header = preamble(dtype, (rows, *shape))
        return ColumnFile(name.encode(), rows, size, header, rows_per_block(size, rows))

    @lazy
    def _names(self) -> dict[tuple[str, Role], str]:
        return file_names(self.fields)

    def describe_part(self, part: int, stretches: "dict[Spot, list[Stretch]]") -> Part:
        """Return the manifest entry of a part, all of whose columns are covered by stretches."""
        columns = []
        for spot in self.spots():
            if spot.part == part:
                file = self.file(spot)
                sums = combine_checksums(file, stretches.get(spot, []))
                name = file.name.decode().rpartition("/")[2]
                columns.append(
                    Column(
                        self.fields[spot.field].name,
                        spot.role,
                        name,
                        file.rows,
                        file.size,
                        len(file.header),
                        file.per_block,
                        "".join(f"{one:08x}" for one in (crc32(file.header), *sums)),
                    )
                )
        return Part(self.folder(part), self.rows[part], tuple(columns))


class Stretch(NamedTuple):
    """Bytes from ``start`` to ``end`` after a header, with a checksum for each block's share."""

    start: int
    end: int
    sums: Sequence[int]


def combine_checksums(file: ColumnFile, stretches: Iterable[Stretch]) -> list[int]:
    """Return the checksums of a column's blocks. The stretches must cover it, each byte once."""
    blocks = -(-file.rows // file.per_block)
    found = [0] * blocks
    at = 0
    for start, end, sums in sorted(stretches):
        if start == end:
            continue
        if start != at:
            raise ValueError(f"{file.name.decode()}: bytes [{at}, {start}) were not written")
        parts = _cut_blocks(start, end, file.block)
        for (block, length), own in zip(parts, sums, strict=True):
            found[block] = combined(found[block], own, length)
        at = end
    if at != file.data:
        raise ValueError(f"{file.name.decode()}: bytes [{at}, {file.data}) were not written")
    return found


def _cut_blocks(start: int, end: int, block: int) -> list[tuple[int, int]]:
    """Return the blocks that bytes lie in, and how many in each."""
    found = []
    while start < end:
        stop = min(start - start % block + block, end)
        found.append((start // block, stop - start))
        start = stop
    return found


def count_blocks(file: ColumnFile, start: int, end: int) -> int:
    """Count the blocks that the bytes [start, end) after a column's header lie in."""
    return 0 if start == end else (end - 1) // file.block - start // file.block + 1


class StretchWriter:
    """Writes one stretch of a column, from byte ``start`` after the header on."""

    def __init__(self, output: Output, file: ColumnFile, start: int) -> None:
        self._output = output
        self._file = file
        self._start = self._at = start
        self._sums: list[int] = []

    def append(self, data: memoryview) -> None:
        """Write the next bytes."""
        if not data:
            return
        self._output.write(len(self._file.header) + self._at, data)
        done = 0
        for _, length in _cut_blocks(self._at, self._at + len(data), self._file.block):
            piece = data[done : done + length]
            if not self._sums or not (self._at + done) % self._file.block:
                self._sums.append(crc32(piece))
            else:
                self._sums[-1] = crc32(piece, self._sums[-1])
            done += length
        self._at += done

    def stretch(self) -> Stretch:
        """Return the stretch that was written."""
        return Stretch(self._start, self._at, tuple(self._sums))


Bytes = NDArray[np.uint8]

_NEAR = 4096  # offsets closer than this many bytes are read together


class _OpenColumns:
    """The open columns of a task, synced and closed together."""

    def __init__(self, folder: Folder, columns: Columns, parts: tuple[int, ...]) -> None:
        self._folder = folder
        self._columns = columns
        self._starts = np.array(parts, np.int64)
        self._stack = ExitStack()
        self._stack.enter_context(folder)
        self._open: dict[Spot, tuple[Output, ColumnFile]] = {}

    def open_output(self, spot: Spot) -> tuple[Output, ColumnFile]:
        """Return the file of a column, open for writing."""
        if spot not in self._open:
            file = self._columns.file(spot)
            output = self._stack.enter_context(self._folder.output(file.name))
            self._open[spot] = output, file
        return self._open[spot]

    def find_part(self, target: int) -> tuple[int, int]:
        """Return the part that has a row of the target, and that part's first row."""
        part = int(np.searchsorted(self._starts, target, side="right")) - 1
        return part, int(self._starts[part])

    def read_offsets(self, part: int, field: int, rows: Ints) -> Ints:
        """Return where the values of a part's rows, in ascending order, start."""
        file = self._columns.file(Spot(part, field, "offsets"))
        found = np.empty(len(rows), np.int64)
        near = _NEAR // 8
        with self._folder.file(file.name) as source:
            for start, end in find_stretches(len(rows), np.diff(rows) > near):
                first, last = int(rows[start]), int(rows[end - 1])
                data = source.read(len(file.header) + 8 * first, 8 * (last + 1 - first))
                found[start:end] = np.frombuffer(data, "<i8")[rows[start:end] - first]
        return found

    def sync(self) -> None:
        """Sync all that was written to disk."""
        for output, _ in self._open.values():
            output.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


class OrderedStore(_OpenColumns):
    """Takes consecutive rows of one part."""

    def __init__(self, folder: Folder, columns: Columns, parts: tuple[int, ...]) -> None:
        super().__init__(folder, columns, parts)
        self._writers: dict[Spot, StretchWriter] = {}

    def open_writer(self, spot: Spot, first: int) -> StretchWriter:
        """Return the writer of a column, which starts at row ``first`` of the first call."""
        if spot not in self._writers:
            output, file = self.open_output(spot)
            self._writers[spot] = StretchWriter(output, file, first * file.row_bytes)
        return self._writers[spot]

    def write_rows(self, field: int, targets: Ints, data: Bytes) -> None:
        """Write rows of a field of one shape."""
        self._append(field, "rows", int(targets[0]), data)

    def write_values(self, field: int, targets: Ints, counts: Ints, data: Bytes) -> None:
        """Write the values of rows of a ragged field."""
        self._append(field, "values", int(targets[0]), data)

    def write_chunk(self, field: int, role: Role, target: int, at: int, data: Bytes) -> None:
        """Write the bytes of one row from ``at`` on; those before them are written."""
        self._append(field, role, target, data)

    def _append(self, field: int, role: Role, target: int, data: Bytes) -> None:
        part, start = self.find_part(target)
        spot = Spot(part, field, role)
        first = target - start
        if role == "values" and spot not in self._writers:
            first = int(self.read_offsets(part, field, np.array([first]))[0])
        self.open_writer(spot, first).append(data.data)

    def stretches(self) -> dict[Spot, Stretch]:
        """Return what was written, by column."""
        return {spot: writer.stretch() for spot, writer in self._writers.items()}


class ScatteredStore(_OpenColumns):
    """Takes rows for any places."""

    def write_rows(self, field: int, targets: Ints, data: Bytes) -> None:
        """Write rows of a field of one shape."""
        order = np.argsort(targets, kind="stable")
        sorted_rows = data.reshape(len(targets), -1)[order]
        for part, start, first, last in self._find_runs(targets[order]):
            output, file = self.open_output(Spot(part, field, "rows"))
            at = len(file.header) + int(targets[order[first]] - start) * file.row_bytes
            output.write(at, sorted_rows[first:last].reshape(-1).data)

    def write_values(self, field: int, targets: Ints, counts: Ints, data: Bytes) -> None:
        """Write the values of rows of a ragged field."""
        order = np.argsort(targets, kind="stable")
        ends = np.cumsum(counts)
        for part, start, first, last in self._find_runs(targets[order]):
            output, file = self.open_output(Spot(part, field, "values"))
            own = order[first:last]
            places = self.read_offsets(part, field, targets[own] - start) * file.row_bytes
            for i, place in zip(own.tolist(), places.tolist(), strict=True):
                end = int(ends[i]) * file.row_bytes
                begin = end - int(counts[i]) * file.row_bytes
                output.write(len(file.header) + place, data[begin:end].data)

    def write_chunk(self, field: int, role: Role, target: int, at: int, data: Bytes) -> None:
        """Write the bytes of one row from ``at`` on."""
        part, start = self.find_part(target)
        output, file = self.open_output(Spot(part, field, role))
        row = target - start
        if role == "values":
            row = int(self.read_offsets(part, field, np.array([row]))[0])
        output.write(len(file.header) + row * file.row_bytes + at, data.data)

    def _find_runs(self, targets: Ints) -> Iterator[tuple[int, int, int, int]]:
        """Yield ranges of consecutive rows in a part: part, its start, from, to."""
        starts = np.searchsorted(self._starts, targets, side="right") - 1
        new = (np.diff(targets) != 1) | (np.diff(starts) != 0)
        ends = [*(np.flatnonzero(new) + 1).tolist(), len(targets)]
        for first, last in zip([0, *ends], ends, strict=False):
            part = int(starts[first])
            yield part, int(self._starts[part]), first, last

    def stretches(self) -> dict[Spot, Stretch]:
        """Return nothing: the stretches are incomplete."""
        return {}


Store = OrderedStore | ScatteredStore


def as_bytes(array: NDArray[Any]) -> Bytes:
    """Return the bytes of an array in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
