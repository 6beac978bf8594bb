"""Every .npy that NumPy writes is read to the bit; every other is refused with its name."""

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from children import examples
from described import describe
from formats.making import npy, npy_text, saved
from formats.reading import leaves, native, numpys, ours, rows, same
from hard_arrays import each_hard_array
from hostile import assert_harmless, contained, damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ndfeed
from ndfeed.errors import (
    DeniedError,
    FormatError,
    LimitError,
    SourceError,
    TruncatedError,
    UnsupportedError,
)
from ndfeed.formats.description import MOST_DIMENSIONS
from ndfeed.formats.npy import preamble

GOLDEN = Path(__file__).parent / "golden"
FEW = settings(
    max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
FILE = "x.npy"


# What NumPy writes


@each_hard_array
def test_hard_arrays_are_read_to_the_bit(write, array):
    """Whole files and rows alike, whatever the order, rank or type."""
    path = write(saved(array))
    expected = numpys(path)

    assert same(ours(path), expected)
    if array.ndim:
        assert same(rows(path), expected)
        assert same(rows(path, mapped=False), expected)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_1_2_and_3(write, version):
    """Some readers know 1.0 only, and read garbage from the others."""
    path = write(saved(np.arange(6).reshape(2, 3), version))

    assert same(rows(path), numpys(path))


def test_names_beyond_latin1_need_version_3(write):
    """NumPy chooses 3.0 by itself for such fields; the header is UTF-8 then."""
    path = write(saved(np.zeros(3, [("температура", "<f4"), ("ab", "<i2")])))

    assert path.read_bytes()[6:8] == b"\3\0"
    assert same(rows(path), numpys(path))


def test_version_2_is_chosen_for_long_headers(write):
    """Thousands of fields need more than 64 KiB of header, and get it: no compiler sees it."""
    dtype = [(f"a_rather_long_name_of_field_{i}", "<f4") for i in range(2000)]
    path = write(saved(np.arange(2000, dtype="<f4").view(dtype)))

    assert path.read_bytes()[6:8] == b"\2\0"
    assert len(ours(path)) == 2000
    with pytest.raises(ValueError, match="max_header_size"):
        np.load(path)


def test_keys_in_any_order(write):
    """Readers must not rely on the order that NumPy writes."""
    text = "{'shape': (2,), 'fortran_order': False, 'descr': '<i2'}"
    path = write(npy_text(text, b"\1\0\2\0"))

    assert same(rows(path), numpys(path))


def test_double_quotes_and_no_spaces(write):
    """Writers in other languages spell the same dict in other ways."""
    path = write(npy_text('{"descr":"<i2","fortran_order":False,"shape":(2,)}', b"\1\0\2\0"))

    assert same(rows(path), numpys(path))


@pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz` file required additional header")
def test_long_integers_of_python_2(write):
    """Files of a decade ago say 10L where they mean 10."""
    path = write(npy("<i4", "(2L, 3L)", bytes(range(24)), align=16))

    assert same(rows(path), numpys(path))


@pytest.mark.parametrize("align", [1, 2, 16, 64, 4096])
def test_alignment_is_not_assumed(write, align):
    """Headers were padded to 16 before NumPy 1.14, and not at all by others."""
    path = write(npy("<f8", (5, 2), np.arange(10.0).tobytes(), align=align))

    assert same(rows(path), numpys(path))


def test_room_to_grow_in_the_header(write, tmp_path):
    """Writers leave spaces to enlarge the first axis in place; the next open sees the new one."""
    path = write(npy("<i4", (2,), bytes(range(8)), align=1024))
    before = len(ndfeed.open(path))
    path.write_bytes(npy("<i4", (4,), bytes(range(16)), align=1024))

    assert (before, len(ndfeed.open(path))) == (2, 4)


@pytest.mark.parametrize("shape", [(7, 3), (7, 3, 2), (1, 5, 1), (4, 1), (2, 2, 2, 2)])
def test_fortran_order(write, shape):
    """Rows are gathered from all over the array and come out in C order."""
    array = np.asfortranarray(np.arange(np.prod(shape)).reshape(shape))
    path = write(saved(array))

    assert same(ours(path), numpys(path))
    assert same(rows(path), numpys(path))
    assert rows(path)["data"].flags.c_contiguous


def test_fortran_rows_are_warned_about_once_with_their_cost(write):
    """One row of such a file touches all of it: that must not be found out by waiting."""
    path = write(saved(np.asfortranarray(np.zeros((50, 40)))))
    with pytest.warns(UserWarning, match=r"x\.npy: Fortran order.*ascontiguousarray") as caught:
        ndfeed.open(path, cache=False)

    assert len(caught) == 1


@pytest.mark.parametrize("shape", [(), (5,), (5, 1), (1, 5), (0, 3), (1, 1, 1)])
@pytest.mark.filterwarnings("error")
def test_fortran_flag_where_it_means_nothing(write, shape):
    """With one axis, or none, both orders are the same: read in parts and without a warning."""
    path = write(npy("<i2", shape, bytes(2 * int(np.prod(shape))), fortran=True))
    ds = ndfeed.open(path, cache=False)

    assert same(ours(path), numpys(path))
    assert len(ds) == (shape[0] if shape else 1)


@pytest.mark.parametrize("dtype", [">f4", ">i2", ">u8", ">f2", ">c16", ">M8[us]", ">U3", ">f8"])
def test_big_endian_is_delivered_native(write, dtype):
    """torch refuses it, CuPy gave silent nonsense: we turn the bytes on the way."""
    array = np.arange(24).astype(dtype).reshape(4, 3, 2)
    path = write(saved(array))

    assert rows(path)["data"].dtype.isnative
    assert same(rows(path), {"data": array})
    assert same(ours(path), {"data": array})


@pytest.mark.parametrize("descr", ["|i1", "<i1", ">i1", "=i1", "i1", "|b1", "<b1", "|u1", ">u1"])
def test_any_byte_order_mark_on_single_bytes(write, descr):
    """The order of one byte is a matter of taste."""
    path = write(npy(descr, (3,), b"\0\1\1"))

    assert same(rows(path), numpys(path))


@pytest.mark.parametrize("descr", ["=f4", "f4", "|f4", "float32", "int64", "bool", "?"])
def test_native_spellings(write, descr):
    """What NumPy takes for native is native here too."""
    path = write(npy(descr, (2,), bytes(range(16))))

    assert same(rows(path), numpys(path))


STRUCTURED = {
    "padded": np.dtype([("a", "u1"), ("b", "<f8"), ("c", "<i2")], align=True),
    "packed": np.dtype([("a", "u1"), ("b", "<f8"), ("c", "<i2")]),
    "titled": np.dtype([(("The title", "a"), "<i4"), ("b", "u1")]),
    "sub-arrays": np.dtype([("a", "<i2", (2, 3)), ("b", "u1", 4), ("c", ">f4", (1,))]),
    "nested": np.dtype([("p", [("x", "<f4"), ("y", "<f4")]), ("id", "<u8")]),
    "deeply nested": np.dtype([("a", [("b", [("c", "<i2"), ("d", "u1")]), ("e", "u1")])]),
    "arrays of structures": np.dtype([("p", [("x", "<f4"), ("y", "u1")], (2, 3)), ("id", "<u8")]),
    "arrays of arrays": np.dtype([("p", [("q", [("x", ">i2"), ("y", "u1")], 2), ("z", "u1")], 3)]),
    "one field": np.dtype([("only", "<f8")]),
    "one sub-array": np.dtype([("only", "<f8", (2, 2))]),
    "text": np.dtype([("name", "<U5"), ("raw", "S3"), ("when", "<M8[D]")]),
    "an empty part": np.dtype([("none", "<f4", (0, 2)), ("a", "u1")]),
    "opaque": np.dtype([("blob", "V7"), ("a", "u1")]),
}


@pytest.mark.parametrize("kind", STRUCTURED)
@pytest.mark.parametrize("shape", [(6,), (), (3, 2), (1,), (0,)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_structured_arrays_are_one_field_a_leaf(write, kind, shape, order):
    """Frameworks have no records; each leaf is gathered with its own stride."""
    rng = np.random.default_rng(0)
    dtype = STRUCTURED[kind]
    count = int(np.prod(shape))
    raw = rng.integers(0, 100, dtype.itemsize * count, np.uint8)
    array = np.asarray(raw.view(dtype).reshape(shape) if count else np.empty(shape, dtype))
    path = write(saved(np.asfortranarray(array) if order == "F" else array))
    expected = numpys(path)

    assert list(expected) == list(leaves("data", array))
    assert same(ours(path), expected)
    if shape:
        assert same(rows(path), expected)
        assert same(rows(path, mapped=False), expected)


def test_leaves_can_be_opened_alone(write):
    """A label out of a record costs only its own bytes."""
    path = write(saved(np.zeros(3, STRUCTURED["nested"])))

    assert list(ndfeed.open(path, fields=["id", "p/y"]).fields) == ["id", "p/y"]


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("sub", [(2,), 3, (2, 3)])
def test_sub_array_at_the_top(write, sub, fortran):
    """NumPy's own dtype_to_descr spells it; its lengths come behind those of the array."""
    extra = sub if isinstance(sub, tuple) else (sub,)
    size = int(np.prod(extra))
    data = np.arange(6 * size, dtype="<i2")
    path = write(npy(f"('<i2', {sub})", (3, 2), data.tobytes(), fortran=fortran))
    records = data.reshape(6, size)
    expected = records.reshape(2, 3, size).swapaxes(0, 1) if fortran else records

    assert same(rows(path), {"data": expected.reshape(3, 2, *extra)})


def test_no_rows(write):
    """A dataset of length 0 is a dataset."""
    path = write(saved(np.zeros((0, 5), "<f4")))
    ds = ndfeed.open(path)

    assert len(ds) == 0
    assert ds.read([])["data"].shape == (0, 5)


def test_rows_of_nothing(write):
    """Five empty samples; nothing is mapped for them."""
    ds = ndfeed.open(write(saved(np.zeros((5, 0), "<f4"))))

    assert len(ds) == 5
    assert ds.read([0, 4])["data"].shape == (2, 0)


def test_rank_0_makes_the_file_a_sample(write):
    """There are no rows to count, so the samples are files, and the repr says why."""
    ds = ndfeed.open(write(saved(np.float32(1.5))))

    assert len(ds) == 1
    assert ds[0]["data"] == np.float32(1.5)
    assert "is a scalar" in ds.why


@pytest.mark.parametrize("descr", ["|S0", "|V0", "<U0", "S", "V", "U"])
def test_elements_of_no_bytes_are_refused(write, descr):
    """A 128-byte file could promise a million million of them."""
    with pytest.raises(FormatError, match=r"x\.npy: the \.npy header is wrong: .*dtype"):
        ndfeed.open(write(npy(descr, (10**12,))))


@pytest.mark.parametrize("array", [[1, "a"], {"a": 1}], ids=["list", "dict"])
def test_object_arrays_are_refused_with_the_remedy(write, array):
    """The dict saved with np.save is common: say what to do, and never unpickle."""
    path = write(saved(np.array(array, object)))

    with pytest.raises(UnsupportedError, match=r"never unpickled.*np\.savez"):
        ndfeed.open(path)


@pytest.mark.parametrize(
    "descr", ["|O", "O", "|O8", "[('a', '|O')]", "[('a', '<i4'), ('b', [('c', 'O', (2,))])]"]
)
def test_objects_anywhere_in_a_header_are_refused(write, descr):
    """Objects hide in fields, sub-arrays and empty arrays too."""
    with pytest.raises(UnsupportedError, match="Python objects"):
        ndfeed.open(write(npy(descr, (0,))))


def test_new_style_strings_are_objects_to_numpy(write):
    """StringDType is pickled by np.save, so it goes the way of all objects."""
    pytest.importorskip("numpy.dtypes")
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("NumPy 1")
    path = write(saved(np.array(["a", "bc"], np.dtypes.StringDType())))

    with pytest.raises(UnsupportedError, match="never unpickled"):
        ndfeed.open(path)


def test_bools_pass_as_they_are(write):
    """Foreign writers put other bytes than 0 and 1; we are no judge."""
    path = write(npy("|b1", (4,), b"\0\1\2\xff"))

    assert rows(path)["data"].tobytes() == b"\0\1\2\xff"


@pytest.mark.parametrize("dtype", ["c8", "c16", "f2", "u2", "u4", "u8", "f16", "c32"])
def test_wide_and_narrow_numbers(write, dtype):
    """Complex, half, unsigned and long double come as NumPy has them; frameworks say no later."""
    array = (np.arange(10) * 1.25).astype(dtype)
    path = write(saved(array))

    assert same(rows(path), {"data": array})


def test_bfloat16_is_recognised_with_a_warning(write):
    """np.save writes two opaque bytes; nobody but the caller knows what they are."""
    array = np.arange(6).astype(ml_dtypes.bfloat16)
    path = write(saved(array))
    with pytest.warns(
        UserWarning,
        match=r"x\.npy: two-byte opaque elements are read as bfloat16.*pass dtype='bfloat16'",
    ):
        ds = ndfeed.open(path, cache=False)

    assert ds.read([5, 0])["data"].dtype == ml_dtypes.bfloat16
    assert ds.read(np.arange(6))["data"].tobytes() == array.tobytes()


@pytest.mark.parametrize("descr", ["<V2", "|V2", "bfloat16"])
@pytest.mark.filterwarnings("error")
def test_bfloat16_that_is_asked_for(write, descr):
    """With the type given, or spelled in the header, there is nothing to warn about."""
    array = np.arange(6).astype(ml_dtypes.bfloat16)
    path = write(npy(descr, (6,), array.tobytes()))
    given = {} if descr == "bfloat16" else {"dtype": "bfloat16"}

    assert native(ndfeed.open(path, cache=False, **given)[:]["data"]) == native(array)


def test_one_opaque_byte_needs_its_type(write):
    """Nine types of ml_dtypes are saved as V1: a guess would train on nonsense."""
    path = write(saved(np.ones(3, ml_dtypes.float8_e4m3fn)))

    with pytest.raises(UnsupportedError, match=r'x\.npy: .*"V1".*dtype="float8_e4m3fn"'):
        ndfeed.open(path)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e8m0fnu", "int4", "uint2", "uint8"])
def test_one_opaque_byte_with_its_type(write, name):
    """Also the narrow integers, which take a byte each."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    array = np.array([0, 1, 1], "u1").view(dtype)
    path = write(npy("<V1", (3,), array.tobytes()))

    assert native(ndfeed.open(path, dtype=name)[:]["data"]) == native(array)


def test_float8_e5m2_has_a_spelling_of_its_own(write):
    """np.save writes '<f1', which np.load cannot read back."""
    array = np.array([1.5, -2], ml_dtypes.float8_e5m2)
    path = write(saved(array))

    assert b"'<f1'" in path.read_bytes()
    assert native(ndfeed.open(path)[:]["data"]) == native(array)


@pytest.mark.parametrize("descr", ["<g2", "<W4", "<f3", "<x4", "l", "", "f4,f4", "(2)f4", "<i16"])
def test_unknown_types_are_refused(write, descr):
    """What is not understood is not guessed at."""
    with pytest.raises(FormatError, match="unknown dtype"):
        ndfeed.open(write(npy(repr(descr), (1,), bytes(16))))


@pytest.mark.parametrize("unit", ["s/0", "0s", "s/2", "00s", "parsec", "s][s", "99999999999s", ""])
def test_units_of_time_that_numpy_dies_of(write, unit):
    """np.dtype('M8[s/0]') divides by zero and ends the process: it must never see it."""
    with pytest.raises(FormatError, match="unknown dtype"):
        ndfeed.open(write(npy(f"<M8[{unit}]", (1,), bytes(8))))


@pytest.mark.parametrize("dtype", ["M8[ns]", "M8[D]", "m8[25us]", "M8[as]", "m8", "M8"])
def test_dates_and_spans(write, dtype):
    """Delivered as NumPy's own, with their unit; NaT stays NaT."""
    array = np.array([0, 1, np.iinfo("i8").min], "i8").view(dtype)
    path = write(saved(array))

    assert same(rows(path), {"data": array})
    assert np.isnat(rows(path)["data"][2])


@pytest.mark.parametrize("array", [["", "a", "ünï"], [b"", b"a", b"abc"]], ids=["U", "S"])
def test_text_stays_text(write, array):
    """No tensors, so frameworks leave them out; NumPy has them."""
    path = write(saved(np.array(array)))

    assert ndfeed.open(path)[:]["data"].tolist() == array


@pytest.mark.parametrize("spare", [1, 5, 128])
def test_bytes_behind_the_array_are_ignored_with_a_remark(write, spare):
    """NumPy reads the first array of a file and stops, and so do we."""
    path = write(saved(np.arange(3)) + bytes(spare))

    assert same(rows(path), {"data": np.arange(3)})
    assert describe(path).notes == (f"{spare} bytes after the array are ignored",)


def test_second_array_in_a_file_is_ignored(write):
    """np.save twice to one open file: the first is what np.load gives."""
    path = write(saved(np.arange(3)) + saved(np.ones(2)))

    assert same(rows(path), numpys(path))


# What nobody should write


@pytest.mark.parametrize("kept", [0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 50, 127])
def test_file_that_ends_in_its_header(write, kept):
    """Half a header is no header, wherever it is cut."""
    path = write(saved(np.arange(3))[:kept])

    with pytest.raises(
        FormatError, match=rf"x\.npy.*(found (only )?{kept}|0 bytes|not a known array)"
    ):
        ndfeed.open(path)


@pytest.mark.parametrize("lost", [1, 7, 40])
def test_file_that_ends_in_its_elements(write, lost):
    """A half-copied file fails when opened, and the message has both sizes."""
    whole = saved(np.zeros((10, 4), "<f4"))
    path = write(whole[:-lost])

    with pytest.raises(
        TruncatedError, match=rf"expected {len(whole)} bytes .* found {len(whole) - lost}"
    ):
        ndfeed.open(path)


@pytest.mark.parametrize("version", [(0, 0), (1, 1), (4, 0), (255, 255)])
def test_other_versions_are_refused(write, version):
    """The format of a version that does not exist yet cannot be known."""
    data = bytearray(saved(np.arange(3)))
    data[6:8] = bytes(version)
    found = f"{version[0]}.{version[1]}"

    with pytest.raises(
        UnsupportedError, match=rf"expected \.npy version 1\.0, 2\.0 or 3\.0, found {found}"
    ):
        ndfeed.open(write(bytes(data)))


@pytest.mark.parametrize(
    "shape",
    [
        "(-1,)",
        "(True,)",
        "(1.0,)",
        "('3',)",
        "3",
        "[3]",
        "None",
        "(3",
        "(None,)",
        "((1,),)",
        "(03,)",
    ],
)
def test_shapes_that_are_none(write, shape):
    """True is 1 in Python, and (3) is no tuple; NumPy refuses them as well."""
    with pytest.raises(FormatError, match=r"x\.npy: the \.npy header is wrong"):
        ndfeed.open(write(npy("<i4", shape, bytes(64))))


@pytest.mark.parametrize(
    ("descr", "shape"),
    [
        ("<f8", "(2305843009213693952,)"),
        ("<f8", "(0, 2305843009213693952)"),
        ("<f8", "(3037000500, 3037000500)"),
        ("|u1", f"({10**30},)"),
        ("|u1", f"({10**400},)"),
        ("[('a', '<f4', (0, 4611686018427387904)), ('b', 'u1')]", "(1,)"),
        ("[('a', [('b', 'u1', (4294967296,))], (4294967296,))]", "(1,)"),
        ("<U99", "(4611686018427387904, 0)"),
    ],
)
def test_shapes_beyond_arithmetic(write, descr, shape):
    """Products are taken in whole numbers: what wraps to 0 elsewhere is refused, empty or not."""
    with pytest.raises(
        FormatError, match=r"x\.npy: (expected fewer than 2\*\*63|the \.npy header)"
    ):
        ndfeed.open(write(npy(descr, shape, bytes(64))))


def test_large_promises_are_truncated_files(write):
    """8 TiB from 128 bytes: NumPy would ask the system for them."""
    with pytest.raises(TruncatedError, match=r"expected 8796093022336 bytes .* found 128"):
        ndfeed.open(write(npy("<f8", (1 << 40,))))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("length", [256 * 1024, 1 << 31, (1 << 32) - 1])
def test_long_headers_are_refused_before_they_are_read(write, version, length):
    """The length field alone may ask for 4 GiB."""
    with pytest.raises(
        LimitError, match=f"expected a header of at most 262144 bytes, found {length + 12}"
    ):
        ndfeed.open(write(npy_text("{}", version=version, length=length)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "{'descr': '<i4', 'fortran_order': False}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<i4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1,)} trailing",
        "('<i4', False, (1,))",
        "__import__('os').system('true')",
        "{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1+1,)}",
        "{'descr': {'names': ['a'], 'formats': ['<i4']}, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<i4'), ('a', '<i4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('', '<i4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('', '|V4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a',)], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [(1, '<i4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<i4', (-1,))], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<i4', (0,))], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': ('<i4', (1,), 2), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': None, 'fortran_order': False, 'shape': (1,)}",
    ],
)
def test_headers_that_are_none(write, text):
    """Nothing in a header is run, and nothing is taken for what it is not."""
    with pytest.raises(FormatError, match=r"x\.npy: the \.npy header is wrong"):
        ndfeed.open(write(npy_text(text, bytes(64))))


def test_header_that_is_not_utf8(write):
    """Version 3.0 promises UTF-8."""
    data = npy_text("{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", bytes(4), version=3)

    with pytest.raises(FormatError, match="not UTF-8"):
        ndfeed.open(write(data.replace(b"<i4", b"<i\xff")))


@pytest.mark.parametrize("rank", [MOST_DIMENSIONS, MOST_DIMENSIONS + 1, 65, 30_000])
def test_rank_is_limited(write, rank):
    """A batch has an axis more than a sample, and NumPy at most 64."""
    path = write(npy("|u1", "(" + "1," * rank + ")", b"\7", version=2))
    if rank <= MOST_DIMENSIONS:
        assert ours(path)["data"].shape == (1,) * rank
        return

    with pytest.raises(LimitError, match=f"at most {MOST_DIMENSIONS} dimensions"):
        ndfeed.open(path)


def test_rank_is_limited_with_the_lengths_of_fields(write):
    """Each part may be within bounds, and the sum not."""
    with pytest.raises(LimitError, match=f"at most {MOST_DIMENSIONS} dimensions"):
        ndfeed.open(write(npy(f"[('a', 'u1', {(1,) * 40})]", (1,) * 40, b"\7")))


BOMBS = {
    "deep brackets": "[" * 200_000,
    "deep parentheses": "(" * 120_000 + ")" * 120_000,
    "deep dicts": "{'a':" * 50_000,
    "many fields": "{'descr': [" + "('a','u1')," * 20_000,
    "many distinct fields": "{'descr': ["
    + "".join(f"('{i:x}','u1')," for i in range(15_000))
    + "], 'fortran_order': False, 'shape': (1,)}",
    "long names times many fields": "{'descr': [('"
    + "n" * 200_000
    + "', ["
    + "".join(f"('{i:x}','u1')," for i in range(3_000))
    + "])], 'fortran_order': False, 'shape': (1,)}",
    "nested structures": "{'descr': " + "[('a', " * 30_000,
    "long numbers": "{'shape': (" + "9" * 250_000 + ",)}",
    "many long numbers": "{'descr': 'u1', 'fortran_order': False, 'shape': ("
    + ("9" * 39 + ",") * 6_000
    + "), }",
    "long shape": "{'descr': '|u1', 'fortran_order': False, 'shape': (" + "1, " * 80_000 + "), }",
    "many escapes": "{'" + "\\x41" * 60_000 + "': 1}",
    "an open quote": "{'" + "a" * 250_000,
    "many quotes": "'" * 250_000,
    "spaces": " " * 250_000,
    "many words": "[" + "True," * 50_000 + "]",
}


def test_header_bombs(write):
    """Headers as long as is allowed, made to be slow or large in a careless parser."""
    paths = [write(npy_text(BOMBS[kind], bytes(64), version=2), f"{kind}.npy") for kind in BOMBS]

    assert_harmless(*paths, kinds=["FormatError", "LimitError"])


def test_iteration_bomb_costs_nothing(write):
    """(10**15, 0) is a legal shape of no bytes: opening and reading a few rows is all it gets."""
    ds = ndfeed.open(write(npy("<f4", (10**15, 0))))

    assert len(ds) == 10**15
    assert ds.read([0, 10**15 - 1])["data"].shape == (2, 0)


def test_pipes_are_refused_without_waiting(tmp_path):
    """Opening a pipe that nobody writes to would wait for ever."""
    path = tmp_path / "x.npy"
    os.mkfifo(path)

    with pytest.raises(SourceError, match=r"x\.npy: expected a regular file, found a pipe"):
        ndfeed.open([path])


def test_folders_in_a_list_of_files(tmp_path):
    """A folder called x.npy, with nothing in it, is not a file of that name."""
    (tmp_path / "x.npy").mkdir()

    with pytest.raises(ndfeed.Error, match=r"x\.npy: no array files"):
        ndfeed.open([tmp_path / "x.npy"])


def test_permission_denied_names_the_file(write):
    """The message has the file, not a number."""
    path = write(saved(np.arange(3)))
    path.chmod(0)
    code = (
        "import os, sys\n"
        "import ndfeed\n"
        "if os.geteuid() == 0: os.setegid(65534); os.seteuid(65534)\n"
        "try: ndfeed.open(sys.argv[1], cache=False)\n"
        "except ndfeed.Error as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)

    assert done.stdout.startswith(f"{DeniedError.__name__} {path}: permission denied"), done.stderr


# Files of other times


@pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz` file required additional header")
def test_golden_files_of_old_numpy():
    """Files written by NumPy 1.23, and by hand as older ones did, are read for ever."""
    names = sorted(path.name for path in GOLDEN.glob("*.npy"))
    for name in names:
        assert same(ours(GOLDEN / name), numpys(GOLDEN / name))

    assert len(names) >= 10


# Properties

plain_types = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.timedelta64_dtypes(endianness="?"),
    hnp.byte_string_dtypes(endianness="?", min_len=1, max_len=9),
    hnp.unicode_string_dtypes(endianness="?", min_len=1, max_len=5),
)
any_types = st.one_of(
    plain_types,
    hnp.nested_dtypes(plain_types, max_itemsize=64, max_leaves=4).filter(
        lambda dtype: dtype.itemsize and dtype.subdtype is None
    ),
)


@st.composite
def any_arrays(draw):
    """An array of random bits, of any type, shape and order."""
    dtype = draw(any_types)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    count = int(np.prod(shape))
    seed = draw(st.integers(0, 2**32 - 1))
    raw = np.random.default_rng(seed).bytes(dtype.itemsize * count)
    array = np.frombuffer(_possible(raw, dtype), dtype, count).reshape(shape)
    return np.asfortranarray(array) if draw(st.booleans()) else array


def _possible(raw, dtype):
    """Random bytes, but none that text of NumPy cannot hold."""
    if "U" in str(dtype):
        return bytes(len(raw))
    return raw


@FEW
@given(array=any_arrays(), version=st.sampled_from([None, (1, 0), (2, 0), (3, 0)]))
def test_any_array_is_read_to_the_bit(tmp_path, array, version):
    """Every type, shape, order and version that NumPy can write, compared as bytes."""
    path = tmp_path / "x.npy"
    try:
        path.write_bytes(saved(array, version))
    except ValueError:  # not in that version
        path.write_bytes(saved(array))
    expected = numpys(path)

    assert same(ours(path), expected)
    if array.ndim and array.size:
        assert same(rows(path), expected)


SAMPLES = [
    saved(np.arange(6, dtype="<f4").reshape(2, 3)),
    saved(np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)), (2, 0)),
    saved(np.zeros(2, STRUCTURED["nested"]), (3, 0)),
    saved(np.zeros(2, STRUCTURED["sub-arrays"])),
    saved(np.array("2024-01-01", "M8[s]")),
    saved(np.array([["a", "bc"]])),
    saved(np.array([None])),
    npy("bfloat16", (2,), b"abcd", align=16),
    npy("('<i2', (2,))", (3,), bytes(12)),
]


@settings(FEW, max_examples=examples(600))
@given(data=damaged(SAMPLES))
def test_damaged_files_raise_our_errors_alone(tmp_path, data):
    """And what is accepted in spite of the damage is what NumPy reads, if it reads it."""
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    found = contained(path)
    if found is None:
        return
    try:
        expected = numpys(path)
    except (ValueError, TypeError, SyntaxError, OSError, MemoryError):
        return

    assert same(found, expected)


@each_hard_array
def test_what_is_put_before_an_array_is_what_numpy_puts(array):
    """Packed columns are the same bytes whatever version of NumPy wrote or reads them."""
    plain = np.zeros(array.shape, array.dtype if array.dtype.names is None else "|V15")

    assert preamble(plain.dtype.str, plain.shape) + plain.tobytes() == saved(plain)
