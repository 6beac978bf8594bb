"""Batches of similar length: every sample once, within the budget, on any number of ranks.

``Plan`` here is what a loader does with an order, without data: it binds it, cuts an epoch and
takes the rows of batches. What a run saves goes through JSON.
"""

import json
import pickle
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from order.known import draw_list, in_cases

from ndfeed.errors import ResumeError
from ndfeed.order.bucket_edges import choose_edges
from ndfeed.order.buckets import Buckets
from ndfeed.order.epoch import Share
from ndfeed.order.protocol import Order, Progress, is_order


@dataclass(frozen=True)
class Lengths:
    """What an order asks about data that has nothing but lengths."""

    every: np.ndarray
    batch_size: int
    tokens: int = 0
    world: int = 1
    asked: list = field(default_factory=list)

    @property
    def n(self):
        return len(self.every)

    def lengths(self, name):
        self.asked.append(name)
        return self.every


class Plan:
    """All ranks of a run that follows ``Buckets`` through one epoch, and where it is."""

    def __init__(self, lengths, size, tokens, world, *, order=None, drop_last=False, seed=3):
        self.lengths = lengths
        self.seed, self.epoch, self.position = seed, 1, 0
        most = tokens or size
        self.order = (order or Buckets("text")).bind(Lengths(lengths, most, tokens, world))
        self.shares = [
            Share(len(lengths), most, rank, world, drop_last, tokens=tokens)
            for rank in range(world)
        ]
        self._tell()

    def _tell(self):
        self.cuts = [self.order.cut(share, self.seed, self.epoch) for share in self.shares]
        self.rows = self.order.begin(len(self.lengths), self.seed, self.epoch)

    def batches(self):
        """The number of batches of each rank."""
        return [cut.batches(self.position) for cut in self.cuts]

    def global_batch(self, k):
        """The rows of batch ``k`` on each rank."""
        return [
            np.concatenate([self.rows.rows(*span) for span in cut.spans(k, self.position)])
            for cut in self.cuts
        ]

    def global_batches(self):
        """The rows of every batch from here on, by batch and rank."""
        return [self.global_batch(k) for k in range(self.batches()[0])]

    def save(self, batches):
        """What a state has after so many batches."""
        at = self.cuts[0].consumed(batches, self.position)
        more = self.order.describe(len(self.lengths), self.epoch, at)
        return json.dumps([self.order.spec(), self.epoch, at, more])

    def load(self, text):
        """Go on from there."""
        spec, self.epoch, samples, more = json.loads(text)
        found = self.order.resume(Progress(spec, self.epoch, samples, more))
        assert found is not None
        self.order, self.position = found
        share = self.shares[0]
        data = Lengths(self.lengths, share.batch_size, share.tokens, share.world)
        self.order = self.order.bind(data)
        self._tell()


def flat(batches):
    """All rows of some batches."""
    return [row for ranks in batches for rows in ranks for row in rows.tolist()]


def limit(size, tokens, longest):
    """The most samples of one rank's batch."""
    return max(tokens // max(longest, 1), 1) if tokens else size


class Drawn:
    """What the cases below draw."""

    def __init__(self, draw):
        self.draw = draw
        self.lengths = np.array(draw_list(draw, 0, draw.choice([4, 60]), 60), np.int64)
        found = sorted(set(draw_list(draw, 1, 6, 70)))
        self.order = Buckets("text", draw.choice([None, found]), draw.choice([None, 1, 4, 6]))

    def sizes(self):
        """A batch size and no budget, or a budget that holds every sample."""
        return self.draw.choice([(self.draw.randint(1, 12), 0), (0, self.draw.randint(60, 400))])

    def world(self):
        """A number of ranks."""
        return self.draw.randint(1, 5)

    def plan(self, **words):
        """Some run by the order."""
        return Plan(self.lengths, *self.sizes(), self.world(), order=self.order, **words)


@in_cases
def test_every_sample_comes_once_in_batches_within_the_budget(draw):
    """On all ranks together; drop_last leaves out less than one global batch."""
    drawn = Drawn(draw)
    lengths, size, world = drawn.lengths, drawn.sizes(), drawn.world()
    drop_last = draw.random() < 0.5
    order = Buckets("text", drawn.order.edges)
    plan = Plan(lengths, *size, world, order=order, drop_last=drop_last)
    batches = plan.global_batches()

    rows = flat(batches)
    assert len(rows) == len(set(rows))
    if drop_last:
        left = lengths[sorted(set(range(len(lengths))) - set(rows))]
        assert len(left) < limit(*size, int(left.max(initial=1))) * world or not len(left)
    else:
        assert sorted(rows) == list(range(len(lengths)))
    for ranks in batches:
        for one in ranks:
            assert len(one) <= limit(*size, int(lengths[one].max(initial=0)))
    for short in batches[:-1]:  # only the last batch may be short
        assert len({len(one) for one in short}) == 1


@in_cases
def test_all_ranks_have_as_many_batches_in_every_epoch(draw):
    """The number is known before an epoch starts; a rank with another would wait for ever."""
    drawn = Drawn(draw)
    order = Buckets("text", drawn.order.edges)
    drop_last = draw.random() < 0.5
    plan = Plan(drawn.lengths, *drawn.sizes(), drawn.world(), order=order, drop_last=drop_last)

    counts = {*plan.batches()}
    for plan.epoch in range(4):
        plan._tell()
        counts |= {*plan.batches()}
    assert len(counts) == 1


@in_cases
def test_a_run_resumes_with_any_ranks_and_batches(draw):
    """What was seen and what comes are all samples, each once, and batches are within the budget.

    With the same ranks and batches, the remaining batches are the same.
    """
    drawn = Drawn(draw)
    lengths, order = drawn.lengths, drawn.order
    before, after, worlds = drawn.sizes(), drawn.sizes(), (drawn.world(), drawn.world())
    first = Plan(lengths, *before, worlds[0], order=order)
    every = first.global_batches()
    done = draw.randint(0, len(every))
    saved = first.save(done)

    then = Plan(lengths, *after, worlds[1], order=order)
    then.load(saved)
    rest = then.global_batches()

    assert len({*then.batches()}) == 1
    assert sorted(flat(every[:done]) + flat(rest)) == list(range(len(lengths)))
    for ranks in rest:
        for one in ranks:
            assert len(one) <= limit(*after, int(lengths[one].max(initial=0)))
    assert all(len(one) for ranks in rest[:-1] for one in ranks)
    again = Plan(lengths, *before, worlds[0], order=order)
    again.load(saved)
    assert_same(again.global_batches(), every[done:])


@in_cases
def test_a_run_that_moves_again_and_again_loses_nothing(draw):
    """Each run does a few batches of the epoch, in its own way, and the last one the rest."""
    drawn = Drawn(draw)
    seen, saved = [], None
    for _ in range(draw.randint(2, 5)):
        plan = drawn.plan()
        if saved is not None:
            plan.load(saved)
        some = plan.global_batches()[:2]
        saved = plan.save(len(some))
        seen += flat(some)
    plan.load(saved)
    assert sorted(seen + flat(plan.global_batches())) == list(range(len(drawn.lengths)))


def assert_same(some, others):
    """Both have the same rows in the same batches on the same ranks."""
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        for rows, same in zip(one, other, strict=True):
            np.testing.assert_array_equal(rows, same)


LONG_TAIL = np.sort(np.random.default_rng(5).lognormal(4, 0.9, 3000).astype(np.int64) + 1)


def test_the_next_epoch_is_made_for_the_sizes_of_the_run():
    """Only the epoch that was begun with others keeps them; batches would stay small for ever."""
    first = Plan(LONG_TAIL, 8, 0, 1)
    then = Plan(LONG_TAIL, 64, 0, 4)
    then.load(first.save(3))
    assert max(len(one) for ranks in then.global_batches() for one in ranks) == 2
    assert not then.order.traits.steady

    then.epoch, then.position = 2, 0
    then._tell()
    assert then.batches() == [-(-3000 // 256)] * 4
    assert then.order.describe(3000, 2, 0) == {"ranks": 4, "batch_size": 64}


def test_an_epoch_that_was_not_begun_has_no_sizes_to_keep():
    """A state at the start of an epoch resumes with batches of the new run."""
    then = Plan(LONG_TAIL, 64, 0, 4)
    then.load(Plan(LONG_TAIL, 8, 0, 1).save(0))
    assert then.batches() == [-(-3000 // 256)] * 4


def test_ranks_make_the_order_the_same_for_fewer_of_them():
    """Ranks of 1, 2 or 4 see one sequence of rows; without it each number has its own."""
    order = Buckets("text", ranks=4)
    plans = [Plan(LONG_TAIL, 8, 0, world, order=order) for world in (1, 2, 4)]
    one, two, four = (plan.rows.rows(0, 3000).tolist() for plan in plans)
    assert one == two == four
    other = Plan(LONG_TAIL, 8, 0, 1).rows.rows(0, 3000).tolist()
    assert sorted(other) == sorted(one)
    assert other != one


@pytest.mark.parametrize("tokens", [0, 4096])
def test_batches_hold_samples_of_similar_length(tokens):
    """Edges that were given are kept: a batch spans at most two buckets, where one ends."""
    bounds = (20, 50, 100, 400)
    plan = Plan(LONG_TAIL, 0 if tokens else 16, tokens, 2, order=Buckets("text", bounds))
    mixed = 0
    for ranks in plan.global_batches():
        rows = np.concatenate(ranks)
        found = np.unique(np.searchsorted(bounds, LONG_TAIL[rows]))
        assert len(found) <= 2
        mixed += len(found) == 2
    assert 0 < mixed <= len(bounds)


def test_epochs_and_seeds_differ():
    """Batches are new ones in every epoch, and come in another order."""
    plan = Plan(LONG_TAIL, 16, 0, 1)
    batches = [{frozenset(rows.tolist()) for (rows,) in plan.global_batches()}]
    plan.epoch = 2
    plan._tell()
    batches.append({frozenset(rows.tolist()) for (rows,) in plan.global_batches()})
    plan.seed = 4
    plan._tell()
    batches.append({frozenset(rows.tolist()) for (rows,) in plan.global_batches()})
    for one, other in pairwise(batches):
        assert len(one & other) <= 2


GOLDEN = [
    (Buckets("text", (30, 60)), (8, 0), 1, [40, 113, 139, 171, 181, 143, 69, 152, 100, 14]),
    (Buckets("text", (30, 60)), (0, 2048), 1, [154, 70, 211, 268, 68, 228, 271, 114, 10, 109]),
    (Buckets("text"), (8, 0), 2, [24, 269, 125, 298, 139, 227, 285, 212, 97, 270]),
    (Buckets("text"), (0, 2048), 2, [151, 263, 180, 97, 251, 16, 189, 269, 222, 111]),
]


@pytest.mark.parametrize(("order", "size", "world", "rows"), GOLDEN)
def test_golden(order, size, world, rows):
    """The order is part of what a state means: it never changes between versions."""
    lengths = np.arange(1, 301) * 7 % 101
    assert Plan(lengths, *size, world, order=order).rows.rows(0, 10).tolist() == rows


def length_grouped(lengths, batch_size, seed):
    """What ``LengthGroupedSampler`` of transformers does: sorts within 50 batches at a time."""
    many = min(len(lengths) // (batch_size * 4), 50) or 1
    rows = np.random.default_rng(seed).permutation(len(lengths))
    parts = np.split(rows, range(many * batch_size, len(rows), many * batch_size))
    return np.concatenate([part[np.argsort(-lengths[part], kind="stable")] for part in parts])


def measure_padding(lengths, batches):
    """The share of padding if each batch is as long as its longest sample."""
    padded = sum(int(lengths[rows].max()) * len(rows) for rows in batches)
    return 1 - sum(int(lengths[rows].sum()) for rows in batches) / padded


@pytest.mark.parametrize(("count", "size"), [(300, 16), (1000, 8), (5000, 32), (20_000, 64)])
def test_padding_is_no_worse_than_that_of_transformers(count, size):
    """On lengths as texts have them, whatever the number of samples."""
    lengths = np.clip(np.random.default_rng(1).lognormal(4.5, 0.8, count), 1, 2048)
    lengths = lengths.astype(np.int64)
    plan = Plan(lengths, size, 0, 1, seed=0)
    own, theirs = [], []
    for plan.epoch in range(4):
        plan._tell()
        own.append(measure_padding(lengths, [rows for (rows,) in plan.global_batches()]))
        rows = length_grouped(lengths, size, plan.epoch)
        theirs.append(measure_padding(lengths, np.split(rows, range(size, count, size))))

    assert np.mean(own) <= np.mean(theirs)
    assert plan.order.padding == pytest.approx(own[0])  # what is computed before anything is read


def test_padding_is_that_of_the_batches():
    """Where the number of batches says it all: lengths 1 and 3 in batches of 2, in one bucket."""
    order = Buckets("text", (3,)).bind(Lengths(np.array([3, 3, 1, 1]), 4))
    assert order.padding == pytest.approx(1 - 8 / 12)
    assert Buckets("text", (1, 3)).bind(Lengths(np.array([3, 3, 1, 1]), 2)).padding == 0
    assert Buckets("text").bind(Lengths(np.zeros(0, np.int64), 2)).padding == 0


@pytest.mark.parametrize("count", [1, 2, 500, 3000])
def test_edges_are_lengths_that_occur_and_rise(count):
    """Also where there are more lengths than are looked at, and very long ones."""
    rng = np.random.default_rng(count)
    for lengths in (rng.integers(0, 5000, count), rng.integers(0, 1 << 30, count)):
        found = choose_edges(lengths, lambda longest: np.full(len(longest), 4))
        assert set(found) <= set(lengths.tolist())
        assert list(found) == sorted(set(found))
        assert found[-1] == lengths.max()
        counts = np.bincount(np.searchsorted(found, lengths))
        assert len(found) == 1 or counts.min() >= 12


def test_edges_make_the_least_padding_there_is():
    """Against all ways to choose them."""
    lengths = np.repeat([1, 2, 3, 10, 11, 30], 12)
    assert choose_edges(lengths, lambda longest: np.full(len(longest), 8))[-1] == 30
    # A bucket holds three batches of 8 samples or more, so at most three buckets are possible.
    assert choose_edges(lengths, lambda longest: np.full(len(longest), 8)) == (2, 10, 30)


def test_lengths_may_be_given():
    """As an array with one for each sample; another number of them is an error."""
    order = Buckets([5, 1, 5, 1], edges=(1,))
    data = Lengths(np.zeros(4, np.int64), 2)
    assert {*order.bind(data).begin(4, 0, 0).rows(0, 2).tolist()} in ({0, 2}, {1, 3})
    assert data.asked == []
    with pytest.raises(ValueError, match="one for each of 3 samples, got 4; pass as many"):
        order.bind(Lengths(np.zeros(3, np.int64), 2))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"edges": ()}, ValueError, "edges must hold at least one length"),
        ({"edges": (4, 4)}, ValueError, "edges must rise, got 4 before 4"),
        ({"edges": (8, 4)}, ValueError, "edges must rise, got 8 before 4; sort them"),
        ({"edges": (-1, 4)}, ValueError, "edges are lengths, which are not negative, got -1"),
        ({"edges": (1.5,)}, TypeError, "edges must be integers, got 1.5"),
        ({"edges": "abc"}, TypeError, "edges must be lengths that rise"),
        ({"edges": 64}, TypeError, r"edges must be lengths that rise, such as .*, got 64"),
        ({"edges": range(5000)}, ValueError, "at most 4,096 lengths, got 5,000"),
        ({"ranks": 0}, ValueError, "ranks must be at least 1"),
        ({"ranks": 2**70}, ValueError, r"ranks must be at most 2\*\*62"),
        ({"edges": (4, 2**70)}, ValueError, r"edges are lengths of at most 2\*\*62"),
        ({"field": [[1]]}, ValueError, "lengths must have one value .* or the name of a field"),
        ({"field": [[1], [1, 2]]}, ValueError, "lengths must have one value for each sample"),
        ({"field": [0.5]}, TypeError, r"lengths must be integers, got float64; .*astype\(int\)"),
        ({"field": [2**64 - 1]}, ValueError, r"lengths must be at most 2\*\*62, got 18446744"),
        ({"field": np.ma.masked_equal([1, 2], 2)}, ValueError, "some are masked"),
        ({"field": [-1]}, ValueError, "lengths must not be negative, got -1"),
    ],
)
def test_bad_arguments(arguments, error, message):
    """They are refused where they are written."""
    with pytest.raises(error, match=message):
        Buckets(**({"field": "text"} | arguments))


def test_a_budget_holds_the_longest_sample():
    """Or no batch could hold it: says which sample it is, and how to leave it out."""
    data = Lengths(np.array([3, 90, 4]), 64, 64)
    with pytest.raises(ValueError, match=r"number 1 has 90, got 64; raise tokens, or .*take\("):
        Buckets("text").bind(data)


@pytest.mark.parametrize(("size", "ranks"), [(2**63, None), (2**39, 4), (1, 2**40)])
def test_sizes_that_no_state_could_hold_are_refused(size, ranks):
    """At once: a run could not be resumed, or the arithmetic would overflow."""
    with pytest.raises(ValueError, match="of up to 1,099,511,627,776 samples or tokens"):
        Buckets("text", ranks=ranks).bind(Lengths(np.array([3, 4]), size))


def test_fewer_ranks_than_named_may_have_other_numbers_of_batches():
    """So nobody may take one epoch's number for that of all: TensorFlow ends at the wrong one."""
    lengths = np.random.default_rng(0).integers(1, 30, 60)
    data = Lengths(lengths, 40, 40, 2)
    share = Share(60, 40, 0, 2, tokens=40)
    for order, least in ((Buckets("text"), 1), (Buckets("text", ranks=3), 2)):
        bound = order.bind(data)
        counts = {bound.cut(share, 0, epoch).batches() for epoch in range(12)}
        assert len(counts) >= least
        assert bound.traits.steady == (len(counts) == 1)


def test_it_is_an_order_and_a_value():
    """It compares, hashes and pickles by what it says, without the data it is bound to."""
    order = Buckets("text", (4, 8), 2)
    assert is_order(order)
    assert isinstance(order, Order)
    assert order == Buckets("text", [4, 8], ranks=2)
    assert hash(order) == hash(Buckets("text", [4, 8], ranks=2))
    assert order != Buckets("text", (4, 9), 2)
    assert Buckets([1, 2]) == Buckets(np.array([1, 2]))
    assert Buckets([1, 2]) != Buckets([1, 3])

    bound = order.bind(Lengths(LONG_TAIL, 8))
    copied = pickle.loads(pickle.dumps(bound))
    assert copied == bound
    assert len(pickle.dumps(bound)) < 1000
    with pytest.raises(ValueError, match="has seen no data yet"):
        copied.begin(3000, 0, 0)
    with pytest.raises(ValueError, match="n must be 3000"):
        bound.begin(2999, 0, 0)
    assert repr(order) == "Buckets('text', edges=(4, 8), ranks=2)"
    assert (
        repr(Buckets([1, 2], range(9)))
        == "Buckets(2 lengths, edges=(0, 1, 2, 3, 4, 5, … 9 in all))"
    )


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"ranks": 2},
        {"ranks": 2, "batch_size": 0},
        {"ranks": 2, "batch_size": 8, "tokens": 8},
        {"ranks": 0, "batch_size": 8},
        {"ranks": 2, "batch_size": -8},
        {"ranks": 2, "batch_size": "8"},
        {"ranks": 2, "batch_size": True},
        {"ranks": 1 << 30, "tokens": 1 << 30},
    ],
)
def test_a_damaged_state_is_refused(more):
    """It may come from anywhere: sizes are checked before anything is computed with them."""
    order = Buckets("text").bind(Lengths(LONG_TAIL, 8))
    with pytest.raises(ResumeError, match="does not say for which batch size"):
        order.resume(Progress(order.spec(), 0, 8, more))


def test_states_of_other_orders_are_not_its_own():
    """Another field, other edges or other lengths make another order."""
    order = Buckets("text", (4, 8))
    more = {"ranks": 1, "batch_size": 8}
    for other in (Buckets("text"), Buckets("code", (4, 8)), Buckets([1, 2], (4, 8))):
        assert order.resume(Progress(other.spec(), 0, 8, more)) is None
    many = Buckets("text", range(1000))
    assert len(json.dumps(many.spec())) < 200
    assert many.spec() != Buckets("text", range(1, 1001)).spec()
