"""Files divided among ranks: every row once, whatever the ranks, and files that stay apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndfeed.order.orders import Windows
from ndfeed.order.rank_share import Share
from ndfeed.order.window import make_lanes

FROZEN = [0, 10, 9, 11, 1, 5, 7, 6, 2, 3, 8, 4]

sizes = st.lists(st.integers(0, 30), min_size=1, max_size=40).map(lambda n: np.array(n, np.int64))


def files_of(rows, counts):
    """The files that rows lie in."""
    return set(np.searchsorted(np.cumsum(counts), rows, side="right").tolist())


@given(sizes, st.integers(1, 6), st.integers(2, 9), st.integers(0, 3))
@settings(max_examples=200)
def test_every_row_comes_once(counts, files, ranks, epoch):
    """However few files there are, and however many of them are empty."""
    n = int(counts.sum())
    found = Windows(files, ranks).begin(n, 7, epoch, counts)

    assert sorted(found.rows(0, n).tolist()) == list(range(n))


@given(sizes, st.integers(2, 8), st.integers(1, 9), st.integers(1, 7), st.data())
@settings(max_examples=200)
def test_ranks_cover_an_epoch_and_what_is_left_of_one(counts, ranks, world, size, data):
    """Any world size, from any position on: resuming with other ranks loses and repeats nothing."""
    n = int(counts.sum())
    start = data.draw(st.integers(0, n))
    epoch = Windows(3, ranks).begin(n, 1, 0, counts)
    shares = [Share(n, size, rank, world) for rank in range(world)]
    before = epoch.rows(0, start).tolist()
    batches = [[share.stripes(k, start) for k in range(share.batches(start))] for share in shares]
    lengths = [[sum(len(range(*one)) for one in spans) for spans in each] for each in batches]
    rest = [row for each in batches for (span,) in each for row in epoch.rows(*span).tolist()]

    assert sorted(before + rest) == list(range(n))
    assert len({len(each) for each in batches}) == 1
    for k in range(len(batches[0])):
        of_batch = [each[k] for each in lengths]
        assert max(of_batch) - min(of_batch) <= 1
        assert k == len(batches[0]) - 1 or set(of_batch) == {size}


@given(sizes, st.sampled_from([(4, 4), (4, 2), (8, 4), (6, 3), (6, 2)]), st.integers(0, 2))
@settings(max_examples=100)
def test_ranks_that_divide_the_lanes_share_no_file_but_at_cuts(counts, shape, epoch):
    """A file is on two ranks only if one of the cuts falls into it."""
    ranks, world = shape
    n = int(counts.sum())
    found = Windows(2, ranks).begin(n, 3, epoch, counts)
    used = [
        files_of(found.rows(rank, n, world), counts) if rank < n else set() for rank in range(world)
    ]

    assert sum(map(len, used)) - len(set().union(*used)) <= ranks - 1


@given(sizes, st.sampled_from([(4, 4), (4, 2), (6, 4), (4, 3), (5, 1)]), st.integers(1, 5))
@settings(max_examples=100)
def test_what_arrives_is_what_a_rank_needs(counts, shape, size):
    """All of it, no later than it is needed, and nothing of lanes that are others'."""
    ranks, world = shape
    n = int(counts.sum())
    order = Windows(2, ranks)
    found = order.begin(n, 3, 0, counts)
    for rank in range(world):
        share = Share(n, size, rank, world)
        windows = order.begin_lanes(n, 3, 0, counts, make_lanes(ranks, [rank], world))
        arrived = np.zeros(n, bool)
        for k in range(share.batches()):
            for window in windows:
                for first, end in window.arriving(share.consumed(k), share.consumed(k + 1)):
                    arrived[first:end] = True
            (span,) = share.stripes(k)
            assert arrived[found.rows(*span)].all()
        if ranks % world == 0:
            own = found.rows(min(rank, n), n, world)
            assert arrived.sum() == len(own)


@pytest.mark.parametrize(("position"), [0, 1, 17, 40, 99])
def test_what_is_held_is_what_arrived_and_is_still_needed(position):
    """A pass that begins in the middle has all it needs."""
    counts = np.array([13, 20, 7, 30, 20, 10])
    order = Windows(2, 3)
    found = order.begin(100, 0, 0, counts)
    there = np.zeros(100, bool)
    for window in order.begin_lanes(100, 0, 0, counts, [0, 1, 2]):
        for first, end in (*window.held(position), *window.arriving(position, 100)):
            there[first:end] = True

    assert there[found.rows(position, 100)].all()


def test_one_rank_is_the_order_without_ranks():
    """And its state, which older runs have saved."""
    assert Windows(4, 1) == Windows(4)
    assert Windows(4).spec() == {"kind": "windows", "files": 4}
    assert repr(Windows(4)) == "Windows(files=4)"
    assert Windows(4, ranks=8).spec() == {"kind": "windows", "files": 4, "ranks": 8}
    assert repr(Windows(4, ranks=8)) == "Windows(files=4, ranks=8)"


def test_the_order_is_frozen():
    """A run that is repeated after an update must be the same run: these may not change."""
    found = Windows(2, 2).begin(12, 5, 1, np.array([3, 4, 5]))

    assert found.rows(0, 12).tolist() == FROZEN


def test_what_ranks_must_be():
    """A number of them."""
    with pytest.raises(ValueError, match="ranks must be at least 1, got 0"):
        Windows(4, 0)
    with pytest.raises(TypeError, match="ranks must be an integer, got 'all'"):
        Windows(4, "all")


@given(st.integers(1, 60), st.integers(1, 12))
def test_lanes_of_all_ranks_are_all_lanes(count, world):
    """Each of them is somebody's."""
    found = [make_lanes(count, [rank], world) for rank in range(world)]

    assert set().union(*found) == set(range(count))
    if count % world == 0:
        assert sum(map(len, found)) == count
    assert make_lanes(count, range(world), world) == list(range(count))
