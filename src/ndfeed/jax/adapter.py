"""What a loader of arrays is told, so that its batches become arrays of JAX where they are wanted.

On the CPU JAX uses memory of NumPy's as it is if it begins at 64 bytes, and copies it elsewhere,
large arrays behind the caller's back; to a device it is copied behind the caller's back, too.
Either way JAX holds a reference to the NumPy array for as long as it reads its memory, and the
pool's memory is lent again only when the last reference is gone. So nothing has to be waited for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ndfeed.jax.batch_format import BatchFormat, memory
from ndfeed.jax.placement import Placement
from ndfeed.loading.adapter import Adapter
from ndfeed.loading.engine import BatchGroup

_AHEAD = 2  # batches on their way to a device
_PIECE = 32 << 20  # bytes of small batches that are sent at a time, at most


def device_of(device: Any) -> "Place | None":  # noqa: ANN401
    """The device that was asked for, if this process has it."""
    if device is None:
        return None
    if isinstance(device, str):
        try:
            return Place(device, jax.local_devices(backend=device)[0].id)
        except RuntimeError as error:
            there = ", ".join(map(str, jax.local_devices()))
            raise ValueError(f"device={device!r} is none that JAX has: {there}") from error
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
        """The device."""
        return next(d for d in jax.local_devices(backend=self.platform) if d.id == self.id)


def feed(
    form: BatchFormat, layout: Placement | None, size: int, room: int, place: Place | None = None
) -> "Feed":
    """The way to where arrays of ``size`` samples are wanted.

    ``room`` is the memory there is for batches that may lie side by side, or 0 where they may not.
    """
    # The consumer's: threads have one of their own.
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
    """Where arrays are wanted: as a layout says, on a device, or wherever they are used.

    What is put on a ``device`` stays there, as with ``jax.device_put``; what is put on the
    ``default`` device goes with whatever it is used with.
    """

    layout: Placement | None
    device: jax.Device | None
    default: Any  # a device, the name of a platform, or nothing

    def put(self, batches: Sequence[dict[str, Any]]) -> list[list[Any]]:
        """The arrays of all batches, each batch's in its own order."""
        layout = self.layout
        if layout is not None:
            return [[layout.put(name, a) for name, a in named.items()] for named in batches]
        values = [list(named.values()) for named in batches]  # of dicts it would sort the names
        with jax.default_device(self.default):
            made: list[list[Any]] = jax.device_put(values, self.device)
        return made


class Feed(Adapter):
    """Arrays of JAX on the CPU, made in the thread that read them."""

    def __init__(self, form: BatchFormat, to: To) -> None:
        super().__init__(form.structure)
        self.growth = form.growth
        self._form = form
        self._to = to
        self._pool = memory()

    def finish(self, made: dict[str, Any]) -> Any:  # noqa: ANN401
        """The arrays themselves."""
        (batch,) = self._put([self._named(made)])
        return batch

    def _named(self, made: dict[str, Any]) -> dict[str, Any]:
        """What is needed, in types as JAX is to get them."""
        form, pool = self._form, self._pool
        return {name: form.array(name, a, pool) for name, a in self.structure.pick(made).items()}

    def _put(self, batches: Sequence[dict[str, Any]]) -> Sequence[Any]:
        """Batches where they are wanted, as they are delivered."""
        made = self._to.put(batches)
        if self.structure.flat is not None and len(self.structure.flat) == len(batches[0]):
            return [tuple(arrays) for arrays in made]  # they are picked in that order
        build = self.structure.build
        named = zip(batches, made, strict=True)
        return [build(dict(zip(names, arrays, strict=True))) for names, arrays in named]

    def describe(self) -> str:
        """How batches get to where they are used."""
        layout = self._to.layout
        if layout is None:
            return ""
        return f"on {len(layout.devices)} {layout.platform} devices of this process"

    def close(self) -> None:
        """Let go of memory for arrays that are cast."""
        self._pool.clear()


class Away(Feed):
    """Arrays of JAX on other devices, sent ahead of use.

    To send something takes the consumer a tenth of a millisecond, and several times that while
    threads at work want the interpreter as well, however little it is. So small batches are sent
    many at a time; as arrays of their own, for JAX copies each with another thread.
    """

    def __init__(self, form: BatchFormat, to: To, platform: str, size: int, room: int) -> None:
        super().__init__(form, to)
        self.ahead = _AHEAD
        self._platform = platform
        self._size = size
        if room:
            self.joint = True
            self.together = min(_PIECE, room // 8)
            self.held = 2 * self.together  # a piece on its way, and the one behind it

    def finish(self, made: dict[str, Any]) -> Any:  # noqa: ANN401
        """Arrays of NumPy still."""
        return self._named(made)

    def send(self, made: Any) -> Sequence[Any]:  # noqa: ANN401
        """On its way to the devices; all from one thread, so that few are there at a time."""
        if not isinstance(made, BatchGroup):
            return self._put([made])
        self.ahead = max(self.ahead, made.count)  # the next piece goes when this one is begun
        size = self._size
        starts = range(0, made.count * size, size)
        cut = [{name: a[at : at + size] for name, a in made.made.items()} for at in starts]
        return self._put(cut)

    def describe(self) -> str:
        """How batches get to where they are used."""
        return super().describe() or f"to a {self._platform}, {self.ahead} batches ahead"
