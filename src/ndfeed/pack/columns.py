"""The files of a packed dataset, while they are written: names, sizes, blocks, checksums.

A *stretch* is bytes of a column that were written one behind the other. It is known by where it
begins and ends, in bytes behind the header, and by a checksum for every block that it touches:
of a block's part in it. Stretches that together cover a column give the checksums of its blocks
without reading it again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ndfeed.files.write import Output
from ndfeed.formats.checksums import combined
from ndfeed.formats.inflate import crc32
from ndfeed.formats.manifest import Column, Field, Part, Role, file_names, rows_per_block
from ndfeed.formats.npy import preamble


class Spot(NamedTuple):
    """A column: its part, the place of its field, its role."""

    part: int
    field: int
    role: Role

    def __str__(self) -> str:
        return f"{self.part}.{self.field}.{self.role}"


class File(NamedTuple):
    """A column's file: its name below the dataset's folder, and what is in it."""

    name: bytes
    rows: int
    row_bytes: int
    header: bytes
    per_block: int

    @property
    def data(self) -> int:
        """Bytes behind the header."""
        return self.rows * self.row_bytes

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.header) + self.data

    @property
    def block(self) -> int:
        """Bytes of a whole block."""
        return self.per_block * self.row_bytes


@dataclass(frozen=True)
class Columns:
    """All columns: fields, and for each part its folder's number, rows and numbers of values.

    ``values`` has a list for each part, with the number of values of each ragged field and
    nothing for the others, or where it is not known yet.
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

    def file(self, spot: Spot) -> File:
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
        return File(name.encode(), rows, size, header, rows_per_block(size, rows))

    @property
    def _names(self) -> dict[tuple[str, Role], str]:
        found: dict[tuple[str, Role], str] | None = self.__dict__.get("names")
        if found is None:
            found = self.__dict__["names"] = file_names(self.fields)
        return found

    def part(self, part: int, stretches: "dict[str, list[Stretch]]") -> Part:
        """What the manifest says of a part, all of whose columns are covered by stretches."""
        columns = []
        for spot in self.spots():
            if spot.part == part:
                file = self.file(spot)
                sums = checksums(file, stretches.get(str(spot), []))
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
    """Bytes from ``start`` to ``end`` behind a header, with a checksum for each block's part."""

    start: int
    end: int
    sums: Sequence[int]


def checksums(file: File, stretches: Iterable[Stretch]) -> list[int]:
    """The checksums of a column's blocks. The stretches must cover it, each byte once."""
    blocks = -(-file.rows // file.per_block)
    found = [0] * blocks
    at = 0
    for start, end, sums in sorted(stretches):
        if start == end:
            continue
        if start != at:
            raise ValueError(f"{file.name.decode()}: bytes [{at}, {start}) were not written")
        parts = _cut(start, end, file.block)
        for (block, length), own in zip(parts, sums, strict=True):
            found[block] = combined(found[block], own, length)
        at = end
    if at != file.data:
        raise ValueError(f"{file.name.decode()}: bytes [{at}, {file.data}) were not written")
    return found


def _cut(start: int, end: int, block: int) -> list[tuple[int, int]]:
    """The blocks that bytes lie in, and how many in each."""
    found = []
    while start < end:
        stop = min(start - start % block + block, end)
        found.append((start // block, stop - start))
        start = stop
    return found


def blocks_touched(file: File, start: int, end: int) -> int:
    """How many blocks the bytes [start, end) behind a column's header lie in."""
    return 0 if start == end else (end - 1) // file.block - start // file.block + 1


class Writer:
    """Writes one stretch of a column, from byte ``start`` behind the header on."""

    def __init__(self, output: Output, file: File, start: int) -> None:
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
        for _, length in _cut(self._at, self._at + len(data), self._file.block):
            piece = data[done : done + length]
            if not self._sums or not (self._at + done) % self._file.block:
                self._sums.append(crc32(piece))
            else:
                self._sums[-1] = crc32(piece, self._sums[-1])
            done += length
        self._at += done

    def stretch(self) -> Stretch:
        """What was written."""
        return Stretch(self._start, self._at, tuple(self._sums))
