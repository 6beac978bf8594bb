"""Sums of datasets that have maps of their own."""

import pickle

import numpy as np
import pytest

import ndfeed


def from_bytes(batch):
    return {"x": batch["x"].astype("f4") / 255, "y": batch["y"]}


def from_floats(batch):
    return {"y": batch["y"] + 1000, "x": batch["x"].astype("f4")}


def one_by_one(sample):
    return {"x": sample["x"].astype("f4") * 2, "y": sample["y"]}


def noisy(batch, rng):
    return {"x": batch["x"] + rng.normal(size=(len(batch["x"]), 1)).astype("f4"), "y": batch["y"]}


def refuses_seven(sample):
    if sample["y"] == 7:
        raise ValueError("seven")
    return sample


@pytest.fixture
def alike(tmp_path):
    """Two datasets with the same stored fields."""
    made = []
    for name, first in (("a", 0), ("b", 100)):
        x = np.arange(first, first + 40, dtype="f4").reshape(10, 4)
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(first, first + 10))
        made.append(ndfeed.open(tmp_path / f"{name}.npz"))
    return made


@pytest.fixture
def unlike(tmp_path):
    """Bytes of one shape and doubles of another, one of them compressed and a file each."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "u.npz", x=rng.integers(0, 256, (10, 4), "u1"), y=np.arange(10))
    (tmp_path / "f").mkdir()
    for i in range(6):
        np.savez_compressed(
            tmp_path / "f" / f"{i}.npz", x=rng.normal(size=4), y=i, more=np.zeros(i)
        )
    return ndfeed.open(tmp_path / "u.npz"), ndfeed.open(tmp_path / "f", sample="file")


def expected(*datasets):
    parts = [ds[:] for ds in datasets]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def same(batch, wanted, rows=slice(None)):
    assert list(batch) == list(wanted)
    for name, values in batch.items():
        np.testing.assert_array_equal(values, wanted[name][rows])
        assert values.dtype == wanted[name].dtype


@pytest.fixture(params=["alike", "unlike", "half mapped", "views", "three", "nested"])
def sums(request, alike, unlike):
    """A sum, and what it must be."""
    a, b = alike
    u, f = unlike
    if request.param == "alike":
        parts = a.map(from_floats), b.map(one_by_one, batched=False)
    elif request.param == "unlike":
        parts = u.map(from_bytes), f.map(from_floats)
    elif request.param == "half mapped":
        parts = a, u.map(from_bytes)
    elif request.param == "views":
        parts = u.take([7, 2, 2]).map(from_bytes), f.split(0.5)[0].map(from_floats).take([2, 0])
    elif request.param == "three":
        parts = u.map(from_bytes), f.map(from_floats), b.map(from_floats), u.map(from_bytes)
    else:
        inner = a.map(from_floats) + u.map(from_bytes)
        parts = inner.map(from_floats), f.map(from_floats)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total, expected(*parts)


def test_rows_go_through_the_maps_of_their_own_dataset(sums):
    """In any order, alone, and in batches that span several."""
    ds, wanted = sums
    count = len(wanted["y"])
    rows = np.random.default_rng(1).permutation(count)

    assert len(ds) == count
    same(ds[:], wanted)
    same(ds[rows], wanted, rows)
    same(ds[[0, count - 1, 0]], wanted, [0, -1, 0])
    assert ds[count - 1]["y"] == wanted["y"][-1]
    assert {name: field.shape for name, field in ds.fields.items()} == {"x": (4,), "y": ()}
    assert len(ds[[]]["y"]) == 0
    assert "ndfeed." not in repr(ds).partition("\n")[2]


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_loaders_make_the_same_of_it(sums, processes, shuffle):
    """Batches across the border come in order, from threads and from processes."""
    ds, wanted = sums
    names = list(wanted)
    loader = ndfeed.loader(ds, 3, shuffle=shuffle, processes=processes)
    batches = list(loader)
    loader.close()

    found = np.concatenate([batch["x"] for batch in batches])
    if shuffle:
        found, wanted = np.sort(found, axis=0), {"x": np.sort(wanted["x"], axis=0)}
    np.testing.assert_array_equal(found, wanted["x"])
    assert all(list(batch) == names for batch in batches)


def test_it_packs_pickles_and_loads_into_memory(sums, tmp_path):
    """All that a dataset can do."""
    ds, wanted = sums
    packed = ndfeed.pack(ds, tmp_path / "packed")

    same(packed[:], wanted)
    same(pickle.loads(pickle.dumps(ds))[:], wanted)
    held = ds.in_memory()
    same(held[:], wanted)
    assert held.fingerprint == ds.fingerprint
    first, second = ds.split(0.5)
    same((first + second)[:], expected(first, second))
    same(ds.select("y")[:], {"y": wanted["y"]})
    same(ds.map(from_floats)[:], {"y": wanted["y"] + 1000, "x": wanted["x"]})


def test_frameworks_take_it(sums):
    """Through torch, whose adapter asks for the fields first."""
    pytest.importorskip("torch")
    import ndfeed.torch

    ds, wanted = sums
    batches = list(ndfeed.torch.loader(ds, 4, fields=("y", "x")))

    np.testing.assert_array_equal(np.concatenate([x.numpy() for _, x in batches]), wanted["x"])


def test_the_fingerprint_is_that_of_the_samples(alike):
    """Functions do not count: a checkpoint of the plain sum fits."""
    a, b = alike

    assert (a.map(from_floats) + b).fingerprint == (a + b).fingerprint
    assert (a + b.map(from_floats)).fingerprint != (b + a.map(from_floats)).fingerprint


def test_interrupted_packs_of_other_functions_are_not_gone_on_with(alike, tmp_path):
    """Which function is whose is part of what a pack is of."""
    from ndfeed.packing.plan import describe_step

    a, b = alike
    one = a.map(from_floats).map(noisy) + b
    other = a.map(from_floats) + b.map(noisy)

    assert describe_step(one.steps[0]) != describe_step(other.steps[0])


def test_random_functions_draw_by_position_and_not_alike(alike):
    """The same epoch whatever the threads, and no noise that both datasets share."""
    a, b = alike
    ds = a.map(noisy) + b.map(noisy, batched=True).map(dict)
    runs = []
    for processes in (0, 2):
        loader = ndfeed.loader(ds, 5, shuffle=True, seed=3, processes=processes)
        runs.append(np.concatenate([batch["x"] for batch in loader]))
        loader.close()
    np.testing.assert_array_equal(*runs)
    both = ds[[0, 10]]["x"] - np.concatenate([a[[0]]["x"], b[[0]]["x"]])

    assert abs(both[0, 0] - both[1, 0]) > 1e-6


def test_a_sample_that_a_map_refuses_is_skipped_by_its_own_row(alike):
    """The row is that of the sum, so that it can be looked up."""
    a, b = alike
    ds = b.map(one_by_one, batched=False) + a.map(refuses_seven, batched=False)
    loader = ndfeed.loader(ds, 8, on_error="skip")

    assert sorted(y for batch in loader for y in batch["y"]) == [*range(7), 8, 9, *range(100, 110)]
    assert [row for row, _ in loader.skipped] == [17]


def test_fields_that_do_not_agree_are_refused_when_they_are_added(alike, unlike):
    """Not in the middle of the epoch, and never converted in silence."""
    a, _ = alike
    with pytest.raises(ndfeed.SchemaError, match=r"expected fields \['x', 'y'\] .* found \['x'\]"):
        a.map(from_floats) + a.select("x")
    with pytest.raises(ndfeed.SchemaError, match=r"'x': expected float32 .* found uint8"):
        a.map(from_floats) + unlike[0]


def test_a_map_that_changes_its_mind_is_found_where_datasets_meet(alike):
    """The first sample does not tell all."""
    a, b = alike

    def later(batch):
        return batch if batch["y"].max() < 105 else batch | {"x": batch["x"].astype("f8")}

    ds = a.map(from_floats) + b.map(later)
    with pytest.raises(ValueError, match="'x' is float32 in one and float64 in another"):
        ds[[0, 19]]
    with pytest.raises(ValueError, match=r"expected \['x', 'y'\], found \['x'\]"):
        (a.map(from_floats) + b.map(lambda b: b if b["y"][0] < 105 else {"x": b["x"]}))[[19]]


def test_shapes_that_differ_make_a_ragged_field(alike):
    """As without a map."""
    a, b = alike
    ds = a.map(lambda b: {"x": b["x"][:, :2]}) + b.map(lambda b: {"x": b["x"]})

    assert ds.fields["x"].ragged
    assert [len(x) for x in ds[[0, 10, 1]]["x"]] == [2, 4, 2]
    padded = next(iter(ndfeed.loader(ds.take([0, 10]), 2, ragged="pad")))
    assert padded["x_length"].tolist() == [2, 4]


def test_how_samples_are_understood_stays_as_it_was(unlike):
    """What is kept beside them is no other kind of sample."""
    ds = unlike[1].map(from_floats) + unlike[1].map(from_bytes)

    assert "a sample is a whole file (" in repr(ds)
    assert "a sample is a whole file (" in repr(unlike[1].with_origin())


def test_sums_of_many(alike):
    """One route each, and no descriptor or table for every one of them."""
    a, b = alike
    ds = a.take([0])
    for i in range(300):
        ds = ds + b.take([i % 10]).map(lambda batch, i=i: {"x": batch["x"] * i, "y": batch["y"]})

    np.testing.assert_array_equal(ds[300]["x"], b[299 % 10]["x"] * 299)
    assert len(ds.steps[0].routes) == 301


def test_a_ragged_field_beside_one_that_is_not(tmp_path):
    """Padding in a map is what brings them together."""
    np.savez(tmp_path / "even.npz", x=np.ones((3, 5)))
    for i in range(4):
        np.savez(tmp_path / f"r{i}.npz", x=np.full(i, float(i)))

    def pad(batch):
        return {"x": np.stack([np.pad(x, (0, 5 - len(x))) for x in batch["x"]])}

    even = ndfeed.open(tmp_path / "even.npz")
    ragged = ndfeed.open(str(tmp_path / "r*.npz"), sample="file")
    for ds in (even + ragged.map(pad), (ragged.map(pad) + even).take([4, 5, 6, 0, 1, 2, 3])):
        assert ds[:]["x"].sum(axis=1).tolist() == [5, 5, 5, 0, 1, 4, 9]
        assert isinstance(ds[[0, 5]]["x"], np.ndarray)


def test_with_origin_of_a_sum(unlike):
    """Where a sample comes from is told beside all the maps."""
    u, f = unlike
    ds = (u.map(from_bytes) + f.map(from_floats)).take([12, 3]).with_origin()

    assert list(ds.fields) == ["x", "y", "file", "row"]
    assert ds[:]["row"].tolist() == [0, 3]
    assert [ds.files[number][-5:] for number in ds[:]["file"]] == ["2.npz", "u.npz"]


def test_a_sum_of_no_samples(alike):
    """Nothing is run, and what both have is still known."""
    a, b = alike
    ds = a.take([]).map(from_floats) + b.take([])

    assert len(ds) == 0
    assert list(ds.fields) == ["x", "y"]
    assert [len(batch["x"]) for batch in ndfeed.loader(ds + b.map(from_floats), 5)] == [5, 5]
