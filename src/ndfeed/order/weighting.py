"""Which weights hold where in the epochs of a mixture, and how long an epoch is.

An epoch consists of *stretches*, in each of which the weights stay the same: one, unless weights
change within it. A stretch has a period of its own, which begins where the stretch does, so that
its proportions are exact from there on. How many rows of each source come before a stretch is
counted when the epoch is laid out, and a position is then found in its stretch alone.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Literal, NamedTuple

from ndfeed.order.period import period_of

End = Literal["first", "last", "cycle"]
Weights = tuple[int, ...]
# From which epoch and which of its samples on, and the weights.
Stages = tuple[tuple[tuple[int, int], Weights], ...]


class Stretch(NamedTuple):
    """Positions with the same weights, and how many rows of each source come before them."""

    start: int
    stop: int
    weights: Weights
    before: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The stretches of an epoch, and how many positions it has."""

    stretches: Sequence[Stretch]
    n: int

    def find(self, position: int) -> int:
        """Return the number of the stretch that a position is in."""
        return max(bisect_right(self.stretches, position, key=attrgetter("start")) - 1, 0)

    def count(self, source: int, position: int) -> int:
        """Return how many positions before ``position`` belong to a source."""
        start, _, weights, before = self.stretches[self.find(position)]
        return before[source] + period_of(weights).count(source, position - start)


def list_weights(stages: Stages, epoch: int, position: int = 0) -> list[tuple[int, Weights]]:
    """Return the weights of an epoch from a position on, and from where on they should hold.

    A change that lies beyond the end of its epoch counts from the next one on.
    """
    first = bisect_right(stages, (epoch, position), key=itemgetter(0)) - 1
    end = bisect_left(stages, (epoch + 1, 0), key=itemgetter(0))
    changes = [(place[1], weights) for place, weights in stages[first + 1 : end]]
    return [(position, stages[first][1]), *changes]


def list_changes(stages: Stages, since: int, until: int) -> list[int]:
    """Return epochs from ``since`` to ``until``, between which all epochs are alike.

    The first of them is on its own: it may have been taken up in the middle.
    """
    found = {since, since + 1, until}
    for (epoch, samples), _ in stages:
        found.update((epoch, epoch + 1) if samples else (epoch,))
    return sorted(epoch for epoch in found if since <= epoch <= until)


def lay_out(
    weights: Sequence[tuple[int, Weights]],
    lengths: Sequence[int],
    end: End,
    delivered: Sequence[int] = (),
) -> Layout:
    """Lay out an epoch of sources that have so many rows in a pass.

    ``weights`` are listed with the positions from which on they should hold; those that lie beyond
    the end of the epoch are left out. Where the first of them is not 0, ``delivered`` is how many
    rows of each source have come in the epoch before: they count for its end.
    """
    counts = (0,) * len(lengths)
    if delivered:
        lengths = [rows - count for rows, count in zip(lengths, delivered, strict=True)]
    found: list[Stretch] = []
    for number, (start, own) in enumerate(weights):
        left = [rows - count for rows, count in zip(lengths, counts, strict=True)]
        room = _find_room(left, [one for _, one in weights[number:]], end)
        later = weights[number + 1 : number + 2]
        stop = later[0][0] if later and not 0 <= room < later[0][0] - start else start + room
        if stop > start or not found:
            found.append(Stretch(start, stop, own, counts))
        if not later or stop < later[0][0]:
            break
        more = count_rows(own, stop - start)
        counts = tuple(count + one for count, one in zip(counts, more, strict=True))
    return Layout(found, found[-1].stop)


def _find_room(left: Sequence[int], weights: Sequence[Weights], end: End) -> int:
    """Return how many positions an epoch has yet; -1 if some rows come with later weights only.

    ``left`` is how many rows of each source have not come, and ``weights`` those that hold now and
    later in the epoch.
    """
    if end == "cycle":
        return max(sum(left), 0)
    own, total = weights[0], sum(weights[0])
    if end == "first":
        return max(min(rows * total // k for rows, k in zip(left, own, strict=True) if k), 0)
    room = 0
    for number, rows in enumerate(left):
        if rows > 0 and own[number]:
            room = max(room, -(-rows * total // own[number]))
        elif rows > 0 and any(one[number] for one in weights[1:]):
            return -1
    return room


@lru_cache(maxsize=1 << 12)
def count_rows(weights: Weights, positions: int) -> tuple[int, ...]:
    """Return how many of the first positions belong to each source."""
    period = period_of(weights)
    return tuple(period.count(source, positions) for source in range(len(weights)))
