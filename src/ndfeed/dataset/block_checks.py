"""Compares packed columns with their checksums, block by block when a block is first read.

Enabled by ``verify=True`` in ``ndfeed.open``. A block that was compared is not compared again in
this process, nor in processes forked from it; when all are, nothing is left to check.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ndfeed.dataset.column import Column, Group, Place
from ndfeed.errors import ChangedError, ChecksumError
from ndfeed.files.file import File
from ndfeed.formats import checksums, manifest
from ndfeed.index.build import REMEDY
from ndfeed.index.table import Ints, Table

# Rows of a block where there are no checksums: all rows are in block 0, which is not checked.
_NONE = 1 << 62


class _Stored(NamedTuple):
    """One column of one part."""

    column: manifest.Column
    row_bytes: int


class _Role:
    """The columns of one role, part by part; the first block is -1 for parts that have none."""

    def __init__(self, stored: Sequence[_Stored | None]) -> None:
        counts = [1 if one is None else max(one.column.blocks, 1) for one in stored]
        self._stored = stored
        self._per: Ints = np.array(
            [_NONE if s is None else s.column.rows_per_block for s in stored]
        )
        self._base: Ints = np.cumsum([0, *counts])[:-1]
        self._done = np.zeros(sum(counts), bool)
        for one, base in zip(stored, self._base.tolist(), strict=True):
            self._done[base] = one is None or not one.column.blocks
        self.left = int((~self._done).sum())

    def check(self, table: Table, array: Ints, part: Ints, first: Ints, last: Ints) -> None:
        """Compare the blocks of rows [first, last) of some parts; ``array`` is per part."""
        if not (some := last > first).all():
            part, first, last = part[some], first[some], last[some]
        # Plain numbers where there is one part: many times faster than a vector of equal numbers.
        alone = len(self._per) == 1
        per = int(self._per[0]) if alone else self._per[part]
        base = 0 if alone else self._base[part]
        low, high = base + first // per, base + (last - 1) // per
        wanted = np.zeros(len(self._done), bool)
        wanted[low] = wanted[high] = True
        for i in np.flatnonzero(high - low > 1).tolist():
            wanted[low[i] : high[i]] = True
        missing = np.flatnonzero(wanted & ~self._done)
        owner = np.searchsorted(self._base, missing, side="right") - 1
        for number in np.unique(owner).tolist():
            own = missing[owner == number]
            self._compare(table, int(array[number]), number, own - self._base[number] + 1)
            self._done[own] = True
        if len(missing):
            self.left = int((~self._done).sum())

    def _compare(self, table: Table, array: int, part: int, wanted: Ints) -> None:
        stored = self._stored[part]
        if stored is None:
            return
        file = int(table.file[array])
        with File(table.path(file), table.expected(file)) as opened:
            found = checksums.find_damaged(opened, stored.column, stored.row_bytes, wanted.tolist())
        if found:
            first, last = checksums.block_rows(stored.column, found[0])
            raise ChecksumError(
                table.path(file),
                f"block {found[0]} of {stored.column.blocks}, rows [{first}, {last}), does not "
                f"match its checksum in the manifest: the bytes are damaged",
                remedy=REMEDY,
            )


class Checks:
    """The checksums of one field. Thread-safe: at worst a block is compared twice."""

    def __init__(self, parts: "Sequence[dict[manifest.Role, _Stored]]") -> None:
        self.parts = tuple(parts)
        roles: dict[manifest.Role, None] = {role: None for part in parts for role in part}
        self._roles = {role: _Role([part.get(role) for part in parts]) for role in roles}

    @property
    def left(self) -> int:
        """Number of blocks that were not compared yet."""
        return sum(role.left for role in self._roles.values())

    def select(self, parts: Ints) -> "Checks":
        """Return the checks of some parts."""
        return Checks([self.parts[part] for part in parts.tolist()])

    def check_places(self, column: Column, place: Place) -> None:
        """Compare the arrays that say where ragged samples lie."""
        for role, arrays, more in (
            ("offsets", column.offsets, 2),
            ("shapes", column.extents, 1),
        ):
            own = self._roles.get(role)  # type: ignore[call-overload]
            if own is not None and arrays is not None and own.left:
                own.check(column.table, arrays, place.part, place.row, place.row + more)

    def check_rows(self, column: Column, place: Place) -> None:
        """Compare samples of one shape."""
        self.check_stretches(column, place.part, place.row, place.row + 1)

    def check_stretches(self, column: Column, part: Ints, first: Ints, last: Ints) -> None:
        """Compare rows [first, last) of samples of one shape."""
        own = self._roles.get("rows")
        if own is not None and own.left:
            own.check(column.table, column.arrays, part, first, last)

    def check_values(self, column: Column, part: Ints, start: Ints, nbytes: Ints) -> None:
        """Compare ragged samples, given by their bytes in the files of ``part``."""
        own = self._roles.get("values")
        if own is None or not own.left:
            return
        size = np.maximum(column.nbytes[part], 1)
        first = (start - column.first[part]) // size
        own.check(column.table, column.arrays, part, first, first + nbytes // size)


class WindowChecks(Checks):
    """The checksums of rows that windows consist of.

    Per sequence: its part in ``group``, and its first row there.
    """

    def __init__(self, group: Group, part: Ints, first: Ints, stride: int, span: int) -> None:
        super().__init__(())
        self._group = group
        self._part = part
        self._first = first
        self._stride = stride
        self._span = span

    @property
    def left(self) -> int:
        """Number of blocks that were not compared yet."""
        return 0 if self._group.checks is None else self._group.checks.left

    def check_rows(self, column: Column, place: Place) -> None:
        """Compare the rows of windows."""
        self.check_stretches(column, place.part, place.row, place.row + 1)

    def check_stretches(self, column: Column, part: Ints, first: Ints, last: Ints) -> None:
        """Compare the rows of windows [first, last)."""
        start = self._first[part] + first * self._stride
        end = self._first[part] + (last - 1) * self._stride + self._span
        if self._group.checks is not None:
            own = self._group.columns[0]
            self._group.checks.check_stretches(own, self._part[part], start, end)

    def select(self, parts: Ints) -> "WindowChecks":
        """Return the checks of some parts."""
        places = self._part[parts], self._first[parts]
        return WindowChecks(self._group, *places, self._stride, self._span)


def make_checks(table: Table, found: manifest.Manifest, path: bytes) -> dict[str, Checks]:
    """Load the checksums of every field of a packed dataset."""
    if found.digest != table.digest:
        raise ChangedError(path, "another manifest than when it was opened", remedy="open it again")
    return {
        field.name: Checks(
            [
                {
                    column.role: _Stored(column, field.row_bytes(column.role))
                    for column in part.columns
                    if column.field == field.name
                }
                for part in found.parts
            ]
        )
        for field in found.fields
    }


def join_checks(
    first: Checks | None, parts: int, second: Checks | None, others: int
) -> Checks | None:
    """Join the checksums of two fields' parts, of which some may have none."""
    if first is None and second is None:
        return None
    if isinstance(first, WindowChecks) or isinstance(second, WindowChecks):
        raise ValueError("add datasets opened with verify=True first, then call windows()")
    mine = ({},) * parts if first is None else first.parts
    theirs = ({},) * others if second is None else second.parts
    return Checks((*mine, *theirs))
