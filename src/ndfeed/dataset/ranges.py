"""Fills ragged samples that lie end to end: out of mapped arrays, and out of decoded streams.

``offsets`` finds where they are. A stream is decoded when one of its samples is first read, and is
kept like those of other compressed rows.
"""

from collections.abc import Iterable

import numpy as np

from ndfeed.dataset import gather
from ndfeed.dataset.arguments import computed_once
from ndfeed.dataset.column import Column, Place
from ndfeed.dataset.decoding import Bytes, Decoded
from ndfeed.dataset.destination import Destination, Laid
from ndfeed.dataset.gather import stream_of
from ndfeed.dataset.large_members import largest_stream, stream_size
from ndfeed.dataset.offsets import (
    Room,
    Spans,
    fill_mapped,
    have_offsets,
    make_room,
    shapes,
    swap,
    where,
)
from ndfeed.files.maps import Maps
from ndfeed.formats.description import RAW
from ndfeed.index.table import Ints

_FEW = 24  # rows of a sample below which taking them singly beats one copy per sample


def fill(
    column: Column, place: Place, target: Destination, maps: Maps | None, decoded: Decoded
) -> None:
    """Copy samples of a column with located parts; the others are read like arrays."""
    located = have_offsets(column, place)
    coded = located & (column.coding[place.part] != RAW)
    kinds: Ints = located.astype(np.int64) + coded
    if (kinds == kinds[0]).all():
        _fill_alike(int(kinds[0]), column, place, target, maps, decoded)
        return
    if not target.given:
        dtype = column.field.dtype
        target.hold([np.empty(shape, dtype) for shape in shapes(column, place, maps)])
    arrays = target.ragged
    for kind in np.unique(kinds).tolist():
        at = np.flatnonzero(kinds == kind)
        some = Place(place.part[at], place.row[at])
        own = Destination(column, some.part, [arrays[i] for i in at.tolist()])
        _fill_alike(kind, column, some, own, maps, decoded)


def _fill_alike(
    kind: int,
    column: Column,
    place: Place,
    target: Destination,
    maps: Maps | None,
    decoded: Decoded,
) -> None:
    """Copy samples that are arrays (0), ranges of arrays (1), or ranges of decoded streams (2)."""
    if kind == 0:
        gather.from_parts(column, place, target, maps, decoded)
    elif kind == 1:
        fill_mapped(column, place, target, maps)
    else:
        found = where(column, place, maps)
        room = make_room(target, found)
        _copy_coded(column, place.part, found, room, decoded)
        if column.any_swapped:
            swap(column, room, found.nbytes, column.swapped[place.part])


@computed_once
def are_alike(column: Column) -> bool:
    """Are the samples of all parts found by offsets, and all of them decoded, or none?"""
    raw = column.coding == RAW
    known = column.offsets is not None and bool((column.offsets >= 0).all())
    return known and bool(raw.all() == raw.any())


def _copy_coded(column: Column, part: Ints, found: Spans, room: Room, decoded: Decoded) -> None:
    """Copy samples, each of its ``part``, whose places in the decoded streams were found."""
    buffers = _buffers(room, found.nbytes)
    for one in np.unique(part).tolist():
        at = np.flatnonzero((part == one) & (found.nbytes > 0))
        if not len(at):
            continue
        start, nbytes = found.start[at], found.nbytes[at]
        stream = None if _is_large(column, one, decoded) else stream_of(column, one, decoded)
        few = int(nbytes.sum()) <= _FEW * len(at) * int(column.nbytes[one])
        if stream is None or few:
            stream = _take_rows(column, one, start, nbytes, decoded)
            start = np.cumsum(nbytes) - nbytes
            if len(at) == len(part) and isinstance(room, Laid) and (room.starts == start).all():
                room.memory[: len(stream)] = stream
                return
        ends = start + nbytes
        for i, first, end in zip(at.tolist(), start.tolist(), ends.tolist(), strict=True):
            buffers[i][:] = stream[first:end].data


def _is_large(column: Column, part: int, decoded: Decoded) -> bool:
    """Is a stream too large to be kept decoded in memory?"""
    large = decoded.large
    if large is None or largest_stream(column) <= large.share:
        return False
    return stream_size(column, part) > large.share


def _buffers(room: Room, nbytes: Ints) -> list[memoryview]:
    if not isinstance(room, Laid):
        return room
    ends = zip(room.starts.tolist(), (room.starts + nbytes).tolist(), strict=True)
    return [room.memory.data[start:end] for start, end in ends]


def _take_rows(column: Column, part: int, start: Ints, nbytes: Ints, decoded: Decoded) -> Bytes:
    """Return the bytes of some stretches of a stream, row by row, one after the other."""
    size, skip = int(column.nbytes[part]), int(column.first[part])
    counts = nbytes // size
    before = np.cumsum(counts) - counts
    rows = np.repeat((start - skip) // size - before, counts) + np.arange(int(counts.sum()))
    kind = np.dtype((np.void, size))
    taken = np.empty(len(rows), kind)
    found: Iterable[tuple[slice | Ints, Bytes]]
    if decoded.large is not None and _is_large(column, part, decoded):
        found = decoded.large.rows(column, part, rows)
    else:
        found = [(slice(None), stream_of(column, part, decoded))]
    for some, stream in found:
        records = np.ndarray(((len(stream) - skip) // size,), kind, stream, skip)
        taken[some] = records[rows[some]]
    return taken.view(np.uint8)
