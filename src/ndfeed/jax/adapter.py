"""Puts the batches of a loader where they are used, as JAX arrays: on one device or on many.

On the CPU, JAX uses the memory of a NumPy array without a copy if it is aligned to 64 bytes, and
copies it otherwise, large arrays asynchronously; copies to other devices are asynchronous as well.
Either way JAX holds a reference to the NumPy array for as long as it reads its memory, and memory
of the pool is used again only when the last reference is gone. So nothing has to be waited for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax

from ndfeed.cuda.driver import Refused
from ndfeed.cuda.feed import check_resident
from ndfeed.dataset.dataset import Dataset
from ndfeed.jax import cuda_feed
from ndfeed.jax.batch_format import BatchFormat
from ndfeed.jax.shardings import Placement
from ndfeed.loading.adapter import Adapter
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.engine import BatchGroup
from ndfeed.loading.flips import keep_drawn

Batch: TypeAlias = Any  # JAX arrays in the structure that ``fields=`` has
_AHEAD = 2  # batches being copied to a device
_PIECE = 32 << 20  # bytes of small batches that are sent at a time, at most
_KEPT = 16  # pieces of memory of one size that are kept to be used again


def device_of(device: object) -> "Place | None":
    """Return the device that was asked for, if this process has it."""
    if device is None:
        return None
    if isinstance(device, str):
        try:
            return Place(device, jax.local_devices(backend=device)[0].id)
        except RuntimeError as error:
            there = ", ".join(map(str, jax.local_devices()))
            raise ValueError(f"JAX has no device {device!r}; available: {there}") from error
    if not isinstance(device, jax.Device):
        raise TypeError(
            f"device must be one of jax.local_devices(), or a platform such as 'cpu' or 'gpu', got "
            f"{device!r}; sharding= is for several devices"
        )
    if device.process_index != jax.process_index():
        raise ValueError(f"device={device} belongs to another process; use jax.local_devices()")
    return Place(device.platform, device.id)


@dataclass(frozen=True, slots=True)
class Place:
    """A device of this process by its number: unlike the device itself, it pickles."""

    platform: str
    id: int

    def find(self) -> jax.Device:
        """Return the device."""
        return next(d for d in jax.local_devices(backend=self.platform) if d.id == self.id)


@dataclass(frozen=True)
class ToDevices:
    """Makes the adapter that puts arrays of ``size`` samples where they are used.

    ``room`` is the memory for batches that may be made together, or 0 where they may not.
    """

    ds: Dataset
    form: BatchFormat
    layout: Placement | None
    size: int
    room: int
    place: Place | None = None
    resident: bool = False

    def __post_init__(self) -> None:
        if self.resident:
            check_resident(self.ds, ragged=any(f.ragged for f in self.form.fields.values()))
            device = self.find_device()
            if device is None or device.platform != "gpu":
                raise ValueError(
                    "resident=True holds the data in a GPU's memory and needs device='gpu', or a "
                    "sharding with one GPU of each process; ds.in_memory() holds it in RAM"
                )
            why = self._why_by_jax()
            if why:
                raise ValueError(
                    f"resident=True does not support these batches: {why}; leave it out"
                )

    def __call__(self) -> Adapter:
        """Make the adapter, in the process that uses it."""
        # That of the consumer: the threads of the loader have one of their own.
        default: Any = jax.config.jax_default_device
        target = Target(self.layout, None if self.place is None else self.place.find(), default)
        device = self.find_device()
        if device is None or device.platform != "gpu":
            return self._by_jax(target, self._platform)
        why = self._why_by_jax()
        if not why:
            committed = self.place is not None or self.layout is not None
            try:
                return cuda_feed.make(
                    self.ds, self.form, device, self.size, self.layout,
                    committed=committed, resident=self.resident,
                )  # fmt: skip
            except Refused as error:
                if self.resident:
                    raise RuntimeError(f"resident=True is not possible here: {error}") from None
                why = f"{error}"
        return self._by_jax(target, device.platform, why)

    def find_device(self) -> jax.Device | None:
        """Return the device that gets all batches, if there is one."""
        return self._find_single() if self.layout is None else self.layout.only

    @property
    def _platform(self) -> str:
        return self._find_single().platform if self.layout is None else self.layout.platform

    def _find_single(self) -> jax.Device:
        """Return the device that was asked for, or JAX's default device."""
        if self.place is not None:
            return self.place.find()
        default: Any = jax.config.jax_default_device
        if isinstance(default, str):
            return jax.local_devices(backend=default)[0]
        found: jax.Device = default or jax.local_devices()[0]
        return found

    def _why_by_jax(self) -> str:
        """Say why batches are sent by JAX itself; empty if they are not."""
        if not self.room:
            return "batches may differ in shape"
        return cuda_feed.why_not(self.ds, self.form, self.size)

    def _by_jax(self, target: "Target", platform: str, why: str = "") -> "Feed":
        if platform == "cpu":
            return Feed(self.form, target)
        return Away(self.form, target, platform, self.size, self.room, why)

    def for_dataset(self, ds: Dataset) -> "ToDevices":
        """Return the same for a dataset that has more files."""
        return replace(self, ds=ds)


@dataclass(frozen=True, slots=True)
class Target:
    """Where arrays are put: as a layout says, on a device, or on the default device.

    Arrays put on a ``device`` are committed to it, as with ``jax.device_put``; arrays put on the
    ``default`` device are not, and follow what they are used with.
    """

    layout: Placement | None
    device: jax.Device | None
    default: Any  # a device, the name of a platform, or nothing

    def put(self, batches: Sequence[dict[str, Any]]) -> list[list[Any]]:
        """Return the arrays of all batches, those of each batch in its own order."""
        layout = self.layout
        if layout is not None:
            return [[layout.put(name, a) for name, a in named.items()] for named in batches]
        values = [list(named.values()) for named in batches]  # JAX would sort the names of dicts
        with jax.default_device(self.default):
            made: list[list[Any]] = jax.device_put(values, self.device)
        return made


class Feed(Adapter):
    """Makes JAX arrays on the CPU, in the thread that read them."""

    def __init__(self, form: BatchFormat, target: Target) -> None:
        super().__init__(form.structure)
        self.growth = form.growth
        self.draws = bool(form.flips)
        self._form = form
        self._target = target
        self._pool = Pool(_KEPT)  # for arrays that are cast

    def finish(self, made: dict[str, Any]) -> Batch:
        """Make the JAX arrays of a batch."""
        (batch,) = self._put([self._cast(made)])
        return batch

    def _cast(self, made: dict[str, Any]) -> dict[str, Any]:
        """Return the arrays that are needed, in the dtypes that JAX is to get."""
        form, pool = self._form, self._pool
        chosen = form.flips.apply(keep_drawn(self.structure.pick(made), made), pool)
        return {name: form.array(name, a, pool) for name, a in chosen.items()}

    def _put(self, batches: Sequence[dict[str, Any]]) -> Sequence[Batch]:
        """Put batches where they are used, and build what is delivered."""
        made = self._target.put(batches)
        if self.structure.flat is not None and len(self.structure.flat) == len(batches[0]):
            return [tuple(arrays) for arrays in made]  # ``pick`` keeps that order
        build = self.structure.build
        named = zip(batches, made, strict=True)
        return [build(dict(zip(names, arrays, strict=True))) for names, arrays in named]

    def describe(self) -> str:
        """Say how batches get to where they are used."""
        layout = self._target.layout
        if layout is None:
            return ""
        return f"on {len(layout.devices)} {layout.platform} devices of this process"

    def close(self) -> None:
        """Release the memory of arrays that were cast."""
        self._pool.clear()


class Away(Feed):
    """Makes JAX arrays on other devices, copied there ahead of use.

    Starting a copy takes the consumer a tenth of a millisecond, however small it is, and several
    times that while the loader's threads hold the GIL. So small batches are sent many at a time;
    each as arrays of its own, since JAX copies them in several threads.
    """

    def __init__(
        self,
        form: BatchFormat,
        target: Target,
        platform: str,
        size: int,
        room: int,
        why: str = "",
    ) -> None:
        super().__init__(form, target)
        self._why = why  # JAX copies from memory that is not pinned
        self.ahead = _AHEAD
        self._platform = platform
        self._size = size
        if room:
            self.joint = True
            self.together = min(_PIECE, room // 8)
            self.held = 2 * self.together  # a piece that is being copied, and the next one

    def finish(self, made: dict[str, Any]) -> dict[str, Any]:
        """Return NumPy arrays: the consumer's thread sends them."""
        return self._cast(made)

    def send(self, made: BatchGroup | dict[str, Any]) -> Sequence[Batch]:
        """Start the copies; all from one thread, so that few batches are on a device at a time."""
        if not isinstance(made, BatchGroup):
            return self._put([made])
        self.ahead = max(self.ahead, made.count)  # the next piece is sent when this one is begun
        size = self._size
        starts = range(0, made.count * size, size)
        cut = [{name: a[at : at + size] for name, a in made.made.items()} for at in starts]
        return self._put(cut)

    def describe(self) -> str:
        """Say how batches get to where they are used."""
        why = f": {self._why}" if self._why else ""
        return super().describe() or f"to a {self._platform}, {self.ahead} batches ahead{why}"
