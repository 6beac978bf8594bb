"""Who gets what: every sample once, whatever the ranks, the batch size and the resume point."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndfeed.order.rank_share import Share

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


@settings(max_examples=2000, deadline=None)
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


@settings(max_examples=300, deadline=None)
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
