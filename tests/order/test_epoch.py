"""Epochs: the same rows whatever was asked before, from whichever thread."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndfeed.order import epoch as module
from ndfeed.order.orders import Blocks, Exact, Sequential, Windows

N = 60_000
ORDERS = [Sequential(), Exact(), Blocks(rows=64, window=8), Windows(files=16)]
COUNTS = np.full(600, 100)

each_order = pytest.mark.parametrize("order", ORDERS, ids=lambda o: type(o).__name__)


@each_order
@settings(max_examples=60, deadline=None)
@given(
    length=st.sampled_from([1, 3, 64, 256, 5000, 20_000]),
    distance=st.integers(0, 3000),
    first=st.integers(0, 5000),
    jumps=st.lists(st.integers(0, N), max_size=3),
)
def test_rows_do_not_depend_on_earlier_requests(order, length, distance, first, jumps):
    """Batches at regular distances are computed ahead; other requests come between."""
    epoch, whole = order.begin(N, 1, 2, COUNTS), order.begin(N, 1, 2, COUNTS).rows(0, N)
    starts = [*range(first, N, length + distance)][:12]
    for start in starts[:6] + jumps + starts[3:]:
        stop = min(start + length, N)
        assert (epoch.rows(start, stop) == whole[start:stop]).all()


@each_order
def test_rows_are_the_callers_own(order):
    """Writing to them changes nobody else's."""
    epoch = order.begin(N, 0, 0, COUNTS)
    for k in range(6):
        rows = epoch.rows(k * 100, k * 100 + 100)
        kept = rows.copy()
        rows[:] = -1
        assert epoch.rows(k * 100, k * 100 + 100).tolist() == kept.tolist()


@each_order
def test_many_threads_get_the_same_rows(order):
    """What is remembered between calls is never half replaced."""
    epoch, whole = order.begin(N, 3, 0, COUNTS), order.begin(N, 3, 0, COUNTS).rows(0, N)
    with ThreadPoolExecutor(8) as pool:
        for start, got in zip(
            range(0, N, 250),
            pool.map(lambda start: epoch.rows(start, start + 250), range(0, N, 250)),
            strict=True,
        ):
            assert (got == whole[start : start + 250]).all()


def test_regular_requests_are_computed_together(monkeypatch):
    """One rank of eight: one computation serves the next 128 of its batches."""
    epoch = Exact().begin(10**9, 0, 0)
    calls = []
    walked = type(epoch._walk).at
    monkeypatch.setattr(
        type(epoch._walk), "at", lambda self, p: calls.append(len(p)) or walked(self, p)
    )
    for k in range(130):
        epoch.rows(k * 2048, k * 2048 + 256)

    assert calls == [256, module._AHEAD, module._AHEAD]


@each_order
@pytest.mark.parametrize("span", [(-1, 5), (0, N + 1), (5, 4)])
def test_positions_outside_are_refused(order, span):
    """No clamping, and no counting from the end."""
    epoch = order.begin(N, 0, 0, COUNTS)

    with pytest.raises(IndexError, match=rf"positions must be in \[0, {N}\)"):
        epoch.rows(*span)
    with pytest.raises(IndexError, match=rf"positions must be in \[0, {N}\)"):
        epoch.arriving(*span)


@each_order
def test_an_empty_dataset_has_an_epoch(order):
    """Without rows, and without complaint."""
    epoch = order.begin(0, 0, 0, np.zeros(3, np.int64))

    assert epoch.rows(0, 0).tolist() == []
    assert not [a for a, b in epoch.arriving(0, 0) or [] if a < b]
    assert not epoch.held(0)


def test_what_arrives():
    """Rows as they lie arrive as they are asked for; those of an exact shuffle from anywhere."""
    assert Sequential().begin(100, 0, 0).arriving(3, 9) == [(3, 9)]
    assert Sequential().begin(100, 0, 0).held(3) == []
    assert Exact().begin(100, 0, 0).arriving(3, 9) is None
    assert Exact().begin(100, 0, 0).held(3) is None
