"""The rest of an epoch in which rows were added, for orders that need to know something of rows.

Such an epoch is made of pieces, one for each generation of rows. A piece begins where the epoch can
take in rows, and has an order of its own: that of the rows that are left and those that came
(``Order.find_rest`` and ``continue_with``). Which rows are left follows from the piece before, so
pieces are made one after the other, and only the last one is kept: what comes from there on needs
no other. Those before it are made again if somebody walks the epoch from its beginning.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ndfeed.errors import ResumeError
from ndfeed.order.epoch import Cut, Epoch, ScatteredWalk, Share, WalkEpoch, rows_at
from ndfeed.order.permutation import Ints, key_of
from ndfeed.order.protocol import Order, Progress


class Known(NamedTuple):
    """The rows that there were in a generation, ascending, and which of them were new.

    ``more`` is what a state says about its part of the epoch, and ``samples`` how many samples of
    the epoch were delivered when others came.
    """

    rows: Ints
    new: Ints
    more: Mapping[str, Any]
    samples: int


class Piece(NamedTuple):
    """The positions of an epoch from ``start`` on, in an order of some of the rows."""

    start: int
    order: Order
    rows: Ints  # the row of the data for each of the order's
    seed: int
    epoch: int

    def cut(self, share: Share) -> Cut:
        """Cut its positions into batches."""
        return self.order.cut(replace(share, n=len(self.rows)), self.seed, self.epoch)

    def begin(self) -> Epoch:
        """Make its epoch, which knows nothing of other rows."""
        return self.order.begin(len(self.rows), self.seed, self.epoch)

    def find_rest(self, samples: int) -> tuple[int, Ints]:
        """Return where rows can be added after so many samples of the epoch, and what is left."""
        place = len(self.rows), self.seed, self.epoch
        length = self.cut(Share(place[0], 1)).n
        at = max(samples - self.start, 0)
        if at > length:
            raise ResumeError.of_damage(f"{samples} of {self.start + length} samples delivered")
        begin, left = self.order.find_rest(*place, at)
        return self.start + begin, self.rows[left]


def list_pieces(order: Order, known: Iterable[Known], seed: int, epoch: int) -> Iterator[Piece]:
    """Yield the piece of every generation; ``order`` is bound to the rows of the last one."""
    start, left, delivered = 0, np.empty(0, np.int64), 0
    piece: Piece | None = None
    for number, one in enumerate(known):
        if piece is not None:
            start, left = piece.find_rest(delivered)
        left, delivered = np.sort(np.concatenate([left, one.new])), one.samples
        found = order.continue_with(one.rows, left, start)
        if found is None:
            raise ValueError(f"an epoch of {order} cannot take in rows")
        own, rows = found
        # As it was begun: for the batches that there were then, for example.
        resumed = own.resume(Progress(own.spec(), epoch, one.samples, one.more))
        key = key_of(f"grown {number}", seed, epoch) if number else seed
        piece = Piece(start, own if resumed is None else resumed[0], rows, key, epoch)
        yield piece


class Rest:
    """An epoch of pieces, of which the last one is kept; ``pieces`` makes all of them."""

    def __init__(self, pieces: Callable[[], Iterator[Piece]]) -> None:
        self._pieces = pieces
        for piece in pieces():
            self._last = piece

    def begin(self) -> Epoch:
        """Make the epoch."""
        return WalkEpoch(_RestWalk(self._pieces, self._last))

    def cut(self, share: Share) -> Cut:
        """Cut its positions into batches."""
        own = self._last.cut(share)
        if own.even:
            return replace(share, n=self._last.start + own.n)
        return _RestCut(self._pieces, self._last.start, own, share)


class _RestWalk(ScatteredWalk):
    """The walk of an epoch of pieces."""

    def __init__(self, pieces: Callable[[], Iterator[Piece]], last: Piece) -> None:
        self._pieces, self._last = pieces, last
        self._epoch = last.begin()
        self.n: int = last.start + last.cut(Share(0, 1)).n

    @cached_property
    def _before(self) -> Ints:
        """The rows at all positions before the last piece."""
        parts = [np.empty(0, np.int64)]
        for piece, after in pairwise(self._pieces()):
            parts.append(piece.rows[piece.begin().rows(0, after.start - piece.start)])
        return np.concatenate(parts)

    def at(self, positions: Ints) -> Ints:
        """The rows at ascending positions."""
        start = self._last.start
        first = int(np.searchsorted(positions, start))
        early, late = positions[:first], positions[first:] - start
        parts = [self._before[early]] if len(early) else []
        if len(late):
            parts.append(self._last.rows[rows_at(self._epoch, late)])
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class _RestCut:
    """An epoch of pieces that cut batches themselves. Implements ``Cut``."""

    even = False

    def __init__(
        self, pieces: Callable[[], Iterator[Piece]], first: int, cut: Cut, share: Share
    ) -> None:
        self._pieces, self._first, self._cut, self._share = pieces, first, cut, share
        self._early: tuple[int, list[int]] | None = None

    @property
    def n(self) -> int:
        """Positions of the epoch."""
        return self._first + self._cut.n

    def batches(self, start: int = 0) -> int:
        """Batches of this and of every rank, from position ``start`` on."""
        early, inner = self._split(start)
        return len(early) + self._cut.batches(inner)

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
        early, inner = self._split(start)
        if k <= len(early):
            return early[k - 1] if k > 0 else start
        return self._first + self._cut.consumed(k - len(early), inner)

    def _bounds(self, k: int, start: int) -> tuple[int, int]:
        """Return the first position of global batch ``k``, and its end."""
        if not 0 <= k < (count := self.batches(start)):
            raise IndexError(f"batches must be in [0, {count}), got {k}")
        return self.consumed(k, start), self.consumed(k + 1, start)

    def _split(self, start: int) -> tuple[list[int], int]:
        """Return the ends of batches before the last piece, and where that is entered."""
        if start >= self._first:
            return [], start - self._first
        found = self._early
        if found is None or found[0] != start:
            found = self._early = start, list(self._find_ends(start))
        return found[1], 0

    def _find_ends(self, start: int) -> Iterator[int]:
        """Yield the ends of the batches from a position to the beginning of the last piece."""
        for piece, after in pairwise(self._pieces()):
            begin, stop = max(start, piece.start) - piece.start, after.start - piece.start
            cut, end, k = piece.cut(self._share), begin, 0
            while end < stop:
                k += 1
                end = min(cut.consumed(k, begin), stop)
                yield piece.start + end
