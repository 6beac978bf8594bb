"""Casts while packing: what fits is stored as NumPy would, what does not is named."""

import re

import ml_dtypes
import numpy as np
import pytest
from faults.seam import tree
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ndfeed
from ndfeed.formats.dtypes import cast

NUMBERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


def pack(tmp_path, values, dtype):
    np.save(tmp_path / "x.npy", values)
    ds = ndfeed.open(tmp_path / "x.npy")
    return ndfeed.pack(ds, tmp_path / "packed", dtype={"data": dtype})[:]["data"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([0, 127, -128]), "i1"),
        (np.array([1.9, -1.9, 0.5]), "i4"),
        (np.array([1e300, np.inf, np.nan]), "f8"),
        (np.array([np.inf, np.nan, 65504.0]), "f2"),
        (np.array([1e-30, 3.14159265358979]), "f4"),
        (np.array([2**64 - 1], "u8"), "f4"),
        (np.array([0, 1, 1]), "?"),
        (np.array([b"abc", b"d"]), "S3"),
        (np.array(["2020-01-01"], "M8[D]"), "M8[ns]"),
        (np.arange(5), "c8"),
        (np.array([1.5, -2.0]), ml_dtypes.bfloat16),
    ],
)
def test_what_fits_is_cast_as_numpy_does(tmp_path, values, dtype):
    """Less precise is what was asked for."""
    found = pack(tmp_path, values, dtype)

    with np.errstate(all="ignore"):
        expected = values.astype(dtype)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("values", "dtype", "row", "value"),
    [
        (np.array([0, 128, 500]), "i1", 1, "128"),
        (np.array([0, 5, -1]), "u8", 2, "-1"),
        (np.array([2**63], "u8"), "i8", 0, "9223372036854775808"),
        (np.array([[0.0, 1.0], [1e5, 7.0]]), "f2", 1, "100000.0"),
        (np.array([1.0, 1e39]), "f4", 1, "1e+39"),
        (np.array([0.0, np.nan]), "i4", 1, "nan"),
        (np.array([2.0**63]), "i8", 0, "9.223372036854775808e+18|9.223372036854776e+18"),
        (np.array([0, 1, 2]), "?", 2, "2"),
        (np.array([b"abc", b"abcd"]), "S3", 1, "b'abcd'"),
        (np.array(["9999-01-01"], "M8[D]"), "M8[ns]", 0, "9999-01-01"),
        (np.array([1e39, 0.0]), "bfloat16", 0, "1e+39"),
        (np.array([0.0, 1000.0]), "float8_e4m3fn", 1, "1000.0"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, values, dtype, row, value):
    """Field, row and value, and nothing is left behind."""
    np.save(tmp_path / "x.npy", values)
    before = tree(tmp_path)

    with pytest.raises(ndfeed.CastError, match="cannot hold") as caught:
        pack(tmp_path, values, dtype)
    any_value = "|".join(map(re.escape, value.split("|")))
    assert re.search(
        rf"x\.npy: field 'data' has ({any_value}) in row {row}, which", str(caught.value)
    )
    assert tree(tmp_path) == before


def test_ragged_values_are_named_by_their_row(tmp_path):
    """Also where rows have nothing."""
    (tmp_path / "source").mkdir()
    for i in range(6):
        np.savez(tmp_path / f"source/{i}.npz", x=np.full(i % 3, 100 * i), y=0)
    ds = ndfeed.open(tmp_path / "source", sample="file")

    with pytest.raises(ndfeed.CastError, match=r"2.npz: field 'x' has 200 in row 2, which int8"):
        ndfeed.pack(ds, tmp_path / "packed", dtype={"x": "i1"})


@pytest.mark.parametrize(
    ("old", "new"), [("c8", "f4"), ("S3", "i4"), ("i4", "U5"), ("M8[s]", "i8"), ("V4", "V2")]
)
def test_casts_without_a_meaning_are_refused(tmp_path, old, new):
    """Before anything is written."""
    with pytest.raises(ValueError, match=r"cannot become .* use map"):
        pack(tmp_path, np.zeros(3, old), new)


@given(data=st.data(), old=st.sampled_from(NUMBERS), new=st.sampled_from(NUMBERS[:-2]))
def test_a_cast_either_fits_or_names_the_first_misfit(data, old, new):
    """Against Python's own numbers."""
    values = data.draw(hnp.arrays(old, st.integers(1, 8)))
    if values.dtype.kind == "c":
        values = values.real
    made, misfit = cast(values, np.dtype(new).str)

    first = next((i for i, v in enumerate(values.tolist()) if not _fits(v, np.dtype(new))), None)
    assert (None if misfit is None else misfit.at) == first
    if misfit is None:
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(made, values.astype(new))


def _fits(value, dtype):
    finite = np.isfinite(value)
    if dtype.kind == "b":
        return value in (0, 1)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return bool(finite) and info.min <= int(value) <= info.max
    with np.errstate(all="ignore"):
        return bool(not finite or np.isfinite(np.float64(value).astype(dtype)))
