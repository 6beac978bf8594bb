"""Stored fields of rows as tensors on the GPU: read there, sent there, or there already."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.rowset import chosen
from ndfeed.dataset.step import Batch
from ndfeed.files.maps import Maps, Unmappable
from ndfeed.loader.fill import Source
from ndfeed.loader.host import Host
from ndfeed.order.permutation import Ints
from ndfeed.torch.cuda.driver import Driver, Refused
from ndfeed.torch.cuda.registered import PIECE, Registered
from ndfeed.torch.cuda.stream import Side
from ndfeed.torch.form import Form

Kernel = Callable[[torch.Tensor, torch.Tensor, int, int], None]

# From this size on copy engines reach the bus's rate; below, a kernel does.
LARGE = 32 << 10
_PIECE = 8 << 20  # bytes that are sent at a time
_UNDER_WAY = 16  # pieces that are being sent


class Sending:
    """Rows that another source reads into pinned memory, sent from there.

    In pieces of some megabytes, of which a few are under way: a set as large as the device takes
    no more pinned memory than those. For one thread: several would wait for each other.
    """

    def __init__(self, host: Host, form: Form, side: Side) -> None:
        self._host = host
        self._form = form
        self._side = side
        ds = host.ds
        self._at_once = max(_PIECE * len(ds) // max(ds.nbytes, 1), 1)
        fields = {c.field.name: c.field for group in ds.groups for c in group.columns}
        self._shapes = {name: tuple(n or 0 for n in fields[name].shape or ()) for name in ds.names}

    def read(self, rows: Ints) -> Batch:
        """The fields of ``rows`` on the device."""
        side, types = self._side, self._form.dtypes
        with side.work():
            made = {
                name: torch.empty((len(rows), *shape), dtype=types[name], device=side.device)
                for name, shape in self._shapes.items()
            }
        for start in range(0, len(rows), self._at_once):
            side.flight.settle(_UNDER_WAY)
            batch = self._host.read(rows[start : start + self._at_once])
            with side.work():
                for name, target in made.items():
                    part = target[start : start + self._at_once]
                    part.copy_(self._form.tensor(name, batch[name]), non_blocking=True)
            side.keep(batch)
        return made


class Resident:
    """All rows on the device: gathered there."""

    def __init__(self, fields: Mapping[str, torch.Tensor], side: Side) -> None:
        self._fields = fields
        self._side = side

    def read(self, rows: Ints) -> Batch:
        """The fields of ``rows``."""
        with self._side.work():
            index = on_device(rows, self._side.device)
            return {name: t.index_select(0, index) for name, t in self._fields.items()}


def on_device(numbers: Ints, device: torch.device) -> torch.Tensor:
    """Numbers on the device, through pinned memory that the allocator keeps until it is read."""
    pinned = torch.empty(len(numbers), dtype=torch.int64, pin_memory=True)
    pinned.numpy()[:] = numbers
    return pinned.to(device, non_blocking=True)


class Files:
    """Rows that the GPU reads out of mapped files itself.

    Falls back to ``other`` for good as soon as the driver or the memory does not allow it, or a
    file cannot be mapped; ``refused`` then says why.
    """

    def __init__(
        self,
        ds: Dataset,
        types: Mapping[str, torch.dtype],
        side: Side,
        kernel: Kernel | None,
        limit: int,
        other: Source,
    ) -> None:
        self.refused = ""
        self._ds = ds
        self._types = types
        self._side = side
        self._kernel = kernel
        self._other = other
        self._driver = Driver()
        self._limit = limit
        self._registered: dict[int, Registered] = {}

    def read(self, rows: Ints) -> Batch:
        """The fields of ``rows``."""
        if not self.refused:
            try:
                return self._read(rows)
            except (Refused, Unmappable) as error:
                self.refused = str(error)
        return self._other.read(rows)

    def _read(self, rows: Ints) -> Batch:
        self._side.flight.settle()
        samples = chosen(self._ds.rows, rows)
        batch: Batch = dict.fromkeys(self._ds.names)
        for group in self._ds.groups:
            maps = reader_of(group).maps
            if maps is None:
                raise Refused("the files cannot all be mapped")
            self._gather(group, maps, samples, batch)
        return batch

    def _gather(self, group: Group, maps: Maps, samples: Ints, batch: Batch) -> None:
        file: Ints | int
        if len(group.starts) == 2:  # one file: numbers where there would be vectors
            part: Ints | int = 0
            file, row = int(group.columns[0].file[0]), samples
        else:
            part, row = group.locate(samples)
            file = group.columns[0].file[part]
        maps.enter(file)
        leave = maps.leave
        try:
            if maps.unleased:
                # Who wrote to them while the GPU read could only be told on a lease.
                raise Refused("the files cannot be leased")
            with self._side.work() as stream:
                registered = self._pieces(group, maps)
                for column in group.columns:
                    at = row * column.size
                    at += column.first[part]
                    registered.ensure(file, at, column.size)
                    address = at + maps.address[file]
                    batch[column.field.name] = self._fetch(column, address, at, stream)
        except BaseException:
            torch.cuda.synchronize(self._side.device)
            leave()
            raise
        event = self._side.event
        if event is not None:
            # Nobody may write to the files before the GPU has read them.
            self._side.flight.add(event, leave)

    def _pieces(self, group: Group, maps: Maps) -> Registered:
        found = self._registered.get(id(maps))
        if found is None:
            sizes = group.table.identity[:, 2].tolist()
            used = sum(one.nbytes for one in self._registered.values())
            made = Registered(self._driver, maps, sizes, self._limit - used)
            found = self._registered.setdefault(id(maps), made)
        return found

    def _fetch(
        self, column: Column, address: Ints, at: Ints, stream: torch.cuda.Stream
    ) -> torch.Tensor:
        field, size = column.field, column.size
        shape = tuple(n or 0 for n in field.shape or ())
        out = torch.empty((len(address), *shape), dtype=self._types[field.name],
                          device=self._side.device)  # fmt: skip
        if size >= LARGE and self._driver.copies_rows:
            self._by_engines(address, at, size, out, stream)
        elif self._kernel is None:
            raise Refused("Triton, which gathers small rows, is not installed")
        else:
            self._by_kernel(address, size, out, self._kernel)
        return out

    def _by_engines(
        self, address: Ints, at: Ints, size: int, out: torch.Tensor, stream: torch.cuda.Stream
    ) -> None:
        target = out.data_ptr() + np.arange(len(address)) * size
        sizes = np.full(len(address), size)
        # A copy may not reach from one registered piece into the next.
        room = PIECE - (at & (PIECE - 1))
        cut = np.flatnonzero(room < size)
        if len(cut):
            first = room[cut]
            address = np.concatenate([address, address[cut] + first])
            target = np.concatenate([target, target[cut] + first])
            sizes = np.concatenate([sizes, size - first])
            sizes[cut] = first
        self._driver.copy_rows(
            target.astype(np.uint64), address.astype(np.uint64), sizes.astype(np.uint64),
            stream.cuda_stream,
        )  # fmt: skip

    def _by_kernel(self, address: Ints, size: int, out: torch.Tensor, kernel: Kernel) -> None:
        odd = int(np.bitwise_or.reduce(address)) | size
        kernel(on_device(address, self._side.device), out, size, min(odd & -odd, 8))

    @property
    def nbytes(self) -> int:
        """Bytes of files that are registered."""
        return sum(one.nbytes for one in self._registered.values())

    def close(self) -> None:
        """Take back what was registered."""
        self._side.flight.settle(0)
        torch.cuda.synchronize(self._side.device)
        for one in self._registered.values():
            one.close()
        self._registered.clear()
