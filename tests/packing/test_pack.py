"""What is packed is what was there: every kind of source, field and type, in every order."""

import json
import os
import pickle
import warnings

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch
from faults.seam import tree
from formats.making import Entry, archive, npy, saved
from hard_arrays import each_hard_array
from hypothesis import given
from hypothesis import strategies as st
from packing import making
from packing.making import same, shuffled

import ndfeed


def columns(folder):
    """Every column as NumPy reads it."""
    return {
        path.relative_to(folder).as_posix(): np.load(path, mmap_mode="r")
        for path in sorted(folder.glob("*/*.npy"))
    }


def test_columns_are_plain_npy(tmp_path):
    """Whoever has NumPy can read what was packed."""
    ds = making.npz_of_rows(tmp_path / "source")
    packed = ndfeed.pack(ds, tmp_path / "packed")

    found = columns(tmp_path / "packed")
    assert list(found) == ["00000/image.npy", "00000/label.npy"]
    np.testing.assert_array_equal(found["00000/label.npy"], np.arange(42))
    assert found["00000/image.npy"].shape == (42, 3, 4)
    assert same(packed, ds)
    assert ndfeed.verify(tmp_path / "packed").ok


def test_ragged_fields_are_values_and_offsets(tmp_path):
    """Samples end to end, cut by n + 1 offsets; shapes where more than one length differs."""
    ds = making.npz_of_samples(tmp_path / "source")
    packed = ndfeed.pack(ds, tmp_path / "packed")

    found = columns(tmp_path / "packed")
    assert found["00000/points.values.npy"].shape == (sum(i % 4 for i in range(10)), 3)
    ends = np.cumsum([0, *(i % 6 for i in range(10))])
    np.testing.assert_array_equal(found["00000/text.offsets.npy"], ends)
    assert found["00000/volume.shapes.npy"].tolist()[4] == [2, 2, 4]
    assert found["00000/volume.values.npy"].ndim == 1
    assert same(packed, ds)
    assert ndfeed.verify(tmp_path / "packed").ok


@each_hard_array
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_array_survives(tmp_path, array, save):
    """Any type, order, shape and byte order that readers know, stored or compressed."""
    save(tmp_path / "x.npz", x=array, y=array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Fortran order: how slow rows are
        ds = ndfeed.open(tmp_path / "x.npz", sample="row" if array.ndim else "file")
        packed = ndfeed.pack(ds, tmp_path / "packed")

    assert same(packed, ds)
    assert ndfeed.verify(tmp_path / "packed").ok
    for field in json.loads((tmp_path / "packed/ndfeed.json").read_bytes())["fields"]:
        assert not field["dtype"].startswith(">")


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_lacks(tmp_path, name):
    """They keep their bits and their name."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.arange(24).astype(dtype).reshape(6, 4)
    safetensors.numpy.save_file({"x": values}, tmp_path / "x.safetensors")
    ds = ndfeed.open(tmp_path / "x.safetensors")
    packed = ndfeed.pack(ds, tmp_path / "packed")

    assert packed.fields["x"].dtype == dtype
    np.testing.assert_array_equal(packed[:]["x"], values)
    assert np.load(tmp_path / "packed/00000/x.npy").dtype.kind == "V"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("rows_per_part", [None, 1, 10, 100])
@pytest.mark.parametrize("seed", [None, 7])
def test_parts_and_orders(tmp_path, compressed, rows_per_part, seed):
    """Split or not, shuffled or not, whatever the source: the rows are the same."""
    ds = making.npz_of_rows(tmp_path / "source", compressed=compressed)
    packed = ndfeed.pack(ds, tmp_path / "packed", rows_per_part=rows_per_part, shuffle=seed)

    assert same(packed, ds if seed is None else shuffled(ds, seed))
    assert len(list((tmp_path / "packed").glob("0*"))) == -(-42 // (rows_per_part or 42))
    assert ndfeed.verify(tmp_path / "packed").ok


@pytest.mark.parametrize("compressed", [False, True])
def test_shuffled_order_is_the_loaders_first(tmp_path, compressed):
    """The golden order of an exact shuffle, whatever the source."""
    ds = making.npz_of_rows(tmp_path / "source", files=2, rows=4, compressed=compressed)
    packed = ndfeed.pack(ds, tmp_path / "packed", shuffle=0)
    (batch,) = ndfeed.loader(ds, 8, shuffle=ndfeed.Exact(), seed=0)

    assert packed[:]["label"].tolist() == batch["label"].tolist()


@pytest.mark.parametrize("seed", [None, 3])
def test_ragged_rows_of_packed_datasets_are_packed_again(tmp_path, seed):
    """What was packed is a source like any other."""
    ds = making.npz_of_samples(tmp_path / "source")
    first = ndfeed.pack(ds, tmp_path / "first", rows_per_part=3)
    again = ndfeed.pack(first, tmp_path / "again", shuffle=seed)

    assert same(again, ds if seed is None else shuffled(ds, seed))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("rows_per_part", [None, 9])
def test_maps_make_fields_of_any_kind(tmp_path, seed, rows_per_part):
    """Ragged ones too, whose lengths nobody knows before."""
    ds = making.npz_of_rows(tmp_path / "source").map(making.ragged)
    packed = ndfeed.pack(ds, tmp_path / "packed", shuffle=seed, rows_per_part=rows_per_part)

    assert same(packed, ds if seed is None else shuffled(ds, seed))
    assert packed.fields["counted"].shape == (None,)
    assert ndfeed.verify(tmp_path / "packed").ok


def test_functions_that_cannot_be_sent_run_in_threads(tmp_path):
    """A lambda in a notebook is good enough."""
    ds = making.npz_of_rows(tmp_path / "source").map(lambda b: {"twice": 2 * b["label"]})
    packed = ndfeed.pack(ds, tmp_path / "packed")

    assert packed[:]["twice"].tolist() == (2 * np.arange(42)).tolist()


def test_random_maps_are_fixed_by_their_rows(tmp_path):
    """However the work is cut, sample by sample the same is drawn."""

    def noisy(sample, rng):
        return {"x": sample["label"] + rng.random()}

    ds = making.npz_of_rows(tmp_path / "source").map(noisy, batched=False)
    first = ndfeed.pack(ds, tmp_path / "first")
    again = ndfeed.pack(ds, tmp_path / "again", memory=2000, workers=1)

    assert same(again, first)


def test_chosen_rows_in_any_order_and_twice(tmp_path):
    """Views are packed as they are, out of compressed files too."""
    ds = making.npz_of_rows(tmp_path / "source").take([40, 3, 3, 17, 0, 41, 3])
    packed = ndfeed.pack(ds, tmp_path / "packed")

    assert same(packed, ds)


def test_sources_side_by_side(tmp_path):
    """Fields of different files, one of them compressed in large arrays."""
    ds = making.npz_of_rows(tmp_path / "source")
    np.save(tmp_path / "more.npy", np.arange(84).reshape(42, 2))
    both = ndfeed.open({"a": ds, "b": tmp_path / "more.npy"})

    assert same(ndfeed.pack(both, tmp_path / "packed"), both)
    assert same(ndfeed.pack(both, tmp_path / "mixed", shuffle=2), shuffled(both, 2))


def test_in_memory_datasets(tmp_path):
    """Shared memory is a source too."""
    ds = making.npz_of_samples(tmp_path / "source").in_memory()

    assert same(ndfeed.pack(ds, tmp_path / "packed"), ds)


def test_no_rows(tmp_path):
    """Nothing is packed as nothing, with all fields there."""
    ds = making.npz_of_samples(tmp_path / "source").take([])
    packed = ndfeed.pack(ds, tmp_path / "packed")

    assert len(packed) == 0
    assert list(packed.fields) == list(ds.fields)
    assert ndfeed.verify(tmp_path / "packed").ok


def test_fields_are_chosen(tmp_path):
    """What nobody needs is not written."""
    making.npz_of_samples(tmp_path / "source")
    ds = ndfeed.open(tmp_path / "source", sample="file")
    packed = ndfeed.pack(ds, tmp_path / "packed", fields=["text", "label"])

    assert list(packed.fields) == ["text", "label"]


def test_names_of_source_files_are_kept(tmp_path):
    """So that a sample can be traced back; with a field of that name there is no place for it."""
    ds = making.npz_of_samples(tmp_path / "source", files=12)
    packed = ndfeed.pack(ds, tmp_path / "packed", names=True, shuffle=1)

    for sample in packed:
        assert bytes(sample["file"]).decode() == f"{sample['label']}.npz"
    with pytest.raises(ValueError, match="'file', which is there already"):
        ndfeed.pack(packed, tmp_path / "again", names=True)


def test_same_bytes_whoever_does_the_work(tmp_path):
    """Threads, memory and time leave no trace."""
    ds = making.npz_of_samples(tmp_path / "source")
    for name, workers, memory in (("a", 1, None), ("b", 4, 3000)):
        ndfeed.pack(ds, tmp_path / name, workers=workers, memory=memory, rows_per_part=4)

    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_packing_again_changes_nothing(tmp_path):
    """The same command twice is the same as once: it cannot know that it was done."""
    ds = making.npz_of_rows(tmp_path / "source")
    ndfeed.pack(ds, tmp_path / "packed")
    before = tree(tmp_path)
    again = ndfeed.pack(ds, tmp_path / "packed", memory="1kB")

    assert tree(tmp_path) == before
    assert same(again, ds)


def test_another_dataset_is_not_overwritten(tmp_path):
    """Neither a packed one, nor whatever else is in a folder."""
    ds = making.npz_of_rows(tmp_path / "source")
    ndfeed.pack(ds, tmp_path / "packed")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("…")
    before = tree(tmp_path)

    with pytest.raises(ndfeed.ConflictError, match="already holds another packed dataset"):
        ndfeed.pack(ds, tmp_path / "packed", shuffle=1)
    with pytest.raises(ndfeed.ConflictError, match="not empty"):
        ndfeed.pack(ds, tmp_path / "full")
    with pytest.raises(ndfeed.MissingError, match="no such folder"):
        ndfeed.pack(ds, tmp_path / "no/packed")
    assert tree(tmp_path) == before


def test_an_empty_folder_is_a_good_target(tmp_path):
    """Whoever made the folder first meant no harm."""
    (tmp_path / "packed").mkdir()
    ds = making.npz_of_rows(tmp_path / "source")

    assert same(ndfeed.pack(ds, tmp_path / "packed"), ds)


def test_sources_of_many_parts_are_cut_between_them(tmp_path):
    """Pieces, and batches of them, that are smaller than an array: all rows are there once."""
    rng = np.random.default_rng(0)
    (tmp_path / "source").mkdir()
    for i in range(5):
        x = rng.integers(0, 9, (500 + i, 700), np.uint8)
        np.savez_compressed(tmp_path / f"source/{i}.npz", x=x, y=np.arange(500 + i))
    ds = ndfeed.open(tmp_path / "source", sample="row")

    assert same(ndfeed.pack(ds, tmp_path / "packed", memory="100kB"), ds)
    assert same(ndfeed.pack(ds, tmp_path / "mixed", memory="100kB", shuffle=1), shuffled(ds, 1))


@pytest.mark.parametrize("sample", ["row", "file"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_samples_larger_than_memory(tmp_path, sample, save):
    """They are copied by and by, cast and swapped on the way."""
    (tmp_path / "source").mkdir()
    for i in range(3):
        x = np.arange(40_000, dtype=">f8").reshape(2, -1) + i
        save(tmp_path / f"source/{i}.npz", x=x, y=np.arange(2))
    ds = ndfeed.open(tmp_path / "source", sample=sample)
    packed = ndfeed.pack(ds, tmp_path / "packed", memory=60_000, dtype={"x": "f4"}, names=True)

    expected = ds.map(lambda b: {"x": np.asarray(b["x"]).astype("f4"), "y": b["y"]})
    assert same(packed.select("x", "y"), expected)
    assert ndfeed.verify(tmp_path / "packed").ok


def test_readers_go_on_while_rows_are_added(tmp_path):
    """Who has it open sees what it was; who opens it sees all."""
    ds = making.npz_of_samples(tmp_path / "source")
    before = ndfeed.pack(ds.take(slice(0, 4)), tmp_path / "packed")
    after = ndfeed.pack(ds.take(slice(4, 10)), tmp_path / "packed", append=True, rows_per_part=4)

    assert same(before, ds.take(slice(0, 4)))
    assert same(after, ds)
    assert same(ndfeed.open(tmp_path / "packed"), ds)
    assert ndfeed.verify(tmp_path / "packed").ok


def test_samples_of_one_shape_are_added_to_ragged_ones(tmp_path):
    """That all new ones are alike does not make the field another one."""
    ds = making.npz_of_samples(tmp_path / "source")
    ndfeed.pack(ds, tmp_path / "packed")
    after = ndfeed.pack(ds.take([3, 3]), tmp_path / "packed", append=True)

    assert same(after.take([10, 11]), ds.take([3, 3]))


def test_what_does_not_fit_is_not_added(tmp_path):
    """Other fields, types or shapes; or nothing to add to."""
    ds = making.npz_of_rows(tmp_path / "source")
    ndfeed.pack(ds, tmp_path / "packed")
    before = tree(tmp_path)
    add = {"append": True}

    with pytest.raises(ndfeed.SchemaError, match=r"expected fields \['image', 'label'\]"):
        ndfeed.pack(ds.select("label"), tmp_path / "packed", **add)
    with pytest.raises(ndfeed.SchemaError, match=r"expected <i8 .*, found <i2"):
        ndfeed.pack(ds, tmp_path / "packed", dtype={"label": "i2"}, **add)
    other = ds.map(lambda b: {"image": b["image"][:, 0], "label": b["label"]})
    with pytest.raises(ndfeed.SchemaError, match=r"expected .* \(3, 4\), found \|u1 \(4,\)"):
        ndfeed.pack(other, tmp_path / "packed", **add)
    with pytest.raises(ndfeed.MissingError, match="no packed dataset to append to"):
        ndfeed.pack(ds, tmp_path / "other", **add)
    assert tree(tmp_path) == before


def test_wrong_arguments(tmp_path):
    """They are refused before anything is written."""
    ds = making.npz_of_rows(tmp_path / "source")
    before = tree(tmp_path)
    to = tmp_path / "packed"

    with pytest.raises(TypeError, match="dtype must be a dict"):
        ndfeed.pack(ds, to, dtype="f4")
    with pytest.raises(ndfeed.FieldError, match="no field 'nope'"):
        ndfeed.pack(ds, to, dtype={"nope": "f4"})
    with pytest.raises(ndfeed.FieldError, match="no field 'nope'"):
        ndfeed.pack(ds, to, fields=["nope"])
    with pytest.raises(TypeError, match="shuffle must be a whole number"):
        ndfeed.pack(ds, to, shuffle=True)
    with pytest.raises(ValueError, match="rows_per_part must be in"):
        ndfeed.pack(ds, to, rows_per_part=0)
    with pytest.raises(ValueError, match="workers must be in"):
        ndfeed.pack(ds, to, workers=0)
    with pytest.raises(ValueError, match="memory must be bytes"):
        ndfeed.pack(ds, to, memory="much")
    assert tree(tmp_path) == before


def test_ranks_that_differ_are_refused(tmp_path):
    """No column holds them; the message has the way out."""
    (tmp_path / "source").mkdir()
    for i in range(2):
        np.savez(tmp_path / f"source/{i}.npz", x=np.zeros((2,) * (i + 1)), y=0)
    ds = ndfeed.open(tmp_path / "source", sample="file")

    with pytest.raises(ndfeed.SchemaError, match="number of dimensions"):
        ndfeed.pack(ds, tmp_path / "packed")


def _grows(batch):
    wide = 3 if (batch["label"] == 20).any() else 2
    return {"x": np.zeros((len(batch["label"]), wide))}


def test_maps_that_change_their_mind_are_refused(tmp_path):
    """The first rows say what a field is; a later one that differs is named."""
    ds = making.npz_of_rows(tmp_path / "source").map(_grows)

    with pytest.raises(ndfeed.SchemaError, match=r"field 'x', row .*expected shape \(2,\)"):
        ndfeed.pack(ds, tmp_path / "packed", memory=2000, workers=1)
    assert os.listdir(tmp_path) == ["source"]


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    seed=st.none() | st.integers(0, 99),
    rows_per_part=st.none() | st.integers(1, 40),
    memory=st.sampled_from([500, 5000, "1GB"]),
)
def test_any_lengths_in_any_order(tmp_path_factory, lengths, seed, rows_per_part, memory):
    """Whatever is ragged, however it is cut."""
    folder = tmp_path_factory.mktemp("any")
    (folder / "source").mkdir()
    for i, n in enumerate(lengths):
        np.save(folder / f"source/{i}.npy", np.arange(n) + 100 * i)
    ds = ndfeed.open(folder / "source", sample="file")
    packed = ndfeed.pack(
        ds, folder / "packed", shuffle=seed, rows_per_part=rows_per_part, memory=memory
    )
    expected = ds if seed is None else shuffled(ds, seed)

    assert [x["data"].tolist() for x in packed] == [x["data"].tolist() for x in expected]


@pytest.mark.parametrize(
    "other",
    [
        lambda i: {"s": np.array(["a" * (i + 1)])},
        lambda i: {"s": np.zeros(2, "f4" if i else "f8")},
        lambda i: {f"s{i}": np.zeros(2)},
        lambda i: {"s": np.zeros((2,) * (i + 1))},
    ],
    ids=["width of text", "dtype", "name", "rank"],
)
def test_fields_that_are_left_out_do_not_matter(tmp_path, other):
    """Whatever is wrong with them: who leaves them out has no use for them."""
    (tmp_path / "in").mkdir()
    for i in range(3):
        np.savez(tmp_path / "in" / f"{i}.npz", x=np.full((2, 3), i), y=np.int64(i), **other(i))
    packed = ndfeed.pack(tmp_path / "in", tmp_path / "out", fields=["x", "y"])

    assert packed[:]["x"][:, 0, 0].tolist() == packed[:]["y"].tolist() == [0, 1, 2]


def test_a_field_that_is_left_out_may_tell_what_a_sample_is(tmp_path):
    """Without it both readings are possible; with it there is one."""
    (tmp_path / "in").mkdir()
    for i in range(3):
        np.savez(tmp_path / "in" / f"{i}.npz", x=np.full((2, 3), i), y=np.int64(i))

    assert ndfeed.pack(tmp_path / "in", tmp_path / "out", fields="x").fields["x"].shape == (2, 3)
    for i in range(3):
        np.savez(tmp_path / "in" / f"{i}.npz", x=np.full((2, 3), i), y=np.zeros(2))
    with pytest.raises(ndfeed.AmbiguousError, match="could be read in two ways"):
        ndfeed.pack(tmp_path / "in", tmp_path / "again", fields="x")


class Stranger:
    """What no reader of arrays knows."""


KINDS = ["npz", "compressed", "unknown dtype", "pt", "pt list", "safetensors"]


def save_with_unreadable_field(path, kind, x):
    """Save ``x`` beside a field ``odd`` that cannot be read."""
    if kind == "safetensors":
        entries = {
            "odd": {"dtype": "F3_E1M1", "shape": [7], "data_offsets": [0, 3]},
            "x": {"dtype": "I64", "shape": list(x.shape), "data_offsets": [3, 3 + x.nbytes]},
        }
        text = json.dumps(entries).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"odd" + x.tobytes())
    elif kind == "pt":
        torch.save({"x": torch.from_numpy(x), "odd": Stranger()}, path)
    elif kind == "pt list":
        torch.save([{"x": torch.from_numpy(row), "odd": {Stranger()}} for row in x], path)
    elif kind == "unknown dtype":  # a long double of another platform, for example
        members = Entry("odd.npy", npy("<f3", (4,), bytes(12))), Entry("x.npy", saved(x))
        path.write_bytes(archive(*members))
    else:
        write = np.savez if kind == "npz" else np.savez_compressed
        with path.open("wb") as file:
            write(file, x=x, odd=np.array([{"a": 1}] * 4, object))


@pytest.mark.parametrize("save", KINDS)
@pytest.mark.parametrize("way", ["open", "again", "skip", "dict", "pack"])
def test_values_that_cannot_be_read_do_not_matter_where_they_are_left_out(tmp_path, save, way):
    """Python objects or unknown dtypes, in every file: with ``fields=`` nobody asked for them."""
    folder = tmp_path / "in"
    folder.mkdir()
    suffix = {"safetensors": "safetensors", "pt": "pt", "pt list": "pt"}.get(save, "npz")
    for i in range(3):
        save_with_unreadable_field(folder / f"{i}.{suffix}", save, np.full((4, 2), i))
    found = r"holds (Python objects|an object of class)"
    if save in ("unknown dtype", "safetensors"):
        found = r"'odd(\.npy)?' .*unknown dtype '(<f3|F3_E1M1)'.* fields="
    with pytest.raises(ndfeed.BadFilesError, match=found):
        ndfeed.open(folder, sample="row")
    with pytest.raises(ndfeed.BadFilesError, match="3 of 3 files cannot be used"):
        ndfeed.open(folder, sample="row", fields=("x", "odd"))
    if way == "dict":
        found = ndfeed.open({"a": folder}, sample="row", fields="a/x").rename({"a/x": "x"})
    else:
        found = ndfeed.open(folder, sample="row", fields="x", on_error="raise")
    if way == "again":  # the index that was kept has the field and lacks the other
        found = ndfeed.open(folder, sample="row", fields=["x"])
        with pytest.raises(ndfeed.BadFilesError):
            ndfeed.open(folder, sample="row")
    elif way == "skip":
        found = ndfeed.open(folder, sample="row", fields=["x"], on_error="skip")
        assert found.skipped == []
    elif way == "pack":
        found = ndfeed.pack(found, tmp_path / "out", fields="x")
    found = pickle.loads(pickle.dumps(found))

    assert list(found.fields) == ["x"]
    assert found[:]["x"][:, 0].tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_pack_opens_the_fields_that_it_keeps(tmp_path):
    """Without a dataset that was opened with ``fields=`` before."""
    np.savez(tmp_path / "a.npz", x=np.arange(4), odd=np.array([None] * 4, object))
    packed = ndfeed.pack(tmp_path / "a.npz", tmp_path / "out", fields=["x"])

    assert packed[:]["x"].tolist() == [0, 1, 2, 3]
