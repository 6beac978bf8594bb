"""Weighted draws: as often as weights say, the same at any position, and exact on resume."""

import copy
import json
import pickle

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from order.known import Known, check_resume, check_uniform, rows_of

import ndfeed
from ndfeed.order.protocol import Progress
from ndfeed.order.weighted import Weighted

WEIGHTS = [3, 0, 1, 0.5, 2, 7, 0, 1e-3]

# Weights, rows, seed, epoch, and the first rows.
GOLDEN = [
    (WEIGHTS, None, 0, 0, [5, 5, 3, 5, 5, 5, 4, 0]),
    (WEIGHTS, 100, 0, 1, [4, 5, 5, 4, 5, 0, 5, 5]),
    (WEIGHTS, 100, 7, 0, [0, 5, 0, 5, 5, 5, 5, 0]),
    ([1] * 1000, None, 0, 0, [463, 989, 381, 788, 991, 802, 597, 145]),
    (list(range(1000)), 10**6, 2**80, 3, [976, 687, 500, 718, 836, 273, 952, 595]),
]


def bound(weights, rows=None):
    """The order for as many samples."""
    return Weighted(weights, rows).bind(Known(len(weights)))


@pytest.mark.parametrize(("weights", "rows", "seed", "epoch", "first"), GOLDEN)
def test_draws_are_frozen(weights, rows, seed, epoch, first):
    """A resumed run relies on these: a change here breaks every state that was ever saved."""
    assert rows_of(bound(weights, rows), len(weights), seed, epoch, 8).tolist() == first


def test_a_distant_position_is_frozen():
    """Positions beyond 2**32 are as good as the first."""
    epoch = bound(WEIGHTS, 2**50).begin(8, 0, 0)

    assert epoch.rows(2**49, 2**49 + 8).tolist() == [5, 5, 4, 5, 5, 5, 5, 0]


@settings(max_examples=examples(2000), deadline=None)
@given(
    weights=st.lists(st.sampled_from([0, 1, 2, 0.25, 1e6]), min_size=1, max_size=20).filter(any),
    rows=st.one_of(st.none(), st.integers(1, 60)),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**62),
    first=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    second=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    batches=st.integers(0, 9),
)
def test_resume_into_another_world(weights, rows, seed, epoch, first, second, batches):
    """Every draw once, whoever makes it, and as many batches on every rank."""
    check_resume(bound(weights, rows), len(weights), seed, epoch, first, second, batches)


@pytest.mark.parametrize("seed", range(5))
def test_frequencies_are_those_of_weights(seed):
    """By chi-square: five standard deviations, wrong in one run of three million."""
    weights = np.random.default_rng(seed).random(50) ** 3 + 0.01
    rows = rows_of(bound(weights, 400_000), 50, seed, 0, 400_000)
    check_uniform(np.bincount(rows, minlength=50), 400_000 * weights / weights.sum(), 5)


def test_draws_are_independent():
    """Neighbouring draws, the same position in two epochs and with two seeds; as above."""
    order, count = bound([1, 2, 3, 4], 400_000), 400_000
    one = rows_of(order, 4, 0, 0, count)
    share = np.array([1, 2, 3, 4]) / 10
    for other in (np.roll(one, 1), rows_of(order, 4, 0, 1, count), rows_of(order, 4, 1, 0, count)):
        pairs = np.bincount(one * 4 + other, minlength=16)
        check_uniform(pairs, count * np.outer(share, share).reshape(-1), 5)


def test_a_sample_of_weight_zero_never_comes():
    """It may be one that must not be trained on."""
    rows = rows_of(bound(WEIGHTS, 200_000), 8, 0, 0, 200_000)

    assert set(rows.tolist()) == {0, 2, 3, 4, 5, 7}


def test_a_state_of_other_weights_is_refused():
    """The rest of an epoch would be another one."""
    one, other = bound([1, 2, 3]), bound([1, 2, 4])

    assert other.resume(Progress(one.spec(), 0, 0, {})) is None
    assert bound([2, 4, 6]).resume(Progress(one.spec(), 0, 0, {})) is not None
    assert bound([1, 2, 3], rows=5).resume(Progress(one.spec(), 0, 0, {})) is None


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "x.npz"
    np.savez(path, y=np.arange(40), w=np.arange(40) % 5, x=np.zeros((40, 2)))
    return ndfeed.open(path)


def batches_of(loader):
    return [batch["y"].tolist() for batch in loader]


@pytest.mark.parametrize("options", [{"threads": 4}, {"processes": 2}, {"memory": "1MB"}], ids=str)
def test_batches_do_not_depend_on_who_makes_them(ds, options):
    """Neither do they on whether weights are a field or an array."""
    with ndfeed.loader(ds, 3, shuffle=Weighted("w", rows=100), threads=1) as loader:
        expected = [batches_of(loader) for _ in range(2)]
    weights = np.arange(40) % 5
    with ndfeed.loader(ds, 3, shuffle=Weighted(weights, rows=100), **options) as loader:
        assert [batches_of(loader) for _ in range(2)] == expected
        assert len(loader) == 34
    assert all(row % 5 for batches in expected for batch in batches for row in batch)


def test_a_loader_of_some_fields_draws_by_another(ds):
    """The weights need not be part of a batch."""
    with ndfeed.loader(ds, 3, shuffle=Weighted("w"), fields="y") as loader:
        assert all(int(row) % 5 for batch in loader for row in batch)


@settings(max_examples=examples(60), deadline=None)
@given(
    first=st.tuples(st.integers(1, 9), st.integers(1, 4)),
    second=st.tuples(st.integers(1, 9), st.integers(1, 4)),
    batches=st.integers(0, 6),
    rows=st.integers(1, 70),
)
def test_loaders_resume_into_another_world(ds, first, second, batches, rows):
    """The state of any rank, as JSON, for any other number of ranks."""

    def make(size, world):
        words = {"shuffle": Weighted("w", rows=rows), "seed": 9, "threads": 1}
        return [ndfeed.loader(ds, size, shard=(rank, world), **words) for rank in range(world)]

    def finish(loaders):
        found = [batches_of(loader) for loader in loaders]
        return [row for parts in zip(*found, strict=True) for part in parts for row in part]

    whole = finish(make(rows, 1))
    loaders, seen = make(*first), []
    passes = [iter(loader) for loader in loaders]
    for _ in range(min(batches, len(loaders[0]))):
        seen += [row for one in passes for row in next(one)["y"].tolist()]
    state = json.dumps(loaders[-1].state_dict())
    others = make(*second)
    for other in others:
        other.load_state_dict(json.loads(state))
    seen += finish(others)
    for loader in loaders:
        loader.close()

    assert seen == whole


def test_a_pickled_order_has_no_table(ds):
    """A loader is pickled to other processes: they have their own, or share one."""
    order = Weighted(np.ones(10_000, "f4"))
    made = order.bind(Known(10_000))

    assert len(pickle.dumps(made)) < 41_000
    assert pickle.loads(pickle.dumps(made)) == order == copy.deepcopy(order)
    with ndfeed.loader(ds, 3, shuffle=Weighted("w")) as loader:
        expected = batches_of(pickle.loads(pickle.dumps(loader)))
        assert batches_of(loader) == expected


class Unreadable:
    """A tensor that NumPy cannot read: on a GPU, with a gradient, or of a dtype it lacks."""

    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error

    def __str__(self):
        return "Unreadable"  # in names of tests, which all processes have to agree on


@pytest.mark.parametrize(
    ("weights", "error", "text"),
    [
        ([1, -1], ValueError, "must not be negative, got -1 for sample 1; use 0"),
        ([1.0, np.nan], ValueError, "must be finite, got nan for sample 1"),
        ([1.0, np.inf], ValueError, "must be finite, got inf for sample 1"),
        ([0, 0], ValueError, "must not all be 0; give a positive weight"),
        (2 * [np.longdouble("1e4000")], ValueError, "must be finite, got inf for sample 0"),
        (2 * [np.longdouble("1e-4000")], ValueError, "must not all be 0"),
        ([], ValueError, "at least one number"),
        ([[1, 2]], ValueError, r"one value for each sample, got list of shape \(1, 2\)"),
        ([[1], [1, 2]], ValueError, "one value for each sample"),
        (["a"], TypeError, "must be numbers, got <U1; convert"),
        ([1j], TypeError, "must be numbers, got complex128"),
        (np.ma.masked_equal([1, 2, 3], 2), ValueError, r"some are masked; .*filled\(\)"),
        (
            Unreadable(TypeError("on cuda:0,\nuse cpu()")),
            TypeError,
            r"Unreadable \(on cuda:0,.*cpu",
        ),
        (Unreadable(RuntimeError("requires grad")), TypeError, r"requires grad\); .*\.detach\(\)"),
    ],
    ids=str,
)
def test_weights_that_mean_nothing_are_refused(weights, error, text):
    """At construction, before anything is read."""
    with pytest.raises(error, match=text) as caught:
        Weighted(weights)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rows", [0, -1, 1.5, True, 2**62 + 1, 2**70])
def test_rows_must_be_a_count(rows):
    """At construction as well."""
    with pytest.raises((ValueError, TypeError), match="rows must be"):
        Weighted([1], rows=rows)


def test_weights_must_fit_the_data(ds):
    """The message has both lengths; fields are looked up by name."""
    with pytest.raises(ValueError, match="each of 40 samples, got 39; pass as many"):
        ndfeed.loader(ds, 4, shuffle=Weighted(np.ones(39)))
    with pytest.raises(ndfeed.FieldError, match="no field 'weight'"):
        ndfeed.loader(ds, 4, shuffle=Weighted("weight"))
    with pytest.raises(ndfeed.SchemaError, match=r"field 'x' has shape \(2,\)"):
        ndfeed.loader(ds, 4, shuffle=Weighted("x"))
    with pytest.raises(ValueError, match="field 'w' must not all be 0"):
        ndfeed.loader(ds.take([0, 5]), 4, shuffle=Weighted("w"))
    with pytest.raises(ValueError, match="there is no sample to draw"):
        ndfeed.loader(ds.take([]), 4, shuffle=Weighted("w"))


@pytest.mark.parametrize("fields", [None, ("x",)])
def test_the_numbers_of_classes_are_no_weights(tmp_path, fields):
    """Class 0 was never drawn, and class 2 twice as often as class 1."""
    np.savez(tmp_path / "x.npz", x=np.arange(6.0), score=np.arange(6.0))
    names = ["cat", "dog", "eel"] * 2
    ds = ndfeed.open(tmp_path / "x.npz").with_labels(names, field="kind")
    text = r"field 'kind' has the number of one of 3 classes, .*use ndfeed.Balanced\('kind'\)"

    with pytest.raises(ValueError, match=text):
        ndfeed.loader(ds, 2, shuffle=Weighted("kind"), fields=fields)
    mixed = ndfeed.mix({"a": ds, "b": ds.take([0, 1])})
    with pytest.raises(ValueError, match=text):
        ndfeed.loader(mixed, 2, shuffle={"a": Weighted("kind"), "b": True}, fields=fields)
    ndfeed.loader(ds, 2, shuffle=Weighted("score"), fields=fields)


def test_weights_by_class_name_balanced():
    """A dict has no weight for each sample; the order that takes one is named."""
    text = r"got a dict; use ndfeed.Balanced\(field, weights=…\)"
    with pytest.raises(TypeError, match=text):
        Weighted({"cat": 1})


def test_new_weights_between_epochs_begin_the_next_one(tmp_path):
    """A state is refused even where nothing of the old order is left; the error says what to do."""
    np.save(tmp_path / "x.npy", np.arange(8))
    ds = ndfeed.open(tmp_path / "x.npy")
    loader = ndfeed.loader(ds, 4, shuffle=Weighted(WEIGHTS))
    other = ndfeed.loader(ds, 4, shuffle=Weighted(WEIGHTS[::-1]))
    batches = iter(loader)
    next(batches)
    with pytest.raises(ndfeed.ResumeError, match=r"loader\.epoch = 1$"):  # epoch 0 is not over
        other.load_state_dict(loader.state_dict())
    next(batches)
    assert next(batches, None) is None
    with pytest.raises(
        ndfeed.ResumeError, match=r"begin an epoch with this one: loader\.epoch = 1$"
    ):
        other.load_state_dict(loader.state_dict())
    other.epoch = 1
    assert len(list(other)) == 2
