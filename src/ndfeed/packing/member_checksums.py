"""Checks stored members while their rows are copied: what was checked is what is written.

An archive has a checksum for the whole of a member: header, rows, and whatever follows them.
Where rows are read in order, as they lie, their checksum is computed on the way; the rest of a
member is a header, and is read for it. For members whose rows belong to several tasks the
checksums are combined when all of these are done, before anything is published.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column
from ndfeed.files.file import File
from ndfeed.formats import inflate
from ndfeed.formats.checksums import combined
from ndfeed.formats.description import RAW
from ndfeed.index.table import Ints
from ndfeed.packing.columns import Stretch
from ndfeed.packing.source_rows import Rows

_AT_ONCE = 1 << 20


class Member(NamedTuple):
    """A member: the places of its group and column in the dataset, and its part."""

    group: int
    column: int
    part: int

    def __str__(self) -> str:
        return f"{self.group}.{self.column}.{self.part}"


class Watch:
    """Which stored members of a source are checked as they are read. Shared by threads."""

    def __init__(self, source: Rows, pieces: Sequence[int], *, in_order: bool) -> None:
        self._source = source
        self._pieces = pieces
        self._places: dict[int, tuple[int, int]] = {}
        if in_order and source.together:
            streamed = {id(c) for found in source.streams for columns in found for c in columns}
            self._places = {
                id(column): (g, c)
                for g, group in enumerate(source.ds.groups)
                for c, column in enumerate(group.columns)
                if not group.by_file and id(column) not in streamed and _summed(column)
            }

    def sees(self, column: Column) -> bool:
        """Are the members of a column checked as they are read?"""
        return id(column) in self._places

    def summing(self) -> "Summing":
        """Return the checksums for one task."""
        return Summing(self._places)

    def whole(self, number: int) -> list[Member]:
        """Return the members that a task reads alone."""
        first, last = self._samples(number)
        return [m for m in self._between(first, last) if not self._is_split(m)]

    def split(self) -> list[Member]:
        """Return the members that several tasks read."""
        cuts = [self._samples(n)[0] for n in range(1, len(self._pieces) - 1)]
        found = {m for cut in cuts for m in self._between(cut, cut + 1)}
        return sorted(m for m in found if self._is_split(m))

    def _samples(self, number: int) -> tuple[int, int]:
        start, end = self._pieces[number : number + 2]
        ends = self._source.samples(np.array([start, end - 1]))
        return int(ends[0]), int(ends[1]) + 1

    def _between(self, first: int, last: int) -> Iterable[Member]:
        for g, c in self._places.values():
            starts = self._source.ds.groups[g].starts
            low = int(np.searchsorted(starts, first, side="right")) - 1
            high = int(np.searchsorted(starts, last, side="left"))
            yield from (Member(g, c, part) for part in range(low, high))

    def _is_split(self, member: Member) -> bool:
        """Does a task start within it?"""
        start, end = self._source.ds.groups[member.group].starts[member.part :][:2].tolist()
        origin = int(self._source.samples(np.array([0]))[0])
        at = int(np.searchsorted(self._pieces, start - origin, side="right"))
        # The first task starts where the rows do, within a member or not.
        at = max(at, 1)
        return at < len(self._pieces) - 1 and self._pieces[at] + origin < end

    def check(self, member: Member, stretches: Sequence[Stretch]) -> None:
        """Refuse a member with a wrong checksum; bytes that no stretch covers are read."""
        column = self._source.ds.groups[member.group].columns[member.column]
        table, array = column.table, int(column.arrays[member.part])
        wanted = int(table.crc[array])
        if wanted < 0 or column.coding[member.part] != RAW:
            return
        number, offset, length = (int(x[array]) for x in (table.file, table.offset, table.length))
        skip = int(table.skip[array])
        found = at = 0
        with File(table.path(number), table.expected(number)) as file:
            for start, end, sums in sorted(stretches):
                found = _read(file, offset, at, skip + start, found)
                found = combined(found, sums[0], end - start)
                at = skip + end
            found = _read(file, offset, at, length, found)
        if found != wanted:
            raise inflate.checksum_error(file.path, wanted, found)


def _summed(column: Column) -> bool:
    """Are its rows stored as they are delivered, in members with a checksum?"""
    known = (column.table.crc[column.arrays] >= 0).any()
    return bool(known and column.plain and column.size and not column.any_swapped)


def _read(file: File, offset: int, start: int, end: int, found: int) -> int:
    for at in range(start, end, _AT_ONCE):
        found = inflate.crc32(file.read(offset + at, min(_AT_ONCE, end - at)), found)
    return found


class Summing:
    """Computes checksums of the rows of one task as they come. For one thread."""

    def __init__(self, places: dict[int, tuple[int, int]]) -> None:
        self._places = places
        self._found: dict[Member, list[Stretch]] = {}

    def rows(self, column: Column, starts: Ints, samples: Ints, values: Any) -> None:  # noqa: ANN401
        """Add consecutive samples, as they were read."""
        place = self._places.get(id(column))
        if place is None:
            return
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        at, end = int(samples[0]), int(samples[-1]) + 1
        part = int(np.searchsorted(starts, at, side="right")) - 1
        done = 0
        while at < end:
            first, stop = int(starts[part]), min(int(starts[part + 1]), end)
            size = (stop - at) * column.size
            begin = (at - first) * column.size
            self.bytes(Member(*place, part), begin, data[done : done + size])
            at, done, part = stop, done + size, part + 1

    def bytes(self, member: Member, start: int, data: NDArray[np.uint8]) -> None:
        """Add some bytes of a member's rows."""
        known = self._found.setdefault(member, [])
        memory: memoryview = data.data
        if known and known[-1].end == start:
            old = known.pop()
            sums = inflate.crc32(memory, old.sums[0])
            known.append(Stretch(old.start, start + len(data), (sums,)))
        else:
            known.append(Stretch(start, start + len(data), (inflate.crc32(memory),)))

    def of(self, member: Member) -> list[Stretch]:
        """Return the stretches of a member that were added."""
        return self._found.get(member, [])

    def left(self, whole: Iterable[Member]) -> dict[str, list[Stretch]]:
        """Return the stretches of members that are not among ``whole``, by name."""
        others = self._found.keys() - set(whole)
        return {str(member): self._found[member] for member in sorted(others)}
