"""The table of a weighted draw is exact: every sample has the units that its weight is worth."""

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ndfeed.files.threads import map_in_threads
from ndfeed.order import alias
from ndfeed.order.alias import digest, fill_table, measure_units

COLUMN = 1 << 32


def make(weights, each=map):
    """The table for some weights."""
    weights = np.asarray(weights)
    table = np.zeros(len(weights), np.uint64)
    fill_table(weights, measure_units(weights, each), table, each)
    return table


def units_of(table):
    """The units of each sample in all columns."""
    own, other = table >> np.uint64(32), (table & np.uint64(COLUMN - 1)).astype(np.int64)
    units = own.astype(np.int64)
    np.add.at(units, other, COLUMN - units.copy())
    return units


def check(weights):
    """Every unit is somebody's, and nobody's share is off by more than was promised."""
    weights = np.asarray(weights)
    units, n = units_of(make(weights)), len(weights)
    share = weights.astype(np.longdouble) / weights.astype(np.longdouble).sum()
    off = abs(units / np.longdouble(n * COLUMN) - share)

    assert int(units.sum()) == n * COLUMN
    assert (off < share / 2**30 + 2.0**-29 / np.count_nonzero(weights)).all()
    assert ((units > 0) == (weights > 0)).all()


@settings(max_examples=examples(400))
@given(
    weights=st.lists(
        st.one_of(
            st.floats(0, 1e300),
            st.floats(1e-300, 1e-290),
            st.sampled_from([0.0, 1.0, 2.0, 1e-12]),
        ),
        min_size=1,
        max_size=40,
    ).filter(any)
)
def test_any_weights(weights):
    """Tiny beside huge, zeros, and columns that are exactly full."""
    check(weights)


def many(kind, n):
    """Weights of many samples."""
    rng = np.random.default_rng(5)
    return {
        "uniform": rng.random(n),
        "equal": np.full(n, 0.1),
        "harmonic": 1 / np.arange(1, n + 1),
        "one heavy": np.r_[np.ones(n - 1), 1e6],
        "mostly zero": (rng.random(n) < 0.01) * rng.random(n),
        "u1": rng.integers(0, 256, n, dtype="u1"),
    }[kind]


KINDS = pytest.mark.parametrize(
    "kind", ["uniform", "equal", "harmonic", "one heavy", "mostly zero", "u1"]
)


@KINDS
def test_more_samples_than_are_worked_on_at_once(kind):
    """Who fills a column may come long before it, or after."""
    check(many(kind, 3 * alias._CHUNK + 17))


@KINDS
def test_threads_fill_the_same_table(kind, monkeypatch):
    """Whoever is first, and however many parts are filled at once."""
    weights = many(kind, 7 * alias._CHUNK + 17)
    expected = make(weights)
    monkeypatch.setattr(alias, "_BLOCK", 3)
    for _ in range(3):
        made = make(weights, lambda function, items: map_in_threads(function, items, 4))
        np.testing.assert_array_equal(made, expected)


def test_a_digest_tells_weights_apart():
    """Of any type and scale, if they mean the same; a change anywhere shows."""

    def told(weights):
        weights = np.asarray(weights)
        return digest(weights, measure_units(weights))

    weights = np.random.default_rng(0).integers(1, 100, 2 * alias._CHUNK + 5)
    first = told(weights)
    assert first == told(weights.astype("f4")) == told(weights * 0.5)
    for at in (0, alias._CHUNK, len(weights) - 1):
        changed = weights.copy()
        changed[at] += 1
        assert told(changed) != first
    assert told(weights[::-1]) != first
    assert told(weights[:-1]) != first
    assert first == "5d4866f63672bddf817cf9c53547e1c3"
