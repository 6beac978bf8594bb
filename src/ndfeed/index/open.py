"""A source to its table: from the cache where it still holds, described anew where not.

``Opened`` is a table that knows its source. It pickles as a handle to shared memory that holds
the table, so that a worker process maps it instead of making its own; a process that cannot
reach that memory opens the source again and checks that it is the same data.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ndfeed.errors import ChangedError, Error, MissingError, SchemaError, shown
from ndfeed.files import tree
from ndfeed.files.paths import Paths
from ndfeed.files.shared import Handle, Shared
from ndfeed.formats import raw
from ndfeed.formats.manifest import Field
from ndfeed.index import cache, codec, packed
from ndfeed.index.build import build, refuse
from ndfeed.index.source import MANY, Files, Source, find, spelled
from ndfeed.index.table import Table, places, subset

_MANY_ARRAYS = 64
_FEW_NAMES = 100


class Opened:
    """A table and where it came from."""

    def __init__(
        self,
        table: Table,
        spellings: Paths,
        layout: raw.Layout | None,
        fields: tuple[Field, ...] = (),
        skip: bool = False,
    ) -> None:
        self.table = table
        self.spellings = spellings
        self.layout = layout
        self.fields = fields  # of a packed dataset, and of nothing else
        self.skip = skip  # were bad files to be left out?
        self._memory: Shared | None = None

    def __reduce__(self) -> tuple[Callable[..., "Opened"], tuple[Any, ...]]:
        if self._memory is None:
            self._memory = Shared.of(codec.encode(self.table))
        # A long list of files is in the table already, and too much to send beside it.
        source = self.spellings if len(self.spellings) <= _FEW_NAMES else None
        return _arrived, (
            self._memory.handle(),
            codec.fingerprint(self.table),
            self.table.caches,
            source,
            self.layout,
            self.fields,
            self.table.skipped if self.skip else None,
        )


def _arrived(
    handle: Handle,
    expected: str,
    caches: tuple[bytes, ...],
    spellings: Paths | None,
    layout: raw.Layout | None,
    fields: tuple[Field, ...],
    skipped: tuple[Error, ...] | None,
) -> Opened:
    """The table behind a pickled handle, or one of the same source and the same data."""
    skip = skipped is not None
    try:
        memory = Shared.attach(handle)
    except MissingError:
        if spellings is None:
            raise
        again = _packed(spellings[0]) if fields else None
        table = _open(spellings, layout, True, skip) if again is None else again.table
        found = codec.fingerprint(table)
        if found != expected:
            raise ChangedError(
                spellings[0],
                f"data with fingerprint {expected} expected, found {found}; open it again",
            ) from None
        return Opened(table, spellings, layout, fields, skip)
    table, _ = codec.decode(memory.view().data, checked=False)
    if spellings is None:
        spellings = Paths(table.paths_of(np.arange(table.files)))
    table = replace(table, caches=caches, skipped=skipped or ())
    opened = Opened(table, spellings, layout, fields, skip)
    opened._memory = memory
    return opened


def open_packed(source: Source) -> list[Opened] | None:
    """Every packed dataset that ``source`` names, or nothing if it names none."""
    spellings = spelled(source)
    if len(spellings) > MANY:  # files, as ``find`` takes them for
        return None
    found = [_packed(spelling) for spelling in spellings]
    opened = [one for one in found if one is not None]
    if opened and len(opened) < len(found):
        other = next(s for s, one in zip(spellings, found, strict=True) if one is None)
        raise SchemaError(
            opened[0].spellings[0],
            f"a packed dataset, {shown(other)} is none; open each, and add them",
        )
    return opened or None


def _packed(spelling: bytes) -> Opened | None:
    folder = packed.folder_of(spelling)
    if folder is None:
        return None
    manifest = packed.read_manifest(folder)
    table = packed.table_of(folder, manifest)
    return Opened(table, Paths((folder,)), None, manifest.fields)


def open_table(
    source: Source, layout: raw.Layout | None = None, *, cached: bool = True, skip: bool = False
) -> Opened:
    """The table of every array in the files of ``source``.

    With ``skip``, files that cannot be described are left out and listed in the table.
    """
    spellings = spelled(source)
    return Opened(_open(spellings, layout, cached, skip), spellings, layout, (), skip)


def _open(spellings: Paths, layout: raw.Layout | None, cached: bool, skip: bool) -> Table:
    path = cache.place(spellings, layout)
    kept = cache.load(path, spellings) if cached else None
    if kept is not None and cache.holds(kept, layout):
        return replace(kept.table, caches=(path,))
    if skip and cached and kept is None:
        # A table without its bad files is never taken as it is: they are tried again every time.
        kept = cache.load(cache.place(spellings, layout, partial=True), spellings)
    began = cache.now()
    files = find(spellings)
    table = _renewed(kept, files, layout, skip) if kept else build(files, layout, skip=skip)
    if not table.files:
        refuse(table.skipped, len(files.paths))
        raise tree.nothing(spellings[0], "in this folder")
    if cached and (len(files.paths) > 1 or len(table.file) >= _MANY_ARRAYS):
        if table.skipped:
            path = cache.place(spellings, layout, partial=True)
        cache.save(path, cache.Kept(table, began, files.folders))
        table = replace(table, caches=(path,))
    return table


def _renewed(kept: cache.Kept, files: Files, layout: raw.Layout | None, skip: bool) -> Table:
    """The table of ``files``, of which only those new or changed since ``kept`` are described."""
    place = places(kept.table, files.paths)
    place[cache.changed_files(kept, layout)[place]] = -1
    fresh = files.chosen(place < 0)
    new = build(fresh, layout, of=len(files.paths), skip=skip)
    found = places(new, fresh.paths)
    place[place < 0] = np.where(found < 0, -1, found + kept.table.files)
    renewed = subset([kept.table, new], place[place >= 0])
    return replace(renewed, ignored=new.ignored, passed_over=new.passed_over)
