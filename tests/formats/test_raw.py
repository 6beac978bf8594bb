"""Raw files: the caller or a JSON beside says what they hold, and nothing else is taken for one."""

import gzip
import json

import ml_dtypes
import numpy as np
import pytest
from children import examples
from formats.reading import same
from hostile import assert_harmless, contained, damaged, watch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ndfeed
from ndfeed.errors import FormatError, LimitError, UnsupportedError
from ndfeed.formats import raw

FEW = settings(
    max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TOKENS = np.arange(1000, 1024, dtype="<u2")


@pytest.fixture
def write(tmp_path):
    """Put bytes, and a layout beside them, into a file and say where."""

    def write(data=None, beside=None, name="x.bin"):
        path = tmp_path / name
        path.write_bytes(TOKENS.tobytes() if data is None else data)
        if beside is not None:
            text = beside if isinstance(beside, str) else json.dumps(beside)
            path.with_name(f"{name}.json").write_text(text)
        return path

    return write


def test_dtype_alone_gives_single_elements(write):
    """nanoGPT's tokens: nothing but uint16."""
    ds = ndfeed.open(write(), dtype="uint16")

    assert same(ds[:], {"data": TOKENS})


@pytest.mark.parametrize("shape", [6, (6,), (2, 3), [3, 2]])
def test_shape_is_that_of_one_sample(write, shape):
    """How many there are follows from the size of the file."""
    ds = ndfeed.open(write(), dtype="uint16", shape=shape)
    expected = TOKENS.reshape(4, *([shape] if isinstance(shape, int) else shape))

    assert same(ds[:], {"data": expected})
    assert same(ds.read([3, 0]), {"data": expected[[3, 0]]})


@pytest.mark.parametrize("dtype", [np.uint16, np.dtype("<u2"), "<u2", "u2", "uint16", "H"])
def test_dtype_may_be_what_numpy_takes(write, dtype):
    """The caller's word is trusted with all of NumPy's spellings."""
    assert same(ndfeed.open(write(), dtype=dtype)[:], {"data": TOKENS})


@pytest.mark.parametrize("dtype", ["bfloat16", ml_dtypes.bfloat16])
def test_small_floats_by_name(write, dtype):
    """Raw bfloat16 is what many dumps of weights are."""
    ds = ndfeed.open(write(), dtype=dtype)

    assert ds[:]["data"].dtype == ml_dtypes.bfloat16
    assert ds[:]["data"].tobytes() == TOKENS.tobytes()


def test_big_endian(write):
    """Swapped on the way."""
    path = write(TOKENS.astype(">u2").tobytes())

    assert same(ndfeed.open(path, dtype=">u2", shape=4)[:], {"data": TOKENS.reshape(6, 4)})


def test_layout_beside_the_file(write):
    """A small JSON saves saying it every time."""
    path = write(beside={"dtype": "uint16", "shape": [2, 3]})

    assert same(ndfeed.open(path)[:], {"data": TOKENS.reshape(4, 2, 3)})


def test_offset_beside_the_file(write):
    """Some writers put a header of their own first; no page boundary is needed."""
    path = write(b"hdr" + TOKENS.tobytes(), {"dtype": "<u2", "shape": 8, "offset": 3})

    assert same(ndfeed.open(path)[:], {"data": TOKENS.reshape(3, 8)})


def test_the_callers_word_goes_before_the_json(write):
    """Who says it in the call means it."""
    path = write(beside={"dtype": "float64"})

    assert same(ndfeed.open(path, dtype="uint16")[:], {"data": TOKENS})


@pytest.mark.parametrize(
    ("options", "sample"),
    [({"dtype": "<f4", "shape": (7,)}, 28), ({"dtype": "<c16"}, 16), ({"dtype": "V5"}, 5)],
)
def test_sizes_that_are_no_multiple_are_refused(write, options, sample):
    """The likeliest sign of a wrong dtype or shape: the message has all the numbers."""
    path = write(bytes(47))

    with pytest.raises(
        FormatError,
        match=rf"x\.bin: expected a multiple of {sample} bytes .* found 47; check dtype=",
    ):
        ndfeed.open(path, **options)


def test_offset_behind_the_end_is_refused(write):
    """No samples, and not even room for none."""
    path = write(bytes(8), {"dtype": "uint16", "offset": 10})

    with pytest.raises(FormatError, match="from byte 10"):
        ndfeed.open(path)


def test_offset_at_the_end_leaves_no_samples(write):
    """A header and nothing behind it."""
    assert len(ndfeed.open(write(bytes(8), {"dtype": "uint16", "offset": 8}))) == 0


def test_empty_files_are_refused(write):
    """A raw file of nothing is more likely a failed copy than a dataset."""
    with pytest.raises(FormatError, match=r"x\.bin: expected an array file, found 0 bytes"):
        ndfeed.open(write(b""), dtype="uint16")


def test_without_a_layout_the_message_says_what_to_give(write):
    """Bytes alone say nothing."""
    with pytest.raises(FormatError, match=r"x\.bin: .*e8 03.*pass dtype= and shape="):
        ndfeed.open(write())


def saved_npy(tmp_path):
    np.save(tmp_path / "y.npy", TOKENS)
    return (tmp_path / "y.npy").read_bytes()


def saved_npz(tmp_path):
    np.savez(tmp_path / "y.npz", TOKENS)
    return (tmp_path / "y.npz").read_bytes()


@pytest.mark.parametrize(
    "make", [saved_npy, saved_npz, lambda tmp_path: gzip.compress(saved_npy(tmp_path))]
)
def test_files_of_a_format_are_not_read_as_raw(tmp_path, write, make):
    """np.memmap on a .npy makes numbers of its header, silently."""
    path = write(make(tmp_path))

    with pytest.raises(
        ValueError, match=r"x\.bin: already has dtype <u2; remove dtype=, which is for raw"
    ):
        ndfeed.open(path, dtype="uint16")


@pytest.mark.parametrize(
    "magic",
    [b"\x89HDF\r\n\x1a\n", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"BZh91AY&SY", b"PAR1", b"ARROW1"],
)
def test_files_of_other_formats_are_not_read_as_raw(write, magic):
    """A compressed dump with dtype= would give numbers too."""
    with pytest.raises(UnsupportedError, match=r"x\.bin: found \w+"):
        ndfeed.open(write(magic + bytes(64 - len(magic))), dtype="u1")


def test_file_cannot_be_made_longer_by_reading_it(write):
    """np.memmap's default mode may extend the file."""
    path = write()
    ds = ndfeed.open(path, dtype="uint16", shape=6)
    ds[:]["data"][...] = 0
    with pytest.raises(IndexError):
        ds[4]

    assert path.read_bytes() == TOKENS.tobytes()


def test_several_raw_files_follow_each_other(write):
    """Shards of tokens: rows, since the caller gave the shape of a sample."""
    paths = [write(name=f"{i}.bin") for i in range(3)]

    assert len(ndfeed.open(paths, dtype="uint16", shape=4)) == 18


@pytest.mark.parametrize("shape", [0, -1, (3, 0), (True,), (2.0,), "3", (1,) * 64, (1 << 40,) * 2])
def test_shapes_that_no_sample_has(write, shape):
    """A wrong argument is a plain ValueError."""
    with pytest.raises(ValueError, match="shape must"):
        ndfeed.open(write(), dtype="uint16", shape=shape)


@pytest.mark.parametrize("dtype", ["O", "f4,f4", [("a", "O")], ("f4", (2,)), "S", "V0"])
def test_dtypes_that_no_element_has(write, dtype):
    """Objects, arrays, text that stands for a structure, and nothing."""
    with pytest.raises(ValueError, match="dtype"):
        ndfeed.open(write(), dtype=dtype)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"dtype": 5}',
        '{"dtype": null}',
        '{"dtype": "O"}',
        '{"dtype": "complex"}',
        '{"dtype": "(1)f4"}',
        '{"dtype": "f4,f4"}',
        '{"dtype": {"names": ["a"], "formats": ["f4"]}}',
        '{"dtype": [["a", "f4"], ["a", "f4"]]}',
        '{"dtype": "__import__(\'os\')"}',
        '{"dtype": "<M8[s/0]"}',
        '{"dtype": "u2", "shape": 0}',
        '{"dtype": "u2", "shape": [-1]}',
        '{"dtype": "u2", "shape": "4"}',
        '{"dtype": "u2", "shape": {"a": 1}}',
        '{"dtype": "u2", "shape": [true]}',
        '{"dtype": "u2", "shape": [4611686018427387904, 4]}',
        '{"dtype": "u2", "shape": [' + "1," * 99 + "1]}",
        '{"dtype": "u2", "offset": -1}',
        '{"dtype": "u2", "offset": 1.5}',
        '{"dtype": "u2", "offset": true}',
        '{"dtype": "u2", "offset": 1e999}',
        '{"dtype": "u2", "offset": ' + "9" * 30 + "}",
        "[" * 60_000,
        '{"dtype": "u2", "more": "' + "x" * 70_000 + '"}',
        "\ud800",
        '{"dtype": "u2", "shape": [4611686018427387904], "offset": 48}',
        '{"dtype": "<U1000000", "shape": [4611686018427387904], "offset": 48}',
        '{"dtype": "u1", "shape": [4294967296, 4294967296], "offset": 48}',
        '{"dtype": "u2", "shape": ' + "9" * 5000 + "}",
        '{"dtype": "u2", "shape": [' + "[" * 500 + "]" * 500 + "]}",
    ],
)
def test_layouts_that_are_none(write, text):
    """The JSON is as untrusted as the file beside it: checked, and never run."""
    path = write()
    path.with_name("x.bin.json").write_bytes(text.encode("utf-8", "surrogatepass"))

    with pytest.raises(FormatError, match=r"x\.bin\.json: ") as caught:
        ndfeed.open(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("mark", "before", "behind"),
    [(b"\xff\xfe", 0, 1), (b"", 0, 1), (b"\xfe\xff", 1, 0), (b"\xff\xfe\0\0", 0, 3), (b"", 3, 0)],
    ids=["UTF-16", "UTF-16-LE", "UTF-16-BE", "UTF-32", "UTF-32-BE"],
)
def test_layouts_are_utf_8(write, mark, before, behind):
    """Anything else would import what decodes it, chosen by the file: the watch would see it."""
    path = write()
    wide = b"".join(bytes(before) + bytes([c]) + bytes(behind) for c in b'{"dtype": "u2"}')
    path.with_name("x.bin.json").write_bytes(mark + wide)

    with watch(path, f"{path}.json"), pytest.raises(FormatError, match=r"x\.bin\.json: "):
        ndfeed.open(path, cache=False)


def test_a_byte_order_mark_does_no_harm(write):
    """Some editors put one before UTF-8."""
    path = write()
    path.with_name("x.bin.json").write_bytes(b'\xef\xbb\xbf{"dtype": "uint16"}')

    assert same(contained(path), {"data": TOKENS})


def test_a_layout_that_is_too_long_is_not_read(write):
    """The message says how long it is: cutting it short would only make it no JSON."""
    path = write(beside='{"dtype": "uint16"}' + " " * 70_000)

    with pytest.raises(
        LimitError, match=r"x\.bin\.json: expected at most 65536 bytes.*found 70019"
    ):
        ndfeed.open(path)


def test_layout_that_is_a_folder(write):
    """It is named as what it is."""
    path = write()
    path.with_name("x.bin.json").mkdir()

    with pytest.raises(
        ndfeed.Error, match=r"x\.bin\.json: expected a regular file, found a folder"
    ):
        ndfeed.open(path)


def test_layout_bombs(write):
    """Deep nesting and long numbers, as long as is read of it."""
    texts = ["[" * 64_000, '{"dtype": "u2", "shape": [' + "1," * 30_000, "9" * 64_000]
    paths = [write(beside=text, name=f"{i}.bin") for i, text in enumerate(texts)]

    assert_harmless(*paths, kinds=["FormatError"])


def test_suffix_alone_does_not_make_a_file_raw_in_a_folder(tmp_path, write):
    """A folder may hold a notes.dat: without a layout it is left out."""
    write(name="tokens.bin", beside={"dtype": "uint16"})
    write(name="notes.dat")

    assert list(ndfeed.open(tmp_path).files) == [str(tmp_path / "tokens.bin")]


@FEW
@given(
    dtype=st.sampled_from(["u1", "<i2", ">u4", "<f8", "bfloat16", "<M8[s]", "S3", "c8"]),
    shape=st.lists(st.integers(1, 4), max_size=3).map(tuple),
    rows=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_layout_reads_what_numpy_reads(tmp_path, dtype, shape, rows, seed):
    """Bit for bit, whatever the bits."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    data = np.random.default_rng(seed).bytes(kind.itemsize * rows * int(np.prod(shape)))
    path = tmp_path / "x.bin"
    path.write_bytes(b"\0" + data)
    path.with_name("x.bin.json").write_text(
        json.dumps({"dtype": dtype, "shape": list(shape), "offset": 1})
    )

    assert same(
        ndfeed.open(path, cache=False)[:], {"data": np.frombuffer(data, kind).reshape(-1, *shape)}
    )


@settings(FEW, max_examples=examples(300))
@given(
    text=damaged([b'{"dtype": "uint16", "shape": [2, 3], "offset": 2}', b'{"dtype": "<M8[25s]"}'])
)
def test_damaged_layouts_raise_our_errors_alone(tmp_path, text):
    """Errors begin with the JSON's name, which begins with the file's."""
    path = tmp_path / "x.bin"
    path.write_bytes(TOKENS.tobytes())
    beside = path.with_name("x.bin.json")
    beside.write_bytes(text)
    try:
        layout = raw.beside(bytes(path))
    except FormatError as error:
        problem = str(error)
    else:
        assert isinstance(layout, raw.Layout)
        contained(path)
        return

    assert problem.startswith(str(beside))


PIXELS = [("x", "<f4", (3,)), ("y", "u1")]


@pytest.mark.parametrize(
    "dtype",
    [
        PIXELS,
        np.dtype(PIXELS),
        np.dtype(PIXELS, align=True),
        {"names": ["x", "y"], "formats": ["3f4", "u1"]},
        [("a", [("b", ">i2"), ("c", "S3")]), ("d", "<f8", (2, 2))],
    ],
    ids=["list", "dtype", "padded", "dict", "nested"],
)
@pytest.mark.parametrize("mapped", [True, False])
def test_a_structured_dtype_makes_fields_as_in_an_npy_file(tmp_path, dtype, mapped):
    """Records written with tofile, without a header."""
    rng = np.random.default_rng(0)
    kind = np.dtype(dtype)
    records = np.frombuffer(rng.integers(1, 100, 12 * kind.itemsize, np.uint8).tobytes(), kind)
    records.tofile(tmp_path / "x.bin")
    np.save(tmp_path / "x.npy", records)
    raw = ndfeed.open(tmp_path / "x.bin", dtype=dtype, mapped=mapped)
    npy = ndfeed.open(tmp_path / "x.npy")

    assert raw.fields == npy.fields
    for name, values in npy[[5, 0, 11]].items():
        np.testing.assert_array_equal(raw[[5, 0, 11]][name], values)


def test_structures_may_be_described_beside_the_file(tmp_path):
    """And several of them may be a sample."""
    records = np.zeros((4, 2), PIXELS)
    records["y"] = np.arange(8).reshape(4, 2)
    records.tofile(tmp_path / "x.bin")
    text = '{"dtype": [["x", "<f4", [3]], ["y", "u1"]], "shape": [2]}'
    (tmp_path / "x.bin.json").write_text(text)
    ds = ndfeed.open(tmp_path / "x.bin")

    assert ds.fields["x"].shape == (2, 3)
    assert ds[2]["y"].tolist() == [4, 5]


@pytest.mark.parametrize(
    "dtype", ['[["x"]]', '["x", "y"]', '[["x", "O"]]', '[["x", "f4", [-1]]]', "[]", '[["", "f4"]]']
)
def test_structures_that_are_none_are_refused(tmp_path, dtype):
    """JSON is anybody's."""
    (tmp_path / "x.bin").write_bytes(bytes(100))
    (tmp_path / "x.bin.json").write_text(f'{{"dtype": {dtype}}}')

    with pytest.raises(FormatError, match=r"x\.bin\.json: "):
        ndfeed.open(tmp_path / "x.bin")


@pytest.mark.parametrize("dtype", [[("x", "O")], "float33", [("x", "f4"), ("x", "f4")], 7.5])
def test_a_dtype_that_is_none_is_refused_in_one_line(tmp_path, dtype):
    """Before any file is looked at."""
    with pytest.raises(ValueError, match=r"^dtype must be"):
        ndfeed.open(tmp_path / "x.bin", dtype=dtype)
