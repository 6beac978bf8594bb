"""Draws with given weights at the cost of one look into a table: Walker's alias method.

The table has a column for each sample, all of them equally likely. A column is split in two: its
lower part belongs to its own sample, the rest to another one, its alias. A draw is a hash of which
the upper bits choose the column and the lower ones the part.

    bits 32 to 63   where the alias begins, in units of 2**-32 of a column
    bits 0 to 31    the alias

Weights are first scaled to whole units of which there are ``2**32`` for each sample. Each gets the
floor of its share, at least one if it is positive, and the rest is spread evenly. So a sample's
probability differs from its share by less than ``2**-30`` of that share plus ``2**-29`` of the
average one, and no positive weight is lost. (The average is that of positive weights.) Everything
after that is exact: integer arithmetic, and single operations of IEEE 754 before it, so that
neither the machine nor NumPy's version can change a draw.

Columns with too few units are filled in the order of samples, and so are those that fill them from
their surplus: the column of a sample that has given too much is filled by the next such sample.
Who fills whom then follows from sums of what is lacking and of what is in surplus alone, so the
table is built by whole arrays, and parts of it by several threads at once.
"""

import hashlib
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.order.permutation import Ints, Keys, keys_from
from ndfeed.order.protocol import Each

MOST = 1 << 31  # samples: sums of units must fit into 63 bits

_CHUNK = 1 << 16  # samples worked on at once; digests are made of as many, so never change it
_BLOCK = 64  # parts whose columns are filled at once: what they need to know takes memory
_DRAWN = 1 << 15  # positions drawn at once: more leave the caches
_HALF = np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)
_COLUMN = 1 << 32  # units
_LIMB = 31  # bits of a sum's upper and lower part
_MARGIN = 1 - 2.0**-31  # so that rounding never gives out more units than there are


class Units(NamedTuple):
    """How weights become whole units: ``floor(weight / largest * factor)``."""

    largest: float
    factor: float


def measure_units(weights: NDArray[Any], each: Each = map) -> Units:
    """Find the scale for weights that are finite and not negative."""
    largest = float(weights.max())
    if largest == 0:
        return Units(1.0, 0.0)  # nothing can be drawn, but they can be told from others

    def add_up(at: int) -> tuple[int, int]:
        x = _part(weights, at) / largest
        x *= 1 << _LIMB
        whole = x.astype(np.int64)
        x -= whole
        x *= 1 << _LIMB
        return int(whole.sum()), int(x.astype(np.int64).sum())

    high, low = map(sum, zip(*each(add_up, _starts(weights)), strict=True))
    total = (high << _LIMB) + low  # in units of 2**-62 of the largest weight
    factor = (len(weights) * _COLUMN << 2 * _LIMB) / total
    return Units(largest, factor * _MARGIN)


def digest(weights: NDArray[Any], units: Units) -> str:
    """Return 128 bits, as text, that tell these weights from others, by what becomes of them."""
    return digest_of(_to_units(_part(weights, at), units) for at in _starts(weights))


def digest_of(parts: Iterable[Ints]) -> str:
    """Return 128 bits, as text, that tell integers from others; all parts but the last are long.

    Not for secrets: parts are summed up with random factors first, as that is fast.
    """
    factors: list[Keys] = [np.empty(0, np.uint64)]
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        words = part.view(np.uint64)
        if len(words) > len(factors[0]):
            each = np.arange(len(words), dtype=np.int64)
            factors = [keys_from(key, each) | np.uint64(1) for key in (1, 2)]
        sums = [int(np.dot(words, factor[: len(words)])) for factor in factors]
        made.update(b"%d:%d:%d;" % (len(words), *sums))
    return made.hexdigest()


def fill_table(weights: NDArray[Any], units: Units, table: Keys, each: Each = map) -> None:
    """Write the columns for some weights to ``table``, which has as many elements.

    ``each`` is ``map``, or runs as many calls at once as there are processors.
    """
    amounts = table.view(np.int64)

    def convert(at: int) -> tuple[int, int]:
        own = _to_units(_part(weights, at), units)
        amounts[at : at + len(own)] = own
        return int(own.sum()), int(np.count_nonzero(own))

    starts = _starts(weights)
    given, positive = zip(*each(convert, starts), strict=True)
    spare, more = divmod(len(weights) * _COLUMN - sum(given), sum(positive))
    # The first positive samples get one unit more.
    before = accumulate(positive, initial=0)
    tasks = [_Part(at, spare, max(more - n, 0)) for at, n in zip(starts, before, strict=False)]
    counts, lacks = zip(*each(lambda part: _spread(amounts, part), tasks), strict=True)
    lacking = list(accumulate(lacks, initial=0))
    # Listed once it is known how many: parts of a list and the whole would be in memory together.
    rows = np.empty(sum(counts), np.uint32)
    places = zip(starts, accumulate(counts, initial=0), strict=False)
    for _ in each(lambda place: _list_givers(amounts, rows, *place), list(places)):
        pass
    givers = _Givers(amounts, rows)
    for first in range(0, len(tasks), _BLOCK):
        block = range(first, min(first + _BLOCK, len(tasks)))
        givers.prepare(lacking[block.stop])
        columns = _Columns(amounts, table, givers, lacking)
        for _ in each(columns.fill, block):
            pass
        givers.drop(lacking[block.stop])


def draw(table: Keys, key: int, positions: Ints) -> Ints:
    """Return the sample that is drawn at each position."""
    out = np.empty_like(positions)
    for at in range(0, len(positions), _DRAWN):
        out[at : at + _DRAWN] = _draw(table, key, positions[at : at + _DRAWN])
    return out


def _draw(table: Keys, key: int, positions: Ints) -> Keys:
    found = keys_from(key, positions)
    n = np.array(len(table), np.uint64)
    low = found & _LOW
    low *= n
    low >>= _HALF
    found >>= _HALF
    found *= n
    found += low
    part = np.bitwise_and(found, _LOW, out=low)
    found >>= _HALF
    entry = table.take(found.view(np.int64), mode="clip")  # which clips nothing, but is faster
    is_other = part >= entry >> _HALF
    # By arithmetic: a processor that has to guess which of the two it is would be wrong too often.
    entry &= _LOW
    entry -= found
    entry *= is_other
    found += entry
    return found


def _starts(weights: NDArray[Any]) -> range:
    """Return where the parts of the weights begin that are worked on at once."""
    return range(0, len(weights), _CHUNK)


def _part(weights: NDArray[Any], at: int) -> NDArray[np.float64]:
    return weights[at : at + _CHUNK].astype(np.float64)


def _to_units(part: NDArray[np.float64], units: Units) -> Ints:
    """Return the units of each weight; ``part`` is used up."""
    least = 1 if part.min() > 0 else part > 0
    part /= units.largest
    part *= units.factor
    return np.maximum(part.astype(np.int64), least)


class _Part(NamedTuple):
    """A part of the samples, and what each positive one gets of the units that rounding left over.

    The first ``more`` of them get one more than ``spare``.
    """

    at: int
    spare: int
    more: int


def _spread(amounts: Ints, part: _Part) -> tuple[int, int]:
    """Give out what is spare; count samples with more than a column, and what others lack."""
    own = amounts[part.at : part.at + _CHUNK]
    if not part.more and own.min() > 0:
        own += part.spare
    else:
        positive = np.flatnonzero(own)
        own[positive] += part.spare
        own[positive[: part.more]] += 1
    lacks = len(own) * _COLUMN - int(np.minimum(own, _COLUMN).sum())
    return int(np.count_nonzero(own > _COLUMN)), lacks


def _list_givers(amounts: Ints, rows: NDArray[np.uint32], at: int, place: int) -> None:
    """Write the samples of a part that have more than a column to ``rows``."""
    found = np.flatnonzero(amounts[at : at + _CHUNK] > _COLUMN)
    rows[place : place + len(found)] = found + at


class _Givers:
    """The samples with more units than a column has, and those that are next to fill others.

    ``upto`` is the surplus of all samples up to each of the next ones, of which ``first`` is the
    number of the first.
    """

    def __init__(self, amounts: Ints, rows: NDArray[np.uint32]) -> None:
        self.rows = rows
        self.upto = np.empty(0, np.int64)
        self.first = 0
        self._amounts = amounts
        self._known = self._sum = 0

    def prepare(self, lacking: int) -> None:
        """Have ``upto`` reach beyond what is lacking, if there are as many."""
        parts = [self.upto]
        while self._known < len(self.rows) and self._sum <= lacking:
            part = self._amounts[self.rows[self._known : self._known + _CHUNK]]
            part -= _COLUMN
            upto = np.cumsum(part, out=part)
            upto += self._sum
            parts.append(upto)
            self._known += len(part)
            self._sum = int(upto[-1])
        if len(parts) > 1:
            self.upto = np.concatenate(parts)

    def count(self, lacking: int) -> int:
        """Return how many of the next ones are used up when so much was lacking."""
        return int(np.searchsorted(self.upto, lacking, side="right"))

    def drop(self, lacking: int) -> None:
        """Forget those that are used up."""
        count = self.count(lacking)
        self.first, self.upto = self.first + count, self.upto[count:]


def _make_entries(rows: NDArray[Any], own: Ints, alias: NDArray[Any]) -> Keys:
    """Make the columns of some samples of their own parts and aliases."""
    entries = own.view(np.uint64) << _HALF
    entries |= alias
    full = np.flatnonzero(own == _COLUMN)  # does not fit, and needs no alias
    entries[full] = rows[full]
    return entries


class _Columns(NamedTuple):
    """Columns to be filled; ``lacking`` is what all parts before each of them lack."""

    amounts: Ints
    table: Keys
    givers: _Givers
    lacking: list[int]

    def fill(self, number: int) -> None:
        """Fill the columns of a part that lack units, and of givers that are used up by them.

        Nobody else writes to these columns, or reads them.
        """
        givers, at = self.givers, number * _CHUNK
        found = _find_takers(givers.rows, at, min(at + _CHUNK, len(self.amounts)))
        if not len(found):
            return
        own = self.amounts[found]
        lacks = np.cumsum(_COLUMN - own)
        lacks += self.lacking[number]
        first, end = (givers.count(self.lacking[i]) for i in (number, number + 1))
        used, count = givers.upto[first:end], end - first
        first += givers.first
        merged = np.argsort(np.concatenate((used, lacks)), kind="stable")  # of two sorted runs
        is_giver = merged < count
        # The givers that are used up before each column: the next one fills it.
        filler = np.zeros(len(lacks), np.int64)
        filler[1:] = np.cumsum(is_giver)[~is_giver][:-1]
        filler += first
        filler = np.minimum(filler, max(len(givers.rows) - 1, 0), out=filler)
        alias = givers.rows[filler] if len(givers.rows) else found.astype(np.uint32)
        self.table[found] = _make_entries(found, own, alias)
        if count:
            # The last column that a giver fills takes the rest of its surplus, and more.
            ends = np.flatnonzero(is_giver)
            ends -= np.arange(count)
            rows = givers.rows[first : first + count]
            alias = givers.rows[first + 1 : first + count + 1]
            alias = alias if len(alias) == count else np.append(alias, rows[-1:])
            self.table[rows] = _make_entries(rows, used + _COLUMN - lacks[ends], alias)


def _find_takers(givers: NDArray[np.uint32], start: int, end: int) -> Ints:
    """Return the samples of a range that are no givers."""
    first, last = np.searchsorted(givers, np.array([start, end], np.uint32))
    takes = np.ones(end - start, np.bool_)
    takes[givers[first:last] - np.uint32(start)] = False
    found = np.flatnonzero(takes)
    found += start
    return found
