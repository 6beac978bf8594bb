"""Bundles: positions side by side whose samples are of similar length, and their batches.

All rows are put in a sequence: those of the first bucket in a permuted order, then those of the
second, and so on. The sequence is cut into bundles, each as large as a global batch may be, given
the longest sample in it. What is left at the end of a bucket comes before the rows of the next
one, so that no bucket ends with a short batch and only one bundle of an epoch is not full. The
bundles come in a permuted order; the one that is not full comes last.

A global batch lies within a bundle. As long as batches are of the size that bundles were made for,
each is a bundle. After a resume with other batches or ranks, a bundle may be cut into several
batches, as even as possible. Every position is in exactly one batch in any case, all ranks have the
same number of batches, and none gets an empty batch before the last one. ``drop_last`` leaves out
only what is left at the end of the epoch: it never drops a batch in the middle.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ndfeed.order.epoch import ScatteredWalk, Share
from ndfeed.order.permutation import Ints, Keys, permuted


@dataclass(frozen=True, slots=True, eq=False)
class Bundles:
    """The bundles of an epoch, in the order in which they come."""

    starts: Ints  # the first position of each, and the end
    firsts: Ints  # where each begins in the sequence of all rows
    buckets: Ints  # which bucket the longest samples of each may belong to

    @classmethod
    def of(cls, counts: Ints, sizes: Ints, key: int) -> "Bundles":
        """Make bundles of ``counts[b]`` rows of each bucket, ``sizes[b]`` of them in a bundle."""
        left, full = 0, []
        for count, size in zip(counts.tolist(), sizes.tolist(), strict=True):
            more, left = divmod(left + count, size)
            full.append(more)
        buckets = np.repeat(np.arange(len(counts)), full)
        each = sizes[buckets]
        firsts = np.cumsum(each) - each
        if len(buckets):
            places = permuted(np.arange(len(buckets)), len(buckets), key)
            buckets, each, firsts = buckets[places], each[places], firsts[places]
        if left:
            last = int(counts.sum()) - left
            buckets, each = np.append(buckets, len(counts) - 1), np.append(each, left)
            firsts = np.append(firsts, last)
        return cls(np.concatenate(([0], np.cumsum(each))), firsts, buckets)

    @property
    def n(self) -> int:
        """Positions of all bundles."""
        return int(self.starts[-1])

    def find(self, positions: Ints) -> Ints:
        """Return where the rows at some positions are in the sequence of all rows."""
        at = np.searchsorted(self.starts, positions, side="right") - 1
        found: Ints = self.firsts[at] + positions - self.starts[at]
        return found


class _Pass(NamedTuple):
    """The batches from some position on."""

    bundle: int  # which the position is in
    own: int  # batches of the rest of that bundle
    batches: int  # all of them
    ends: Ints | None  # where each ends, if some take samples of the next bundle


class BundleCut:
    """The bundles of an epoch cut into global batches. Implements ``Cut``.

    ``together`` has for each bundle how many samples a full global batch of it has. A batch that
    would have fewer samples than there are ranks takes some of the next bundle: one sample for each
    rank is within any budget.
    """

    even = False

    def __init__(self, bundles: Bundles, together: Ints, share: Share) -> None:
        self._starts, self._together = bundles.starts, together
        self._share = share
        sizes = np.diff(bundles.starts)
        counts = -(-sizes // together)
        if share.drop_last and len(counts):
            counts[-1] = sizes[-1] // together[-1]
        # Is no batch so small, but for a last one?
        small = sizes // np.maximum(counts, 1) < share.world
        small[-1:] &= counts[-1:] > 1
        self._plain = not small.any()
        self._before = np.concatenate(([0], np.cumsum(counts)))  # batches before each bundle
        self._last: tuple[int, _Pass] | None = None  # where a pass started last

    @property
    def n(self) -> int:
        """Positions of the epoch."""
        return int(self._starts[-1])

    def batches(self, start: int = 0) -> int:
        """Batches of this and of every rank, from position ``start`` on."""
        return self._begin(start).batches

    def spans(self, k: int, start: int = 0) -> list[tuple[int, int]]:
        """The positions of global batch ``k`` that are taken: half open, one for each rank."""
        first, end = self._bounds(k, start)
        each, more = divmod(end - first, self._share.world)
        begins = [(rank, first + rank * each + min(rank, more)) for rank in self._share.ranks]
        return [(begin, begin + each + (rank < more)) for rank, begin in begins]

    def stripes(self, k: int, start: int = 0) -> list[tuple[int, int, int]]:
        """The same where ranks take turns: beginning, end and step."""
        first, end = self._bounds(k, start)
        world = self._share.world
        begins = [first + (rank - first) % world for rank in self._share.ranks]
        return [(min(begin, end), end, world) for begin in begins]

    def consumed(self, k: int, start: int = 0) -> int:
        """Positions that all ranks are past after ``k`` batches."""
        most = self._begin(start).batches
        if k <= 0:
            return start
        return self.n if k > most else self._bounds(k - 1, start)[1]

    def _bounds(self, k: int, start: int) -> tuple[int, int]:
        """Return the first position of global batch ``k``, and its end."""
        bundle, own, count, ends = self._begin(start)
        if not 0 <= k < count:
            raise IndexError(f"batches must be in [0, {count}), got {k}")
        if ends is not None:
            return int(ends[k - 1]) if k else start, int(ends[k])
        if k < own:
            return self._divide(bundle, start, own, k)
        number = int(self._before[bundle + 1]) + k - own
        at = int(self._before.searchsorted(number, "right")) - 1
        before, after = int(self._before[at]), int(self._before[at + 1])
        return self._divide(at, int(self._starts[at]), after - before, number - before)

    def _begin(self, start: int) -> "_Pass":
        """Return what is known of a pass from a position on, which is asked for every batch."""
        last = self._last
        if last is None or last[0] != start:
            bundle, own = self._find(start)
            ends = self._find_ends(start, bundle, own)
            count = own + int(self._before[-1] - self._before[bundle + 1]) if own else 0
            made = _Pass(bundle, own, count if ends is None else len(ends), ends)
            last = self._last = start, made
        return last[1]

    def _find(self, start: int) -> tuple[int, int]:
        """Return the bundle that a position is in, and how many batches the rest of it makes."""
        if not 0 <= start <= self.n:
            raise ValueError(f"start must be in [0, {self.n}], got {start}")
        if start == self.n:
            return len(self._together), 0
        at = int(np.searchsorted(self._starts, start, side="right")) - 1
        left, together = int(self._starts[at + 1]) - start, int(self._together[at])
        rounded_down = self._share.drop_last and at == len(self._together) - 1
        return at, left // together if rounded_down else -(-left // together)

    def _divide(self, bundle: int, start: int, count: int, k: int) -> tuple[int, int]:
        """Return the bounds of batch ``k`` of ``count`` from ``start`` to the end of a bundle.

        The first of them have one sample more where it does not divide, so that what is left after
        some of them is divided in the same way.
        """
        left = int(self._starts[bundle + 1]) - start
        if self._share.drop_last and bundle == len(self._together) - 1:
            left = count * int(self._together[bundle])  # all of them are full
        each, more = divmod(left, count)
        begin = start + k * each + min(k, more)
        return begin, begin + each + (k < more)

    def _find_ends(self, start: int, bundle: int, own: int) -> Ints | None:
        """Return the ends of all batches, if some take samples of the next bundle; else nothing."""
        if start == self.n or (self._plain and self._fills_ranks(start, bundle, own)):
            return None
        return np.array(self._walk(start, bundle), np.int64)

    def _fills_ranks(self, start: int, bundle: int, own: int) -> bool:
        """Do the batches from a position to the end of its bundle have a sample for each rank?"""
        if own <= 1 and bundle == len(self._together) - 1:
            return True  # what is left at the end of the epoch
        return (int(self._starts[bundle + 1]) - start) // own >= self._share.world

    def _walk(self, position: int, at: int) -> list[int]:
        """Return the ends of all batches from a position in bundle ``at`` on, one by one."""
        starts, together, world = self._starts.tolist(), self._together.tolist(), self._share.world
        ends: list[int] = []
        while position < starts[-1]:
            while starts[at + 1] <= position:
                at += 1
            left, full = starts[at + 1] - position, together[at]
            if self._share.drop_last and at == len(together) - 1:
                if left < full:
                    break
                size = full
            else:
                size = max(-(-left // -(-left // full)), world)
            position = min(position + size, starts[-1])
            ends.append(position)
        return ends


class BucketWalk(ScatteredWalk):
    """The walk over bundles: positions to rows. Implements ``Walk``.

    ``rows`` are the rows of all buckets, one bucket after the other, beginning at ``starts``; each
    bucket has a key, by which it is permuted.
    """

    def __init__(self, bundles: Bundles, rows: Ints, starts: Ints, keys: Keys) -> None:
        self.n = bundles.n
        self._bundles, self._rows = bundles, rows
        self._starts, self._counts, self._keys = starts, np.diff(starts), keys

    def at(self, positions: Ints) -> Ints:
        """The rows at ascending positions."""
        found = self._bundles.find(positions)
        bucket = np.searchsorted(self._starts, found, side="right") - 1
        first = self._starts[bucket]
        places = permuted(found - first, self._counts, self._keys, bucket)
        rows: Ints = self._rows[first + places].astype(np.int64)
        return rows
