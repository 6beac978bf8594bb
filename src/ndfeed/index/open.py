"""Open the table of a source: from the cache if it is still valid, otherwise from the files.

``Opened`` is a table that knows its source. It pickles as a handle to shared memory with the
table, so that a worker process maps it instead of making its own; a process that cannot reach
that memory opens the source again and checks that it has the same data.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ndfeed.errors import ChangedError, Error, MissingError, SchemaError, shown
from ndfeed.files import listing
from ndfeed.files.listing import Folders, Paths
from ndfeed.files.shared_memory import Handle, Shared
from ndfeed.formats.manifest import Field
from ndfeed.index import cache, codec
from ndfeed.index.build import (
    Demand,
    build,
    folder_of,
    make_packed_table,
    read_manifest,
    refuse,
)
from ndfeed.index.source import MANY, Files, Source, find, spell_source
from ndfeed.index.table import Ints, Table, match_paths, places, subset

_MANY_ARRAYS = 64
_FEW_NAMES = 100
_EVERYTHING = Demand()


class Opened:
    """A table and where it came from."""

    def __init__(
        self,
        table: Table,
        spellings: Paths,
        demand: Demand,
        fields: tuple[Field, ...] = (),
        *,
        built: int = 0,
        folders: Folders | None = None,
        cached: bool = True,
    ) -> None:
        self.table = table
        self.spellings = spellings
        self.demand = demand
        self.fields = fields  # of a packed dataset only
        self.built = built  # when the build of the table started, in nanoseconds
        self.folders = folders  # in which the files were found, if this process listed them
        self.cached = cached  # may the table be kept for other runs?
        self._memory: Shared | None = None

    def __reduce__(self) -> tuple[Callable[..., "Opened"], tuple[Any, ...]]:
        if self._memory is None:
            self._memory = Shared.of(codec.encode(self.table))
        # A long list of files is in the table already, and too much to send with it.
        source = self.spellings if len(self.spellings) <= _FEW_NAMES else None
        return _unpickle, (
            self._memory.handle(),
            codec.fingerprint(self.table),
            _Facts(self.table.caches, self.table.skipped, self.built, self.cached),
            source,
            self.demand,
            self.fields,
        )


class _Facts(NamedTuple):
    """What a pickled table has besides its columns."""

    caches: tuple[bytes, ...]
    skipped: tuple[Error, ...]
    built: int
    cached: bool


def _unpickle(
    handle: Handle,
    expected: str,
    facts: _Facts,
    spellings: Paths | None,
    demand: Demand,
    fields: tuple[Field, ...],
) -> Opened:
    """Return the table of a pickled handle, or open the same source again."""
    try:
        memory = Shared.attach(handle)
    except MissingError:
        if spellings is None:
            raise
        again = open_manifest(spellings[0]) if fields else None
        opened = open_table(spellings, demand) if again is None else again
        found = codec.fingerprint(opened.table)
        if found != expected:
            raise ChangedError(
                spellings[0],
                f"expected data with fingerprint {expected}, found {found}",
                remedy="open it again",
            ) from None
        return opened
    table, _ = codec.decode(memory.view().data, checked=False)
    if spellings is None:
        spellings = Paths(table.paths())
    table = replace(table, caches=facts.caches, skipped=facts.skipped)
    opened = Opened(table, spellings, demand, fields, built=facts.built, cached=facts.cached)
    opened._memory = memory
    return opened


def open_packed(source: Source) -> list[Opened] | None:
    """Open every packed dataset that ``source`` names; return ``None`` if it names none."""
    spellings = spell_source(source)
    if len(spellings) > MANY:  # these are files, as in ``find``
        return None
    found = [open_manifest(spelling) for spelling in spellings]
    opened = [one for one in found if one is not None]
    if opened and len(opened) < len(found):
        other = next(s for s, one in zip(spellings, found, strict=True) if one is None)
        raise SchemaError(
            opened[0].spellings[0],
            f"is a packed dataset, but {shown(other)} is not a packed dataset",
            remedy="open each, and add them",
        )
    return opened or None


def open_manifest(spelling: bytes) -> Opened | None:
    """Open the packed dataset that an absolute path names; return ``None`` if it names none."""
    folder = folder_of(spelling)
    if folder is None:
        return None
    manifest = read_manifest(folder)
    table = make_packed_table(folder, manifest)
    return Opened(table, Paths((folder,)), Demand(), manifest.fields)


def open_table(source: Source, demand: Demand = _EVERYTHING, *, cached: bool = True) -> Opened:
    """Open the table of every array in the files of ``source``.

    If ``demand`` allows it, files that cannot be described are skipped and listed in the table.
    """
    spellings = spell_source(source)
    table, built, folders, _ = _open(spellings, demand, cached)
    return Opened(table, spellings, demand, built=built, folders=folders, cached=cached)


def _open(spellings: Paths, demand: Demand, cached: bool) -> cache.Kept:
    kept, valid = _find_cached(spellings, demand) if cached else (None, False)
    if kept is not None and valid:
        return kept
    began = cache.now()
    files = find(spellings)
    if cached and len(files.paths) > cache.CHECKED:
        began = cache.settle(files.folders, began)
    table = _update_table(kept, files, demand) if kept else build(files, demand)
    if not table.files:
        refuse(table.skipped, len(files.paths))
        raise listing.nothing_found(spellings[0], "in this folder")
    made = cache.Kept(table, began, files.folders)
    return keep(made, spellings, demand) if cached else made


def keep(made: cache.Kept, spellings: Paths, demand: Demand) -> cache.Kept:
    """Save a table for other runs, if that is worth it."""
    table = made.table
    if table.files + len(table.skipped) + table.passed_over < 2 and len(table.file) < _MANY_ARRAYS:
        return made
    own = demand.wanted if table.narrowed else None
    path = cache.place(spellings, demand.layout, partial=bool(table.skipped), wanted=own)
    cache.save(path, made)
    return made._replace(table=replace(table, caches=(path,)))


def _find_cached(spellings: Paths, demand: Demand) -> tuple[cache.Kept | None, bool]:
    """Return what an earlier run kept, if anything, and whether it is still valid as it is."""
    layout, wanted, skip = demand
    kept: cache.Kept | None = None
    for partial in (False, True) if skip else (False,):
        if kept is not None:
            break
        for own in (None,) if wanted is None else (None, wanted):
            path = cache.place(spellings, layout, partial=partial, wanted=own)
            found = cache.load(path, spellings)
            if found is None:
                continue
            if own is not None:
                found = found._replace(table=replace(found.table, narrowed=True))
            # A table without its bad files is never taken as it is: they are tried every time.
            if not partial and cache.holds(found, layout):
                return found, True
            kept = found
    return kept, False


def _update_table(kept: cache.Kept, files: Files, demand: Demand) -> Table:
    """Return the table of ``files``, describing only those new or changed since ``kept``."""
    place = match_paths(kept.table, files.paths)
    place[cache.changed_files(kept, demand.layout)[place]] = -1
    fresh = files.chosen(place < 0)
    return join_described(kept.table, place, fresh, build(fresh, demand, of=len(files.paths)))


def join_described(known: Table, place: Ints, fresh: Files, new: Table) -> Table:
    """Return a table of files that are known, by number, and of ``fresh`` ones where it is -1."""
    place = place.copy()
    found = places(new, fresh.paths)
    place[place < 0] = np.where(found < 0, -1, found + known.files)
    chosen = place[place >= 0]
    joined = known
    if new.files or new.skipped or new.narrowed or not _is_range(chosen, known.files):
        joined = subset([known, new], chosen)
    return replace(joined, ignored=new.ignored, passed_over=new.passed_over)


def _is_range(numbers: Ints, count: int) -> bool:
    """Are these the numbers from 0 to ``count``, in order?"""
    return len(numbers) == count and not np.count_nonzero(numbers != np.arange(count))
