"""Fill batches of a group: choose the way for each column, hold what this process needs for it.

Readers and maps are shared by all views of the same files and belong to one process: a forked
child makes its own, since leases and locks are not to be inherited. Safe to use from several
threads.
"""

import os
import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ndfeed.dataset import rows
from ndfeed.dataset.column import Group
from ndfeed.dataset.members import Decoded
from ndfeed.dataset.target import Target
from ndfeed.dataset.whole import WholeFiles
from ndfeed.errors import SourceError
from ndfeed.files.maps import Maps
from ndfeed.index.table import Ints, Table


class Reader:
    """Reads the samples of one group."""

    def __init__(self, group: Group, maps: Maps | None, decoded: Decoded) -> None:
        # No reference to the group itself: it is the key under which this reader is kept.
        self._columns = group.columns
        self._whole = WholeFiles(group.columns) if group.by_file else None
        self.maps = maps
        self._decoded = decoded

    def fill(self, group: Group, samples: Ints, targets: Sequence[Target]) -> None:
        """Copy ``samples`` of every column into its target. They must be in range."""
        if not len(samples):
            return
        place = group.locate(samples)
        if self._whole is not None:
            self._whole.fill(place.part, targets)
            return
        for column, target in zip(self._columns, targets, strict=True):
            if not column.plain:
                rows.from_parts(column, place, target, self.maps, self._decoded)
                continue
            if not column.nbytes[0]:
                continue
            if self.maps is not None:
                rows.gather(column, place, target, self.maps)
            else:
                rows.read(column, place, target)
            if column.any_swapped:
                target.swap(column.swapped[place.part])


class _Shared:
    """The readers, maps and decoded members of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.readers: WeakKeyDictionary[Group, Reader] = WeakKeyDictionary()
        self.maps: WeakKeyDictionary[Table, Maps | None] = WeakKeyDictionary()
        self.decoded: WeakKeyDictionary[Table, Decoded] = WeakKeyDictionary()


_shared = _Shared()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.__init__)  # type: ignore[misc]


def reader_of(group: Group) -> Reader:
    """This process's reader of a group."""
    found = _shared.readers.get(group)
    if found is not None:
        return found
    with _shared.lock:
        if group not in _shared.readers:
            _shared.readers[group] = _made(group)
        return _shared.readers[group]


def _made(group: Group) -> Reader:
    table = group.table
    if table not in _shared.decoded:
        _shared.decoded[table] = Decoded()
    if group.by_file or not group.mapped:
        return Reader(group, None, _shared.decoded[table])
    if table not in _shared.maps:
        try:
            _shared.maps[table] = Maps(table, guarded=not table.sealed)
        except SourceError:
            _shared.maps[table] = None  # more files than may be open: read by position
    return Reader(group, _shared.maps[table], _shared.decoded[table])
