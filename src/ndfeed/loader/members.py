"""Streams that hold many rows and must be decoded whole, and the memory they are given."""

import numpy as np

from ndfeed.dataset.column import Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.large import (
    Large,
    Streams,
    decoded_for,
    largest_stream,
    runs_forward,
    stream_size,
)
from ndfeed.dataset.members import Decoded, Key, key_of
from ndfeed.dataset.rows import stream_of
from ndfeed.dataset.rowset import Rows, chosen
from ndfeed.dataset.show import size as shown_size
from ndfeed.errors import ResourceError
from ndfeed.files import scratch
from ndfeed.formats.array import INLINE, RAW
from ndfeed.order.permutation import Ints

_UNDER_WAY = 8  # batches that decoded streams leave room for, or more if they are small
_SMALL = 32 << 20  # bytes of small batches that may be under way, if memory is plenty


class Coded:
    """The streams of a group that hold several rows each."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.streams = Streams.of(group)
        self.columns = self.streams.columns
        # Per part: bytes of its streams, each counted once for all columns it holds.
        self.sizes = self.streams.sizes

    def decode(self, part: int, decoded: Decoded) -> None:
        """Decode whatever of a part is not decoded yet, if it is to be decoded ahead."""
        large = decoded.large
        for column in self.columns:
            if column.coding[part] in (RAW, INLINE):
                continue
            if large is not None and stream_size(column, part) > large.share:
                large.prepare(column, part)
            else:
                stream_of(column, part, decoded)

    def keys(self, part: int) -> list[Key]:
        """What the streams of a part are kept under."""
        return [key_of(column, part) for column in self.columns]


def in_order(rows: Rows) -> bool:
    """Do the rows of a view lie in the files in the order in which it has them?"""
    if rows is None:
        return True
    if isinstance(rows, range):
        return rows.step > 0
    return bool((rows[1:] >= rows[:-1]).all())


def share_out(coded: list[Coded], memory: int, batch_bytes: int) -> tuple[int, int]:
    """The bytes that batches under way may take, and those for decoded streams.

    Streams get what the batches leave; without such streams, batches get all of it.
    """
    if not coded:
        return memory, 0
    enough = max(_UNDER_WAY * batch_bytes, min(_SMALL, memory // 16))
    buffers = min(enough, max(memory // 4, batch_bytes))
    return buffers, max(memory - buffers, 0)


def streams_within(coded: list[Coded], window: int, limit: int, *, forward: bool) -> Decoded:
    """What keeps decoded streams in ``limit`` bytes of memory.

    ``window`` is how many bytes of them are needed at a time, and ``forward`` says whether their
    rows are needed in order. Refuses streams that neither memory nor a disk can hold.
    """
    if not coded:
        return Decoded(0, Large(_SMALL, _SMALL, 2))
    streams = [one.streams for one in coded]
    together = sum(int(one.sizes.max(initial=0)) for one in streams)
    if forward or window <= limit:
        made = decoded_for(streams, limit)
        for one in coded:
            _check_scattered(one, made)
        return made
    large = Large(0, 0, 0, forward=False)
    if large.budget >= window:
        return Decoded(limit, large)
    if together > limit:
        largest = max(coded, key=lambda one: int(one.sizes.max(initial=0)))
        raise _refused(largest, int(np.argmax(largest.sizes)), limit, window)
    return Decoded(limit)  # streams are decoded again and again: slow, and right


def _check_scattered(coded: Coded, decoded: Decoded) -> None:
    """Refuse streams that cannot be read in order where no disk has room for them."""
    share = decoded.limit if decoded.large is None else decoded.large.share
    for column in coded.columns:
        if largest_stream(column) <= share:
            continue
        table, arrays = column.table, column.arrays
        big = np.flatnonzero(np.maximum(table.decoded[arrays], table.length[arrays]) > share)
        kinds = np.stack([table.shape[arrays], table.strides[arrays], column.coding])[:, big]
        for part in big[np.unique(kinds, axis=1, return_index=True)[1]].tolist():
            size = stream_size(column, part)
            if not runs_forward(column, part) and scratch.room_in(scratch.folder()) < size:
                raise _refused(coded, part, decoded.limit, size)


def _refused(coded: Coded, part: int, limit: int, needed: int) -> ResourceError:
    place = scratch.folder()
    room = f"{shown_size(scratch.room_in(place))} on a disk" if place else "no room on a disk"
    return ResourceError(
        coded.group.table.path(int(coded.columns[0].file[part])),
        f"its rows are compressed together, and to read them in this order takes "
        f"{shown_size(needed)} in memory or on a disk: there are {shown_size(limit)} and {room}; "
        # A quarter of the memory may go to batches.
        f"raise memory by {shown_size(needed * 4 // 3 - limit)}, set TMPDIR to a folder with more "
        "room, or use ndfeed pack",
    )


def check_samples(ds: Dataset, memory: int) -> None:
    """Refuse a sample that is larger than the memory for all batches together."""
    for group in ds.groups:
        if all(column.even or column.offsets is not None for column in group.columns):
            continue
        every = [c.nbytes for c in group.columns if c.offsets is None]
        sizes: Ints = np.sum(every, axis=0)
        if ds.rows is not None:
            used = np.unique(group.locate(chosen(ds.rows, np.arange(len(ds)))).part)
            sizes = np.where(np.isin(np.arange(len(sizes)), used), sizes, 0)
        at = int(np.argmax(sizes))
        if sizes[at] > memory:
            raise ResourceError(
                group.table.path(int(group.columns[0].file[at])),
                f"one sample takes {shown_size(int(sizes[at]))}, memory is {shown_size(memory)}; "
                "raise memory, or leave the file out",
            )
