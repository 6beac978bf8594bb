"""Fills batches of a group: chooses how to read each column, and holds what that needs.

Readers and maps are shared by all views of the same files and belong to one process: a forked
child makes its own, since leases and locks must not be inherited. Thread-safe.
"""

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset import destination, gather, offsets, ranges
from ndfeed.dataset.column import Column, Group, Place, is_converted
from ndfeed.dataset.decoding import Decoded, kept_by_default
from ndfeed.dataset.destination import Arrays, Destination
from ndfeed.dataset.large_members import make_cache
from ndfeed.dataset.map_places import LARGE_ROW, Pieces, find_pieces, place_files
from ndfeed.dataset.row_selection import select_rows
from ndfeed.dataset.whole_files import WholeFiles
from ndfeed.errors import ChangedError, MissingError, SourceError
from ndfeed.files import platform_calls
from ndfeed.files.maps import Maps, Unmappable
from ndfeed.index.cache import doubt
from ndfeed.index.table import Ints, Table

T = TypeVar("T")

# A field of the only file there is: its name, dtype and shape, its samples as records, and what
# picks some of them.
_Pick = Callable[[Ints], NDArray[np.void]]
_Source = tuple[str, np.dtype, tuple[int | None, ...], NDArray[np.void], _Pick]
_BYTE = np.dtype(np.uint8)


class Reader:
    """Reads the samples of one group."""

    def __init__(self, group: Group, maps: Maps | None, token: object) -> None:
        self.token = token
        self._columns = group.columns
        self._whole = WholeFiles(group.columns) if group.by_file else None
        self.maps = maps
        self._sources: list[_Source] = []
        self._decoded: Decoded | None = None
        fields = (column.field for column in group.columns)
        self._names = [(f.name, f.dtype, (-1, *(f.shape or ()))) for f in fields]
        alone = len(group.starts) == 2
        self._alone = int(group.columns[0].file[0]) if alone else None
        self._rows = group.rows if alone else None  # else ``group.locate`` selects them
        self._row = sum(int(c.nbytes[0]) for c in group.columns if c.even)
        # Samples for which the available memory is checked.
        self._many = -(-platform_calls.LARGE // max(self._row, 1))
        # Do samples overlap, or lie apart? Then one call gathers them into memory of its own.
        self._apart = any(c.plain and c.pitch != c.size for c in group.columns)
        self._short = maps is not None and all(
            c.plain and c.size and not c.any_swapped and (alone or c.size <= LARGE_ROW)
            for c in group.columns
        )
        self._pieces = [find_pieces(c, maps) for c in group.columns]

    def check(self, group: Group, samples: Ints) -> None:
        """Compare checksums, for code that bypasses this reader; here there are none."""

    def read(self, group: Group, samples: Ints, batch: dict[str, Any]) -> None:
        """Read ``samples``, which are in range, into new arrays in ``batch``."""
        if len(samples) >= self._many:
            platform_calls.require_memory(len(samples) * self._row, group.table.path(0))
        way = self._read_scattered if self._alone is None else self._read_one
        if self._try_shortcut(way, group, samples, batch):
            return
        for target in self.fill(group, samples, {}):
            batch[target.column.field.name] = target.arrays

    # The methods below do what ``fill`` does, for plain rows in mapped files, in as few calls as
    # possible: such a batch costs so little that every Python call is noticeable. For the same
    # reason ``maps.read`` is given methods and their arguments here, not closures.

    def _try_shortcut(
        self, way: Callable[..., None], group: Group, samples: Ints, other: object
    ) -> bool:
        """Take a shortcut, if there is one for this group now."""
        if not self._short or not len(samples):
            return False
        if self._rows is not None:
            samples = select_rows(self._rows, samples)
        try:
            way(self.maps, group, samples, other)
        except Unmappable:
            return False
        except (ChangedError, MissingError):
            doubt(group.table)
            raise
        return True

    def _read_one(self, maps: Maps, _: Group, samples: Ints, batch: dict[str, Any]) -> None:
        maps.read(self._alone, self._copy_one, samples, batch)  # type: ignore[arg-type]

    def _copy_one(self, samples: Ints, batch: dict[str, Any]) -> None:
        for name, dtype, shape, _, pick in self._sources or self._find_sources():
            batch[name] = pick(samples).view(dtype).reshape(shape)

    def _find_sources(self) -> list[_Source]:
        """Return the only file's samples, field by field; it is entered."""
        every = zip(self._names, self._columns, strict=True)
        records = [(known, gather.records_of(column, self.maps)) for known, column in every]  # type: ignore[arg-type]
        found = [(*known, one, gather.picker(one)) for known, one in records]
        self._sources = found  # atomic: another thread may be here too
        return found

    def lend(
        self,
        group: Group,
        samples: Ints,
        room: Callable[[], dict[str, NDArray[Any]]],
        batch: dict[str, Any],
        decoded: Decoded,
    ) -> None:
        """Read ``samples``, which are in range, into ``batch``, in memory that ``room`` lends.

        It has an array for every field. What is gathered by address is in new memory instead.
        """
        many = self._short and (self._apart or self._alone is None) and len(samples)
        chosen = self._apart or group.rows is not None
        scattered = many and (chosen or not gather.consecutive(samples))
        gathers = self._read_scattered if self._alone is None else self._read_one
        if scattered and self._alone is None and any(self._pieces):
            lent = zip(room().items(), self._pieces, strict=True)
            batch.update(one for one, pieces in lent if pieces is not None)
        if scattered and self._try_shortcut(gathers, group, samples, batch):
            return
        arrays = room()
        way = self._fill_stretch if self._alone is None else self._fill_one
        if scattered or not self._try_shortcut(way, group, samples, arrays):
            self.fill(group, samples, arrays, decoded)
        batch.update(arrays)

    def _fill_stretch(
        self, maps: Maps, group: Group, samples: Ints, arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read consecutive samples: one copy per file."""
        first, end = int(samples[0]), int(samples[-1]) + 1
        low = int(np.searchsorted(group.starts, first, side="right")) - 1
        high = int(np.searchsorted(group.starts, end, side="left"))
        file = self._columns[0].file[low:high]

        def copy() -> None:
            for column in self._columns:
                out, size = arrays[column.field.name].reshape(-1).view(_BYTE), column.size
                for part in range(low, high):
                    start, stop = group.starts[part : part + 2].tolist()
                    begin, until = max(start, first), min(stop, end)
                    at = int(column.first[part]) + (begin - start) * size
                    length = (until - begin) * size
                    to = (begin - first) * size
                    out[to : to + length] = maps.bytes(int(column.file[part]))[at : at + length]

        maps.read(file, copy)

    def _fill_one(
        self, maps: Maps, _: Group, samples: Ints, arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        maps.read(self._alone, self._copy_into, samples, arrays)  # type: ignore[arg-type]

    def _copy_into(self, samples: Ints, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, _, _, records, _ in self._sources or self._find_sources():
            room = arrays[name].reshape(-1).view(_BYTE).view(records.dtype)
            gather.take(records, samples, room)

    def _read_scattered(
        self, maps: Maps, group: Group, samples: Ints, batch: dict[str, Any]
    ) -> None:
        place = group.locate(samples)
        file = self._columns[0].file[place.part]
        maps.read(file, self._copy_scattered, maps, place, file, batch)

    def _copy_scattered(self, maps: Maps, place: Place, file: Ints, batch: dict[str, Any]) -> None:
        every = zip(self._names, self._columns, self._pieces, strict=True)
        for (name, dtype, shape), column, pieces in every:
            found = gather.from_many(column, place, file, maps, pieces, batch.get(name))
            batch[name] = found.view(dtype).reshape(shape)

    def fill(
        self,
        group: Group,
        samples: Ints,
        arrays: Mapping[str, Arrays],
        decoded: Decoded | None = None,
    ) -> list[Destination]:
        """Copy ``samples``, which are in range, into ``arrays`` or else into new memory.

        Callers that read in an order of their own pass their own cache of ``decoded`` streams.
        """
        place = group.locate(samples)
        targets = [Destination(c, place.part, arrays.get(c.field.name)) for c in self._columns]
        if not len(samples):
            return targets
        try:
            if self._whole is not None:
                self._whole.fill(place.part, targets)
                return targets
            for pieces, target in zip(self._pieces, targets, strict=True):
                try:
                    self._fill_column(group, place, target, self.maps, decoded, pieces)
                except Unmappable:
                    self._fill_column(group, place, target, None, decoded)
        except (ChangedError, MissingError):
            doubt(group.table)
            raise
        return targets

    def _fill_column(
        self,
        group: Group,
        place: Place,
        target: Destination,
        maps: Maps | None,
        decoded: Decoded | None,
        pieces: Pieces | None = None,
    ) -> None:
        column = target.column
        if column.offsets is not None:
            ranges.fill(column, place, target, maps, decoded or self._own_decoded(group))
            return
        if not column.plain:
            gather.from_parts(column, place, target, maps, decoded or self._own_decoded(group))
            return
        if not column.size:
            return
        if maps is None:
            gather.read(column, place, target)
        elif self._alone is not None:
            gather.gather_one(column, place.row, target, maps)
        else:
            gather.gather(column, place, target, maps, pieces)
        if column.any_swapped:
            target.swap(column.swapped[place.part])

    def _own_decoded(self, group: Group) -> Decoded:
        if self._decoded is None:
            self._decoded = _find_cache(group)
        return self._decoded

    def shapes(self, group: Group, column: Column, samples: Ints) -> Ints | list[offsets.Shape]:
        """Return the shape of each of ``samples`` of a ragged column."""
        place = group.locate(samples)
        if column.offsets is None:
            return column.shapes(place.part)
        return self._locate(offsets.shapes, group, column, place)

    def spans(self, group: Group, column: Column, place: Place) -> offsets.Spans:
        """Locate samples of located parts."""
        return self._locate(offsets.where, group, column, place)

    def _locate(self, way: Callable[..., T], group: Group, column: Column, place: Place) -> T:
        try:
            try:
                return way(column, place, self.maps)
            except Unmappable:
                return way(column, place, None)
        except (ChangedError, MissingError):
            doubt(group.table)
            raise


class CheckedReader(Reader):
    """Compares the checksum of every block that samples lie in, once, before they are read."""

    def check(self, group: Group, samples: Ints) -> None:
        """Compare the blocks of these samples that were not compared yet."""
        checks, column = group.checks, group.columns[0]
        if checks is None or not checks.left or not len(samples):
            return
        place = group.locate(samples)
        checks.check_rows(column, place)
        if column.offsets is not None:
            checks.check_places(column, place)
            kept = np.flatnonzero(column.offsets[place.part] >= 0)
            some = Place(place.part[kept], place.row[kept])
            found = self.spans(group, column, some)
            checks.check_values(column, some.part, found.start, found.nbytes)

    def read(self, group: Group, samples: Ints, batch: dict[str, Any]) -> None:
        """Read ``samples``, which are in range, into new arrays in ``batch``."""
        self.check(group, samples)
        super().read(group, samples, batch)

    def lend(
        self,
        group: Group,
        samples: Ints,
        room: Callable[[], dict[str, NDArray[Any]]],
        batch: dict[str, Any],
        decoded: Decoded,
    ) -> None:
        """Read ``samples``, which are in range, into ``batch``, in memory that ``room`` lends."""
        self.check(group, samples)
        super().lend(group, samples, room, batch, decoded)

    def fill(
        self,
        group: Group,
        samples: Ints,
        arrays: Mapping[str, Arrays],
        decoded: Decoded | None = None,
    ) -> list[Destination]:
        """Copy ``samples``, which are in range, into ``arrays`` or else into new memory."""
        self.check(group, samples)
        return super().fill(group, samples, arrays, decoded)

    def shapes(self, group: Group, column: Column, samples: Ints) -> Ints | list[offsets.Shape]:
        """Return the shape of each of ``samples`` of a ragged column."""
        if group.checks is not None and column.offsets is not None and group.checks.left:
            group.checks.check_places(column, group.locate(samples))
        return super().shapes(group, column, samples)


class ConvertingReader(Reader):
    """Reads samples as they are stored, and converts them to the dtypes of the fields."""

    def __init__(self, group: Group, maps: Maps | None, token: object) -> None:
        super().__init__(group, maps, token)
        self._variants = destination.Variants(group)
        self._readers: dict[int, tuple[Group, Reader]] = {}

    def fill(
        self,
        group: Group,
        samples: Ints,
        arrays: Mapping[str, Arrays],
        decoded: Decoded | None = None,
    ) -> list[Destination]:
        """Copy ``samples``, which are in range, into ``arrays`` or else into new memory."""

        def filling(variant: int) -> tuple[Group, destination.Fill]:
            if variant not in self._readers:  # atomic: another thread may be here too
                own = self._variants.group(variant)
                kind = Reader if own.checks is None else CheckedReader
                self._readers[variant] = own, kind(own, self.maps, self.token)
            own, reader = self._readers[variant]
            return own, lambda some, room: reader.fill(own, some, room, decoded)

        return destination.fill_converted(self._variants, group, samples, arrays, filling)


class _Process:
    """The readers, maps and decoded members of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # By the table's id: maps refer to their table, so it lives, and keeps its id, with them.
        self.maps: WeakValueDictionary[int, Maps] = WeakValueDictionary()
        self.decoded: WeakKeyDictionary[Table, Decoded] = WeakKeyDictionary()
        self.token = object()  # differs from that of any other process


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.__init__)  # type: ignore[misc]


def reader_of(group: Group) -> Reader:
    """Return this process's reader of a group, cached on the group itself."""
    found: Reader | None = group.__dict__.get("_reader")
    if found is not None and found.token is _process.token:
        return found
    with _process.lock:
        made = _make_reader(group)
        group.__dict__["_reader"] = made
        return made


def _make_reader(group: Group) -> Reader:
    table = group.table
    kind = Reader if group.checks is None else CheckedReader
    if any(is_converted(column) for column in group.columns):
        kind = ConvertingReader
    if group.by_file or not group.mapped:
        return kind(group, None, _process.token)
    maps = _process.maps.get(id(table))
    if maps is None:
        try:
            maps = Maps(table, guarded=not table.sealed, places=place_files(group))
            _process.maps[id(table)] = maps
        except SourceError:
            maps = None  # more files than may be open: read by position
    return kind(group, maps, _process.token)


def _find_cache(group: Group) -> Decoded:
    """Return the cache of decoded streams of a group's files, made on first use."""
    found = _process.decoded.get(group.table)
    if found is None:
        made = make_cache(group, kept_by_default())
        with _process.lock:
            found = _process.decoded.setdefault(group.table, made)
    return found
