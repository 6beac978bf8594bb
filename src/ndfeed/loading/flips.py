"""Random flips: samples that come reversed along some of their axes, wherever batches are used.

Whether a sample is reversed is fixed by (seed, epoch, position), as what maps draw is. A batch of
a loader that flips has a random byte for each sample beside its fields, under the name ``DRAWN``,
which goes where the batch goes. Bit i stands for the i-th axis of every field that is flipped, so
an image and its mask are flipped alike.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Field
from ndfeed.dataset.map_steps import Batch
from ndfeed.errors import FieldError
from ndfeed.loading.buffer_pool import Pool

DRAWN = "\0drawn"  # no field has this name
_MOST = 8  # axes: bits of a byte
Flip: TypeAlias = Mapping[str, int | Sequence[int]]  # what a caller wrote


@dataclass(frozen=True, slots=True)
class Flips:
    """Which axes of a sample may be reversed, by field."""

    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.axes)

    def check(self, fields: Mapping[str, Field], names: Sequence[str] | None) -> None:
        """Refuse fields that are not delivered, or do not have these axes."""
        for name in self.axes:
            if name not in fields or (names is not None and name not in names):
                raise FieldError(name, list(fields) if names is None else names)
            one = fields[name]
            if one.ragged or one.shape is None or one.dtype.kind in "US":
                raise ValueError(
                    f"flip is for numbers whose samples all have one shape; {name!r} is "
                    f"{one.dtype_text} {one.shape_text}: flip it in a map()"
                )
            self.find_axes(name, 1 + len(one.shape), one.shape_text)

    def find_axes(self, name: str, ndim: int, shape: object) -> list[int]:
        """Return which axes of a batch with ``ndim`` of them may be reversed."""
        found = [axis + (1 if axis >= 0 else ndim) for axis in self.axes.get(name, ())]
        if not all(0 < axis < ndim for axis in found) or len(set(found)) < len(found):
            raise ValueError(
                f"flip has axes {self.axes[name]} of {name!r}, whose samples have the shape "
                f"{shape}: axes count from 0, or from -1 backwards, and each comes once"
            )
        return found

    def apply(self, made: Batch, pool: Pool) -> Batch:
        """Return a batch of arrays with its samples flipped; no array that is given is changed."""
        drawn = made.get(DRAWN)
        if drawn is None:
            return made
        return {name: self._flip(name, a, drawn, pool) for name, a in made.items() if name != DRAWN}

    def _flip(self, name: str, values: Any, drawn: NDArray[np.uint8], pool: Pool) -> Any:  # noqa: ANN401
        if name not in self.axes:
            return values
        given = np.asarray(values)
        made = pool.array(len(given), given.dtype, given.shape[1:])
        np.copyto(made, given)
        for bit, axis in enumerate(self.find_axes(name, given.ndim, given.shape[1:])):
            at = np.flatnonzero(drawn >> bit & 1)
            made[at] = np.flip(made[at], axis)
        return made


NO_FLIPS = Flips()


def make_flips(given: Flip | None) -> Flips:
    """Check what a caller wrote."""
    if given is None:
        return NO_FLIPS
    if not isinstance(given, Mapping):
        raise TypeError(f'flip takes a dict such as {{"image": 1, "mask": 1}}, got {given!r:.80}')
    axes = {name: _as_axes(name, one) for name, one in given.items()}
    counts = {name: len(one) for name, one in axes.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"flip reverses the first axis of each field together, then the second: all fields "
            f"need as many axes, got {counts}"
        )
    return Flips(axes)


def _as_axes(name: str, given: object) -> tuple[int, ...]:
    every = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    try:
        found = tuple(operator.index(axis) for axis in every)
    except TypeError:
        raise TypeError(
            f"flip takes axes of a sample such as 1 or (0, 1), got {given!r:.80} for {name!r}"
        ) from None
    if not 0 < len(found) <= _MOST:
        raise ValueError(f"flip takes 1 to {_MOST} axes, got {len(found)} for {name!r}")
    return found


def keep_drawn(chosen: Batch, made: Batch) -> Batch:
    """Return the fields that were chosen of a batch, and what was drawn for it."""
    return {**chosen, DRAWN: made[DRAWN]} if DRAWN in made else chosen
