"""A keyed bijection on ``[0, n)``: any order of any length, with nothing stored.

A position is written as two digits, ``high << low_bits | low``. The low digit has half of the bits
of n, the high one as many values as it takes to reach n, so that hardly more than n are counted.
A round adds a hash of one digit and of the key to the other digit, modulo its number of values;
rounds alternate, each can be undone, and together they permute. A result of n or more goes
through again until it is less, which about one in the square root of n needs. (Two halves of
equally many bits would send up to three in four through again.)

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
"""

import hashlib
import operator
from typing import Any, NamedTuple

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
        return _applied(int(np.searchsorted(_LAST, n)), at, int(n), int(key), None)
    lengths, keys = np.broadcast_arrays(np.asarray(n, np.int64), np.asarray(key, np.uint64))
    which = np.searchsorted(_LAST, lengths)
    if len(which) and (which == which[0]).all():
        return _applied(int(which[0]), at, lengths, keys, of)
    of = np.arange(len(at), dtype=np.int64) if of is None else of
    out, which = np.empty_like(at), which[of]
    for kind in range(len(_KINDS) + 1):
        these = np.flatnonzero(which == kind)
        if len(these):
            out[these] = _applied(kind, at[these], lengths, keys, of[these])
    return out


def _applied(kind: int, at: Ints, n: int | Ints, key: int | Keys, of: Ints | None) -> Ints:
    """``permuted``, where all lengths are of one kind."""
    if kind:
        return _walk(at, _domain(n, key, _KINDS[kind - 1]), of, _KINDS[kind - 1])
    if of is not None:
        n, key = np.asarray(n)[of], np.asarray(key, np.uint64)[of]
    return _ranked(at, n, key)


def _ranked(at: Ints, n: int | Ints, key: int | Keys) -> Ints:
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
