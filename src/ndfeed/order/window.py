"""A window that slides over files or blocks, also divided among ranks.

Rows are mixed among a few parts at a time, and each part is open once.

Parts (blocks of rows, or files) stand in a permuted order and are numbered in it from 0 to
F - 1; w is the window, at most F. There are F - w + 1 slots, and slot t draws from the parts
t to t + w - 1. So part i lives from slot max(0, i - w + 1) to slot min(i, F - w), one
contiguous stretch of k slots, and then is done.

A part's c rows are permuted by a key of its own and cut into k slices as even as can be, slice
j being ``[j * c // k, (j + 1) * c // k)``; one goes to each slot of its life. The rows of a slot
are permuted by a key of the slot. Every slot but the first brings one new part.

Nothing here is ever as long as the data. Slots are laid out a few at a time, and a row's place
is computed from the layout when it is needed. Every part has rows, and therefore every slot.

Cost on one core: 75 to 95 ns a row for slices of many rows, 110 to 140 for files of a few.

Files divided among ranks: a window for each of several lanes, which take turns.

The files stand in a permuted order, and their rows, end to end, are cut into L lanes whose
lengths differ by one at most. So a file belongs to one lane, but for those in which a cut
falls: at most L - 1 of them. Every lane is walked by a window over its own files.

Position p of the epoch is the row number p // L of lane p % L. A rank takes every position p with p
% W == rank, W being the number of ranks: if W divides L, these are the positions of L / W lanes,
and no other rank needs their files. For any other W the cover is as exact, and files are shared.

None of this depends on the batch size or on W: only L is a part of the order.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ndfeed.order.epoch import Ranges
from ndfeed.order.permutation import Ints, Keys, ListedParts, Parts, keys_from, permuted

_ROWS = 1 << 15  # rows laid out at once, unless a single slot has more
_SLICES = 1 << 16  # slices laid out at once, unless a single slot has more
_LISTED = 1 << 18  # rows up to which each has its slot and slice listed


class Layout(NamedTuple):
    """Consecutive slots from ``slot`` on: which slices of which parts they are made of.

    Slices stand in order of slot and then part. ``ends`` counts rows from the first slot's
    beginning, ``starts`` is where each slot begins among all positions, and the end.
    """

    slot: int
    starts: Ints
    slots: Ints | None  # per row: its slot, counted from ``slot``; None where rows are very many
    slices: Ints | None  # per row: its slice
    part: Ints  # per slice: its part, counted from ``slot``
    offset: Ints  # per slice: its first row in the permuted part, less the rows laid out before
    ends: Ints  # per slice
    sizes: Ints  # per part
    firsts: Ints  # per part
    part_keys: Keys
    slot_keys: Keys


class WindowWalk:
    """The walk of a sliding window over parts."""

    def __init__(self, parts: Parts, window: int, key: int) -> None:
        self.n = parts.n
        self.slots = max(parts.count - window, 0) + 1
        self._parts = parts
        self._window = min(window, parts.count)
        self._part_key, self._slot_key = (
            int(k) for k in keys_from(key, np.arange(2, dtype=np.int64))
        )
        self._layouts: tuple[Layout, ...] = ()

    def at(self, positions: Ints) -> Ints:
        """Rows at ascending positions."""
        out = np.empty_like(positions)
        done = 0
        while done < len(positions):
            layout = self._layout(int(positions[done]))
            stop = int(np.searchsorted(positions, layout.starts[-1]))
            out[done:stop] = find_rows(layout, positions[done:stop])
            done = stop
        return out

    def arriving(self, start: int, stop: int) -> Ranges:
        """The parts whose first slot begins in ``[start, stop)``."""
        first, end = self._first_slot(start), self._first_slot(stop)
        if first == end:
            return []
        return self._ranges(first + self._window - 1 if first else 0, end + self._window - 1)

    def held(self, position: int) -> Ranges:
        """The parts that a slot before ``position`` and one from there on both draw from."""
        if not 0 < position < self.n:
            return []
        coming = self._first_slot(position)
        now = coming if self.rows_before(coming) == position else coming - 1
        return self._ranges(now, coming + self._window - 1)

    def rows_before(self, slot: int) -> int:
        """Positions before ``slot``: the parts that are done, and what the open ones gave."""
        if slot >= self.slots:
            return self.n
        open_ones = np.arange(slot, min(slot + self._window - 1, self._parts.count), dtype=np.int64)
        return self._parts.before(slot) + int(self._count_taken(open_ones, slot).sum())

    def _count_taken(self, i: Ints, slot: int | Ints) -> Ints:
        """Rows that the parts at places ``i`` have given before ``slot``."""
        born = np.maximum(i - self._window + 1, 0)
        life = np.minimum(i, self.slots - 1) - born + 1
        age = np.clip(slot - born, 0, life)
        each, rest = np.divmod(self._parts.sizes(i), life)
        taken: Ints = age * each + age * rest // life
        return taken

    def _ranges(self, i: int, end: int) -> Ranges:
        places = np.arange(i, min(end, self._parts.count), dtype=np.int64)
        firsts = self._parts.firsts(places)
        ends = firsts + self._parts.sizes(places)
        return list(zip(firsts.tolist(), ends.tolist(), strict=True))

    def _slot_of(self, position: int) -> int:
        """The slot that a position in ``[0, n)`` lies in."""
        whole = self._parts.holding(position)
        # By slot t, the parts before t are done, and none from t + w - 1 on has begun.
        low, high = max(whole - self._window + 1, 0), min(whole, self.slots - 1)
        while low < high:
            middle = (low + high + 1) // 2
            if self.rows_before(middle) <= position:
                low = middle
            else:
                high = middle - 1
        return low

    def _first_slot(self, position: int) -> int:
        """The first slot that begins at ``position`` or after it."""
        if position >= self.n:
            return self.slots
        layout = self._layout(position)
        return layout.slot + int(np.searchsorted(layout.starts, position))

    def _layout(self, position: int) -> Layout:
        """The layout of the slot that ``position`` lies in, and of some after it."""
        layouts = self._layouts
        for layout in layouts:
            if layout.starts[0] <= position < layout.starts[-1]:
                return layout
        slot = self._slot_of(position)
        layout = self._lay_out(slot)
        self._layouts = (layout, *layouts[:3])
        return layout

    def _lay_out(self, slot: int) -> Layout:
        parts, window = self._parts, self._window
        usual = max(self.n // parts.count, 1)  # rows of a slot
        many = max(_ROWS // usual, 1)
        end = min(slot + max(many, 4 * window), self.slots)
        reach = parts.before(end + window - 1) - parts.before(slot)
        # Where one part is far larger than the usual ones, its rows are better not listed.
        if usual < window and reach <= 8 * usual * (end - slot + window):
            part, offset, ends, rows = self._by_row(slot, end)
        else:
            end = min(slot + many, slot + max(_SLICES // window, 1), self.slots)
            part, offset, ends, rows = self._by_slice(slot, end)
        listed = ends[-1] <= _LISTED
        i = np.arange(slot, end + self._window - 1, dtype=np.int64)
        return Layout(
            slot,
            np.concatenate(([0], np.cumsum(rows))) + self.rows_before(slot),
            np.repeat(np.arange(len(rows), dtype=np.int64), rows) if listed else None,
            np.repeat(np.arange(len(ends), dtype=np.int64), np.diff(ends, prepend=0))
            if listed
            else None,
            part,
            offset,
            ends,
            self._parts.sizes(i),
            self._parts.firsts(i),
            keys_from(self._part_key, i),
            keys_from(self._slot_key, np.arange(slot, end, dtype=np.int64)),
        )

    def _by_slice(self, slot: int, end: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Every slice of every slot: cheap where slices have many rows."""
        slots = np.arange(slot, end, dtype=np.int64)[:, None]
        i = slots + np.arange(self._window, dtype=np.int64)
        from_ = self._count_taken(i, slots)
        lengths = self._count_taken(i, slots + 1) - from_
        ends = np.cumsum(lengths)
        offset = from_.reshape(-1) - (ends - lengths.reshape(-1))
        return (i - slot).reshape(-1), offset, ends, lengths.sum(axis=1)

    def _by_row(self, slot: int, end: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Every row a slice of its own: cheap where most slices would have none."""
        i = np.arange(slot, end + self._window - 1, dtype=np.int64)
        sizes = self._parts.sizes(i)
        born = np.maximum(i - self._window + 1, 0)
        life = np.minimum(i, self.slots - 1) - born + 1
        part = np.repeat(np.arange(len(i), dtype=np.int64), sizes)
        inner = np.arange(len(part), dtype=np.int64) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        # Row u is in the first slice j that ends after it: (j + 1) * c >= (u + 1) * k.
        at = born[part] - slot + ((inner + 1) * life[part] - 1) // sizes[part]
        mine = np.flatnonzero((at >= 0) & (at < end - slot))
        at = at[mine]
        # Two bytes are sorted in linear time.
        small = at.astype(np.uint16) if end - slot <= 1 << 16 else at
        mine = mine[np.argsort(small, kind="stable")]
        count = np.arange(len(mine), dtype=np.int64)
        lengths = np.bincount(at, minlength=end - slot)
        return part[mine], inner[mine] - count, count + 1, lengths


def find_rows(layout: Layout, positions: Ints) -> Ints:
    """Rows at positions inside a layout."""
    starts = layout.starts
    if layout.slots is None:
        slot = np.searchsorted(starts, positions, side="right") - 1
    else:
        slot = layout.slots[positions - starts[0]]
    begin = starts[slot]
    row = permuted(positions - begin, np.diff(starts), layout.slot_keys, slot)
    row += begin - starts[0]
    if layout.slices is None:
        piece = np.searchsorted(layout.ends, row, side="right")
    else:
        piece = layout.slices[row]
    part = layout.part[piece]
    row += layout.offset[piece]
    return permuted(row, layout.sizes, layout.part_keys, part) + layout.firsts[part]


_FIRST_KEY = 3  # the keys before it are those of parts and slots where there is one lane


def make_lanes(count: int, ranks: Sequence[int], world: int) -> list[int]:
    """The lanes out of ``count`` that some of ``world`` ranks take their rows from."""
    common = math.gcd(count, world)
    return sorted({lane for rank in ranks for lane in range(rank % common, count, common)})


class LaneWalk:
    """The walk over several lanes. ``needed`` are those whose files are said to arrive."""

    def __init__(self, lanes: Sequence[WindowWalk], needed: Sequence[int] | None = None) -> None:
        self.n = sum(lane.n for lane in lanes)
        self._lanes = lanes
        self._needed = range(len(lanes)) if needed is None else needed

    @classmethod
    def of(cls, files: ListedParts, count: int, window: int, key: int) -> "LaneWalk":
        """``count`` lanes over files that stand in their order already."""
        keys = keys_from(key, np.arange(_FIRST_KEY, _FIRST_KEY + count, dtype=np.int64))
        each, more = divmod(files.n, count)
        starts = [lane * each + min(lane, more) for lane in range(count + 1)]
        return cls(
            [
                WindowWalk(files.cut(*starts[lane : lane + 2]), window, int(keys[lane]))
                for lane in range(count)
            ]
        )

    def lane(self, number: int) -> "LaneWalk":
        """The same walk, of which the files of one lane are said to arrive."""
        return LaneWalk(self._lanes, [number])

    def at(self, positions: Ints) -> Ints:
        """Rows at ascending positions."""
        index, lane = np.divmod(positions, len(self._lanes))
        out = np.empty_like(positions)
        for number in np.unique(lane).tolist():
            own = np.flatnonzero(lane == number)
            out[own] = self._lanes[number].at(index[own])
        return out

    def arriving(self, start: int, stop: int) -> Ranges:
        """The files whose rows are first needed at ``[start, stop)``."""
        found: Ranges = []
        for number in self._needed:
            lane = self._lanes[number]
            if lane.n:
                found += lane.arriving(self._index(number, start), self._index(number, stop))
        return found

    def held(self, position: int) -> Ranges:
        """The files that rows before ``position`` and some from there on are of."""
        found: Ranges = []
        for number in self._needed:
            lane = self._lanes[number]
            if lane.n:
                found += lane.held(self._index(number, position))
        return found

    def _index(self, lane: int, position: int) -> int:
        """How many rows of a lane come before a position."""
        return -(-max(position - lane, 0) // len(self._lanes))
