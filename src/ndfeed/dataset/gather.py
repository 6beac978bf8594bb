"""Gathers rows of arrays that hold many: from mapped files, by position, or from members.

Rows of one size from raw files are copied as opaque bytes, in one NumPy call for any number
of files:

- one file: ``np.take`` of records of a row's size, straight into the batch;
- many files, small rows: the same, if files are mapped such that rows lie whole rows apart;
- many files, other small rows: the maps' addresses make one record array over the whole address
  span, with a stride of one byte, indexed with each row's address, which holds the GIL;
- many files, large rows: one copy per row, which releases the GIL.

Without maps, rows are sorted by place and neighbours read together.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Place
from ndfeed.dataset.decoding import (
    Bytes,
    Decoded,
    are_inline,
    decode,
    inline_all,
    is_inline,
    key_of,
    stored_dtype,
    view,
)
from ndfeed.dataset.destination import Destination
from ndfeed.dataset.large_members import largest_stream, stream_size
from ndfeed.dataset.map_places import LARGE_ROW, Pieces
from ndfeed.dataset.overlapping import Boxes
from ndfeed.dataset.read_timing import inflating, reading, spent
from ndfeed.dataset.row_ranges import stretches
from ndfeed.files.file import File
from ndfeed.files.maps import Maps
from ndfeed.formats.description import RAW
from ndfeed.index.table import Ints

_MOST_TOGETHER = 64 << 20
_REQUEST = 1 << 14  # bytes that take as long to read as it takes to ask for any
_SMALL_CROP = 256  # bytes up to which many are copied in one call


def gather(
    column: Column, place: Place, target: Destination, maps: Maps, pieces: Pieces | None
) -> None:
    """Copy rows of one size from several mapped files."""
    size = column.size
    file = column.file[place.part]

    def copy() -> None:
        if pieces is not None:
            from_many(column, place, file, maps, pieces, target.array)
            return
        if size <= LARGE_ROW:
            target.adopt(from_many(column, place, file, maps, None))
            return
        out = target.flat.reshape(-1, size)
        start = column.first[place.part] + place.row * column.pitch
        for i, (f, at) in enumerate(zip(file.tolist(), start.tolist(), strict=True)):
            out[i] = maps.bytes(f)[at : at + size]

    maps.read(file, copy)


def from_many(
    column: Column,
    place: Place,
    file: Ints,
    maps: Maps,
    pieces: Pieces | None,
    room: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return rows from files that were entered: in ``room`` if they consist of pieces."""
    if pieces is None:
        start = place.row * column.pitch
        start += column.first[place.part]
        return by_address(maps, file, start, column.size)
    records, start = pieces.find(maps, place, file)
    # As bytes: a piece may be a part of an element, or of several.
    out = None if room is None else room.reshape(-1).view(np.uint8).view(records.dtype)
    return records.take(start, out=out, mode="clip").view(np.uint8)


def by_address(maps: Maps, file: Ints, start: Ints, size: int) -> NDArray[np.void]:
    """Return new records of ``size`` bytes, each from its place in a file that was entered."""
    low, records = maps.records(size)
    start += maps.address[file]
    start -= low
    if not size & (size - 1) and not np.bitwise_or.reduce(start) & (size - 1):
        # Elements that all start at multiples of their size form one plain array, from which
        # NumPy takes several times faster.
        first, plain = maps.records(size, size)
        if first == low:  # else another thread has just mapped a file below all others
            return plain.take(start >> size.bit_length() - 1)
    return records[start]


def gather_one(column: Column, rows: Ints, target: Destination, maps: Maps) -> None:
    """Copy rows of one size from the only file there is."""

    def copy() -> None:
        records = records_of(column, maps)
        take(records, rows, target.flat.view(records.dtype))

    maps.read(int(column.file[0]), copy)


def take(records: NDArray[np.void], rows: Ints, out: NDArray[np.void]) -> None:
    """Copy ``records[rows]``, which are in range, to ``out``."""
    if consecutive(rows):
        first = int(rows[0])
        out[...] = records[first : first + len(rows)]
    elif not records.flags.c_contiguous:
        out[...] = records[rows]
    else:
        # In range, so "clip" clips nothing; "raise" would copy through a second buffer.
        records.take(rows, out=out, mode="clip")


def picker(records: NDArray[np.void]) -> Callable[[Ints], NDArray[np.void]]:
    """Return what makes new records, ``records[rows]``, of rows that are in range."""
    # Of records that overlap or lie apart, ``take`` would copy them all first.
    return records.take if records.flags.c_contiguous else records.__getitem__


def records_of(column: Column, maps: Maps) -> NDArray[np.void]:
    """View the samples of a plain column's only part as opaque elements. It is entered."""
    first, count = (
        int(column.first[0]),
        int(column.table.dims[column.table.shape[column.arrays[0]], 1]),
    )
    data = maps.bytes(int(column.file[0]))
    kind = np.dtype((np.void, column.size))
    if column.pitch == column.size:
        return data[first : first + count * column.size].view(kind)
    return np.ndarray((count,), kind, data, first, (column.pitch,))


def consecutive(rows: Ints) -> bool:
    """Are the rows a slice? Then it is one copy."""
    count = len(rows)
    return bool(rows[-1] - rows[0] == count - 1 and (count < 3 or (np.diff(rows) == 1).all()))


def read(column: Column, place: Place, target: Destination) -> None:
    """Copy rows of one size from files that are not mapped."""
    size = column.size
    file = column.file[place.part]
    start = column.first[place.part] + place.row * column.pitch
    order = np.lexsort((start, file))
    file, start = file[order], start[order]
    new = np.ones(len(order), bool)
    new[1:] = (file[1:] != file[:-1]) | (start[1:] != start[:-1])
    for stretch in by_file(file):
        number = int(file[stretch.start])
        path, expected = column.table.path(number), column.table.expected(number)
        with reading(), File(path, expected) as opened:
            own, at = start[stretch], order[stretch]
            if _follow(own, size) and _follow(at, 1):
                first, end = int(at[0]) * size, (int(at[-1]) + 1) * size
                opened.read_into(int(own[0]), [target.flat.data[first:end]])
            else:
                _read_rows(opened, own, new[stretch], at, target, size)


def by_file(file: Ints) -> list[slice]:
    """Split into slices of equal file numbers."""
    return [slice(a, b) for a, b in stretches(len(file), file[1:] != file[:-1])]


def _read_rows(
    file: File, start: Ints, new: NDArray[np.bool_], at: Ints, target: Destination, size: int
) -> None:
    """Read rows of one file, sorted by place: neighbours in one call, duplicates copied."""
    most = max(_MOST_TOGETHER // max(size, 1), 1)
    buffers: list[memoryview] = []
    begin = source = -1
    for where, fresh, i in zip(start.tolist(), new.tolist(), at.tolist(), strict=True):
        if not fresh:
            continue
        if buffers and (where != begin + len(buffers) * size or len(buffers) >= min(most, 256)):
            file.read_into(begin, buffers)
            buffers = []
        if not buffers:
            begin = where
        buffers.append(target.memory(i, size))
    file.read_into(begin, buffers)
    if new.all():
        return
    for fresh, i in zip(new.tolist(), at.tolist(), strict=True):
        if fresh:
            source = i
        else:
            target.copy(source, i)


def _follow(numbers: Ints, step: int) -> bool:
    """Is each number the one before it plus ``step``?"""
    return bool((np.diff(numbers) == step).all())


def from_parts(
    column: Column, place: Place, target: Destination, maps: Maps | None, decoded: Decoded
) -> None:
    """Copy samples of parts that are coded, strided or of several shapes, part by part."""
    if column.computed is not None:
        target.array[...] = column.computed(place)
        return
    if are_inline(column):  # numbers in a list, each a part of its own
        _assign(target, np.arange(len(place.part)), inline_all(column, place.part))
        return
    if len(column.arrays) == 1:
        _from_part(column, place, np.arange(len(place.part)), target, maps, decoded)
        return
    order = np.argsort(place.part, kind="stable")
    for stretch in by_file(place.part[order]):
        _from_part(column, place, order[stretch], target, maps, decoded)


def _from_part(
    column: Column,
    place: Place,
    at: Ints,
    target: Destination,
    maps: Maps | None,
    decoded: Decoded,
) -> None:
    """Copy the samples ``at`` of a batch, which are all of one part."""
    part = int(place.part[at[0]])
    if is_inline(column, part):
        _assign(target, at, inline_all(column, place.part[at]))
    elif not column.nbytes[part]:
        return
    elif column.coding[part] == RAW and maps is not None:
        _from_map(column, part, place.row[at], target, at, maps)
    elif column.coding[part] == RAW and reads_little(column, part, place.row[at]):
        _from_boxes(column, part, place.row[at], target, at)
    else:
        _from_stream(column, part, place.row[at], target, at, decoded)


def _from_map(
    column: Column, part: int, rows: Ints, target: Destination, at: Ints, maps: Maps
) -> None:
    """Copy samples of one mapped part."""
    file = int(column.file[part])

    def copy() -> None:
        samples = view(column, part, maps.bytes(file), int(column.first[part]))
        _assign(target, at, samples, rows)

    maps.read(file, copy)


def reads_little(column: Column, part: int, rows: Ints) -> bool:
    """Does reading samples of a part on their own take less than reading all of it?"""
    if column.lead > 1:
        return True
    boxes = Boxes(column, part, rows[:1])
    each = len(boxes.offsets) * (boxes.span + _REQUEST)
    return not column.whole[part] and len(rows) * each < stream_size(column, part)


def _from_boxes(column: Column, part: int, rows: Ints, target: Destination, at: Ints) -> None:
    """Read samples of a part that is not mapped: their own bytes, and few between them."""
    table, boxes = column.table, Boxes(column, part, rows)
    number = int(column.file[part])
    dtype = stored_dtype(table, int(column.arrays[part]))
    data = np.empty((len(boxes.offsets), boxes.span), np.uint8)
    with reading(), File(table.path(number), table.expected(number)) as file:
        for i, start in zip(at.tolist(), boxes.start.tolist(), strict=True):
            for offset, own in zip(boxes.offsets.tolist(), data, strict=True):
                file.read_into(start + offset, [own.data])
            _put_crop(target, i, boxes.view(data.reshape(-1), dtype))
        file.recheck()


def _assign(
    target: Destination, at: Ints, samples: NDArray[np.generic], rows: Ints | None = None
) -> None:
    lead = target.column.lead
    if lead > 1 and rows is not None:
        _assign_crops(target, at, samples, np.unravel_index(rows, samples.shape[:lead]))
        return
    if not target.column.field.ragged:
        _assign_even(target, at, samples, rows)
        return
    chosen: Sequence[int] = range(len(at)) if rows is None else rows.tolist()
    for i, row in zip(at.tolist(), chosen, strict=True):
        target.ragged[i][...] = samples[row]


def _assign_crops(
    target: Destination, at: Ints, samples: NDArray[np.generic], corners: Sequence[Ints]
) -> None:
    """Copy crops that start at ``corners``; smaller ones are filled up."""
    column = target.column
    if not column.field.ragged and column.pad is None and column.size <= _SMALL_CROP:
        target.array[at] = samples[tuple(corners)]
        return
    for i, *corner in zip(at.tolist(), *(one.tolist() for one in corners), strict=True):
        _put_crop(target, i, samples[tuple(corner)])


def _put_crop(target: Destination, at: int, found: NDArray[np.generic]) -> None:
    out = target.sample(at)
    if found.shape != out.shape:
        out[...] = target.column.pad
        out = out[tuple(map(slice, found.shape))]
    out[...] = found


def _assign_even(
    target: Destination, at: Ints, samples: NDArray[np.generic], rows: Ints | None
) -> None:
    out = target.array
    if rows is None:
        out[at] = samples
        return
    # As bytes: NumPy copies arrays of several axes a few elements at a time.
    records = _as_records(samples) if samples.ndim > 1 and samples.dtype == out.dtype else None
    if records is None:
        out[at] = samples[rows]
    elif records.dtype.itemsize <= LARGE_ROW:
        target.flat.view(records.dtype)[at] = records[rows]
    else:
        into = target.flat.reshape(-1, records.dtype.itemsize)
        for i, row in zip(at.tolist(), rows.tolist(), strict=True):
            into[i] = samples[row].reshape(-1).view(np.uint8)


def _as_records(samples: NDArray[np.generic]) -> NDArray[np.void] | None:
    """View samples, each contiguous, as opaque elements; ``None`` where they are not contiguous."""
    found: NDArray[Any] = samples
    for length, step in zip(samples.shape[:0:-1], samples.strides[:0:-1], strict=True):
        size = found.dtype.itemsize
        if length == 1:
            found = found[..., 0]
        elif step != size:
            return None
        else:
            found = found.view(np.dtype((np.void, length * size)))[..., 0]
    return found.view(np.dtype((np.void, found.dtype.itemsize)))


def _from_stream(
    column: Column, part: int, rows: Ints, target: Destination, at: Ints, decoded: Decoded
) -> None:
    """Copy samples of a part that must be decoded, or is not mapped."""
    skip = int(column.table.skip[column.arrays[part]])
    large = decoded.large
    if (
        large is None
        or largest_stream(column) <= large.share
        or stream_size(column, part) <= large.share
    ):
        _assign(target, at, view(column, part, stream_of(column, part, decoded), skip), rows)
        return
    for some, stream in large.rows(column, part, rows):
        _assign(target, at[some], view(column, part, stream, skip), rows[some])


def stream_of(column: Column, part: int, decoded: Decoded) -> Bytes:
    """Return a part's decoded stream, from the cache or newly decoded."""
    key = key_of(column, part)
    found = decoded.cached(key)
    if found is not None:
        return found
    table, number = column.table, key[1]

    def decode_now() -> Bytes:
        with inflating():
            found = decoded.elsewhere(column, part)
            if found is None:
                with File(table.path(number), table.expected(number)) as file:
                    found = decode(file, column, part)
        spent.streams += 1
        return found

    return decoded.stream(key, stream_size(column, part), decode_now)
