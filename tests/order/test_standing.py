"""Mixtures whose sources grow: a pass of a source has each row once, new ones as well."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from order.test_grown import Folder, spans_of
from order.test_mixture import EXACT, SOME, Facts

from ndfeed.order.epoch import Share
from ndfeed.order.grown import Generation, Grown, Stretches
from ndfeed.order.mixture import Mixture
from ndfeed.order.protocol import Progress
from ndfeed.order.streams import Source

CASES = 2000


class Sources:
    """Folders that grow, their mixture, and what is known of the passes over them."""

    def __init__(self, draw):
        self.draw = draw
        self.folders = [Folder(draw) for _ in range(draw.randint(1, 3))]
        self.orders = [draw.choice(SOME) for _ in self.folders]
        self.end = draw.choice(["first", "last", "cycle"])
        self.by_rows = draw.random() < 0.3
        weights = [draw.randint(1, 4), *(draw.randint(0, 4) for _ in self.folders[1:])]
        places = {(draw.randint(0, 2), draw.randint(0, 60)) for _ in range(draw.randint(0, 2))}
        self.stages = [
            (place, tuple(draw.sample(weights, len(weights)))) for place in sorted(places)
        ]
        self.stages = [((0, 0), tuple(weights)), *(one for one in self.stages if one[0] != (0, 0))]
        self.known = {}  # samples by what stands for their fingerprint
        self.passes = [set() for _ in self.folders]  # what came of the pass in progress

    def mix(self):
        """The mixture of the samples that there are now, from its beginning."""
        made = []
        for name, folder, order in zip("abc", self.folders, self.orders, strict=False):
            data = f"{name}{len(folder)}"
            self.known[data] = set(folder.samples().tolist())
            made.append(Source(name, len(folder), order, data=data))
        rows = tuple(map(len, self.folders))
        stages = (((0, 0), rows),) if self.by_rows else tuple(self.stages)
        return Mixture(tuple(made), stages, self.end).bind(Facts(sum(rows)))

    def counts(self):
        """The rows of each file."""
        return np.concatenate([folder.counts() for folder in self.folders])

    def add_passes(self, order):
        """What a loader does: the orders of passes that have grown, from what a state tells."""
        sources = list(order.sources)
        for number, one in enumerate(order.start.passes):
            if not one.past:
                continue
            folder, now = self.folders[number], []
            for rows, samples, data in one.past:
                old = np.isin(folder.samples(), list(self.known[data]))
                now.append(Generation(rows, samples, data, Stretches(spans_of(old))))
            first = self.known[one.past[0][2]]
            files = [len(file) for file in folder.files if file and set(file) <= first]
            base = self.orders[number]
            grown = Grown(base, np.array(files), base, None, one.number, tuple(now))
            sources[number] = replace(sources[number], grown=grown)
        return replace(order, sources=tuple(sources))

    def read(self, order, epoch, start, stop, seed):
        """Samples at some positions: each as its source, and its number there."""
        rows = order.begin(0, seed, epoch, self.counts()).rows(start, stop)
        ends = np.cumsum([len(folder) for folder in self.folders])
        which = np.searchsorted(ends, rows, side="right")
        every = np.concatenate([folder.samples() for folder in self.folders])
        return list(zip(which.tolist(), every[rows].tolist(), strict=True))

    def deliver(self, samples):
        """Count samples that were delivered: none comes twice before all came that there are."""
        for which, sample in samples:
            seen = self.passes[which]
            assert sample not in seen
            seen.add(sample)
            if len(seen) == len(self.folders[which]):
                assert seen == set(self.folders[which].samples().tolist())
                seen.clear()

    def grow(self, order, epoch, samples):
        """The mixture that continues once some folders have grown."""
        for folder in self.folders:
            if self.draw.random() < 0.6:
                folder.add(self.draw.randint(0, 3))
        made = self.add_passes(order.grow(self.mix(), epoch, samples))
        # By way of a state, and a loader that has not heard of what was before.
        told = made.spec(), epoch, samples, made.describe(0, epoch, samples)
        again, over = self.mix().resume(Progress(*json.loads(json.dumps(told))))
        assert (again.start, over) == (made.start, samples)
        return made


@pytest.mark.parametrize("part", range(16))
def test_sources_grow_without_repeating_what_was_seen(part):
    """2,000 histories: any orders, growth between epochs and within them, and weights that change.

    A mixture made again from the JSON of a state delivers the same rest.
    """
    for case in range(part, CASES, 16):
        draw = random.Random(case)
        sources, seed = Sources(draw), draw.randint(0, 1 << 40)
        order, epoch, samples = sources.mix(), 0, 0
        for _ in range(draw.randint(1, 6)):
            length = order.cut(Share(1, 1), seed, epoch).n
            stop = length if draw.random() < 0.4 else draw.randint(samples, length)
            found = sources.read(order, epoch, samples, stop, seed)
            check_share(order, epoch, samples, found)
            sources.deliver(found)
            samples = stop
            check_again(sources, order, epoch, samples, seed)
            if samples == length and draw.random() < 0.8:
                epoch, samples = epoch + 1, 0
                order = order.settle(epoch)
            if draw.random() < 0.7:
                order = sources.grow(order, epoch, samples)
        found = sources.read(order, epoch + 1, 0, order.cut(Share(1, 1), seed, epoch + 1).n, seed)
        rest = sources.read(order, epoch, samples, order.cut(Share(1, 1), seed, epoch).n, seed)
        sources.deliver(rest + found)


def check_share(order, epoch, samples, found):
    """Proportions are exact from where a mixture begins anew, within one sample."""
    begins = (order.start.epoch, order.start.samples) if order.start else (0, 0)
    if len(order.stages) > 1 or (epoch, samples) != (epoch, begins[1] if epoch == begins[0] else 0):
        return
    weights = np.array(order.stages[0][1])
    which = np.array([one for one, _ in found], int)
    counts = np.cumsum(which[:, None] == np.arange(len(weights)), axis=0)
    shares = np.arange(1, len(found) + 1)[:, None] * weights / weights.sum()
    assert (np.abs(counts - shares) < 1).all()


def check_again(sources, order, epoch, samples, seed):
    """What a state tells is enough for the same rest, in another process."""
    told = order.spec(), epoch, samples, order.describe(0, epoch, samples)
    assert len(json.dumps(told)) < 2500
    again, over = sources.mix().resume(Progress(*json.loads(json.dumps(told))))
    assert over == samples
    again = again if again.start is None else sources.add_passes(again)
    length = order.cut(Share(1, 1), seed, epoch).n
    assert again.cut(Share(1, 1), seed, epoch).n == length
    stop = min(samples + 40, length)
    rest = sources.read(order, epoch, samples, stop, seed)
    assert sources.read(again, epoch, samples, stop, seed) == rest
    check_arrivals(sources, order, epoch, range(samples, stop), seed)
    settled, few = again.settle(epoch + 1), min(9, order.cut(Share(1, 1), seed, epoch + 1).n)
    later = sources.read(order, epoch + 1, 0, few, seed)
    assert sources.read(settled, epoch + 1, 0, few, seed) == later


def check_arrivals(sources, order, epoch, positions, seed):
    """Rows of sources that take up whole files or blocks have arrived before they are needed."""
    begun = order.begin(0, seed, epoch, sources.counts())
    if not positions:
        return
    there = {
        row for one in begun.windows for a, b, _ in one.held(positions[0]) for row in range(a, b)
    }
    ends = np.cumsum([len(folder) for folder in sources.folders])
    for at, row in zip(positions, begun.rows(positions[0], positions[-1] + 1), strict=True):
        for window in begun.windows:
            for first, end, _ in window.arriving(at, at + 1):
                there |= set(range(first, end))
        if sources.orders[np.searchsorted(ends, row, side="right")] != EXACT:
            assert row in there
