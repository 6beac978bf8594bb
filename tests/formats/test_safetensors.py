"""Safetensors: what the reference reads we describe to the byte, and little else."""

import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from children import examples
from described import arrays, content, contents, describe
from hard_arrays import HARD_ARRAYS
from hostile import damaged, watch
from hypothesis import HealthCheck, given, settings

import ndfeed
from ndfeed.errors import Error, FormatError, LimitError, TruncatedError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats import safetensors as ours
from ndfeed.formats.description import MOST_DIMENSIONS, Description

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch")

ONE = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}


def file_of(header, body=b"", pad=0):
    """A file with this header (a dict or bytes) and body."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * pad
    return len(text).to_bytes(8, "little") + text + body


def entry(dtype="U8", shape=(2,), span=(0, 2)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(span)}


@pytest.fixture
def write(tmp_path):
    def write(header, body=b"", pad=0):
        path = tmp_path / "x.safetensors"
        path.write_bytes(file_of(header, body, pad))
        return path

    return write


# Header


def test_header_may_be_padded_with_spaces(write):
    """Writers pad to 8 bytes, so that tensors can be mapped aligned."""
    path = write({"x": ONE}, b"ab", pad=13)

    assert contents(path) == {"x": ("|u1", (2,), b"ab")}


@pytest.mark.parametrize("size", range(8))
def test_file_shorter_than_its_first_field_is_refused(tmp_path, size):
    """A half-written file has a length that is not there yet."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(bytes(size))

    with (
        File(bytes(path)) as file,
        pytest.raises(TruncatedError, match=f"expected a header, found only {size} bytes"),
    ):
        ours.describe(file)


def test_header_longer_than_the_file_is_refused(tmp_path):
    """The length is the file's own word: it must be checked before anything is read."""
    path = tmp_path / "x.safetensors"
    path.write_bytes((100).to_bytes(8, "little") + b"{}")

    with (
        File(bytes(path)) as file,
        pytest.raises(TruncatedError, match="expected a header of 100 bytes, found 2"),
    ):
        ours.describe(file)


def test_header_over_the_limit_is_refused(tmp_path):
    """A sparse file can be larger than memory: its header must not be."""
    path = tmp_path / "x.safetensors"
    path.write_bytes((100_000_001).to_bytes(8, "little") + b"{}")

    with (
        File(bytes(path)) as file,
        pytest.raises(
            LimitError, match="expected a header of at most 100000000 bytes, found 100000001"
        ),
    ):
        ours.describe(file)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b' {"x":1}', b"\xef\xbb\xbf{}", b'"{}"', b"{", b"{}x", b"{}\0", b"\xff"]
)
def test_header_that_is_no_object_is_refused(tmp_path, text):
    """Anything before the brace would hide the format from those who look at the first bytes."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(text))

    with File(bytes(path)) as file, pytest.raises(FormatError, match="header is wrong"):
        ours.describe(file)


def test_empty_header_has_no_tensors(write):
    """The reference writes and reads it."""
    assert describe(write({})) == Description("safetensors", (), ())


# Offsets


@pytest.mark.parametrize(
    ("spans", "body"),
    [
        ([(1, 3)], b"xab"),
        ([(0, 2), (3, 5)], b"abxcd"),
        ([(0, 2), (1, 3)], b"abc"),
        ([(0, 2), (0, 2)], b"ab"),
    ],
    ids=["hole before", "hole between", "overlap", "twice"],
)
def test_tensors_must_tile_the_file(write, spans, body):
    """Holes hide data, and overlaps make a small file unpack to a large one."""
    header = {f"x{i}": entry(span=span) for i, span in enumerate(spans)}

    with pytest.raises(FormatError, match=r"tensors must lie end to end: expected byte \d"):
        describe(write(header, body))


@pytest.mark.parametrize(("body", "kind"), [(b"a", TruncatedError), (b"abc", FormatError)])
def test_last_tensor_ends_with_the_file(write, body, kind):
    """A byte lost or gained is a damaged file, and the message has both sizes."""
    size = len(file_of({"x": ONE}, b""))

    with pytest.raises(
        kind, match=f"expected {size + 2} bytes according to the header, found {size + len(body)}"
    ):
        describe(write({"x": ONE}, body))


@pytest.mark.parametrize("span", [(0, 1), (0, 3), (2, 0), (0,), (0, 2, 2), ("0", 2), (0, 2.0)])
def test_offsets_must_fit_dtype_and_shape(write, span):
    """A reader that trusts one of the two reads what the other does not have."""
    with pytest.raises(FormatError, match=r"tensor 'x'|whole numbers"):
        describe(write({"x": entry(span=span)}, b"ab"))


@pytest.mark.parametrize("bad", [True, -1, 2.0, "2", None, [2], 1 << 63, 1 << 70])
def test_lengths_must_be_whole_numbers(write, bad):
    """True is 1 in Python, and 2.0 is 2; neither is a length."""
    with pytest.raises(FormatError, match=r"tensor 'x'|whole numbers"):
        describe(write({"x": entry(shape=[bad, 1])}, b"ab"))


def test_numbers_beyond_json_are_refused(write):
    """Python's parser would take NaN and numbers of any length."""
    with pytest.raises(FormatError, match="expected whole numbers, found NaN"):
        describe(write(b'{"x":{"dtype":"U8","shape":[NaN],"data_offsets":[0,2]}}', b"ab"))
    with pytest.raises(FormatError, match="expected whole numbers, found -0"):
        describe(write(b'{"x":{"dtype":"U8","shape":[2],"data_offsets":[-0,2]}}', b"ab"))
    digits = b"9" * 5000
    with pytest.raises(FormatError, match="header is wrong"):
        describe(write(b'{"x":{"dtype":"U8","shape":[%s],"data_offsets":[0,2]}}' % digits, b"ab"))


# Keys


@pytest.mark.parametrize(
    "text",
    [
        b'{"x":%(one)s,"x":%(one)s}',
        b'{"x":{"dtype":"U8","dtype":"I8","shape":[2],"data_offsets":[0,2]}}',
        b'{"__metadata__":{"a":"b","a":"c"},"x":%(one)s}',
    ],
    ids=["tensor", "field", "metadata"],
)
def test_keys_must_differ(write, text):
    """Parsers disagree on which of two wins, so a file could show two faces."""
    if b"%(" in text:
        text = text % {b"one": json.dumps(ONE).encode()}

    with pytest.raises(FormatError, match="a key appears twice"):
        describe(write(text, b"ab"))


@pytest.mark.parametrize("bad", [1, [], ["U8", [2], [0, 2]], "x", None, {"dtype": "U8"}])
def test_entry_must_be_an_object_with_three_fields(write, bad):
    """The reference also takes a list; nobody writes one."""
    with pytest.raises(FormatError, match="needs dtype, shape and data_offsets"):
        describe(write({"x": bad}, b"ab"))


@pytest.mark.parametrize("text", [b'{"\\ud800":%s}', b'{"__metadata__":{"k":"\\ud800"},"x":%s}'])
def test_half_a_surrogate_is_no_text(write, text):
    """It could not be written back, nor put into an index."""
    with pytest.raises(FormatError, match=r"header is wrong: .* surrogates not allowed"):
        describe(write(text % json.dumps(ONE).encode(), b"ab"))


def test_escaped_names_are_names(write):
    """Whole pairs and plain escapes are what they spell."""
    path = write(b'{"\\u00e9\\ud83d\\ude00":%s}' % json.dumps(ONE).encode(), b"ab")

    assert list(arrays(path)) == ["é😀"]


def test_long_names_are_refused(write):
    """Each is kept in the index."""
    with pytest.raises(LimitError, match="names of at most 4096 characters"):
        describe(write({"n" * 5000: ONE}, b"ab"))


# Metadata


def test_metadata_is_shown_as_remarks(write):
    """Training scripts keep their settings there, on one line each and not too long."""
    header = {"__metadata__": {"format": "pt", "text": "a\nb", "long": "x" * 500}, "x": ONE}

    notes = describe(write(header, b"ab")).notes

    assert notes[:2] == ("metadata format: pt", "metadata text: a\\nb")
    assert len(notes[2]) == 200


@pytest.mark.parametrize("bad", [{"a": 1}, {"a": None}, {"a": {}}, [], "x", 1])
def test_metadata_must_be_text(write, bad):
    """The format says text to text, and a reader may rely on it."""
    with pytest.raises(FormatError, match="__metadata__ must map text to text"):
        describe(write({"__metadata__": bad, "x": ONE}, b"ab"))


def test_many_remarks_are_cut(write):
    """A thousand settings are not for people."""
    header = {"__metadata__": {str(i): "" for i in range(1000)}}

    assert describe(write(header)).notes[-1] == "… and 950 more remarks"


# Order, alignment, shapes


def test_unaligned_tensors_are_described_where_they_are(write):
    """Old files do not pad: an odd offset is no error."""
    path = write({"a": entry("U8", [1], [0, 1]), "b": entry("F64", [1], [1, 9])}, bytes(9))
    found = arrays(path)

    assert found["b"].offset == found["a"].offset + 1
    assert found["b"].dtype == "<f8"


def test_tensors_come_in_the_order_of_the_file(write):
    """The header may list them in another; reading goes forward."""
    path = write({"b": entry(span=[2, 4]), "a": ONE}, b"abcd")

    assert [array.name for array in describe(path).arrays] == ["a", "b"]


def test_empty_and_scalar_tensors(write):
    """Empty ones lie anywhere between others, and rank 0 is one element."""
    header = {
        "none": entry("F32", [0, 3], [0, 0]),
        "scalar": entry("F32", [], [0, 4]),
        "end": entry("I64", [2, 0], [4, 4]),
    }

    assert contents(write(header, b"abcd")) == {
        "none": ("<f4", (0, 3), b""),
        "scalar": ("<f4", (), b"abcd"),
        "end": ("<i8", (2, 0), b""),
    }


@pytest.mark.parametrize("shape", [[1 << 40, 1 << 40, 0], [1 << 62, 0], [1 << 40, 1 << 40]])
def test_lengths_that_no_array_can_have_are_refused(write, shape):
    """A product that wraps to 0 makes other readers skip their checks."""
    with pytest.raises(LimitError, match="lengths that no array can have"):
        describe(write({"x": entry("U8", shape, [0, 0])}))


def test_more_dimensions_than_numpy_has_are_refused(write):
    """The file is sound, but nothing could hold the array."""
    path = write({"x": entry("U8", [1] * MOST_DIMENSIONS, [0, 1])}, b"a")

    assert arrays(path)["x"].shape == (1,) * MOST_DIMENSIONS
    with pytest.raises(UnsupportedError, match=f"dimensions, at most {MOST_DIMENSIONS} are read"):
        describe(write({"x": entry("U8", [1] * (MOST_DIMENSIONS + 1), [0, 1])}, b"a"))


# Types

TYPES = {
    "BOOL": ("|b1", torch.bool), "U8": ("|u1", torch.uint8), "I8": ("|i1", torch.int8),
    "U16": ("<u2", torch.uint16), "I16": ("<i2", torch.int16), "U32": ("<u4", torch.uint32),
    "I32": ("<i4", torch.int32), "U64": ("<u8", torch.uint64), "I64": ("<i8", torch.int64),
    "F16": ("<f2", torch.float16), "BF16": ("bfloat16", torch.bfloat16),
    "F32": ("<f4", torch.float32), "F64": ("<f8", torch.float64), "C64": ("<c8", torch.complex64),
    "F8_E4M3": ("float8_e4m3fn", torch.float8_e4m3fn),
    "F8_E5M2": ("float8_e5m2", torch.float8_e5m2),
    "F8_E8M0": ("float8_e8m0fnu", torch.float8_e8m0fnu),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", torch.float8_e4m3fnuz),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", torch.float8_e5m2fnuz),
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_of_the_reference_is_read(tmp_path, kind):
    """Written by the reference, the same bytes under the name that we and ml_dtypes use."""
    name, dtype = TYPES[kind]
    raw = torch.arange(48, dtype=torch.uint8) % 2
    tensor = raw.view(dtype).reshape(2, -1)
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"x": tensor}, path)

    assert contents(path) == {"x": (name, tuple(tensor.shape), raw.numpy().tobytes())}


@pytest.mark.parametrize(("kind", "count", "size"), [("F4", 6, 3), ("F6_E2M3", 4, 3)])
def test_packed_types_are_delivered_as_bytes(write, kind, count, size):
    """NumPy has no type of less than a byte; the numbers are the user's to unpack."""
    path = write({"x": entry(kind, [count], [0, size])}, b"abc")

    assert contents(path) == {"x": ("|u1", (3,), b"abc")}
    assert describe(path).notes == (
        f"tensor 'x' is {kind}[{count}]: delivered as its packed bytes",
    )


def test_packed_types_must_fill_their_bytes(write):
    """Three halves of a byte are no bytes."""
    with pytest.raises(FormatError, match="needs 12 bits, its offsets hold 8"):
        describe(write({"x": entry("F4", [3], [0, 1])}, b"a"))


def test_unknown_type_is_refused_by_name(write):
    """Guessing a width would skip every check of sizes."""
    with pytest.raises(UnsupportedError, match=r"tensor 'x' has the unknown dtype 'F3'"):
        describe(write({"x": entry("F3")}, b"ab"))


def test_tensor_of_an_unknown_type_can_be_left_out(write):
    """One such tensor made all others of its file unreadable, whatever ``fields=`` said."""
    header = {"a": entry(), "odd": entry("F3_E1M1", [7], [2, 5]), "z": entry("U8", [2], [5, 7])}
    path = write(header, b"abodd\1\2")
    match = r"tensor 'odd' has the unknown dtype 'F3_E1M1'; .*: fields=\[\.\.\.\]$"

    for fields in (None, ["odd"], ["z", "odd"]):
        with pytest.raises(UnsupportedError, match=match):
            ndfeed.open(path, fields=fields)
    assert ndfeed.open(path, sample="row", fields=["z"])[:]["z"].tolist() == [1, 2]
    with File(bytes(path)) as file:
        found = ours.describe(file, frozenset(["a"]))
    assert [array.name for array in found.arrays] == ["a", "z"]
    assert found.notes == ("tensor 'odd' has the unknown dtype 'F3_E1M1': left out",)


def test_tensors_of_unknown_types_must_still_tile_the_file(write):
    """Their width is unknown, but not where they lie."""
    for span in ([2, 4], [1, 5], [2, 9], [5, 2], [2, True]):
        header = {"a": entry(), "odd": entry("F3", [7], span), "z": entry("U8", [2], [5, 7])}
        with pytest.raises(FormatError, match=r"must lie end to end|data_offsets|whole numbers"):
            ndfeed.open(write(header, bytes(7)), fields=["a"])


# Size


def test_many_small_tensors(tmp_path):
    """Models have thousands; each must be found, and the header is parsed once."""
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({f"layer.{i}": torch.tensor([i]) for i in range(3000)}, path)

    found = contents(path)

    assert len(found) == 3000
    assert found["layer.1234"] == ("<i8", (1,), (1234).to_bytes(8, "little"))


@pytest.mark.parametrize("brackets", ["[" * 100_000, '{"a":' * 100_000, '[{"a":' * 50_000])
def test_deep_nesting_is_refused_without_recursion(write, brackets):
    """The JSON parser of the standard library recurses; ours must not get there."""
    with pytest.raises(FormatError, match=r"nested at most 3 deep|at most 100,000 tensors"):
        describe(write(b'{"x":' + brackets.encode()))


def test_brackets_in_names_are_no_nesting(write):
    """Names are anything."""
    header = {"[{[{[{" * 20 + '"\\': ONE}

    assert list(arrays(write(header, b"ab"))) == list(header)


def test_quotes_without_partner_are_read_once(write):
    """Trying again from each escaped quote would take hours for 100 MB."""
    with pytest.raises(FormatError, match="header is wrong"):
        describe(write(b"{" * 100 + b'"' + b'\\"' * 2_000_000))


@pytest.mark.parametrize(
    "text",
    [
        b"{" + b",".join(b'"%d":{}' % i for i in range(100_010)) + b"}",
        b'{"x":[' + b"0," * 2_100_000 + b"0]}",
    ],
    ids=["tensors", "numbers"],
)
def test_masses_of_values_are_refused(write, text):
    """Each would be a Python object of 60 bytes before anything could be checked."""
    with pytest.raises(LimitError, match="expected at most 100,000 tensors"):
        describe(write(text))


# Recognition


@pytest.mark.parametrize(
    ("head", "size", "expected"),
    [
        (b"\2\0\0\0\0\0\0\0{}", 10, True),
        (b"\2\0\0\0\0\0\0\0{}", 9, False),
        (b"\2\0\0\0\0\0\0\0[]", 10, False),
        (b"\1\0\0\0\0\0\0\0{", 10, False),
        (b"\0\0\0\0\0\1\0\0{}", 1 << 50, False),
        (b"\2\0\0\0", 4, False),
        (b"", 0, False),
    ],
)
def test_recognised_by_length_and_brace(head, size, expected):
    """There is no magic number: a raw file of small integers must not be taken for one."""
    assert ours.looks_like(head, size) is expected


# Against the reference

SUPPORTED = {
    name: np.ascontiguousarray(array)
    for name, array in HARD_ARRAYS.items()
    if array.dtype.kind in "biufc" and array.dtype.byteorder != ">"
}


def test_hard_arrays_are_described_to_the_byte(tmp_path):
    """What safetensors wrote is what we would deliver."""
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(SUPPORTED, path)
    found = contents(path)

    assert found.keys() == SUPPORTED.keys()
    for name, array in SUPPORTED.items():
        assert found[name] == (array.dtype.str, array.shape, array.tobytes()), name


SAMPLES = [
    file_of({"a": ONE, "b": entry("F32", [1, 2], [2, 10])}, bytes(10), pad=3),
    file_of({"__metadata__": {"k": "v"}, "é": entry("BF16", [0, 3], [0, 0])}),
    safetensors.numpy.save({"x": np.arange(6.0).reshape(2, 3), "y": np.array(3, "i2")}),
]


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=damaged(SAMPLES))
def test_damaged_files_are_refused_or_read_as_the_reference_does(tmp_path, data):
    """No damage may raise anything else, run anything, or be read differently."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    try:
        with File(bytes(path)) as file, watch():
            found = ours.describe(file).arrays
    except Error:
        return
    expected = {name: bytes(tensor["data"]) for name, tensor in safetensors.deserialize(data)}

    assert {array.name: content(array, data) for array in found} == expected
