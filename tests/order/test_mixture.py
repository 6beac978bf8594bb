"""A mixture of sources as an order: every source walks its own rows, and nothing else changes."""

import itertools
import json
import pickle
import random
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from order.known import check_resume, in_cases

from ndfeed.order.epoch import Share
from ndfeed.order.mixture import Mixture, Start
from ndfeed.order.orders import Blocks, Exact, Sequential, Windows
from ndfeed.order.period import period_of
from ndfeed.order.permutation import key_of
from ndfeed.order.protocol import Plain, Progress, Traits
from ndfeed.order.streams import Source, cut_counts


@dataclass
class Facts:
    """What is known of no samples at all."""

    n: int
    batch_size: int = 4
    world: int = 1


EXACT = Exact()
SOME = [Exact(), Sequential(), Blocks(rows=3, window=2), Windows(files=2), Blocks(50, window=1)]
ORDERS = st.sampled_from(SOME)
CASES = 2000


def mixture(rows, weights, end="first", orders=EXACT, stages=None, names="abcdefghij"):
    """A mixture of sources of so many rows, bound."""
    each = orders if isinstance(orders, list) else [orders] * len(rows)
    sources = tuple(map(Source, names, rows, each))
    made = Mixture(sources, stages or (((0, 0), tuple(weights)),), end)
    return made.bind(Facts(sum(rows)))


def rows_of(order, epoch, counts=None, seed=0):
    n = sum(source.rows for source in order.sources)
    length = order.cut(Share(n, 4), seed, epoch).n
    return order.begin(n, seed, epoch, counts).rows(0, length)


def split(rows, sizes):
    """The rows of each source, in their order, counted from its first."""
    starts = np.cumsum([0, *sizes])
    return [rows[(rows >= a) & (rows < b)] - a for a, b in itertools.pairwise(starts)]


@st.composite
def cases(draw, most=5, largest=9):
    """Some mixture, and the rows of its files."""
    count = draw(st.integers(1, most))
    files = draw(
        st.lists(
            st.lists(st.integers(1, largest), min_size=1, max_size=5),
            min_size=count,
            max_size=count,
        )
    )
    rows = [sum(own) for own in files]
    weights = draw(st.lists(st.integers(0, largest), min_size=count, max_size=count).filter(any))
    orders = draw(st.lists(ORDERS, min_size=count, max_size=count))
    end = draw(st.sampled_from(["first", "last", "cycle"]))
    return mixture(rows, weights, end, orders), np.concatenate([np.array(own) for own in files])


@st.composite
def schedules(draw):
    """Some mixture whose weights change, also within epochs, and the rows of its files."""
    order, counts = draw(cases(3, 3))
    count = len(order.sources)
    some = st.lists(st.integers(0, 3), min_size=count, max_size=count).filter(any)
    places = draw(st.sets(st.tuples(st.integers(0, 1), st.integers(0, 30)), max_size=4))
    stages = [(place, tuple(draw(some))) for place in sorted(places | {(0, 0)})]
    return replace(order, stages=tuple(stages)), counts


def list_places(order, epoch):
    """The source at every position of an epoch: one by one, and by fractions, as it is defined."""
    lengths = [source.rows for source in order.sources]
    count, begun, found = [0] * len(lengths), None, []
    while True:
        position = len(found)
        stages = [one for one in order.stages if one[0] <= (epoch, position)]
        later = [one for one in order.stages if (epoch, position) < one[0] < (epoch + 1, 0)]
        (place, weights), total = stages[-1], sum(stages[-1][1])
        if place != begun:
            begun, first = place, position
            left = [rows - n for rows, n in zip(lengths, count, strict=True)]
        past = position - first
        if order.end == "first":
            over = any(
                Fraction((past + 1) * k, total) > rows
                for k, rows in zip(weights, left, strict=True)
                if k
            )
        elif order.end == "last":
            over = all(
                rows <= 0
                or (k and Fraction(past * k, total) >= rows)
                or (not k and not any(own[number] for _, own in later))
                for number, (k, rows) in enumerate(zip(weights, left, strict=True))
            )
        else:
            over = position == sum(lengths)
        if over:
            return found
        period = period_of(weights)
        found.append(int(period.which[past % period.length]))
        count[found[-1]] += 1


def stream_rows(source, start, seed, files):
    """The rows of a source whose first row is ``start``, pass after pass."""
    key = key_of(f"mixture:{source.name}", seed, 0)
    for number in itertools.count():
        found = source.order.begin(source.rows, key, number, files).rows(0, source.rows)
        yield from (start + found).tolist()


def draw_schedule(draw):
    """Some mixture whose weights change, also within epochs, and the rows of its files."""
    files = [
        [draw.randint(1, 4) for _ in range(draw.randint(1, 5))] for _ in range(draw.randint(1, 3))
    ]
    rows = [sum(own) for own in files]
    places = {(draw.randint(0, 1), draw.choice([0, *range(30)])) for _ in range(draw.randint(0, 4))}
    stages = []
    for place in sorted(places | {(0, 0)}):
        weights = [draw.randint(0, 3) for _ in rows]
        weights[draw.randrange(len(rows))] = draw.randint(1, 3)
        stages.append((place, tuple(weights)))
    orders = [draw.choice(SOME) for _ in rows]
    end = draw.choice(["first", "last", "cycle"])
    return mixture(rows, [], end, orders, tuple(stages)), np.array(
        [n for own in files for n in own]
    )


@pytest.mark.parametrize("part", range(8))
def test_weights_may_change_anywhere(part):
    """2,000 schedules: epochs, rows and states are those of a mixture that is written out."""
    for case in range(part, CASES, 8):
        draw = random.Random(case)
        check_written_out(*draw_schedule(draw), draw)


def check_written_out(order, counts, draw):
    """Compare all that is known of two epochs."""
    seed = draw.randint(0, 5)
    ends = np.cumsum([0, *(source.rows for source in order.sources)]).tolist()
    streams = [
        stream_rows(source, start, seed, cut_counts(counts, start, start + source.rows))
        for source, start in zip(order.sources, ends, strict=False)
    ]
    delivered = [0] * len(streams)
    for epoch in range(2):
        places = list_places(order, epoch)
        told = order.describe(ends[-1], epoch, 0)["sources"]
        assert list(told.values()) == delivered
        assert rows_of(order, epoch, counts, seed).tolist() == [next(streams[s]) for s in places]
        position = draw.randint(0, len(places))
        some = [n + places[:position].count(s) for s, n in enumerate(delivered)]
        assert list(order.describe(ends[-1], epoch, position)["sources"].values()) == some
        delivered = [n + places.count(s) for s, n in enumerate(delivered)]


@settings(max_examples=examples(2000), deadline=None)
@given(case=schedules(), epoch=st.integers(0, 2))
def test_proportions_are_exact_in_every_stretch(case, epoch):
    """From where weights change on: any number of samples has each source's share, within one."""
    order, counts = case
    found = rows_of(order, epoch, counts)
    ends = np.cumsum([source.rows for source in order.sources])
    which = np.searchsorted(ends, found, side="right")
    changes = [samples for (one, samples), _ in order.stages if one == epoch and samples]
    for start, stop in itertools.pairwise([0, *changes, len(found)]):
        weights = [own for place, own in order.stages if place <= (epoch, start)][-1]
        given_to = np.cumsum(which[start:stop, None] == np.arange(len(weights)), axis=0)
        shares = np.arange(1, len(given_to) + 1)[:, None] * np.array(weights) / sum(weights)
        assert (np.abs(given_to - shares) < 1).all()


@settings(max_examples=examples(2000), deadline=None)
@given(case=cases() | schedules(), seed=st.integers(0, 5))
def test_nothing_is_lost_or_doubled_within_a_pass_of_a_source(case, seed):
    """Over epochs as well: as many rows as a source has, from any multiple of it on, are all."""
    order, counts = case
    sizes = [source.rows for source in order.sources]
    found = np.concatenate([rows_of(order, epoch, counts, seed) for epoch in range(3)])

    for own, size in zip(split(found, sizes), sizes, strict=True):
        for at in range(0, len(own), size):
            one = own[at : at + size]
            assert len(np.unique(one)) == len(one)


@settings(max_examples=examples(150), deadline=None)
@given(case=cases() | schedules(), seed=st.integers(0, 5), epoch=st.integers(0, 3), data=st.data())
def test_rows_of_any_positions_are_those_of_the_whole(case, seed, epoch, data):
    """Whatever was asked for before, and with any step."""
    order, counts = case
    whole = rows_of(order, epoch, counts, seed)
    begun = order.begin(0, seed, epoch, counts)
    for _ in range(4):
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(start, len(whole)))
        step = data.draw(st.integers(1, 4))
        assert begun.rows(start, stop, step).tolist() == whole[start:stop:step].tolist()
    for start in range(0, len(whole) - 2, 5):  # as a rank of several asks: computed ahead
        assert begun.rows(start, start + 2).tolist() == whole[start : start + 2].tolist()


@settings(max_examples=examples(150), deadline=None)
@given(case=cases() | schedules(), data=st.data())
def test_every_row_has_arrived_before_it_is_needed(case, data):
    """By the windows of sources that have any: once in each turn, in time, from any position on."""
    order, counts = case
    whole = rows_of(order, 1, counts)
    begun = order.begin(0, 0, 1, counts)
    start = data.draw(st.integers(0, len(whole)))
    size = data.draw(st.integers(1, 8))
    arrived = [
        row for window in begun.windows for a, b, _ in window.held(start) for row in range(a, b)
    ]
    there = set(arrived)
    windowed = set()
    sizes = np.cumsum([0, *(source.rows for source in order.sources)])
    for number, source in enumerate(order.sources):
        if not isinstance(source.order, Exact) and any(w[number] for _, w in order.stages):
            windowed |= set(range(sizes[number], sizes[number + 1]))
    for at in range(start, len(whole), size):
        stop = min(at + size, len(whole))
        for window in begun.windows:
            for first, end, _ in window.arriving(at, stop):
                there |= set(range(first, end))
        assert set(whole[at:stop].tolist()) & windowed <= there
    assert there <= windowed


def test_windows_count_turns():
    """A source that begins again takes up its files once more, in another turn."""
    order = mixture([6, 20], [1, 1], "last", [Windows(files=2), Exact()])
    begun = order.begin(26, 0, 0, np.array([2, 2, 2, 20]))
    (window,) = begun.windows
    turns = [turn for _, _, turn in window.arriving(0, 36)]

    assert window.open_parts == 2
    assert turns == [0] * 3 + [1] * 3 + [2] * 3
    both = mixture([6, 20], [1, 1], "last", [Windows(files=9), Blocks(rows=2, window=5)])
    assert [w.open_parts for w in both.begin(26, 0, 0, np.array([2, 2, 2, 20])).windows] == [3, 5]


@pytest.mark.parametrize(("end", "length"), [("first", 8), ("last", 40), ("cycle", 16)])
def test_how_long_an_epoch_is(end, length):
    """Until the first source is used up, until the last is, or as many rows as there are."""
    order = mixture([6, 10], [3, 1], end)

    assert order.cut(Share(16, 4), 0, 0).n == length
    assert len(rows_of(order, 0)) == length


@settings(max_examples=examples(150), deadline=None)
@given(case=cases())
def test_where_an_epoch_ends(case):
    """By ``"first"`` none begins again, and one has at most a row left; by ``"last"`` all came."""
    order, counts = case
    sizes = [source.rows for source in order.sources]
    own = [len(one) for one in split(rows_of(order, 0, counts), sizes)]
    used = [(n, rows) for n, rows, k in zip(own, sizes, order.stages[0][1], strict=True) if k]
    if order.end == "first":
        assert all(n <= rows for n, rows in used)
        assert any(n >= rows - 1 for n, rows in used)
    elif order.end == "last":
        assert all(n >= rows for n, rows in used)
    else:
        assert sum(own) == sum(sizes)


@pytest.mark.parametrize("end", ["first", "last", "cycle"])
def test_in_proportion_to_the_rows_every_row_comes_once(end):
    """Which is what weights are by default."""
    found = rows_of(mixture([30, 20, 7], [30, 20, 7], end), 0)

    assert sorted(found.tolist()) == list(range(57))


# Seed, epoch, position, and the rows from there on.
GOLDEN = [
    (0, 0, 0, [52, 157, 129, 57, 70, 113, 77, 144, 97, 107, 151, 48]),
    (7, 5, 100, [116, 43, 156, 29, 100, 91, 21, 114, 78, 153, 124, 61]),
]


@pytest.mark.parametrize(("seed", "epoch", "at", "rows"), GOLDEN)
def test_a_mixture_is_frozen(seed, epoch, at, rows):
    """A run that resumes with another version goes on with the same samples."""
    order = mixture([100, 50, 9], [3, 2, 1], "last", names=["web", "code", "math"])

    assert order.begin(0, seed, epoch).rows(at, at + 12).tolist() == rows


def test_a_source_of_weight_zero_ends_no_epoch():
    """It is there for other epochs."""
    order = mixture([6, 10, 1], [3, 1, 0])

    assert order.cut(Share(17, 4), 0, 0).n == 8
    assert 16 not in rows_of(order, 0)


def test_a_source_does_not_depend_on_the_others():
    """Its rows come in the same order, whatever it is mixed with."""
    alone = mixture([50], [1], names=["web"])
    mixed = mixture([7, 50], [1, 2], "last", names=["code", "web"])
    other = mixture([50, 9], [5, 1], names=["web", "x"])

    first = rows_of(alone, 0)[:50].tolist()
    assert split(rows_of(mixed, 0), [7, 50])[1][:50].tolist() == first
    assert split(rows_of(other, 0), [50, 9])[0][:40].tolist() == first[:40]
    assert rows_of(alone, 0, seed=1).tolist() != first


def test_weights_change_between_epochs():
    """From the epoch named on; sources go on where they stood."""
    order = mixture([100, 100], [], "cycle", stages=(((0, 0), (3, 1)), ((2, 0), (1, 1))))

    found = [rows_of(order, epoch) for epoch in range(4)]
    counts = [[len(own) for own in split(rows, [100, 100])] for rows in found]
    assert counts == [[150, 50], [150, 50], [100, 100], [100, 100]]
    assert order.traits.steady  # of one length, whatever the weights
    assert not replace(order, end="first").traits.steady
    web = split(np.concatenate(found), [100, 100])[0]
    assert [len(set(web[at : at + 100].tolist())) for at in range(0, 500, 100)] == [100] * 5
    assert order.describe(200, 3, 10) == {"sources": {"a": 405, "b": 205}}


@pytest.mark.parametrize(
    ("end", "stages", "lengths"),
    [
        # Of 6 and 10 rows. At (3, 1) the first has a share of three in four samples.
        ("first", {(0, 4): (0, 1)}, [13, 10]),  # 3 and 1 have come: 9 are left of the second
        ("first", {(0, 4): (1, 0)}, [7, 6]),  # 3 and 1 have come: 3 are left of the first
        ("first", {(0, 8): (1, 1)}, [8, 12]),  # 6 and 2 have come, no more of the first
        ("first", {(0, 8): (0, 1)}, [16, 10]),  # which is not wanted any more
        ("first", {(0, 9): (1, 1)}, [8, 12]),  # the epoch ends before: from the next one on
        ("first", {(0, 9): (1, 1), (1, 0): (1, 0)}, [8, 6]),  # which has weights of its own
        ("last", {(0, 4): (1, 9)}, [34, 60]),  # 3 are left of the first, which are 30 samples
        ("last", {(0, 4): (0, 1)}, [13, 10]),  # the first is not wanted any more
        ("last", {(0, 40): (0, 1)}, [40, 10]),  # all have come where weights change
        ("cycle", {(0, 4): (0, 1)}, [16, 16]),
        ("cycle", {(0, 16): (0, 1)}, [16, 16]),
    ],
)
def test_how_long_an_epoch_is_in_which_weights_change(end, stages, lengths):
    """Rows that came with one of them count with the others; what comes too late counts later."""
    order = mixture([6, 10], [], end, stages=(((0, 0), (3, 1)), *stages.items()))

    assert [order.cut(Share(16, 4), 0, epoch).n for epoch in (0, 1)] == lengths
    assert order.traits.steady == (end == "cycle")


def test_a_source_that_comes_later_is_waited_for():
    """An epoch to the end of all sources lasts until then, whatever else has come."""
    order = mixture([6, 10], [], "last", stages=(((0, 0), (1, 0)), ((0, 50), (0, 1))))

    assert [order.cut(Share(16, 4), 0, epoch).n for epoch in (0, 1)] == [60, 10]


def test_changes_within_epochs_are_part_of_the_order():
    """A state names them; one that changes elsewhere belongs to other weights."""
    order = mixture([100, 100], [], stages=(((0, 0), (3, 1)), ((0, 50), (1, 1))))
    other = replace(order, stages=(((0, 0), (3, 1)), ((0, 51), (1, 1))))
    told = Progress(order.spec(), 0, 60, order.describe(200, 0, 60))

    assert order.spec()["weights"] == "0:3,1;0+50:1,1"
    assert order.resume(told) == (order, 60)
    assert other.resume(told) == (replace(other, start=Start(0, (42, 18))), 0)


# Seed, epoch, position, and the rows from there on.
GOLDEN_CHANGE = [
    (0, 0, 45, [109, 65, 95, 0, 144, 130, 106, 26, 140, 21, 121, 18]),
    (7, 5, 100, [120, 1, 141, 105, 16, 104, 54, 107, 34, 129, 132, 131]),
]


@pytest.mark.parametrize(("seed", "epoch", "at", "rows"), GOLDEN_CHANGE)
def test_a_change_of_weights_is_frozen(seed, epoch, at, rows):
    """A run that resumes with another version goes on with the same samples."""
    order = mixture([100, 50], [], "last", stages=(((0, 0), (3, 1)), ((0, 50), (1, 2))))

    assert order.begin(0, seed, epoch).rows(at, at + 12).tolist() == rows


def test_a_schedule_of_many_steps_costs_what_few_do():
    """Every stretch is counted once; a position is found without those before it."""
    stages = [((0, 1000 * step), (40 - step % 40, step % 40)) for step in range(2000)]
    order = mixture([10**9, 10**9], [], "cycle", stages=tuple(stages))
    whole = order.begin(0, 0, 0).rows(0, 30_000)

    assert order.begin(0, 0, 0).rows(17_900, 18_100).tolist() == whole[17_900:18_100].tolist()
    assert sum(order.describe(0, 3, 10**8)["sources"].values()) == 6 * 10**9 + 10**8
    assert len(json.dumps(order.spec())) < 300


@settings(max_examples=examples(2000), deadline=None)
@given(case=cases() | schedules(), data=st.data())
def test_other_weights_continue_every_source(case, data):
    """What a state tells is enough: the rows after it follow those before, in every source."""
    order, counts = case
    sizes = [source.rows for source in order.sources]
    epoch = data.draw(st.integers(0, 2))
    length = order.cut(Share(sum(sizes), 4), 0, epoch).n
    samples = data.draw(st.integers(0, length))
    other = data.draw(
        st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes)).filter(any)
    )
    before = np.concatenate(
        [
            *(rows_of(order, one, counts) for one in range(epoch)),
            rows_of(order, epoch, counts)[:samples],
        ]
    )
    state = Progress(order.spec(), epoch, samples, order.describe(0, epoch, samples))
    state = Progress(*json.loads(json.dumps(state)))

    changed = replace(order, stages=(((0, 0), tuple(other)),))
    continued, over = changed.resume(state)
    if changed.stages == order.stages:
        assert (continued, over) == (order, samples)
        return
    assert over == 0
    after = np.concatenate([rows_of(continued, one, counts) for one in (epoch, epoch + 1)])
    both = [
        np.concatenate(pair) for pair in zip(split(before, sizes), split(after, sizes), strict=True)
    ]
    for own, size in zip(both, sizes, strict=True):
        for at in range(0, len(own), size):
            assert len(set(own[at : at + size].tolist())) == len(own[at : at + size])

    # And from there once more, by a loader that has not heard of the first.
    now = continued.cut(Share(sum(sizes), 4), 0, epoch + 1).n // 2
    state = Progress(continued.spec(), epoch + 1, now, continued.describe(0, epoch + 1, now))
    again, over = changed.resume(Progress(*json.loads(json.dumps(state))))
    assert (again, over) == (continued, now)


@in_cases
def test_a_state_resumes_with_any_ranks(draw):
    """The rest of an epoch of any schedule, in its order, in equally many batches for each rank."""
    order, files = draw_schedule(draw)
    first, second = ((draw.randint(1, 9), draw.randint(1, 5)) for _ in range(2))
    place = draw.randint(-5, 5), draw.randint(0, 3)
    check_resume(order, int(files.sum()), *place, first, second, draw.randint(0, 9), files, 700)


def test_another_mixture_is_refused():
    """Other sources, other rows, other orders, a damaged position."""
    order = mixture([6, 10], [3, 1])
    told = Progress(order.spec(), 0, 4, order.describe(16, 0, 4))

    for other in (
        mixture([6, 10], [3, 1], names="xy"),
        mixture([5, 11], [3, 1]),
        mixture([6, 10], [3, 1], orders=Sequential()),
        mixture([6, 10], [3, 1], orders=[Exact(), Blocks()]),
    ):
        assert other.resume(told) is None
    changed = mixture([6, 10], [1, 1])
    positions = (3, {"a": 1}, {"a": -1, "b": 0}, {"a": 1, "b": 2, "c": 3}, {"a": "x", "b": 1})
    for damaged in ({}, *({"sources": one} for one in positions)):
        assert changed.resume(told._replace(more=damaged)) is None
    for start in (7, {"epoch": "x", "sources": {"a": 1, "b": 2}}, {"epoch": 3}, {"epoch": -1}):
        assert order.resume(told._replace(order={**order.spec(), "start": start})) is None


def test_epochs_before_a_change_are_those_of_no_change():
    """Whoever goes back to them gets what they were with these weights."""
    order = mixture([6, 10], [1, 1], "last")
    changed = replace(order, start=Start(2, (50, 3)))

    assert rows_of(changed, 1).tolist() == rows_of(order, 1).tolist()
    assert changed.describe(16, 2, 0) == {"sources": {"a": 50, "b": 3}}


def test_far_epochs_cost_nothing_and_do_not_overflow():
    """Bases of streams are Python's numbers."""
    order = mixture([10**9, 10**12], [3, 1], "last")
    far = 1 << 61

    found = order.begin(0, 0, far).rows(10**11, 10**11 + 8)
    assert ((found >= 0) & (found < 10**9 + 10**12)).all()
    assert (
        sum(order.describe(0, far, 7)["sources"].values())
        == far * order.cut(Share(1, 1), 0, 0).n + 7
    )


def test_what_it_is_called():
    """Names, shares and orders, for people; JSON for a state, short however many sources."""
    order = mixture([6, 10], [3, 1], orders=[Exact(), Windows(files=2)])
    many = mixture([5] * 10, list(range(1, 11)), "cycle")

    assert f"{order}" == "Mixture(a 0.75 Exact(), b 0.25 Windows(files=2), end='first')"
    assert order.traits == Traits(by_file=True)
    assert len(json.dumps(many.spec())) < 400
    assert pickle.loads(pickle.dumps(order)) == order


class Uneven(Plain):
    """An order whose epochs differ in length."""

    @property
    def traits(self):
        return Traits(steady=False)


def test_orders_that_cut_batches_are_refused():
    """And windows divided among ranks: batches are made of all sources."""
    with pytest.raises(ValueError, match=r"source 'b': .* cuts batches itself"):
        mixture([6, 10], [3, 1], orders=[Exact(), Uneven()])
    with pytest.raises(ValueError, match="leave out ranks="):
        mixture([6, 10], [3, 1], orders=[Exact(), Windows(2, ranks=2)])
    with pytest.raises(ValueError, match="has 16 samples, and the dataset 17"):
        mixture([6, 10], [3, 1]).bind(Facts(17))
