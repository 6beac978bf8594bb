"""Gathers rows of arrays that hold many: from mapped files, by position, or from members.

Rows of one size from raw files are copied as opaque bytes, in one NumPy call for any number
of files:

- one file: ``np.take`` of records of a row's size, straight into the batch;
- many files, small rows: the maps' addresses make one record array over the whole address
  span, with a stride of one byte, indexed with each row's address;
- many files, large rows: one copy per row, which releases the GIL.

Without maps, rows are sorted by place and neighbours read together.
"""

from collections.abc import Sequence

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
    view,
)
from ndfeed.dataset.destination import Destination
from ndfeed.dataset.large_members import largest_stream, stream_size
from ndfeed.dataset.read_timing import inflating, reading, spent
from ndfeed.dataset.row_selection import stretches
from ndfeed.files.file import File
from ndfeed.files.maps import Maps
from ndfeed.formats.description import RAW
from ndfeed.index.table import Ints

# Above this one copy per row beats one call that holds the GIL.
LARGE_ROW = 16 << 10
_MOST_TOGETHER = 64 << 20


def gather(column: Column, place: Place, target: Destination, maps: Maps) -> None:
    """Copy rows of one size from several mapped files."""
    size = column.size
    file = column.file[place.part]
    start = column.first[place.part] + place.row * size

    def copy() -> None:
        if size <= LARGE_ROW:
            target.adopt(by_address(maps, file, start, size))
            return
        out = target.flat.reshape(-1, size)
        for i, (f, at) in enumerate(zip(file.tolist(), start.tolist(), strict=True)):
            out[i] = maps.bytes(f)[at : at + size]

    maps.read(file, copy)


def by_address(maps: Maps, file: Ints, start: Ints, size: int) -> NDArray[np.void]:
    """Return new records of ``size`` bytes, each from its place in a file that was entered."""
    low, records = maps.records(size)
    start += maps.address[file]
    start -= low
    if not size & (size - 1) and not np.bitwise_or.reduce(start) & (size - 1):
        # Elements that all start at multiples of their size form one plain array, from which
        # NumPy takes several times faster.
        return maps.records(size, size)[1].take(start >> size.bit_length() - 1)
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
    else:
        # In range, so "clip" clips nothing; "raise" would copy through a second buffer.
        records.take(rows, out=out, mode="clip")


def records_of(column: Column, maps: Maps) -> NDArray[np.void]:
    """View the samples of a plain column's only part as opaque elements. It is entered."""
    first, count = (
        int(column.first[0]),
        int(column.table.dims[column.table.shape[column.arrays[0]], 1]),
    )
    data = maps.bytes(int(column.file[0]))[first : first + count * column.size]
    return data.view(np.dtype((np.void, column.size)))


def consecutive(rows: Ints) -> bool:
    """Are the rows a slice? Then it is one copy."""
    count = len(rows)
    return bool(rows[-1] - rows[0] == count - 1 and (count < 3 or (np.diff(rows) == 1).all()))


def read(column: Column, place: Place, target: Destination) -> None:
    """Copy rows of one size from files that are not mapped."""
    size = column.size
    file = column.file[place.part]
    start = column.first[place.part] + place.row * size
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


def _assign(
    target: Destination, at: Ints, samples: NDArray[np.generic], rows: Ints | None = None
) -> None:
    if not target.column.field.ragged:
        _assign_even(target, at, samples, rows)
        return
    chosen: Sequence[int] = range(len(at)) if rows is None else rows.tolist()
    for i, row in zip(at.tolist(), chosen, strict=True):
        target.ragged[i][...] = samples[row]


def _assign_even(
    target: Destination, at: Ints, samples: NDArray[np.generic], rows: Ints | None
) -> None:
    out = target.array
    if rows is None:
        out[at] = samples
    elif samples.ndim > 1 and samples.dtype == out.dtype and samples.flags.c_contiguous:
        # As opaque bytes: NumPy copies arrays of several axes a few elements at a time.
        record = np.dtype((np.void, samples[0].nbytes))
        stored = samples.reshape(-1).view(np.uint8).view(record)
        target.flat.view(record)[at] = stored.take(rows)
    else:
        out[at] = samples[rows]


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
        path, expected = table.path(number), table.expected(number)
        with inflating(), File(path, expected) as file:
            found = decode(file, column, part)
        spent.streams += 1
        return found

    return decoded.stream(key, stream_size(column, part), decode_now)
