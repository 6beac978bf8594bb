"""Samples of different shapes as a batch: a list, padded to one array, or end to end.

list    [array, array, …]: an array for each sample
pad     <field>, padded to the longest of the batch or to ``pad_to``, with zeros or ``pad_value``,
        and <field>_length: how long each sample is. One number a sample where one axis differs,
        else one for each that does
packed  <field>, the values of all samples end to end, and <field>_offsets: where each begins,
        and the end. Where an axis other than the first differs the values are flat, and
        <field>_shape has each sample's shape
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.field import Field
from ndfeed.dataset.target import Laid
from ndfeed.loader.padding import PLAIN, Pad
from ndfeed.loader.pool import Pool
from ndfeed.order.permutation import Ints

Ragged = Literal["list", "pad", "packed"]
RAGGED = ("list", "pad", "packed")

Shape = tuple[int, ...]
Shapes = Sequence[Shape] | Ints
Samples = Sequence[NDArray[Any]]


_ADDED = {"list": (), "pad": ("_length",), "packed": ("_offsets", "_shape")}


def owner(name: str, fields: Sequence[str], ragged: Ragged) -> str | None:
    """The field beside which ``name`` would come, if there is one."""
    for suffix in _ADDED[ragged]:
        if name.endswith(suffix) and name.removesuffix(suffix) in fields:
            return name.removesuffix(suffix)
    return None


def added_names(field: Field, ragged: Ragged) -> tuple[str, ...]:
    """The names that come beside a ragged field's own."""
    if ragged == "pad":
        return (f"{field.name}_length",)
    if ragged == "packed":
        offsets = (f"{field.name}_offsets",)
        return offsets if _first_only(field) else (*offsets, f"{field.name}_shape")
    return ()


def check(field: Field, ragged: Ragged, others: Sequence[str]) -> None:
    """Refuse a field that cannot be given that form, before anything is read."""
    if ragged == "list":
        return
    if field.shape is None:
        raise ValueError(
            f"field {field.name!r} has samples of different numbers of dimensions, which cannot "
            f'be {"padded" if ragged == "pad" else ragged}; use ragged="list"'
        )
    for name in added_names(field, ragged):
        if name in others:
            raise ValueError(f"ragged={ragged!r} would add {name!r}, which is a field; rename it")


def _first_only(field: Field) -> bool:
    return field.shape is not None and None not in field.shape[1:]


class Room:
    """An array for a batch of ragged samples, where in it each goes, and what comes beside it.

    ``shapes`` has a row for each sample. ``laid`` is where their bytes go, if each has its own in
    one piece.
    """

    def __init__(
        self, field: Field, shapes: Shapes, ragged: Ragged, pool: Pool, pad: Pad = PLAIN
    ) -> None:
        self.field = field
        rank = len(shapes[0]) if len(shapes) else len(field.shape or ())
        self._shapes: Ints = np.asarray(shapes, np.int64).reshape(len(shapes), rank)
        self.batch: dict[str, Any] = {}
        self.laid: Laid | None = None
        self._padded = ragged == "pad"
        self._array = self._pad(pool, pad) if self._padded else self._pack(pool)

    def _pad(self, pool: Pool, pad: Pad) -> NDArray[Any]:
        name, known, shapes = self.field.name, self.field.shape or (), self._shapes
        count = len(shapes)
        longest = tuple(shapes.max(axis=0).tolist()) if count else tuple(n or 0 for n in known)
        longest = pad.room(self.field, longest)
        padded = pool.array(count, self.field.dtype, longest)
        differing = [axis for axis, length in enumerate(known) if length is None]
        lengths = shapes[:, differing]
        self.batch = {
            name: padded,
            f"{name}_length": lengths[:, 0] if len(differing) == 1 else lengths,
        }
        if (shapes != longest).any():
            padded[...] = pad.fill(self.field)
        if (shapes[:, 1:] == longest[1:]).all():
            step = math.prod(longest) * padded.itemsize
            self.laid = Laid(_as_bytes(padded), np.arange(count) * step)
        return padded

    def _pack(self, pool: Pool) -> NDArray[Any]:
        name, shapes = self.field.name, self._shapes
        flat = not _first_only(self.field)
        rest: Shape = () if flat else tuple(n or 0 for n in (self.field.shape or ())[1:])
        ends = np.zeros(len(shapes) + 1, np.int64)
        np.cumsum(shapes.prod(axis=1) if flat else shapes[:, 0], out=ends[1:])
        values = pool.array(int(ends[-1]), self.field.dtype, rest)
        self.batch = {name: values, f"{name}_offsets": ends}
        if flat:
            self.batch[f"{name}_shape"] = shapes
        self.laid = Laid(_as_bytes(values), ends[:-1] * math.prod(rest) * values.itemsize)
        return values

    def samples(self) -> list[NDArray[Any]]:
        """The part of the array for each sample, in its shape."""
        shapes = self._shapes.tolist()
        if self._padded:
            cuts: list[Any] = [(at, *map(slice, shape)) for at, shape in enumerate(shapes)]
            return [self._array[cut] for cut in cuts]
        places = self.batch[f"{self.field.name}_offsets"].tolist()
        return [
            self._array[start:end].reshape(shape)
            for shape, start, end in zip(shapes, places, places[1:], strict=False)
        ]


def _as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def uneven_field(name: str, samples: Samples, known: Field | None) -> Field:
    """A ragged field as some samples of it that a map made are to be formed.

    The axes that differ are those of ``known``; all, if it is not known or of another rank.
    """
    first = samples[0]
    shape: list[int | None] = [None] * first.ndim
    if known is not None and known.shape is not None and len(known.shape) == first.ndim:
        for axis in (a for a, length in enumerate(known.shape) if length is not None):
            shape[axis] = first.shape[axis]
            found = {sample.shape[axis] for sample in samples if sample.ndim == first.ndim}
            if len(found) > 1:
                raise ValueError(
                    f"field {name!r}: samples that map returns differ in axis {axis} "
                    f"({min(found)} and {max(found)}), which those that were tried first did not; "
                    'give them one length in map, or use ragged="list"'
                )
    return Field(name, first.dtype, tuple(shape), first.dtype.str)


def formed(
    field: Field, samples: Samples, ragged: Ragged, pool: Pool, pad: Pad = PLAIN
) -> dict[str, Any]:
    """Samples that are there already, copied into the form."""
    if len({array.ndim for array in samples}) > 1:
        raise ValueError(
            f"field {field.name!r} has samples of different numbers of dimensions; "
            'use ragged="list", or give them one in map'
        )
    room = Room(field, [array.shape for array in samples], ragged, pool, pad)
    for part, array in zip(room.samples(), samples, strict=True):
        part[...] = array
    return room.batch
