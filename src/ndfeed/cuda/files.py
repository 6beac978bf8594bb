"""Rows that the device reads out of mapped files itself.

Large rows are fetched by the copy engines, which reach the rate of the bus and leave the
multiprocessors to training; small ones by a kernel, for which a row costs nothing.

Crops, and other rows that are not contiguous, are fetched by the kernel, stretch by stretch.

Small fields beside large ones, labels beside images, are fetched for a long stretch of the order at
once, and batches are given their parts. A call to the driver costs as much as the copy of an image,
however small what it fetches, and calls of several threads wait for each other.
"""

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from ndfeed.cuda.driver import Refused
from ndfeed.cuda.kernels import Places, Uploads, gather
from ndfeed.cuda.registered import PIECE, Registered, share_registered
from ndfeed.cuda.side import OnDevice, Side
from ndfeed.dataset.column import Column, Group, Place
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch
from ndfeed.dataset.overlapping import find_stretches
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import select_rows
from ndfeed.files.maps import Maps, Unmappable
from ndfeed.loading.batch_builder import Source
from ndfeed.order.permutation import Ints

# From this size on copy engines reach the rate of the bus; for smaller rows a kernel does.
LARGE = 32 << 10
_LONG = 1 << 14  # rows of a stretch, at most
_STRETCH = 8 << 20  # bytes of a stretch, at most
_KEPT = 4  # known orders and stretches that are kept


class _Stretch(NamedTuple):
    """Small fields of consecutive rows of an order, and the address of their row numbers."""

    address: int
    length: int
    known: Ints  # the order that they belong to: kept, or its address could be another's
    made: dict[str, OnDevice]


class _Stretches:
    """The stretches that were fetched last, and the order as far as it is known. Thread-safe."""

    def __init__(self, row: int) -> None:
        self.most = min(_LONG, _STRETCH // max(row, 1))
        self.lock = threading.Lock()
        self._known: deque[Ints] = deque(maxlen=_KEPT)
        self._made: deque[_Stretch] = deque(maxlen=_KEPT)

    def foresee(self, rows: Ints) -> None:
        """Note an order, of which batches will be slices."""
        self._known.append(rows)

    def find(self, rows: Ints) -> tuple[_Stretch, int] | None:
        """Return the stretch that has been fetched for rows, and where in it they begin."""
        first = rows.__array_interface__["data"][0]
        for one in list(self._made):
            at = (first - one.address) // 8
            if at >= 0 and at + len(rows) <= one.length:
                return one, at
        return None

    def extend(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the rows and those that follow them in the order, and that order itself."""
        first = rows.__array_interface__["data"][0]
        for known in list(self._known):
            at = (first - known.__array_interface__["data"][0]) // 8
            if at >= 0 and at + len(rows) <= len(known):
                return known[at : at + max(self.most, len(rows))], known
        return rows, rows

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._made.clear()

    def add(self, rows: Ints, known: Ints, made: dict[str, OnDevice]) -> None:
        """Keep the fields of rows."""
        first = rows.__array_interface__["data"][0]
        self._made.append(_Stretch(first, len(rows), known, made))


class Files(Source):
    """Rows that the device reads out of mapped files itself.

    Falls back to ``other`` for good as soon as the driver or the memory does not allow it, or a
    file cannot be mapped; ``refused`` then says why.
    """

    def __init__(self, ds: Dataset, side: Side, limit: int, other: Source) -> None:
        self.refused = ""
        self._ds = ds
        self._side = side
        self._other = other
        self._limit = limit
        self._registered: dict[int, Registered] = {}
        self._sharing = threading.Lock()
        self._uploads = Uploads(side)
        large = [[c for c in g.columns if self._for_engines(c)] for g in ds.groups]
        small = [[c for c in g.columns if not self._for_engines(c)] for g in ds.groups]
        self._large, self._small = large, small
        self._stretches: _Stretches | None = None
        if any(large) and any(small):
            self._stretches = _Stretches(sum(c.size for some in small for c in some))

    def _for_engines(self, column: Column) -> bool:
        return self._side.driver.copies_rows and column.pitch > 0 and column.size >= LARGE

    @property
    def by(self) -> str:
        """What fetches the rows, in words."""
        if any(self._large) and any(self._small):
            return "both"
        return "its copy engines" if any(self._large) else "a kernel"

    def foresee(self, rows: Ints) -> None:
        """Note which rows will be read, in this order: ``read`` is given slices of it."""
        if self._stretches is not None and rows.dtype == np.int64 and rows.flags.c_contiguous:
            self._stretches.foresee(rows)

    def read(self, rows: Ints) -> Batch:
        """The fields of ``rows``."""
        if not self.refused:
            try:
                return self._read(rows)
            except (Refused, Unmappable) as error:
                self.refused = str(error)
        return self._other.read(rows)

    def _read(self, rows: Ints) -> Batch:
        self._side.join()
        self._side.flight.settle()
        batch: Batch = dict.fromkeys(self._ds.names)
        if self._stretches is not None:
            batch |= self._read_small(rows, self._stretches)
            self._fetch_all(self._large, rows, batch)
        elif any(self._large):
            self._fetch_all(self._large, rows, batch)
        else:
            self._fetch_all(self._small, rows, batch)
        return batch

    def _read_small(self, rows: Ints, stretches: _Stretches) -> Batch:
        """Return the small fields, as parts of a stretch."""
        found = stretches.find(rows)
        if found is None:
            with stretches.lock:
                found = stretches.find(rows)
                if found is None:
                    some, known = stretches.extend(rows)
                    made: Batch = {}
                    self._fetch_all(self._small, some, made)
                    stretches.add(some, known, made)
                    found = stretches.find(rows)
        if found is None:  # others have fetched many meanwhile
            made = {}
            self._fetch_all(self._small, rows, made)
            return made
        one, at = found
        return {name: values[at : at + len(rows)] for name, values in one.made.items()}

    def _fetch_all(self, columns: Sequence[list[Column]], rows: Ints, batch: Batch) -> None:
        samples = select_rows(self._ds.rows, rows)
        for group, some in zip(self._ds.groups, columns, strict=True):
            if some and some[0].computed is not None:
                self._send_computed(some, group.locate(samples), batch)
            elif some:
                self._fetch_group(group, some, samples, batch)

    def _fetch_group(
        self, group: Group, columns: list[Column], samples: Ints, batch: Batch
    ) -> None:
        reader = reader_of(group)
        reader.check(group, samples)
        maps = reader.maps
        if maps is None:
            raise Refused("the files cannot all be mapped")
        file: Ints | int
        if len(group.starts) == 2:  # one file: numbers where there would be vectors
            part: Ints | int = 0
            file, row = int(group.columns[0].file[0]), select_rows(group.rows, samples)
        else:
            part, row = group.locate(samples)
            file = group.columns[0].file[part]
        side = self._side
        pages = self._pieces(group, maps)
        until = maps.enter(file)

        def leave() -> None:
            maps.leave()
            pages.release()

        pages.retain()
        try:
            if maps.unleased:
                # Who wrote to them while the device read could only be told on a lease.
                raise Refused("the files cannot be leased")
            places = Places(self._uploads, maps.address[file], row)
            for column in columns:
                if column.pitch:
                    made = self._fetch_rows(column, places, file, column.first[part], pages)
                else:
                    located = group.locate(samples)
                    made = self._fetch_stretches(column, places, file, located, pages)
                batch[column.field.name] = made
            event = side.record()
            maps.check(file, until)  # this process may have been stopped meanwhile; a device is not
        except BaseException:
            side.driver.synchronize()
            leave()
            raise
        places.release(event)
        # Nobody may write to the files before the device has read them.
        side.flight.add(event, leave)

    def _pieces(self, group: Group, maps: Maps) -> Registered:
        found = self._registered.get(id(maps))
        if found is None:
            sizes = group.table.identity[:, 2].tolist()
            with self._sharing:
                found = self._registered.get(id(maps))
                if found is None:
                    found = share_registered(self._side.driver, maps, sizes)
                    self._registered[id(maps)] = found
        return found

    def _ensure(self, pages: Registered, file: Ints | int, start: Ints, size: int) -> None:
        """Register the pages of some bytes."""
        if not pages.complete:
            pages.ensure(file, start, size, self._limit - self.nbytes + pages.nbytes)

    def _fetch_rows(
        self,
        column: Column,
        places: Places,
        file: Ints | int,
        first: Ints | int,
        pages: Registered,
    ) -> OnDevice:
        size, count = column.size, len(places.row)
        self._ensure(pages, file, places.row * column.pitch + first, size)
        out = self._side.memory.empty(column.field.name, count)
        target = self._side.memory.address(out)
        if self._for_engines(column):
            self._by_engines(*places.on_host(column.pitch, first), size, target)
        else:
            found = places.on_device(size, column.pitch, first)
            gather(self._side.stream, found, target, count, size)
        return out

    def _fetch_stretches(
        self,
        column: Column,
        places: Places,
        file: Ints | int,
        located: Place,
        pages: Registered,
    ) -> OnDevice:
        """Fetch samples that are not contiguous, such as crops."""
        start, size = find_stretches(column, located)
        self._ensure(pages, file if isinstance(file, int) else file[:, None], start, size)
        out = self._side.memory.empty(column.field.name, len(start))
        target = self._side.memory.address(out)
        found = places.of_stretches(start, size)
        gather(self._side.stream, found, target, start.size, size)
        return out

    def _send_computed(self, columns: list[Column], located: Place, batch: Batch) -> None:
        """Send fields that are in no file."""
        memory, used = self._side.memory, []
        for column in columns:
            if column.computed is not None:
                values = column.computed(located)
                out = memory.empty(column.field.name, len(values))
                used.append(self._uploads.pass_on(values, memory.address(out)))
                batch[column.field.name] = out
        self._uploads.release(used, self._side.record())

    def _by_engines(self, at: Ints, address: Ints, size: int, first: int) -> None:
        target = first + np.arange(len(address)) * size
        sizes = np.full(len(address), size)
        # A copy may not reach from one registered piece into the next.
        room = PIECE - (at & (PIECE - 1))
        cut = np.flatnonzero(room < size)
        if len(cut):
            first_part = room[cut]
            address = np.concatenate([address, address[cut] + first_part])
            target = np.concatenate([target, target[cut] + first_part])
            sizes = np.concatenate([sizes, size - first_part])
            sizes[cut] = first_part
        self._side.stream.copy_rows(
            target.astype(np.uint64), address.astype(np.uint64), sizes.astype(np.uint64)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of files that are registered."""
        return sum(one.nbytes for one in list(self._registered.values()))

    def close(self) -> None:
        """Unregister all pages."""
        with ExitStack() as every:
            while self._registered:
                every.callback(self._registered.popitem()[1].release)
            if self._stretches is not None:
                every.callback(self._stretches.clear)
            with self._side.driver.context():
                self._side.flight.settle(0)
                self._side.driver.synchronize()
                self._uploads.close()
