"""Random programs: views of stored samples, an order, ranks, and a run that is resumed.

What is delivered is compared with a list of all samples, on which each view is a line of Python.
"""

import json
import random
from collections import Counter

import numpy as np
import pytest
from children import examples

import ndfeed

PROGRAMS, PARTS = 160, 4
SAVES = [np.savez, np.savez_compressed]


def write_samples(folder, draw, first):
    """A folder of files, and its samples; each tells which it is, and no two are the same."""
    folder.mkdir()
    save, samples = draw.choice(SAVES), []
    for file in range(draw.randint(1, 4)):
        ids = first + 100 * file + np.arange(draw.randint(4, 12))
        x = 10 * ids[:, None] + np.arange(6)
        save(folder / f"{file}.npz", id=ids, x=x)
        samples.append([{"id": one, "x": row} for one, row in zip(ids, x, strict=True)])
    return ndfeed.open(folder, sample="row"), samples


def number_of(sample):
    """The number of a sample; of a window, that of its first row."""
    return int(np.ravel(sample["id"])[0])


def chosen(ds, samples, draw):
    """Some samples, also several times, and in any order."""
    rows = draw.choices(range(len(samples)), k=draw.randint(1, len(samples)))
    if draw.random() < 0.5:
        rows = draw.sample(range(len(samples)), len(rows))
    return ds.take(rows), [samples[row] for row in rows]


def masked(ds, samples, draw):
    """Those that meet a condition."""
    factor = draw.randint(2, 4)
    kept = [one for one in samples if number_of(one) % factor or one is samples[0]]
    names = {number_of(one) for one in kept}

    def is_kept(batch):
        first = batch["id"].reshape(len(batch["id"]), -1)[:, 0]
        return np.isin(first, list(names))

    return ds.where(is_kept), [one for one in samples if number_of(one) in names]


def doubled(ds, samples, draw):
    """Each through a function."""
    made = ds.map(lambda batch: {**batch, "x": 2 * batch["x"]})
    return made, [{**one, "x": 2 * one["x"]} for one in samples]


def labelled(ds, samples, draw):
    """With one field more."""
    if "label" in ds.fields:
        return ds, samples
    label = np.array([number_of(one) % 4 for one in samples])
    made = [{**one, "label": n} for one, n in zip(samples, label, strict=True)]
    return ds.with_labels(label), made


def held(ds, samples, draw):
    """In memory."""
    return ds.in_memory(), samples


VIEWS = [chosen, masked, doubled, held]


def make_view(folder, draw, first=0, kinds=("rows", "windows", "crops"), views=(*VIEWS, labelled)):
    """A dataset and its samples."""
    ds, files = write_samples(folder, draw, first)
    kind = draw.choice(kinds)
    samples = [one for file in files for one in file]
    if kind == "windows":
        length, stride = draw.randint(2, 4), draw.randint(1, 3)
        ds = ds.windows(length, stride=stride)
        spans = [
            file[at : at + length]
            for file in files
            for at in range(0, len(file) - length + 1, stride)
        ]
        samples = [{name: np.stack([row[name] for row in span]) for name in ("id", "x")}
                   for span in spans]  # fmt: skip
    elif kind == "crops":
        places = [(draw.randrange(len(samples)), draw.randint(0, 2)) for _ in samples]
        ds = ds.crops({"x": (4,)}, at=places, place=False)
        samples = [{**samples[n], "x": samples[n]["x"][at : at + 4]} for n, at in places]
    for _ in range(draw.randint(0, 3)):
        view = draw.choice(views)
        ds, samples = view(ds, samples, draw)
    return ds, samples


def draw_order(samples, draw):
    """An order, and what an epoch has: all samples, some that are known, or some in a sequence."""
    n = len(samples)
    values = np.array([draw.randint(0, 9) for _ in samples])
    values[draw.randrange(n)] = 1
    by_value = np.argsort(values, kind="stable")
    return draw.choice(
        [
            (True, range(n), None),
            (False, range(n), range(n)),
            (ndfeed.Exact(), range(n), None),
            (ndfeed.Blocks(rows=draw.randint(1, 6), window=2), range(n), None),
            (ndfeed.Windows(2), range(n), None),
            (ndfeed.Sorted(values), range(n), by_value),
            (ndfeed.Buckets(values), range(n), None),
            (ndfeed.Recent(7), range(n)[-7:], None),
            (ndfeed.Weighted(values), None, None),
            (ndfeed.Balanced(values), None, None),
        ]
    )


def read(loader):
    """What every batch has, sample by sample."""
    return [list_samples(batch) for batch in loader]


def list_samples(batch):
    names = sorted(batch)
    rows = zip(*(batch[name] for name in names), strict=True)
    return [text_of(dict(zip(names, row, strict=True))) for row in rows]


def text_of(sample):
    return json.dumps({name: np.asarray(sample[name]).tolist() for name in sorted(sample)})


def join(ranks):
    """The batches of all ranks, end to end; each has as many."""
    assert len({len(one) for one in ranks}) == 1
    return [one for step in zip(*ranks, strict=True) for batch in step for one in batch]


def loaders_of(ds, draw, size, world, **words):
    """The loaders of all ranks."""
    options = {"threads": draw.choice([1, 3]), **words}
    return [ndfeed.loader(ds, size, shard=(rank, world), **options) for rank in range(world)]


def check_resume(ds, draw, epoch, words, *, same_order=True):
    """Ranks that are left somewhere, and others that go on there, deliver what one alone does."""
    ranks = loaders_of(ds, draw, draw.randint(1, 7), draw.randint(1, 3), **words)
    passes = [iter(loader) for loader in ranks]
    done = draw.randrange(len(ranks[0]))
    seen = join([[list_samples(next(one)) for _ in range(done)] for one in passes])
    states = [loader.state_dict() for loader in ranks]
    assert all(state == states[0] for state in states)
    others = loaders_of(ds, draw, draw.randint(1, 7), draw.randint(1, 3), **words)
    for loader in others:
        loader.load_state_dict(json.loads(json.dumps(states[0])))
    whole = seen + join([read(loader) for loader in others])
    assert whole == epoch if same_order else Counter(whole) == Counter(epoch)


def read_epochs(ds, draw, words, count):
    """What one rank alone is given."""
    (alone,) = loaders_of(ds, draw, 5, 1, **words)
    return [[one for batch in read(alone) for one in batch] for _ in range(count)]


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs(tmp_path, part):
    """No batch has another sample than it should, in any epoch, on any rank, from any state on."""
    for case in range(part, examples(PROGRAMS), PARTS):
        draw = random.Random(case)
        ds, samples = make_view(tmp_path / f"{case}", draw)
        order, members, sequence = draw_order(samples, draw)
        texts = [text_of(one) for one in samples]
        words = {"shuffle": order, "seed": draw.randint(-9, 99)}
        epochs = read_epochs(ds, draw, words, 2)
        for found in epochs:
            assert set(found) <= set(texts), case
            if members is not None:
                assert Counter(found) == Counter(texts[row] for row in members), case
            if sequence is not None:
                assert found == [texts[row] for row in sequence], case
        check_resume(ds, draw, epochs[0], words, same_order=not isinstance(order, ndfeed.Buckets))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_mixtures(tmp_path, part):
    """Of every source all samples come before one comes again, in its proportion of any stretch."""
    orders = [True, False, ndfeed.Blocks(rows=3, window=2), ndfeed.Windows(2), ndfeed.Sorted("id")]
    for case in range(part, examples(PROGRAMS // 2), PARTS):
        draw = random.Random(case)
        made = {
            name: make_view(tmp_path / f"{case}{name}", draw, 10_000 * at, ["rows"], VIEWS)
            for at, name in enumerate("abc"[: draw.randint(2, 3)])
        }
        weights = [draw.randint(1, 4) for _ in made]
        end = draw.choice(["first", "last", "cycle"])
        ds = ndfeed.mix({name: one for name, (one, _) in made.items()}, weights=weights, end=end)
        ds = ds.in_memory() if draw.random() < 0.2 else ds
        order = draw.choice([draw.choice(orders), {name: draw.choice(orders) for name in made}])
        words = {"shuffle": order, "seed": draw.randint(-9, 99)}
        epochs = read_epochs(ds, draw, words, 3)
        of = [np.array([json.loads(one)["id"] // 10_000 for one in found]) for found in epochs]
        for number, (_, samples) in enumerate(made.values()):
            texts = Counter(map(text_of, samples))
            pairs = zip(epochs, of, strict=True)
            own = [x for found, which in pairs for x in np.array(found)[which == number].tolist()]
            for at in range(0, len(own), len(samples)):
                some = Counter(own[at : at + len(samples)])
                assert some <= texts, case
            for which in of:
                counts = np.cumsum(which == number)
                share = np.arange(1, len(which) + 1) * weights[number] / sum(weights)
                assert (np.abs(counts - share) < 1).all(), case
        check_resume(ds, draw, epochs[0], words)
