"""Fingerprints: the same for the same samples in the same order, else another."""

import shutil

import numpy as np
import pytest

import ndfeed


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "a"
    place.mkdir()
    for i in range(3):
        np.savez(place / f"{i}.npz", x=np.full((4, 2), i), y=np.arange(4))
    return place


def test_a_copy_elsewhere_has_the_same(folder, tmp_path):
    """A run goes on on another machine."""
    shutil.copytree(folder, tmp_path / "b")

    first, second = (ndfeed.open(tmp_path / n, sample="row").fingerprint for n in "ab")
    assert first == second


def test_memory_has_that_of_the_files(folder):
    """The samples are the same, wherever they are held."""
    ds = ndfeed.open(folder, sample="row")

    assert ds.in_memory().fingerprint == ds.fingerprint
    assert ds.take([3, 1]).in_memory().fingerprint == ds.take([3, 1]).fingerprint
    assert (ds.in_memory() + ds).fingerprint == (ds.in_memory() + ds).fingerprint


def test_fields_and_maps_do_not_count(folder):
    """Row 7 is row 7."""
    ds = ndfeed.open(folder, sample="row")

    assert ds.select("y").map(lambda b: b).fingerprint == ds.fingerprint


def test_other_samples_have_others(folder):
    """Of files, of rows, of order, of how samples are understood."""
    ds = ndfeed.open(folder, sample="row")
    np.savez(folder / "3.npz", x=np.full((4, 2), 3), y=np.arange(4))
    more = ndfeed.open(folder, sample="row")
    found = [
        ds,
        more,
        ndfeed.open(folder, sample="file"),
        ds.take(slice(0, 5)),
        ds.take([1, 0]),
        ds.take([0, 1]),
        ds + ds,
        ds.in_memory() + ds,
    ]

    assert len({one.fingerprint for one in found}) == len(found)


def test_a_slice_is_the_rows_it_stands_for(folder):
    """However a choice was written."""
    ds = ndfeed.open(folder, sample="row")

    assert ds.take(slice(2, 9, 3)).fingerprint == ds.take([2, 5, 8]).fingerprint


def test_it_is_frozen(tmp_path):
    """States of earlier versions carry it: a change here makes all of them useless."""
    np.save(tmp_path / "x.npy", np.arange(12, dtype="<i4").reshape(6, 2))
    ds = ndfeed.open(tmp_path / "x.npy")

    assert [ds.fingerprint, ds.take([1]).fingerprint] == ["a5f72e2cc04b4812", "b2ec45a5aa1fb186"]
