"""One long array and offsets beside it: read in place, exact, and refused where they are wrong."""

import gzip
import itertools
import os
import pickle

import numpy as np
import pytest
from children import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ragged_making import offsets_of, pieces, texts

import ndfeed

VALUES, OFFSETS = texts()
EXPECTED = pieces(VALUES, OFFSETS)
DTYPES = ["<i2", ">i2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8"]


def same(found, expected):
    """Are these samples the same, in values, shapes and types?"""
    assert len(found) == len(expected)
    for one, wanted in zip(found, expected, strict=True):
        assert one.dtype == wanted.dtype.newbyteorder("=")
        assert one.shape == wanted.shape
        assert one.tobytes() == wanted.astype(one.dtype).tobytes()


def same_in_any_order(ds, expected, name="data"):
    """In order, shuffled, one by one, and through a pickle."""
    rows = np.random.default_rng(1).permutation(len(expected))
    same(ds.read(np.arange(len(ds)))[name], expected)
    same(ds.read(rows)[name], [expected[row] for row in rows])
    same([ds[len(ds) - 1][name]], expected[-1:])
    again = pickle.loads(pickle.dumps(ds))
    assert again.fingerprint == ds.fingerprint
    same(again.read(rows)[name], [expected[row] for row in rows])


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Values and offsets in files of the current folder."""
    monkeypatch.chdir(tmp_path)
    np.save("tokens.npy", VALUES)
    np.save("offsets.npy", OFFSETS)
    VALUES.tofile("tokens.bin")
    return tmp_path


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_offsets_may_have_any_integer_dtype(saved, dtype, mapped):
    """In either byte order; none is copied, whatever its width."""
    np.save("offsets.npy", OFFSETS.astype(dtype))
    ds = ndfeed.open("tokens.npy", offsets="offsets.npy", mapped=mapped)

    assert ds.fields["data"].shape == (None,)
    assert ds.groups[0].table.owner is None  # no memory besides the files
    same_in_any_order(ds, EXPECTED)


def test_raw_values_take_a_dtype(saved):
    """As without offsets; the shape is that of one row."""
    same_in_any_order(ndfeed.open("tokens.bin", dtype="uint16", offsets="offsets.npy"), EXPECTED)
    cloud, ends = np.arange(60, dtype="<f4").reshape(20, 3), np.array([0, 4, 4, 20])
    cloud.tofile("cloud.bin")
    ds = ndfeed.open("cloud.bin", dtype="<f4", shape=(3,), offsets=ends)

    assert ds.fields["data"].shape == (None, 3)
    same_in_any_order(ds, pieces(cloud, ends))


def test_offsets_may_be_in_memory_or_in_a_dataset(saved):
    """An array, a list of numbers, a raw file that is described, a member of an archive."""
    OFFSETS.astype("<u4").tofile("offsets.raw")
    np.savez("both.npz", text=VALUES, ends=OFFSETS)
    ends = ndfeed.open("both.npz", fields="ends")
    for given_offsets in (
        OFFSETS,
        OFFSETS.tolist(),
        OFFSETS.astype(">u8"),
        ndfeed.open("offsets.raw", dtype="uint32"),
        ends,
    ):
        same_in_any_order(ndfeed.open("tokens.npy", offsets=given_offsets), EXPECTED)
    same_in_any_order(ndfeed.open("both.npz", fields="text", offsets=ends), EXPECTED, "text")


def test_compressed_files_are_decoded_once(saved):
    """Values and offsets, in any combination; the files are still those of the dataset."""
    with gzip.open("tokens.npy.gz", "wb") as file:
        np.save(file, VALUES)
    np.savez_compressed("tokens.npz", VALUES)
    with gzip.open("offsets.npy.gz", "wb") as file:
        np.save(file, OFFSETS)
    for source, name in (
        ("tokens.npy.gz", "data"),
        ("tokens.npz", "arr_0"),
        ("tokens.npy", "data"),
    ):
        for offsets in ("offsets.npy", "offsets.npy.gz", OFFSETS):
            ds = ndfeed.open(source, offsets=offsets)
            same_in_any_order(ds, EXPECTED, name)
            assert ds.files[0].endswith(source)
            assert not any(path.startswith("/proc") for path in ds.files)


def test_fingerprints_do_not_depend_on_where_memory_is(saved):
    """A run resumes what an earlier one left, also where offsets were decoded."""
    with gzip.open("tokens.npy.gz", "wb") as file:
        np.save(file, VALUES)

    def together(offsets):
        ds = ndfeed.open("tokens.npy.gz", offsets=offsets)
        return ds.fingerprint, ndfeed.open({"text": ds}).fingerprint

    first = together(OFFSETS)
    assert together(OFFSETS.copy()) == first
    other = OFFSETS.copy()
    other[3] = other[2]
    assert together(other)[0] != first[0]


def test_several_fields_share_offsets(saved):
    """Tokens and their types, in one archive or in two files."""
    kinds = np.arange(len(VALUES), dtype=">f4")
    np.savez("both.npz", tokens=VALUES, kinds=kinds)
    np.save("kinds.npy", kinds)
    for source in ("both.npz", {"tokens": "tokens.npy", "kinds": "kinds.npy"}):
        ds = ndfeed.open(source, offsets="offsets.npy")
        same_in_any_order(ds, EXPECTED, "tokens")
        same_in_any_order(ds, pieces(kinds, OFFSETS), "kinds")


def test_a_ragged_dataset_is_a_source_like_any_other(saved):
    """Text of one file, with labels of another."""
    np.save("labels.npy", np.arange(len(EXPECTED)))
    for source in ("tokens.npy", "tokens.bin"):
        options = {"dtype": "uint16"} if source.endswith("bin") else {}
        text = ndfeed.open(source, offsets="offsets.npy", **options)
        ds = ndfeed.open({"text": text, "label": "labels.npy"})
        same_in_any_order(ds, EXPECTED, "text")
        assert ds[7]["label"] == 7


def test_shards_have_offsets_of_their_own(saved):
    """As many files of offsets as of values, each counted from 0; byte orders may differ."""
    expected = []
    for i, (count, order) in enumerate([(5, "<"), (0, ">"), (30, ">"), (1, "<")]):
        values, ends = texts(count, seed=i, dtype=f"{order}u2")
        np.save(f"tokens{i}.npy", values)
        np.save(f"offsets{i}.npy", ends.astype(["<u4", ">u4"][i % 2]))
        expected += pieces(values, ends)
    ds = ndfeed.open("tokens?.npy", offsets="offsets?.npy")
    same_in_any_order(ds, expected)
    (batch,) = ndfeed.loader(ds, len(ds), ragged="pad", pad_value=7)
    for row, length, wanted in zip(batch["data"], batch["data_length"], expected, strict=True):
        assert row[:length].tolist() == wanted.tolist()
        assert (row[length:] == 7).all()

    arrays = [np.load(f"offsets{i}.npy") for i in range(4)]
    same_in_any_order(ndfeed.open("tokens?.npy", offsets=arrays), expected)
    lists = [array.tolist() for array in arrays]
    same_in_any_order(ndfeed.open("tokens?.npy", offsets=lists), expected)
    np.save("offsets2.npy", arrays[2].astype("<i8"))
    ends = ndfeed.open("offsets?.npy", sample="row", dtype={"data": "int64"})
    same_in_any_order(ndfeed.open("tokens?.npy", offsets=ends), expected)
    with pytest.raises(ndfeed.SchemaError, match="4 files of values, but 1 of offsets"):
        ndfeed.open("tokens?.npy", offsets="offsets0.npy")


def test_compressed_shards(saved):
    """Each is cut out of the memory that all were decoded into."""
    expected = []
    for i, count in enumerate([5, 1, 30]):
        values, ends = texts(count, seed=i)
        np.savez_compressed(f"tokens{i}.npz", t=values)
        np.savez_compressed(f"offsets{i}.npz", o=ends)
        expected += pieces(values, ends)
    ds = ndfeed.open("tokens?.npz", offsets="offsets?.npz")
    same_in_any_order(ds, expected, "t")


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shards=st.lists(st.lists(st.integers(0, 60), max_size=12), min_size=1, max_size=4),
    values=st.sampled_from(["u1", "<u2", ">u2", "<f4", ">f8", "<c8", "S3", "?"]),
    numbers=st.sampled_from(DTYPES),
    row=st.sampled_from([(), (3,), (2, 2)]),
    form=st.sampled_from(["npy", "fortran", "stored", "deflated"]),
    mapped=st.booleans(),
    data=st.data(),
)
@pytest.mark.filterwarnings("ignore:.*Fortran order")
def test_samples_are_what_numpy_slices(tmp_path, shards, values, numbers, row, form, mapped, data):
    """Dtypes, byte orders, empty samples, rows of any shape, codings, shards, views."""
    for name in os.listdir(tmp_path):
        os.remove(tmp_path / name)
    expected, rng = [], np.random.default_rng(len(shards))
    for i, lengths in enumerate(shards):
        ends = offsets_of(lengths)
        array = rng.integers(0, 2, (ends[-1], *row)).astype(values)
        if form == "fortran":
            array = np.asfortranarray(array)
        if form in ("npy", "fortran"):
            np.save(tmp_path / f"v{i}.npy", array)
        else:
            save = np.savez if form == "stored" else np.savez_compressed
            save(tmp_path / f"v{i}.npz", data=array)
        np.save(tmp_path / f"o{i}.npy", ends.astype(numbers))
        expected += pieces(array, ends)
    ds = ndfeed.open(tmp_path / "v*", offsets=tmp_path / "o*", mapped=mapped, cache=False)
    assert ds.lengths("data").tolist() == [len(one) for one in expected]
    if not expected:
        assert len(ds) == 0
        return
    rows = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=20))
    same(ds.read(rows)["data"], [expected[i] for i in rows])
    taken = ds.take(rows) + ds
    same(taken.read(range(len(taken)))["data"], [expected[i] for i in rows] + expected)


WRONG = {
    "n instead of n + 1": (OFFSETS[:-1], r"np\.insert\(offsets, 50, \d+\)"),
    "no start": (OFFSETS[OFFSETS > 0], r"np\.insert\(offsets, 0, 0\)"),
    "lengths": (np.diff(OFFSETS), r"np\.insert\(np\.cumsum\(lengths\), 0, 0\)"),
    "beyond the end": (np.append(OFFSETS[:-1], OFFSETS[-1] + 1), "belong to another array"),
    "negative": (np.append(-1, OFFSETS[1:]), "belong to another array"),
    "unsigned and huge": (np.append(OFFSETS[:-1], -1).astype("u8"), "belong to another array"),
    "none": (OFFSETS[:0], r"n samples need n \+ 1 offsets"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_ends_are_refused_when_opened(saved, case):
    """With the line of NumPy that mends the usual mistakes; the file is named."""
    offsets, message = WRONG[case]
    np.save("offsets.npy", offsets)
    with pytest.raises(ndfeed.FormatError, match=message) as caught:
        ndfeed.open("tokens.npy", offsets="offsets.npy")
    assert caught.value.path.endswith("offsets.npy")
    if case != "unsigned and huge":
        with pytest.raises(ndfeed.SchemaError, match=message):
            ndfeed.open("tokens.npy", offsets=offsets)


def test_offsets_of_several_dtypes_are_opened_as_one(saved):
    """The error says where: dtype= beside the values would convert these."""
    for i, dtype in enumerate(("i4", "i8")):
        np.save(f"part{i}.npy", VALUES)
        np.save(f"ends{i}.npy", OFFSETS.astype(dtype))

    with pytest.raises(ndfeed.SchemaError, match=r"'int32'\}, in offsets=ndfeed\.open"):
        ndfeed.open("part?.npy", offsets="ends?.npy")
    ends = ndfeed.open("ends?.npy", sample="row", dtype={"data": "int32"})
    same_in_any_order(ndfeed.open("part?.npy", offsets=ends), EXPECTED * 2)


@pytest.mark.parametrize("wrong", [10**6, -5, 2**62, -(2**63)])
def test_offsets_that_go_back_are_refused_when_read(saved, wrong):
    """A file may have 10⁸ of them: each is checked when it is used, and nothing else is read."""
    offsets = OFFSETS.copy()
    offsets[20] = wrong
    np.save("offsets.npy", offsets)
    ds = ndfeed.open("tokens.npy", offsets="offsets.npy")
    same(ds.read([0, 18, 22])["data"], [EXPECTED[i] for i in (0, 18, 22)])
    for row in (19, 20):
        with pytest.raises(ndfeed.FormatError, match=f"offsets of sample {row} are damaged") as e:
            ds[row]
        assert e.value.path.endswith("offsets.npy")
        assert "verify" not in str(e.value)
    with pytest.raises(ndfeed.FormatError):
        ds.lengths("data")
    with pytest.raises(ndfeed.SchemaError, match=r"go back after sample (19|20)"):
        ndfeed.open("tokens.npy", offsets=offsets)


@pytest.mark.parametrize(
    "array", [OFFSETS.astype(float), OFFSETS.reshape(-1, 1), np.array(["a"]), OFFSETS > 0]
)
def test_offsets_are_integers_on_one_axis(saved, array):
    """Anything else is refused, in a file and in memory."""
    np.save("offsets.npy", array)
    with pytest.raises(ndfeed.SchemaError, match="one-dimensional array of integers"):
        ndfeed.open("tokens.npy", offsets="offsets.npy")
    if array.dtype.kind != "U":
        with pytest.raises(ValueError, match="one-dimensional array of integers"):
            ndfeed.open("tokens.npy", offsets=array)


def test_arguments_that_do_not_go_with_offsets(saved):
    """Say so, instead of ignoring one of them."""
    for options in ({"sample": "row"}, {"sample": "file"}, {"on_error": "skip"}):
        with pytest.raises(ValueError, match="cannot be combined"):
            ndfeed.open("tokens.npy", offsets="offsets.npy", **options)
    with pytest.raises(ndfeed.SchemaError, match="has offsets of its own"):
        ndfeed.open(ndfeed.open("tokens.npy", offsets=OFFSETS), offsets=OFFSETS)
    with pytest.raises(ndfeed.MissingError):
        ndfeed.open("tokens.npy", offsets="nowhere.npy")
    with pytest.raises(TypeError, match="a path"):
        ndfeed.open("tokens.npy", offsets=object())
    with pytest.raises(ValueError, match="take, split or map the result"):
        ndfeed.open(ndfeed.open("tokens.npy").take([1, 2]), offsets="offsets.npy")
    with pytest.raises(ndfeed.FormatError, match=r'ndfeed\.open\("tokens\.bin", dtype="int64"\)'):
        ndfeed.open("tokens.npy", offsets="tokens.bin")
    np.savez("both.npz", a=OFFSETS, b=OFFSETS)
    with pytest.raises(ndfeed.SchemaError, match="found 'a', 'b'"):
        ndfeed.open("tokens.npy", offsets="both.npz")
    np.save("scalar.npy", np.array(3))
    with pytest.raises(ndfeed.SchemaError, match="scalar"):
        ndfeed.open("tokens.npy", offsets="scalar.npy")


@pytest.mark.parametrize("mapped", [True, False])
def test_no_sample_at_all(saved, mapped):
    """A condition may leave none: that is no damage."""
    ds = ndfeed.open("tokens.npy", offsets="offsets.npy", mapped=mapped).take([])

    assert "0 samples, 0 B" in repr(ds)
    assert ds[:]["data"] == []
    assert ds.lengths("data").tolist() == []
    assert list(ndfeed.loader(ds + ds, 2)) == []


def test_a_changed_file_of_offsets_is_noticed(saved):
    """As any other file that was written to since it was opened."""
    ds = ndfeed.open("tokens.npy", offsets="offsets.npy")
    ds[0]
    np.save("offsets.npy", OFFSETS[:10])
    with pytest.raises(ndfeed.ChangedError, match=r"offsets\.npy"):
        ds.read(np.arange(len(ds)))


def test_casts(saved):
    """PyTorch has few operations for uint16."""
    ds = ndfeed.open("tokens.npy", offsets="offsets.npy", dtype={"data": "int64"})
    same_in_any_order(ds, [one.astype(np.int64) for one in EXPECTED])


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("processes", [0, 2])
def test_loaders_pack_memory_and_resume(saved, compressed, processes):
    """Whatever works with ragged fields works with these."""
    if compressed:
        with gzip.open("tokens.npy.gz", "wb") as file:
            np.save(file, VALUES)
    ds = ndfeed.open("tokens.npy.gz" if compressed else "tokens.npy", offsets="offsets.npy")
    loader = ndfeed.loader(ds, 8, shuffle=True, seed=3, ragged="packed", processes=processes)
    batches = list(loader)
    found = [p.tolist() for b in batches for p in pieces(b["data"], b["data_offsets"])]
    assert sorted(found) == sorted(one.tolist() for one in EXPECTED)

    half = ndfeed.loader(ds, 8, shuffle=True, seed=3, ragged="packed", processes=processes)
    steps = iter(half)
    next(steps), next(steps)
    state = half.state_dict()
    again = ndfeed.open("tokens.npy.gz" if compressed else "tokens.npy", offsets="offsets.npy")
    resumed = ndfeed.loader(again, 8, shuffle=True, seed=3, ragged="packed")
    resumed.load_state_dict(state)
    for one, wanted in zip(resumed, batches[2:], strict=True):
        assert one["data"].tolist() == wanted["data"].tolist()

    same_in_any_order(ds.in_memory(), EXPECTED)
    same_in_any_order(ndfeed.pack(ds, "packed"), EXPECTED)
    first, second = ds.split(0.5)
    assert sorted(map(len, first[:]["data"] + second[:]["data"])) == sorted(map(len, EXPECTED))


def test_torch_pads_and_nests(saved):
    """As it does other ragged fields."""
    torch = pytest.importorskip("torch")
    import ndfeed.torch

    ds = ndfeed.open("tokens.npy", offsets="offsets.npy", dtype={"data": "int64"})
    (batch,) = ndfeed.torch.loader(ds, len(ds), ragged="nested", device="cpu")
    for tensor, wanted in zip(batch["data"].unbind(), EXPECTED, strict=True):
        assert torch.equal(tensor, torch.from_numpy(wanted.astype(np.int64)))
    (batch,) = ndfeed.torch.loader(ds, len(ds), ragged="pad", device="cpu")
    assert batch["data_length"].tolist() == [len(one) for one in EXPECTED]


def test_repr_says_what_a_sample_is(saved):
    """And where that is written."""
    text = repr(ndfeed.open("tokens.npy", offsets="offsets.npy"))
    assert "a sample is a range of rows (offsets in offsets.npy)" in text


def test_opening_does_not_read_the_values(tmp_path):
    """Eighteen gigabytes of nothing, and offsets of a few samples: no memory is taken."""
    path = tmp_path / "tokens.bin"
    with path.open("wb") as file:
        file.truncate(18 << 30)
    rows = (18 << 30) // 2
    ds = ndfeed.open(path, dtype="uint16", offsets=np.array([0, 5, rows - 7, rows]))

    assert ds.lengths("data").tolist() == [5, rows - 12, 7]
    assert ds[2]["data"].tolist() == [0] * 7


def test_offsets_of_a_raw_file_that_ends_within_a_row(tmp_path):
    """``tail`` applies to the values; it was ignored, and the message then asked for it."""
    (tmp_path / "x.bin").write_bytes(np.arange(10, dtype="<u2").tobytes() + b"\1")
    options = {"dtype": "<u2", "shape": (), "offsets": [0, 4, 10]}
    ds = ndfeed.open(tmp_path / "x.bin", tail="drop", **options)
    assert ds[1]["data"].tolist() == [4, 5, 6, 7, 8, 9]
    with pytest.raises(ndfeed.FormatError, match="tail="):
        ndfeed.open(tmp_path / "x.bin", **options)


def write_shards(folder, codings):
    """A long file of values for each coding, and offsets of its own; returns the samples."""
    rng, samples = np.random.default_rng(0), []
    for i, coding in enumerate(codings):
        lengths = np.append(rng.integers(0, 40, 60), [9000, 0, 7000])
        offsets = np.append(0, np.cumsum(rng.permutation(lengths)))
        values = rng.integers(0, 99, (offsets[-1], 2)).astype(">i4" if coding == "big" else "<i4")
        save = np.savez_compressed if coding in ("deflated", "big") else np.savez
        save(folder / f"v{i}.npz", text=values)
        np.save(folder / f"o{i}.npy", offsets)
        samples += [values[a:b].astype("<i4") for a, b in itertools.pairwise(offsets)]
    return samples


def same_samples(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("codings", [["deflated"], ["deflated", "big"], ["big", "raw", "deflated"]])
@pytest.mark.parametrize("mapped", [True, False])
def test_compressed_values_are_decoded_when_they_are_read(tmp_path, codings, mapped):
    """In every form of a batch, and in any order; files of both kinds go together."""
    expected = write_shards(tmp_path, codings)
    ds = ndfeed.open(tmp_path / "v*.npz", offsets=tmp_path / "o*.npy", mapped=mapped)
    same_samples(ds[:]["text"], expected)
    rows = np.random.default_rng(1).permutation(len(ds))
    same_samples(ds.read(rows)["text"], [expected[row] for row in rows])
    for ragged in ("list", "pad", "packed"):
        for shuffle in (False, True):
            found = {}
            labelled = ndfeed.open({"text": ds, "row": np.arange(len(ds))})
            for batch in ndfeed.loader(labelled, 7, shuffle=shuffle, ragged=ragged, memory="16MB"):
                values = batch["text"]
                if ragged == "pad":
                    values = [one[:n] for one, n in zip(values, batch["text_length"], strict=True)]
                if ragged == "packed":
                    values = np.split(values, batch["text_offsets"][1:-1])
                found |= dict(zip(batch["row"].tolist(), values, strict=True))
            same_samples([found[row] for row in range(len(ds))], expected)
    packed = ndfeed.pack(ds, tmp_path / "packed", progress=False)
    same_samples(packed[:]["text"], expected)


def test_opening_decodes_nothing(tmp_path):
    """A damaged byte is found when a sample is read, and other files do not suffer."""
    expected = write_shards(tmp_path, ["deflated", "deflated"])
    data = bytearray((tmp_path / "v1.npz").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "v1.npz").write_bytes(data)
    ds = ndfeed.open(tmp_path / "v*.npz", offsets=tmp_path / "o*.npy")

    half = len(expected) // 2
    same_samples(ds[:half]["text"], expected[:half])
    with pytest.raises(ndfeed.FormatError, match=r"v1\.npz"):
        ds[half + 60 : half + 63]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_larger_than_the_memory_of_a_loader(tmp_path, shuffle):
    """It goes through a window, or a file on disk, and is not held."""
    lengths = np.full(2000, 1500)
    values = np.arange(lengths.sum(), dtype=np.int64)
    np.savez_compressed(tmp_path / "v.npz", text=values)
    offsets = np.append(0, np.cumsum(lengths))
    ds = ndfeed.open(tmp_path / "v.npz", offsets=offsets)
    assert ds.nbytes == 24_000_000

    seen = []
    for batch in ndfeed.loader(ds, 50, shuffle=shuffle, memory="8MB"):
        for text in batch["text"]:
            seen.append(int(text[0]) // 1500)
            assert (text == np.arange(text[0], text[0] + 1500)).all()
    assert sorted(seen) == list(range(2000))
    assert (seen == sorted(seen)) is not shuffle
