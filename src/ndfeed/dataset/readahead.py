"""Prefetches samples from disk, when they are not in memory.

A disk answers many requests at once far sooner than one after the other, and a page fault is one
request. A few of the samples are checked, which takes microseconds; only if one is not in memory
are all of them requested: sorted by place, neighbours together.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from ndfeed.dataset import row_ranges
from ndfeed.dataset.column import Column, Group, Place, as_stored, is_converted
from ndfeed.dataset.gather import reads_little
from ndfeed.dataset.overlapping import Boxes
from ndfeed.dataset.reader import reader_of
from ndfeed.errors import Error
from ndfeed.files import platform_calls
from ndfeed.files.file import File
from ndfeed.files.maps import Maps, Unmappable
from ndfeed.formats.description import INLINE, RAW
from ndfeed.index.table import Ints, Table

T = TypeVar("T")

_LOOKS = 3  # samples that are looked at
_MOST_LOOKS = 64  # ranges of them: a crop, or a row in Fortran order, may have thousands
_NONE = np.zeros(0, np.int64)
_PAGE = 4096
_NEAR = 4 * _PAGE  # reading what lies between costs less than a second request

Span = tuple[Ints, Ints, Ints]  # per range: its file, its start, its end


def ask(group: Group, samples: Ints) -> int:
    """Prefetch ``samples`` if they seem not to be in memory; return the bytes requested."""
    if group.table.sealed:
        return 0
    some = [column for column in map(as_stored, group.columns) if _is_partly_plain(column)]
    if some:
        part = group.locate(samples).part
        samples = samples[np.any([column.coding[part] == RAW for column in some], axis=0)]
    if not len(samples):
        return 0
    if not _prefetch_or_check(group, samples[spread(len(samples))], hint=False):
        return 0
    return _prefetch_or_check(group, samples, hint=True)


def spread(count: int, most: int = _LOOKS) -> Ints:
    """Return at most ``most`` of the places [0, count), from the first to the last."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


def resident(group: Group, samples: Ints) -> bool:
    """Are all of ``samples`` in memory?"""
    return bool(group.table.sealed) or not _prefetch_or_check(group, samples, hint=False)


def ask_parts(group: Group, parts: Ints) -> int:
    """Prefetch the streams of parts that are decoded whole, if they seem not to be in memory."""
    if group.table.sealed or not _ask_files(group, parts[spread(len(parts))], hint=False):
        return 0
    return _ask_files(group, parts, hint=True)


def stretches(group: Group, samples: Ints) -> Iterator[tuple[bytes, Sequence[tuple[int, int]]]]:
    """Yield the bytes of files that reading ``samples`` takes: a path and its sorted ranges."""
    if not all(map(_is_read_alone, group.columns)):
        parts = np.unique(group.locate(samples).part)  # decoded whole
        found = [(group.columns[0], _files(group, parts))]
    else:
        found = list(_spans(group, samples))
    for column, (file, start, end) in found:
        if len(file):
            order = np.lexsort((start, file))
            for number, merged in _page_ranges(file[order], start[order], end[order]):
                yield column.table.path(number), merged


def _is_read_alone(column: Column) -> bool:
    """Is no more of an array read than the samples that are wanted?"""
    crops = column.lead > 1 and bool((column.coding == RAW).all())
    return column.plain or column.offsets is not None or crops


def _prefetch_or_check(group: Group, samples: Ints, *, hint: bool) -> int:
    """Prefetch samples, or only check whether any is not in memory."""
    return sum(_ask(group, column, spans, hint=hint) for column, spans in _spans(group, samples))


def _spans(group: Group, samples: Ints) -> Iterator[tuple[Column, Span]]:
    """Locate samples that can be read alone."""
    place = group.locate(samples)
    if group.by_file:
        yield group.columns[0], _files(group, place.part)
        return
    for column in map(as_stored, group.columns):
        if column.offsets is not None:
            yield column, _locate(group, column, column.offsets, place)
        elif column.plain and column.size:
            yield column, _rows(column, place.part, place.row)
        elif _is_partly_plain(column):  # as where compressed files and others are mixed
            raw = column.coding[place.part] == RAW
            yield column, _rows(column, place.part[raw], place.row[raw])
        elif column.size and (column.lead > 1 or not column.field.ragged):
            yield column, _boxes(column, place)


def _locate(group: Group, column: Column, offsets: Ints, place: Place) -> Span:
    """Locate samples by their offsets, which are read for it: they are few bytes."""
    kept = np.flatnonzero((offsets[place.part] >= 0) & (column.coding[place.part] == RAW))
    if not len(kept):
        return _NONE, _NONE, _NONE
    some = Place(place.part[kept], place.row[kept])
    with contextlib.suppress(Error, OSError):  # the reader will raise the same error
        found = reader_of(group).spans(group, column, some)
        return found.file, found.start, found.start + found.nbytes
    return _NONE, _NONE, _NONE


def _rows(column: Column, part: Ints, row: Ints) -> Span:
    start = column.first[part] + row * column.pitch
    return column.file[part], start, start + column.size


def _is_partly_plain(column: Column) -> bool:
    """Are some of the parts, but not all, like those of a plain column?"""
    if column.plain or column.lead != 1 or column.field.ragged or is_converted(column):
        return False
    return bool(column.size and column.pitch and (column.coding == RAW).any())


def _boxes(column: Column, place: Place) -> Span:
    """Locate crops, and windows with gaps between their rows: several ranges for each."""
    found: list[Span] = [(_NONE, _NONE, _NONE)]
    raw = column.coding == RAW
    for part in np.unique(place.part).tolist() if raw.any() else ():
        rows = place.row[place.part == part]
        if raw[part] and reads_little(column, part, rows):
            boxes = Boxes(column, part, rows)
            start = (boxes.start[:, None] + boxes.offsets).reshape(-1)
            file = np.full(len(start), column.file[part])
            found.append((file, start, start + boxes.span))
    file, start, end = (np.concatenate(one) for one in zip(*found, strict=True))
    return file, start, end


def _ask_files(group: Group, parts: Ints, *, hint: bool) -> int:
    """Prefetch all that is read of some files, or only check whether it is in memory."""
    return _ask(group, group.columns[0], _files(group, parts), hint=hint)


def _files(group: Group, parts: Ints) -> Span:
    """Locate what is read of some files: from the first stream to the end of the last."""
    table = group.table
    starts = np.full(len(parts), np.iinfo(np.int64).max)
    ends = np.zeros(len(parts), np.int64)
    for column in group.columns:
        arrays = column.arrays[parts]
        stored = column.coding[parts] != INLINE
        first, last = table.offset[arrays], table.offset[arrays] + table.length[arrays]
        starts = np.where(stored, np.minimum(starts, first), starts)
        ends = np.where(stored, np.maximum(ends, last), ends)
    known = starts < ends
    return group.columns[0].file[parts][known], starts[known], ends[known]


def _ask(group: Group, column: Column, spans: Span, *, hint: bool) -> int:
    file, start, end = spans
    if not len(file):
        return 0
    files = _Open(column.table, reader_of(group).maps)
    with contextlib.suppress(Error, OSError):  # the reader will raise the same error
        if not hint:
            looked_at = spread(len(file), _MOST_LOOKS)
            some = zip(*(one[looked_at].tolist() for one in spans), strict=True)
            return int(any(_cold(files, *span) for span in some))
        order = np.lexsort((start, file))
        asked = 0
        for number, stretches in _page_ranges(file[order], start[order], end[order]):
            files.use(number, partial(platform_calls.will_need, stretches=stretches))
            asked += sum(b - a for a, b in stretches)
        return asked
    return 0


def _cold(files: "_Open", number: int, start: int, end: int) -> bool:
    """Is the first or the last of these bytes not in memory?"""

    def cold(fd: int) -> bool:
        there = platform_calls.resident(fd, start)
        return not there or (end - start > _PAGE and not platform_calls.resident(fd, end - 1))

    return files.use(number, cold)


def _page_ranges(
    file: Ints, start: Ints, end: Ints
) -> Iterator[tuple[int, Sequence[tuple[int, int]]]]:
    """Per file, yield sorted ranges of whole pages, merging those that are close."""
    start, end = start // _PAGE * _PAGE, -(-end // _PAGE) * _PAGE
    new = np.ones(len(file), bool)
    new[1:] = (file[1:] != file[:-1]) | (start[1:] > end[:-1] + _NEAR)
    first = np.flatnonzero(new)
    begins, ends = start[first], np.maximum.reduceat(end, first)
    owners = file[first]
    for a, b in row_ranges.stretches(len(owners), owners[1:] != owners[:-1]):
        yield int(owners[a]), list(zip(begins[a:b].tolist(), ends[a:b].tolist(), strict=True))


class _Open:
    """Descriptors of a table's files: those already mapped, or opened temporarily."""

    def __init__(self, table: Table, maps: Maps | None) -> None:
        self._table = table
        self._maps = maps

    def use(self, number: int, use: Callable[[int], T]) -> T:
        """Call ``use`` with a file's descriptor."""
        maps = self._maps
        if maps is not None:
            with contextlib.suppress(Unmappable):  # then it is read by position
                return maps.read(number, lambda: use(maps.fd(number)))
        with File(self._table.path(number)) as file:
            return use(file.fd)
