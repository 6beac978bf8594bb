"""Reads ragged samples that lie end to end in an array, by the offsets in another array.

An array of offsets has the first row of every sample, and the end of the last. Or it has one
number in each row: the byte at which a sample begins; then another array (``extents``) has the
number of its elements. Offsets may have any integer dtype.

For a batch the offsets of all samples are gathered in one NumPy call, from any number of mapped
files, and so are short samples themselves, element by element; longer ones are copied one by
one. Locations read from a file are checked before use: damaged offsets are an error that names
the row, never a read elsewhere.
"""

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset import gather
from ndfeed.dataset.arguments import computed_once
from ndfeed.dataset.column import Column, Place, lengths
from ndfeed.dataset.destination import Destination, Laid
from ndfeed.dataset.read_timing import reading
from ndfeed.errors import FormatError, shown
from ndfeed.files import platform_calls
from ndfeed.files.file import File
from ndfeed.files.maps import Maps
from ndfeed.formats.description import MOST_BYTES, RAW
from ndfeed.formats.dtypes import itemsize
from ndfeed.index.build import folder_of
from ndfeed.index.table import Ints

Shape = tuple[int, ...]
Room = Laid | list[memoryview]

# Elements of a sample below which taking them singly beats one copy per sample.
_FEW = 24
# Bytes of a sample above which its copy should release the GIL.
_LARGE = 16 << 10
_MOST_TOGETHER = 256


class Spans(NamedTuple):
    """Per sample: its file, where its bytes start there, how many they are, and its shape."""

    file: Ints
    start: Ints
    nbytes: Ints
    shape: Ints


def _files(column: Column, part: Ints) -> Ints:
    """Return every file that samples of these parts need."""
    parts = np.unique(part) if len(column.arrays) > 1 else part[:1]
    # Streams that are decoded are not mapped.
    places = [column.arrays[parts[column.coding[parts] == RAW]]]
    places += [p[parts] for p in (column.offsets, column.extents) if p is not None]
    arrays: Ints = np.concatenate(places)
    return column.table.file[arrays[arrays >= 0]].astype(np.int64)


def _spans(column: Column, place: Place, maps: Maps | None) -> Spans:
    """Locate samples, all of located parts; their files are entered if there are maps."""
    offsets = column.offsets
    if offsets is None:
        raise TypeError(f"field {column.field.name!r} has no offsets")
    first, last = _ranges(column, offsets, place, maps)
    bad = (first < 0) | (last < first) | (last > lengths(column.table, column.arrays[place.part]))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        _refuse(column, offsets, place, at, f"{first[at]} to {last[at]}")
    size = column.nbytes[place.part]
    shape = _shapes(column, place, last - first, maps)
    start: Ints = column.first[place.part] + first * size
    return Spans(column.file[place.part], start, (last - first) * size, shape)


def _ranges(column: Column, offsets: Ints, place: Place, maps: Maps | None) -> tuple[Ints, Ints]:
    """Return the first row of each sample in its array, and the end; as stored, not checked."""
    pointed = _pointed(column)
    if pointed is None:
        ends = _numbers(column, offsets, place, 2, 1, maps)
        return ends[:, 0], ends[:, 1]
    found = np.empty((2, len(place.part)), np.int64)
    by_bytes = pointed[place.part]
    for at in (np.flatnonzero(by_bytes), np.flatnonzero(~by_bytes)):
        some = Place(place.part[at], place.row[at])
        if not len(at):
            continue
        if not by_bytes[at[0]]:
            found[:, at] = _numbers(column, offsets, some, 2, 1, maps).T
            continue
        start = _numbers(column, offsets, some, 1, 1, maps)[:, 0]
        first, within = np.divmod(start, column.nbytes[some.part])
        found[0, at] = np.where(within == 0, first, -1)  # inside of an element: refused
        sizes = column.extents
        assert sizes is not None, "there are no pointers without them"
        found[1, at] = first + _numbers(column, sizes, some, 1, 1, maps)[:, 0]
    return found[0], found[1]


@computed_once
def _pointed(column: Column) -> NDArray[np.bool_] | None:
    """Per part: are its samples found by bytes and sizes? ``None`` if those of no part are."""
    offsets, table = column.offsets, column.table
    if offsets is None or column.extents is None:
        return None
    ranks = table.dims[table.shape[np.maximum(offsets, 0)], 0]
    found = np.asarray((offsets >= 0) & (ranks == 2))
    return found if found.any() else None


def _shapes(column: Column, place: Place, count: Ints, maps: Maps | None) -> Ints:
    """Return the shapes of samples of ``count`` values each."""
    rank = len(column.field.shape or ())
    dims = column.table.dims[column.table.shape[column.arrays[place.part]]]
    found = np.zeros((len(count), rank), np.int64)
    found[:, 0] = count
    found[:, 1 : dims.shape[1] - 1] = dims[:, 2 : 1 + rank]
    if column.extents is not None:
        stored = column.extents >= 0
        pointed = _pointed(column)
        kept = np.flatnonzero((stored if pointed is None else stored & ~pointed)[place.part])
        if len(kept):
            some = Place(place.part[kept], place.row[kept])
            found[kept] = _extents(column, column.extents, some, count[kept], maps)
    return found


def _extents(column: Column, extents: Ints, place: Place, count: Ints, maps: Maps | None) -> Ints:
    """Read shapes that are stored in a separate array."""
    known = column.field.shape or ()
    found = _numbers(column, extents, place, len(known), len(known), maps)
    # As fractions first: a product of large integers may overflow to any value.
    wide = np.where(found > 0, found, 1).astype(np.float64).prod(axis=1)
    bad = (found < 0).any(axis=1) | (wide * itemsize(column.field.type) >= MOST_BYTES / 2)
    bad |= found.prod(axis=1) != count
    for axis, length in enumerate(known):
        if length is not None:
            bad |= found[:, axis] != length
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        _refuse(column, extents, place, at, f"the shape {tuple(found[at].tolist())}")
    return found


def _numbers(
    column: Column, arrays: Ints, place: Place, count: int, step: int, maps: Maps | None
) -> Ints:
    """Read ``count`` numbers per sample; those of successive samples are ``step`` apart."""
    dtype = (_extent_dtype if arrays is column.extents else _offset_dtype)(column)
    if dtype is not None:
        return _numbers_of(column, arrays, place, count, step, dtype, maps)
    which = column.table.dtype[arrays[place.part]]
    found = np.empty((len(which), count), np.int64)
    for number in np.unique(which).tolist():
        at = np.flatnonzero(which == number)
        some = Place(place.part[at], place.row[at])
        own = np.dtype(column.table.dtypes[number])
        found[at] = _numbers_of(column, arrays, some, count, step, own, maps)
    return found


@computed_once
def _offset_dtype(column: Column) -> np.dtype | None:
    return _common_dtype(column, column.offsets)


@computed_once
def _extent_dtype(column: Column) -> np.dtype | None:
    return _common_dtype(column, column.extents)


def _common_dtype(column: Column, places: Ints | None) -> np.dtype | None:
    """Return the dtype of all arrays at these places of the table; ``None`` if they differ."""
    arrays = np.zeros(0, np.int64) if places is None else places[places >= 0]
    used = np.unique(column.table.dtype[arrays]).tolist()
    return np.dtype(column.table.dtypes[used[0]]) if len(used) == 1 else None


def _numbers_of(
    column: Column,
    arrays: Ints,
    place: Place,
    count: int,
    step: int,
    dtype: np.dtype,
    maps: Maps | None,
) -> Ints:
    """Do the same for numbers of one dtype. Unsigned ones beyond all bounds become negative."""
    table, array = column.table, arrays[place.part]
    file = table.file[array].astype(np.int64)
    start = table.offset[array] + table.skip[array] + place.row * (step * dtype.itemsize)
    size = count * dtype.itemsize
    if maps is not None:
        found = gather.by_address(maps, file, start, size)
    else:
        found = np.empty(len(file), np.dtype((np.void, size)))
        sizes = np.full(len(file), size)
        laid = Laid(found.view(np.uint8), np.arange(len(file)) * size)
        _read(column, Spans(file, start, sizes, sizes), laid)
    return found.view(dtype).astype(np.int64, copy=False).reshape(len(file), count)


def _refuse(column: Column, arrays: Ints, place: Place, at: int, found: str) -> None:
    """Refuse what was found for one sample."""
    part, row = int(place.part[at]), int(place.row[at])
    path = column.table.path(int(column.table.file[arrays[part]]))
    if folder_of(os.path.dirname(os.path.dirname(path))) is not None:
        raise FormatError(
            path,
            f"the {'shapes' if arrays is column.extents else 'offsets'} of row {row} are damaged",
            remedy="list the damage with ndfeed verify, and restore it with ndfeed pack --repair",
        )
    values = column.table.path(int(column.file[part]))
    rows = int(lengths(column.table, column.arrays[part : part + 1])[0])
    raise FormatError(
        path,
        f"the offsets of sample {row} are damaged: rows {found} of the {rows} in {shown(values)}",
        remedy="offsets must ascend from 0 to the number of rows; compute them again",
    )


def shapes(column: Column, place: Place, maps: Maps | None) -> Ints | list[Shape]:
    """Return the shape of each sample of a ragged column: a row each where all are located."""
    located = have_offsets(column, place)
    if located.all():
        return where(column, place, maps).shape
    found = column.shapes(place.part)
    which = np.flatnonzero(located)
    if len(which):
        some = where(column, Place(place.part[which], place.row[which]), maps).shape
        for at, shape in zip(which.tolist(), some.tolist(), strict=True):
            found[at] = tuple(shape)
    return found


def have_offsets(column: Column, place: Place) -> NDArray[np.bool_]:
    """Which samples are found by offsets?"""
    if column.offsets is None:
        return np.zeros(len(place.part), bool)
    return np.asarray(column.offsets[place.part] >= 0)


def where(column: Column, place: Place, maps: Maps | None) -> Spans:
    """Locate samples of located parts; their files are entered for it."""
    if not len(place.part):
        none = np.zeros((0, len(column.field.shape or ())), np.int64)
        return Spans(none[:, 0], none[:, 0], none[:, 0], none)
    if maps is None:
        return _spans(column, place, None)
    return maps.read(_files(column, place.part), lambda: _spans(column, place, maps))


def fill_mapped(column: Column, place: Place, target: Destination, maps: Maps | None) -> None:
    """Copy samples of parts that are not decoded, from maps or by position."""

    def fetch() -> tuple[Room, Ints]:
        found = _spans(column, place, maps)
        room = make_room(target, found)
        if maps is None:
            _read(column, found, room)
        else:
            _copy(column, found, room, maps)
        return room, found.nbytes

    got = fetch() if maps is None else maps.read(_files(column, place.part), fetch)
    if column.any_swapped:
        swap(column, *got, column.swapped[place.part])


def swap(column: Column, room: Room, nbytes: Ints, swapped: NDArray[np.bool_]) -> None:
    """Swap the bytes of the elements of some samples."""
    memories: list[memoryview]
    if not isinstance(room, Laid):
        memories = [memory for memory, own in zip(room, swapped.tolist(), strict=True) if own]
    elif swapped.all() and int(nbytes.sum()) == len(room.memory):  # end to end
        memories = [room.memory.data]
    else:
        ends = zip(room.starts[swapped].tolist(), nbytes[swapped].tolist(), strict=True)
        memories = [room.memory.data[start : start + size] for start, size in ends]
    for memory in memories:
        if len(memory):
            np.frombuffer(memory, column.field.dtype).byteswap(inplace=True)


def make_room(target: Destination, found: Spans) -> Room:
    """Return where the samples go: allocated here, unless there is memory already."""
    if target.laid is not None:
        return target.laid
    if target.given:
        return [target.memory(i, 0) for i in range(len(found.file))]
    ends = np.cumsum(found.nbytes)
    platform_calls.require_memory(int(ends[-1]), target.column.table.path(0))
    laid = Laid(np.empty(int(ends[-1]), np.uint8), ends - found.nbytes)
    target.lay(laid, found.shape)
    return laid


def _copy(column: Column, found: Spans, room: Room, maps: Maps) -> None:
    """Copy samples from mapped files, which are entered."""
    size, count = itemsize(column.field.type), len(found.file)
    total = int(found.nbytes.sum())
    if isinstance(room, Laid) and total <= _FEW * size * count:
        _copy_elements(found, room, maps, size)
        return
    # NumPy releases the GIL while it copies; for small samples a memoryview costs less.
    large = total >= _LARGE * count
    every: dict[int, Any] = {
        n: maps.bytes(n) if large else maps.bytes(n).data for n in np.unique(found.file).tolist()
    }
    sources = map(every.__getitem__, found.file.tolist())
    spots = zip(sources, found.start.tolist(), (found.start + found.nbytes).tolist(), strict=True)
    if isinstance(room, Laid):
        out: Any = room.memory if large else room.memory.data
        to = zip(room.starts.tolist(), (room.starts + found.nbytes).tolist(), strict=True)
        for (source, a, b), (c, d) in zip(spots, to, strict=True):
            out[c:d] = source[a:b]
    else:
        for (source, a, b), memory in zip(spots, room, strict=True):
            memory[:] = source[a:b]


def _copy_elements(found: Spans, room: Laid, maps: Maps, size: int) -> None:
    """Copy short samples: every element by its address, in one call for all."""
    counts = found.nbytes // size
    ends = np.cumsum(counts)
    before = ends - counts
    step = np.arange(int(ends[-1])) * size
    start = np.repeat(found.start - before * size, counts) + step
    file = np.repeat(found.file, counts)
    values = gather.by_address(maps, file, start, size)
    out = room.memory.view(values.dtype)
    if len(out) == len(values):  # end to end
        out[...] = values
        return
    out[(np.repeat(room.starts - before * size, counts) + step) // size] = values


def _read(column: Column, found: Spans, room: Room) -> None:
    """Read samples by position: sorted by place, neighbours in one call."""
    if isinstance(room, Laid):
        memory = room.memory.data
        pairs = zip(room.starts.tolist(), (room.starts + found.nbytes).tolist(), strict=True)
        buffers = [memory[a:b] for a, b in pairs]
    else:
        buffers = room
    table = column.table
    order = np.lexsort((found.start, found.file))
    for stretch in gather.by_file(found.file[order]):
        own = order[stretch]
        number = int(found.file[own[0]])
        with reading(), File(table.path(number), table.expected(number)) as file:
            starts, sizes = found.start[own].tolist(), found.nbytes[own].tolist()
            together: list[memoryview] = []
            begin = end = -1
            for start, size, i in zip(starts, sizes, own.tolist(), strict=True):
                if not size:
                    continue
                if start != end or len(together) == _MOST_TOGETHER:
                    if together:
                        file.read_into(begin, together)
                    begin, together = start, []
                together.append(buffers[i])
                end = start + size
            if together:
                file.read_into(begin, together)
