"""Classes evenly: in every stretch, for every number of ranks, and no sample is starved."""

import pickle

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from order.known import Known, check_resume, check_uniform, rows_of

import ndfeed
from ndfeed.order.balanced import Balanced
from ndfeed.order.protocol import Progress

CLASSES = list("abacabadabacabae")  # 8 a, 4 b, 2 c, 1 d, 1 e

# Classes, words, seed, epoch, and the first rows.
GOLDEN = [
    (CLASSES, {}, 0, 0, [5, 7, 2, 11, 15, 15, 3]),
    (CLASSES, {}, 0, 1, [7, 0, 11, 5, 15, 4, 7]),
    (CLASSES, {}, 5, 0, [11, 7, 2, 5, 15, 14, 13]),
    (CLASSES, {"rows": 7}, 0, 1, [9, 10, 7, 11, 13, 7, 8]),
    (CLASSES, {"weights": {"a": 3, "d": 0}}, 0, 0, [8, 11, 2, 5, 15, 10, 3]),
    ([i % 1000 for i in range(5000)], {}, 0, 2, [4271, 4061, 2939, 4020, 1682, 1897, 3887]),
]


def bound(classes, **words):
    return Balanced(classes, **words).bind(Known(len(classes)))


def epochs_of(order, n, seed, count):
    """The rows of several epochs, end to end."""
    length = order._count_rows()
    return np.concatenate([rows_of(order, n, seed, epoch, length) for epoch in range(count)])


@pytest.mark.parametrize(("classes", "words", "seed", "epoch", "first"), GOLDEN)
def test_rows_are_frozen(classes, words, seed, epoch, first):
    """A resumed run relies on these: a change here breaks every state that was ever saved."""
    assert rows_of(bound(classes, **words), len(classes), seed, epoch, 7).tolist() == first


each_case = given(
    classes=st.lists(st.integers(0, 6), min_size=1, max_size=40),
    rows=st.one_of(st.none(), st.integers(1, 60)),
    weights=st.dictionaries(st.integers(0, 6), st.integers(1, 4), max_size=3),
    seed=st.integers(-(2**70), 2**70),
    first=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    second=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    batches=st.integers(0, 9),
    epoch=st.integers(0, 2**62),
)


@settings(max_examples=examples(2000), deadline=None)
@each_case
def test_classes_are_even_and_nobody_is_starved(
    classes, rows, weights, seed, first, second, batches, epoch
):
    """Counts of any prefix within one, passes over each class, and resume into any world."""
    weights = {name: share for name, share in weights.items() if name in classes}
    order = bound(classes, rows=rows, weights=weights)
    found = epochs_of(order, len(classes), seed, 4).tolist()
    share = {name: weights.get(name, 1) for name in set(classes)}
    each = sum(share.values())
    times = np.zeros(len(classes), int)
    for begin in range(0, len(found) - each + 1, each):
        for row in found[begin : begin + each]:
            times[row] += 1
            if weights == {}:
                check_times(times, classes, begin + each, share)
        check_times(times, classes, begin + each, share)
    check_resume(order, len(classes), seed, epoch, first, second, batches)


def check_times(times, classes, done, share):
    """No sample of a class comes again before all have come; at the end of a round all is exact."""
    for name, part in share.items():
        own = times[np.array(classes) == name]
        assert own.max() - own.min() <= 1
        if done == times.sum():
            assert own.sum() == part * done // sum(share.values())


def test_an_epoch_is_as_long_as_the_data():
    """Rounded up to whole rounds; an epoch of another length continues where the last one was."""
    order = bound(CLASSES)
    assert order._count_rows() == 20
    short = bound(CLASSES, rows=7)
    whole = epochs_of(order, 16, 3, 7)

    assert epochs_of(short, 16, 3, 20).tolist() == whole.tolist()


def test_samples_of_a_class_are_shuffled():
    """By chi-square over who comes first: wrong in one run of three million."""
    counts = np.zeros(64)
    order = bound([0] * 64 + [1] * 3)
    for seed in range(4000):
        counts[next(row for row in rows_of(order, 67, seed, 0, 4).tolist() if row < 64)] += 1

    check_uniform(counts, np.full(64, 4000 / 64), 5)


def test_the_order_of_classes_differs_from_round_to_round():
    """A fixed one would show a model which class comes next; as above."""
    order = bound(np.arange(6))
    rows = rows_of(bound(np.arange(6), rows=60_000), 6, 0, 0, 60_000).reshape(-1, 6)
    assert (np.sort(rows) == np.arange(6)).all()
    pairs = np.bincount(rows[:, 0] * 6 + rows[:, 1], minlength=36).reshape(6, 6)
    check_uniform(pairs[~np.eye(6, dtype=bool)], np.full(30, 10_000 / 30), 5)
    assert order.spec()["rows"] == 6


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pets")
    for name, count in (("cat", 30), ("dog", 5), ("eel", 1)):
        (folder / name).mkdir()
        for i in range(count):
            np.save(folder / name / f"{i}.npy", np.zeros(2))
    return ndfeed.open(f"{folder}/*/*.npy", sample="file").with_labels(
        ndfeed.folder_name, field="kind"
    )


def test_classes_by_name(ds):
    """As ``with_labels`` made them."""
    with ndfeed.loader(ds, 6, shuffle=Balanced("kind")) as loader:
        for batch in loader:
            assert np.bincount(batch["kind"], minlength=3).tolist() == [2, 2, 2]
    with ndfeed.loader(ds, 6, shuffle=Balanced("kind", weights={"cat": 4})) as loader:
        for batch in loader:
            assert np.bincount(batch["kind"], minlength=3).tolist() == [4, 1, 1]


def test_a_class_without_a_sample_is_refused(ds):
    """Its name is known, so somebody expects it; the message says how to do without."""
    some = ds.take(np.arange(35))
    text = r"field 'kind' has no sample of class 'eel'.* weights=\{'eel': 0\}"
    with pytest.raises(ValueError, match=text):
        ndfeed.loader(some, 6, shuffle=Balanced("kind"))
    with ndfeed.loader(some, 6, shuffle=Balanced("kind", weights={"eel": 0})) as loader:
        assert all(np.bincount(batch["kind"]).tolist() == [3, 3] for batch in loader)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"weights": {"cow": 1}}, "class 'cow', but field 'kind' has 'cat', 'dog', 'eel'"),
        ({"weights": {"cat": 1.5}}, "whole numbers of at least 0, got 1.5 for class 'cat'; use 3"),
        ({"weights": {"cat": -1}}, "whole numbers of at least 0, got -1"),
        (
            {"weights": dict.fromkeys(("cat", "dog", "eel"), 0)},
            "weights must not all be 0, for 'cat', 'dog', 'eel'; give a positive one to some class",
        ),
        ({"weights": {"cat": 10**9}}, "sum up to 1 to"),
        ({"weights": {"cat": 2**62, "dog": 2**62}}, "sum up to 1 to"),
        ({"weights": {"cat": 2**70}}, "sum up to 1 to"),
        ({"weights": [1, 2, 3]}, "a dict of classes"),
        ({"weights": {1: 2, "1": 3}}, "each class once, got 1, '1'; 1 and '1' are the same"),
        ({"rows": 0}, "rows must be at least 1"),
    ],
    ids=str,
)
def test_what_cannot_be_balanced_is_refused(ds, words, text):
    """One line, before anything is delivered."""
    with pytest.raises((ValueError, TypeError), match=text):
        ndfeed.loader(ds, 6, shuffle=Balanced("kind", **words))


def test_classes_must_fit_the_data(ds):
    """Arrays of another length, unknown fields, fields with several values, no samples."""
    with pytest.raises(ValueError, match="each of 36 samples, got 3; pass as many"):
        ndfeed.loader(ds, 6, shuffle=Balanced([1, 2, 3]))
    with pytest.raises(ndfeed.FieldError, match="no field 'label'"):
        ndfeed.loader(ds, 6, shuffle=Balanced("label"))
    with pytest.raises(ndfeed.SchemaError, match="one value for each sample"):
        ndfeed.loader(ds, 6, shuffle=Balanced("data"))
    with pytest.raises(ValueError, match="at least one sample: there is none"):
        ndfeed.loader(ds.take([]), 6, shuffle=Balanced("kind", weights={"eel": 0}))


def test_a_class_that_is_not_known_is_none(tmp_path):
    """NaN stands for a label that is missing; it would be drawn as often as any class."""
    given = np.array([0.0, 1.0, np.nan, 1.0])
    np.savez(tmp_path / "x.npz", x=np.zeros(4), kind=given)
    ds = ndfeed.open(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"classes must have one .*, got nan for sample 2; .*take"):
        ndfeed.loader(ds, 2, shuffle=Balanced(given))
    with pytest.raises(ValueError, match=r"'kind' must have a class .*, got nan for sample 2"):
        ndfeed.loader(ds, 2, shuffle=Balanced("kind"))
    known = ndfeed.loader(ds.take([0, 1, 3]), 2, shuffle=Balanced("kind"))
    assert sorted(next(iter(known))["kind"].tolist()) == [0, 1]


def test_an_order_that_was_used_before_is_checked_again(ds):
    """Its classes were sorted for other data, and would name rows of these."""
    order = Balanced(np.arange(36) % 2)
    ndfeed.loader(ds, 6, shuffle=order)

    for other in (ds + ds, ds.take(np.arange(10))):
        with pytest.raises(ValueError, match=f"each of {len(other)} samples, got 36"):
            ndfeed.loader(other, 6, shuffle=order)


def test_a_state_of_other_classes_is_refused():
    """The same number of samples in other classes is another order."""
    one = bound(CLASSES)

    assert bound(CLASSES[::-1]).resume(Progress(one.spec(), 0, 5, {})) is None
    assert bound(CLASSES, weights={"a": 2}).resume(Progress(one.spec(), 0, 5, {})) is None
    assert pickle.loads(pickle.dumps(one)) == Balanced(CLASSES)
