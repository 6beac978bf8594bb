"""Weights as whole numbers: exact where they can be, and never rounded away."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ndfeed.dataset.proportions import Proportions, make_stages

NUMBERS = st.floats(0, 1e6) | st.integers(0, 10**12)


def whole(weights, rows=(10, 20, 30)):
    """The whole numbers that some weights become."""
    ((place, found),) = make_stages(weights, "abc"[: len(rows)], rows)
    assert place == (0, 0)
    return found


class Tensor:
    """An array of another library: its elements are no numbers, and its text has many lines."""

    def __init__(self, values):
        self._values = values

    def __array__(self, dtype=None, copy=None):
        return self._values

    def __iter__(self):
        return map(Tensor, self._values)

    def __repr__(self):
        return "Tensor\nof values"


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([3, 1, 2], (3, 1, 2)),
        ([6, 2, 4], (3, 1, 2)),
        ([0.1, 0.2, 0.7], (1, 2, 7)),
        ([0.5, 0, 0.25], (2, 0, 1)),
        (np.array([0.1, 0.2, 0.7], np.float32), (1, 2, 7)),
        (Tensor(np.array([0.1, 0.2, 0.7], np.float32)), (1, 2, 7)),
        ([1e-3, Decimal("0.002"), Fraction(1, 3)], (3, 6, 1000)),
        ({"c": 3, "a": 1, "b": 2}, (1, 2, 3)),
        (None, (1, 2, 3)),
    ],
)
def test_weights_are_taken_as_written(weights, expected):
    """One tenth is one tenth, and not the number next to it that a computer has."""
    assert whole(weights) == expected


@settings(max_examples=examples(400), deadline=None)
@given(
    weights=st.lists(st.floats(0, 1e6) | st.integers(0, 10**12), min_size=1, max_size=20).filter(
        any
    )
)
def test_rounded_weights_are_close(weights):
    """To one part in 65,536 of the whole, or as close as the largest sum allows."""
    ((_, found),) = make_stages(weights, [f"{i}" for i in range(len(weights))], [1] * len(weights))
    total = sum(found)
    exact = [Fraction(str(one)) for one in weights]

    assert total <= 1 << 20
    assert [one > 0 for one in found] == [one > 0 for one in exact]
    for one, share in zip(found, exact, strict=True):
        assert abs(Fraction(one, total) - share / sum(exact)) <= Fraction(len(weights), 65536)


def test_a_small_weight_gets_a_larger_table():
    """One in a million is still there, in its proportion as far as 2**20 goes."""
    assert whole([10**6, 1], (1, 1)) == (2**20 - 1, 1)
    assert whole([10**9, 1], (1, 1)) == (2**20 - 1, 1)


def test_weights_by_epoch():
    """From each epoch on; a list or a dict for each."""
    found = make_stages({5: {"b": 1, "a": 1}, 0: [3, 1]}, ("a", "b"), (1, 1))

    assert found == (((0, 0), (3, 1)), ((5, 0), (1, 1)))
    made = Proportions(("a", "b"), (1, 1), found, "first")
    assert f"{made}" == (
        "Proportions(rows={'a': 1, 'b': 1}, weights={0: [3, 1], 5: [1, 1]}, end='first')"
    )
    assert made.weights == {"a": 3, "b": 1}


def test_weights_from_a_sample_on():
    """Of an epoch; without one it is the first."""
    found = make_stages({(0, 700): [1, 1], 0: [3, 1], (2, 0): [1, 2]}, ("a", "b"), (1, 1))

    assert found == (((0, 0), (3, 1)), ((0, 700), (1, 1)), ((2, 0), (1, 2)))
    made = Proportions(("a", "b"), (1, 1), found, "first")
    assert "weights={0: [3, 1], (0, 700): [1, 1], 2: [1, 2]}" in f"{made}"
    assert make_stages({(0, 0): [3, 1]}, ("a", "b"), (1, 1)) == found[:1]


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1, -1], "'b' must be at least 0 and finite, got -1; 0 leaves a source out"),
        ([1, float("nan")], "'b' must be at least 0 and finite, got nan"),
        ([1, float("inf")], "got inf"),
        ([0, 0], "are all zero; make one of them positive"),
        ([1], "must have one for each of 2 sources, got 1; list those of 'a', 'b'"),
        ([1, 2, 3], "must have one for each of 2 sources, got 3"),
        ({"a": 1, "x": 2}, "has 'x', which is no source; sources are 'a', 'b'"),
        ({"a": 1}, "has none for 'b'; add it, with 0 if it is not wanted"),
        ({1: [1, 1]}, "must say what holds from epoch 0 on, and begin with epoch 1; add 0"),
        ({-1: [1, 1], 0: [1, 1]}, "epochs are counted from 0, got -1"),
        ({0: [1, 1], 3: [0, 0]}, "from epoch 3 on are all zero"),
        ({}, "has none for 'a'"),
        ({0: [1, 1], (0, -5): [1, 1]}, r"samples are counted from 0, got \(0, -5\)"),
        ({0: [1, 1], (0, 1 << 62): [1, 1]}, "samples are counted from 0 and below 2"),
        ({0: [1, 1], (1,): [1, 1]}, r"keys are epochs, or pairs of .* \(0, 100_000\), got \(1,\)"),
        ({0: [1, 1], (0, 1.5): [1, 1]}, r"keys are epochs, or pairs .* got \(0, 1.5\)"),
        ({0: [1, 1], (0, True): [1, 1]}, "keys are epochs, or pairs"),
        ({0: [1, 1], "a": 3}, "keys are epochs, or pairs .*, got 'a'"),
        ({0: [1, 1], 2.5: [1, 1]}, "keys are epochs, or pairs .*, got 2.5"),
        ({0: [1, 1], (0, 0): [1, 1]}, r"has epoch 0 twice, as 0 and as \(0, 0\); remove one"),
        ({(0, 7): [1, 1]}, "and begin with sample 7 of epoch 0; add 0: "),
        ({0: [1, 1], (3, 1000): [0, 0]}, "from sample 1,000 of epoch 3 on are all zero"),
    ],
)
def test_wrong_weights_are_refused(weights, text):
    """In one line that says what to do."""
    with pytest.raises(ValueError, match=text) as caught:
        make_stages(weights, ("a", "b"), (1, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "weights",
    ["31", 3, [1, "2"], [True, 1], [None, 1], [1j, 1], {3, 1}, np.float64(3), [Tensor(None), 1]],
)
def test_weights_must_be_numbers(weights):
    """Of any kind, in an order: a set has none."""
    with pytest.raises(TypeError, match="weights") as caught:
        make_stages(weights, ("a", "b"), (1, 1))
    assert "\n" not in str(caught.value)
