"""Checks stored members while their rows are copied: what was checked is what is written.

An archive has a checksum for the whole of a member: header, rows, and whatever follows them.
Where rows are read in order, as they lie, their checksum is computed on the way; the rest of a
member is a header, and is read for it. For members whose rows belong to several tasks the
checksums are combined when all of these are done, before anything is published. All other stored
members are read for their checksums alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ndfeed.dataset.column import Column
from ndfeed.dataset.decoding import verify
from ndfeed.dataset.destination import Arrays
from ndfeed.files.file import File
from ndfeed.formats import inflate
from ndfeed.formats.checksums import combined
from ndfeed.formats.description import RAW
from ndfeed.index.table import Ints
from ndfeed.packing.columns import Bytes, Stretch, as_bytes
from ndfeed.packing.source_rows import SourceRows

_AT_ONCE = 1 << 20


class Member(NamedTuple):
    """A member: the places of its group and column in the dataset, and its part."""

    group: int
    column: int
    part: int

    def __str__(self) -> str:
        return f"{self.group}.{self.column}.{self.part}"


class MemberChecks:
    """Which stored members of a source are checked as they are read. Shared by threads."""

    def __init__(self, source: SourceRows, pieces: Sequence[int], *, in_order: bool) -> None:
        self._source = source
        self._pieces = pieces
        self._places: dict[int, tuple[int, int]] = {}
        if in_order and source.is_contiguous:
            streamed = {id(c) for found in source.streams for columns in found for c in columns}
            self._places = {
                id(column): (g, c)
                for g, group in enumerate(source.ds.groups)
                for c, column in enumerate(group.columns)
                if not group.by_file and id(column) not in streamed and _has_checksums(column)
            }

    def verify_others(self, number: int) -> None:
        """Compare the checksums of members that are not computed while they are read.

        Each member is checked by one task; this does those of task ``number``.
        """
        every = len(self._pieces) - 1
        for group in self._source.ds.groups:
            if not group.by_file:
                columns = [
                    Column(c.field, c.table, c.arrays[number::every], c.whole[number::every])
                    for c in group.columns
                    if (c.coding == RAW).any() and id(c) not in self._places
                ]
                if columns:
                    verify(columns)

    def new_sums(self) -> "MemberSums":
        """Return what computes the checksums in one task."""
        return MemberSums(self._places)

    def check_task(self, number: int, sums: "MemberSums") -> dict[Member, list[Stretch]]:
        """Check members that a task has read alone; return the sums of those it shares."""
        first, last = self._samples(number)
        alone = {m for m in self._members_between(first, last) if not self._is_shared(m)}
        for member in sorted(alone):
            self.check(member, sums.found.get(member, []))
        return {member: sums.found[member] for member in sorted(sums.found.keys() - alone)}

    def check_shared(self, read: Mapping[Member, Sequence[Stretch]]) -> None:
        """Check the members that several tasks have read, when all of them are done."""
        cuts = [self._samples(n)[0] for n in range(1, len(self._pieces) - 1)]
        found = {m for cut in cuts for m in self._members_between(cut, cut + 1)}
        for member in sorted(m for m in found if self._is_shared(m)):
            self.check(member, read.get(member, []))

    def _samples(self, number: int) -> tuple[int, int]:
        start, end = self._pieces[number : number + 2]
        ends = self._source.samples(np.array([start, end - 1]))
        return int(ends[0]), int(ends[1]) + 1

    def _members_between(self, first: int, last: int) -> Iterable[Member]:
        for g, c in self._places.values():
            starts = self._source.ds.groups[g].starts
            low = int(np.searchsorted(starts, first, side="right")) - 1
            high = int(np.searchsorted(starts, last, side="left"))
            yield from (Member(g, c, part) for part in range(low, high))

    def _is_shared(self, member: Member) -> bool:
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
        expected = int(table.crc[array])
        if expected < 0 or column.coding[member.part] != RAW:
            return
        number, offset, length = (int(x[array]) for x in (table.file, table.offset, table.length))
        skip = int(table.skip[array])
        found = at = 0
        with File(table.path(number), table.expected(number)) as file:
            for start, end, sums in sorted(stretches):
                found = _add_bytes(file, offset, at, skip + start, found)
                found = combined(found, sums[0], end - start)
                at = skip + end
            found = _add_bytes(file, offset, at, length, found)
        if found != expected:
            raise inflate.checksum_error(file.path, expected, found)


def _has_checksums(column: Column) -> bool:
    """Are its rows stored as they are delivered, in members with a checksum?"""
    known = (column.table.crc[column.arrays] >= 0).any()
    plain = column.plain and column.size == column.pitch and not column.any_swapped
    return bool(known and plain and column.size)


def _add_bytes(file: File, offset: int, start: int, end: int, found: int) -> int:
    """Continue a checksum over the bytes [start, end) of a member."""
    for at in range(start, end, _AT_ONCE):
        found = inflate.crc32(file.read(offset + at, min(_AT_ONCE, end - at)), found)
    return found


class MemberSums:
    """Computes checksums of the rows of one task as they come. For one thread."""

    def __init__(self, places: dict[int, tuple[int, int]]) -> None:
        self._places = places
        self.found: dict[Member, list[Stretch]] = {}

    def add_rows(self, column: Column, starts: Ints, samples: Ints, values: Arrays) -> None:
        """Add consecutive samples, as they were read."""
        place = self._places.get(id(column))
        if place is None:
            return
        data = as_bytes(np.asarray(values))
        at, end = int(samples[0]), int(samples[-1]) + 1
        part = int(np.searchsorted(starts, at, side="right")) - 1
        done = 0
        while at < end:
            first, stop = int(starts[part]), min(int(starts[part + 1]), end)
            size = (stop - at) * column.size
            begin = (at - first) * column.size
            self._add(Member(*place, part), begin, data[done : done + size])
            at, done, part = stop, done + size, part + 1

    def _add(self, member: Member, start: int, data: Bytes) -> None:
        """Add some bytes of a member's rows."""
        known = self.found.setdefault(member, [])
        memory: memoryview = data.data
        if known and known[-1].end == start:
            old = known.pop()
            sums = inflate.crc32(memory, old.sums[0])
            known.append(Stretch(old.start, start + len(data), (sums,)))
        else:
            known.append(Stretch(start, start + len(data), (inflate.crc32(memory),)))
