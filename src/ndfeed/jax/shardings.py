"""Shardings: which devices hold which parts of a batch, and which rows this process reads for them.

A sharding says for every device which part of an array it holds. This process reads the rows that
its devices need, of all fields together: several slices of every global batch, if these rows are
not contiguous. Rows are read whole; where other axes are sharded too, each device gets its part.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

from ndfeed.dataset.column import Field
from ndfeed.errors import FieldError
from ndfeed.loading.ragged import owner

Shardings: TypeAlias = Sharding | PartitionSpec | Mapping[str, Sharding | PartitionSpec]
Given: TypeAlias = Sharding | Mapping[str, Sharding]
_ALL = (slice(None),)
_LENGTH = "_length"  # of the lengths that padding adds beside a field


class Placement:
    """The shardings of a batch's arrays, which have ``batch_size`` rows.

    ``spans_processes`` says whether arrays have parts on devices of other ``processes``; ``ranks``
    of ``world`` are the slices that this process reads. ``only`` is the device to which all of that
    goes, if there is just one.
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
        self.only = self._find_only(batch_size)

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

    def _find_only(self, batch_size: int) -> jax.Device | None:
        """Return the only device here, if it holds all rows that are read, whole, in its memory."""
        if len(self.devices) != 1:
            return None
        (device,) = self.devices
        rows = batch_size * len(self.ranks) // self.world
        for name, shape in self._shapes.items():
            sharding = self.sharding(name, 1 + len(shape))
            if sharding.memory_kind not in (None, device.default_memory().kind):
                return None
            if sharding.shard_shape((batch_size, *shape)) != (rows, *shape):
                return None
        return device

    def wrap(self, name: str, rows: jax.Array) -> jax.Array:
        """Make the global array of what is on the only device here."""
        shape = (len(rows) // len(self.ranks) * self.world, *rows.shape[1:])
        sharding = self.sharding(name, rows.ndim)
        return jax.make_array_from_single_device_arrays(shape, sharding, [rows])

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
