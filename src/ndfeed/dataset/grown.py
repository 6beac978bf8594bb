"""Which samples of a dataset that has grown it had before, told from the fingerprint it had then.

That, and a number of samples, is all that a loader's state holds. New files usually come at the end
of the order of names, or at its start, or in the order of time; so a few guesses are made, and the
one counts whose fingerprint is the same. If not exactly one is, the caller must say which files
were there.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.origins import Origin
from ndfeed.dataset.remake import once, remake
from ndfeed.dataset.row_selection import select_rows
from ndfeed.errors import MissingError, ResumeError, SchemaError, shown
from ndfeed.index.open import Opened
from ndfeed.index.refresh import Missing, as_terms, cut, refresh
from ndfeed.index.table import Ints, Table

_MTIME, _CTIME = 3, 4  # of the identity of a file
_ENDS = 16  # guesses more that files without samples may lead to
_REMEDY = "pass the dataset as it was then: grown=ndfeed.open([its files])"


class Past(NamedTuple):
    """A dataset as it was, and where its samples are now: the first row and the number of each
    stretch of them, in order."""

    dataset: Dataset
    stretches: Ints


class _Units(NamedTuple):
    """Stretches of samples from one file each: the number of that file, and of the samples.

    The file is that of the first of the origins.
    """

    origins: tuple[Origin, ...]
    file: Ints
    size: Ints

    @classmethod
    def of(cls, ds: Dataset) -> "_Units":
        origins = ds.all_origins()
        origin = origins[0]
        if ds.rows is None and origin.rows is None:
            return cls(origins, origin.files[:, 0], np.diff(origin.starts))
        part = origin.locate(select_rows(ds.rows, np.arange(len(ds)))).part
        first = np.flatnonzero(np.diff(part, prepend=-1))
        return cls(origins, origin.files[part[first], 0], np.diff(first, append=len(part)))

    @property
    def table(self) -> Table:
        """The files that are numbered."""
        return self.origins[0].table

    def count_by_file(self) -> Ints:
        counts = np.zeros(self.table.files, np.int64)
        np.add.at(counts, self.file, self.size)
        return counts

    def stretches(self, old: NDArray[np.bool_]) -> Ints:
        """Return the stretches of samples of the files that are marked."""
        marked, ends = old[self.file], np.cumsum(self.size)
        first = np.flatnonzero(marked & ~np.concatenate([[False], marked[:-1]]))
        last = np.flatnonzero(marked & ~np.concatenate([marked[1:], [False]]))
        starts = ends[first] - self.size[first]
        found = np.stack([starts, ends[last] - starts], axis=1)
        return found[found[:, 1] > 0]


def refresh_together(
    datasets: Sequence[Dataset], missing: Missing, settle: float, among: Sequence[str] | None
) -> list[Dataset]:
    """Refresh datasets of the same sources, which are looked at once for all of them.

    If ``among`` is given, the new files are these, as was decided elsewhere.
    """
    terms = as_terms(missing, settle)
    if among is not None:
        terms = terms._replace(among=frozenset(map(os.fsencode, among)))
    change = once(lambda opened: refresh(opened, terms))
    made = {id(ds): remake(ds, change) for ds in datasets}
    if terms.among and (lacking := terms.among - _list_paths(made[id(datasets[0])])):
        raise MissingError(
            min(lacking),
            "was found by another rank, and cannot be read here",
            remedy="let all ranks read the same folder, and refresh() once files are in place",
        )
    return [made[id(ds)] for ds in datasets]


def list_new_files(ds: Dataset, old: Dataset) -> list[str]:
    """Return the files that a dataset has and another one does not."""
    return sorted(map(os.fsdecode, _list_paths(ds) - _list_paths(old)))


def count_new(ds: Dataset, old: Dataset) -> int:
    """Return how many samples a dataset has that it did not have before it was refreshed."""
    if not any(isinstance(error, MissingError) for error in ds.skipped):
        return len(ds) - len(old)
    units = _Units.of(ds)
    return len(ds) - int(units.stretches(_mark_known(units.table, _list_paths(old)))[:, 1].sum())


def find_past(ds: Dataset, fingerprint: str, rows: int) -> Past:
    """Find the dataset that had this fingerprint and so many samples among those it has now."""
    if fingerprint == ds.fingerprint and rows == len(ds):
        return Past(ds, np.array([[0, rows]]))
    if rows > len(ds):
        raise ResumeError(
            f"the state belongs to {rows:,} samples, and now there are {len(ds):,}: files are gone",
            "restore them, or start over",
        )
    units = _Units.of(ds)
    fitting = []
    for old in _guess(units, rows):
        new = functools.cache(functools.partial(_find_new_paths, ds, units, old))
        past = _take_files(ds, units, old, lambda path, new=new: path in new())  # type: ignore[misc]
        if past is not None and past.dataset.fingerprint == fingerprint:
            fitting.append(past)
    if len(fitting) == 1:
        return fitting[0]
    # Two may fit where folders have files of the same names and sizes.
    why = "several sets of files" if fitting else "none"
    raise ResumeError(
        f"cannot tell which of {units.table.files:,} files were there before: by names and times, "
        f"{why} could be that of the state, {rows:,} samples with fingerprint "
        f"{shown(fingerprint[:40])}",
        _REMEDY,
    )


def match_past(ds: Dataset, old: Dataset) -> Past:
    """Find the samples of ``old`` in a dataset of the same files and others."""
    known, units = _list_paths(old), _Units.of(ds)
    marks = _mark_known(units.table, known)
    past = _take_files(ds, units, marks, lambda path: path not in known)
    if past is None or past.dataset.fingerprint != old.fingerprint:
        raise ResumeError(
            "the dataset given as grown= is not part of this one: without the other files, this "
            "one is not the same",
            "open it with the same arguments and views, and a list of the files there were",
        )
    return past


def _list_paths(ds: Dataset) -> set[bytes]:
    """Return the paths of all files that a dataset needs."""
    tables = [*(one.table for one in ds.all_origins()), *(group.table for group in ds.groups)]
    return {path for table in {id(t): t for t in tables}.values() for path in table.paths()}


def _mark_known(table: Table, known: set[bytes]) -> NDArray[np.bool_]:
    return np.fromiter((path in known for path in table.paths()), bool, table.files)


def _guess(units: _Units, rows: int) -> Iterator[NDArray[np.bool_]]:
    """Yield which files may be those of ``rows`` samples that were there before others."""
    table, counts = units.table, units.count_by_file()
    tried = set()
    place = np.arange(table.files)
    for key in (place, -place, table.identity[:, _MTIME], table.identity[:, _CTIME]):
        order = np.argsort(key, kind="stable")
        ends = np.cumsum(counts[order])
        first, last = np.searchsorted(ends, rows), np.searchsorted(ends, rows, "right") - 1
        # Files without samples may lie between them.
        for end in range(int(last), max(int(first), int(last) - _ENDS) - 1, -1):
            old = np.zeros(table.files, bool)
            old[order[: end + 1]] = True
            if old.tobytes() not in tried:
                tried.add(old.tobytes())
                yield old


def _find_new_paths(ds: Dataset, units: _Units, old: NDArray[np.bool_]) -> set[bytes]:
    """Return the paths of all files that only samples of new files need."""
    found: set[bytes] = set()
    pieces = [np.arange(start, start + size) for start, size in units.stretches(old).tolist()]
    for origin in units.origins:
        new = np.ones(len(origin.files), bool)
        if origin is units.origins[0]:
            new = ~old[origin.files[:, 0]]
        else:
            new[origin.locate(select_rows(ds.rows, np.concatenate(pieces))).part] = False
        count = origin.table.files
        needed, added = (
            np.bincount(origin.files[one].reshape(-1), None, count) for one in (~new, new)
        )
        found.update(origin.table.paths_of(np.flatnonzero((added > 0) & (needed == 0))))
    return found


def _take_files(
    ds: Dataset, units: _Units, old: NDArray[np.bool_], is_new: Callable[[bytes], bool]
) -> Past | None:
    """Return the dataset of the old files alone, if there can be one."""
    found = units.stretches(old)
    if not len(found):
        return None

    def without_new(opened: Opened) -> Opened:
        if opened.fields:
            return opened  # a packed dataset does not grow
        if opened.table is units.table:
            return cut(opened, old)
        kept = np.array([not is_new(path) for path in opened.table.paths()], bool)
        return cut(opened, kept) if kept.any() else opened

    try:
        made = remake(ds, once(without_new))
    except SchemaError:  # sources that differ in length, for example
        return None
    return Past(made, found) if len(made) == found[:, 1].sum() else None
