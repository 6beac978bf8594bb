"""Epochs give the same rows whatever was requested before, and by whichever thread.

Ranks get every sample once, whatever their number, the batch size and the resume point.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ndfeed.order import epoch as module
from ndfeed.order.epoch import Share
from ndfeed.order.orders import Blocks, Exact, Sequential, Windows

N = 60_000
ORDERS = [Sequential(), Exact(), Blocks(rows=64, window=8), Windows(files=16)]
COUNTS = np.full(600, 100)

each_order = pytest.mark.parametrize("order", ORDERS, ids=lambda o: type(o).__name__)


@each_order
@settings(max_examples=examples(60), deadline=None)
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


sizes = st.integers(1, 9)


def delivered(n, batch_size, world, drop_last, start):
    """The positions of every global batch, rank after rank, from ``start`` on."""
    shares = [Share(n, batch_size, rank, world, drop_last) for rank in range(world)]
    counts = {share.batches(start) for share in shares}
    assert len(counts) == 1  # or some rank would wait for others for ever
    batches = []
    for k in range(counts.pop()):
        spans = [span for share in shares for span in share.spans(k, start)]
        assert all(b - a <= batch_size for a, b in spans)
        batches.append([p for a, b in spans for p in range(a, b)])
    return batches


@settings(max_examples=examples(2000), deadline=None)
@given(
    n=st.integers(0, 200),
    first=st.tuples(sizes, sizes),
    second=st.tuples(sizes, sizes),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_every_sample_once_across_a_resume(n, first, second, drop_last, data):
    """An epoch left after any global batch goes on with any other ranks and batch size."""
    before = delivered(n, *first, drop_last, 0)
    k = data.draw(st.integers(0, len(before)), "batches before the break")
    start = Share(n, first[0], 0, first[1], drop_last).consumed(k)
    after = delivered(n, *second, drop_last, start)
    seen = [p for batch in before[:k] + after for p in batch]
    left = (n - start) % (second[0] * second[1]) if drop_last else 0

    assert seen == list(range(n - left))
    assert all(len(batch) == second[0] * second[1] for batch in after[:-1])
    if first[0] * first[1] == second[0] * second[1]:
        assert before[k:] == after


@settings(max_examples=examples(300), deadline=None)
@given(n=st.integers(1, 100), batch_size=sizes, world=sizes)
def test_a_short_last_batch_is_split_evenly(n, batch_size, world):
    """Sizes differ by one at most, the larger first."""
    shares = [Share(n, batch_size, rank, world) for rank in range(world)]
    spans = [share.spans(share.batches() - 1)[0] for share in shares]
    lengths = [b - a for a, b in spans]

    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


def test_what_each_rank_gets():
    """22 samples, two ranks of four: two full batches and three each of the rest."""
    shares = [Share(22, 4, rank, 2) for rank in range(2)]

    assert [[s.spans(k)[0] for k in range(s.batches())] for s in shares] == [
        [(0, 4), (8, 12), (16, 19)],
        [(4, 8), (12, 16), (19, 22)],
    ]
    assert [shares[0].consumed(k) for k in range(4)] == [0, 8, 16, 22]
    assert shares[0].together == 8
    assert Share(22, 4, 0, 2, drop_last=True).batches() == 2
    assert Share(22, 4, 0, 2, drop_last=True).batches(10) == 1
    assert Share(10, 4, 3, 4).spans(0) == [(8, 10)]
    assert Share(2, 4, 3, 4).spans(0) == [(2, 2)]


def test_several_ranks_at_once():
    """A process that feeds several devices takes the slices of all of them."""
    share = Share(22, 2, 0, 4, others=(2,))

    assert (share.ranks, share.size, share.together) == ((0, 2), 4, 8)
    assert [share.spans(k) for k in range(share.batches())] == [
        [(0, 2), (4, 6)],
        [(8, 10), (12, 14)],
        [(16, 18), (20, 21)],
    ]


@pytest.mark.parametrize("others", [(1,), (0, 2), (3, 2), (2, 4)])
def test_ranks_must_rise(others):
    """Samples come in the order of the epoch, each once."""
    with pytest.raises(ValueError, match=r"ranks must rise within \[0, 4\)"):
        Share(22, 2, 1, 4, others=others)


def test_large_numbers_and_numpy_integers():
    """Nothing wraps, and integers of arrays are as good as any."""
    share = Share(np.int64(10**15), np.int64(1000), 7, 8)

    assert share.spans(share.batches() - 1) == [(10**15 - 1000, 10**15)]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"rank": 8, "world": 8}, ValueError, r"rank must be in \[0, 8\), got 8"),
        ({"rank": -1}, ValueError, r"rank must be in \[0, 1\), got -1"),
        ({"world": 0}, ValueError, "world must be at least 1, got 0"),
        ({"n": -1}, ValueError, "n must be at least 0, got -1"),
        ({"batch_size": True}, TypeError, "batch_size must be an integer, got True"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an integer, got 2.0"),
        ({"rank": "0"}, TypeError, "rank must be an integer, got '0'"),
        ({"drop_last": 1}, TypeError, "drop_last must be True or False, got 1"),
    ],
)
def test_wrong_arguments_are_refused(wrong, error, message):
    """At construction, not at the first batch."""
    with pytest.raises(error, match=message):
        Share(**{"n": 10, "batch_size": 2} | wrong)


def test_batches_and_starts_outside_are_refused():
    """No counting from the end."""
    share = Share(10, 4)

    with pytest.raises(IndexError, match=r"batches must be in \[0, 3\), got 3"):
        share.spans(3)
    with pytest.raises(IndexError, match=r"batches must be in \[0, 3\), got -1"):
        share.spans(-1)
    with pytest.raises(ValueError, match=r"start must be in \[0, 10\], got 11"):
        share.batches(11)
