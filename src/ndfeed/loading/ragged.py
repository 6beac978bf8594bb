"""Batches of samples that differ in shape: lists, padded arrays, or packed values.

    ragged=    a batch has
    "list"     <field>: a list with an array for each sample
    "pad"      <field>: one array, padded to the longest sample of the batch or to ``pad_to``, with
               zeros or ``pad_value``; <field>_length: how long each sample is, one number where
               one axis differs, else one for each axis that does
    "packed"   <field>: the values of all samples end to end; <field>_offsets: where each starts,
               and the end. Where an axis other than the first differs the values are flat, and
               <field>_shape has the shape of each sample

``pad_to`` gives all batches one shape. Padding works the same in every framework.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Field, Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.destination import Laid
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import select_rows
from ndfeed.errors import FieldError, SchemaError
from ndfeed.formats.dtypes import can_hold
from ndfeed.loading.buffer_pool import Pool
from ndfeed.order.permutation import Ints

Lengths = int | Sequence[int]
PadTo = Lengths | Mapping[str, Lengths]
PadValue = complex | Mapping[str, complex]  # a bool, an integer or a float is one, too

Shape = tuple[int, ...]

_AT_ONCE = 1 << 20  # samples whose shapes are checked at a time


@dataclass(frozen=True, slots=True)
class Pad:
    """How one field is padded: to which lengths, if they are fixed, and with which value.

    ``guessed`` says that nobody knows which axes differ, as after a map: lengths are then for the
    first axes. Otherwise there is one for each axis that differs.
    """

    lengths: Shape = ()
    value: complex | None = None
    guessed: bool = False

    def shape(self, field: Field) -> tuple[int | None, ...]:
        """Return the shape of padded samples; ``None`` where the longest of a batch decides."""
        known = field.shape or ()
        if not self.lengths:
            return known
        differing = [axis for axis, length in enumerate(known) if length is None]
        lengths = self.lengths
        if len(lengths) == 1 and not self.guessed:
            lengths *= len(differing)
        if len(lengths) > len(differing) or (len(lengths) < len(differing) and not self.guessed):
            raise ValueError(
                f"pad_to needs a length for each of {len(differing)} axes of {field.name!r} "
                f"{field.shape_text}, got {lengths}"
            )
        shape = list(known)
        for axis, length in zip(differing, lengths, strict=False):
            shape[axis] = length
        return tuple(shape)

    def room(self, field: Field, longest: Shape) -> Shape:
        """Return the shape of samples in a batch whose largest lengths are ``longest``."""
        fixed = self.shape(field)
        room = tuple(n if to is None else to for n, to in zip(longest, fixed, strict=True))
        if any(n > to for n, to in zip(longest, room, strict=True)):
            raise ValueError(
                f"field {field.name!r} has samples of up to {longest}, pad_to makes {room}; "
                "raise pad_to, or cut samples in map()"
            )
        return room

    def fill(self, field: Field) -> NDArray[Any] | complex:
        """Return the value that is written after the end of samples."""
        return np.zeros((), field.dtype) if self.value is None else self.value


Pads = Mapping[str, Pad]
PLAIN = Pad()


def make_pads(
    ds: Dataset,
    known: Mapping[str, Field] | None,
    names: Sequence[str] | None,
    ragged: str,
    pad_to: PadTo | None,
    pad_value: PadValue | None,
) -> Pads:
    """Check what a caller wrote for each field; ``known`` are the fields of a batch."""
    given = {"pad_to": pad_to, "pad_value": pad_value}
    for argument, value in given.items():
        if value is not None and ragged != "pad":
            raise ValueError(
                f'{argument} is for ragged="pad", got ragged={ragged!r}; pass ragged="pad", or '
                f"remove {argument}="
            )
    if pad_to is None and pad_value is None:
        return {}
    fields = known or {}
    ours = {n: f for n, f in fields.items() if names is None or n in names}
    lengths = {n: _as_lengths(n, to) for n, to in _assign_to_fields("pad_to", pad_to, ours).items()}
    values = {
        n: _as_value(n, v) for n, v in _assign_to_fields("pad_value", pad_value, ours).items()
    }
    pads = {
        name: Pad(lengths.get(name, ()), values.get(name), bool(ds.steps))
        for name in (*lengths, *(n for n in values if n not in lengths))
    }
    for name, pad in pads.items() if known is not None else ():
        if name not in ours:
            raise FieldError(name, list(ours))
        _check(ds, ours[name], pad, "pad_to" if name in lengths else "pad_value")
    return pads


def padded_field(field: Field, pads: Pads) -> Field:
    """Return the field as in batches: ``None`` only along axes whose length still differs."""
    pad = pads.get(field.name)
    return field if pad is None else replace(field, shape=pad.shape(uneven_field(field, pads)))


def uneven_field(field: Field, pads: Pads) -> Field:
    """Return the field, as ragged if padding was requested and a map may make it so."""
    if field.name not in pads or field.ragged:
        return field
    return replace(field, shape=(None,) * len(field.lengths))


def _assign_to_fields(
    argument: str, given: object, fields: Mapping[str, Field]
) -> dict[str, object]:
    """Return one value per field; a single one applies to all fields that differ in length."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    ragged = [name for name, field in fields.items() if field.ragged]
    if not ragged:
        raise ValueError(
            f"{argument} is for fields whose samples differ in length, and none do; name the "
            f"fields that map() makes ragged: {argument}={{'x': {given!r}}}"
        )
    return dict.fromkeys(ragged, given)


def _as_lengths(name: str, given: object) -> Shape:
    found: tuple[Any, ...] = tuple(given) if isinstance(given, Sequence) else (given,)
    if not found or not all(isinstance(n, int | np.integer) and n >= 0 for n in found):
        raise ValueError(f"pad_to takes a length or a tuple of them, got {given!r} for {name!r}")
    return tuple(map(int, found))


def _as_value(name: str, given: object) -> complex:
    if not isinstance(given, int | float | complex | np.number | np.bool_):
        raise TypeError(f"pad_value takes a number, got {given!r} for {name!r}")
    return cast(complex, given)  # scalars of NumPy may stay what they are


def _check(ds: Dataset, field: Field, pad: Pad, argument: str) -> None:
    if field.shape is None or not (field.ragged or ds.steps):
        raise ValueError(
            f"{argument} is for fields whose samples differ in length; {field.name!r} has samples "
            f"of {field.shape_text}"
        )
    if pad.value is not None and not can_hold(field.dtype, pad.value):
        raise ValueError(
            f"pad_value {pad.value!r} does not fit field {field.name!r}, which has dtype "
            f"{field.dtype_text}; give a dict of field name to value"
        )
    padded = pad.shape(uneven_field(field, {field.name: pad}))
    if pad.lengths and not ds.steps:
        _check_lengths(ds, field.name, padded)


def _check_lengths(ds: Dataset, name: str, padded: tuple[int | None, ...]) -> None:
    """Refuse samples longer than they are padded to, going by headers and offsets."""
    limits = np.array([np.iinfo(np.int64).max if to is None else to for to in padded])
    rows = select_rows(ds.rows, np.arange(len(ds)))
    for group in ds.groups:
        for column in group.columns:
            if column.field.name != name:
                continue
            for samples in _choose_samples(group, column, rows):
                shapes = np.asarray(reader_of(group).shapes(group, column, samples), np.int64)
                longer = (shapes.reshape(len(samples), -1) > limits).any(axis=1)
                if longer.any():
                    at = int(longer.argmax())
                    part = int(group.locate(samples[at : at + 1]).part[0])
                    raise SchemaError(
                        column.table.path(int(column.file[part])),
                        f"field {name!r} has a sample of {tuple(map(int, shapes[at]))}, pad_to "
                        f"makes {padded}",
                        remedy="raise pad_to, or leave it out with take()",
                    )


def _choose_samples(group: Group, column: Column, rows: Ints) -> Iterator[Ints]:
    """Yield samples among ``rows`` that have all the shapes there are, some at a time."""
    if column.offsets is None:  # one shape for all samples of a file: check one of each
        part = group.locate(rows).part
        _, some = np.unique(column.table.shape[column.arrays[part]], return_index=True)
        rows = rows[some]
    for start in range(0, len(rows), _AT_ONCE):
        yield rows[start : start + _AT_ONCE]


Ragged = Literal["list", "pad", "packed"]
RAGGED = ("list", "pad", "packed")

Shapes = Sequence[Shape] | Ints
Samples = Sequence[NDArray[Any]]


_ADDED = {"list": (), "pad": ("_length",), "packed": ("_offsets", "_shape")}


def owner(name: str, fields: Sequence[str], ragged: Ragged) -> str | None:
    """Return the field that ``name`` would accompany, if there is one."""
    for suffix in _ADDED[ragged]:
        if name.endswith(suffix) and name.removesuffix(suffix) in fields:
            return name.removesuffix(suffix)
    return None


def added_names(field: Field, ragged: Ragged) -> tuple[str, ...]:
    """Return the names of the fields that accompany a ragged field."""
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
    """An array for a batch of ragged samples, where each goes in it, and the accompanying fields.

    ``shapes`` has a row for each sample. ``laid`` is where their bytes go, if each is contiguous.
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

    @property
    def nbytes(self) -> int:
        """Bytes of all fields."""
        return sum(values.nbytes for values in self.batch.values())

    def samples(self) -> list[NDArray[Any]]:
        """Return the part of the array for each sample, in its shape."""
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


def count_padding(batch: Mapping[str, Any], stored: Mapping[str, Field]) -> tuple[int, int]:
    """Return how long all samples of a padded batch are together, and how much of it is padding.

    Where several axes differ it is their product. Of fields that a map made the first axes count.
    """
    tokens = real = 0
    for name, values in batch.items():
        lengths = batch.get(f"{name}_length")
        if not (isinstance(values, np.ndarray) and isinstance(lengths, np.ndarray)):
            continue
        count = 1 if lengths.ndim == 1 else lengths.shape[-1]
        if not len(values) or lengths.size != len(values) * count or count >= values.ndim:
            continue  # no samples, or a map made something else of that name
        known = stored[name].shape if name in stored else None
        axes = [axis for axis, length in enumerate(known or ()) if length is None]
        if len(axes) != count or len(known or ()) != values.ndim - 1:
            axes = list(range(count))
        tokens += len(values) * math.prod(values.shape[1 + axis] for axis in axes)
        real += int(lengths.sum() if count == 1 else lengths.prod(axis=1).sum())
    return tokens, tokens - real


def field_of_samples(name: str, samples: Samples, known: Field | None) -> Field:
    """Describe the ragged field of some samples that a map made.

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


def collate_ragged(
    field: Field, samples: Samples, ragged: Ragged, pool: Pool, pad: Pad = PLAIN
) -> dict[str, Any]:
    """Copy samples that are in memory already into the requested form."""
    if len({array.ndim for array in samples}) > 1:
        raise ValueError(
            f"field {field.name!r} has samples of different numbers of dimensions; "
            'use ragged="list", or give them one in map'
        )
    room = Room(field, [array.shape for array in samples], ragged, pool, pad)
    for part, array in zip(room.samples(), samples, strict=True):
        part[...] = array
    return room.batch
