"""The sliding window, and files divided among ranks: every row comes once.

Every part of the window comes in one stretch, and nothing is as long as the data. With lanes, every
file stays with one rank, whatever the number of ranks.
"""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ndfeed.order import window as module
from ndfeed.order.epoch import Share
from ndfeed.order.orders import Blocks, Windows
from ndfeed.order.permutation import EqualParts, ListedParts
from ndfeed.order.window import WindowWalk, make_lanes

counts_of_files = st.one_of(
    st.lists(st.integers(0, 2), min_size=1, max_size=60),
    st.lists(st.integers(0, 40), min_size=1, max_size=25),
    st.lists(st.sampled_from([0, 1, 1, 1, 300]), min_size=1, max_size=25),
)


@st.composite
def cases(draw):
    """(order, rows, rows per file, part of each row)."""
    if draw(st.booleans()):
        counts = np.array(draw(counts_of_files))
        part = np.repeat(np.arange(len(counts)), counts)
        return Windows(draw(st.integers(1, 30))), len(part), counts, part
    n, rows = draw(st.integers(0, 400)), draw(st.integers(1, 50))
    return Blocks(rows, draw(st.integers(1, 30))), n, None, np.arange(n) // rows


def begin(case, seed=0, epoch=0):
    order, n, counts, _ = case
    return order.begin(n, seed, epoch, counts)


@settings(max_examples=examples(600), deadline=None)
@given(case=cases(), seed=st.integers(), epoch=st.integers(0, 1000))
def test_every_row_comes_once(case, seed, epoch):
    """Whatever the sizes, the window and the seed."""
    n = case[1]

    assert sorted(begin(case, seed, epoch).rows(0, n).tolist()) == list(range(n))


@settings(max_examples=examples(600), deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_a_part_is_open_for_one_stretch_of_slots(case, seed):
    """w parts at most are open in a slot, and each goes for good when its slots have passed."""
    _, n, _, part = case
    walk = begin(case, seed)._walk
    if n == 0:
        return
    starts = [walk.rows_before(t) for t in range(walk.slots + 1)]
    parts = part[walk.at(np.arange(n))]
    window = walk._window
    order = np.array([part[first] for first, _ in walk._ranges(0, n)])
    place = np.empty(int(part.max()) + 1, np.int64)
    place[order] = np.arange(len(order))

    assert starts[0] == 0
    assert starts[-1] == n
    assert all(a < b for a, b in pairwise(starts))
    for t, (a, b) in enumerate(pairwise(starts)):
        assert set(place[parts[a:b]]) <= set(range(t, t + window))


@settings(max_examples=examples(600), deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32), data=st.data())
def test_any_cut_gives_the_same_rows_and_every_part_arrives_once(case, seed, data):
    """In time for its first row, and held by whoever begins in the middle."""
    n, part = case[1], case[3]
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6), "cuts"))
    spans = list(zip([0, *cuts], [*cuts, n], strict=True))
    whole, epoch = begin(case, seed).rows(0, n), begin(case, seed)
    came: set[int] = set()
    for start, stop in spans:
        rows, arriving = epoch.rows(start, stop), epoch.arriving(start, stop)
        held = {a for a, _ in epoch.held(start)}
        needed = {a for a in came if set(whole[start:].tolist()) & members(part, a)}
        assert needed <= held <= came
        came_now = {a for a, _ in arriving}
        assert len(came_now) == len(arriving)
        assert not came_now & came
        assert all(set(range(a, b)) == members(part, a) for a, b in arriving)
        came |= came_now
        assert (rows == whole[start:stop]).all()
        assert set(part[rows]) <= {part[a] for a in came}

    assert len(came) == len(np.unique(part))


def members(part, first):
    """All rows of the part that begins at ``first``."""
    return set(np.flatnonzero(part == part[first]).tolist())


@settings(max_examples=examples(100), deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32), rows=st.sampled_from([1, 7, 64]))
def test_how_slots_are_laid_out_changes_nothing(case, seed, rows):
    """By slice or by row, few slots at a time or many, listed or searched."""
    n = case[1]
    expected = begin(case, seed).rows(0, n)
    changes = {"_ROWS": rows, "_SLICES": 3 * rows, "_LISTED": 10 * rows}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setattr(module, name, value)
        few = begin(case, seed).rows(0, n)
        patch.setattr(WindowWalk, "_by_row", WindowWalk._by_slice)
        sliced = begin(case, seed).rows(0, n)

    assert few.tolist() == expected.tolist()
    assert sliced.tolist() == expected.tolist()


def test_a_part_is_spread_evenly_over_its_life():
    """Every slot of the middle takes the same share of each open part."""
    walk = WindowWalk(EqualParts(64 * 40, 64, 1), 8, 1)
    slot = np.arange(walk.rows_before(15), walk.rows_before(16))

    assert np.unique(walk.at(slot) // 64, return_counts=True)[1].tolist() == [8] * 8


def test_ten_billion_rows_cost_no_more_than_ten_thousand():
    """Nothing is as long as the rows or the blocks, and few slots are looked at."""
    peaks = []
    for n in (10**6, 10**10):
        epoch = Blocks().begin(n, 0, 0)
        middle = n // 2
        tracemalloc.start()
        rows = epoch.rows(middle, middle + 256)
        epoch.arriving(middle, middle + 256)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(np.unique(rows)) == 256
        assert 0 <= rows.min() <= rows.max() < n

    assert peaks[1] < 1.2 * peaks[0] < 6_000_000


def test_a_slot_is_found_by_few_looks(monkeypatch):
    """A bisection among the slots of one window, not among all."""
    looks = []
    counted = WindowWalk.rows_before
    monkeypatch.setattr(
        WindowWalk, "rows_before", lambda self, slot: looks.append(slot) or counted(self, slot)
    )
    Blocks().begin(10**12, 0, 0).rows(10**11, 10**11 + 10)

    assert len(looks) <= 8


def test_the_end_of_ten_billion_rows():
    """Also the short block has its place, and no row is past the end."""
    n = 10**10 + 17
    epoch = Blocks().begin(n, 5, 0)
    parts = epoch._walk._parts
    short = np.array([parts._short])
    last = epoch.rows(n - 50_000, n)

    assert parts.sizes(short).tolist() == [n % 4096]
    assert parts.firsts(short).tolist() == [n - n % 4096]
    assert last.max() < n
    assert len(np.unique(last)) == len(last)


def test_one_huge_file_among_tiny_ones_is_not_listed():
    """Memory follows what is asked for, not the largest file."""
    counts = np.ones(1_000_000, np.int64)
    counts[500] = 5_000_000
    epoch = Windows(16).begin(int(counts.sum()), 0, 0, counts)
    place = int(np.flatnonzero(epoch._walk._parts._sizes > 1)[0])
    tracemalloc.start()
    epoch.rows(place, place + 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 20_000_000


def test_the_short_block_stands_anywhere():
    """Over seeds, its place is even over all places."""
    places = [EqualParts(95, 10, key)._short for key in range(0, 2**64, 2**64 // 2000)]
    counts = np.bincount(places, minlength=10)

    assert len(counts) == 10
    assert ((counts - 200) ** 2 / 200).sum() < 30


def test_empty_files_are_left_out():
    """They have nothing to wait for."""
    parts = ListedParts.permuted(np.array([0, 3, 0, 2, 0]), 1)

    assert parts.count == 2
    assert sorted(parts.sizes(np.arange(2)).tolist()) == [2, 3]


FROZEN = [0, 10, 9, 11, 1, 5, 7, 6, 2, 3, 8, 4]

sizes = st.lists(st.integers(0, 30), min_size=1, max_size=40).map(lambda n: np.array(n, np.int64))


def files_of(rows, counts):
    """The files that rows lie in."""
    return set(np.searchsorted(np.cumsum(counts), rows, side="right").tolist())


@given(sizes, st.integers(1, 6), st.integers(2, 9), st.integers(0, 3))
@settings(max_examples=examples(200))
def test_every_row_comes_once_in_lanes(counts, files, ranks, epoch):
    """However few files there are, and however many of them are empty."""
    n = int(counts.sum())
    found = Windows(files, ranks).begin(n, 7, epoch, counts)

    assert sorted(found.rows(0, n).tolist()) == list(range(n))


@given(sizes, st.integers(2, 8), st.integers(1, 9), st.integers(1, 7), st.data())
@settings(max_examples=examples(200))
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
@settings(max_examples=examples(100))
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
@settings(max_examples=examples(100))
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
