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
table is built by whole arrays.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.order.permutation import Ints, Keys, keys_from

MOST = 1 << 31  # samples: sums of units must fit into 63 bits

_CHUNK = 1 << 16  # samples worked on at once; digests are made of as many, so never change it
_DRAWN = 1 << 14  # positions drawn at once: more leave the caches
_HALF = np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)
_COLUMN = 1 << 32  # units
_LIMB = 31  # bits of a sum's upper and lower part
_MARGIN = 1 - 2.0**-31  # so that rounding never gives out more units than there are


class Units(NamedTuple):
    """How weights become whole units: ``floor(weight / largest * factor)``."""

    largest: float
    factor: float


def measure_units(weights: NDArray[Any]) -> Units:
    """Find the scale for weights that are finite, not negative, and not all zero."""
    largest = float(weights.max())
    high = low = 0
    for _, part in _parts(weights):
        x = part / largest
        x *= 1 << _LIMB
        whole = x.astype(np.int64)
        high += int(whole.sum())
        x -= whole
        x *= 1 << _LIMB
        low += int(x.astype(np.int64).sum())
    total = (high << _LIMB) + low  # in units of 2**-62 of the largest weight
    factor = (len(weights) * _COLUMN << 2 * _LIMB) / total
    return Units(largest, factor * _MARGIN)


def digest(weights: NDArray[Any], units: Units) -> str:
    """Return 128 bits, as text, that tell these weights from others, by what becomes of them."""
    return digest_of(_to_units(part, units) for _, part in _parts(weights))


def digest_of(parts: "Iterator[Ints]") -> str:
    """Return 128 bits, as text, that tell integers from others; all parts but the last are long.

    Not for secrets: parts are summed up with random factors first, as that is fast.
    """
    each = np.arange(_CHUNK, dtype=np.int64)
    factors = [keys_from(key, each) | np.uint64(1) for key in (1, 2)]
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        words = part.view(np.uint64)
        sums = [int(np.dot(words, factor[: len(words)])) for factor in factors]
        made.update(b"%d:%d:%d;" % (len(words), *sums))
    return made.hexdigest()


def fill_table(weights: NDArray[Any], units: Units, table: Keys) -> None:
    """Write the columns for some weights to ``table``, which has as many elements."""
    amounts = table.view(np.int64)
    given = positive = 0
    for at, part in _parts(weights):
        own = _to_units(part, units)
        amounts[at : at + len(part)] = own
        given += int(own.sum())
        positive += int(np.count_nonzero(own))
    spare = _Spare(*divmod(len(weights) * _COLUMN - given, positive))
    _fill_columns(amounts, table, _Givers(amounts, _find_givers(amounts, spare)))


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
    other = np.flatnonzero(part >= entry >> _HALF)
    found[other] = entry[other] & _LOW
    return found


def _parts(weights: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield a part of the weights at a time, and where it begins."""
    for at in range(0, len(weights), _CHUNK):
        yield at, weights[at : at + _CHUNK].astype(np.float64)


def _to_units(part: NDArray[np.float64], units: Units) -> Ints:
    """Return the units of each weight; ``part`` is used up."""
    least = 1 if part.min() > 0 else part > 0
    part /= units.largest
    part *= units.factor
    return np.maximum(part.astype(np.int64), least)


class _Spare:
    """Units that rounding left over: ``each`` positive sample gets as many, some one more."""

    def __init__(self, each: int, more: int) -> None:
        self._each, self._more = each, more

    def spread(self, amounts: Ints) -> None:
        """Add them to the units of the next samples."""
        if not self._more and amounts.min() > 0:
            amounts += self._each
            return
        positive = np.flatnonzero(amounts)
        amounts[positive] += self._each
        amounts[positive[: self._more]] += 1
        self._more = max(self._more - len(positive), 0)


def _find_givers(amounts: Ints, spare: _Spare) -> NDArray[np.uint32]:
    """Give out what is spare, and find the samples with more than a column."""
    rows = [np.empty(0, np.uint32)]
    for at in range(0, len(amounts), _CHUNK):
        part = amounts[at : at + _CHUNK]
        spare.spread(part)
        found = np.flatnonzero(part > _COLUMN)
        found += at
        rows.append(found.astype(np.uint32))
    return np.concatenate(rows)


class _Givers:
    """The samples with more units than a column has, and those that are next to fill others.

    ``upto`` is the surplus of all samples up to each of the next ones.
    """

    def __init__(self, amounts: Ints, rows: NDArray[np.uint32]) -> None:
        self.rows = rows
        self.upto = np.empty(0, np.int64)
        self.first = 0  # the number of the next one
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

    def retire(self, count: int, own: Ints, table: Keys) -> None:
        """Write the columns of the next ones, with what is left of them; others follow."""
        end = self.first + count
        rows = self.rows[self.first : end]
        alias = self.rows[self.first + 1 : end + 1]
        alias = alias if len(alias) == count else np.append(alias, rows[-1:])
        table[rows] = _make_entries(rows, own, alias)
        self.first, self.upto = end, self.upto[count:]


def _make_entries(rows: NDArray[Any], own: Ints, alias: NDArray[Any]) -> Keys:
    """Make the columns of some samples of their own parts and aliases."""
    entries = own.view(np.uint64) << _HALF
    entries |= alias
    full = np.flatnonzero(own == _COLUMN)  # does not fit, and needs no alias
    entries[full] = rows[full]
    return entries


def _fill_columns(amounts: Ints, table: Keys, givers: _Givers) -> None:
    """Fill the columns that lack units, and those of givers once they are used up."""
    lacking = 0
    for at in range(0, len(amounts), _CHUNK):
        found = _find_takers(givers.rows, at, min(at + _CHUNK, len(amounts)))
        if not len(found):
            continue
        own = amounts[found]
        lacks = np.cumsum(_COLUMN - own)
        lacks += lacking
        lacking = int(lacks[-1])
        givers.prepare(lacking)
        count = int(np.searchsorted(givers.upto, lacking, side="right"))
        used = givers.upto[:count]
        merged = np.argsort(np.concatenate((used, lacks)), kind="stable")  # of two sorted runs
        is_giver = merged < count
        # The givers that are used up before each column: the next one fills it.
        filler = np.zeros(len(lacks), np.int64)
        filler[1:] = np.cumsum(is_giver)[~is_giver][:-1]
        filler += givers.first
        filler = np.minimum(filler, max(len(givers.rows) - 1, 0), out=filler)
        alias = givers.rows[filler] if len(givers.rows) else found.astype(np.uint32)
        table[found] = _make_entries(found, own, alias)
        if count:
            # The last column that a giver fills takes the rest of its surplus, and more.
            ends = np.flatnonzero(is_giver)
            ends -= np.arange(count)
            givers.retire(count, used + _COLUMN - lacks[ends], table)


def _find_takers(givers: NDArray[np.uint32], start: int, end: int) -> Ints:
    """Return the samples of a range that are no givers."""
    first, last = np.searchsorted(givers, np.array([start, end], np.uint32))
    takes = np.ones(end - start, np.bool_)
    takes[givers[first:last] - np.uint32(start)] = False
    found = np.flatnonzero(takes)
    found += start
    return found
