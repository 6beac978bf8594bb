"""How batches get to a GPU: chooses the way, and is the adapter that takes it.

the GPU reads the files   plain rows of mapped files that are in memory
through pinned memory     everything else: compressed, cold, mapped by functions, ragged
resident                  the whole dataset is in the memory of the device
"""

import importlib
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ndfeed.dataset import readahead
from ndfeed.dataset.column import Group, columns_of
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import select_rows
from ndfeed.errors import shown_size
from ndfeed.files import platform_calls
from ndfeed.files.shared_memory import Block
from ndfeed.loading.adapter import Adapter
from ndfeed.loading.batch_builder import Source
from ndfeed.loading.buffer_pool import Bytes
from ndfeed.loading.host_source import HostSource
from ndfeed.loading.process_choice import opens_files
from ndfeed.torch.batch_format import Batch, BatchFormat, Tensors, Values
from ndfeed.torch.cuda.copies import Pieces, Sent, Side, resolve
from ndfeed.torch.cuda.source import LARGE, Files, Kernel, Resident

_PROBES = 64
_MOST_THREADS = 16
_MOST_OF_DEVICE = 0.9


def allocate_pinned(size: int) -> Bytes:
    """Allocate memory that the GPU copies from at the full rate of the bus."""
    found: Bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return found


def allocate_pinned_shared(size: int) -> Bytes:
    """Allocate pinned memory that worker processes can fill."""
    block = Block.of(size)
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = block.__array_interface__["data"][0]
    if runtime.cudaHostRegister(address, size, 0) == runtime.cudaError.success:
        # Before it is unmapped; but not at exit, when copies may still read it.
        weakref.finalize(block, runtime.cudaHostUnregister, address).atexit = False
    return block  # else it is copied to pinned memory


class Feed(Adapter):
    """The adapter for one CUDA device. Made in the process that uses it."""

    allocate = staticmethod(allocate_pinned)
    allocate_shared = staticmethod(allocate_pinned_shared)
    ahead = 2
    together = 64 << 20  # starting work on a device costs more than on a CPU

    def __init__(
        self,
        ds: Dataset,
        device: torch.device,
        form: BatchFormat,
        *,
        resident: bool = False,
    ) -> None:
        super().__init__(form.structure)
        self._ds = ds
        self._side = Side(device)
        self._form = form
        self._resident = resident
        # Files that are opened for every sample are read by processes, if those are faster.
        by_file = opens_files(ds) and not resident
        if by_file:
            self.together = Adapter.together
        self._on_host = bool(ds.steps) or form.ragged or by_file
        self._reason = "batches are made on the CPU" if self._on_host else why_not_direct(ds)
        self._pieces: Pieces | None = None
        self._files: Files | None = None
        self._held: Mapping[str, torch.Tensor] | None = None
        self._loading = threading.Lock()
        self.threads = self._choose_threads()

    def _choose_threads(self) -> int:
        """Return how many threads request rows; more if they copy them as well."""
        if self._reason and not self._resident:
            return _copy_threads()
        return 2

    def source(self, host: HostSource) -> Source:
        """Return the source of stored fields."""
        if self._on_host:
            return host
        self._pieces = pieces = Pieces(host, self._form, self._side)
        if self._resident:
            return Resident(self._load(pieces), self._side)
        if self._reason:
            return pieces
        limit = (platform_calls.free_memory() or platform_calls.memory_bytes()) // 2
        self._files = Files(self._ds, self._form.dtypes, self._side, kernel(), limit, pieces)
        return self._files

    def finish(self, made: dict[str, Any]) -> Sent | Tensors:
        """Record an event after a batch that is on the device; put others in pinned memory.

        Maps return arrays in memory of their own, and from any memory that is not pinned the
        device copies several times slower, while the consumer waits.
        """
        made = self._form.pick(made)
        if any(isinstance(value, torch.Tensor) and value.is_cuda for value in made.values()):
            return self._convert(made)
        return self._each(self._pin, made)

    def send(self, made: Sent | Tensors) -> Sequence[Sent]:
        """Start the copy of a batch that was made in host memory.

        All copies start from one thread: many threads that call the driver would spend most of
        their time waiting for the GIL.
        """
        if isinstance(made, Sent):
            return (made,)
        self._side.flight.settle()
        with self._side.work():
            sent = self._each(self._move, made)
        self._side.keep(made)
        return (self._convert(sent),)

    def _each(self, do: Callable[[str, Values], Values], made: Tensors) -> Tensors:
        """Apply a function to each field of a batch."""
        return {name: do(name, values) for name, values in made.items()}

    def _pin(self, name: str, values: Values) -> Values:
        made = self._form.tensor(name, values)
        return [_pin_tensor(one) for one in made] if isinstance(made, list) else _pin_tensor(made)

    def _move(self, _: str, made: Values) -> Values:
        if isinstance(made, list):
            return [one.to(self._side.device, non_blocking=True) for one in made]
        return made.to(self._side.device, non_blocking=True)

    def _convert(self, made: Tensors) -> Sent:
        if self._form.convert:
            resolve(self._side.event)
            with self._side.work():
                made = self._each(self._form.convert_field, made)
        return Sent(made, self._side.event)

    def receive(self, made: Sent) -> Batch:
        """Return the batch, ready for the stream that is current now."""
        return self._form.build(self._side.receive(made))

    def describe(self) -> str:
        """Say how batches get to the device."""
        if self._resident:
            return f"resident on {self._side.device}"
        if self._files is None:
            return f"through pinned memory to {self._side.device}: {self._reason}"
        if self._files.refused:
            return f"through pinned memory to {self._side.device}: {self._files.refused}"
        sizes = [column.size for column in columns_of(self._ds.groups)]
        by = "its copy engines" if min(sizes) >= LARGE else "a kernel"
        by = "both" if min(sizes) < LARGE <= max(sizes) else by
        registered = shown_size(self._files.nbytes)
        return f"{self._side.device} reads the files by {by}, {registered} registered"

    def close(self) -> None:
        """Release registered pages. Resident data is released with the loader itself."""
        if self._pieces is not None:
            self._pieces.close()
        self._side.flight.settle(0)
        if self._files is not None:
            self._files.close()

    def _load(self, pieces: Pieces) -> Mapping[str, torch.Tensor]:
        with self._loading:
            if self._held is None:
                check_fits(self._ds, self._side.device)
                self._held = pieces.load(_copy_threads())
            return self._held


def _pin_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if it is in pinned memory; else a copy that is."""
    return tensor if tensor.is_pinned() or not tensor.numel() else tensor.pin_memory()


def _copy_threads() -> int:
    """Return how many threads copy rows: fewer than processors, since one sends them as well."""
    return min(max(platform_calls.cores() * 3 // 4, 1), _MOST_THREADS)


def kernel() -> Kernel | None:
    """Return the kernel that gathers small rows, if Triton is installed."""
    try:
        found: Kernel = importlib.import_module("ndfeed.torch.cuda.kernel").gather
    except ImportError:
        return None
    return found


def why_not_direct(ds: Dataset) -> str:
    """Say why the GPU cannot read the files itself; empty if it can."""
    for group in ds.groups:
        if group.by_file or not group.mapped or reader_of(group).maps is None:
            return "files are read one by one"
        if not all(c.plain and c.size and not c.any_swapped for c in group.columns):
            return "rows are compressed, strided, ragged or in another byte order"
        if not _is_warm(ds, group):
            return "the files are not in memory yet"
    return ""


def _is_warm(ds: Dataset, group: Group) -> bool:
    if not len(ds):
        return False
    return readahead.resident(group, select_rows(ds.rows, readahead.spread(len(ds), _PROBES)))


def check_fits(ds: Dataset, device: torch.device) -> None:
    """Refuse a dataset that is larger than the free memory of the device."""
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if ds.nbytes > free * _MOST_OF_DEVICE:
        raise ValueError(
            f"resident=True needs {shown_size(ds.nbytes)} on {device}, of which "
            f"{shown_size(free)} are free; select fewer fields, or leave it out"
        )
