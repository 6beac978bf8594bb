"""What users hold: lengths, indexing, views, transforms, and what is printed."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ndfeed


@pytest.fixture
def data():
    return np.arange(60, dtype="<i4").reshape(20, 3)


@pytest.fixture
def ds(tmp_path, data):
    np.savez(tmp_path / "x.npz", x=data, y=np.arange(20.0))
    return ndfeed.open(tmp_path / "x.npz")


def test_facts(ds, tmp_path):
    """Asked of every dataset before anything else."""
    assert len(ds) == 20
    assert ds.nbytes == 20 * (12 + 8)
    assert list(ds.files) == [str(tmp_path / "x.npz")]
    assert ds.fields["x"] == ndfeed.Field("x", np.dtype("i4"), (3,), "<i4")
    assert ds.fields["x"].nbytes == 12


@pytest.mark.parametrize(
    "index",
    [slice(3, 9), slice(None, None, -3), [3, 1, 4], [-1, 0], np.array([5, 5]), [], slice(9, 3)],
    ids=str,
)
def test_many_rows_at_once(ds, data, index):
    """The same words as NumPy's."""
    wanted = data[np.array(index, int) if isinstance(index, list) else index]
    np.testing.assert_array_equal(ds[index]["x"], wanted)


def test_a_mask(ds, data):
    """A boolean array chooses rows, and must have one element for each."""
    mask = data[:, 0] % 2 == 0
    np.testing.assert_array_equal(ds[mask]["x"], data[mask])
    with pytest.raises(IndexError, match="a mask must have 20 elements, got 3"):
        ds[np.array([True, False, True])]


@pytest.mark.parametrize("row", [0, 7, -1, np.int64(3)])
def test_one_sample_has_no_batch_axis(ds, data, row):
    """One index gives one sample."""
    np.testing.assert_array_equal(ds[row]["x"], data[row])
    assert ds[row]["y"] == np.arange(20.0)[row]


@pytest.mark.parametrize("row", [20, -21, 10**12])
def test_a_row_outside_is_an_index_error(ds, row):
    """So that a for-loop over indices ends."""
    with pytest.raises(IndexError, match=r"\[-20, 20\)"):
        ds[row]


@pytest.mark.parametrize("rows", [[-1], [20], [0, 2**62]])
def test_read_neither_clamps_nor_counts_back(ds, rows):
    """Row numbers come from an order: anything outside is a bug, and must not be hidden."""
    with pytest.raises(IndexError, match=r"rows must be in \[0, 20\)"):
        ds.read(rows)


@pytest.mark.parametrize("rows", [[0.5], "abc", [[1, 2]], 3])
def test_read_takes_whole_numbers_in_one_dimension(ds, rows):
    """A float index is a mistake somewhere else."""
    with pytest.raises((TypeError, IndexError), match="rows must"):
        ds.read(rows)


def test_iterating_gives_samples(ds, data):
    """For a look at the data; a loader is for training."""
    np.testing.assert_array_equal(np.stack([sample["x"] for sample in ds]), data)


SLICES = st.builds(
    slice, *[st.none() | st.integers(-12, 12)] * 2, st.sampled_from([None, 1, 2, -1, -3])
)


@given(slices=st.lists(SLICES, min_size=1, max_size=4))
def test_slices_of_slices_are_those_of_numpy(slices):
    """Also those that go back: no sample is lost."""
    ds, rows = ndfeed.open({"x": np.arange(10)}), np.arange(10)
    for one in slices:
        ds, rows = ds.take(one), rows[one]

    assert ds[:]["x"].tolist() == rows.tolist()


@given(st.integers(-10, 10), st.integers(-10, 10), st.sampled_from([1, 2, -1, -3]))
def test_ranges_are_the_row_numbers_in_them(start, stop, step):
    """They are not listed; those below 0 count from the end."""
    ds, rows = ndfeed.open({"x": np.arange(10)}), range(start, stop, step)
    if rows and max(rows) > 9:
        with pytest.raises(IndexError, match=r"rows must be in \[-10, 10\)"):
            ds.take(rows)
        return

    assert ds.take(rows)[:]["x"].tolist() == [at % 10 for at in rows]


def test_select_keeps_the_order_asked_for(ds):
    """Names are positions once batches become tuples."""
    assert list(ds.select("y", "x").fields) == ["y", "x"]
    assert list(ds.select("y", "x")[:2]) == ["y", "x"]
    assert list(ds.select("y")[0]) == ["y"]
    with pytest.raises(ndfeed.FieldError, match="no field 'z'; the fields are 'x', 'y'"):
        ds.select("z")
    with pytest.raises(ValueError, match="at least one"):
        ds.select()


def test_views_compose(ds, data):
    """A choice out of a choice, a field of it, in any order."""
    view = ds.take([9, 3, 5, 7]).select("x").take(slice(None, None, -1)).take([0, 2])
    np.testing.assert_array_equal(view[:]["x"], data[[7, 3]])
    np.testing.assert_array_equal(ds.take(slice(2, 18, 2)).take(slice(1, 4))[:]["x"], data[4:10:2])
    assert ds.take([9, 3]).nbytes == 2 * 20


@given(fraction=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_split_loses_and_repeats_nothing(tmp_path_factory, fraction, seed):
    """Every sample is in one of the two, the same one every time."""
    path = tmp_path_factory.getbasetemp() / "split.npy"
    if not path.exists():
        np.save(path, np.arange(50))
    ds = ndfeed.open(path)
    first, second = ds.split(fraction, seed=seed)

    together = np.concatenate([first[:]["data"], second[:]["data"]])
    assert sorted(together.tolist()) == list(range(50))
    assert len(first) == round(50 * fraction)
    np.testing.assert_array_equal(ds.split(fraction, seed=seed)[0][:]["data"], first[:]["data"])


def test_split_is_frozen(tmp_path):
    """A validation set that changes with a release leaks: these values may not change."""
    np.save(tmp_path / "x.npy", np.arange(12))
    held_out = ndfeed.open(tmp_path / "x.npy").split(0.75, seed=7)[1]

    assert held_out[:]["data"].tolist() == [3, 6, 8]


def test_split_in_several_parts(ds):
    """Training, validation and test: every sample in one of them, the first as without the rest."""
    parts = ds.split(0.8, 0.1, 0.1, seed=5)

    assert [len(part) for part in parts] == [16, 2, 2]
    assert sorted(np.concatenate([part[:]["y"] for part in parts])) == list(range(20))
    assert parts[0].fingerprint == ds.split(0.8, seed=5)[0].fingerprint
    for listed in ([0.8, 0.1, 0.1], (0.8, 0.1, 0.1), np.array([0.8, 0.1, 0.1])):
        assert [len(part) for part in ds.split(listed, seed=5)] == [16, 2, 2]
    assert pickle.loads(pickle.dumps(parts[2]))[:]["y"].tolist() == parts[2][:]["y"].tolist()
    assert [len(part) for part in ds.split(1 / 3, 1 / 3, 1 / 3)] == [7, 6, 7]


@given(weights=st.lists(st.integers(0, 50), min_size=2).filter(any))
def test_parts_of_a_split_are_rounded_but_complete(tmp_path_factory, weights):
    """Each is at most one sample off, whatever the fractions."""
    path = tmp_path_factory.getbasetemp() / "split.npy"
    if not path.exists():
        np.save(path, np.arange(50))
    fractions = [weight / sum(weights) for weight in weights]
    sizes = [len(part) for part in ndfeed.open(path).split(fractions)]

    assert sum(sizes) == 50
    assert all(abs(size - 50 * one) <= 1 for size, one in zip(sizes, fractions, strict=True))


@pytest.mark.parametrize(
    ("fractions", "error", "match"),
    [
        (
            (0.8, 0.1),
            ValueError,
            r"must sum to 1, got 0\.8 \+ 0\.1 = 0\.9; add a fraction for the rest",
        ),
        ((0.8, 0.3), ValueError, r"must sum to 1, got 0\.8 \+ 0\.3 = 1\.1"),
        ((80, 20), ValueError, r"fraction must be in \[0, 1\], got 80"),
        ((float("nan"),), ValueError, "got nan"),
        (([0.8, "x"],), TypeError, "must be numbers such as 0.8, 0.1, 0.1, got 'x'"),
        (("0.8",), TypeError, "got '0.8'"),
        ((None,), TypeError, "got None"),
        (([],), TypeError, "must be numbers"),
        ((), TypeError, "must be numbers"),
    ],
)
def test_fractions_that_are_none_are_refused_in_words(ds, fractions, error, match):
    """Not with an error of Python's own from somewhere inside."""
    with pytest.raises(error, match=match):
        ds.split(*fractions)
    with pytest.raises(TypeError, match="seed must be a whole number"):
        ds.split(0.5, seed="a")


@pytest.mark.parametrize("number", [5, 0, np.int64(5)])
def test_take_of_one_number_says_what_to_write(ds, number):
    """It could be the first five or the fifth; each has words of its own."""
    with pytest.raises(TypeError, match=rf"take\(range\({number}\)\) .* ds\[:{number}\]"):
        ds.take(number)


def test_rename(ds, data):
    """What a model or another dataset calls it; the samples are the same."""
    renamed = ds.rename({"x": "image"})

    assert list(renamed.fields) == ["image", "y"]
    np.testing.assert_array_equal(renamed[[3, 1]]["image"], data[[3, 1]])
    assert renamed.fingerprint == ds.fingerprint
    assert list(ds.rename({"x": "y", "y": "x"})[0]) == ["y", "x"]
    assert list(pickle.loads(pickle.dumps(renamed)).select("image")[0]) == ["image"]
    mapped = ds.map(double).rename({"n": "label"})
    assert list(mapped.fields) == ["x", "label"]
    assert list(next(iter(ndfeed.loader(mapped, 2)))) == ["x", "label"]
    assert (ds.rename({"x": "image"}) + renamed).fields.keys() == renamed.fields.keys()


def test_rename_refuses_what_cannot_be(ds):
    """When it is written, not when a batch lacks a field."""
    for one in (ds, ds.map(dict)):
        with pytest.raises(ndfeed.FieldError, match="no field 'z'; the fields are 'x', 'y'"):
            one.rename({"z": "x"})
        with pytest.raises(ValueError, match="two fields the name 'y'"):
            one.rename({"x": "y"})
        with pytest.raises(TypeError, match="rename takes a dict"):
            one.rename("x")
        with pytest.raises(TypeError, match="must be text"):
            one.rename({"x": 3})


def test_a_name_that_is_not_there_is_said_of_no_samples_too(ds):
    """There is no first sample whose file could be named."""
    with pytest.raises(ndfeed.FieldError, match=r"x\.npz: no field 'z'"):
        ds.take([]).select("z")


def test_adding_puts_one_behind_the_other(tmp_path, data):
    """Rows of one file, samples of a folder, and views of both are one dataset."""
    np.save(tmp_path / "a.npy", data)
    (tmp_path / "b").mkdir()
    for i in range(4):
        np.save(tmp_path / "b" / f"{i}.npy", data[i].astype(">i4") + 100)
    a = ndfeed.open(tmp_path / "a.npy")
    b = ndfeed.open(tmp_path / "b", sample="file")
    both = a.take([5, 6]) + b + a

    assert len(both) == 2 + 4 + 20
    expected = np.concatenate([data[[5, 6]], data[:4] + 100, data])
    np.testing.assert_array_equal(both[:]["data"], expected)
    np.testing.assert_array_equal(both[[3, 25, 0]]["data"], expected[[3, 25, 0]])


def test_adding_what_does_not_fit_is_refused(ds, tmp_path):
    """Fields and types must agree; shapes may differ and become ragged."""
    np.savez(tmp_path / "f.npz", x=np.zeros((2, 3)), y=np.zeros(2))
    np.savez(tmp_path / "g.npz", x=np.zeros((2, 4), "i4"), y=np.zeros(2))

    with pytest.raises(ndfeed.SchemaError, match="fields"):
        ds + ds.select("x")
    with pytest.raises(
        ndfeed.SchemaError, match="expected int32 as in the first dataset, found float64"
    ):
        ds + ndfeed.open(tmp_path / "f.npz")
    assert (ds + ndfeed.open(tmp_path / "g.npz")).fields["x"].shape == (None,)
    with pytest.raises(ndfeed.SchemaError, match=r"expected fields \['x', 'y'\]"):
        ds + ds.map(double)
    with pytest.raises(TypeError):
        ds + 1


def test_read_into_some_fields(ds, data):
    """Buffers for what is wanted only."""
    out = np.empty((2, 3), "i4")
    ds.read_into([4, 2], {"x": out})

    np.testing.assert_array_equal(out, data[[4, 2]])


@pytest.mark.parametrize(
    ("out", "match"),
    [
        (np.empty((2, 3), "i8"), r"must be int32 \(2, 3\), got int64 \(2, 3\)"),
        (np.empty((3, 3), "i4"), r"must be int32 \(2, 3\), got int32 \(3, 3\)"),
        (np.empty((2, 6), "i4")[:, ::2], "C order"),
        (np.broadcast_to(np.zeros(3, "i4"), (2, 3)), "writable"),
    ],
)
def test_read_into_refuses_what_cannot_hold_it(ds, out, match):
    """Before anything is read."""
    with pytest.raises(ValueError, match=match):
        ds.read_into([0, 1], {"x": out})


def test_read_into_an_unknown_field(ds):
    """The names there are come with the error."""
    with pytest.raises(ndfeed.FieldError, match="no field 'z'"):
        ds.read_into([0], {"z": np.empty(1)})


def test_ragged_fields_come_as_lists(tmp_path):
    """A sample gives its array, a batch a list of them, each the caller's own."""
    for i in range(5):
        np.savez(tmp_path / f"{i}.npz", x=np.arange(i), y=np.int64(i))
    ds = ndfeed.open(tmp_path)
    batch = ds[[4, 0, 2, 4]]

    assert [x.tolist() for x in batch["x"]] == [[0, 1, 2, 3], [], [0, 1], [0, 1, 2, 3]]
    assert batch["y"].tolist() == [4, 0, 2, 4]
    batch["x"][0][:] = -1
    assert batch["x"][3].tolist() == ds[4]["x"].tolist() == [0, 1, 2, 3]
    assert ds.fields["x"].ragged
    assert ds.fields["x"].nbytes is None
    assert ds.nbytes == 8 * (0 + 1 + 2 + 3 + 4) + 5 * 8
    with pytest.raises(ValueError, match="'x' is ragged"):
        ds.read_into([0], {"x": np.empty((1, 0))})


def test_samples_of_several_ranks_are_ragged(tmp_path):
    """Grey and colour pictures in one folder."""
    np.save(tmp_path / "a.npy", np.zeros((2, 2)))
    np.save(tmp_path / "b.npy", np.ones((2, 2, 3)))
    ds = ndfeed.open(tmp_path, sample="file")

    assert ds.fields["data"].shape is None
    assert [x.shape for x in ds[:]["data"]] == [(2, 2), (2, 2, 3)]


def test_in_memory_is_the_same_data(tmp_path, ds, data):
    """Decoded once; ragged fields, views and byte orders included."""
    held = ds.take([3, 1, 2]).in_memory()
    np.testing.assert_array_equal(held[:]["x"], data[[3, 1, 2]])
    assert list(held.fields) == ["x", "y"]
    for i in range(4):
        np.savez_compressed(tmp_path / f"r{i}.npz", a=np.arange(i, dtype=">f4"), b=np.int8(i))
    ragged = ndfeed.open(str(tmp_path / "r*.npz"))
    held = ragged.in_memory()
    for row in range(4):
        assert held[row]["a"].tolist() == ragged[row]["a"].tolist()
        assert held[row]["b"] == row
    (tmp_path / "r2.npz").unlink()
    assert held[2]["a"].tolist() == [0, 1]


def test_in_memory_of_nothing(ds):
    """No samples are still a dataset."""
    assert len(ds.take([]).in_memory()[:]["x"]) == 0


def double(batch):
    return {"x": batch["x"] * 2, "n": batch["y"]}


def noisy(batch, rng):
    return {"x": batch["x"] + rng.integers(0, 1000, batch["x"].shape)}


def test_map_runs_on_every_batch(ds, data):
    """On whole batches, one after the other, and on a single sample too."""
    mapped = ds.map(double).map(lambda b: {"x": b["x"] + 1})

    np.testing.assert_array_equal(mapped[[3, 5]]["x"], data[[3, 5]] * 2 + 1)
    np.testing.assert_array_equal(mapped[3]["x"], data[3] * 2 + 1)
    assert mapped.fields["x"].shape == (3,)
    assert list(ds.map(double).select("n")[0]) == ["n"]
    np.testing.assert_array_equal(mapped.take([5])[0]["x"], data[5] * 2 + 1)
    assert "2 steps" in repr(mapped)


def test_map_on_single_samples(ds, data):
    """For functions written for one sample; results of several shapes become lists."""
    mapped = ds.map(lambda s: {"x": s["x"][: int(s["y"]) % 3]}, batched=False)

    assert [x.tolist() for x in mapped[[3, 5]]["x"]] == [[], data[5, :2].tolist()]


def test_random_functions_get_a_generator_fixed_by_what_is_read(ds):
    """No hidden state: the same read gives the same batch, another read another."""
    mapped = ds.map(noisy)
    first = mapped[[1, 2]]["x"]

    np.testing.assert_array_equal(mapped[[1, 2]]["x"], first)
    given = np.random.default_rng(5)
    assert not np.array_equal(mapped.read([1, 2], rng=given)["x"], first)


def test_map_refuses_what_is_no_function_or_returns_no_dict(ds):
    """At the call, and at the first batch."""
    with pytest.raises(TypeError, match="map takes a function"):
        ds.map(3)
    with pytest.raises(TypeError, match="must return a dict"):
        ds.map(lambda b: b["x"])[0]


def test_read_into_behind_a_map(ds, data):
    """Copied, since the function made new memory."""
    out = np.empty((2, 3), "i4")
    ds.map(double).read_into([4, 2], {"x": out})

    np.testing.assert_array_equal(out, data[[4, 2]] * 2)


def test_read_into_text_behind_a_map():
    """Of the width of the batch, whatever that of its first sample."""
    ds = ndfeed.open({"n": np.arange(3)})
    texts = np.array(["a", "long", "b"])
    out = {"text": np.empty(2, "<U4")}
    ds.map(lambda batch: {"text": texts[batch["n"]]}).read_into([0, 1], out)

    assert out["text"].tolist() == ["a", "long"]


def test_a_map_must_keep_the_samples_apart(ds):
    """A value for all of them together cannot be shuffled, split or batched."""
    with pytest.raises(ValueError, match=r"must return a value for each of 2 samples; 's' has one"):
        ds.map(lambda b: {"s": b["x"].sum()})[[0, 1]]
    with pytest.raises(ValueError, match="'x' has 1"):
        ds.map(lambda b: {"x": b["x"][:1]})[[0, 1]]


def test_read_into_behind_a_map_refuses_what_cannot_hold_it(ds):
    """The same checks as without one: nothing is cast or broadcast in silence."""
    with pytest.raises(ValueError, match=r"out\['x'\] must be int32 \(1, 3\), got float32"):
        ds.map(double).read_into([0], {"x": np.empty((1, 3), "f4")})
    with pytest.raises(ValueError, match=r"got int32 \(5, 3\)"):
        ds.map(double).read_into([0], {"x": np.empty((5, 3), "i4")})


@pytest.mark.parametrize("make", [list, np.array], ids=["list", "array"])
def test_indices_of_other_libraries(ds, data, make):
    """A tensor of row numbers is what a torch sampler yields; of one element it is a batch."""
    torch = pytest.importorskip("torch")

    for rows in ([1], [4, 2]):
        np.testing.assert_array_equal(ds[torch.tensor(make(rows))]["x"], data[rows])
    np.testing.assert_array_equal(ds[torch.tensor(3)]["x"], data[3])
    mask = torch.arange(20) > 17
    np.testing.assert_array_equal(ds[mask]["x"], data[18:])


def test_a_sample_is_arrays_even_of_one_number(ds):
    """Frameworks take arrays without axes; NumPy's scalars they refuse."""
    label = ds[3]["y"]

    assert isinstance(label, np.ndarray)
    assert label.shape == ()
    label += 1
    assert ds[3]["y"] == 3


def test_a_name_as_index_points_to_select(ds):
    """The mistake of everyone who comes from data frames."""
    with pytest.raises(TypeError, match=r"select\('x'\) chooses a field"):
        ds["x"]


def test_in_memory_compares_the_checksums_of_stored_members(tmp_path):
    """It reads everything anyway, so damage does not live on in memory."""
    np.savez(tmp_path / "x.npz", x=np.arange(1000))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[3000] ^= 1
    (tmp_path / "x.npz").write_bytes(data)

    with pytest.raises(ndfeed.ChecksumError, match=r"x\.npz: expected checksum"):
        ndfeed.open(tmp_path / "x.npz").in_memory()


def test_repr_is_a_table_that_says_why(tmp_path):
    """The first thing anybody prints."""
    for i in range(3):
        np.savez_compressed(
            tmp_path / f"{i}.npz", image=np.zeros((8, 8, 3), "u1"), label=np.int64(i)
        )
    ds = ndfeed.open(tmp_path)

    assert repr(ds).splitlines() == [
        "ndfeed.Dataset: 3 samples, 600 B, 3 files",
        "  field  dtype  shape      stored",
        "  image  uint8  (8, 8, 3)  deflate",
        "  label  int64  ()         deflate",
        "  a sample is a whole file ('label' is a scalar (0-dimensional), so it has no rows)",
    ]


def test_an_empty_array_is_a_dataset_of_no_samples(tmp_path):
    """Legal, and reading nothing gives nothing."""
    np.save(tmp_path / "x.npy", np.zeros((0, 5), "f4"))
    ds = ndfeed.open(tmp_path / "x.npy")

    assert len(ds) == 0
    assert ds.nbytes == 0
    assert ds[:]["data"].shape == (0, 5)
    assert list(ds) == []


def test_rows_of_nothing(tmp_path):
    """Five samples of no elements are five samples."""
    np.save(tmp_path / "x.npy", np.zeros((5, 0), "f4"))
    ds = ndfeed.open(tmp_path / "x.npy")

    assert ds[[4, 1]]["data"].shape == (2, 0)
    with pytest.raises(IndexError):
        ds[5]


def test_fields_behind_a_map_that_raises(tmp_path):
    """Asked twice, it is no other answer: the stored fields are not those of a batch."""
    np.save(tmp_path / "x.npy", np.zeros(3))
    ds = ndfeed.open(tmp_path / "x.npy").map(lambda batch: {"y": batch["no such field"]})
    for _ in range(2):
        with pytest.raises(KeyError, match="no such field"):
            _ = ds.fields
