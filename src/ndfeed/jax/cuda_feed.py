"""Batches as JAX arrays on a CUDA device: JAX's part of what ``ndfeed.cuda`` does.

JAX allocates its memory itself, so batches are filled in memory of ours, handed over by DLPack, and
copied once on the device, by a compiled function that also cuts a group of small batches apart. The
arrays it returns are JAX's own in every respect, and our memory is used again as soon as they are
ready. A copy within the device takes a fortieth of the time that the bus took.

Casts that lose nothing are part of that copy. Values that may not fit, such as 64-bit integers, are
read and cast on the CPU, where every one of them is checked, and copied beside the others.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from numpy.typing import NDArray

from ndfeed.cuda.driver import Driver, Event, Refused, Stream, driver_of, side_stream
from ndfeed.cuda.feed import CudaFeed, allocate_pinned, allocate_pinned_shared, is_pinned
from ndfeed.cuda.kernels import Upload, Uploads
from ndfeed.cuda.own_memory import ALIGNED, CUDA, OwnMemory, Shareable, Span, is_named
from ndfeed.cuda.pieces import Pieces, memory_of
from ndfeed.cuda.sender import Copy
from ndfeed.cuda.side import OnDevice, Sent, Side, resolve
from ndfeed.dataset.column import columns_of
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch
from ndfeed.errors import shown_size
from ndfeed.jax.batch_format import BatchFormat
from ndfeed.jax.framework_hacks import can_uncommit, uncommit
from ndfeed.jax.shardings import Placement
from ndfeed.loading.batch_builder import Source
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.engine import BatchGroup
from ndfeed.loading.flips import DRAWN, keep_drawn
from ndfeed.loading.host_source import HostSource
from ndfeed.loading.options import Options
from ndfeed.loading.process_choice import opens_files
from ndfeed.order.permutation import Ints

_IN_FLIGHT = 3  # groups that JAX has yet to copy
_SMALL = 1 << 20  # bytes of a batch
_KEPT = 16  # buffers of one size that are kept to be used again


class _Beside(Source):
    """Some fields as another source has them, the others in host memory."""

    def __init__(self, names: Sequence[str], first: Source, second: Source) -> None:
        self._names, self._first, self._second = names, first, second

    def foresee(self, rows: Ints) -> None:
        """Note which rows will be read."""
        self._first.foresee(rows)

    def read(self, rows: Ints) -> Batch:
        """The fields of ``rows``."""
        found = {**self._second.read(rows), **self._first.read(rows)}
        return {name: found[name] for name in self._names}


class Kind(NamedTuple):
    """What the bits of an array are, if DLPack has no name for it, and what they become.

    ``axes`` are those along which samples may be flipped.
    """

    stored: np.dtype[Any] | None
    cast: np.dtype[Any] | None
    axes: tuple[int, ...]


class CudaTarget(NamedTuple):
    """Where arrays go: a device as its driver and DLPack know it, and whether they stay there."""

    driver: Driver
    stream: Stream
    number: tuple[int, int]
    name: str
    committed: bool


class Direct(CudaFeed):
    """The adapter for one CUDA device that JAX uses, for batches of ``size`` samples.

    With a ``layout`` the device is the only one that this process has there.
    """

    def __init__(
        self,
        ds: Dataset,
        form: BatchFormat,
        target: CudaTarget,
        size: int,
        layout: Placement | None = None,
        *,
        resident: bool = False,
    ) -> None:
        self._every = ds.names
        on_host = bool(ds.steps) or (opens_files(ds) and not resident)
        self._cast = [] if on_host else form.checked_casts
        direct = ds.select(*[n for n in ds.names if n not in self._cast]) if self._cast else ds
        fields = {c.field.name: c.field for c in columns_of(direct.groups)}
        self._memory = OwnMemory(
            target.driver, {n: (f.dtype, f.lengths) for n, f in fields.items()}
        )
        side = Side(target.driver, target.stream, self._memory)
        super().__init__(
            direct, side, form.structure, target.name, on_host=on_host, resident=resident
        )
        self.joint = not ds.steps
        self.draws = bool(form.flips)
        self.allocate = partial(allocate_pinned, target.driver)
        self.allocate_shared = partial(allocate_pinned_shared, target.driver)
        self._exact = {} if on_host else form.exact_casts
        self._kept = form.checked_casts
        self._form = form
        self._size = size
        self._layout = layout
        self._target = target
        self._pool = Pool(_KEPT, self.allocate)
        self._uploads = Uploads(side)
        self._copying: deque[tuple[jax.Array, object]] = deque()

    def reads(self, ds: Dataset, options: Options, batch_bytes: int) -> tuple[Dataset, Options]:
        """Return the compressed bytes in place of fields that are inflated on the device."""
        found = super().reads(ds, options, batch_bytes)
        if self._inflater is not None:
            self._exact = self._form.exact_casts
        return found

    def source(self, host: HostSource) -> Source:
        """Return the source of stored fields."""
        if not self._cast:
            return super().source(host)
        direct = super().source(host.only(self._ds.names))
        return _Beside(self._every, direct, host.only(self._cast))

    def _load(self, pieces: Pieces) -> Mapping[str, OnDevice]:
        try:
            return super()._load(pieces)
        except MemoryError:
            raise MemoryError(
                f"resident=True needs {shown_size(self._ds.nbytes)} on {self._target.name} beside "
                "what JAX reserves for itself; set XLA_PYTHON_CLIENT_MEM_FRACTION to less, select "
                "fewer fields, or leave it out"
            ) from None

    def finish(self, made: Batch) -> Sent | Batch:
        """Cast what has to be cast, and send what is not on the device, if there is room."""
        chosen = keep_drawn(self.structure.pick(made), made)
        if self._on_host and self._inflater is None:
            arrays = {name: self._pin(name, values) for name, values in chosen.items()}
            reserved = self._reserve(sum(array.nbytes for array in arrays.values()))
            return arrays if reserved is None else self._move(arrays, reserved)
        self._side.join()  # nothing was read for a batch without samples
        used: list[Upload] = []
        try:
            sent = {
                name: self._align(values)
                if isinstance(values, Span)
                else self._pass_on(name, values, used)
                for name, values in chosen.items()
            }
        finally:  # also if a value of a later field does not fit
            if used:
                resolve(self._side.event)  # what was left to another thread comes before this
                self._uploads.release(used, self._side.record())
        return Sent(sent, self._side.event)

    def _align(self, span: Span) -> Span:
        """Return a span that JAX takes: a part of another one may begin anywhere."""
        if span.address % ALIGNED == 0:
            return span
        resolve(self._side.event)  # what was left to another thread comes before this
        made = self._memory.empty_like(span.dtype, span.shape)
        self._side.stream.copy_within(made.address, span.address, span.nbytes)
        self._side.record()
        return made

    def _pass_on(self, name: str, values: NDArray[Any], used: list[Upload]) -> Span:
        """Cast a field that is read beside others, and send it."""
        array = self._as_cast(name, values)
        made = self._memory.empty_like(array.dtype, array.shape)
        used.append(self._uploads.pass_on(array, made.address))
        return made

    def _as_cast(self, name: str, values: object) -> NDArray[Any]:
        """Return the values of a field, cast; what was drawn is no field."""
        found = values if name == DRAWN else self._form.array(name, values, self._pool)
        return np.asarray(found)

    def _pin(self, name: str, values: object) -> NDArray[Any]:
        """Return the values of a field, cast, in pinned memory."""
        array = self._as_cast(name, values)
        if array.flags.c_contiguous and is_pinned(array):
            return array
        room = self._pool.lend(max(array.nbytes, 1))[: array.nbytes]
        made: NDArray[Any] = room.view(array.dtype).reshape(array.shape)
        np.copyto(made, array)
        return made

    def _move(self, arrays: dict[str, NDArray[Any]], reserved: object = None) -> Sent:
        """Let arrays in pinned memory be copied to the device."""
        with self._side.driver.context():
            there = {n: self._memory.empty_like(a.dtype, a.shape) for n, a in arrays.items()}
        copies = [
            Copy(there[name].address, *memory_of(array))
            for name, array in arrays.items()
            if array.nbytes
        ]
        return Sent(there, self._send(copies, [arrays, there]), reserved)

    def send(self, made: BatchGroup | Sent | Batch) -> Sequence[object]:
        """Hand batches over to JAX, a group of them at once."""
        self._form.check_wide()  # it would cut 64 bits to 32 without a word
        group = made if isinstance(made, BatchGroup) else BatchGroup(made, 1, self._size)
        self.ahead = max(self.ahead, group.count)  # the next is handed over when this is begun
        sent = group.made if isinstance(group.made, Sent) else self._move(group.made)
        self._wait()
        event = resolve(sent.event)
        arrays = {name: self._take_over(span, event) for name, span in sent.made.items()}
        drawn = arrays.pop(DRAWN, None)
        kinds = tuple(self._kind(name, sent.made[name]) for name in arrays)
        batches, token = _cut(list(arrays.values()), drawn, self._size, group.count, kinds)
        self._copying.append((token, (arrays, drawn, sent.made)))
        return [self._build(list(arrays), one) for one in batches]

    def _build(self, names: Sequence[str], arrays: Sequence[jax.Array]) -> object:
        """Build the batch that the consumer gets."""
        layout, named = self._layout, dict(zip(names, arrays, strict=True))
        if layout is not None:
            named = {name: layout.wrap(name, array) for name, array in named.items()}
        return self.structure.build(named)

    def _kind(self, name: str, span: Span) -> Kind:
        axes = self._form.flips.find_axes(name, len(span.shape), span.shape[1:])
        stored = None if is_named(span.dtype) else span.dtype
        return Kind(stored, self._exact.get(name), tuple(axes))

    def _take_over(self, span: Span, event: Event) -> jax.Array:
        shared = Shareable(span, self._side.stream, event, self._target.number)
        with self._side.driver.context():
            found = jax.dlpack.from_dlpack(shared)
        return found if self._target.committed else uncommit(found)

    def _wait(self) -> None:
        """Let go of what JAX has copied; wait if that is far behind."""
        while self._copying and (
            len(self._copying) >= _IN_FLIGHT or self._copying[0][0].is_ready()
        ):
            token, _ = self._copying.popleft()
            token.block_until_ready()

    def close(self) -> None:
        """Release registered pages and memory."""
        # Also if the device has failed. The last one comes first.
        with suppress(RuntimeError), ExitStack() as every:
            every.callback(self._pool.clear)
            every.callback(self._free)
            every.callback(super().close)
            every.callback(self._copying.clear)
            while self._copying:  # nothing may refer to them when memory is freed
                self._copying.popleft()[0].block_until_ready()

    def _free(self) -> None:
        with self._side.driver.context():
            self._uploads.close()
            self._memory.trim()


@partial(jax.jit, static_argnums=(2, 3, 4))
def _cut(
    arrays: Sequence[jax.Array],
    drawn: jax.Array | None,
    size: int,
    count: int,
    kinds: tuple["Kind", ...],
) -> tuple[list[list[jax.Array]], jax.Array]:
    """Return ``count`` batches that share no memory with ``arrays``, and a token.

    They have ``size`` rows; the last one may have fewer, or none.
    """
    typed = [_as(_flip(a, drawn, k.axes), k) for a, k in zip(arrays, kinds, strict=True)]
    rows = len(typed[0])
    batches = [
        [_copy(a, start, min(start + size, rows)) for a in typed]
        for start in range(0, count * size, size)
    ]
    return batches, lax.slice(arrays[0].reshape(-1), (0,), (min(arrays[0].size, 1),))


def _copy(array: jax.Array, start: int, stop: int) -> jax.Array:
    """Return some rows. All of them would be the same array, which JAX would hand through."""
    if stop - start == len(array):
        return jax.numpy.copy(array)
    return lax.slice_in_dim(array, start, stop)


def _flip(array: jax.Array, drawn: jax.Array | None, axes: tuple[int, ...]) -> jax.Array:
    if drawn is not None:
        for bit, axis in enumerate(axes):
            turned = (drawn >> bit & 1).astype(bool).reshape(-1, *(1,) * (array.ndim - 1))
            array = jax.numpy.where(turned, jax.numpy.flip(array, axis), array)
    return array


def _as(array: jax.Array, kind: Kind) -> jax.Array:
    if kind.stored is not None and kind.stored.kind == "b":
        array = array.astype(bool)
    elif kind.stored is not None:
        array = lax.bitcast_convert_type(array, kind.stored)
    return array if kind.cast is None else array.astype(kind.cast)


def make(
    ds: Dataset,
    form: BatchFormat,
    device: jax.Device,
    size: int,
    layout: Placement | None,
    *,
    committed: bool,
    resident: bool,
) -> Direct:
    """Make the adapter for a CUDA device, to which its arrays may be committed."""
    if not committed and not can_uncommit():
        raise Refused("this JAX commits arrays to their device")
    number = int(getattr(device, "local_hardware_id", None) or 0)
    driver = driver_of(number)
    stream = side_stream(driver)
    target = CudaTarget(driver, stream, (CUDA, number), f"cuda:{number}", committed)
    return Direct(ds, form, target, size, layout, resident=resident)


def why_not(ds: Dataset, form: BatchFormat, size: int) -> str:
    """Say why batches of ``size`` samples are sent by JAX itself; empty if they are not."""
    if ds.steps and (not form.fields or ds.nbytes // max(len(ds), 1) * size < _SMALL):
        return "small batches of functions are sent together"
    if any(field.ragged for field in form.fields.values()):
        return "samples differ in shape"
    if form.packs_bits:
        return "values are of less than a byte"
    if not ds.steps and set(form.checked_casts) >= set(ds.names):
        return "every value is cast, and checked"
    return ""
