"""Loaders of mixtures whose sources grow: between epochs, and in the middle of one."""

import copy
import json
import pickle
import random
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from audit import opened_in
from growing import age

import ndfeed
from ndfeed.errors import ResumeError
from ndfeed.loading.loader import look_anew

CASES = 96
LARGE = 10_000  # numbers of a source
SHUFFLES = [
    True,
    True,
    False,
    ndfeed.Blocks(rows=5, window=2),
    ndfeed.Windows(files=2),
    {"a": True, "b": ndfeed.Windows(files=3), "c": False},
]


class Sources:
    """Folders of files that come one after the other, and what came of the passes over them."""

    def __init__(self, folder, draw, **options):
        self.folder, self.draw, self.options = folder, draw, options
        self.made = dict.fromkeys("abc", 0)
        self.passes = {name: set() for name in self.made}
        self.save = {name: draw.choice([np.savez, np.savez_compressed]) for name in self.made}
        self.age = 900
        for name in self.made:
            (folder / name).mkdir(parents=True)
            self.add(name, draw.randint(1, 4))

    def add(self, name, files):
        """Add files with names before and after those of others."""
        for _ in range(files):
            rows = self.draw.randint(1, 9)
            first = LARGE * "abc".index(name) + self.made[name]
            path = self.folder / name / f"{self.draw.random():.9f}.npz"
            self.save[name](path, n=np.arange(first, first + rows))
            age(path, self.age)
            self.made[name] += rows
        self.age -= 2

    def grow(self):
        """Add files to some of them."""
        for name in self.made:
            if self.draw.random() < 0.6:
                self.add(name, self.draw.randint(1, 3))

    def mix(self):
        """The mixture of the files there are."""
        opened = {name: ndfeed.open(self.folder / name, sample="row") for name in self.made}
        return ndfeed.mix(opened, **self.options)

    def deliver(self, numbers):
        """Count samples that came: none comes twice before all came that there are."""
        for number in numbers:
            name = "abc"[number // LARGE]
            seen = self.passes[name]
            assert number not in seen
            seen.add(number)
            if len(seen) == self.made[name]:
                seen.clear()


def load(ds, size, shuffle=True, world=1, state=None, grown=False, **options):
    """The loaders of all ranks, perhaps from a state."""
    ranks = [
        ndfeed.loader(ds, size, shuffle=shuffle, shard=(rank, world), threads=1, **options)
        for rank in range(world)
    ]
    for loader in ranks if state is not None else ():
        loader.load_state_dict(state, grown=grown)
    return ranks


def take(ranks, count=None):
    """What all ranks get in so many batches, or in the rest of the epoch."""
    found = []
    for batches in zip(*(islice(loader, count) for loader in ranks), strict=True):
        for batch in batches:
            found += batch["n"].tolist()
    return found


def through_json(loader):
    """A state as another run gets it."""
    text = json.dumps(loader.state_dict())
    assert len(text) < 3000
    return json.loads(text)


def draw_options(draw):
    weights = [draw.randint(0, 4), draw.randint(1, 4), draw.randint(0, 4)]
    more = {0: weights, (0, draw.randint(1, 40)): weights[::-1] if weights[2] else [1, 1, 1]}
    return {
        "weights": draw.choice([None, weights, weights, more]),
        "end": draw.choice(["first", "last", "cycle"]),
    }


@pytest.mark.parametrize("part", range(8))
def test_histories_of_growth(folder, part):
    """Files come between epochs and within them; ranks and batches change at every resume.

    Every loader that is given the state delivers the same rest.
    """
    for case in range(part, CASES, 8):
        draw = random.Random(case)
        sources = Sources(folder / f"{case}", draw, **draw_options(draw))
        shuffle, seed = draw.choice(SHUFFLES), draw.randint(0, 99)
        ranks = load(sources.mix(), draw.randint(1, 9), shuffle, draw.randint(1, 3), seed=seed)
        for _ in range(draw.randint(1, 4)):
            left = draw.choice([None, draw.randint(0, 3)])
            found = take(ranks, left)
            sources.deliver(found)
            if left is None and draw.random() < 0.6:
                sources.grow()
                news = {loader.refresh() for loader in ranks}
                assert len(news) == 1
                continue
            state = through_json(ranks[0])
            if grown := draw.random() < 0.6:
                sources.grow()
            again = [draw.randint(1, 9), shuffle, draw.randint(1, 3), state, grown]
            ranks = load(sources.mix(), *again)
            (other,) = load(sources.mix(), 4, shuffle, 1, through_json(ranks[0]))
            assert take([other]) == take(load(sources.mix(), *again))
        sources.deliver(take(ranks))
        sources.deliver(take(ranks))


@pytest.fixture
def two(tmp_path):
    """Two sources of some files, with room for others."""
    write(tmp_path / "a", 5, 6)
    write(tmp_path / "b", 5, 6, 7, first=1000)
    return tmp_path


def write(folder, *numbers, first=0, rows=10, save=np.savez):
    """Files whose rows tell which they are."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        path = folder / f"{number}.npz"
        save(path, n=first + rows * number + np.arange(rows))
        age(path)


def mix(folder, **options):
    opened = {name: ndfeed.open(folder / name, sample="row") for name in ("a", "b")}
    return ndfeed.mix(opened, **options)


def test_a_dataset_is_mixed_again(two):
    """With the same arguments, views and maps; weights left out are those of the samples."""
    ds = mix(two, source="from", end="last").map(double)
    given = mix(two, weights={"a": 3, "b": 1})
    assert ds.mixture.weights == {"a": 2, "b": 3}
    write(two / "a", 4)
    for again in (ds.refresh(), pickle.loads(pickle.dumps(ds)).refresh()):
        assert (again.mixture.rows, again.mixture.end) == ((30, 30), "last")
        assert again.mixture.weights == {"a": 1, "b": 1}
        assert again[0]["n"] == 80
        assert np.bincount(again[:]["from"]).tolist() == [30, 30]
        assert again.fingerprint == mix(two).fingerprint
    assert given.refresh().mixture.weights == {"a": 3, "b": 1}


def double(batch):
    return {**batch, "n": 2 * batch["n"]}


def test_a_pass_takes_in_what_is_new(two):
    """The first epoch had 5 of 30 samples of a source: the next ones go on with the others."""
    ds = mix(two, weights=[4, 1], end="first")
    loader = ndfeed.loader(ds, 5, shuffle=True)
    seen = take([loader])
    assert loader.state_dict()["more"]["sources"] == {"a": 20, "b": 5}
    write(two / "b", 4, first=1000)
    assert loader.refresh() == 10
    assert loader.dataset.mixture.rows == (20, 40)
    told = loader.state_dict()["order"]["start"]
    assert (told["epoch"], told["sources"]) == (1, {"a": 20, "b": 5})
    assert [one[:2] for one in told["grown"]["b"]] == [[30, 5]]
    found = [number for _ in range(7) for number in take([loader])]
    b = [n for n in seen + found if n >= 1000]
    assert len(set(b[:40])) == 40


def test_an_epoch_in_progress_ends_as_it_began(two):
    """The next one has what is new; the state is that of the old data until then."""
    loader, same = (ndfeed.loader(mix(two), 8, shuffle=True) for _ in range(2))
    whole, batches = take([same]), iter(loader)
    found = next(batches)["n"].tolist()
    before = loader.state_dict()
    write(two / "a", 4)
    assert loader.refresh() == 10
    assert loader.state_dict() == before
    copies = [copy.copy(loader), pickle.loads(pickle.dumps(loader))]
    found += [value for batch in batches for value in batch["n"].tolist()]
    assert found == whole
    assert len(loader.dataset) == 60
    second = take([loader])
    assert sorted(second) == sorted(mix(two)[:]["n"].tolist())
    for other in copies:
        assert found[:8] + take([other]) == whole
        assert take([other]) == second


def test_looking_when_there_is_nothing_new_changes_nothing(two):
    """Also after the sources have grown, and with other weights than the state's."""
    loader = ndfeed.loader(mix(two, weights=[1, 1]), 8, shuffle=True)
    take([loader], 2)
    other = ndfeed.loader(mix(two, weights=[2, 1]), 8, shuffle=True)
    other.load_state_dict(loader.state_dict())
    before = other.state_dict()
    assert other.refresh() == 0
    assert other.state_dict() == before
    take([other])
    after = other.state_dict()
    assert other.refresh() == 0
    assert other.state_dict() == after
    write(two / "a", 4)
    assert other.refresh() == 10
    grown = other.state_dict()
    assert other.refresh() == 0
    assert other.state_dict() == grown
    assert grown["order"]["start"]["sources"] == after["more"]["sources"]


def test_files_found_before_anything_was_delivered_are_there_from_the_beginning(two):
    """A loader that has delivered nothing is that of the files there are."""
    loader = ndfeed.loader(mix(two), 8, shuffle=True)
    write(two / "a", 4)
    loader.refresh()
    fresh = ndfeed.loader(mix(two), 8, shuffle=True)
    assert loader.state_dict() == fresh.state_dict()
    (state,) = [ndfeed.loader(mix(two), 8, shuffle=True).state_dict()]
    write(two / "b", 4, first=1000)
    later = ndfeed.loader(mix(two), 8, shuffle=True)
    later.load_state_dict(state, grown=True)
    assert later.state_dict() == ndfeed.loader(mix(two), 8, shuffle=True).state_dict()


def test_the_rest_of_an_epoch_is_as_long_as_what_is_left_and_new(two):
    """By ``"cycle"`` an epoch has as many samples as there are then."""
    loader = ndfeed.loader(mix(two, end="cycle"), 8, shuffle=True)
    seen, state = take([loader], 3), loader.state_dict()
    write(two / "a", 4)
    later = ndfeed.loader(mix(two, end="cycle"), 8, shuffle=True)
    later.load_state_dict(state, grown=True)
    assert (later.epoch, later.state_dict()["samples"]) == (0, 24)
    assert later.order.mixing.ratio > 0
    rest = take([later])
    assert len(seen + rest) == 60
    assert later.epoch == 1
    assert "samples" not in later.state_dict()["order"].get("start", {})


@pytest.mark.parametrize("when", ["between epochs", "within one"])
def test_files_are_inflated_once_in_a_pass_that_grows(tmp_path, when):
    """Windows take up what is left of the old files, then the new ones."""
    for name, first in (("a", 0), ("b", 1000)):
        write(tmp_path / name, *range(8), first=first, save=np.savez_compressed)
    order = ndfeed.Windows(files=2)
    loader = ndfeed.loader(mix(tmp_path, weights=[1, 3]), 4, shuffle=order, threads=2)
    seen = take([loader], None if when == "between epochs" else 9)
    state = through_json(loader)
    write(tmp_path / "a", 8, 9, save=np.savez_compressed)
    if when == "between epochs":
        loader.refresh()
    else:
        loader = ndfeed.loader(mix(tmp_path, weights=[1, 3]), 4, shuffle=order, threads=2)
        loader.load_state_dict(state, grown=True)
    with opened_in(tmp_path) as opened:
        found = take([loader])
    a, b = ([n for n in found if (n >= 1000) == one] for one in (False, True))
    first = [n for n in seen if n < 1000]
    assert len(set(first + a)) == len(first + a) < 100
    passes = {"a": 1, "b": 1 + len(b) // 80}
    for path, count in Counter(map(Path, opened)).items():
        # Once for its one stream, once to ask for it ahead, and once where the epoch was left.
        assert count <= 3 * passes[path.parent.name]


def test_a_pass_that_is_over_leaves_the_state(two):
    """A state lists only what is needed to go on."""
    loader = ndfeed.loader(mix(two, weights=[1, 1], end="first"), 8, shuffle=True)
    take([loader])
    write(two / "b", 4, first=1000)
    loader.refresh()
    assert "grown" in loader.state_dict()["order"]["start"]
    take([loader])
    state = loader.state_dict()
    assert state["order"]["start"] == {
        "epoch": 2,
        "sources": {"a": 40, "b": 40},
    }
    again = ndfeed.loader(mix(two, weights=[1, 1], end="first"), 8, shuffle=True)
    again.load_state_dict(through_json(loader))
    assert again.state_dict() == state
    assert take([again]) == take([loader])


def test_other_weights_and_more_files_at_once(two):
    """The sources continue, and an epoch of the new length begins."""
    loader = ndfeed.loader(mix(two, weights=[1, 1]), 5, shuffle=True)
    seen, state = take([loader], 2), through_json(loader)
    write(two / "a", 4)
    later = ndfeed.loader(mix(two, weights=[3, 1]), 5, shuffle=True)
    later.load_state_dict(state, grown=True)
    assert later.state_dict()["samples"] == 0
    found = seen + take([later])
    a = [n for n in found if n < 1000]
    assert len(a) == len(set(a[:30])) + len(a[30:])
    assert len(a) == 35
    saved = through_json(later)
    last = ndfeed.loader(mix(two, weights=[3, 1]), 5, shuffle=True)
    last.load_state_dict(saved)
    assert take([last]) == take([later])


def test_the_old_mixture_tells_where_times_do_not(two):
    """Files that were copied in between, for example."""
    loader = ndfeed.loader(mix(two, end="last"), 5, shuffle=True)
    seen, state = take([loader], 2), through_json(loader)
    old = mix(two, end="last")
    for number in (3, 8, 4):
        write(two / "a", number)
    for number in (3, 4, 5, 6, 8):
        age(two / "a" / f"{number}.npz", 1000 - number % 4)
        time.sleep(0.02)
    later = ndfeed.loader(mix(two, end="last"), 5, shuffle=True)
    with pytest.raises(ResumeError, match=r"source 'a': cannot tell.*grown=ndfeed\.mix"):
        later.load_state_dict(state, grown=True)
    with pytest.raises(ResumeError, match="not that of the state, which is a mixture"):
        later.load_state_dict(state, grown=ndfeed.open(two / "a", sample="row"))
    later.load_state_dict(state, grown=old)
    found = seen + take([later], 2)
    state = through_json(later)  # of the samples there are now
    last = ndfeed.loader(mix(two, end="last"), 5, shuffle=True)
    with pytest.raises(ResumeError, match=r"source 'a': cannot tell.*grown=ndfeed\.mix"):
        last.load_state_dict(state)
    last.load_state_dict(state, grown=old)
    over = last.state_at(9, 5).as_dict()  # the pass that grew is over, which needs no telling
    other = ndfeed.loader(mix(two, end="last"), 5, shuffle=True)
    other.load_state_dict(over)
    found += take([last])
    assert len({n for n in found if n < 1000}) == 50
    last.epoch = 9
    assert take([last])[5:] == take([other])


def test_orders_that_cannot_grow_are_refused(two):
    """In one line, before anything is lost; the loader goes on as it was."""
    order = {"a": ndfeed.Weighted(np.ones(20)), "b": True}
    loader = ndfeed.loader(mix(two), 8, shuffle=order)
    take([loader])
    state = loader.state_dict()
    write(two / "b", 4, first=1000)
    assert loader.refresh() == 10  # the other one grew
    take([loader])
    (blocks,) = load(mix(two), 8, {"a": ndfeed.Recent(5), "b": True})
    take([blocks])
    state = blocks.state_dict()
    write(two / "a", 4)
    for call in (
        blocks.refresh,
        lambda: load(mix(two), 8, {"a": ndfeed.Recent(5), "b": True}, 1, state, True),
    ):
        with pytest.raises(ResumeError, match=r"source 'a': a pass of Recent\(rows=5\) cannot"):
            call()
    assert blocks.state_dict() == state
    assert take([blocks])


def test_any_order_has_what_is_found_before_its_first_epoch(two):
    """Nothing of any source was delivered yet."""
    order = {"a": ndfeed.Sorted("n"), "b": True}
    loader = ndfeed.loader(mix(two), 8, shuffle=order, seed=3)
    state = through_json(loader)
    write(two / "a", 4)
    assert loader.refresh() == 10
    (later,) = load(mix(two), 8, order, 1, state, True)
    assert later.state_dict() == loader.state_dict()
    found = take([loader])
    assert sorted(found) == sorted(mix(two)[:]["n"].tolist())
    assert take([later]) == found


def test_an_epoch_that_grew_begins_once_more(two):
    """Where it grew: every source goes on there, and the epoch is one that can be resumed."""

    def load(state=None):
        loader = ndfeed.loader(mix(two, weights=[1, 1], end="cycle"), 5, shuffle=True)
        if state is not None:
            loader.load_state_dict(state, grown=True)
        return loader

    loader = load()
    seen, state = take([loader], 4), through_json(loader)
    write(two / "a", 4)
    later, other = load(state), load(state)
    take([later], 1)
    later.epoch = 0
    assert later.state_dict()["more"] == state["more"]
    assert len(later) == 12
    assert len(set(seen + take([later], 8))) == 60
    assert len(take([load(through_json(later))])) == 20

    take([other], 1)
    write(two / "a", 3)
    assert other.refresh() == 10
    other.epoch = 0
    assert other.state_dict()["more"] == state["more"]
    assert len(set(seen + take([other], 8))) == 60


def test_files_that_vanish_in_the_middle_of_a_pass(two):
    """Nothing is dropped in silence; a source between two passes goes on with what there is."""
    loader = ndfeed.loader(mix(two, weights=[1, 1]), 8, shuffle=True)
    take([loader])
    (two / "b" / "5.npz").unlink()
    with pytest.raises(ndfeed.MissingError, match=r"5\.npz"):
        loader.refresh()
    with pytest.raises(ResumeError, match="source 'b' has lost files in the middle of a pass"):
        loader.refresh(missing="skip")
    (two / "a" / "5.npz").unlink()
    write(two / "b", 5, first=1000)


def test_a_loader_that_knows_nothing_of_epochs_before_is_refused(two):
    """TensorFlow and Keras begin another one, in which samples would come again."""
    loader = ndfeed.loader(mix(two), 8, shuffle=True)
    assert look_anew(loader, "raise", 60)[0] is loader
    write(two / "a", 4)
    with pytest.raises(ValueError, match="load a state into it with grown=True"):
        look_anew(loader, "raise", 60)


def test_a_mixture_in_memory_does_not_grow(two):
    """As any dataset in memory."""
    loader = ndfeed.loader(mix(two).in_memory(), 8, shuffle=True)
    with pytest.raises(ValueError, match=r"cannot grow after in_memory\(\)"):
        loader.refresh()
    take([loader], 1)
    state = through_json(loader)
    write(two / "a", 4)
    later = ndfeed.loader(mix(two).in_memory(), 8, shuffle=True)
    with pytest.raises(ResumeError, match=r"cannot grow after in_memory\(\)"):
        later.load_state_dict(state, grown=True)


def test_damaged_states_are_refused(two):
    """Whatever they say of sources that have grown."""
    loader = ndfeed.loader(mix(two), 5, shuffle=True)
    take([loader], 2)
    state = through_json(loader)
    write(two / "a", 4)
    later = ndfeed.loader(mix(two), 5, shuffle=True)
    for data in (None, {"a": 3, "b": "x"}, {"a": "x"}):
        with pytest.raises(ResumeError, match="damaged: it does not say which samples"):
            later.load_state_dict(
                {**state, "order": {**state["order"], "data": data or 7}}, grown=True
            )
    with pytest.raises(ResumeError, match="cannot tell which"):
        later.load_state_dict({**state, "data": "x"}, grown=True)
    with pytest.raises(TypeError, match="grown must be True, False or a Dataset"):
        later.load_state_dict(state, grown="yes")
    later.load_state_dict(state, grown=True)
    good = through_json(later)
    start = good["order"]["start"]
    for change in (
        {"samples": -1},
        {"samples": 11},
        {"samples": 100, "delivered": {"a": 95, "b": 5}},
        {"delivered": {"a": 10, "b": 1}},
        {"passes": {"a": [0, 50]}},
        {"passes": {"a": [0]}},
        {"passes": {"x": [0, 0]}},
        {"passes": 3},
        {"grown": {"b": [[30, 1, "x"]]}},
        {"grown": {"a": [[20, 25, "x"]]}},
        {"grown": {"a": [[20, 4, 4]]}},
    ):
        bad = {**good, "order": {**good["order"], "start": {**start, **change}}}
        with pytest.raises(ResumeError):
            later.load_state_dict(bad)
    with pytest.raises(ResumeError, match="damaged"):
        later.load_state_dict({**good, "samples": 3, "order": {**good["order"], "x": 1}})
    for bad in ({**good, "more": {"sources": {"a": 4, "b": 7}}}, {**good, "more": {}}):
        for loader in (later, ndfeed.loader(mix(two), 5, shuffle=True)):
            with pytest.raises(ResumeError, match="its sources are not where its samples say"):
                loader.load_state_dict(bad)


def test_growth_is_counted(two, monkeypatch):
    """More than a short state can list is refused, and the loader goes on."""
    monkeypatch.setattr("ndfeed.loading.mixture_growth.MOST", 2)
    loader = ndfeed.loader(mix(two, weights=[1, 30], end="first"), 8, shuffle=True)
    for number in (10, 11, 12):
        take([loader])
        write(two / "a", number)
        if number < 12:
            assert loader.refresh() == 10
    with pytest.raises(
        ResumeError, match="have grown 3 times within passes over them, more than 2"
    ):
        loader.refresh()
    assert take([loader])
