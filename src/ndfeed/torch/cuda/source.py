"""Sources of stored fields on the GPU: files that it reads itself, or data in its memory."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import select_rows
from ndfeed.files.maps import Maps, Unmappable
from ndfeed.loading.batch_builder import Source
from ndfeed.order.permutation import Ints
from ndfeed.torch.cuda.copies import Side, resolve
from ndfeed.torch.cuda.driver import PIECE, Driver, Refused, Registered

Kernel = Callable[[torch.Tensor, torch.Tensor, int, int], None]

# From this size on copy engines reach the rate of the bus; for smaller rows a kernel does.
LARGE = 32 << 10


class Resident:
    """Rows that are all in the device's memory, and are gathered there."""

    def __init__(self, fields: Mapping[str, torch.Tensor], side: Side) -> None:
        self._fields = fields
        self._side = side

    def read(self, rows: Ints) -> Batch:
        """The fields of ``rows``."""
        with self._side.work():
            index = on_device(rows, self._side.device)
            return {name: t.index_select(0, index) for name, t in self._fields.items()}


def on_device(numbers: Ints, device: torch.device) -> torch.Tensor:
    """Copy numbers to the device, through pinned memory that torch keeps until it was read."""
    pinned = torch.empty(len(numbers), dtype=torch.int64, pin_memory=True)
    pinned.numpy()[:] = numbers
    return pinned.to(device, non_blocking=True)


class Places:
    """Where rows of mapped files lie, as arrays on the host or as tensors on the GPU."""

    def __init__(self, maps: Maps, file: Ints | int, row: Ints, device: torch.device) -> None:
        self.row = row
        self._base = maps.address[file]  # a number where there is one file
        self._device = device
        self._rows: torch.Tensor | None = None

    def on_host(self, size: int, first: Ints | int) -> tuple[Ints, Ints]:
        """Return where each row starts in its file, and its address."""
        at = self.row * size + first
        return at, at + self._base

    def on_device(self, size: int, first: Ints | int) -> tuple[torch.Tensor, int]:
        """Return the address of each row, and the size of the words that all rows consist of."""
        base = self._base + first
        odd = int(np.bitwise_or.reduce(base, axis=None)) | size
        if np.ndim(base):
            found = on_device(self.row * size + base, self._device)
        else:
            # One base for all rows: the GPU computes the addresses.
            if self._rows is None:
                self._rows = on_device(self.row, self._device)
            found = self._rows * size + int(base)
        return found, min(odd & -odd, 8)


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
        samples = select_rows(self._ds.rows, rows)
        batch: Batch = dict.fromkeys(self._ds.names)
        for group in self._ds.groups:
            reader = reader_of(group)
            reader.check(group, samples)
            maps = reader.maps
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
                places = Places(maps, file, row, self._side.device)
                for column in group.columns:
                    first = column.first[part]
                    if not registered.complete:
                        registered.ensure(file, row * column.size + first, column.size)
                    batch[column.field.name] = self._fetch(column, places, first, stream)
        except BaseException:
            torch.cuda.synchronize(self._side.device)
            leave()
            raise
        # Nobody may write to the files before the GPU has read them.
        self._side.flight.add(resolve(self._side.event), leave)

    def _pieces(self, group: Group, maps: Maps) -> Registered:
        found = self._registered.get(id(maps))
        if found is None:
            sizes = group.table.identity[:, 2].tolist()
            used = sum(one.nbytes for one in self._registered.values())
            made = Registered(self._driver, maps, sizes, self._limit - used)
            found = self._registered.setdefault(id(maps), made)
        return found

    def _fetch(
        self, column: Column, places: "Places", first: Ints | int, stream: torch.cuda.Stream
    ) -> torch.Tensor:
        field, size = column.field, column.size
        out = torch.empty((len(places.row), *field.lengths), dtype=self._types[field.name],
                          device=self._side.device)  # fmt: skip
        if size >= LARGE and self._driver.copies_rows:
            self._by_engines(*places.on_host(size, first), size, out, stream)
        elif self._kernel is None:
            raise Refused("Triton, which gathers small rows, is not installed")
        else:
            addresses, word = places.on_device(size, first)
            self._kernel(addresses, out, size, word)
        return out

    def _by_engines(
        self, at: Ints, address: Ints, size: int, out: torch.Tensor, stream: torch.cuda.Stream
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

    @property
    def nbytes(self) -> int:
        """Bytes of files that are registered."""
        return sum(one.nbytes for one in self._registered.values())

    def close(self) -> None:
        """Unregister all pages."""
        self._side.flight.settle(0)
        torch.cuda.synchronize(self._side.device)
        for one in self._registered.values():
            one.close()
        self._registered.clear()
