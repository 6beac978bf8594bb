"""Which source comes at which position: proportions that hold in every stretch."""

import math

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ndfeed.order.period import Period, period_of

weights = st.lists(st.integers(0, 60), min_size=1, max_size=20).filter(any)


@settings(max_examples=examples(400), deadline=None)
@given(weights=weights)
def test_every_prefix_has_its_share(weights):
    """Counts of any prefix are less than one from their share, for each of up to 20 sources."""
    period = Period(tuple(weights))
    length = sum(weights)
    twice = np.concatenate([period.which, period.which])
    counts = np.cumsum(twice[:, None] == np.arange(len(weights)), axis=0)
    shares = np.arange(1, 2 * period.length + 1)[:, None] * np.array(weights)

    assert (np.abs(counts * length - shares) < length).all()
    assert counts[length - 1].tolist() == weights
    assert period.length % length == 0


@pytest.mark.parametrize("weights", [(3, 1), (1, 1), (7, 2, 1), (5, 3, 1, 1)])
@pytest.mark.parametrize(("world", "batch"), [(2, 1), (4, 1), (2, 5), (2, 25), (8, 3), (3, 16)])
def test_every_rank_has_its_share_of_every_source(weights, world, batch):
    """Within an eighth: were rounds alike, a rank might never see one of the sources."""
    period = Period(weights)
    position = np.arange(world * batch * 10_000)
    which, rank = period.which[position % period.length], position // batch % world
    for one in range(world):
        found = np.bincount(which[rank == one], minlength=len(weights)) * world / len(position)
        assert found == pytest.approx(np.array(weights) / sum(weights), rel=0.125, abs=0.02)


@settings(max_examples=examples(100), deadline=None)
@given(weights=weights, data=st.data())
def test_counts_at_any_position_are_those_of_the_table(weights, data):
    """However far: a position is found without the ones before it."""
    period = Period(tuple(weights))
    position = data.draw(st.integers(0, 3 * period.length))
    which = np.tile(period.which, 4)
    far = 10**15 * period.length
    for source, weight in enumerate(weights):
        count = period.count(source, position)
        assert count == (which[:position] == source).sum()
        rounds = period.length // sum(weights)
        assert period.count(source, far + position) == 10**15 * weight * rounds + count


@settings(max_examples=examples(100), deadline=None)
@given(weights=weights)
def test_a_rank_counts_the_same_source(weights):
    """``rank`` is how many rows of the same source come before, in the period."""
    period = Period(tuple(weights))
    for source in range(len(weights)):
        own = period.which == source
        assert period.rank[own].tolist() == list(range(own.sum()))


def test_a_large_period_is_exact_too():
    """Weights that need all of 65,536 positions."""
    made = (1, 3, 20011, 65536 - 20015)
    period = period_of(made)
    for source, weight in enumerate(made):
        counts = np.cumsum(period.which == source)
        share = np.arange(1, period.length + 1) * weight / period.length
        assert np.abs(counts - share).max() < 1
    assert math.gcd(*made) == 1
