"""The permutation: a bijection at every length, and no worse than a true shuffle."""

import math
import tracemalloc

import numpy as np
import pytest
from children import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from order import battery

from ndfeed.order import permutation
from ndfeed.order.permutation import LARGEST, key_of, keys_from, permuted

KEYS = keys_from(key_of("test", 0, 0), np.arange(600_000))
LIMIT = 4.5  # deviations; one of 150,000 true statistics is further out
BORDERS = [8, 9, 16, 17, 512, 513, 1024, 2**16, 2**31, 2**32 - 1, 2**32, 2**32 + 1, LARGEST]


def test_every_short_length_is_permuted():
    """All lengths to 300, each with keys of its own."""
    for n in range(1, 301):
        for key in KEYS[:4]:
            assert sorted(permuted(np.arange(n), n, int(key)).tolist()) == list(range(n))


@pytest.mark.parametrize("n", [511, 512, 513, 65_535, 65_536, 65_537, 1_000_003])
def test_a_long_length_is_permuted(n):
    """Every row once."""
    assert (np.sort(permuted(np.arange(n), n, 7)) == np.arange(n)).all()


@settings(deadline=None, max_examples=examples(150))
@given(n=st.integers(1, LARGEST), key=st.integers(0, 2**64 - 1), seed=st.integers(0, 2**32))
@example(n=2**32 - 1, key=2**64 - 1, seed=0)
@example(n=2**32, key=0, seed=0)
@example(n=LARGEST, key=2**64 - 1, seed=0)
def test_samples_of_any_length_stay_inside_and_apart(n, key, seed):
    """Also at the ends, and at the border between the two word sizes."""
    inside = np.random.default_rng(seed).integers(0, n, 200)
    ends = np.concatenate((np.arange(min(n, 50)), n - 1 - np.arange(min(n, 50))))
    positions = np.unique(np.concatenate((inside, ends)))
    rows = permuted(positions, n, key)

    assert rows.dtype == np.int64
    assert 0 <= rows.min() <= rows.max() < n
    assert len(np.unique(rows)) == len(positions)


@settings(deadline=None, max_examples=examples(100))
@given(
    lengths=st.lists(st.integers(1, 40) | st.sampled_from(BORDERS), min_size=1, max_size=30),
    seed=st.integers(0, 2**32),
)
def test_many_lengths_at_once_are_as_one_by_one(lengths, seed):
    """One length and key for each position, or by a table: the same as alone."""
    rng = np.random.default_rng(seed)
    n, keys = np.array(lengths), KEYS[: len(lengths)]
    of = rng.integers(0, len(n), 100)
    positions = rng.integers(0, n[of])
    alone = [int(permuted([p], n[i], keys[i])[0]) for p, i in zip(positions, of, strict=True)]

    assert permuted(positions, n[of], keys[of]).tolist() == alone
    assert permuted(positions, n, keys, of).tolist() == alone


def test_no_positions_give_no_rows():
    """Of a number and of vectors."""
    none = np.empty(0, np.int64)

    assert len(permuted(none, 10, 1)) == 0
    assert len(permuted(none, none, none.astype(np.uint64))) == 0


@pytest.mark.parametrize("n", [0, -1, LARGEST + 1])
def test_lengths_outside_are_refused(n):
    """Beyond 2**62 the arithmetic would wrap."""
    with pytest.raises(ValueError, match=r"n must be in \[1, 2\*\*62\]"):
        permuted([0], n, 1)


def test_nothing_is_as_long_as_the_order():
    """A trillion rows cost no more memory than a thousand."""
    permuted(np.arange(1000), 10**12, 1)
    tracemalloc.start()
    permuted(np.arange(1000), 10**12, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 200_000


def few_values():
    """Statistics of orders that are permuted by ranks, or by the rounds for short ones."""
    for n in (2, 3, 4, 5, 6, 7):
        yield from battery.orders(permuted, n, KEYS[:100_000])
    for n in (9, 11, 24):
        yield from battery.triples(permuted, n, KEYS)
    for n in (64, 128, 256, 512):
        yield from battery.pairs(permuted, n, KEYS[:200_000])
    for n in (3, 10, 30, 100):
        yield from battery.places(permuted, n, KEYS[:1000])
    for n in (9, 25, 64, 300):
        yield from battery.cycles(permuted, n, KEYS[:1500])
    yield from battery.halves(permuted, 100, KEYS[:400])


def many_values(lengths):
    """Statistics of long orders."""
    for n in lengths:
        yield from battery.pairs(permuted, n, KEYS[:100_000])
        if n > 20_000:
            for key in KEYS[:2]:
                yield from battery.neighbours(permuted, n, int(key))
        if n <= 100_000:
            yield from battery.halves(permuted, n, KEYS[:400])
    if 1024 in lengths:
        yield from battery.cycles(permuted, 1024, KEYS[:500])


NARROW = (1024, 4096, 60_000, 10**6, 2**24 + 1, 1_600_000_000, 2**32 - 1)
WIDE = (2**32, 10**10, 10**12, 2**61 + 5)


def failures(statistics):
    """Those further out than chance."""
    return [f"{name}: {z:.1f}" for name, z in statistics if not abs(z) < LIMIT]


@pytest.mark.parametrize(
    "make",
    [few_values, lambda: many_values(NARROW), lambda: many_values(WIDE)],
    ids=["few", "narrow", "wide"],
)
def test_orders_are_those_of_a_true_shuffle(make):
    """No statistic tells them apart."""
    assert failures(make()) == []


@pytest.mark.parametrize(("fewer", "found"), [(4, True), (2, False)])
def test_the_margin_is_two_rounds(monkeypatch, fewer, found):
    """Two rounds fewer still pass, four fewer are found out: the battery can fail."""
    kinds = tuple(
        permutation._kind(kind.word, kind.bits, len(kind.multipliers) - fewer)
        for kind in permutation._KINDS
    )
    monkeypatch.setattr(permutation, "_KINDS", kinds)

    assert bool(failures(few_values())) == found
    assert bool(failures(many_values((1024, 4096, 60_000)))) == found


def test_a_true_shuffle_passes_the_battery():
    """The statistics themselves are right."""

    def true(positions, n, key):
        return np.random.default_rng(int(key)).permutation(n)[positions]

    made = [
        *battery.places(true, 10, KEYS[:1000]),
        *battery.cycles(true, 64, KEYS[:1000]),
        *battery.halves(true, 1000, KEYS[:400]),
        *battery.neighbours(true, 60_000, 3),
        *battery.strangers(true, 20_000, KEYS[:3]),
    ]

    assert failures(made) == []


@pytest.mark.parametrize("n", [20_000, 2**32 + 11])
@pytest.mark.parametrize(
    "pair",
    [
        ((0, 0), (1, 0)),
        ((0, 0), (0, 1)),
        ((3, 8), (8, 3)),
        ((5, 5), (6, 4)),
        ((0, 12), (1, 11)),
        ((-1, 0), (1, 0)),
        ((0, 0), (2**64, 0)),
        ((1, 11), (11, 1)),
    ],
)
def test_neighbouring_seeds_and_epochs_share_nothing(n, pair):
    """Seed and epoch are not added up: every pair of them has an order of its own."""
    keys = [key_of("exact", *one) for one in pair]
    positions = np.arange(20_000)
    p, q = (permuted(positions, n, key) for key in keys)

    assert abs(np.corrcoef(p, q)[0, 1]) * math.sqrt(len(p)) < LIMIT
    assert abs(battery.bins((p - q) % n, n)) < LIMIT
    assert (p == q).sum() < 10


def test_purposes_share_nothing():
    """An order and the rest of what a seed is used for."""
    made = {key_of(p, s, e) for p in ("exact", "blocks") for s in range(50) for e in range(50)}

    assert len(made) == 5000


def test_derived_keys_are_unlike():
    """No bit of a key says anything about the next one's."""
    keys = keys_from(5, np.arange(4096))
    flips = (keys[1:] ^ keys[:-1])[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    z = (flips.mean(axis=0) - 0.5) * 2 * math.sqrt(len(flips))

    assert len(np.unique(keys)) == len(keys)
    assert np.abs(z).max() < LIMIT
