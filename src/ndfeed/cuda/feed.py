"""How batches get to a GPU: chooses the way, for the adapters of all frameworks.

the GPU reads the files   plain rows of mapped files that are in memory
inflated on the device    deflated files of one sample each, if nvCOMP is there and faster
through pinned memory     everything else: compressed, cold, mapped by functions, ragged
resident                  the whole dataset is in the memory of the device
"""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.cuda.driver import Driver, Event, Refused, is_ours
from ndfeed.cuda.files import Files
from ndfeed.cuda.inflate import INFLATED, Inflater, Library
from ndfeed.cuda.inflate_choice import Device, Rates, choose_way, is_faster
from ndfeed.cuda.kernels import Orders
from ndfeed.cuda.nvcomp import load_nvcomp
from ndfeed.cuda.pieces import Pieces
from ndfeed.cuda.registered import PIECE
from ndfeed.cuda.resident import Resident
from ndfeed.cuda.sender import Copy, Sender
from ndfeed.cuda.side import MOST_AHEAD, OnDevice, Recorded, Side
from ndfeed.dataset import readahead
from ndfeed.dataset.column import Column, Group, columns_of, is_converted
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch
from ndfeed.dataset.overlapping import stretch_bytes
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import Drawn, select_rows
from ndfeed.errors import shown_size
from ndfeed.files import platform_calls
from ndfeed.files.shared_memory import Block
from ndfeed.loading.adapter import Adapter
from ndfeed.loading.batch_builder import Source
from ndfeed.loading.buffer_pool import Bytes, buffer_of
from ndfeed.loading.engine import Delivered
from ndfeed.loading.flips import keep_drawn
from ndfeed.loading.host_source import HostSource
from ndfeed.loading.options import Options, Structure
from ndfeed.order.permutation import Ints, permute_by

_PROBES = 64
_TOGETHER = 16 << 20  # bytes of batches made in host memory that are sent together
_MOST_THREADS = 16
_SHORTEST = 16  # bytes of a stretch: what says where it is takes eight


class CudaFeed(Adapter):
    """The part of an adapter for one device that is the same for all frameworks.

    ``on_host`` says that batches are made in host memory, for the subclass to send; else ``finish``
    is given arrays of the framework, filled by work that ends with the event of this thread.
    """

    ahead = 2
    together = 64 << 20  # starting work on a device costs more than on a CPU
    load_library: Callable[[], Library] = staticmethod(load_nvcomp)
    prefer: Callable[[Rates], bool] = staticmethod(is_faster)
    least = 64 << 20  # bytes of a dataset that is worth inflating on a device
    compared = 1024  # samples that are inflated there before that is chosen

    def __init__(
        self,
        ds: Dataset,
        side: Side,
        structure: Structure,
        name: str,
        *,
        on_host: bool = False,
        resident: bool = False,
    ) -> None:
        super().__init__(structure)
        self._ds = ds
        self._side = side
        self._name = name
        self._on_host = on_host
        self._resident = resident
        if on_host:
            self.together = _TOGETHER
        self._reason = "batches are made on the CPU" if on_host else why_not_direct(ds)
        self._sender = Sender(side)
        self._ahead_bytes = 0  # of batches on the device that the consumer has not got yet
        self._counting = threading.Lock()
        self._files: Files | None = None
        self._held: Mapping[str, OnDevice] | None = None
        self._gathered: Resident | None = None
        self._inflater: Inflater | None = None
        self._kept: Sequence[str] = ()  # fields that are not inflated on the device
        self._loading = threading.Lock()
        self._orders = Orders(side.driver)
        # Those that only ask for rows are few; where batches are made is measured.
        self.threads = 2 if resident or not self._reason else None if on_host else _copy_threads()

    def reads(self, ds: Dataset, options: Options, batch_bytes: int) -> tuple[Dataset, Options]:
        """Return the compressed bytes in place of fields that are inflated on the device."""
        if not self._on_host:
            return ds, options
        allocate = self.allocate or partial(allocate_pinned, self._side.driver)
        device = Device(
            self._side, self.load_library, self.prefer, allocate, self.least, self.compared
        )
        way = choose_way(ds, options, batch_bytes, self._kept, device)
        self._inflater = way.inflater
        if way.inflater is not None:
            self.joint = self.cuts_ragged = True
            self.together = INFLATED
        if way.why:
            self._reason = way.why if way.inflater else f"{self._reason}, since {way.why}"
        return way.ds, way.options

    def deliver(self, made: Batch, rows: Ints) -> Delivered:
        """Convert the batch of ``rows``, which is inflated first if it was read compressed."""
        if self._inflater is not None:
            made = keep_drawn(self._inflater.read(made, rows), made)
        return self.finish(made)

    def source(self, host: HostSource) -> Source:
        """Return the source of stored fields."""
        if self._inflater is not None:
            self._inflater.host = host.of(self._ds)
        if self._on_host:
            return host
        pieces = Pieces(host, self._side, self._sender)
        if self._resident:
            sizes = {c.field.name: c.field.nbytes or 0 for c in columns_of(self._ds.groups)}
            try:
                held = self._load(pieces)
            except BaseException:
                self.close()  # nobody else would: there is no loader yet that has this adapter
                raise
            self._gathered = Resident(held, sizes, self._side)
            return _Ordered(self._gathered, self._orders)
        if self._reason:
            return pieces
        limit = (platform_calls.free_memory() or platform_calls.memory_bytes()) // 2
        self._files = Files(self._ds, self._side, limit, pieces)
        return _Ordered(self._files, self._orders)

    def describe(self) -> str:
        """Say how batches get to the device."""
        if self._resident:
            return f"resident on {self._name}"
        if self._inflater is not None:
            return f"{self._inflater.describe(self._name)}: {self._reason}"
        if self._files is None:
            return f"through pinned memory to {self._name}: {self._reason}"
        if self._files.refused:
            return f"through pinned memory to {self._name}: {self._files.refused}"
        registered = shown_size(self._files.nbytes)
        return f"{self._name} reads the files by {self._files.by}, {registered} registered"

    def close(self) -> None:
        """Release registered pages. Resident data is released with the loader itself."""
        # All of it, whatever of it fails: what a broken device says is for its user to see. The
        # last one comes first.
        with suppress(RuntimeError), ExitStack() as every:
            for one in (self._inflater, self._gathered, self._files):
                if one is not None:
                    every.callback(one.close)
            every.callback(self._settle)
            every.callback(self._sender.close)

    def _settle(self) -> None:
        with ExitStack() as every:
            every.callback(self._side.flight.settle, 0)  # also if the context cannot be used
            with self._side.driver.context():
                self._side.flight.settle(0)
                self._orders.close()

    def _reserve(self, size: int) -> "Reserved | None":
        """Reserve room on the device for a batch that is sent early; nothing if there is none.

        Sent as soon as it is made, its buffer is used again while it is in the processor's cache.
        """
        with self._counting:
            if self._ahead_bytes and self._ahead_bytes + size > MOST_AHEAD:
                return None
            self._ahead_bytes += size
        return Reserved(self._give_back, size)

    def _give_back(self, size: int) -> None:
        with self._counting:
            self._ahead_bytes -= size

    def _send(self, copies: Sequence[Copy], held: list[Any]) -> Recorded:
        """Start copies between memory that ``held`` refers to; returns the event after them."""
        sent: Future[Event] = Future()
        self._sender.send(copies, held.clear, sent)
        return sent

    def _load(self, pieces: Pieces) -> Mapping[str, OnDevice]:
        with self._loading:
            if self._held is None:
                self._held = pieces.load(_copy_threads())
            return self._held


class Reserved:
    """Room on the device, given back when nobody refers to it."""

    __slots__ = ("_give_back", "_size")

    def __init__(self, give_back: Callable[[int], None], size: int) -> None:
        self._give_back, self._size = give_back, size

    def __del__(self) -> None:
        self._give_back(self._size)


class _Ordered(Source):
    """A source whose threads have the order worked out on the device."""

    def __init__(self, source: Source, orders: Orders) -> None:
        self._source = source
        self._orders = orders
        self._local = threading.local()

    def foresee(self, rows: Ints) -> None:
        """Note which rows will be read."""
        self._source.foresee(rows)

    def read(self, rows: Ints) -> Batch:
        """The fields of ``rows``."""
        if not hasattr(self._local, "joined"):
            permute_by(self._orders.permute)
            self._local.joined = True
        return self._source.read(rows)


class _Pinned:
    """Pinned host memory, which NumPy sees through its array interface."""

    def __init__(self, driver: Driver, size: int) -> None:
        self._driver = driver
        with driver.context():
            self._address = driver.allocate_pinned(size)
        self.__array_interface__ = {
            "version": 3,
            "data": (self._address, False),
            "shape": (size,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        if hasattr(self, "_address") and is_ours(self._driver):
            with suppress(RuntimeError), self._driver.context():
                self._driver.free_pinned(self._address)


def allocate_pinned(driver: Driver, size: int) -> Bytes:
    """Allocate memory that the device copies from at the full rate of the bus."""
    try:
        return np.asarray(_Pinned(driver, size))
    except Refused as error:
        raise MemoryError(f"{error}") from None


def allocate_pinned_shared(driver: Driver, size: int) -> Bytes:
    """Allocate pinned memory that worker processes can fill."""
    block = Block.of(size)
    address = block.__array_interface__["data"][0]
    try:
        with driver.context():
            driver.register(address, size, read_only=False)
    except Refused:
        return block  # what is in it is copied to pinned memory
    block.pinned = True
    # Before it is unmapped; but not at exit, when copies may still read it.
    weakref.finalize(block, _unregister, driver, address).atexit = False
    return block


def is_pinned(array: NDArray[Any]) -> bool:
    """Does an array lie in pinned memory of a loader? Asking the driver would take far longer."""
    buffer = buffer_of(array)
    return buffer is not None and (not isinstance(buffer, Block) or buffer.pinned)


def _unregister(driver: Driver, address: int) -> None:
    if is_ours(driver):
        with suppress(RuntimeError), driver.context():
            driver.unregister(address)


def _copy_threads() -> int:
    """Return how many threads copy rows: fewer than processors, since one sends them as well."""
    return min(max(platform_calls.cores() * 3 // 4, 1), _MOST_THREADS)


def check_resident(ds: Dataset, *, ragged: bool) -> None:
    """Refuse datasets whose samples the memory of a device cannot hold as they are."""
    if ds.steps or ragged:
        raise ValueError(
            "resident=True holds samples as they are stored, all of one shape; leave out map() and "
            "ragged fields, or resident"
        )
    if isinstance(ds.rows, Drawn):
        raise ValueError(
            "resident=True holds the same samples for all epochs, and random crops are drawn in "
            "each; leave out resident, or cut crops with grid= or at="
        )


def why_not_direct(ds: Dataset) -> str:
    """Say why the GPU cannot read the files itself; empty if it can."""
    for group in ds.groups:
        if group.by_file or not group.mapped or reader_of(group).maps is None:
            return "files are read one by one"
        if not all(map(_is_direct, group.columns)):
            return "rows are compressed, ragged, scattered or in another byte order"
        if not all(c.size <= PIECE for c in group.columns):
            return f"rows are larger than {shown_size(PIECE)}"
        if not _is_warm(ds, group):
            return "the files are not in memory yet"
    return ""


def _is_direct(column: Column) -> bool:
    """Can the GPU fetch the samples of a column itself?"""
    if column.computed is not None or (column.plain and column.size and not column.any_swapped):
        return True
    if column.coding.any() or not column.even or column.pad is not None or column.any_swapped:
        return False
    if column.field.ragged or column.whole.any() or is_converted(column) or not column.size:
        return False
    return stretch_bytes(column) >= min(_SHORTEST, column.size)


def _is_warm(ds: Dataset, group: Group) -> bool:
    if not len(ds):
        return False
    return readahead.resident(group, select_rows(ds.rows, readahead.spread(len(ds), _PROBES)))
