"""Samples of different shapes as a batch: a list, padded to one array, or end to end.

list    [array, array, …]: an array for each sample
pad     <field>, zero-padded to the longest of the batch, and <field>_length: how long each
        sample is. One number a sample where one axis differs, else one for each that does
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
from ndfeed.loader.pool import Pool

Ragged = Literal["list", "pad", "packed"]
RAGGED = ("list", "pad", "packed")

Shape = tuple[int, ...]
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
    """An array for a batch of ragged samples, the parts of it for each, and what goes with it."""

    def __init__(self, field: Field, shapes: Sequence[Shape], ragged: Ragged, pool: Pool) -> None:
        self.field = field
        self._shapes = shapes
        self._pool = pool
        self.batch: dict[str, Any] = {}
        self.samples: list[NDArray[Any]] = []
        # Can the samples be read straight into their parts?
        self.direct = True
        if ragged == "pad":
            self._pad()
        else:
            self._pack()

    def _pad(self) -> None:
        name, known = self.field.name, self.field.shape or ()
        longest = tuple(map(max, zip(*self._shapes, strict=True))) or tuple(n or 0 for n in known)
        padded = self._pool.array(len(self._shapes), self.field.dtype, longest)
        differing = [axis for axis, length in enumerate(known) if length is None]
        lengths = np.array(self._shapes, np.int64).reshape(len(self._shapes), len(longest))
        lengths = lengths[:, differing]
        self.batch = {
            name: padded,
            f"{name}_length": lengths[:, 0] if len(differing) == 1 else lengths,
        }
        for at, shape in enumerate(self._shapes):
            own: Any = (at, *map(slice, shape))
            part = padded[own]
            if shape != longest:
                if shape[1:] == longest[1:]:
                    padded[at, shape[0] :] = 0
                else:
                    padded[at] = 0
                    self.direct = False
            self.samples.append(part)

    def _pack(self) -> None:
        name, dtype, count = self.field.name, self.field.dtype, len(self._shapes)
        flat = not _first_only(self.field)
        rest: Shape = () if flat else tuple(n or 0 for n in (self.field.shape or ())[1:])
        ends = np.zeros(count + 1, np.int64)
        steps = [math.prod(shape) if flat else shape[0] for shape in self._shapes]
        np.cumsum(steps, out=ends[1:])
        values = self._pool.array(int(ends[-1]), dtype, rest)
        self.batch = {name: values, f"{name}_offsets": ends}
        if flat:
            rank = len(self._shapes[0]) if count else len(self.field.shape or ())
            self.batch[f"{name}_shape"] = np.array(self._shapes, np.int64).reshape(count, rank)
        places = ends.tolist()
        for shape, start, end in zip(self._shapes, places, places[1:], strict=False):
            self.samples.append(values[start:end].reshape(shape))


def formed(field: Field, samples: Samples, ragged: Ragged, pool: Pool) -> dict[str, Any]:
    """Samples that are there already, copied into the form."""
    if len({array.ndim for array in samples}) > 1:
        raise ValueError(
            f"field {field.name!r} has samples of different numbers of dimensions; "
            'use ragged="list", or give them one in map'
        )
    room = Room(field, [array.shape for array in samples], ragged, pool)
    for part, array in zip(room.samples, samples, strict=True):
        part[...] = array
    return room.batch
