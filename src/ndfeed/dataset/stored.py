"""Stored samples: how many, how large, in which files and rows, and a fingerprint of the data.

Two datasets have the same fingerprint if they hold the same arrays of files of the same names,
sizes and dtypes, and the same selection of rows. The folder they lie in, their times, the chosen
fields and functions given to ``map`` do not count: row 7 is the same row.
"""

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from ndfeed.dataset.arguments import lazy
from ndfeed.dataset.column import Column, Group, total_bytes
from ndfeed.dataset.origins import Origin, make_origins
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_ranges import Ranges, find_steps, ranges_of
from ndfeed.dataset.row_selection import (
    Drawn,
    Listed,
    PartNumbers,
    Rows,
    as_rows,
    select_rows,
)
from ndfeed.errors import Error
from ndfeed.index import codec
from ndfeed.index.table import Ints, Table

_MANY_ROWS = 1 << 24  # rows that are ranges are not listed to identify them
_MOST_STEPS = 1 << 16
_AT_ONCE = 1 << 20

MEMORY = "memory"  # in place of a path, for samples that are in no file


def fingerprint_groups(groups: Sequence[Group]) -> str:
    """Return the fingerprint of all the samples of some groups."""
    digest = hashlib.sha256()
    for table in {id(group.table): group.table for group in groups}.values():
        digest.update(codec.fingerprint(table).encode())
    for group in groups:
        if group.rows is not None and not isinstance(group.rows, PartNumbers):
            digest.update(_fingerprint_rows("", group.rows).encode())
    whole = [bool(group.columns[0].whole.all()) for group in groups]
    digest.update(f"{len(groups[0])} {sorted(set(whole))}".encode())
    return digest.hexdigest()[:16]


def _fingerprint_rows(all_of_them: str, rows: Rows) -> str:
    """Return the fingerprint of some ``rows`` of samples that have the fingerprint given."""
    if rows is None:
        return all_of_them
    digest = hashlib.sha256(all_of_them.encode())
    if isinstance(rows, Drawn):
        digest.update(rows.describe())
        return digest.hexdigest()[:16]
    steps = _find_steps(rows) if len(rows) > _MANY_ROWS else []
    if steps:
        first = int(select_rows(rows, np.zeros(1, np.int64))[0])
        by = f"{steps[0][0]}" if len(steps) == 1 else f"{steps}"
        digest.update(f"{len(rows)} from {first} by {by}".encode())
        return digest.hexdigest()[:16]
    for at in range(0, len(rows), _AT_ONCE):
        some = select_rows(rows, np.arange(at, min(at + _AT_ONCE, len(rows))))
        digest.update(np.ascontiguousarray(some, np.int64).view(np.uint8).data)
    return digest.hexdigest()[:16]


def _find_steps(rows: Listed) -> list[tuple[int, int]]:
    """Return the steps between rows, and how many are the same; empty if they often differ.

    Rows are the same data whether they are given as ranges or one by one.
    """
    if isinstance(rows, range | Ranges):
        found = list(islice(find_steps(ranges_of(rows)), _MOST_STEPS + 1))
        return found if len(found) <= _MOST_STEPS else []
    steps = [0]
    ends = [0]
    for at in range(0, len(rows) - 1, _AT_ONCE):
        differences = np.diff(rows[at : at + _AT_ONCE + 1])
        changes = np.flatnonzero(np.diff(differences, prepend=steps[-1]))
        if len(steps) + len(changes) > _MOST_STEPS + 1:  # the first may be of no rows
            return []
        steps += differences[changes].tolist()
        ends += (changes + at).tolist()
    counts = np.diff([*ends, len(rows) - 1]).tolist()
    made = [one for one in zip(steps, counts, strict=True) if one[1]]
    return made if len(made) <= _MOST_STEPS else []


def join_fingerprints(first: str, second: str) -> str:
    """Return the fingerprint of two datasets, one after the other."""
    return hashlib.sha256(f"{first}+{second}".encode()).hexdigest()[:16]


class Files(Sequence[str]):
    """The files that hold some samples, as paths that are decoded on access.

    Where a sample is a whole file there is one for each sample, in the order of the samples;
    otherwise every file is listed once, in the order in which the samples first need it. A file
    that was opened twice is listed twice unless samples were selected.
    """

    def __init__(self, origins: Sequence[Origin], rows: Rows) -> None:
        self._origins = origins
        self._rows = rows

    @lazy
    def _listed(self) -> list[Ints]:
        """For each origin, the numbers of its files."""
        return [listed[self._distinct(at)[0]] for at, listed in enumerate(self._named)]

    @lazy
    def _named(self) -> list[Ints]:
        """For each origin, the numbers of its files; a file that was opened twice has two."""
        return [origin.listed(self._rows) for origin in self._origins]

    def _distinct(self, at: int) -> tuple[Ints, Ints]:
        """Say which of an origin's files are listed, and for each its place in the list."""
        origin, named = self._origins[at], self._named[at]
        if origin.each or (self._rows is None and origin.rows is None):
            every = np.arange(len(named))
            return every, every
        return _distinct(origin.table, named)

    @lazy
    def _ends(self) -> Ints:
        return np.cumsum([len(listed) for listed in self._listed])

    @lazy
    def _places(self) -> Ints:
        """For every file of the first origin its place here, -1 if it has none."""
        places = np.full(self._origins[0].table.files, -1)
        places[self._named[0]] = self._distinct(0)[1]
        return places

    def locate(self, rows: Ints, samples: Ints) -> tuple[Ints, Ints]:
        """Return the file of each sample as its place here, and the row there.

        ``samples`` are those of ``rows`` as the groups number them.
        """
        origin = self._origins[0]
        if origin.each:
            return rows, np.zeros(len(rows), np.int64)
        place = origin.locate(samples)
        return self._places[origin.files[place.part, 0]], place.row

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        which = int(np.searchsorted(self._ends, at, side="right"))
        listed = self._listed[which]
        number = int(listed[at - int(self._ends[which])])  # from the end of the list
        table = self._origins[which].table
        return MEMORY if table.sealed else os.fsdecode(table.path(number))

    def __repr__(self) -> str:
        if not len(self):
            return "<no files>"
        return f"<{len(self):,} file{'s' * (len(self) != 1)}, first {self[0]!r}>"


def _distinct(table: Table, numbers: Ints) -> tuple[Ints, Ints]:
    """Return which of ``numbers`` are of files not seen before, and each as a place among these.

    The numbers differ, but a file may have several: datasets of the same files were added.
    """
    count = len(numbers)
    if len(np.unique(table.identity[numbers, 1])) == count:  # the inodes
        return np.arange(count), np.arange(count)
    seen: dict[bytes, int] = {}
    place = np.fromiter((seen.setdefault(p, len(seen)) for p in table.paths_of(numbers)), np.int64)
    return np.unique(place, return_index=True)[1], place


class Stored:
    """What a dataset knows of its samples before any ``map``: how many, how large, and where."""

    _made: tuple[Callable[..., Any], tuple[Any, ...]]  # how to make it again

    def __init__(
        self,
        groups: tuple[Group, ...],
        rows: Rows,
        identity: str,
        origins: tuple[Origin, ...],
        skipped: tuple[Error, ...] = (),
    ) -> None:
        self.groups = groups
        self.rows = rows
        self._identity = identity  # fingerprint of all the groups' samples, if they cannot tell
        self._origins = origins  # of all the groups' samples, if they cannot tell
        self._skipped = skipped  # errors from opening files that the groups no longer have
        self._count = len(groups[0]) if rows is None else len(rows)
        self._fingerprint: str | None = None
        self._files: Files | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of all samples as read, before any ``map``."""
        return sum(self._bytes_of(c, group) for group in self.groups for c in group.columns)

    def _bytes_of(self, column: Column, group: Group) -> int:
        if column.even:
            return int(column.nbytes[0]) * len(self)
        if self.rows is None and group.rows is None:
            return total_bytes(column, group.starts)
        samples = select_rows(self.rows, np.arange(len(self)))
        if column.offsets is None:
            return int(column.nbytes[group.locate(samples).part].sum())
        shapes = reader_of(group).shapes(group, column, samples)
        return sum(math.prod(shape) for shape in shapes) * column.field.dtype.itemsize

    @property
    def files(self) -> Files:
        """The files that hold the samples, as a sequence of paths.

        Where a sample is a whole file there is one path for each sample, in the order of the
        samples: ``zip(ds.files, ds)`` pairs them. Otherwise every file is listed once, in the order
        in which the samples first need it.
        """
        if self._files is None:
            self._files = Files(self.all_origins(), self.rows)
        return self._files

    @property
    def skipped(self) -> list[Error]:
        """The errors of the files that ``ndfeed.open(..., on_error="skip")`` skipped."""
        tables = dict.fromkeys(group.table for group in self.groups)
        return [*self._skipped, *(error for table in tables for error in table.skipped)]

    @property
    def first_file(self) -> str:
        """A file to name in messages, even where there are no samples."""
        if len(self):
            return self.files[0]
        table = self.all_origins()[0].table
        return MEMORY if table.sealed else os.fsdecode(table.path(0))

    @property
    def origin(self) -> Origin:
        """Where the samples of the first group lie, or where they were loaded from."""
        return self._origins[0] if self._origins else make_origins(self.groups[:1])[0]

    def all_origins(self) -> tuple[Origin, ...]:
        """Where the samples of all groups lie, the most informative first."""
        return self._origins or make_origins(self.groups)

    def locate(self, rows: ArrayLike) -> tuple[Ints, Ints]:
        """Return the file of each of ``rows``, and its row in that file.

        The file is a number: its path is ``ds.files[number]``. Where a sample is a whole file its
        row is 0. Nothing is read.
        """
        wanted = as_rows(rows, len(self), from_end=True)
        return self.files.locate(wanted, select_rows(self.rows, wanted))

    @property
    def fingerprint(self) -> str:
        """Short text that identifies these samples and their order.

        A copy of the files elsewhere has the same one, and so does ``in_memory()``.
        """
        if self._fingerprint is None:
            self._fingerprint = _fingerprint_rows(self._fingerprint_all(), self.rows)
        return self._fingerprint

    def _fingerprint_all(self) -> str:
        """The fingerprint of all samples of the groups."""
        if self._identity:
            return self._identity
        # Computed fields have their group in memory, and do not count.
        in_files = [group for group in self.groups if not group.table.sealed]
        return fingerprint_groups(in_files or self.groups)
