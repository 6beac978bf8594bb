"""Facts for orders that are tested without files, and what holds for every order that has them."""

import json
import random

import numpy as np
import pytest
from children import examples

from ndfeed.order.epoch import Share
from ndfeed.order.protocol import Progress

_PARTS = 4


def in_cases(check):
    """Check 2,000 cases, each with a random generator of its own: drawing them costs little."""

    @pytest.mark.parametrize("part", range(_PARTS))
    def test(part):
        for case in range(part, examples(2000), _PARTS):
            try:
                check(random.Random(case))
            except Exception as error:
                error.add_note(f"in case {case}")
                raise

    test.__doc__, test.__module__, test.__qualname__ = (
        check.__doc__,
        check.__module__,
        check.__name__,
    )
    return test


def draw_list(draw, least, most, largest):
    """A list of numbers."""
    return [draw.randint(0, largest) for _ in range(draw.randint(least, most))]


def draw_seed(draw):
    """Any seed, small ones often."""
    return draw.choice([draw.randint(0, 9), draw.randint(-(2**70), 2**70)])


class Known:
    """``Data`` of an order: some fields with one value for each sample."""

    def __init__(self, n, world=1, **fields):
        self.n, self.batch_size, self.world = n, 4, world
        self.fields = {name: np.asarray(values) for name, values in fields.items()}

    def values(self, field):
        return self.fields[field]

    def classes(self, field):
        values, codes = np.unique(self.fields[field], return_inverse=True)
        return codes, [str(value) for value in values]

    def lengths(self, field):
        return self.fields[field]

    def each(self, function, items):
        return map(function, items)

    def share(self, name, size, fill):
        out = np.zeros(size, np.uint8)
        fill(out)
        return out


def rows_of(order, n, seed, epoch, count, files=None):
    """All rows of an epoch."""
    return order.begin(n, seed, epoch, files).rows(0, count)


def check_resume(order, n, seed, epoch, first, second, batches, files=None, most=500):
    """Ranks of one world, then of another one from a saved state: together the whole epoch.

    ``first`` and ``second`` are (batch size, world). No rank has more batches than another, and the
    state is small JSON. ``files`` are the rows of each file.
    """
    size, world = first
    cuts = [order.cut(Share(n, size, rank, world), seed, epoch) for rank in range(world)]
    assert len({cut.batches() for cut in cuts}) == 1
    count = cuts[0].n
    whole = rows_of(order, n, seed, epoch, count, files)
    done = min(batches, cuts[0].batches())
    seen = []
    for k in range(done):
        spans = [span for cut in cuts for span in cut.spans(k)]
        seen += [order.begin(n, seed, epoch, files).rows(*span) for span in spans]
    samples = cuts[0].consumed(done)
    text = json.dumps(
        {"order": order.spec(), "samples": samples, "more": order.describe(n, epoch, samples)}
    )
    assert len(text) < most
    saved = json.loads(text)
    continued = order.resume(Progress(saved["order"], epoch, saved["samples"], saved["more"]))
    assert continued is not None
    again, start = continued
    size, world = second
    cuts = [again.cut(Share(n, size, rank, world), seed, epoch) for rank in range(world)]
    assert len({cut.batches(start) for cut in cuts}) == 1
    for k in range(cuts[0].batches(start)):
        spans = [span for cut in cuts for span in cut.spans(k, start)]
        seen += [again.begin(n, seed, epoch, files).rows(*span) for span in spans]
    found = np.concatenate([whole[:0], *seen])
    assert found.tolist() == whole.tolist()


def check_uniform(counts, expected, limit):
    """Pearson's statistic of counts, in units of its standard deviation above its mean."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    free = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    # Wilson and Hilferty: the cube root is nearly normal.
    z = ((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / (2 / (9 * free)) ** 0.5
    assert z < limit, f"{z:.1f} standard deviations"
