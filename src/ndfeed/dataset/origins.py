"""Where samples come from: the files of each, and its rows there.

An ``Origin`` tells this for samples as they are numbered in a dataset's groups; a dataset has one
for each set of files that its samples are assembled from. The first of them is the one that
distinguishes samples best: there a sample is a file, or there are the most files. A dataset loaded
into memory keeps the origins it had.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.arguments import lazy
from ndfeed.dataset.column import Group, Place
from ndfeed.dataset.row_ranges import Ranges, find_cuts, ranges_of
from ndfeed.dataset.row_selection import (
    PartNumbers,
    Rows,
    Travelling,
    compose,
    find_used,
    freeze,
    join_rows,
    select_rows,
)
from ndfeed.files.shared_memory import Shared
from ndfeed.index import codec
from ndfeed.index.table import Ints, Table, concat


@dataclass(frozen=True, eq=False)
class Origin:
    """Samples in parts of files. ``files`` has a row for each part: the files that hold it."""

    table: Table
    starts: Ints  # the first sample of each part, and the end
    files: Ints
    each: bool  # is every sample a whole file?
    rows: Rows = None  # which of these samples they are
    # Per part, unless samples are rows or files: the row of the first, how many rows come before
    # another one, and how many samples have the same.
    apart: Ints | None = None

    def __len__(self) -> int:
        return int(self.starts[-1]) if self.rows is None else len(self.rows)

    def locate(self, samples: Ints) -> Place:
        """Find the part of each sample, and its row there: the first of them for windows."""
        place = self._parts.locate(select_rows(self.rows, samples))
        if self.apart is None:
            return place
        first, stride, each = self.apart[place.part].T
        return Place(place.part, first + stride * (place.row // each))

    def files_of(self, samples: Ints) -> Ints:
        """Return the number of each sample's file in the table."""
        found: Ints = self.files[self.locate(samples).part, 0]
        return found

    def choose(self, rows: Rows) -> "Origin":
        """Return the origin of some of these samples."""
        fixed = freeze(rows)
        return self if fixed is None else replace(self, rows=compose(self.rows, fixed))

    def find_breaks(self) -> Ints:
        """Return the samples before which the rows of files are interrupted."""
        if self.rows is None:
            return self.starts
        cuts = find_cuts(self.rows, self.starts) if isinstance(self.rows, range | Ranges) else None
        return cuts if cuts is not None else self.locate(np.arange(len(self))).find_breaks()

    def steps_of(self, part: Ints) -> Ints:
        """Return how many rows further the next sample of each part starts, up to a break."""
        if self.apart is None or self.rows is not None:
            return np.ones_like(part)
        step: Ints = self.apart[part, 1]
        return step

    @lazy
    def _parts(self) -> Group:
        return Group(self.starts, ())

    def listed(self, rows: Rows) -> Ints:
        """Return the files of some samples by number: one per sample, or each file once.

        In the latter case they come in the order in which samples first need them.
        """
        chosen = self.choose(rows).rows
        if chosen is None:
            return self.files[:, 0] if self.each else _first_of_each(self.files.reshape(-1))
        if isinstance(chosen, range | Ranges) and not self.each:
            every = [(find_used(one, self.starts), one.step > 0) for one in ranges_of(chosen)]
            used = np.concatenate([which if rises else which[::-1] for which, rises in every])
            return _first_of_each(self.files[_first_of_each(used)].reshape(-1))
        part = self._parts.locate(select_rows(chosen, np.arange(len(chosen)))).part
        if self.each:
            file: Ints = self.files[part, 0]
            return file
        return _first_of_each(self.files[_first_of_each(part)].reshape(-1))

    @lazy
    def _travelling(self) -> tuple[Any, ...]:
        """Return its state for other processes; cached, since it lives no longer than this."""
        return (
            Shared.of(codec.encode(self.table)),
            Travelling(self.starts),
            Travelling(self.files.reshape(-1)),
            self.each,
            None if (rows := freeze(self.rows)) is None else Travelling(rows),
            None if self.apart is None else Travelling(self.apart.reshape(-1)),
        )

    def __reduce__(self) -> tuple[Callable[..., "Origin"], tuple[Any, ...]]:
        return _unpickle, self._travelling


def _unpickle(
    table: Shared,
    starts: Travelling,
    files: Travelling,
    each: bool,
    rows: Travelling | None,
    apart: Travelling | None,
) -> Origin:
    parts = len(starts.rows) - 1
    return Origin(
        codec.decode(table.view().data, checked=False)[0],
        np.asarray(starts.rows),
        np.asarray(files.rows).reshape(parts, -1),
        each,
        None if rows is None else rows.rows,
        None if apart is None else np.asarray(apart.rows).reshape(parts, 3),
    )


def make_origins(groups: Sequence[Group]) -> tuple[Origin, ...]:
    """Return the origins of the samples of some groups, the most informative first."""
    # Computed fields have their group in memory.
    stored = [group for group in groups if not group.table.sealed] or groups
    found: list[list[Group]] = []
    for group in stored:
        for same in found:
            known = same[0].table is group.table and same[0].rows is group.rows
            if known and np.array_equal(same[0].starts, group.starts):
                same.append(group)
                break
        else:
            found.append([group])
    made = [
        Origin(one[0].table, one[0].starts, _files_of(one), one[0].by_file, _rows_of(one[0]))
        for one in found
    ]
    return sort_origins(made)


def sort_origins(origins: Iterable[Origin]) -> tuple[Origin, ...]:
    """Return the most informative first."""
    return tuple(sorted(origins, key=lambda one: (not one.each, -len(one.starts))))


def _rows_of(group: Group) -> Rows:
    return group.rows[np.arange(len(group))] if isinstance(group.rows, PartNumbers) else group.rows


def _files_of(groups: Sequence[Group]) -> Ints:
    """Per part: the files of some groups of the same parts, each file once."""
    columns: list[Ints] = []
    for group in groups:
        column = group.columns[0]
        others = [one for one in (column.offsets, column.extents) if one is not None]
        columns.append(column.file)
        for at in others:
            file = column.table.file[at]
            columns.append(np.where((at < 0) | is_memory(column.table)[file], column.file, file))
    first = columns[0]
    more = [one for one in columns[1:] if one is not first and not np.array_equal(one, first)]
    return np.stack([first, *more], axis=1)


def is_memory(table: Table) -> NDArray[np.bool_]:
    """Per file: is it an array in memory, and no file?"""
    if "memory" not in table.formats:
        return np.zeros(table.files, bool)
    return np.asarray(table.format == table.formats.index("memory"))


def join_origins(first: Sequence[Origin], second: Sequence[Origin]) -> tuple[Origin, ...]:
    """Return the origins of the samples of one dataset and then those of another."""
    # Sources that only one of the datasets has cannot say where the samples of the other are.
    return tuple(_join(a, b) for a, b in zip(first, second, strict=False))


def _join(a: Origin, b: Origin) -> Origin:
    width = max(a.files.shape[1], b.files.shape[1])
    mine, theirs = (
        np.pad(one.files, ((0, 0), (0, width - one.files.shape[1])), mode="edge") for one in (a, b)
    )
    apart: Ints | None = None
    if a.apart is not None or b.apart is not None:
        rest = (np.tile([0, 1, 1], (len(one.starts) - 1, 1)) for one in (a, b))
        every = zip((a, b), rest, strict=True)
        apart = np.concatenate([r if one.apart is None else one.apart for one, r in every])
    return Origin(
        concat([a.table, b.table]),
        np.concatenate([a.starts, b.starts[1:] + a.starts[-1]]),
        np.concatenate([mine, theirs + a.table.files]),
        a.each and b.each,
        join_rows(a.rows, len(a), b.rows, len(b), int(a.starts[-1])),
        apart,
    )


def _first_of_each(numbers: Ints) -> Ints:
    """Return the distinct numbers, in order of first occurrence."""
    if len(numbers) and (numbers[1:] >= numbers[:-1]).all():
        rising: Ints = numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])]
        return rising
    first = np.unique(numbers, return_index=True)[1]
    return numbers[np.sort(first)]
