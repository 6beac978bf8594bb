"""A keyed permutation of ``[0, n)`` that stores nothing, and parts in such an order.

A position is written as two digits, ``high << low_bits | low``. The low digit has half of the bits
of n, the high one as many values as it takes to reach n, so that hardly more than n are counted. A
round adds a hash of one digit and of the key to the other digit, modulo its number of values;
rounds alternate, each can be undone, and together they permute. A result of n or more goes through
again until it is less, which about one in the square root of n needs. (Two halves of equally many
bits would send up to three in four through again.)

The low digit has an even number of values: turns of odd length only ever make even
permutations, and half of all orders could not occur.

How many rounds was found by comparing with true shuffles (``tests/order/test_permutation.py``:
where single rows, neighbours, pairs and triples go, cycles, parity, halves, serial correlation):

    n               least that passes   taken
    1 to 8          ranks of n hashes: a true shuffle, as no few rounds were
    9 to 512        12                  14
    513 and more    6                   8

Below 2**32 all arithmetic is in 32 bits, above in 64: two different permutations. It is integer
arithmetic alone, so that neither the machine nor NumPy's version can change an order.

Cost on one core, 16,384 positions: 11 to 15 ns a row below 2**32, 20 to 27 above; with a table of
lengths and keys 25 to 37 and 45 to 51. A call costs some 50 µs however few they are.

Parts are blocks of one size, computed, or files of any sizes, listed.
"""

import hashlib
import operator
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]
# Of some width: a vector, or an array of no dimension. NumPy's own scalars wrap with a warning,
# and cost a ufunc half as much again.
Words = NDArray[Any]

LARGEST = 1 << 62

_CHUNK = 1 << 16  # positions worked on at once: fewer cost more calls, more leave the caches


class _Kind(NamedTuple):
    """The arithmetic for some lengths: the word, its bits, and an odd multiplier a round."""

    word: type[np.uint32] | type[np.uint64]
    bits: int
    multipliers: tuple[Words, ...]


def _kind(word: type[np.uint32] | type[np.uint64], bits: int, rounds: int) -> _Kind:
    names = (b"%d:%d" % (bits, r) for r in range(rounds))
    digests = (hashlib.blake2b(name, digest_size=8).digest() for name in names)
    odd = (int.from_bytes(digest, "little") % (1 << bits) | 1 for digest in digests)
    return _Kind(word, bits, tuple(np.array(factor, word) for factor in odd))


# By length: ranked up to 8, then by rounds. Digits of few values need more of them.
_LAST = np.array([8, 512, (1 << 32) - 1])
_KINDS = (_kind(np.uint32, 32, 14), _kind(np.uint32, 32, 8), _kind(np.uint64, 64, 8))
_POWERS = 1 << np.arange(63, dtype=np.int64)


class _Domain(NamedTuple):
    """What is permuted and how: words, or vectors with one for each position."""

    n: Words
    low: Words  # bits of the low digit
    high: Words  # values of the high digit
    key: Words
    step: Words  # added from one round's key to the next one's

    def of(self, index: Ints | slice) -> "_Domain":
        """The same for some positions; what has no dimension is for all of them."""
        if not self.n.ndim:
            return self
        return _Domain(*(vector[index] for vector in self))


class Scheme(NamedTuple):
    """One permutation in plain numbers, for whoever works it out elsewhere."""

    bits: int  # of a word
    n: int
    low: int  # bits of the low digit
    high: int  # values of the high digit
    key: int
    step: int  # added from one round's key to the next one's
    factors: tuple[int, ...]  # one for each round


# Returns where positions go, or nothing where it is better done here.
Elsewhere = Callable[[Ints, Scheme], Ints | None]
_elsewhere = threading.local()


def permute_by(elsewhere: Elsewhere | None) -> None:
    """Have the permutations that this thread asks for worked out by a function, such as a GPU's."""
    _elsewhere.by = elsewhere


def key_of(purpose: str, seed: int, epoch: int) -> int:
    """64 bits that share nothing with those of any other purpose, seed or epoch."""
    text = f"{purpose}:{operator.index(seed)}:{operator.index(epoch)}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def keys_from(key: int | Keys, numbers: Ints) -> Keys:
    """A key of its own for each of ``numbers``, no two of one key the same (SplitMix64)."""
    x = numbers.astype(np.uint64)
    x += np.uint64(1)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x += np.asarray(key, np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return x


def permuted(positions: ArrayLike, n: int | Ints, key: int | Keys, of: Ints | None = None) -> Ints:
    """Where each of ``positions`` in ``[0, n)`` goes, in ``[0, n)``; no two to the same place.

    ``n`` and ``key`` are numbers, or vectors with one for each position; with ``of``, tables
    into which ``of`` points for each position. Positions outside ``[0, n)`` have no place: the
    caller keeps them out.
    """
    at = np.asarray(positions, np.int64)
    if not isinstance(n, np.ndarray) and not isinstance(key, np.ndarray):
        if not 1 <= n <= LARGEST:
            raise ValueError(f"n must be in [1, 2**62], got {n}")
        kind = int(np.searchsorted(_LAST, n))
        by: Elsewhere | None = getattr(_elsewhere, "by", None)
        found = by(at, _scheme(kind, int(n), int(key))) if by is not None and kind else None
        return _apply(kind, at, int(n), int(key), None) if found is None else found
    lengths, keys = np.broadcast_arrays(np.asarray(n, np.int64), np.asarray(key, np.uint64))
    which = np.searchsorted(_LAST, lengths)
    if len(which) and (which == which[0]).all():
        return _apply(int(which[0]), at, lengths, keys, of)
    of = np.arange(len(at), dtype=np.int64) if of is None else of
    out, which = np.empty_like(at), which[of]
    for kind in range(len(_KINDS) + 1):
        these = np.flatnonzero(which == kind)
        if len(these):
            out[these] = _apply(kind, at[these], lengths, keys, of[these])
    return out


def _apply(kind: int, at: Ints, n: int | Ints, key: int | Keys, of: Ints | None) -> Ints:
    """``permuted``, where all lengths are of one kind."""
    if kind:
        return _walk(at, _domain(n, key, _KINDS[kind - 1]), of, _KINDS[kind - 1])
    if of is not None:
        n, key = np.asarray(n)[of], np.asarray(key, np.uint64)[of]
    return _rank(at, n, key)


def _rank(at: Ints, n: int | Ints, key: int | Keys) -> Ints:
    """Every position by the rank of its own key among all n of them."""
    own = keys_from(key, at)
    out = np.zeros_like(at)
    for other in range(int(np.max(n, initial=0))):
        lower = keys_from(key, np.full_like(at, other)) < own
        out += lower & (other < np.asarray(n))
    return out


def _domain(n: int | Ints, key: int | Keys, kind: _Kind) -> _Domain:
    """The digits of lengths, and where the schedules of keys begin."""
    lengths, keys = np.array(n, np.int64, ndmin=1), np.array(key, np.uint64, ndmin=1)
    low = np.searchsorted(_POWERS, lengths) >> 1  # half of the bits of n - 1
    high = ((lengths - 1) >> low) + 1
    turned = keys >> np.uint64(32) | keys << np.uint64(32)
    made = _Domain(*(x.astype(kind.word) for x in (lengths, low, high, keys, turned)))
    return made if isinstance(n, np.ndarray) else _Domain(*(x.reshape(()) for x in made))


def _scheme(kind: int, n: int, key: int) -> Scheme:
    """Return what a permutation of one length and key is worked out from."""
    word = _KINDS[kind - 1]
    length, low, high, first, step = (int(x) for x in _domain(n, key, word))
    factors = tuple(int(factor) for factor in word.multipliers)
    return Scheme(word.bits, length, low, high, first, step, factors)


def _walk(at: Ints, domain: _Domain, of: Ints | None, kind: _Kind) -> Ints:
    """Every position to its place, a chunk at a time; those astray again, all together."""
    out = np.empty_like(at)
    strays = []
    chunk = _CHUNK if domain.n.ndim else 2 * _CHUNK
    for first in range(0, len(at), chunk):
        span = slice(first, first + chunk)
        own = domain.of(span if of is None else of[span])
        now = _rounds(at[span].astype(kind.word), own, kind)
        strays.append(np.flatnonzero(now >= own.n) + first)
        out[span] = now
    astray = np.concatenate(strays) if strays else at
    if len(astray):
        own = domain.of(astray if of is None else of[astray])
    while len(astray):
        now = _rounds(out[astray].astype(kind.word), own, kind)
        out[astray] = now
        still = np.flatnonzero(now >= own.n)
        astray, own = astray[still], own.of(still)
    return out


def _rounds(at: Words, domain: _Domain, kind: _Kind) -> Words:
    """``at``, permuted once within the two digits; ``at`` itself is used up."""
    _, low, high, key, step = domain
    half, one = np.array(kind.bits // 2, kind.word), np.array(1, kind.word)
    top = np.asarray(np.array(kind.bits, kind.word) - low)
    mask = np.asarray((one << low) - one)
    big, small = at >> low, at & mask
    hashed, spare, key = at, np.empty_like(at), key.copy()
    for r, factor in enumerate(kind.multipliers):
        # The middle bits of a square: every bit of the digit and of the key moves them.
        np.multiply(small if r % 2 else big, factor, out=hashed)
        hashed += key
        hashed *= hashed
        if r % 2 == 0:
            hashed >>= top
            small += hashed
            small &= mask
        else:
            hashed >>= half
            hashed *= high
            hashed >>= half
            # The sum is below 2 * high. Less high it is smaller, unless that wraps around.
            big += hashed
            np.subtract(big, high, out=spare)
            np.minimum(big, spare, out=big)
        key *= factor
        key += step
    big <<= low
    big |= small
    return big


class Parts(Protocol):
    """Parts in their permuted order, none of them empty."""

    count: int
    n: int

    def sizes(self, i: Ints) -> Ints:
        """Rows of the parts at these places of the order."""
        ...

    def firsts(self, i: Ints) -> Ints:
        """The first row of each."""
        ...

    def before(self, i: int) -> int:
        """Rows of all parts before place ``i``."""
        ...

    def holding(self, position: int) -> int:
        """The place whose part would hold a position if parts came whole, one after another."""
        ...


class EqualParts:
    """Blocks of one size, permuted, with the short one, if any, put in at a place of its own."""

    def __init__(self, n: int, rows: int, key: int) -> None:
        self.n, self._rows = n, rows
        self._key, place = (int(k) for k in keys_from(key, np.arange(2, 4, dtype=np.int64)))
        self._full, rest = divmod(self.n, self._rows)
        self.count = self._full + (rest > 0)
        self._short = place * self.count >> 64 if rest else self.count
        self._lacking = self._rows - rest if rest else 0

    def sizes(self, i: Ints) -> Ints:
        """Rows of the parts at these places of the order."""
        sizes: Ints = self._rows - self._lacking * (i == self._short)
        return sizes

    def firsts(self, i: Ints) -> Ints:
        """The first row of each."""
        if not self._full:
            return np.zeros_like(i)
        place = np.minimum(i - (i > self._short), self._full - 1)
        block = permuted(place, self._full, self._key)
        return np.where(i == self._short, self._full, block) * self._rows

    def before(self, i: int) -> int:
        """Rows of all parts before place ``i``."""
        return i * self._rows - self._lacking * (i > self._short)

    def holding(self, position: int) -> int:
        """The place whose part would hold ``position`` if parts came whole."""
        if position < self.before(self._short + 1):
            return min(position // self._rows, self._short)
        return (position + self._lacking) // self._rows


class ListedParts:
    """Files of any sizes, none empty, in the order in which they are listed."""

    def __init__(self, sizes: Ints, firsts: Ints) -> None:
        self._sizes, self._firsts = sizes, firsts
        self._ends = np.cumsum(sizes)
        self.count = len(sizes)
        self.n = int(self._ends[-1]) if self.count else 0

    @classmethod
    def permuted(cls, counts: Ints, key: int) -> "ListedParts":
        """Files of so many rows each, permuted; the empty ones left out."""
        starts = np.cumsum(counts) - counts
        files = np.flatnonzero(counts)
        if len(files):
            own = int(keys_from(key, np.arange(2, 3, dtype=np.int64))[0])
            files = files[permuted(np.arange(len(files), dtype=np.int64), len(files), own)]
        return cls(counts[files], starts[files])

    def cut(self, start: int, end: int) -> "ListedParts":
        """The rows ``[start, end)`` of all parts end to end: some parts, the outer ones in part."""
        if start >= end:
            return ListedParts(self._sizes[:0], self._firsts[:0])
        first, last = self.holding(start), self.holding(end - 1)
        sizes = self._sizes[first : last + 1].copy()
        firsts = self._firsts[first : last + 1].copy()
        sizes[-1] -= int(self._ends[last]) - end
        skipped = start - self.before(first)
        sizes[0] -= skipped
        firsts[0] += skipped
        return ListedParts(sizes, firsts)

    def sizes(self, i: Ints) -> Ints:
        """Rows of the parts at these places of the order."""
        return self._sizes[i]

    def firsts(self, i: Ints) -> Ints:
        """The first row of each."""
        return self._firsts[i]

    def before(self, i: int) -> int:
        """Rows of all parts before place ``i``."""
        return int(self._ends[i - 1]) if i else 0

    def holding(self, position: int) -> int:
        """The place whose part would hold ``position`` if parts came whole."""
        return int(np.searchsorted(self._ends, position, side="right"))
