"""In which order a dataset is read, and which streams are decoded and kept for that.

Streams that hold many rows must be decoded whole, so they share the memory limit with batches.
"""

from collections.abc import Sequence

import numpy as np

from ndfeed.dataset.column import Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.decoding import Decoded, Key, key_of
from ndfeed.dataset.gather import stream_of
from ndfeed.dataset.large_members import (
    Large,
    Streams,
    largest_stream,
    make_decoded_cache,
    runs_forward,
    stream_size,
)
from ndfeed.dataset.row_selection import Rows, select_rows
from ndfeed.errors import ResourceError, shown_size
from ndfeed.files import scratch
from ndfeed.formats.description import INLINE, RAW
from ndfeed.loading.budget import SMALL
from ndfeed.loading.options import Shuffle
from ndfeed.order.epoch import Share
from ndfeed.order.orders import ORDERS, Epoch, Exact, Order, Sequential, Windows, is_order
from ndfeed.order.permutation import Ints


class Coded:
    """The streams of a group that hold several rows each."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.streams = Streams.of(group)
        self.columns = self.streams.columns
        # Per part: bytes of its streams, each counted once for all columns it holds.
        self.sizes = self.streams.sizes

    def decode(self, part: int, decoded: Decoded) -> None:
        """Decode the streams of a part that are not decoded yet, if they can be decoded ahead."""
        large = decoded.large
        for column in self.columns:
            if column.coding[part] in (RAW, INLINE):
                continue
            if large is not None and stream_size(column, part) > large.share:
                large.prepare(column, part)
            else:
                stream_of(column, part, decoded)

    def keys(self, part: int) -> list[Key]:
        """Return the keys under which the streams of a part are cached."""
        return [key_of(column, part) for column in self.columns]


def in_order(rows: Rows) -> bool:
    """Are the rows of a view in the same order as in the files?"""
    if rows is None:
        return True
    if isinstance(rows, range):
        return rows.step > 0
    return bool((rows[1:] >= rows[:-1]).all())


def make_stream_cache(coded: list[Coded], window: int, limit: int, *, forward: bool) -> Decoded:
    """Return the cache that keeps decoded streams within ``limit`` bytes of memory.

    ``window`` is how many bytes of them are needed at a time, and ``forward`` says whether their
    rows are needed in order. Refuses streams that neither memory nor a disk can hold.
    """
    if not coded:
        return Decoded(0, Large(SMALL, SMALL, 2))
    streams = [one.streams for one in coded]
    together = sum(int(one.sizes.max(initial=0)) for one in streams)
    if forward or window <= limit:
        made = make_decoded_cache(streams, limit)
        for one in coded:
            _check_scattered(one, made)
        return made
    large = Large(0, 0, 0, forward=False)
    if large.budget >= window:
        return Decoded(limit, large)
    if together > limit:
        largest = max(coded, key=lambda one: int(one.sizes.max(initial=0)))
        raise _make_refusal(largest, int(np.argmax(largest.sizes)), limit, window)
    return Decoded(limit)  # streams are decoded again and again: slow but correct


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


# Decoded bytes of all files of a window: an eighth of all, within these bounds. It depends on the
# data alone, since an order is fixed by data and seed, never by the machine; and it fits if a
# loader's memory limit is a quarter of the size of the data.
_OF_ALL = 8
_LEAST, _MOST = 4 << 20, 128 << 20
_LEAST_FILES = 2


class Places:
    """Maps the rows of an order to those of the dataset, where they are not the same.

    A window over files needs the rows of each file side by side; a view of a dataset may have
    them in any order.
    """

    def __init__(self, sorted_rows: Ints | None) -> None:
        self._rows = sorted_rows

    def __call__(self, rows: Ints) -> Ints:
        """Return rows of the dataset."""
        return rows if self._rows is None else self._rows[rows]


class Plan:
    """The order, and what is the same in every process that follows it.

    ``counts`` are the rows of each file for an order that goes by files, ``places`` maps the
    order's rows to the dataset's, ``coded`` are the streams that have to be decoded whole, and
    ``window`` is how many bytes of them the order needs at a time.
    """

    def __init__(
        self,
        order: Order,
        counts: Ints | None,
        places: Places,
        coded: list[Coded],
        *,
        forward: bool = False,
        lanes: Sequence[int] = (),
    ) -> None:
        self.order = order
        self.counts = counts
        self.places = places
        self.coded = coded
        self.shuffled = order.shuffled
        self.lanes = lanes  # which of the lanes of an order that divides files, if it does
        self.window = sum(_window_bytes(one, order, max(len(lanes), 1)) for one in coded)
        self._forward = forward  # are rows needed in the order of the files?

    def spans(self, share: Share, number: int, start: int) -> list[tuple[int, int, int]]:
        """Return the positions of a batch: start, end and step, for each rank of a share."""
        if self.lanes:
            return share.stripes(number, start)
        return [(*span, 1) for span in share.spans(number, start)]

    def begin(self, n: int, seed: int, epoch: int) -> tuple[Epoch, Sequence[Epoch]]:
        """Return an epoch, and one for each window over files that says which rows arrive."""
        found = self.order.begin(n, seed, epoch, self.counts)
        if not self.lanes:
            return found, (found,)
        return found, self.order.begin_lanes(n, seed, epoch, self.counts, self.lanes)

    def make_cache(self, limit: int) -> Decoded:
        """Return the cache that keeps decoded streams within ``limit`` bytes of memory.

        Refuses data whose streams neither memory nor a disk can hold.
        """
        return make_stream_cache(self.coded, self.window, limit, forward=self._forward)


def _window_bytes(coded: Coded, order: Order, windows: int) -> int:
    """Return the bytes of streams that an order needs at a time, of the largest there are."""
    sizes = np.sort(coded.sizes)[::-1]
    rows = int(coded.group.starts[-1]) // max(len(sizes), 1)
    return int(sizes[: order.parts_in_use(len(sizes), rows) * windows].sum())


def make_plan(ds: Dataset, shuffle: Shuffle, share: Share) -> Plan:
    """Choose the order that ``shuffle`` means for a dataset, of which a share is read."""
    coded = [one for one in map(Coded, ds.groups) if one.columns]
    order = _choose_order(shuffle, coded)
    if not order.by_file:
        forward = not order.shuffled and in_order(ds.rows)
        return Plan(order, None, Places(None), coded, forward=forward)
    counts, places = _count_by_file(ds, coded)
    return Plan(order, counts, places, coded, lanes=order.lanes(share.ranks, share.world))


def _choose_order(shuffle: Shuffle, coded: list[Coded]) -> Order:
    if is_order(shuffle):
        return shuffle
    if not isinstance(shuffle, bool | np.bool_):
        # False means Sequential().
        *most, last = (f"{order.__name__}()" for order in ORDERS if order is not Sequential)
        raise TypeError(
            f"shuffle must be True, False, {', '.join(most)} or {last}, got {shuffle!r}"
        )
    if not shuffle:
        return Sequential()
    if not coded:
        return Exact()
    largest = _find_largest(coded)
    used = largest.sizes[largest.sizes > 0]
    window = min(max(int(used.sum()) // _OF_ALL, _LEAST), _MOST)
    fitting = window // max(int(used.mean()), 1)
    return Windows(files=max(min(fitting, len(largest.sizes)), _LEAST_FILES))


def _find_largest(coded: list[Coded]) -> Coded:
    """Return the streams whose files a window goes by: those with most to decode."""
    return max(coded, key=lambda one: int(one.sizes.sum()))


def _count_by_file(ds: Dataset, coded: list[Coded]) -> tuple[Ints, Places]:
    """Return the rows of each file, and where a view has them."""
    group = _find_largest(coded).group if coded else ds.groups[0]
    if ds.rows is None:
        return np.diff(group.starts), Places(None)
    part = group.locate(select_rows(ds.rows, np.arange(len(ds)))).part
    counts = np.bincount(part, minlength=len(group.starts) - 1).astype(np.int64)
    if (part[1:] >= part[:-1]).all():
        return counts, Places(None)
    return counts, Places(np.argsort(part, kind="stable"))
