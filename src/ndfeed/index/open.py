"""A source to its table: from the cache where it still holds, described anew where not.

``Opened`` is a table that knows its source. It pickles as a handle to shared memory that holds
the table, so that a worker process maps it instead of making its own; a process that cannot
reach that memory opens the source again and checks that it is the same data.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ndfeed.errors import ChangedError, MissingError
from ndfeed.files import tree
from ndfeed.files.shared import Handle, Shared
from ndfeed.formats import raw
from ndfeed.index import cache, codec
from ndfeed.index.build import Rules, build
from ndfeed.index.source import Source, find, spelled
from ndfeed.index.table import Table, concat, subset

_MANY_ARRAYS = 64


class Opened:
    """A table and where it came from."""

    def __init__(self, table: Table, spellings: list[bytes], layout: raw.Layout | None) -> None:
        self.table = table
        self.spellings = spellings
        self.layout = layout
        self._memory: Shared | None = None

    def __reduce__(self) -> tuple[Callable[..., "Opened"], tuple[Any, ...]]:
        if self._memory is None:
            self._memory = Shared.of(codec.encode(self.table))
        handle = self._memory.handle()
        return _arrived, (handle, codec.fingerprint(self.table), self.spellings, self.layout)


def _arrived(
    handle: Handle, expected: str, spellings: list[bytes], layout: raw.Layout | None
) -> Opened:
    """The table behind a pickled handle, or one of the same source and the same data."""
    try:
        memory = Shared.attach(handle)
    except MissingError:
        table = _open(spellings, layout, cached=True)
        found = codec.fingerprint(table)
        if found != expected:
            raise ChangedError(
                spellings[0],
                f"data with fingerprint {expected} expected, found {found}; open it again",
            ) from None
        return Opened(table, spellings, layout)
    table, _ = codec.decode(memory.view().data, checked=False)
    opened = Opened(table, spellings, layout)
    opened._memory = memory
    return opened


def open_table(source: Source, layout: raw.Layout | None = None, *, cached: bool = True) -> Opened:
    """The table of every array in the files of ``source``."""
    spellings = spelled(source)
    return Opened(_open(spellings, layout, cached=cached), spellings, layout)


def _open(spellings: list[bytes], layout: raw.Layout | None, *, cached: bool) -> Table:
    path = cache.place(spellings, layout)
    kept = cache.load(path) if cached else None
    if kept is not None and cache.holds(kept):
        return kept.table
    began = cache.now()
    files = find(spellings)
    rules = Rules(layout, files.picky)
    table = build(files.paths, rules) if kept is None else _renewed(kept, files.paths, rules)
    if not table.files:
        raise tree.nothing(spellings[0], "in this folder")
    if cached and (len(files.paths) > 1 or len(table.file) >= _MANY_ARRAYS):
        cache.save(path, cache.Kept(table, began, files.folders))
    return table


def _renewed(kept: cache.Kept, paths: list[bytes], rules: Rules) -> Table:
    """A table of ``paths`` that describes only what is new or changed since ``kept``."""
    known = {path: file for file, path in enumerate(kept.table.paths(0, kept.table.files))}
    for file in cache.changed_files(kept).tolist():
        del known[kept.table.path(file)]
    new = build([path for path in paths if path not in known], rules)
    first = kept.table.files
    known.update((path, first + i) for i, path in enumerate(new.paths(0, new.files)))
    files = [known[path] for path in paths if path in known]
    return replace(
        subset(concat([kept.table, new]), np.array(files, np.int64)), ignored=new.ignored
    )
