"""Epochs in which rows were added, of orders that need to know something of rows.

Each case is a history: files come anywhere among the others, and every time the run goes on with
another number of ranks and another batch size. What it delivers is compared with a model.
"""

import json
from typing import NamedTuple

import numpy as np
from order.known import Known, draw_list, draw_seed, in_cases
from order.test_grown import spans_of

from ndfeed.order.balanced import Balanced
from ndfeed.order.buckets import Buckets
from ndfeed.order.epoch import Share
from ndfeed.order.grown import Generation, Grown, Recent, Stretches
from ndfeed.order.permutation import key_of
from ndfeed.order.protocol import Progress
from ndfeed.order.sorted import Sorted


class History(NamedTuple):
    """What happens in an epoch: files of values, and who delivers how much of it when.

    A run has so many ranks, and a batch size for each. ``last`` are those of a run that does the
    same as the last one, and ``again`` is where it sets in.
    """

    first: list
    steps: list
    last: tuple
    again: tuple
    seed: int
    epoch: int


def draw_history(draw):
    """Some epoch of a folder that grows up to four times."""

    def draw_run():
        return draw.randint(1, 4), draw.randint(1, 6)

    def draw_files():
        return [(draw.randint(0, 9), draw_list(draw, 0, 12, 9)) for _ in range(draw.randint(0, 3))]

    steps = [
        (draw.randint(1, 6), draw_run(), draw_files()) for _ in range(draw.choice([0, 1, 1, 2, 4]))
    ]
    again = draw.randint(0, 5), draw_run()
    first = draw_list(draw, 1, 12, 9)
    return History(first, steps, draw_run(), again, draw_seed(draw), draw.randint(0, 5))


class Row(NamedTuple):
    """A sample of a file: the number it has whatever comes, and the value that orders ask for."""

    number: int
    value: int


class Folder:
    """Files of samples."""

    def __init__(self, first):
        self.made = 0
        self.files = []
        self.add(0, first)

    def add(self, place, values):
        """Add a file, before the one that is at this place."""
        rows = [Row(self.made + i, value) for i, value in enumerate(values)]
        self.made += len(rows)
        self.files.insert(place, rows)

    @property
    def rows(self):
        """All samples, in the order in which they are stored."""
        return [row for file in self.files for row in file]


class Run:
    """A run that delivers an epoch: what it has delivered, and what a state says about that."""

    def __init__(self, order, folder, seed, epoch, *, tokens=False):
        self.asked, self.folder, self.seed, self.epoch = order, folder, seed, epoch
        self.tokens = tokens  # are batches of so many tokens, rather than samples?
        self.past, self.more = [], None  # generations, with their rows; and what the order says
        self.position = 0

    def measure(self, share):
        """The most samples of a batch, and its budget of tokens."""
        return (9 + 3 * share[1],) * 2 if self.tokens else (share[1], 0)

    def share(self, share, rank=0):
        """A rank's share of what there is."""
        size, tokens = self.measure(share)
        return Share(len(self.folder.rows), size, rank, share[0], tokens=tokens)

    def bind(self, share):
        """The order of a loader that resumed with so many ranks."""
        rows = self.folder.rows
        known = Known(len(rows), share[0], value=[row.value for row in rows])
        known.batch_size, known.tokens = self.measure(share)
        asked = self.asked(len(rows), rows) if callable(self.asked) else self.asked
        order = asked.bind(known)
        if not self.past:
            place = order.spec(), self.epoch, self.position, self.more or {}
            return order.resume(Progress(*place))[0] if self.more is not None else order
        numbers = [row.number for row in rows]
        generations = tuple(
            Generation(len(old), samples, "", Stretches(spans_of(np.isin(numbers, old))), more)
            for old, samples, more in self.past
        )
        if self.more is None:
            self.more = order.describe(len(rows), self.epoch, self.position)
        return Grown(order, None, order, True, self.epoch, generations, self.more)

    def deliver(self, share, count=None):
        """Deliver some batches, or the rest, to all ranks."""
        order, rows = self.bind(share), self.folder.rows
        shares = [self.share(share, rank) for rank in range(share[0])]
        cuts = [order.cut(one, self.seed, self.epoch) for one in shares]
        most = cuts[0].batches(self.position)
        assert {cut.batches(self.position) for cut in cuts} == {most}
        count = most if count is None else min(count, most)
        spans = [span for k in range(count) for cut in cuts for span in cut.spans(k, self.position)]
        end = cuts[0].consumed(count, self.position)
        assert [at for span in spans for at in range(*span)] == list(range(self.position, end))
        begun = order.begin(len(rows), self.seed, self.epoch)
        for span in spans:
            self.check_batch([rows[row] for row in begun.rows(*span)], share)
        found = [rows[row] for row in begun.rows(self.position, end)]
        self.described = order.describe(len(rows), self.epoch, end)
        self.position = end
        return found

    def check_batch(self, batch, share):
        """No batch is larger than it may be."""
        size, tokens = self.measure(share)
        longest = max((row.value for row in batch), default=0)
        assert len(batch) * longest <= tokens if tokens else len(batch) <= size

    def grow(self, files):
        """Save, and resume when there are more files."""
        saved = json.loads(json.dumps(self.described))
        saved.pop("grown", None)
        self.past.append(([row.number for row in self.folder.rows], self.position, saved))
        self.more = None
        for place, values in files:
            self.folder.add(place, values)

    def resume(self):
        """A run that resumes from the state of this one."""
        made = Run(self.asked, self.folder, self.seed, self.epoch, tokens=self.tokens)
        made.past, made.position = list(self.past), self.position
        made.more = json.loads(json.dumps(self.described))
        made.more.pop("grown", None)
        return made

    def known(self, number):
        """The samples of a generation, in the order in which they are stored."""
        some = self.past[number][0] if number < len(self.past) else None
        return [row for row in self.folder.rows if some is None or row.number in some]


def check_history(order, history, **options):
    """Deliver an epoch of a folder that grows; return what came in each generation."""
    first, steps, last, again, seed, epoch = history
    run = Run(order, Folder(first), seed, epoch, **options)
    pieces = []
    for batches, share, files in steps:
        pieces.append(run.deliver(share, batches))
        run.grow(files)
    middle, share = again
    pieces.append(run.deliver(share, middle))
    twin = run.resume()
    rest = run.deliver(share)
    if pieces[0]:  # else the epoch is made for the ranks that begin it
        assert twin.deliver(last) == rest  # whatever ranks and batches there are
    pieces[-1] += rest
    n = len(run.folder.rows)
    found = [row for piece in pieces for row in piece]
    share = last if steps else share
    made = run.bind(share)
    whole = made.begin(n, seed, epoch).rows(0, len(found))
    assert [run.folder.rows[row] for row in whole] == found
    cut = made.cut(run.share(share), seed, epoch)
    assert cut.n == len(found)
    ends = [cut.consumed(k) for k in range(cut.batches() + 1)]
    assert ends == sorted(set(ends))
    assert ends[-1] == len(found)
    return run, pieces


def check_once(run, pieces):
    """No sample is lost, and none comes twice."""
    assert sorted(row for piece in pieces for row in piece) == sorted(run.folder.rows)


@in_cases
def test_sorted_continues_with_what_is_left_and_what_came(draw):
    """By value in every generation; in stages that are as large as those of a whole epoch."""
    history = draw_history(draw)
    reverse = draw.random() < 0.5
    stages = draw.choice([None, draw.randint(1, len(history.first))])
    by_array = draw.random() < 0.5
    words = {"reverse": reverse, "stages": stages}

    def make(n, rows):
        return Sorted(np.array([row.value for row in rows]) if by_array else "value", **words)

    run, pieces = check_history(make, history)

    check_once(run, pieces)
    known = set()
    for number, piece in enumerate(pieces):
        known = run.known(number)
        before = {row for one in pieces[:number] for row in one}
        left = [row for row in known if row not in before]
        left.sort(key=lambda row: (-row.value if reverse else row.value, known.index(row)))
        if stages is None:
            assert piece == left[: len(piece)]
            continue
        count = max(-(-stages * len(left) // len(known)), 1)
        for stage in range(count):
            begin, end = (len(left) * at // count for at in (stage, stage + 1))
            assert set(piece[begin:end]) <= set(left[begin:end])


@in_cases
def test_recent_continues_with_the_newest_of_what_is_left_and_what_came(draw):
    """As many as it asks for, in every generation, and none twice."""
    history = draw_history(draw)
    size = draw.randint(1, 30)
    run, pieces = check_history(Recent(size), history)
    left, before = [], []
    for number, piece in enumerate(pieces):
        known = run.known(number)
        left = [row for row in known if row in left or row not in before][-size:]
        assert set(piece) <= set(left)
        assert len(piece) == len(set(piece))
        left, before = [row for row in left if row not in piece], known
    assert not left


@in_cases
def test_buckets_continue_with_what_is_left_and_what_came(draw):
    """Batches are those of an order of these samples alone, for the ranks that took them in."""
    history = draw_history(draw)
    edges = draw.choice([None, sorted(set(draw_list(draw, 1, 6, 9)))])
    words = {"edges": edges, "ranks": draw.choice([None, draw.randint(1, 4)])}
    tokens, by_array = draw.random() < 0.5, draw.random() < 0.5

    def make(n, rows):
        return Buckets([row.value for row in rows] if by_array else "value", **words)

    run, pieces = check_history(make, history, tokens=tokens)

    check_once(run, pieces)
    shares = [share for _, share, _ in history.steps] + [history.again[1]]
    done = 0
    for number, (piece, share) in enumerate(zip(pieces, shares, strict=True)):
        before = {row for one in pieces[:number] for row in one}
        left = [row for row in run.known(number) if row not in before]
        known = Known(len(left), share[0], value=[row.value for row in left])
        known.batch_size, known.tokens = run.measure(share)
        order = Buckets("value", **words).bind(known)
        key = key_of(f"grown {number}", history.seed, history.epoch) if done else history.seed
        rows = order.begin(len(left), key, history.epoch).rows(0, len(piece))
        assert [left[row] for row in rows] == piece
        done += len(piece)


class Model:
    """What has to come of balanced classes: rounds, and the samples that each class has left."""

    def __init__(self, rows, weights):
        self.rows, self.weights = list(rows), weights
        self.coming = []  # samples that the next round has
        self.left = {}
        self.begin_round()

    def begin_round(self):
        """Every class comes as often as its weight says, also those that are new."""
        for row in self.coming:
            if self.left.get(row.value):
                self.left[row.value].add(row)
        self.rows += self.coming
        self.coming, self.delivered = [], []
        classes = {row.value for row in self.rows}
        self.lacking = {name: share for name in classes if (share := self.weights.get(name, 1))}

    def take(self, row):
        """A sample was delivered: the round lacks it, and at its end its class had it left."""
        self.lacking[row.value] -= 1
        self.delivered.append(row)
        if any(self.lacking.values()):
            assert min(self.lacking.values()) >= 0
            return
        for _ in range(len(self.delivered)):
            name = self.delivered[0].value
            if not self.left.get(name):
                self.left[name] = {one for one in self.rows if one.value == name}
            row = next(one for one in self.delivered if one in self.left[name])
            self.left[name].remove(row)
            self.delivered.remove(row)
        self.begin_round()

    def add(self, rows):
        """Samples came; they are there from the next round on."""
        self.coming += [row for row in rows if row not in self.rows and row not in self.coming]
        if not self.delivered:
            self.begin_round()


@in_cases
def test_classes_stay_even_and_go_on_with_what_they_have_left(draw):
    """A round has every class as often as it should; no sample comes again before all have come."""
    history = draw_history(draw)
    first, seed, epoch = history.first, history.seed, history.epoch
    rows = draw.choice([None, draw.randint(1, 60)])
    weights = {name: draw.randint(0, 3) for name in first if draw.random() < 0.3}
    if all(weights.get(name) == 0 for name in first):
        weights = {}
    by_array = draw.random() < 0.5

    def make(n, every):
        return Balanced([row.value for row in every] if by_array else "value", rows, weights)

    run, pieces = check_history(make, history)

    begin = Folder(first).rows
    alone = Balanced("value", rows, weights).bind(Known(len(first), value=first))
    length = alone.cut(Share(len(first), 1), seed, 0).n
    earlier = [alone.begin(len(first), seed, one).rows(0, length) for one in range(epoch)]
    model = Model(begin, weights)
    for row in np.concatenate([np.empty(0, int), *earlier]):
        model.take(begin[row])
    for number, piece in enumerate(pieces):
        model.add(run.known(number))
        for row in piece:
            model.take(row)
    total = sum(map(len, pieces))
    assert total == rows if rows else total >= len(run.folder.rows)
