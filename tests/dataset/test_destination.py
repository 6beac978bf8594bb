"""Files that differ in type, brought together as they are read."""

import pickle

import numpy as np
import pytest

import ndfeed
from ndfeed.errors import CastError, FieldError, SchemaError


def folder_of(folder, dtypes, rows=4, compressed=False):
    """Files of the rows 0, 1, 2, … through all of them, each file in a type of its own."""
    save = np.savez_compressed if compressed else np.savez
    for i, dtype in enumerate(dtypes):
        first = np.arange(i * rows, (i + 1) * rows)
        save(folder / f"{i:03}.npz", x=np.repeat(first, 3).reshape(-1, 3).astype(dtype), y=first)
    return folder


TYPES = ["<f4", "<f8", ">f4", "<i2", "<f4"]


def test_the_odd_file_is_named_with_how_many_agree(tmp_path):
    """Among thousands nobody finds it by looking."""
    folder_of(tmp_path, ["<f4"] * 7 + ["<f8"] + ["<f4"] * 12)

    with pytest.raises(
        SchemaError, match=r"007\.npz: .*float64, in 19 of 20 .*dtype=\{'x': 'float32'\}"
    ):
        ndfeed.open(tmp_path, sample="row")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("mapped", [False, True])
def test_rows_of_files_of_several_types_come_as_one(tmp_path, mapped, compressed):
    """Whichever way they are read, in any order, more than once."""
    folder_of(tmp_path, TYPES, compressed=compressed)
    ds = ndfeed.open(tmp_path, sample="row", dtype={"x": "float32"}, mapped=mapped)
    rows = [19, 0, 7, 7, 12, 5, 13]
    batch = ds[rows]

    assert ds.fields["x"].dtype == "float32"
    assert batch["x"].dtype == "float32"
    assert batch["x"].tolist() == [[row] * 3 for row in rows]
    assert batch["y"].tolist() == rows
    assert ds.nbytes == 20 * (3 * 4 + 8)


@pytest.mark.parametrize("compressed", [False, True])
def test_whole_files_of_several_types_come_as_one(tmp_path, compressed):
    """A sample of each type in one batch."""
    folder_of(tmp_path, TYPES, compressed=compressed)
    batch = ndfeed.open(tmp_path, sample="file", dtype={"x": "float64"})[[4, 2, 3, 2]]

    assert batch["x"].dtype == "float64"
    assert batch["x"][:, 0, 0].tolist() == [16, 8, 12, 8]
    assert batch["y"][:, 0].tolist() == [16, 8, 12, 8]


def test_ragged_samples_are_converted_too(tmp_path):
    """Each in an array of its own."""
    for i, dtype in enumerate(["<f4", "<f8", ">i4"]):
        np.save(tmp_path / f"{i}.npy", np.full((i + 1, 2), i, dtype))
    ds = ndfeed.open(tmp_path, sample="file", dtype={"data": "float32"})

    assert [value.tolist() for value in ds[[2, 0]]["data"]] == [[[2, 2]] * 3, [[0, 0]]]
    assert {value.dtype.str for value in ds[:]["data"]} == {np.dtype("f4").str}


def test_conversions_hold_wherever_a_dataset_goes(tmp_path):
    """Into given arrays, another process, a loader, memory, a pack, or behind another dataset."""
    ds = ndfeed.open(folder_of(tmp_path, TYPES), sample="row", dtype={"x": "<f4"})
    out = {"x": np.empty((2, 3), "f4"), "y": np.empty(2, "i8")}
    ds.read_into([5, 18], out)
    again = pickle.loads(pickle.dumps(ds))
    ndfeed.pack(ds, tmp_path / "packed")

    assert out["x"].tolist() == [[5] * 3, [18] * 3]
    assert again.fingerprint == ds.fingerprint
    for other in (ds, again, ds.in_memory(), ds + again, ndfeed.open(tmp_path / "packed")):
        batches = list(ndfeed.loader(other, batch_size=6, shuffle=True))
        assert {b["x"].dtype.str for b in batches} == {np.dtype("f4").str}
        assert all((b["x"] == b["y"][:, None]).all() for b in batches)
        assert sorted(set(np.concatenate([b["y"] for b in batches]).tolist())) == list(range(20))


def test_one_type_for_all_files_can_be_asked_for(tmp_path):
    """Half the memory, without writing anything again."""
    np.save(tmp_path / "x.npy", np.arange(30.0).reshape(10, 3))
    ds = ndfeed.open({"x": tmp_path / "x.npy", "y": tmp_path / "x.npy"}, dtype={"x": np.float16})

    assert ds[[4, 9]]["x"].dtype == "float16"
    assert ds[[4, 9]]["x"].tolist() == ds[[4, 9]]["y"].tolist() == [[12, 13, 14], [27, 28, 29]]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([1, 300, 2], "uint8"), ([1.0, 1e300, 2.0], "float32"), ([0, -1, 2], "uint64")],
)
def test_a_value_that_does_not_fit_is_named_and_not_wrapped_around(tmp_path, values, dtype):
    """The rows before it can be read."""
    np.save(tmp_path / "x.npy", np.array(values))
    ds = ndfeed.open(tmp_path / "x.npy", dtype={"data": dtype})

    assert ds[[2, 0]]["data"].tolist() == [2, values[0]]
    with pytest.raises(CastError, match=rf"x\.npy: field 'data' has .* in row 1, which {dtype}"):
        ds[:]


@pytest.mark.parametrize(
    ("dtype", "error", "problem"),
    [
        ({"z": "f4"}, FieldError, "no field 'z'; the fields are 'x', 'y'"),
        ({"x": "f5"}, ValueError, "dtype of 'x': data type 'f5' not understood"),
        ({"x": "U3"}, ValueError, "dtype of 'x': <f4 cannot become text"),
        ({"x": [("a", "f4")]}, ValueError, "dtype of 'x': dtype must be a plain element type"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_when_opened(tmp_path, dtype, error, problem):
    """In one line that names the field."""
    folder_of(tmp_path, ["<f4"])

    with pytest.raises(error, match=problem):
        ndfeed.open(tmp_path, dtype=dtype)


def test_text_of_any_width_is_one_field(tmp_path):
    """One file with a longer name made a folder of thousands unreadable."""
    names = ["cat", "a much longer name", "dog", "ünïcode"]
    for i, name in enumerate(names):
        np.savez(tmp_path / f"{i}.npz", x=np.zeros(3), name=np.array(name), code=name.encode()[:3])
    ds = ndfeed.open(tmp_path)

    assert ds.fields["name"].dtype == "<U18"
    assert ds[[3, 1, 0]]["name"].tolist() == [names[3], names[1], names[0]]
    assert ds[1]["name"] == names[1]
    assert ds[:]["code"].tolist() == [name.encode()[:3] for name in names]


def test_rows_of_text_of_any_width_are_one_field(tmp_path):
    """Also of the other byte order, and through a loader."""
    np.save(tmp_path / "0.npy", np.array(["a", "bc"]))
    np.save(tmp_path / "1.npy", np.array(["defgh"], ">U5"))
    ds = ndfeed.open(tmp_path, sample="row")

    assert ds[[2, 0, 1]]["data"].tolist() == ["defgh", "a", "bc"]
    assert next(iter(ndfeed.loader(ds, 3)))["data"].tolist() == ["a", "bc", "defgh"]


def test_text_and_numbers_are_still_no_field(tmp_path):
    """Nor are text and bytes."""
    np.save(tmp_path / "0.npy", np.array(["a"]))
    np.save(tmp_path / "1.npy", np.array([b"a"]))

    with pytest.raises(SchemaError, match=r"1\.npy: field 'data' is \|S1, in .* it is <U1"):
        ndfeed.open(tmp_path, sample="row")


def test_files_that_are_fields_are_shown_as_a_dict(tmp_path):
    """X_train.npy and y_train.npy are no files of one kind."""
    for name, array in {"X_train": np.zeros((8, 2)), "y_train": np.zeros(8, int)}.items():
        np.save(tmp_path / f"{name}.npy", array)

    with pytest.raises(SchemaError) as told:
        ndfeed.open(tmp_path)
    call = str(told.value).rpartition("write ")[2]
    ds = eval(call, {"ndfeed": ndfeed})
    assert {name: field.shape for name, field in ds.fields.items()} == {"x": (2,), "y": ()}


def test_numbered_files_are_not_taken_for_fields(tmp_path):
    """They are of one kind, and one of them is odd."""
    for i, dtype in enumerate(["f4", "f4", "f8"]):
        np.save(tmp_path / f"part_{i}.npy", np.zeros((8, 2), dtype))

    with pytest.raises(SchemaError, match=r"2 of 3 files it is float32; to read.*'float32'\}$"):
        ndfeed.open(tmp_path)


def test_the_file_of_another_shape_is_named_with_how_many_agree(tmp_path):
    """It makes the field ragged, and is rarely meant."""
    for i in range(30):
        np.save(tmp_path / f"{i:02}.npy", np.zeros((3, 7 if i == 17 else 8)))
    ds = ndfeed.open(tmp_path, sample="file")

    assert ds.fields["data"].shape == (3, None)
    assert f"data is (3, 8) in 29 of 30 files; {tmp_path}/17.npy has (3, 7)" in repr(ds)


def test_fields_that_are_ragged_by_nature_have_no_odd_file(tmp_path):
    """Sentences of many lengths."""
    for i in range(30):
        np.save(tmp_path / f"{i:02}.npy", np.zeros((i % 5, 3)))

    assert "of 30 files" not in repr(ndfeed.open(tmp_path, sample="file"))


@pytest.mark.parametrize("mapped", [True, False])
def test_datasets_with_text_of_any_width_are_added(tmp_path, mapped):
    """As in a folder of such files: the widest holds all of them."""
    narrow, wide = np.array(["ab", "c"]), np.array(["abcdef", "g", "hi"])
    np.savez(tmp_path / "a.npz", name=narrow, n=np.arange(2))
    np.savez(tmp_path / "b.npz", name=wide, n=np.arange(2, 5))
    a, b = (ndfeed.open(tmp_path / f"{n}.npz", mapped=mapped) for n in "ab")

    for both, order in ((a + b, "abcde"), (b + a, "cdeab"), (a.take([0]) + b + a, None)):
        assert both.fields["name"].dtype == np.dtype("<U6")
        names = both[:]["name"].tolist()
        if order:
            expected = dict(zip("abcde", [*narrow.tolist(), *wide.tolist()], strict=True))
            assert names == [expected[letter] for letter in order]
        batches = list(ndfeed.loader(both, batch_size=2))
        assert [name for batch in batches for name in batch["name"].tolist()] == names
        assert pickle.loads(pickle.dumps(both))[:]["name"].tolist() == names
        assert both.in_memory()[:]["name"].tolist() == names
        assert ndfeed.pack(both, tmp_path / f"out{order}")[:]["name"].tolist() == names


def test_mapped_datasets_with_text_of_any_width_are_added(tmp_path):
    """Each has functions of its own, and what these return differs in width."""
    np.savez(tmp_path / "a.npz", name=np.array(["ab", "c"]))
    np.savez(tmp_path / "b.npz", name=np.array(["abcdef", "g"]))
    a, b = (ndfeed.open(tmp_path / f"{n}.npz") for n in "ab")
    both = a.map(lambda batch: batch) + b.map(lambda batch: {"name": np.char.upper(batch["name"])})

    assert both[:]["name"].tolist() == ["ab", "c", "ABCDEF", "G"]
    assert both[[3, 0]]["name"].tolist() == ["G", "ab"]
    assert both.fields["name"].dtype == np.dtype("<U6")


def test_text_and_bytes_are_not_added(tmp_path):
    """There is no telling how bytes are to be read as text."""
    np.save(tmp_path / "a.npy", np.array(["ab", "c"]))
    np.save(tmp_path / "b.npy", np.array([b"ab", b"c"]))

    with pytest.raises(
        SchemaError, match=r"b\.npy: field 'data': expected <U2 .* found \|S2; open"
    ):
        ndfeed.open(tmp_path / "a.npy") + ndfeed.open(tmp_path / "b.npy")


def packed_in(folder, **fields):
    np.savez(folder / "in.npz", **fields)
    return ndfeed.pack(folder / "in.npz", folder / "packed", rows_per_part=3)


@pytest.mark.parametrize("options", [{}, {"mapped": False}, {"verify": True}])
def test_fields_of_packed_datasets_are_converted(tmp_path, options):
    """As those of any other file."""
    x = np.arange(20.0).reshape(10, 2)
    packed_in(tmp_path, x=x, y=np.arange(10))
    ds = ndfeed.open(tmp_path / "packed", dtype={"x": "float32"}, **options)

    assert ds.fields["x"].dtype == np.float32
    assert ds.fields["y"].dtype == np.int64
    for view in (ds, pickle.loads(pickle.dumps(ds)), ds.in_memory()):
        found = view[[7, 2, 2]]
        assert found["x"].dtype == np.float32
        assert found["x"].tolist() == x[[7, 2, 2]].tolist()
        assert found["y"].tolist() == [7, 2, 2]
    beside = ndfeed.open({"p": tmp_path / "packed"}, dtype={"p/x": "float32"}, **options)
    assert beside[:]["p/x"].dtype == np.float32
    small = ndfeed.open(tmp_path / "packed", fields="y", dtype={"y": "u1"})[:]["y"]
    assert (small.dtype, small.tolist()) == (np.uint8, list(range(10)))
    (tmp_path / "wide").mkdir()
    packed_in(tmp_path / "wide", z=np.arange(256))
    wide = ndfeed.open(tmp_path / "wide" / "packed", dtype={"z": "i1"}, **options)
    with pytest.raises(CastError, match="128"):
        wide[:]


@pytest.mark.parametrize("ragged", ["list", "pad", "packed"])
@pytest.mark.parametrize("verify", [True, False])
def test_ragged_fields_of_packed_datasets_are_converted(tmp_path, ragged, verify):
    """Also where they are read straight into the form of a batch."""
    (tmp_path / "in").mkdir()
    for i in range(7):
        np.save(tmp_path / "in" / f"{i}.npy", np.full((i + 1, 2), i + 0.5))
    ndfeed.pack(ndfeed.open(tmp_path / "in", sample="file"), tmp_path / "packed", rows_per_part=3)
    plain = ndfeed.open(tmp_path / "packed")
    ds = ndfeed.open(tmp_path / "packed", dtype={"data": "float32"}, verify=verify)
    found, expected = (
        list(ndfeed.loader(d, batch_size=3, ragged=ragged, shuffle=True)) for d in (ds, plain)
    )

    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            for a, b in zip(one[name], other[name], strict=True):
                assert np.array_equal(a, b)
        assert one["data"][0].dtype == np.float32


def test_checksums_of_converted_fields_are_compared(tmp_path):
    """A conversion must not hide damage from who asks for it."""
    packed_in(tmp_path, x=np.arange(20.0).reshape(10, 2))
    column = next(path for path in (tmp_path / "packed").rglob("*.npy"))
    data = bytearray(column.read_bytes())
    data[-1] ^= 1
    column.write_bytes(data)
    ds = ndfeed.open(tmp_path / "packed", dtype={"x": "float32"}, verify=True)

    with pytest.raises(ndfeed.ChecksumError, match="does not match its checksum"):
        ds[:]


def test_one_type_for_all_of_a_packed_dataset_is_answered_with_a_dict(tmp_path):
    """What a user writes first."""
    packed_in(tmp_path, x=np.arange(4.0))

    with pytest.raises(SchemaError, match=r"or convert fields with dtype=\{'x': 'float32'\}"):
        ndfeed.open(tmp_path / "packed", dtype="float32")
    with pytest.raises(FieldError, match="no field 'q'"):
        ndfeed.open(tmp_path / "packed", dtype={"q": "float32"})
