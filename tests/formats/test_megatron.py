"""Megatron's .idx files: described as their specification says, and refused where they lie."""

import struct
from contextlib import suppress

import numpy as np
import pytest
from children import examples
from hostile import damaged, watch
from hypothesis import HealthCheck, given, settings
from ragged_making import MEGATRON_CODES, megatron_index, save_megatron

import ndfeed
from ndfeed.errors import FormatError, TruncatedError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats import megatron

FILE = "x.idx"
FEW = settings(
    max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# Three sequences of 2, 0 and 3 elements of uint16, in two documents.
GOLDEN = (
    b"MMIDIDX\x00\x00"
    b"\x01\x00\x00\x00\x00\x00\x00\x00"  # version
    b"\x08"  # uint16
    b"\x03\x00\x00\x00\x00\x00\x00\x00"  # sequences
    b"\x03\x00\x00\x00\x00\x00\x00\x00"  # entries of the document index
    b"\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00"  # sizes
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00"  # pointers
    b"\x04\x00\x00\x00\x00\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00"  # documents
    b"\x03\x00\x00\x00\x00\x00\x00\x00"
)
TOKENS = np.array([11, 12, 13, 14, 15], "<u2")


def described(path):
    """What the format module says of a file."""
    with File(bytes(path)) as file:
        return megatron.describe(file)


def test_golden_bytes(write, tmp_path):
    """As written by hand from the specification, and by the tests' own writer."""
    path = write(GOLDEN)
    (tmp_path / "x.bin").write_bytes(TOKENS.tobytes())
    found = {array.name: array for array in described(path).arrays}

    assert megatron_index([2, 0, 3], documents=[0, 2, 3]) == GOLDEN
    assert (found["sizes"].offset, found["sizes"].shape) == (34, (3, 1))
    assert (found["pointers"].offset, found["pointers"].shape) == (46, (3, 1))
    assert (found["documents"].offset, found["documents"].shape) == (70, (3,))
    ds = ndfeed.open(path)
    assert [one.tolist() for one in ds[:]["data"]] == [[11, 12], [], [13, 14, 15]]


@pytest.mark.parametrize("code", MEGATRON_CODES)
def test_every_dtype_code(tmp_path, code):
    """As in Megatron's enum: 6 is float64 and 7 float32."""
    samples = [np.arange(3), np.arange(0), np.arange(5)]
    save_megatron(tmp_path / "x.idx", samples, code)
    ds = ndfeed.open(tmp_path / "x.idx")

    assert ds.fields["data"].dtype == np.dtype(MEGATRON_CODES[code])
    assert [one.tolist() for one in ds[:]["data"]] == [one.tolist() for one in samples]


def test_modes_of_multimodal_datasets_are_passed_over(write, tmp_path):
    """They follow the document index."""
    path = write(GOLDEN + bytes(3))
    (tmp_path / "x.bin").write_bytes(TOKENS.tobytes())

    assert len(ndfeed.open(path)) == 3


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (GOLDEN[:20], TruncatedError, "header of 34 bytes, found 20"),
        (GOLDEN[:-1], TruncatedError, "expected 94 bytes"),
        (GOLDEN + b"x", FormatError, "expected 94 bytes"),
        (megatron_index([1], version=2), UnsupportedError, "version 2"),
        (megatron_index([1], code=9), FormatError, "code from 1 to 8, found 9"),
        (megatron_index([1], code=0), FormatError, "code from 1 to 8, found 0"),
        (GOLDEN[:18] + struct.pack("<Q", 2**63) + GOLDEN[26:], TruncatedError, "promised"),
        (GOLDEN[:26] + struct.pack("<Q", 2**64 - 1) + GOLDEN[34:], TruncatedError, "promised"),
    ],
)
def test_wrong_headers_are_refused(write, data, error, message):
    """Before anything is allocated, or the .bin file is looked for."""
    with pytest.raises(error, match=message):
        ndfeed.open(write(data))


@FEW
@given(data=damaged([GOLDEN, megatron_index(range(20), 1)]))
def test_damaged_files_raise_our_errors_alone(tmp_path, data):
    """Whatever the numbers are, nothing outside of the two files is read."""
    path, values = tmp_path / "x.idx", tmp_path / "x.bin"
    path.write_bytes(data)
    values.write_bytes(TOKENS.tobytes() if b"\x08\x03" in data else bytes(190))
    size = values.stat().st_size
    with watch(path, values, f"{path}.json"), suppress(ndfeed.Error):
        ds = ndfeed.open(path, cache=False)
        found = ds.read(np.arange(len(ds)))["data"]
        assert all(one.nbytes <= size for one in found)
