"""Streams that hold many rows and have to be decoded whole, and the cache that keeps them.

They share the memory limit with batches.
"""

import numpy as np

from ndfeed.dataset.column import Group
from ndfeed.dataset.decoding import Decoded, Elsewhere, Key, key_of, nowhere
from ndfeed.dataset.gather import stream_of
from ndfeed.dataset.large_members import (
    Large,
    Streams,
    first_of_streams,
    largest_stream,
    make_decoded_cache,
    runs_forward,
    stream_size,
)
from ndfeed.errors import ResourceError, shown_size
from ndfeed.files import scratch
from ndfeed.formats.description import INLINE, RAW
from ndfeed.loading.budget import SMALL
from ndfeed.order.permutation import Ints


class Coded:
    """The streams of a group that hold several rows each.

    What is decoded together counts as one part here: sequences of one file share its streams.
    ``parts`` has the first of each in the group.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.streams = Streams.of(group)
        self.columns = self.streams.columns
        new = first_of_streams(group)
        self.parts: Ints = np.flatnonzero(new)
        self._number: Ints = np.cumsum(new) - 1
        # Per part: bytes of its streams, each counted once for all columns it holds.
        self.sizes: Ints = self.streams.sizes[self.parts]
        self.counts: Ints = np.diff(group.starts[[*self.parts.tolist(), -1]])

    def locate(self, samples: Ints) -> Ints:
        """Return the part of each sample."""
        found: Ints = self._number[self.group.locate(samples).part]
        return found

    def decode(self, part: int, decoded: Decoded) -> None:
        """Decode the streams of a part that are not decoded yet, if they can be decoded ahead."""
        large = decoded.large
        part = int(self.parts[part])
        for column in self.columns:
            if column.coding[part] in (RAW, INLINE):
                continue
            if large is not None and stream_size(column, part) > large.share:
                large.prepare(column, part)
            else:
                stream_of(column, part, decoded)

    def keys(self, part: int) -> list[Key]:
        """Return the keys under which the streams of a part are cached."""
        return [key_of(column, int(self.parts[part])) for column in self.columns]


def make_stream_cache(
    coded: list[Coded], window: int, limit: int, *, forward: bool, elsewhere: Elsewhere = nowhere
) -> Decoded:
    """Return the cache that keeps decoded streams within ``limit`` bytes of memory.

    ``window`` is how many bytes of them are needed at a time, and ``forward`` says whether their
    rows are needed in order. Streams are decoded ``elsewhere`` where that can be done. Refuses
    streams that neither memory nor a disk can hold.
    """
    if not coded:
        return Decoded(0, Large(SMALL, SMALL, 2))
    streams = [one.streams for one in coded]
    together = sum(int(one.sizes.max(initial=0)) for one in streams)
    if forward or window <= limit:
        made = make_decoded_cache(streams, limit, elsewhere=elsewhere)
        for one in coded:
            _check_scattered(one, made)
        return made
    large = Large(0, 0, 0, forward=False)
    if large.budget >= window:
        return Decoded(limit, large, elsewhere)
    if together > limit:
        largest = max(coded, key=lambda one: int(one.sizes.max(initial=0)))
        part = int(largest.parts[np.argmax(largest.sizes)])
        raise _make_refusal(largest, part, limit, window)
    return Decoded(limit, None, elsewhere)  # streams are decoded again and again: slow but correct


def _check_scattered(coded: Coded, decoded: Decoded) -> None:
    """Refuse streams that cannot be read in order where no disk has space for them."""
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
                raise _make_refusal(coded, part, decoded.limit, size)


def _make_refusal(coded: Coded, part: int, limit: int, needed: int) -> ResourceError:
    place = scratch.folder()
    room = f"{shown_size(scratch.room_in(place))} of disk space" if place else "no disk space"
    return ResourceError(
        coded.group.table.path(int(coded.columns[0].file[part])),
        f"its rows are compressed together, and reading them in this order needs "
        f"{shown_size(needed)} of memory or disk, available: {shown_size(limit)} and {room}",
        # A quarter of the memory may go to batches.
        remedy=f"raise memory= by {shown_size(needed * 4 // 3 - limit)}, set TMPDIR to a folder "
        "with more room, or use ndfeed pack",
    )
