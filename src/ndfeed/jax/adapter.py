"""Puts the batches of a loader where they are used, as JAX arrays: on one device or on many.

On the CPU, JAX uses the memory of a NumPy array without a copy if it is aligned to 64 bytes, and
copies it otherwise, large arrays asynchronously; copies to other devices are asynchronous as well.
Either way JAX holds a reference to the NumPy array for as long as it reads its memory, and memory
of the pool is used again only when the last reference is gone. So nothing has to be waited for.

A sharding says for every device which part of an array it holds. This process reads the rows that
its devices need, of all fields together: several slices of every global batch, if these rows are
not contiguous. Rows are read whole; where other axes are sharded too, each device gets its part.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

from ndfeed.dataset.column import Field
from ndfeed.errors import FieldError
from ndfeed.jax.batch_format import BatchFormat
from ndfeed.loading.adapter import Adapter
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.engine import BatchGroup
from ndfeed.loading.ragged import owner

Shardings: TypeAlias = Sharding | PartitionSpec | Mapping[str, Sharding | PartitionSpec]
Given: TypeAlias = Sharding | Mapping[str, Sharding]
Batch: TypeAlias = Any  # JAX arrays in the structure that ``fields=`` has
_ALL = (slice(None),)
_LENGTH = "_length"  # of the lengths that padding adds beside a field
_AHEAD = 2  # batches being copied to a device
_PIECE = 32 << 20  # bytes of small batches that are sent at a time, at most
_KEPT = 16  # pieces of memory of one size that are kept to be used again


class Placement:
    """The shardings of a batch's arrays, which have ``batch_size`` rows.

    ``spans_processes`` says whether arrays have parts on devices of other ``processes``; ``ranks``
    of ``world`` are the slices that this process reads.
    """

    def __init__(
        self,
        given: Given,
        fields: Mapping[str, Field],
        names: tuple[str, ...] | None,
        batch_size: int,
    ) -> None:
        self._given = given
        every = list(given.values()) if isinstance(given, Mapping) else [given]
        for one in every:
            if not isinstance(one, Sharding):
                raise TypeError(
                    "sharding must be a jax.sharding.Sharding or a PartitionSpec, or a dict of "
                    f"field names to them, got {one!r}; device= is for a single device"
                )
            if not one.addressable_devices:
                raise ValueError(f"this process has no device in {one}; make the loader elsewhere")
        whole = {one.is_fully_addressable for one in every}
        if len(whole) != 1:
            raise ValueError(
                "sharding must have devices of this process alone for all fields or for none"
            )
        self.spans_processes = not whole.pop()
        self.processes = {device.process_index for one in every for device in one.device_set}
        self.devices = {device for one in every for device in one.addressable_devices}
        self._of: dict[tuple[str, int], Sharding] = {}
        self._shapes = {name: _shape(field) for name, field in fields.items()}
        for name in names or self._shapes:
            self.sharding(name, 1 + len(self._shapes.get(name, ())))
        self.check(batch_size, "batch_size", "give a multiple, or another mesh")
        self.world, self.ranks = self._slices(batch_size)

    @property
    def is_everybody_s(self) -> bool:
        """Do all processes have arrays, either global ones or each its own?"""
        return not self.spans_processes or len(self.processes) == jax.process_count()

    @property
    def platform(self) -> str:
        """The platform of the devices, such as ``"gpu"``."""
        return str(next(iter(self.devices)).platform)

    def sharding(self, name: str, ndim: int) -> Sharding:
        """Return the sharding of a field's arrays, for as many axes as they have."""
        found = self._of.get((name, ndim))
        if found is None:
            found = self._of[name, ndim] = _for_axes(self._find(name), ndim)
        return found

    def _find(self, name: str) -> Sharding:
        if not isinstance(self._given, Mapping):
            return self._given
        found = self._given.get(name) or self._given.get(name.removesuffix(_LENGTH))
        if found is None:
            raise ValueError(f"sharding has nothing for field {name!r}; add it to the dict")
        return found

    def check(self, batch_size: int, what: str, remedy: str) -> None:
        """Refuse arrays of ``batch_size`` rows, if some sharding does not divide them."""
        for name, shape in self._shapes.items():
            sharding = self.sharding(name, 1 + len(shape))
            rows = _parts(sharding)
            if rows and batch_size % rows:
                raise ValueError(
                    f"{what} must be a multiple of {rows}, the parts that the sharding of "
                    f"{name!r} cuts the first axis into, got {batch_size}; {remedy}"
                )
            try:
                sharding.shard_shape((batch_size, *shape))
            except (ValueError, IndexError) as error:
                raise ValueError(
                    f"batches of {name!r} have the shape {(batch_size, *shape)}, which its "
                    f"sharding cannot cut: {error}".replace("\n", " ")
                ) from None

    def _slices(self, batch_size: int) -> tuple[int, tuple[int, ...]]:
        """Return how many slices a batch is cut into, and which the devices here need."""
        needed = np.full(batch_size, not self._shapes)
        for name, shape in self._shapes.items():
            sharding = self.sharding(name, 1 + len(shape))
            indices = sharding.addressable_devices_indices_map((batch_size, *shape))
            for index in indices.values():
                needed[(index or _ALL)[0]] = True
        return slices(needed)

    def put(self, name: str, rows: NDArray[Any]) -> jax.Array:
        """Make the global array, of which this process has ``rows``."""
        each = len(rows) // len(self.ranks)  # of a slice

        def part(index: tuple[slice, ...] | None) -> NDArray[Any]:
            first, *others = index or _ALL
            start, stop, _ = first.indices(each * self.world)
            rank = start // each if each else self.ranks[0]
            here = start - (rank - self.ranks.index(rank)) * each
            return rows[(slice(here, here + stop - start), *others)]

        sharding = self.sharding(name, rows.ndim)
        return jax.make_array_from_callback((each * self.world, *rows.shape[1:]), sharding, part)


def on_the_mesh(given: Shardings) -> Given:
    """Return the shardings; a ``PartitionSpec`` becomes one on the current mesh."""
    if isinstance(given, Mapping):
        return {name: _on_the_mesh(one) for name, one in given.items()}
    return _on_the_mesh(given)


def _on_the_mesh(given: Sharding | PartitionSpec) -> Sharding:
    if not isinstance(given, PartitionSpec):
        return given
    # Versions of JAX without set_mesh have no current mesh either.
    mesh = jax.sharding.get_mesh() if hasattr(jax.sharding, "get_mesh") else None
    if mesh is None or mesh.empty:
        raise ValueError(
            f"sharding={given!r} needs a mesh: make the loader within jax.set_mesh(mesh), or pass "
            "jax.sharding.NamedSharding(mesh, spec)"
        )
    return NamedSharding(mesh, given)


def check_names(given: Shardings, known: Mapping[str, Field] | None) -> None:
    """Refuse a sharding for a field that does not exist."""
    if known is None or not isinstance(given, Mapping):
        return
    for name in given:
        if name not in known and not owner(name, list(known), "pad"):
            raise FieldError(name, list(known))


def slices(needed: NDArray[np.bool_]) -> tuple[int, tuple[int, ...]]:
    """Cut rows into the fewest equal slices of which some are exactly the rows needed.

    Returns how many slices there are, and which of them are needed.

    >>> slices(np.array([0, 0, 1, 1, 0, 0, 1, 1], bool))
    (4, (1, 3))
    """
    # Slices must end wherever needed rows start or end.
    edges = np.flatnonzero(np.diff(needed, prepend=False, append=False)).tolist()
    size = math.gcd(len(needed), *edges)
    return len(needed) // size, tuple(np.flatnonzero(needed[::size]).tolist())


def _shape(field: Field) -> tuple[int, ...]:
    if field.shape is None or None in field.shape:
        raise ValueError(
            f"field {field.name!r} has samples of different shapes {field.shape_text}, and a "
            'sharding cuts arrays of one; pass ragged="pad" and '
            f"pad_to={{{json.dumps(field.name)}: length}}, or leave it out with fields="
        )
    return field.lengths


def _for_axes(sharding: Sharding, ndim: int) -> Sharding:
    """Return the sharding without the axes that an array does not have."""
    if isinstance(sharding, NamedSharding) and len(sharding.spec) > ndim:
        spec = PartitionSpec(*tuple(sharding.spec)[:ndim])
        return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
    return sharding


def _parts(sharding: Sharding) -> int:
    """Return how many parts the first axis is cut into; 0 if only the sharding itself knows."""
    if not isinstance(sharding, NamedSharding):
        return 0
    first = sharding.spec[0] if len(sharding.spec) else None
    axes = (first,) if isinstance(first, str) else tuple(first or ())
    return math.prod(sharding.mesh.shape[axis] for axis in axes)


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


def feed(
    form: BatchFormat, layout: Placement | None, size: int, room: int, place: Place | None = None
) -> "Feed":
    """Make the adapter that puts arrays of ``size`` samples where they are used.

    ``room`` is the memory for batches that may be made together, or 0 where they may not.
    """
    # That of the consumer: the threads of the loader have one of their own.
    default: Any = jax.config.jax_default_device
    device = None if place is None else place.find()
    if layout is not None:
        platform = layout.platform
    else:
        found = device or default or jax.local_devices()[0]
        platform = found if isinstance(found, str) else found.platform
    to = To(layout, device, default)
    if platform == "cpu":
        return Feed(form, to)
    return Away(form, to, platform, size, room)


@dataclass(frozen=True, slots=True)
class To:
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

    def __init__(self, form: BatchFormat, to: To) -> None:
        super().__init__(form.structure)
        self.growth = form.growth
        self._form = form
        self._to = to
        self._pool = Pool(_KEPT)  # for arrays that are cast

    def finish(self, made: dict[str, Any]) -> Batch:
        """Make the JAX arrays of a batch."""
        (batch,) = self._put([self._cast(made)])
        return batch

    def _cast(self, made: dict[str, Any]) -> dict[str, Any]:
        """Return the arrays that are needed, in the dtypes that JAX is to get."""
        form, pool = self._form, self._pool
        return {name: form.array(name, a, pool) for name, a in self.structure.pick(made).items()}

    def _put(self, batches: Sequence[dict[str, Any]]) -> Sequence[Batch]:
        """Put batches where they are used, and build what is delivered."""
        made = self._to.put(batches)
        if self.structure.flat is not None and len(self.structure.flat) == len(batches[0]):
            return [tuple(arrays) for arrays in made]  # ``pick`` keeps that order
        build = self.structure.build
        named = zip(batches, made, strict=True)
        return [build(dict(zip(names, arrays, strict=True))) for names, arrays in named]

    def describe(self) -> str:
        """Say how batches get to where they are used."""
        layout = self._to.layout
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

    def __init__(self, form: BatchFormat, to: To, platform: str, size: int, room: int) -> None:
        super().__init__(form, to)
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
        return super().describe() or f"to a {self._platform}, {self.ahead} batches ahead"
