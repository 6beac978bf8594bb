"""``loading.batch_rows``: the rows of batches, whoever asks for which of them, and when."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndfeed.loading.batch_rows import BatchRows, Chunk


class Order:
    """An order of which every row is a number of its own, and which counts what it computes."""

    def __init__(self, count, size):
        self.count, self.size = count, size
        self.computed = []
        self.foreseen = []
        self.working = self.most = 0

    def compute(self, first, stop):
        self.working += 1
        self.most = max(self.most, self.working)
        self.computed.append((first, stop))
        rows = self.rows(first, stop)
        self.working -= 1
        return Chunk(rows, self.size, None)

    def rows(self, first, stop):
        return np.arange(first * self.size, stop * self.size) * 7 + 3

    def make(self, together):
        return BatchRows(self.compute, self.foreseen.append, self.size, together, self.count)


@given(
    size=st.sampled_from([1, 64, 1000, 4096, 70_000]),
    together=st.integers(1, 40),
    steps=st.lists(st.integers(1, 40), max_size=30),
    looks=st.booleans(),
)
def test_every_batch_has_its_rows(size, together, steps, looks):
    """Of any size, in groups that begin anywhere, computed before or not."""
    order = Order(sum(steps), size)
    rows, first = order.make(together), 0
    for step in steps:
        stop = first + step
        if looks:
            np.testing.assert_array_equal(rows.look_at(first, stop), order.rows(first, stop))
            rows.compute_ahead(stop)
        np.testing.assert_array_equal(rows.take(first, stop), order.rows(first, stop))
        first = stop


def test_large_groups_are_computed_once():
    """Also if they were looked at before, to find out whether they are in memory."""
    order = Order(640, 4096)
    rows = order.make(64)
    for first in range(0, 640, 64):
        rows.look_at(first, first + 64)
        rows.compute_ahead(first + 64)
        rows.take(first, first + 64)
    assert order.computed == [(first, first + 64) for first in range(0, 640, 64)]
    assert [len(one) for one in order.foreseen] == [64 * 4096] * 10


def test_small_groups_share_what_is_computed():
    """Each step of an order costs a call of NumPy's, however few rows it computes."""
    order = Order(10_000, 64)
    rows = order.make(16)
    for first in range(0, 10_000, 16):
        rows.take(first, min(first + 16, 10_000))
    assert len(order.computed) < 5
    assert order.computed[0] == (0, 256)  # few at first: somebody waits for them


def test_few_groups_are_kept_that_nobody_makes():
    """As of an epoch that ends early: their rows would take memory for nothing."""
    order = Order(64_000, 4096)
    rows = order.make(64)
    for first in range(0, 6400, 64):
        rows.look_at(first, first + 64)
    assert len(rows._early) <= 8


@pytest.mark.parametrize("copying", [10.0, 0.0])
def test_threads_take_turns_where_reading_takes_longer(copying):
    """Two that work on the order at once take longer; but nobody waits where reading is faster."""
    order, began = Order(6400, 4096), threading.Barrier(2)
    rows = order.make(64)

    def make(number):
        rows.note_copy(copying)
        rows.take(64 * number, 64 * number + 64)

    for number in range(2):  # now it is known that there are two, and how long the order takes
        thread = threading.Thread(target=make, args=(number,))
        thread.start()
        thread.join()
    meet = order.compute

    def compute(first, stop):
        order.working += 1
        order.most = max(order.most, order.working)
        with contextlib.suppress(threading.BrokenBarrierError):
            began.wait(0.2)
        order.working -= 1
        return meet(first, stop)

    rows._compute = compute
    order.most = 0
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, (2, 3)))
    assert order.most == (1 if copying else 2)
