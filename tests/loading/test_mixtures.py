"""Mixtures through loaders: proportions, ranks, resuming, raw files and compressed ones."""

import copy
import itertools
import json
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from audit import opened_in
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from loading.making import assert_same

import ndfeed

SIZES = {"web": (40, 3), "code": (12, 4), "math": (5, 2)}  # rows of a file, and files
ROWS = {name: rows * files for name, (rows, files) in SIZES.items()}
START = dict(zip(SIZES, np.cumsum([0, *ROWS.values()]).tolist(), strict=False))


def make_source(folder, name, *, packed=False):
    """Files of one source. Every row has a number of its own among all sources."""
    rows, files = SIZES[name]
    (folder / name).mkdir(parents=True)
    save = np.savez_compressed if packed else np.savez
    for file in range(files):
        numbers = START[name] + file * rows + np.arange(rows)
        save(folder / name / f"{file}.npz", x=np.repeat(numbers[:, None], 3, 1), n=numbers)
    return ndfeed.open(folder / name, sample="row")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """The sources as they are stored: all raw, all compressed, or some of each."""
    folder = tmp_path_factory.mktemp("mixtures")
    made = {}
    for kind, packed in (("raw", ""), ("packed", "web code math"), ("both", "code math")):
        made[kind] = {
            name: make_source(folder / kind, name, packed=name in packed) for name in SIZES
        }
    return made


@pytest.fixture(scope="module")
def sources(kinds):
    return kinds["raw"]


def source_of(numbers):
    return np.searchsorted(list(START.values()), numbers, side="right") - 1


def numbers(batches):
    return [batch["n"].tolist() for batch in batches]


def flat(batches):
    return [number for batch in numbers(batches) for number in batch]


@pytest.mark.parametrize("end", ["first", "last", "cycle"])
def test_every_prefix_has_its_share(sources, end):
    """Within one sample, in every epoch; and the field says where each came from."""
    ds = ndfeed.mix(sources, weights=[0.5, 0.3, 0.2], end=end, source="source")
    with ndfeed.loader(ds, 7, shuffle=True, threads=2) as loader:
        for _ in range(2):
            batches = list(loader)
            found = np.array(flat(batches))
            told = np.concatenate([batch["source"] for batch in batches])
            assert (source_of(found) == told).all()
            counts = np.cumsum(told[:, None] == np.arange(3), axis=0)
            shares = np.arange(1, len(told) + 1)[:, None] * [0.5, 0.3, 0.2]
            assert (np.abs(counts - shares) < 1).all()
    assert len(loader) == len(batches)


@pytest.mark.parametrize("kind", ["raw", "packed", "both"])
@pytest.mark.parametrize("shuffle", [True, False, ndfeed.Blocks(rows=4, window=2)])
def test_nothing_is_lost_or_doubled_over_epochs(kinds, kind, shuffle):
    """Of each source all rows come before any comes again, and the values are those stored."""
    ds = ndfeed.mix(kinds[kind], weights=[3, 2, 1], end="cycle")
    with ndfeed.loader(ds, 16, shuffle=shuffle, threads=2) as loader:
        batches = [batch for _ in range(4) for batch in loader]
    for batch in batches:
        assert (batch["x"] == batch["n"][:, None]).all()
    found = np.array(flat(batches))
    for at, rows in enumerate(ROWS.values()):
        own = found[source_of(found) == at]
        for first in range(0, len(own), rows):
            assert len(np.unique(own[first : first + rows])) == len(own[first : first + rows])


def test_what_true_means_depends_on_the_source(kinds):
    """An exact shuffle where rows can be read alone, a window where they are compressed."""
    ds = ndfeed.mix(kinds["both"])
    order = ndfeed.loader(ds, 8, shuffle=True).order

    assert [type(source.order).__name__ for source in order.sources] == [
        "Exact",
        "Windows",
        "Windows",
    ]
    assert f"{order}".startswith("Mixture(web 0.6742 Exact(), code ")
    for name, source in kinds["both"].items():
        alone = ndfeed.loader(source, 8, shuffle=True).order
        assert alone in [one.order for one in order.sources if one.name == name]


def test_an_order_for_each_source(sources):
    """A dict; stored order stays stored order."""
    ds = ndfeed.mix(sources, weights=[1, 1, 1], end="last")
    wanted = {"web": False, "code": ndfeed.Blocks(rows=4, window=2), "math": True}
    loader = ndfeed.loader(ds, 8, shuffle=wanted)
    found = np.array(flat(loader))

    assert found[source_of(found) == 0].tolist() == list(range(120))
    assert loader.order.sources[1].order == ndfeed.Blocks(rows=4, window=2)
    assert found[source_of(found) == 2][:10].tolist() != list(range(168, 178))


@pytest.mark.parametrize(
    ("shuffle", "text"),
    [
        ({"web": True, "x": True}, "has an order for 'x', which is no source .* 'web', 'code'"),
        ({"web": True}, "has no order for source 'code'; add it"),
        (
            {"web": True, "code": True, "math": ndfeed.Exact},
            r"shuffle\['math'\] must be True, False, or an order .* got the class Exact",
        ),
        (ndfeed.Windows(2, ranks=2), "source 'web': .* leave out ranks="),
    ],
)  # fmt: skip
def test_orders_that_do_not_fit(sources, shuffle, text):
    """Refused when the loader is made."""
    with pytest.raises((ValueError, TypeError), match=text):
        ndfeed.loader(ndfeed.mix(sources), 8, shuffle=shuffle)


def test_numbers_for_all_sources_at_once(sources):
    """An order belongs to one source: the message names it, and how to give several."""
    ds = ndfeed.mix(sources)
    for order in (ndfeed.Weighted(np.ones(len(ds))), ndfeed.Sorted(np.ones(len(ds)))):
        with pytest.raises(ValueError, match=r"source 'web': .* 120 samples, got 178; .* a dict"):
            ndfeed.loader(ds, 8, shuffle=order)


def test_a_dict_is_for_mixtures(sources):
    """A dataset that is none takes one order."""
    with pytest.raises(TypeError, match=r"or use ndfeed\.mix"):
        ndfeed.loader(sources["web"], 8, shuffle={"web": True})
    other = ndfeed.loader(ndfeed.mix({"a": sources["web"], "b": sources["code"]}), 8).order
    with pytest.raises(ValueError, match="order of another mixture, of 'a', 'b'"):
        ndfeed.loader(ndfeed.mix(sources), 8, shuffle=other)


def test_the_same_batches_for_any_threads_and_processes(kinds):
    """And with raw files or compressed ones, where the orders agree."""
    order = {"web": True, "code": ndfeed.Windows(2), "math": ndfeed.Windows(2)}
    found = []
    for kind in ("raw", "both"):
        ds = ndfeed.mix(kinds[kind], weights=[4, 2, 1], end="last")
        for options in ({"threads": 1}, {"threads": 4}, {"processes": 2}):
            with ndfeed.loader(ds, 16, shuffle=order, seed=3, **options) as loader:
                found.append([batch for _ in range(2) for batch in loader])
    for other in found[1:]:
        assert_same(other, found[0])


def test_maps_of_sources_stay_theirs(sources):
    """Each sample goes through the map of its own source, and then that of the mixture."""
    own = dict(sources)
    own["code"] = own["code"].map(lambda batch: {**batch, "x": batch["x"] + 1000})
    ds = ndfeed.mix(own, weights=[1, 1, 1], end="last").map(lambda b: {**b, "x": b["x"][:, 0]})
    for batch in ndfeed.loader(ds, 9, shuffle=True):
        assert (batch["x"] == batch["n"] + 1000 * (source_of(batch["n"]) == 1)).all()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_have_as_many_batches_and_share_the_order(kinds, world, drop_last):
    """Together they see what one alone would see."""
    ds = ndfeed.mix(kinds["both"], weights=[3, 2, 1], end="last")
    options = {"shuffle": True, "drop_last": drop_last}
    alone = flat(ndfeed.loader(ds, 4 * world, **options))
    ranks = [numbers(ndfeed.loader(ds, 4, shard=(rank, world), **options)) for rank in range(world)]

    assert len({len(one) for one in ranks}) == 1
    together = [n for step in zip(*ranks, strict=True) for batch in step for n in batch]
    assert together == alone


WEIGHTS = st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any)
SCHEDULES = WEIGHTS | st.dictionaries(
    st.tuples(st.just(0), st.integers(1, 300)), WEIGHTS, max_size=3
).flatmap(lambda later: WEIGHTS.map(lambda first: {0: first, **later}))


@st.composite
def resumes(draw):
    """Some mixture, where it is left, and with how many ranks it is continued."""
    weights = draw(SCHEDULES)
    end = draw(st.sampled_from(["first", "last", "cycle"]))
    other = draw(st.none() | SCHEDULES)
    sizes = [draw(st.integers(1, 40)) for _ in range(2)]
    worlds = [draw(st.integers(1, 4)) for _ in range(2)]
    return weights, end, other, sizes, worlds, draw(st.booleans()), draw(st.integers(0, 10**6))


@settings(max_examples=examples(400), deadline=None)
@given(case=resumes())
def test_a_state_resumes_with_any_ranks(sources, case):
    """By way of JSON, into another batch size and number of ranks, and with other weights.

    Also where weights change within the epoch.
    """
    weights, end, other, sizes, worlds, shuffle, left = case
    ds = ndfeed.mix(sources, weights=weights, end=end)

    def take(ds, size, world, batches=None, state=None):
        """Batches of all ranks together, in their order, and the state after them."""
        ranks = [
            ndfeed.loader(ds, size, shuffle=shuffle, shard=(rank, world), threads=1)
            for rank in range(world)
        ]
        found = []
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
            passing = iter(loader)
            some = passing if batches is None else (next(passing) for _ in range(batches))
            found.append(numbers(some))
        states = [loader.state_dict() for loader in ranks]
        assert all(one == states[0] for one in states)
        assert len({len(one) for one in found}) == 1
        joined = [n for step in zip(*found, strict=True) for batch in step for n in batch]
        return joined, json.loads(json.dumps(states[0]))

    whole, _ = take(ds, 64, 1)
    batches = left % (len(whole) // (sizes[0] * worlds[0]) + 1)
    before, state = take(ds, sizes[0], worlds[0], batches)
    assert len(json.dumps(state)) < 700
    if other is None:
        after, _ = take(ds, sizes[1], worlds[1], state=state)
        assert before + after == whole
        return
    after, _ = take(ndfeed.mix(sources, weights=other, end=end), sizes[1], worlds[1], state=state)
    both = np.array(before + after, int)
    for at, rows in enumerate(ROWS.values()):
        own = both[source_of(both) == at]
        for first in range(0, len(own), rows):
            assert len(np.unique(own[first : first + rows])) == len(own[first : first + rows])


def test_weights_changed_from_a_step_on_are_saved_too(sources):
    """A state of the loader that continued is one that continues, in any copy of it."""
    before = ndfeed.loader(ndfeed.mix(sources, weights=[3, 2, 1]), 8, shuffle=True)
    passing = iter(before)
    for _ in range(4):
        next(passing)
    state = before.state_dict()
    assert state["more"]["sources"] == {"web": 16, "code": 11, "math": 5}

    def make():
        return ndfeed.loader(ndfeed.mix(sources, weights=[1, 1, 1]), 8, shuffle=True)

    changed = make()
    changed.load_state_dict(state)
    assert changed.state_dict()["more"] == state["more"]
    assert changed.state_dict()["samples"] == 0
    whole = [flat(changed), flat(changed)]
    changed.load_state_dict(state)
    passing = iter(changed)
    first = flat(next(passing) for _ in range(2))
    again = make()
    again.load_state_dict(json.loads(json.dumps(changed.state_dict())))
    assert [first + flat(again), flat(again)] == whole
    for other in (pickle.loads(pickle.dumps(changed)), copy.copy(changed)):
        assert first + flat(other) == whole[0]


def test_weights_by_epoch(sources):
    """Epochs have the length of their weights, and resume in any of them."""
    ds = ndfeed.mix(sources, weights={0: [3, 2, 1], 2: [1, 0, 1]}, end="first")
    loader = ndfeed.loader(ds, 8, shuffle=True)
    lengths, epochs = [], []
    for _ in range(4):
        lengths.append(len(loader))
        epochs.append(numbers(loader))

    assert lengths == list(map(len, epochs))
    assert lengths[0] == lengths[1] != lengths[2] == lengths[3]
    assert 1 not in source_of(np.concatenate(epochs[2]))
    again = ndfeed.loader(ds, 8, shuffle=True)
    again.epoch = 2
    passing = iter(again)
    assert next(passing)["n"].tolist() == epochs[2][0]
    third = ndfeed.loader(ds, 8, shuffle=True)
    third.load_state_dict(again.state_dict())
    assert numbers(third) == epochs[2][1:]
    assert numbers(third) == epochs[3]


@pytest.mark.parametrize("kind", ["raw", "packed", "both"])
def test_weights_from_a_step_on(kinds, kind):
    """Of all ranks together; files are decoded in time, whatever changes meanwhile."""
    step, size, world = 5, 4, 2
    when = (0, step * size * world)
    ds = ndfeed.mix(
        kinds[kind], weights={0: [8, 1, 1], when: [1, 8, 1], (1, 30): [0, 0, 1]}, end="cycle"
    )
    ranks = [ndfeed.loader(ds, size, shuffle=True, shard=(rank, world)) for rank in range(world)]
    steps = [[*zip(*ranks, strict=True)] for _ in range(2)]
    for batches in itertools.chain(*itertools.chain(*steps)):
        assert (batches["x"] == batches["n"][:, None]).all()
    first, second = ([n for step in one for n in flat(step)] for one in steps)
    counts = np.bincount(source_of(np.array(first[: when[1]])), minlength=3)
    assert counts.tolist() == [32, 4, 4]
    for at in range(when[1], 140, 10):
        assert np.bincount(source_of(np.array(first[at : at + 10])))[1] == pytest.approx(8, abs=2)
    assert np.bincount(source_of(np.array(second[:30])), minlength=3).tolist() == [3, 24, 3]
    assert set(source_of(np.array(second[30:]))) == {2}
    assert f"{ds.mixture}".endswith(
        "weights={0: [8, 1, 1], (0, 40): [1, 8, 1], (1, 30): [0, 0, 1]}, end='cycle')"
    )


def test_a_state_of_other_sources_is_refused(sources):
    """Whatever it says."""
    ds = ndfeed.mix(sources)
    loader = ndfeed.loader(ds, 8, shuffle=True)
    state = loader.state_dict()
    for other in (
        ndfeed.loader(ndfeed.mix(dict(zip("abc", sources.values(), strict=True))), 8, shuffle=True),
        ndfeed.loader(ds, 8),
    ):
        with pytest.raises(ndfeed.ResumeError, match="belongs to another order: mixture"):
            other.load_state_dict(state)
    changed = ndfeed.loader(ndfeed.mix(sources, weights=[1, 1, 1]), 8, shuffle=True)
    with pytest.raises(ndfeed.ResumeError, match="belongs to another order"):
        changed.load_state_dict({**state, "more": {"sources": {"web": -5}}})
    moved = state["more"]["sources"] | {"web": 5}
    for more in ({}, {"sources": moved}, {"sources": 7}, {**state["more"], "grown": {}}):
        with pytest.raises(ndfeed.ResumeError, match="the state is damaged: "):
            loader.load_state_dict({**state, "more": more})


def test_a_state_of_another_mixture_is_refused_by_the_names_of_its_sources(sources):
    """What to change is the call of mix(), so the message says what differs there."""
    web, code, math = sources.values()
    loader = ndfeed.loader(ndfeed.mix(sources), 8, shuffle=True)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    for other, text in (
        (
            {"web": web, "books": code, "math": math},
            r"mixture of other sources \(missing here: 'code', not in the state: 'books'\); give "
            r"mix\(\) the same names",
        ),
        ({"web": web, "code": code}, r"other sources \(missing here: 'math'\); give mix"),
        (
            {"code": code, "web": web, "math": math},
            "its sources come in the order 'web', 'code', 'math', but here in the order 'code', "
            "'web', 'math'; give mix",
        ),
        (
            {"web": web, "code": code.take(slice(5)), "math": math},
            "source 'code' had 48 samples, and now has 5; open the same files",
        ),
    ):
        with pytest.raises(ndfeed.ResumeError, match=text):
            ndfeed.loader(ndfeed.mix(other), 8, shuffle=True).load_state_dict(state)


def test_a_state_of_a_mixture_is_not_that_of_a_sum(sources):
    """Nor the other way round: both say that one is a mixture."""
    mixed = ndfeed.loader(ndfeed.mix(sources), 8, shuffle=True)
    added = ndfeed.loader(sum(list(sources.values())[1:], sources["web"]), 8, shuffle=True)
    with pytest.raises(ndfeed.ResumeError, match=r"this dataset is not a mixture; .*ndfeed\.mix"):
        added.load_state_dict(mixed.state_dict())
    with pytest.raises(ndfeed.ResumeError, match="not a mixture, but this is one of 'web', 'code'"):
        mixed.load_state_dict(added.state_dict())


def test_a_state_of_fewer_files_names_the_source_and_the_remedy(tmp_path):
    """Without ``grown=True``, data that is not the same is refused."""
    made = {name: make_source(tmp_path, name) for name in SIZES}
    loader = ndfeed.loader(ndfeed.mix(made), 8, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    np.savez(tmp_path / "code" / "9.npz", x=np.zeros((2, 3), int), n=np.zeros(2, int))

    mixed = ndfeed.mix({name: source.refresh() for name, source in made.items()})
    later = ndfeed.loader(mixed, 8, shuffle=True)
    text = r"'code' had 48 samples, and now has 50; .* pass grown=True .* loader\.epoch = 1"
    with pytest.raises(ndfeed.ResumeError, match=text):
        later.load_state_dict(state)
    later.load_state_dict(state, grown=True)
    assert later.state_dict()["samples"] == 8


OPENED = 3  # times for each file: once for each of two streams, once to ask for it ahead


@pytest.mark.parametrize(("weights", "end"), [([12, 8, 5], "first"), ([1, 1, 8], "cycle")])
def test_files_are_inflated_once_in_a_pass_of_their_source(tmp_path, weights, end):
    """A source that begins again inflates its files again, and the others do not."""
    made = {name: make_source(tmp_path, name, packed=True) for name in SIZES}
    ds = ndfeed.mix(made, weights=weights, end=end)
    with opened_in(tmp_path) as opened:
        batches = list(ndfeed.loader(ds, 8, shuffle=ndfeed.Windows(2), threads=2))
    assert all((batch["x"] == batch["n"][:, None]).all() for batch in batches)
    which = source_of(np.array(flat(batches)))
    passes = {name: -(-(which == at).sum() // ROWS[name]) for at, name in enumerate(SIZES)}
    assert (max(passes.values()) > 10) == (end == "cycle")
    assert {Path(path).parent.name for path in opened} == set(SIZES)
    for path, count in Counter(map(Path, opened)).items():
        assert count <= OPENED * passes[path.parent.name]


def test_views_of_files_in_any_order(kinds):
    """A window needs the rows of a file side by side, where a source may have them in any order."""
    rng = np.random.default_rng(0)
    taken = {
        n: one.take(rng.permutation(len(one))[: len(one) // 2])
        for n, one in kinds["packed"].items()
    }
    ds = ndfeed.mix(taken, weights=[3, 2, 1], end="last")
    found = np.array(flat(ndfeed.loader(ds, 8, shuffle=True)))
    for at, one in enumerate(taken.values()):
        own = found[source_of(found) == at]
        assert set(own[: len(one)].tolist()) == set(one[:]["n"].tolist())


def test_files_of_a_source_are_its_own_whatever_the_others_store(sources):
    """Where stored fields differ, those of other sources are there too, as constants."""
    web, code = sources["web"], sources["code"]
    other = code.rename({"x": "y", "n": "m"}).map(lambda b: {"x": b["y"], "n": b["m"]})
    found = []
    for one in (code, other):
        for order in ({"web": web, "code": one}, {"code": one, "web": web}):
            ds = ndfeed.mix(order, weights=[1, 1], end="last")
            rows = np.array(flat(ndfeed.loader(ds, 8, shuffle=ndfeed.Windows(2))))
            found.append([rows[source_of(rows) == at][:40].tolist() for at in range(2)])
    assert all(one == found[0] for one in found)


def test_a_mixture_in_memory_keeps_its_order(sources):
    """One copy of all sources, and the same batches."""
    ds = ndfeed.mix(sources, weights=[3, 2, 1], source="source")
    order = {"web": True, "code": True, "math": False}
    assert_same(
        list(ndfeed.loader(ds.in_memory(), 8, shuffle=order)),
        list(ndfeed.loader(ds, 8, shuffle=order)),
    )
    by_file = {"web": ndfeed.Windows(2), "code": ndfeed.Blocks(rows=4, window=2), "math": True}
    found = np.array(flat(ndfeed.loader(ds.in_memory(), 8, shuffle=by_file)))
    for at, rows in enumerate(ROWS.values()):
        own = found[source_of(found) == at][:rows]
        assert len(own) == len(np.unique(own))
    report = f"{ndfeed.loader(ds, 8, shuffle=True).report()}"
    assert (
        "Mixture(web 0.5 Exact(), code 0.3333 Exact(), math 0.1667 Exact(), end='first')" in report
    )
