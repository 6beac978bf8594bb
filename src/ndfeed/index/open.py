"""Open the table of a source: from the cache if it is still valid, otherwise from the files.

``Opened`` is a table that knows its source. It pickles as a handle to shared memory with the
table, so that a worker process maps it instead of making its own; a process that cannot reach
that memory opens the source again and checks that it has the same data.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ndfeed.errors import ChangedError, Error, MissingError, SchemaError, shown
from ndfeed.files import listing
from ndfeed.files.listing import Paths
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
from ndfeed.index.table import Table, places, subset

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
    ) -> None:
        self.table = table
        self.spellings = spellings
        self.demand = demand
        self.fields = fields  # of a packed dataset only
        self._memory: Shared | None = None

    def __reduce__(self) -> tuple[Callable[..., "Opened"], tuple[Any, ...]]:
        if self._memory is None:
            self._memory = Shared.of(codec.encode(self.table))
        # A long list of files is in the table already, and too much to send with it.
        source = self.spellings if len(self.spellings) <= _FEW_NAMES else None
        return _unpickle, (
            self._memory.handle(),
            codec.fingerprint(self.table),
            self.table.caches,
            source,
            self.demand,
            self.fields,
            self.table.skipped,
        )


def _unpickle(
    handle: Handle,
    expected: str,
    caches: tuple[bytes, ...],
    spellings: Paths | None,
    demand: Demand,
    fields: tuple[Field, ...],
    skipped: tuple[Error, ...],
) -> Opened:
    """Return the table of a pickled handle, or open the same source again."""
    try:
        memory = Shared.attach(handle)
    except MissingError:
        if spellings is None:
            raise
        again = _open_manifest(spellings[0]) if fields else None
        table = _open(spellings, demand, cached=True) if again is None else again.table
        found = codec.fingerprint(table)
        if found != expected:
            raise ChangedError(
                spellings[0],
                f"expected data with fingerprint {expected}, found {found}",
                remedy="open it again",
            ) from None
        return Opened(table, spellings, demand, fields)
    table, _ = codec.decode(memory.view().data, checked=False)
    if spellings is None:
        spellings = Paths(table.paths())
    table = replace(table, caches=caches, skipped=skipped)
    opened = Opened(table, spellings, demand, fields)
    opened._memory = memory
    return opened


def open_packed(source: Source) -> list[Opened] | None:
    """Open every packed dataset that ``source`` names; return ``None`` if it names none."""
    spellings = spell_source(source)
    if len(spellings) > MANY:  # these are files, as in ``find``
        return None
    found = [_open_manifest(spelling) for spelling in spellings]
    opened = [one for one in found if one is not None]
    if opened and len(opened) < len(found):
        other = next(s for s, one in zip(spellings, found, strict=True) if one is None)
        raise SchemaError(
            opened[0].spellings[0],
            f"is a packed dataset, but {shown(other)} is not a packed dataset",
            remedy="open each, and add them",
        )
    return opened or None


def _open_manifest(spelling: bytes) -> Opened | None:
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
    return Opened(_open(spellings, demand, cached), spellings, demand)


def _open(spellings: Paths, demand: Demand, cached: bool) -> Table:
    layout, wanted, _ = demand
    kept = _find_cached(spellings, demand) if cached else None
    if isinstance(kept, Table):
        return kept
    began = cache.now()
    files = find(spellings)
    table = _update_table(kept, files, demand) if kept else build(files, demand)
    if not table.files:
        refuse(table.skipped, len(files.paths))
        raise listing.nothing_found(spellings[0], "in this folder")
    if cached and (len(files.paths) > 1 or len(table.file) >= _MANY_ARRAYS):
        own = wanted if table.narrowed else None
        path = cache.place(spellings, layout, partial=bool(table.skipped), wanted=own)
        cache.save(path, cache.Kept(table, began, files.folders))
        table = replace(table, caches=(path,))
    return table


def _find_cached(spellings: Paths, demand: Demand) -> Table | cache.Kept | None:
    """Return the table of an earlier run if still valid, else what can be reused of it, if any."""
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
                return found.table
            kept = found
    return kept


def _update_table(kept: cache.Kept, files: Files, demand: Demand) -> Table:
    """Return the table of ``files``, describing only those new or changed since ``kept``."""
    place = places(kept.table, files.paths)
    place[cache.changed_files(kept, demand.layout)[place]] = -1
    fresh = files.chosen(place < 0)
    new = build(fresh, demand, of=len(files.paths))
    found = places(new, fresh.paths)
    place[place < 0] = np.where(found < 0, -1, found + kept.table.files)
    renewed = subset([kept.table, new], place[place >= 0])
    return replace(renewed, ignored=new.ignored, passed_over=new.passed_over)
