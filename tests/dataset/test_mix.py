"""``ndfeed.mix``: the sum of its sources and a note of the proportions, which views keep."""

import pickle

import numpy as np
import pytest
from loading.making import images, numbers

import ndfeed


@pytest.fixture
def sources(tmp_path):
    return {"web": images(tmp_path / "a", 12), "code": images(tmp_path / "b", 8)}


def double(batch):
    return {"image": batch["image"] * 2, "label": batch["label"]}


def test_a_mixture_is_the_sum_of_its_sources(sources):
    """One after the other, with a note for loaders."""
    ds = ndfeed.mix(sources, weights=[3, 1])

    assert len(ds) == 20
    assert ds[:]["label"].tolist() == [*range(12), *range(8)]
    assert ds.mixture.weights == {"web": 3, "code": 1}
    assert (ds.mixture.rows, ds.mixture.end) == ((12, 8), "first")
    assert (
        "a mixture: Proportions(rows={'web': 12, 'code': 8}, weights={'web': 3, 'code': 1}"
        in f"{ds}"
    )


def test_weights_left_out_are_those_of_the_rows(sources):
    """As if the datasets were added."""
    assert ndfeed.mix(sources).mixture.weights == {"web": 3, "code": 2}


@pytest.mark.parametrize("mapped", [False, True, "one"])
def test_a_field_says_which_source(sources, mapped):
    """A number, whose names are classes; whatever maps the sources have."""
    if mapped:
        sources["web"] = sources["web"].map(double)
    if mapped is True:
        sources["code"] = sources["code"].map(double)
    ds = ndfeed.mix(sources, source="from")

    batch = ds[:]
    assert batch["from"].tolist() == [0] * 12 + [1] * 8
    assert batch["from"].dtype == np.int64
    assert batch["image"][11, 0, 0, 0] == (22 if mapped else 11)
    assert batch["image"][19, 0, 0, 0] == (14 if mapped is True else 7)
    assert ds.classes["from"] == ("web", "code")


def test_views_that_keep_the_samples_keep_the_mixture(sources):
    """select, rename, map, in_memory, with_origin and pickling."""
    ds = ndfeed.mix(sources, weights=[3, 1], end="last", source="from")

    for view in (
        ds.select("label", "from"),
        ds.rename({"label": "y", "from": "source"}),
        ds.map(double),
        ds.in_memory(),
        ds.with_origin(),
        pickle.loads(pickle.dumps(ds)),
    ):
        assert view.mixture == ds.mixture
    assert ds.rename({"from": "source"}).classes["source"] == ("web", "code")
    assert pickle.loads(pickle.dumps(ds)).fingerprint == ds.fingerprint


def test_a_name_that_no_state_can_hold_is_refused(sources):
    """Not when the run resumes."""
    web, code = sources.values()
    with pytest.raises(ValueError, match=r"at most 200 characters, got 1,001; .* shorter ones"):
        ndfeed.mix({"w" * 1001: web, "code": code})


def test_a_weight_may_be_larger_than_any_float(sources):
    """Whole numbers have no bounds."""
    made = ndfeed.mix(sources, weights=[3 * 10**500, 10**500])
    assert [*made.mixture.weights.values()] == [3, 1]


@pytest.mark.parametrize(
    "view",
    [
        lambda ds: ds.take([1, 2]),
        lambda ds: ds.take(slice(0, 3)),
        lambda ds: ds.where("label"),
        lambda ds: ds.split(0.5),
        lambda ds: ds.folds(2),
        lambda ds: ds + ds,
        lambda ds: ds.windows(2),
        lambda ds: ds.crops({"image": (2, 2, 3)}),
        lambda ds: ndfeed.open({"a": ds}),
        lambda ds: ndfeed.pack(ds, "nowhere"),
    ],
)
def test_views_of_other_samples_are_refused(sources, view):
    """They would change which rows belong to which source."""
    ds = ndfeed.mix(sources)

    with pytest.raises(ValueError, match=r"do it on the sources, then call mix\(\)"):
        view(ds)


def test_what_is_no_mixture(sources, tmp_path):
    """Each in one line with a remedy, when it is made."""
    web, code = sources.values()
    other, mixed = numbers(tmp_path, 5), ndfeed.mix(sources)
    for error, text, call in (
        (TypeError, "mix takes a dict of names and datasets", lambda: ndfeed.mix([web, code])),
        (ValueError, "from 2 to 256 sources, got 1", lambda: ndfeed.mix({"web": web})),
        (ValueError, "from 2 to 256 sources, got 0", lambda: ndfeed.mix({})),
        (TypeError, "'b': expected a Dataset", lambda: ndfeed.mix({"a": web, "b": "x.npy"})),
        (TypeError, "names of sources must be text", lambda: ndfeed.mix({1: web, 2: code})),
        (ValueError, "'a' and 'b' are the same dataset", lambda: ndfeed.mix({"a": web, "b": web})),
        (ValueError, "'b' is empty", lambda: ndfeed.mix({"a": web, "b": code.take([])})),
        (ValueError, "'b' is a mixture itself", lambda: ndfeed.mix({"a": web, "b": mixed})),
        (ValueError, "end must be", lambda: ndfeed.mix(sources, end="never")),
        (ValueError, "source='label' is a field", lambda: ndfeed.mix(sources, source="label")),
        (TypeError, "source must be the name", lambda: ndfeed.mix(sources, source=3)),
        (ndfeed.SchemaError, "expected .*; select", lambda: ndfeed.mix({"a": web, "b": other})),
    ):  # fmt: skip
        with pytest.raises(error, match=text) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_errors_name_the_source_that_does_not_fit(sources):
    """By the name that the caller gave it: a file may be in several sources, or in none."""
    web, code = sources.values()
    other = code.rename({"label": "y"})
    first = ndfeed.open({"x": np.zeros((3, 2))})
    second = ndfeed.open({"x": np.zeros((3, 2), "f4")})
    for error, text, call in (
        (
            ndfeed.SchemaError,
            r"source 'b': expected fields \['image', 'label'\] as in source 'a', found "
            r"\['image', 'y'\]; select",
            lambda: ndfeed.mix({"a": web, "b": other}),
        ),
        (
            ndfeed.SchemaError,
            "^memory: source 'b': field 'x': expected float64 as in source 'a', found float32; ",
            lambda: ndfeed.mix({"a": first, "b": second}),
        ),
        (
            ValueError,
            r"^mix\(\) of source 'b' is not possible after with_origin\(\)",
            lambda: ndfeed.mix({"a": web, "b": code.with_origin()}),
        ),
    ):
        with pytest.raises(error, match=text):
            call()


def test_arrays_in_memory_are_named_so(sources):
    """Not by the descriptor of the memory they are in."""
    first = ndfeed.open({"x": np.zeros((3, 2))})
    for other in (np.zeros((3, 2), "f4"), {"y": np.zeros(3)}):
        with pytest.raises(ndfeed.SchemaError, match=r"^memory: .*expected"):
            first + ndfeed.open(other if isinstance(other, dict) else {"x": other})


def as_lists(batch):
    return {"data": list(batch["data"])}


def test_samples_of_two_shapes_are_refused(tmp_path):
    """They would make lists of all batches, where each source alone makes arrays."""
    np.save(tmp_path / "a.npy", np.arange(40))
    ds = ndfeed.open(tmp_path / "a.npy", sample="row")
    long, short = ds.windows(5), ds.windows(4)
    text = r"source 'b': field 'data': expected shape \(5,\) as in source 'a', found \(4,\); give"
    for other in (short, short.map(lambda batch: {"data": batch["data"]})):
        with pytest.raises(ndfeed.SchemaError, match=text):
            ndfeed.mix({"a": long, "b": other})


def test_sources_that_are_ragged_may_have_any_shape(tmp_path):
    """One of them is enough, and a map makes one so."""
    np.save(tmp_path / "a.npy", np.arange(40))
    ds = ndfeed.open(tmp_path / "a.npy", sample="row")
    mixed = ndfeed.mix({"a": ds.windows(5), "b": ds.windows(4).map(as_lists)})
    lengths = {len(one) for batch in ndfeed.loader(mixed, 4) for one in batch["data"]}
    assert lengths == {4, 5}


def test_the_field_of_the_source_is_named_where_it_is_missed(sources):
    """It is there only if it was asked for, and the error says how."""
    with pytest.raises(ndfeed.FieldError, match=r"no field 'source'; .*source='source' in ndfeed"):
        ndfeed.loader(ndfeed.mix(sources), 4, fields=("image", "source"))
