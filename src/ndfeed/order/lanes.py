"""Files divided among ranks: a window for each of several lanes, which take turns.

The files stand in a permuted order, and their rows, end to end, are cut into L lanes whose
lengths differ by one at most. So a file belongs to one lane, but for those in which a cut
falls: at most L - 1 of them. Every lane is walked by a window over its own files.

Position p of the epoch is the row number p // L of lane p % L. A rank takes every position p with
p % W == rank, W being the number of ranks: if W divides L, these are the positions of L / W lanes,
and no other rank needs their files. For any other W the cover is as exact, and files are shared.

None of this depends on the batch size or on W: only L is a part of the order.
"""

import math
from collections.abc import Sequence

import numpy as np

from ndfeed.order.epoch import Ranges
from ndfeed.order.parts import ListedParts
from ndfeed.order.permutation import Ints, keys_from
from ndfeed.order.window import Windowed

_FIRST_KEY = 3  # the keys before it are those of parts and slots where there is one lane


def lanes_of(count: int, ranks: Sequence[int], world: int) -> list[int]:
    """The lanes out of ``count`` that some of ``world`` ranks take their rows from."""
    common = math.gcd(count, world)
    return sorted({lane for rank in ranks for lane in range(rank % common, count, common)})


class Laned:
    """The walk over several lanes. ``needed`` are those whose files are said to arrive."""

    def __init__(self, lanes: Sequence[Windowed], needed: Sequence[int] | None = None) -> None:
        self.n = sum(lane.n for lane in lanes)
        self._lanes = lanes
        self._needed = range(len(lanes)) if needed is None else needed

    @classmethod
    def of(cls, files: ListedParts, count: int, window: int, key: int) -> "Laned":
        """``count`` lanes over files that stand in their order already."""
        keys = keys_from(key, np.arange(_FIRST_KEY, _FIRST_KEY + count, dtype=np.int64))
        each, more = divmod(files.n, count)
        starts = [lane * each + min(lane, more) for lane in range(count + 1)]
        return cls(
            [
                Windowed(files.cut(*starts[lane : lane + 2]), window, int(keys[lane]))
                for lane in range(count)
            ]
        )

    def lane(self, number: int) -> "Laned":
        """The same walk, of which the files of one lane are said to arrive."""
        return Laned(self._lanes, [number])

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
