"""Look again at the files of a table: which are new, which are gone, and which have changed.

Only new files are described. Files that were known are the same, or there is an error: one that is
gone is named and, if the caller says so, left out; one that has changed is named. A new file that
cannot be described may be one that is still being written: if it was modified a short time ago, it
is left out until next time.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import ChangedError, Error, MissingError, shown
from ndfeed.files.listing import Folders, Paths
from ndfeed.index import cache, codec
from ndfeed.index.build import build, refuse
from ndfeed.index.open import Opened, join_described, keep, open_manifest
from ndfeed.index.source import Files, find
from ndfeed.index.table import Ints, Table, match_paths, places, subset

SETTLE = 60.0  # seconds after which nobody writes to a file any more
_NAMED = 3  # files that an error names

Missing = Literal["raise", "skip"]


class Terms(NamedTuple):
    """What to do with files that are gone, and how long to wait for incomplete ones, in seconds.

    ``among`` are the only new files that are accepted, if that was decided elsewhere.
    """

    missing: Missing = "raise"
    settle: float = SETTLE
    among: frozenset[bytes] | None = None


def as_terms(missing: Missing, settle: float) -> Terms:
    """Check what a caller gave."""
    if missing not in ("raise", "skip"):
        raise ValueError(f'missing must be "raise" or "skip", got {missing!r}')
    if type(settle) not in (int, float) or not 0 <= settle < 1e9:
        raise ValueError(f"settle must be a number of seconds, 0 or more, got {settle!r}")
    return Terms(missing, float(settle))


def refresh(opened: Opened, terms: Terms) -> Opened:
    """Return the table of the files that a source names now."""
    if opened.fields:
        return _check_packed(opened)
    table, demand = opened.table, opened.demand
    known = cache.Kept(table, opened.built, opened.folders or Folders())
    if opened.folders is not None and not table.skipped and cache.holds(known, demand.layout):
        return opened
    began = cache.now()
    files, place, lost, complete = _find_again(opened, terms)
    unsure = (place >= 0) & cache.find_uncertain(known, demand.layout)[place]
    again = place[unsure]
    place[unsure] = -1
    fresh = files.chosen(place < 0)
    new = build(fresh, demand._replace(skip=True), of=len(files.paths))
    if not demand.skip:
        refuse([one for one in new.skipped if not _is_young(one, terms.settle)], len(files.paths))
    _check_same(table, again, new)
    made = join_described(replace(table, skipped=()), place, fresh, new)
    if not made.files:
        raise lost[0]
    made = replace(made, skipped=(*lost, *made.skipped))
    # A table that lacks files of its source is not kept for others, unless files may be skipped.
    complete &= demand.skip or not made.skipped
    result = cache.Kept(made, began, files.folders)
    if opened.cached and complete and (lost or new.files):
        result = keep(result, opened.spellings, demand)
    return Opened(
        result.table,
        opened.spellings,
        demand,
        built=began,
        folders=files.folders if complete else None,
        cached=opened.cached,
    )


class _Again(NamedTuple):
    """The files of a source now, which known file each is, and what is wrong with those gone.

    ``complete``: are these all of them?
    """

    files: Files
    place: Ints
    lost: list[Error]
    complete: bool


def _find_again(opened: Opened, terms: Terms) -> _Again:
    """Find the files of a source; refuse if known ones have changed, or are gone."""
    table, files = opened.table, find(opened.spellings)
    place = match_paths(table, files.paths)
    changed = cache.find_changed(table)
    gone = np.union1d(_find_gone(table, files.paths, place), _find_absent(table, changed))
    lost = _list_gone(table, gone, terms)
    changed = np.setdiff1d(changed, gone)
    if len(changed):
        raise _make_changed_error(table, changed)
    files, place = _leave_out(files, place, np.isin(place, gone))
    other = np.zeros(len(place), bool)
    if terms.among is not None:
        other = place < 0
        other[other] = [path not in terms.among for path in files.paths.chosen(other)]
    return _Again(*_leave_out(files, place, other), lost, not other.any())


def cut(opened: Opened, which: NDArray[np.bool_]) -> Opened:
    """Return the table of some files, as if it had been opened from a list of them."""
    if which.all():
        return opened
    files = np.flatnonzero(which)
    made = replace(subset([opened.table], files), skipped=())
    paths = Paths(made.paths())
    return Opened(made, paths, opened.demand, built=opened.built, cached=False)


def pair(before: Sequence[Opened], now: Sequence[Opened]) -> list[Opened]:
    """Leave out files whose counterparts in other sources are not there yet.

    Files of several sources belong together if their names without suffix were the same, one by
    one. Where they were not, nothing is known, and all files are kept.
    """
    if len(now) < 2 or any(one.fields for one in now):
        return list(now)
    names = [_list_names(one.table) for one in before]
    if any(own != names[0] for own in names):
        return list(now)
    names = [_list_names(one.table) for one in now]
    common = set(names[0]).intersection(*names[1:])
    return [_keep_named(one, own, common) for one, own in zip(now, names, strict=True)]


def _list_names(table: Table) -> list[bytes]:
    """Return the names of files without their suffixes, and without what all have in common."""
    return [os.path.splitext(path[len(table.base) :])[0] for path in table.paths()]


def _keep_named(opened: Opened, names: list[bytes], common: set[bytes]) -> Opened:
    kept = np.array([name in common for name in names], bool)
    if kept.all():
        return opened
    table = opened.table
    problem = "files of the same name in the other sources are not there yet"
    lacking = [
        MissingError(path, problem, remedy="refresh() once they are")
        for path in table.paths_of(np.flatnonzero(~kept))
    ]
    made = subset([replace(table, skipped=())], np.flatnonzero(kept))
    made = replace(made, skipped=(*table.skipped, *lacking))
    spellings, built = opened.spellings, opened.built
    return Opened(made, spellings, opened.demand, built=built, cached=opened.cached)


def _check_packed(opened: Opened) -> Opened:
    """Return a packed dataset, which never grows; refuse another one in its place."""
    again = open_manifest(opened.spellings[0])
    if again is None:
        raise MissingError(opened.spellings[0], "the packed dataset is gone")
    if again.table.digest != opened.table.digest:
        raise ChangedError(
            opened.spellings[0],
            "the packed dataset was replaced by another one",
            remedy="open it again with ndfeed.open",
        )
    return opened


def _find_gone(table: Table, paths: Paths, place: Ints) -> Ints:
    """Return the files of a table that a source no longer names."""
    found = np.zeros(table.files, bool)
    found[place[place >= 0]] = True
    left = np.flatnonzero(~found)
    wanted = dict(zip(table.paths_of(left), left.tolist(), strict=True))
    for path in paths if wanted else ():  # may have another place among them, or be named twice
        wanted.pop(path, None)
    return np.array(sorted(wanted.values()), np.int64)


def _find_absent(table: Table, files: Ints) -> Ints:
    """Return which of some files do not exist."""
    paths = zip(files.tolist(), table.paths_of(files), strict=True)
    return np.array([file for file, path in paths if not os.path.lexists(path)], np.int64)


def _list_gone(table: Table, gone: Ints, terms: Terms) -> list[Error]:
    """Return an error for each file that is gone; raise one for all unless they may be skipped."""
    if terms.missing == "skip":
        problem, remedy = "the file is gone", "restore it to have its samples again"
        return [MissingError(path, problem, remedy=remedy) for path in table.paths_of(gone)]
    if len(gone):
        raise MissingError(
            table.path(int(gone[0])),
            _describe(table, gone, "gone"),
            remedy='restore what is gone, or call refresh(missing="skip") to go on without it',
        )
    return []


def _make_changed_error(table: Table, changed: Ints) -> ChangedError:
    cache.doubt(table)
    return ChangedError(
        table.path(int(changed[0])),
        _describe(table, changed, "not as they were" if len(changed) > 1 else "not as it was"),
        remedy="write new samples to new files, and open the dataset again with ndfeed.open",
    )


def _describe(table: Table, files: Ints, what: str) -> str:
    """Say how many files there are to blame; name some of those after the first."""
    verb = "are" if len(files) > 1 else "is"
    named = [shown(path) for path in table.paths_of(files[1:_NAMED])]
    more = [f"{len(files) - _NAMED:,} more"] if len(files) > _NAMED else []
    also = f" (also {', '.join([*named, *more])})" if named else ""
    return f"{len(files):,} of {table.files:,} files of the dataset {verb} {what}{also}"


def _leave_out(files: Files, place: Ints, which: NDArray[np.bool_]) -> tuple[Files, Ints]:
    """Return the files of a source, and what is known of each, without some of them."""
    if not which.any():
        return files, place
    return files.chosen(~which), place[~which]


def _is_young(error: Error, settle: float) -> bool:
    """Was a file modified so recently that it may be incomplete? Or is it gone already?"""
    try:
        age = time.time() - os.stat(error.path or "").st_mtime
    except OSError:
        return True
    return abs(age) < settle


def _check_same(table: Table, old: Ints, new: Table) -> None:
    """Refuse files that were known, and were described again, if they have changed."""
    if not len(old):
        return
    found = places(new, Paths(table.paths_of(old)))
    if (found < 0).any():
        raise _make_changed_error(table, old[found < 0])
    differ = (table.identity[old] != new.identity[found]).any(axis=1)
    if not differ.any() and _fingerprint(table, old) != _fingerprint(new, found):
        pairs = zip(np.split(old, len(old)), np.split(found, len(old)), strict=True)
        differ = np.array([_fingerprint(table, a) != _fingerprint(new, b) for a, b in pairs])
    if differ.any():
        raise _make_changed_error(table, old[differ])


def _fingerprint(table: Table, files: Ints) -> str:
    return codec.fingerprint(subset([table], files))
