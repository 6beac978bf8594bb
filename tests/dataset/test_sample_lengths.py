"""Lengths of samples come from headers and offsets."""

import numpy as np
import pytest
from ragged_making import pieces, texts

import ndfeed

VALUES, OFFSETS = texts()
LENGTHS = np.diff(OFFSETS).tolist()


@pytest.fixture
def ds(tmp_path):
    """Text, with a vector and a number beside it."""
    np.save(tmp_path / "tokens.npy", VALUES)
    np.save(tmp_path / "offsets.npy", OFFSETS)
    np.save(tmp_path / "x.npy", np.zeros((50, 4, 2)))
    np.save(tmp_path / "y.npy", np.arange(50))
    text = ndfeed.open(tmp_path / "tokens.npy", offsets=tmp_path / "offsets.npy")
    return ndfeed.open({"text": text, "x": tmp_path / "x.npy", "y": tmp_path / "y.npy"})


def test_lengths_of_ragged_and_even_fields(ds):
    """An array of 64-bit integers, one for each sample."""
    assert ds.lengths("text").tolist() == LENGTHS
    assert ds.lengths("text").dtype == np.int64
    assert ds.lengths("x").tolist() == [4] * 50


def test_lengths_follow_the_samples(ds):
    """Through take, split, +, rename, memory and packing."""
    some = [7, 3, 3, 49]
    assert ds.take(some).lengths("text").tolist() == [LENGTHS[i] for i in some]
    assert (ds + ds.take(some)).lengths("text").tolist() == LENGTHS + [LENGTHS[i] for i in some]
    assert ds.rename({"text": "t"}).lengths("t").tolist() == LENGTHS
    assert ds.in_memory().lengths("text").tolist() == LENGTHS
    first, second = ds.split(0.5)
    assert sorted([*first.lengths("text"), *second.lengths("text")]) == sorted(LENGTHS)
    short = ds.take(ds.lengths("text") <= 9)
    assert max(map(len, short[:]["text"])) <= 9


def test_lengths_of_packed_datasets_and_mixtures(ds, tmp_path):
    """Offsets of a packed dataset, headers of files, and both in one dataset."""
    packed = ndfeed.pack(ds.select("text"), tmp_path / "packed")
    assert packed.lengths("text").tolist() == LENGTHS
    for i, text in enumerate(pieces(VALUES, OFFSETS)[:5]):
        np.savez(tmp_path / f"file{i}.npz", text=text)
    files = ndfeed.open(tmp_path / "file*.npz", sample="file")
    assert files.lengths("text").tolist() == LENGTHS[:5]
    assert (files + packed).lengths("text").tolist() == LENGTHS[:5] + LENGTHS


def test_rows_that_differ_from_file_to_file(tmp_path):
    """There the length is that of the second axis of the file."""
    np.save(tmp_path / "a.npy", np.zeros((2, 5)))
    np.save(tmp_path / "b.npy", np.zeros((3, 7)))
    ds = ndfeed.open(tmp_path / "*.npy", sample="row")
    assert ds.lengths("data").tolist() == [5, 5, 7, 7, 7]


def test_what_has_no_length_says_so(ds, tmp_path):
    """Numbers, unknown fields, and what a map may have changed."""
    with pytest.raises(ValueError, match="single values"):
        ds.lengths("y")
    with pytest.raises(ndfeed.FieldError):
        ds.lengths("nothing")
    with pytest.raises(ValueError, match=r"before map\(\)"):
        ds.map(lambda batch: batch).lengths("text")
    np.save(tmp_path / "f0.npy", np.zeros(5))
    np.save(tmp_path / "f1.npy", np.array(5.0))
    with pytest.raises(ValueError, match="single values"):
        ndfeed.open(tmp_path / "f?.npy", sample="file").lengths("data")
