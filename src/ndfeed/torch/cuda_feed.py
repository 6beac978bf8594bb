"""Batches as tensors on a CUDA device: PyTorch's part of what ``ndfeed.cuda`` does.

Tensors are allocated by PyTorch on the stream that fills them. Used on another one, they need two
things: the consumer's stream waits for the event after the copy, and the allocator is told that the
memory is in use there. Otherwise it would give the memory away while kernels of the consumer still
read it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from ndfeed.cuda.driver import driver_of, side_stream
from ndfeed.cuda.feed import CudaFeed, allocate_pinned_shared, is_pinned
from ndfeed.cuda.pieces import memory_of
from ndfeed.cuda.sender import Copy
from ndfeed.cuda.side import Sent, Side, resolve
from ndfeed.dataset.column import columns_of
from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import shown_size
from ndfeed.loading.batch_builder import Source
from ndfeed.loading.buffer_pool import Bytes
from ndfeed.loading.engine import BatchGroup
from ndfeed.loading.flips import DRAWN, keep_drawn
from ndfeed.loading.host_source import HostSource
from ndfeed.loading.process_choice import opens_files
from ndfeed.torch.batch_format import Batch, BatchFormat, Tensors, Values

_MOST_OF_DEVICE = 0.9
# Typed here, since torch has no types for its constructor.
_wrap_stream: Callable[..., torch.cuda.Stream] = torch.cuda.ExternalStream


def allocate_pinned(size: int) -> Bytes:
    """Allocate memory that the GPU copies from at the full rate of the bus."""
    found: Bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return found


class TensorMemory:
    """Tensors on a device, made on our stream. See ``ndfeed.cuda.side.Memory``."""

    def __init__(self, ds: Dataset, form: BatchFormat, device: torch.device, stream: int) -> None:
        self.device = device
        self.stream = _wrap_stream(stream, device=device)
        fields = {c.field.name: c.field for c in columns_of(ds.groups)}
        self._fields = {n: (f.lengths, form.dtypes.get(n)) for n, f in fields.items()}

    def join(self) -> None:
        """Put all work of this thread on the stream, for threads that do nothing else."""
        torch.cuda.set_device(self.device)
        torch.cuda.set_stream(self.stream)

    def empty(self, name: str, count: int) -> torch.Tensor:
        """Make a tensor for ``count`` samples of a field."""
        shape, dtype = self._fields[name]
        return torch.empty((count, *shape), dtype=dtype, device=self.device)

    def address(self, array: torch.Tensor) -> int:
        """Return where a tensor begins."""
        return array.data_ptr()


class Feed(CudaFeed):
    """The adapter for one CUDA device. Made in the process that uses it."""

    allocate = staticmethod(allocate_pinned)

    def __init__(
        self, ds: Dataset, device: torch.device, form: BatchFormat, *, resident: bool = False
    ) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        driver = driver_of(device.index)
        stream = side_stream(driver)
        self._memory = TensorMemory(ds, form, device, stream.handle)
        # Files that are opened for every sample are read by processes, if those are faster.
        on_host = bool(ds.steps) or form.ragged or (opens_files(ds) and not resident)
        side = Side(driver, stream, self._memory)
        super().__init__(ds, side, form.structure, f"{device}", on_host=on_host, resident=resident)
        # Sent together: what a copy costs of the GIL is more than what small batches take.
        self.joint = on_host and not ds.steps and not form.ragged
        self.allocate_shared = partial(allocate_pinned_shared, driver)
        self.draws = bool(form.flips)
        self._form = form
        self._device = device

    def source(self, host: HostSource) -> Source:
        """Return the source of stored fields."""
        if self._resident and self._held is None:
            check_fits(self._ds, self._device)
        return super().source(host)

    @contextmanager
    def _work(self) -> Iterator[None]:
        """Put everything within on our stream; an event is then recorded after it."""
        with torch.cuda.stream(self._memory.stream):
            yield
            self._side.record()

    def finish(self, made: dict[str, Any]) -> Sent | Tensors:
        """Record an event after a batch that is on the device; send others, if there is room.

        Maps return arrays in memory of their own, and from any memory that is not pinned the
        device copies several times slower, so those are copied to pinned memory first.
        """
        made = keep_drawn(self._form.pick(made), made)
        if any(isinstance(value, torch.Tensor) and value.is_cuda for value in made.values()):
            return self._convert(made)
        pinned = {name: self._pin(name, values) for name, values in made.items()}
        size = sum(one.nbytes for values in pinned.values() for one in _list_tensors(values))
        reserved = self._reserve(size)
        return pinned if reserved is None else self._move(pinned, reserved)

    def send(self, made: BatchGroup | Sent | Tensors) -> Sequence[Sent]:
        """Start the copy of a batch that was made in host memory and has not been sent."""
        group = made if isinstance(made, BatchGroup) else BatchGroup(made, 1, 0)
        sent = group.made if isinstance(group.made, Sent) else self._move(group.made)
        if group is not made:
            return (sent,)
        sent = sent._replace(users=set())
        return [_cut(sent, k * group.size, group.size) for k in range(group.count)]

    def _pin(self, name: str, values: Values) -> Values:
        made = self._form.tensor(name, values)
        if isinstance(made, list):
            return [_pin_tensor(one) for one in made]
        return made if _shares_pinned(made, values) else _pin_tensor(made)

    def _move(self, made: Tensors, reserved: object = None) -> Sent:
        """Let a batch in pinned memory be copied to the device."""
        copies: list[Copy] = []

        def target(one: Values) -> Values:
            if not isinstance(one, torch.Tensor):
                return one
            out = torch.empty_like(one, device=self._device)
            if one.nbytes:
                copies.append(Copy(out.data_ptr(), one.data_ptr(), one.nbytes))
            return out

        with torch.cuda.stream(self._memory.stream):
            there = {
                name: [target(one) for one in values]
                if isinstance(values, list)
                else target(values)
                for name, values in made.items()
            }
        self._side.event = self._send(copies, [made, there])
        return self._convert(there)._replace(reserved=reserved)

    def _convert(self, made: Tensors) -> Sent:
        if self._form.convert or self._form.flips:
            resolve(self._side.event)
            with self._work():
                drawn = made.get(DRAWN)
                if isinstance(drawn, np.ndarray):  # the device read the files: this is still here
                    pinned = _pin_tensor(torch.from_numpy(drawn))
                    made = {**made, DRAWN: pinned.to(self._device, non_blocking=True)}
                made = self._form.convert_all(made)
        return Sent(made, self._side.event)

    def receive(self, made: Sent) -> Batch:
        """Return the batch, ready for the stream that is current now."""
        stream = torch.cuda.current_stream(self._device.index)
        self._side.let_wait(stream.cuda_stream, made.event)
        if made.users is None or stream.cuda_stream not in made.users:
            mark_used(made.made, stream)
        if made.users is not None:
            made.users.add(stream.cuda_stream)
        return self._form.build(made.made)


def mark_used(made: Tensors, stream: torch.cuda.Stream) -> None:
    """Tell the allocator that a stream uses the tensors of a batch, also those in lists."""
    for values in made.values():
        for one in _list_tensors(values):
            if one.is_cuda:
                one.record_stream(stream)


def _cut(sent: Sent, start: int, size: int) -> Sent:
    """Return one batch of a group."""
    return sent._replace(made={n: one[start : start + size] for n, one in sent.made.items()})


def _list_tensors(values: Values) -> list[torch.Tensor]:
    """Return the tensors of a field."""
    every = values if isinstance(values, list) else [values]
    return [one for one in every if isinstance(one, torch.Tensor)]


def _shares_pinned(made: Values, values: Values) -> bool:
    """Does a tensor have all the memory of an array that is in pinned memory of the loader?"""
    if not (isinstance(values, np.ndarray) and is_pinned(values) and made.is_contiguous()):
        return False
    return bool(made.data_ptr() == memory_of(values)[0])


def _pin_tensor(one: Values) -> Values:
    """Return a tensor that is dense and in pinned memory, or a copy that is."""
    if not isinstance(one, torch.Tensor) or not one.numel():
        return one
    if not one.is_contiguous() and torch.empty_like(one, device="meta").stride() != one.stride():
        one = one.contiguous()  # there are gaps between its values
    return one if one.is_pinned() else one.pin_memory()


def check_fits(ds: Dataset, device: torch.device) -> None:
    """Refuse a dataset that is larger than the free memory of the device."""
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if ds.nbytes > free * _MOST_OF_DEVICE:
        raise ValueError(
            f"resident=True needs {shown_size(ds.nbytes)} on {device}, of which "
            f"{shown_size(free)} are free; select fewer fields, or leave it out"
        )
