"""Choosing samples: ``where``, group-wise and stratified splits, folds.

``take`` and plain splits are tested with the other views, in ``test_dataset``.
"""

import pickle
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from children import run
from hypothesis import given
from hypothesis import strategies as st

import ndfeed
from ndfeed.errors import FieldError, SchemaError

COUNT = 200


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """Samples of patients of very different numbers of samples, at three sites, not in order."""
    folder = tmp_path_factory.mktemp("patients")
    rng = np.random.default_rng(0)
    patient = rng.permutation(np.minimum(rng.geometric(0.06, COUNT), 40))
    np.savez(
        folder / "scans.npz",
        number=np.arange(COUNT),
        scan=rng.random((COUNT, 4), np.float32),
        patient=patient,
        label=(rng.random(COUNT) < 0.15).astype(np.int8),
        site=np.array(["Bonn", "Rome", "Oslo"])[patient % 3],
        weight=rng.random((COUNT, 1)),
        good=rng.random(COUNT) < 0.5,
    )
    return ndfeed.open(folder / "scans.npz")


@pytest.fixture
def ragged(tmp_path):
    """Samples of different lengths."""
    for length in (3, 1, 2):
        np.savez(tmp_path / f"{length}.npz", text=np.arange(length), label=length)
    return ndfeed.open(tmp_path, sample="file")


def numbers(ds):
    """Which samples these are."""
    return ds[:]["number"].tolist()


# where


@pytest.mark.parametrize(
    "view",
    [
        lambda ds: ds,
        lambda ds: ds.take([5, 199, 3, 3, 17, 60, 2, 40]),
        lambda ds: ds.split(0.3, seed=1)[1].take(slice(None, None, -2)),
        lambda ds: ds.in_memory(),
        lambda ds: ds + ds.take(range(10)),
        lambda ds: ds.map(lambda batch: batch | {"good": ~batch["good"]}),
        lambda ds: ds.map(lambda one: one | {"good": one["number"] % 3}, batched=False),
        lambda ds: ds.rename({"good": "bad"}).map(lambda b: b | {"good": b["bad"] * 2.5}),
    ],
    ids=["rows", "taken", "views", "memory", "sum", "map", "single", "renamed"],
)
def test_where_is_a_mask_of_what_is_delivered(patients, view):
    """Views, maps and memory before it are seen by the condition; the order stays."""
    ds = view(patients)
    delivered = ds[:]
    wanted = delivered["number"][delivered["good"].astype(bool)]

    assert numbers(ds.where("good")) == wanted.tolist()
    assert numbers(ds.where(lambda batch: batch["good"] != 0)) == wanted.tolist()
    assert numbers(ds.where(lambda b: b["good"] != 0, fields="good")) == wanted.tolist()
    assert 0 < len(wanted) < len(ds)


def test_where_accepts_anything_that_is_a_mask(patients):
    """A list of booleans, a comparison of text, one number in an axis of its own."""
    wanted = np.flatnonzero(patients[:]["site"] == "Oslo").tolist()

    assert numbers(patients.where(lambda b: b["site"] == "Oslo", fields=["site"])) == wanted
    assert numbers(patients.where(lambda b: [site == "Oslo" for site in b["site"]])) == wanted
    assert numbers(patients.where("weight")) == list(range(COUNT))


def test_where_reads_only_what_it_needs(patients, tmp_path):
    """A mask over labels does not cost the images: their file may even be gone by then."""
    np.save(tmp_path / "x.npy", np.zeros((50, 4)))
    np.save(tmp_path / "y.npy", np.arange(50) % 5)
    ds = ndfeed.open({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"})
    (tmp_path / "x.npy").unlink()

    assert len(ds.where("y")) == 40
    assert len(ds.where(lambda batch: batch["y"] == 2, fields="y")) == 10
    assert [len(part) for part in ds.split(0.8, like="y")] == [40, 10]
    seen = []
    patients.where(lambda b: seen.append(tuple(b)) or b["good"], fields=("good", "site"))
    assert set(seen) == {("good", "site")}


def test_conditions_see_every_sample_once(tmp_path):
    """The batches get larger, but none is lost or seen twice at their borders."""
    np.save(tmp_path / "x.npy", np.arange(300_000))
    seen = []
    found = ndfeed.open(tmp_path / "x.npy").where(
        lambda b: not seen.append(b["data"]) and b["data"] % 7 == 3
    )

    np.testing.assert_array_equal(np.concatenate(seen), np.arange(300_000))
    np.testing.assert_array_equal(found[:]["data"], np.arange(3, 300_000, 7))
    assert 3 < len(seen) < 20


def test_a_condition_that_nothing_meets(patients):
    """An empty dataset, as ``take([])`` makes one: the caller may well ask for its length."""
    none = patients.where(lambda batch: batch["label"] > 5)

    assert len(none) == 0
    assert len(none.where("good")) == len(none.map(dict).where("good")) == 0
    assert list(ndfeed.loader(none, 4)) == []


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda b: b["label"], r"int8 of shape \(200,\)"),
        (lambda b: b["good"][:-1], r"bool of shape \(199,\)"),
        (lambda b: b["scan"] > 0.5, r"bool of shape \(200, 4\)"),
        (lambda b: True, r"bool of shape \(\)"),
        (lambda b: b, "dict"),
        (lambda b: None, "NoneType"),
        (lambda b: [[True], [False, True]], "list"),
        (lambda b: np.flatnonzero(b["good"]), r"int64 of shape \(\d+,\)"),
    ],
)
def test_a_condition_that_returns_no_mask(patients, returned, said):
    """Row numbers, one boolean for all, or a mask of pixels would choose the wrong samples."""
    with pytest.raises(
        TypeError, match=f"must return one boolean for each of 200 samples, got {said}"
    ):
        patients.where(returned)


def test_errors_of_a_condition_are_its_own(patients):
    """A bug in the caller's function is shown as that."""
    with pytest.raises(ZeroDivisionError):
        patients.where(lambda batch: 1 // 0)


def test_fields_that_are_no_condition(patients, ragged):
    """Neither text nor pixels are true or false."""
    with pytest.raises(
        SchemaError, match=r"scans.npz: field 'site' is <U4, neither true nor false; compare"
    ):
        patients.where("site")
    with pytest.raises(
        SchemaError, match=r"where needs one value .* field 'scan' has shape \(4,\)"
    ):
        patients.where("scan")
    with pytest.raises(SchemaError, match="field 'text' has samples of different shapes"):
        ragged.where("text")
    with pytest.raises(FieldError, match="no field 'lable'; the fields are 'number', 'scan'"):
        patients.where("lable")
    with pytest.raises(FieldError, match="no field 'lable'"):
        patients.map(dict).where("lable")
    with pytest.raises(FieldError, match="no field 'lable'"):
        patients.where(lambda batch: batch["good"], fields="lable")
    with pytest.raises(TypeError, match=r"where\('good'\) reads that field alone; remove fields="):
        patients.where("good", fields="label")
    with pytest.raises(TypeError, match=r"name of a field or a function, got ndarray; take\(\)"):
        patients.where(patients[:]["good"])
    with pytest.raises(ValueError, match=r"where\(\) is not possible after with_origin"):
        patients.with_origin().where("good")


# split(by=, like=) and folds


PARTS = st.lists(st.integers(0, 20), min_size=2, max_size=5).filter(any)
SEEDS = st.integers(0, 2**40)


def fractions_of(weights):
    return [weight / sum(weights) for weight in weights]


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """A dataset of the numbers from 0, of any length up to 120."""
    path = tmp_path_factory.mktemp("counted") / "x.npy"
    np.save(path, np.arange(120))
    return ndfeed.open(path)


@given(values=st.lists(st.integers(-3, 12), min_size=1, max_size=120), weights=PARTS, seed=SEEDS)
def test_groups_are_never_divided(counted, values, weights, seed):
    """Every sample once, every group in one part, and no part too large by a whole group."""
    ds = counted.take(range(len(values)))
    fractions = fractions_of(weights)
    wanted = sum(fraction > 0 for fraction in fractions)
    if len(set(values)) < wanted:
        with pytest.raises(
            ValueError, match=f"by has {len(set(values))} distinct .* {wanted} parts"
        ):
            ds.split(fractions, by=values, seed=seed)
        return

    parts = [part[:]["data"].tolist() for part in ds.split(fractions, by=values, seed=seed)]

    assert sorted(chain(*parts)) == list(range(len(values)))
    assert all(part == sorted(part) for part in parts)
    groups = [{values[row] for row in part} for part in parts]
    assert sum(map(len, groups)) == len(set(values))
    largest = max(Counter(values).values())
    for part, fraction in zip(parts, fractions, strict=True):
        assert len(part) - fraction * len(values) < largest
        assert bool(part) == (fraction > 0)


@given(values=st.lists(st.sampled_from("abcdef"), max_size=120), weights=PARTS, seed=SEEDS)
def test_classes_have_their_share_of_every_part(counted, values, weights, seed):
    """Each is rounded by less than one sample; and so is every part."""
    ds = counted.take(range(len(values)))
    fractions = fractions_of(weights)
    parts = [part[:]["data"].tolist() for part in ds.split(fractions, like=values, seed=seed)]

    assert sorted(chain(*parts)) == list(range(len(values)))
    assert all(part == sorted(part) for part in parts)
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - fraction * len(values)) < 1 + 1e-9
        found = Counter(values[row] for row in part)
        for value, count in Counter(values).items():
            assert abs(found[value] - fraction * count) < 1


@given(
    values=st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab")), min_size=5, max_size=120),
    weights=st.lists(st.integers(1, 20), min_size=2, max_size=3),
    seed=SEEDS,
)
def test_groups_stay_whole_with_classes_too(counted, values, weights, seed):
    """Leakage is worse than a share that is a little off."""
    ds = counted.take(range(len(values)))
    groups, classes = zip(*values, strict=True)
    if len(set(groups)) < len(weights):
        return
    parts = ds.split(fractions_of(weights), by=groups, like=classes, seed=seed)
    found = [part[:]["data"].tolist() for part in parts]

    assert sorted(chain(*found)) == list(range(len(values)))
    assert sum(len({groups[row] for row in part}) for part in found) == len(set(groups))
    assert all(found)


def test_groups_and_classes_together(counted):
    """Of many small groups each part gets its share of every class."""
    groups = np.arange(120) // 4
    classes = groups % 3 == 0
    train, test = counted.split(0.7, by=groups, like=classes, seed=3)

    assert (len(train), len(test)) == (84, 36)
    assert classes[train[:]["data"]].sum() == 28
    # Groups of several classes count as the one that most of their samples have.
    classes[::4] = True
    assert np.array_equal(
        counted.split(0.7, by=groups, like=classes, seed=3)[1][:]["data"], test[:]["data"]
    )


@given(
    values=st.lists(st.integers(0, 9), min_size=2, max_size=120),
    k=st.integers(2, 6),
    how=st.sampled_from(["plain", "by", "like"]),
    seed=SEEDS,
)
def test_folds_validate_every_sample_once(counted, values, k, how, seed):
    """And train on all others, without a group in both."""
    ds = counted.take(range(len(values)))
    words = {} if how == "plain" else {how: values}
    if k > (len(set(values)) if how == "by" else len(values)):
        with pytest.raises(ValueError, match=r"folds need at least|too few groups"):
            ds.folds(k, seed=seed, **words)
        return
    pairs = [
        (train[:]["data"].tolist(), validation[:]["data"].tolist())
        for train, validation in ds.folds(k, seed=seed, **words)
    ]

    assert len(pairs) == k
    assert sorted(chain(*(validation for _, validation in pairs))) == list(range(len(values)))
    for train, validation in pairs:
        assert sorted(train + validation) == list(range(len(values)))
        assert train == sorted(train)
        if how == "by":
            assert not {values[row] for row in train} & {values[row] for row in validation}
        else:
            assert len(values) // k <= len(validation) <= -(-len(values) // k)


def test_folds_are_those_of_a_split(patients):
    """One rule for both: who knows one knows the other."""
    for words in ({}, {"by": "patient"}, {"like": "label"}, {"by": "patient", "like": "label"}):
        parts = patients.split([0.25] * 4, seed=9, **words)
        folds = patients.folds(4, seed=9, **words)

        assert [numbers(part) for part in parts] == [numbers(fold[1]) for fold in folds]


def test_values_may_be_a_field_or_an_array(patients):
    """Text or numbers, of the files, of a map or of the caller's own: the same parts."""
    delivered = patients[:]
    of_map = patients.map(lambda b: {"number": b["number"], "town": b["site"]})
    in_axis = patients.map(lambda b: b | {"site": b["site"][:, None]})
    wanted = numbers(patients.split(0.6, by="site", seed=4)[0])

    assert 0 < len(wanted) < COUNT
    for ds, by in [
        (patients, delivered["site"]),
        (patients, delivered["site"].tolist()),
        (patients, delivered["site"].astype(object)),
        (patients, np.unique(delivered["site"], return_inverse=True)[1]),
        (patients.in_memory(), "site"),
        (of_map, "town"),
        (in_axis, "site"),
    ]:
        assert numbers(ds.split(0.6, by=by, seed=4)[0]) == wanted


@pytest.mark.parametrize("count", [1, 12, 1000, 70_000])
def test_plain_splits_are_those_of_numpy_s_permutation(tmp_path, count):
    """In half the memory, but bit for bit what was split before: trainings rely on it."""
    np.save(tmp_path / "x.npy", np.arange(count))
    parts = ndfeed.open(tmp_path / "x.npy").split(0.7, 0.1, 0.2, seed=5)
    seeds = np.random.SeedSequence([5, count])
    order = np.random.Generator(np.random.Philox(seeds)).permutation(count)
    ends = [round(0.7 * count), round(0.8 * count)]

    for part, wanted in zip(parts, np.split(order, ends), strict=True):
        np.testing.assert_array_equal(part[:]["data"], np.sort(wanted))


@pytest.mark.parametrize("divide", [lambda ds: ds.split(0.9), lambda ds: ds.folds(2)])
def test_more_samples_than_can_be_divided(tmp_path, divide):
    """All windows of a large file are too many to be numbered one by one: its rows are not."""
    np.save(tmp_path / "x.npy", np.zeros((400, 400), "u1"))
    ds = ndfeed.open(tmp_path / "x.npy", sample="file").crops({"data": (1, 1)}, each=2**44)

    with pytest.raises(ndfeed.ResourceError, match=r"x\.npy: dividing .* take\(\) before windows"):
        divide(ds)


@pytest.mark.parametrize(
    "dtype", ["b", "B", ">i2", "u4", "q", "Q", "?", "f4", "U3", "S2", "M8[s]", "c8"]
)
def test_values_of_every_type_are_told_apart(counted, dtype):
    """Numbers at the ends of what a type can hold, dates, bytes: only equality and order count."""
    ds = counted + counted + counted
    places = np.random.default_rng(0).integers(0, 2 if dtype == "?" else 5, len(ds))
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        spread, near = [low, low + 1, 5, high - 1, high], range(high - 4, high + 1)
        tables = [np.array(spread, kind), np.array(near, kind)]
    else:
        tables = [np.arange(5).astype("U3" if kind.kind in "US" else "q")]
    wanted = ds.split(0.6, like=places.tolist(), seed=1)[0].fingerprint

    for table in tables:
        values = table.astype(kind)[places]
        assert ds.split(0.6, like=values, seed=1)[0].fingerprint == wanted


def test_values_that_are_missing_are_one_group(counted):
    """NaN differs from itself; samples without a value still belong somewhere, and together."""
    values = np.where(np.arange(120) % 3, np.arange(120) % 5, np.nan)
    for seed in range(5):
        parts = counted.split(0.5, by=values, seed=seed)

        assert sum(np.isnan(values[part[:]["data"]]).any() for part in parts) == 1


def test_splits_by_value_are_frozen(counted):
    """A validation set that changes with a release leaks: these values may not change."""
    ds, values, groups = counted.take(range(24)), np.arange(24) * 7 % 5, np.arange(24) // 3

    assert ds.split(0.75, by=groups, seed=7)[1][:]["data"].tolist() == [0, 1, 2, 18, 19, 20]
    assert ds.split(0.75, like=values, seed=7)[1][:]["data"].tolist() == [0, 6, 7, 9, 13, 20]
    both = ds.split(0.75, by=groups, like=groups % 2, seed=7)
    assert both[1][:]["data"].tolist() == [0, 1, 2, 15, 16, 17]
    assert ds.folds(3, seed=7)[1][1][:]["data"].tolist() == [3, 6, 7, 9, 13, 15, 17, 20]


def test_masked_values_are_refused(counted):
    """The values under a mask would be rows, groups or answers like any other."""
    masked = np.ma.masked_equal(np.arange(len(counted)), 2)
    for call in (
        lambda: counted.take(masked),
        lambda: counted.take(masked > 4),
        lambda: counted.split(0.5, 0.5, by=masked),
        lambda: counted.where(lambda batch: masked[: len(next(iter(batch.values())))] > 4),
    ):
        with pytest.raises(ValueError, match=r"not have masked values.*with filled\(\)"):
            call()
    assert len(counted.take(np.ma.masked_array([1, 2]))) == 2


def test_other_seeds_give_other_parts(patients):
    """Which groups are held out is a matter of chance, not of their names or sizes."""
    held_out = Counter()
    for seed in range(60):
        part = patients.split(0.8, by="patient", seed=seed)[1]
        held_out.update(set(part[:]["patient"].tolist()))

    assert held_out.keys() == set(patients[:]["patient"].tolist())


def test_rare_classes_are_where_the_fractions_put_them(counted):
    """The largest remainder is rounded up: nine of a class leave one for a tenth of them."""
    values = np.array([0] * 9 + list(range(1, 101)))
    ds = counted.take(range(len(values)))
    for seed in range(5):
        train, test = ds.split(0.9, like=values, seed=seed)

        assert (len(train), len(test)) == (98, 11)
        assert (values[test[:]["data"]] == 0).sum() == 1


@pytest.mark.parametrize("argument", ["by", "like"])
def test_values_that_cannot_be_used(patients, ragged, argument):
    """Nothing is split by something that is not one value for each sample."""
    with pytest.raises(FieldError, match="no field 'patients'"):
        patients.split(0.5, **{argument: "patients"})
    with pytest.raises(SchemaError, match=f"{argument} needs one value .* 'scan' has shape"):
        patients.split(0.5, **{argument: "scan"})
    with pytest.raises(SchemaError, match="'text' has samples of different shapes; compute one"):
        ragged.folds(2, **{argument: "text"})
    for given_values, said in [
        (np.arange(COUNT - 1), r"ndarray of shape \(199,\)"),
        (np.zeros((COUNT, 2)), r"ndarray of shape \(200, 2\)"),
        (3, r"int of shape \(\)"),
        ([[1], [2, 3]], "list of shape"),
    ]:
        with pytest.raises(
            ValueError, match=f"{argument} must be .* each of 200 samples, got {said}"
        ):
            patients.split(0.5, **{argument: given_values})
    with pytest.raises(TypeError, match=f"values of {argument} must be numbers or text"):
        patients.split(0.5, **{argument: ["a", None] * (COUNT // 2)})


def test_folds_of_too_few(patients):
    """Two at least, and a sample in each."""
    for k in (0, 1, -3):
        with pytest.raises(ValueError, match=r"k must be in \[2, "):
            patients.folds(k)
    with pytest.raises(TypeError, match="k must be a whole number"):
        patients.folds(2.5)
    with pytest.raises(ValueError, match="201 folds need at least 201 samples, got 200"):
        patients.folds(201)
    with pytest.raises(ValueError, match="by='site' has 3 distinct values, too few groups for 4"):
        patients.folds(4, by="site")
    with pytest.raises(ValueError, match=r"folds\(\) is not possible after with_origin"):
        patients.with_origin().folds(2)


# In other processes


CHOICES = {
    "where": lambda ds: ds.where("good"),
    "function": lambda ds: ds.where(lambda batch: batch["label"] == 0, fields="label"),
    "by": lambda ds: ds.split(0.7, by="patient")[0],
    "like": lambda ds: ds.split(0.7, like="label")[0],
    "training": lambda ds: ds.folds(3)[1][0],
    "validation": lambda ds: ds.folds(3)[1][1],
    "grouped fold": lambda ds: ds.folds(3, by="site")[1][0],
}


@pytest.mark.parametrize("choose", CHOICES.values(), ids=CHOICES)
def test_choices_pickle_small_and_exact(tmp_path, choose):
    """As rows: the condition does not run again, and need not pickle."""
    count = 30_000
    rng = np.random.default_rng(1)
    np.savez(
        tmp_path / "x.npz",
        number=np.arange(count),
        good=rng.random(count) < 0.5,
        label=rng.integers(0, 2, count),
        patient=rng.integers(0, 500, count),
        site=rng.integers(0, 5, count),
    )
    chosen = choose(ndfeed.open(tmp_path / "x.npz"))
    pickled = pickle.dumps(chosen)
    again = pickle.loads(pickled)

    assert 5000 < len(chosen) < 29_000
    assert len(pickled) < 5000
    assert again.fingerprint == chosen.fingerprint
    assert numbers(again) == numbers(chosen)


THROUGH_A_LOADER = """
import sys
import numpy as np
import ndfeed

def double(batch):
    return batch | {"twice": batch["number"] * 2}

if __name__ == "__main__":
    ds = ndfeed.open(sys.argv[1])
    for part in (
        ds.where(lambda batch: batch["patient"] % 2 == 0, fields="patient"),
        ds.split(0.7, by="patient")[1],
        ds.split(0.7, like="label")[0],
        ds.folds(3, by="patient")[2][0],
    ):
        wanted = part[:]["number"]
        loader = ndfeed.loader(part.map(double), 64, shuffle=True, processes=2)
        found = np.concatenate([batch["twice"] for batch in loader])
        assert np.array_equal(np.sort(found), wanted * 2)
        print(len(found))
"""


def test_choices_through_a_loader_with_processes(tmp_path):
    """Worker processes read exactly the chosen rows."""
    rng = np.random.default_rng(1)
    fields = {"patient": rng.integers(0, 50, 4000), "label": rng.integers(0, 3, 4000)}
    np.savez(tmp_path / "x.npz", number=np.arange(4000), **fields)
    lengths = [int(line) for line in run(THROUGH_A_LOADER, tmp_path / "x.npz").split()]

    assert lengths[0] == (fields["patient"] % 2 == 0).sum()
    assert abs(lengths[1] - 1200) < 120
    assert lengths[2] == 2800
    assert len(lengths) == 4
