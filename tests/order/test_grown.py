"""Epochs in which data grew: nothing lost, nothing twice, and the same however it is resumed."""

import json
import random

import numpy as np
import pytest

from ndfeed.order.epoch import Share
from ndfeed.order.grown import Generation, Grown, Recent, Stretches
from ndfeed.order.orders import Blocks, Exact, Sequential, Windows

CASES = 2000


class Folder:
    """Files whose samples have numbers of their own; new ones come anywhere among them."""

    def __init__(self, draw):
        self.draw = draw
        self.files = []
        self.made = 0
        self.add(draw.randint(1, 6))
        if not len(self):
            self.files.append([self.made])
            self.made += 1

    def add(self, count):
        """Add so many files."""
        for _ in range(count):
            size = self.draw.choice([0, 1, 1, 2, 5, 17, 40])
            new = list(range(self.made, self.made + size))
            self.made += size
            self.files.insert(self.draw.randint(0, len(self.files)), new)

    def __len__(self):
        return sum(map(len, self.files))

    def samples(self):
        """The samples by row."""
        return np.array([sample for file in self.files for sample in file])

    def counts(self):
        """The rows of each file."""
        return np.array([len(file) for file in self.files])


def spans_of(marks):
    """The stretches of rows that are marked."""
    edges = np.diff(np.concatenate([[0], marks.astype(int), [0]]))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return np.stack([starts, ends - starts], axis=1)


def resume(order, folder, epoch, past):
    """The order of a folder that had other samples before: some that were known, by generation.

    ``past`` is what a state lists, with the samples of each in place of their fingerprint.
    """
    if not past:
        return order
    now = folder.samples()
    first = past[0][2]
    counts = [sum(sample in first for sample in file) for file in folder.files]
    generations = tuple(
        Generation(rows, samples, "", Stretches(spans_of(np.isin(now, list(known)))))
        for rows, samples, known in past
    )
    # Files that came later are not among those of the first generation.
    old = [n for n, file in zip(counts, folder.files, strict=True) if n and set(file) <= first]
    return Grown(order, np.array(old), order, True, epoch, generations)


def deliver(order, folder, where, start, count, draw):
    """Deliver some batches to a random number of ranks: samples, and where that led."""
    seed, epoch = where
    world, size = draw.randint(1, 4), draw.randint(1, 9)
    shares = [Share(len(folder), size, rank, world) for rank in range(world)]
    cuts = [order.cut(share, seed, epoch) for share in shares]
    assert len({cut.batches(start) for cut in cuts}) == 1
    made = order.begin(len(folder), seed, epoch, folder.counts())
    count = min(cuts[0].batches(start), count)
    end = cuts[0].consumed(count, start)
    spans = [span for batch in range(count) for cut in cuts for span in cut.spans(batch, start)]
    taken = [position for span in spans for position in range(*span)]
    assert taken == list(range(start, end))
    return folder.samples()[made.rows(start, end)].tolist(), end


def orders(draw):
    """Any of the orders that deliver every row once."""
    return draw.choice(
        [
            Exact(),
            Exact(),
            Sequential(),
            Blocks(rows=draw.randint(1, 9), window=draw.randint(1, 4)),
            Windows(files=draw.randint(1, 4)),
            Windows(files=draw.randint(1, 4), ranks=draw.randint(2, 3)),
        ]
    )


@pytest.mark.parametrize("part", range(8))
def test_nothing_is_lost_or_doubled_however_often_data_grows(part):
    """2,000 histories: any order, growth anywhere, other ranks and batch sizes at every resume.

    An order made again from the JSON of a state delivers the same rest, to any ranks.
    """
    for case in range(part, CASES, 8):
        draw = random.Random(case)
        folder, order = Folder(draw), orders(draw)
        where = draw.randint(-5, 1 << 40), draw.randint(0, 9)
        past, seen, position = [], [], 0
        for _ in range(draw.randint(1, 4)):
            made = resume(order, folder, where[1], past)
            some, position = deliver(made, folder, where, position, draw.randint(0, 6), draw)
            seen += some
            past.append((len(folder), position, set(folder.samples().tolist())))
            folder.add(draw.randint(0, 4))
        made = resume(order, folder, where[1], past)
        rest, end = deliver(made, folder, where, position, 1 << 40, draw)
        assert end == len(folder)
        assert sorted(seen + rest) == sorted(folder.samples().tolist()), case
        state = json.loads(json.dumps(made.describe(len(folder), where[1], position)))["grown"]
        again = [(*one[:2], own[2]) for one, own in zip(state, past, strict=True)]
        few, middle = deliver(made, folder, where, position, draw.randint(0, 5), draw)
        later = resume(order, folder, where[1], again)
        assert few + deliver(later, folder, where, middle, 1 << 40, draw)[0] == rest, case


def test_arrivals_hold_every_row_once_and_in_time():
    """What is decoded for a window is there when it is needed, from any position on."""
    for case in range(200):
        draw = random.Random(case)
        folder = Folder(draw)
        order = draw.choice([Sequential(), Blocks(3, 2), Windows(files=draw.randint(1, 3))])
        past = [(len(folder), 0, set(folder.samples().tolist()))]
        folder.add(draw.randint(1, 4))
        n = len(folder)
        made = resume(order, folder, 0, past).begin(n, 1, 0, folder.counts())
        start = draw.randint(0, n)
        there = {row for span in made.held(start) for row in range(*span)}
        came = [row for first, end in made.held(start) for row in range(first, end)]
        while start < n:
            stop = min(start + draw.randint(1, 7), n)
            new = [row for span in made.arriving(start, stop) for row in range(*span)]
            came += new
            there |= set(new)
            rows = made.rows(start, stop)
            assert set(rows.tolist()) <= there
            np.testing.assert_array_equal(
                rows[1::2], made.rows(start + 1, stop, 2)[: len(rows) // 2]
            )
            start = stop
        assert len(came) == len(set(came))


def test_what_is_new_is_mixed_with_what_was_left():
    """New rows of an exact shuffle come everywhere in the rest: a rank test over 400 epochs."""
    old, delivered, new = 300, 100, 200
    past = (Generation(old, delivered, "", Stretches(np.array([[0, old]]))),)
    total = 0.0
    for seed in range(400):
        order = Grown(Exact(), None, Exact(), True, 3, past)
        rows = order.begin(old + new, seed, 3).rows(delivered, old + new)
        np.testing.assert_array_equal(
            order.begin(old + new, seed, 3).rows(0, delivered),
            Exact().begin(old, seed, 3).rows(0, delivered),
        )
        total += np.flatnonzero(rows >= old).mean()
    rest = old + new - delivered
    # The mean place of new rows: that of all, with a known spread; six of its deviations.
    deviation = ((rest + 1) * (rest - new) / (12 * new)) ** 0.5 / 400**0.5
    assert abs(total / 400 - (rest - 1) / 2) < 6 * deviation


def test_other_epochs_are_those_of_all_rows():
    """Only the epoch in which data grew is another one."""
    past = (Generation(10, 4, "", Stretches(np.array([[0, 10]]))),)
    order = Grown(Exact(), None, Exact(), True, 3, past)
    np.testing.assert_array_equal(
        order.begin(15, 7, 4).rows(0, 15), Exact().begin(15, 7, 4).rows(0, 15)
    )
    assert order.describe(15, 4, 0) == {}
    assert order.describe(15, 3, 4) == {"grown": [[10, 4, ""]]}
    assert order.spec() == Exact().spec()


def test_the_order_of_a_grown_epoch_is_frozen():
    """A state of an earlier version of this library must lead to the same rest."""
    past = (
        Generation(10, 4, "", Stretches(np.array([[2, 10]]))),
        Generation(14, 7, "", Stretches(np.array([[0, 14]]))),
    )
    rows = Grown(Exact(), None, Exact(), True, 1, past).begin(20, 5, 1).rows(0, 20)
    assert rows.tolist() == [10, 11, 2, 7, 12, 8, 3, 4, 19, 18, 1, 0, 6, 9, 16, 14, 13, 5, 17, 15]


def test_stretches_without_others():
    """Against sets, for random stretches."""
    for case in range(300):
        draw = np.random.default_rng(case)
        whole = draw.random(40) < 0.7
        some = whole & (draw.random(40) < 0.5)
        left = Stretches(spans_of(whole)).without(Stretches(spans_of(some)))
        assert left.at(np.arange(len(left))).tolist() == np.flatnonzero(whole & ~some).tolist()
        assert left.holding(np.arange(40)).tolist() == (whole & ~some).tolist()


# The newest rows


def test_recent_shuffles_the_last_rows():
    """Each once; all where there are fewer; another order in every epoch."""
    for n in (1, 5, 9, 1000):
        order = Recent(9)
        cut = order.cut(Share(n, 4), 0, 0)
        assert cut.n == min(n, 9)
        rows = order.begin(n, 0, 0).rows(0, cut.n)
        assert sorted(rows.tolist()) == list(range(max(n - 9, 0), n))
    first, second = (order.begin(1000, 0, epoch).rows(0, 9).tolist() for epoch in (0, 1))
    assert first != second


def test_recent_is_frozen():
    """States refer to it."""
    found = [Recent(9).begin(20, 5, epoch).rows(0, 9).tolist() for epoch in (0, 1)]
    assert found == [[11, 13, 14, 15, 19, 16, 17, 12, 18], [17, 12, 15, 13, 19, 11, 18, 16, 14]]


def test_recent_is_uniform():
    """χ² of where the newest row comes: 4,000 epochs, 8 places, p = 10⁻⁶."""
    places = [
        int(np.flatnonzero(Recent(8).begin(100, seed, 0).rows(0, 8) == 99)[0])
        for seed in range(4000)
    ]
    counts = np.bincount(places, minlength=8)
    assert ((counts - 500) ** 2 / 500).sum() < 40.5


@pytest.mark.parametrize("rows", [0, -1, 2.5, True, "9"])
def test_recent_refuses_what_is_no_number_of_rows(rows):
    """At construction, in one line."""
    with pytest.raises((TypeError, ValueError), match="rows must be"):
        Recent(rows)
