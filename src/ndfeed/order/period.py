"""The period of a mixture: which source comes at which position, in exact proportions.

The weights of the sources are whole numbers, and D is their sum: the length of a round, in which
each source has as many positions as its weight. The j-th row of a source with weight k comes at
position floor((j - 1) * D / k) of a round or later, and before position ceil(j * D / k). So among
the first p positions there are more than p * k / D - 1 rows of the source, and fewer than
p * k / D + 1: for every p.

If all rounds were alike, a rank that takes every other position might never see a source. So a
source is drawn for each position, by how many rows of the round it has left, of those that may
come: those whose time has come, and if the positions up to some deadline are all needed for rows
due by then, only sources of these. There is always one, and it always works out (R. Tijdeman, The
chairman assignment problem, 1980): from a position to a deadline, no more rows are released and due
than there are positions. Where a round is long, the source that has to come soonest comes, since
its pattern changes all the time.

A period is a number of such rounds, listed in a table. Periods repeat; their number of rounds is
odd, so that they are no multiples of what ranks and batches have in common. The table depends on
the weights alone, by integer arithmetic.
"""

import heapq
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ndfeed.order.permutation import keys_from

_LISTED = 1 << 13  # positions of a period, or some more
_KEY = 0x6D697874757265  # of the draws
_DRAWN = 1 << 12  # positions of a round up to which sources are drawn: it costs the square of them


class Period:
    """Which source each position of a period belongs to; ``weights`` are those of a period."""

    def __init__(self, weights: tuple[int, ...]) -> None:
        each = sum(weights)
        rounds = _LISTED // each | 1
        self.length = each * rounds
        self.weights = np.array(weights, np.int64) * rounds
        self.which = _draw_rounds(weights, rounds) if each <= _DRAWN else _assign_positions(weights)
        # The places of each source, one source after the other.
        places = np.argsort(self.which, kind="stable")
        ends = np.cumsum(self.weights)
        self.rank = np.empty(self.length, np.int64)  # how many of the same source came before
        self.rank[places] = np.arange(self.length) - np.repeat(ends - self.weights, self.weights)
        self._places = np.split(places, ends[:-1])

    def list_places(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the positions of rows ``[start, stop)`` of a source, counted from the first."""
        places = self._places[source]
        first, last = start // len(places), -(-stop // len(places))
        begins = np.arange(first, last)[:, None] * self.length
        found: NDArray[np.int64] = (begins + places).reshape(-1)
        return found[start - first * len(places) : stop - first * len(places)]

    def count(self, source: int, position: int) -> int:
        """Return how many of the first ``position`` positions belong to a source."""
        whole, rest = divmod(position, self.length)
        places = self._places[source]
        return whole * len(places) + int(np.searchsorted(places, rest))


@lru_cache(maxsize=32)
def period_of(weights: tuple[int, ...]) -> Period:
    """Return the period of some weights, which is made once."""
    return Period(weights)


def _assign_positions(weights: tuple[int, ...]) -> NDArray[np.uint16]:
    """Assign each position to a source: of those that may come, the one that must come soonest."""
    length = sum(weights)
    which = np.empty(length, np.uint16)
    given = [0] * len(weights)
    later = [(0, source) for source, weight in enumerate(weights) if weight]  # by first position
    now: list[tuple[int, int]] = []  # by the position before which it must come
    for position in range(length):
        while later and later[0][0] <= position:
            source = heapq.heappop(later)[1]
            due = -(-(given[source] + 1) * length // weights[source])
            heapq.heappush(now, (due, source))
        source = heapq.heappop(now)[1]
        which[position] = source
        given[source] += 1
        heapq.heappush(later, (given[source] * length // weights[source], source))
    return which


def _draw_rounds(weights: tuple[int, ...], rounds: int) -> NDArray[np.uint16]:
    """Draw the source of each position of some rounds, all rounds at a time."""
    length, shares = sum(weights), np.array(weights, np.int64)
    given = np.zeros((rounds, len(weights)), np.int64)
    which = np.empty((rounds, length), np.uint16)
    every = np.arange(rounds)
    steps = np.arange(1, length + 1)
    # Of all rows that are not placed yet: how many are due by each position.
    due_by = np.tile(
        sum((steps * one // length for one in weights), np.zeros_like(steps)), (rounds, 1)
    )
    for position in range(length):
        tight = due_by[:, position:] == steps[position:] - position
        deadline = steps[position + np.argmax(tight, axis=1)]
        due = -(-(given + 1) * length // np.maximum(shares, 1))
        may = (given < shares) & (given * length // np.maximum(shares, 1) <= position)
        may &= due <= deadline[:, None]
        ends = np.cumsum(np.where(may, shares - given, 0), axis=1)
        hashed = keys_from(_KEY, every * length + position) >> np.uint64(32)
        drawn = (hashed * ends[:, -1].astype(np.uint64) >> np.uint64(32)).astype(np.int64)
        source = np.argmax(ends > drawn[:, None], axis=1)
        which[:, position] = source
        due_by -= steps >= due[every, source][:, None]
        given[every, source] += 1
    return which.reshape(-1)
