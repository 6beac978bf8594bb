"""Where samples are read to, and how they are converted to another dtype.

Samples of one shape are read into one array, ragged ones into an array each, or into one buffer
in which each has its own offset.

A field has one dtype. Files may have others where text differs in width, or where the caller asked
for a dtype. The parts of a group are sorted into variants by their stored dtypes; the samples of
each variant are read by a separate reader, which knows nothing of conversions, and its arrays are
converted into the batch. A value that the field's dtype cannot hold is a ``CastError``.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Field, Group, Place, is_converted, with_type
from ndfeed.errors import CastError
from ndfeed.files import platform_calls
from ndfeed.formats.dtypes import EXTENDED, cast, plain
from ndfeed.index.table import Ints


class Laid(NamedTuple):
    """Memory, as bytes, and where each sample starts in it."""

    memory: NDArray[np.uint8]
    starts: Ints


Arrays = NDArray[Any] | list[NDArray[Any]] | Laid  # one for samples of one shape, or one for each


def check_fits(field: Field, out: NDArray[Any], count: int) -> None:
    """Refuse an array that ``count`` samples of ``field`` cannot be written to."""
    if field.ragged:
        raise ValueError(f"field {field.name!r} is ragged: read() gives its samples, one by one")
    wanted = (count, *(field.shape or ()))
    found = np.asarray(out)
    if found is not out or found.shape != wanted or found.dtype != field.dtype:
        raise ValueError(
            f"out[{field.name!r}] must be {field.dtype} {wanted}, got {found.dtype} {found.shape}"
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"out[{field.name!r}] must be writable and in C order")


class Destination:
    """Memory for the samples of one field of a batch.

    Samples of one shape are one array: the caller's, or allocated on first use, so that a call
    that makes its own result can pass it to ``adopt``.
    """

    __slots__ = ("_array", "_memory", "_part", "_ragged", "column", "laid")

    def __init__(self, column: Column, part: Ints, arrays: Arrays | None) -> None:
        self.column = column
        self.laid = arrays if isinstance(arrays, Laid) else None
        self._part = part
        self._array = arrays if isinstance(arrays, np.ndarray) else None
        self._ragged = arrays if isinstance(arrays, list) else None
        self._memory: memoryview | None = None

    @property
    def arrays(self) -> Arrays:
        """The samples: an array of them, or a list where they are ragged."""
        return self.ragged if self.column.field.ragged else self.array

    @property
    def array(self) -> NDArray[Any]:
        """The array of samples of one shape."""
        if self._array is None:
            field = self.column.field
            self._array = np.empty((len(self._part), *field.lengths), field.dtype)
        return self._array

    @property
    def ragged(self) -> list[NDArray[Any]]:
        """The arrays of samples that differ in shape."""
        if self._ragged is None:
            dtype = self.column.field.dtype
            shapes = self.column.shapes(self._part)
            size = int(self.column.nbytes[self._part].sum())
            platform_calls.require_memory(size, self.column.table.path(0))
            self._ragged = [np.empty(shape, dtype) for shape in shapes]
        return self._ragged

    @property
    def given(self) -> bool:
        """Is there already memory for ragged samples?"""
        return self._ragged is not None or self.laid is not None

    def hold(self, arrays: list[NDArray[Any]]) -> None:
        """Use ``arrays`` as the memory for ragged samples."""
        self._ragged = arrays

    def lay(self, laid: Laid, shapes: Ints) -> None:
        """Use ``laid``, which has this field's elements, as the memory for ragged samples."""
        dtype = self.column.field.dtype
        values = laid.memory.view(dtype)
        ends = (laid.starts // dtype.itemsize).tolist()
        ends.append(len(values))
        pieces = [values[a:b] for a, b in pairwise(ends)]
        if shapes.shape[1] > 1:
            pieces = [p.reshape(s) for p, s in zip(pieces, shapes.tolist(), strict=True)]
        self._ragged = pieces

    @property
    def flat(self) -> NDArray[np.uint8]:
        """All bytes of samples of one shape."""
        return self.array.reshape(-1).view(np.uint8)

    def adopt(self, records: NDArray[np.void]) -> None:
        """Copy ``records`` into the array, or use them as the array if there is none yet."""
        if self._array is not None:
            self.flat.view(records.dtype)[...] = records
            return
        field = self.column.field
        self._array = records.view(field.dtype).reshape(len(records), *field.lengths)

    def sample(self, at: int) -> NDArray[Any]:
        """Return sample ``at`` as an array to write to."""
        if self.column.field.ragged:
            return self.ragged[at]
        return self.array[at, ...]  # with the ellipsis a view even where samples are scalars

    def memory(self, at: int, size: int) -> memoryview:
        """Return the bytes of sample ``at``, of which there are ``size``."""
        if self.column.field.ragged:
            return self.ragged[at].reshape(-1).view(np.uint8).data
        if self._memory is None:
            self._memory = self.flat.data
        return self._memory[at * size : at * size + size]

    def copy(self, source: int, at: int) -> None:
        """Copy sample ``source`` to sample ``at``."""
        self.sample(at)[...] = self.sample(source)

    def swap(self, which: NDArray[np.bool_]) -> None:
        """Swap the bytes of some samples."""
        if not self.column.field.ragged and which.all():
            self.array.byteswap(inplace=True)
            return
        for at in np.flatnonzero(which).tolist():
            self.sample(at).byteswap(inplace=True)


class Variants:
    """The parts of a group by their stored dtypes, a group for each combination."""

    def __init__(self, group: Group) -> None:
        self._group = group
        # Two byte orders count as one dtype.
        kinds = [plain(name) for name in group.table.dtypes]
        number = np.array([kinds.index(kind) for kind in kinds])
        stored = np.stack([number[c.table.dtype[c.arrays]] for c in group.columns])
        different, which = np.unique(stored, axis=1, return_inverse=True)
        self._types = [[kinds[n] for n in one] for one in different.T.tolist()]
        self.of_part: Ints = which.reshape(-1)  # per part: its variant
        order = np.argsort(self.of_part, kind="stable")
        ends = np.cumsum(np.bincount(self.of_part, minlength=len(self._types)))
        self._parts = np.split(order, ends[:-1])
        self.place = np.empty(len(order), np.int64)  # per part: its place in the variant
        for parts in self._parts:
            self.place[parts] = np.arange(len(parts))

    def __len__(self) -> int:
        return len(self._types)

    def group(self, variant: int) -> Group:
        """Return the parts of one variant, with fields of their stored dtypes."""
        parts, whole = self._parts[variant], self._group
        columns = tuple(
            _select_parts(with_type(column, kind), parts)
            for column, kind in zip(whole.columns, self._types[variant], strict=True)
        )
        counts = np.diff(whole.starts)[parts]
        checks = whole.checks and whole.checks.select(parts)
        starts = np.concatenate([[0], np.cumsum(counts)])
        # Samples are located in the whole group, with its rows, before they are read.
        return replace(whole, starts=starts, columns=columns, checks=checks, rows=None)


def _select_parts(column: Column, parts: Ints) -> Column:
    """Select some parts of a column."""
    offsets, extents = (
        None if places is None else places[parts] for places in (column.offsets, column.extents)
    )
    arrays, whole = column.arrays[parts], column.whole[parts]
    return replace(column, arrays=arrays, whole=whole, offsets=offsets, extents=extents)


Fill = Callable[[Ints, Mapping[str, Arrays]], list[Destination]]


def fill_converted(
    variants: Variants,
    group: Group,
    samples: Ints,
    arrays: Mapping[str, Arrays],
    filling: Callable[[int], tuple[Group, Fill]],
) -> list[Destination]:
    """Fill the fields of a group, using the reader from ``filling`` for each variant needed."""
    place = group.locate(samples)
    targets = [Destination(c, place.part, arrays.get(c.field.name)) for c in group.columns]
    # Values that are not converted can be read in place, unless several variants share it.
    kept = [len(variants) == 1 and not is_converted(column) for column in group.columns]
    names = [c.field.name for c, keep in zip(group.columns, kept, strict=True) if keep]
    room = {name: arrays[name] for name in names if name in arrays}
    which = variants.of_part[place.part]
    stored: list[list[tuple[Ints, Destination]]] = [[] for _ in targets]
    for variant in np.unique(which).tolist():
        at = np.flatnonzero(which == variant)
        own, read = filling(variant)
        found = read(own.starts[variants.place[place.part[at]]] + place.row[at], room)
        for i, made in enumerate(found):
            if kept[i]:
                targets[i] = made
            elif group.columns[i].offsets is None:
                _put(made, targets[i], at, place)
            else:
                stored[i].append((at, made))
    for target, parts in zip(targets, stored, strict=True):
        if parts:
            _make_room(target, parts)
        for at, made in parts:
            _put(made, target, at, place)
    return targets


def _make_room(target: Destination, parts: list[tuple[Ints, Destination]]) -> None:
    """Allocate memory for located samples: their shapes are known once they are read."""
    if target.given and target.laid is None:
        return
    found = {i: v.shape for at, m in parts for i, v in zip(at.tolist(), m.ragged, strict=True)}
    shapes = [found[i] for i in range(len(found))]
    dtype = target.column.field.dtype
    if target.laid is None:
        target.hold([np.empty(shape, dtype) for shape in shapes])
        return
    values = target.laid.memory.view(dtype)
    starts = (target.laid.starts // dtype.itemsize).tolist()
    rooms = zip(starts, shapes, strict=True)
    target.hold([values[at : at + math.prod(shape)].reshape(shape) for at, shape in rooms])


def _put(made: Destination, target: Destination, at: Ints, place: Place) -> None:
    """Convert the samples of ``made`` into ``target``, at the places ``at``.

    ``place`` says where all samples of ``target`` come from: for errors.
    """
    field = target.column.field
    if not field.ragged:
        _convert(made.array, target, at, place)
        return
    for i, values in zip(at.tolist(), made.ragged, strict=True):
        _convert(values[None], target, np.array([i]), place)


def _convert(values: NDArray[Any], target: Destination, at: Ints, place: Place) -> None:
    """Convert samples, one in each row of ``values``."""
    field = target.column.field
    dtype = field.dtype
    if values.dtype == dtype or _harmless(values.dtype, dtype):
        _assign(target, at, values)
        return
    if values.dtype.kind == dtype.kind == "f" and field.type not in EXTENDED:
        try:
            with np.errstate(over="raise"):  # the processor detects overflow to infinity
                _assign(target, at, values)
            return
        except FloatingPointError:
            pass  # located below
    made, misfit = cast(values, field.type)
    if misfit is not None:
        sample = int(at[misfit.at * len(values) // values.size])
        column, part = target.column, int(place.part[sample])
        path = os.fsdecode(column.table.path(int(column.file[part])))
        raise CastError(field.name, int(place.row[sample]), misfit.value, field.dtype_text, path)
    _assign(target, at, made)


def _assign(target: Destination, at: Ints, values: NDArray[Any]) -> None:
    """Assign ``values`` to the samples ``at``, in ascending order, converted as NumPy does."""
    if target.column.field.ragged:
        for i, value in zip(at.tolist(), values, strict=True):
            target.ragged[i][...] = value
    elif len(at) == len(target.array):
        target.array[...] = values
    else:
        target.array[at] = values


def _harmless(old: np.dtype, new: np.dtype) -> bool:
    """Can the new dtype hold every value of the old one?"""
    return new.kind not in "Mm" and np.can_cast(old, new, "safe")
