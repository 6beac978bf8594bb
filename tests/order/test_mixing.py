"""Mixing: the number is what a simulation of the worst case finds."""

import numpy as np
import pytest

from ndfeed.order.orders import Blocks, Exact, Sequential, Windows

UNEVEN = np.random.default_rng(0).integers(5, 60, 120)
CASES = [
    (Blocks(rows=64, window=8), 64 * 120, 32, np.full(120, 64)),
    (Blocks(rows=64, window=8), 64 * 120, 256, np.full(120, 64)),
    (Blocks(rows=100, window=40), 100 * 45, 20, np.full(45, 100)),
    (Blocks(rows=10, window=100), 1000, 50, np.full(100, 10)),
    (Blocks(rows=100, window=1), 10_000, 50, np.full(100, 100)),
    (Windows(files=6), int(UNEVEN.sum()), 16, UNEVEN),
    (Windows(files=64), 1000, 32, np.ones(1000, np.int64)),
    (Sequential(), 10_000, 50, np.full(100, 100)),
]


def variance(rows, part, batch_size, rng):
    """Of a batch's mean, if every part has one value, drawn anew each time."""
    rows = rows[: len(rows) // batch_size * batch_size].reshape(-1, batch_size)
    values = rng.standard_normal((200, part.max() + 1))
    return float(np.mean([np.square(one[part[rows]].mean(axis=1)).mean() for one in values]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_mixing_is_what_a_simulation_finds(case):
    """Within a tenth, of several epochs; batches there also straddle slots."""
    order, n, batch_size, counts = case
    part = np.repeat(np.arange(len(counts)), counts)
    rng = np.random.default_rng(1)
    exact, ours = (
        sum(
            variance(one.begin(n, seed, 0, counts).rows(0, n), part, batch_size, rng)
            for seed in range(8)
        )
        for one in (Exact(), order)
    )

    assert order.mixing(n, batch_size, counts) == pytest.approx(exact / ours, rel=0.1)


def test_a_wider_window_mixes_better():
    """Up to an exact shuffle, which has 1."""
    found = [Blocks(4096, window).mixing(10**7, 256) for window in (1, 4, 32, 256, 2442)]

    assert found == sorted(found)
    assert found[0] < 0.005
    assert found[-1] == pytest.approx(1, abs=1e-3)
    assert Exact().mixing(10**7, 256) == 1


def test_the_number_of_the_middle():
    """32 blocks open: two rows of a batch of 256 are of one block with about 1/32."""
    expected = (1 + 255 * 4096 / 10**10) / (1 + 255 / 32)

    assert Blocks().mixing(10**10, 256) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("order", [Sequential(), Exact(), Blocks(), Windows()])
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_tiny_datasets_have_a_mixing(order, n):
    """Also where there are no two rows to compare."""
    assert 0 < order.mixing(n, 8, np.array([n, 0])) <= 1
    assert order.mixing(n, 1, np.array([n, 0])) == 1
