"""Views of a dataset made again on other files: ``Dataset.refresh``."""

import pickle

import numpy as np
import pytest
from growing import double, expected, name_of, values, write

import ndfeed
from ndfeed.errors import SchemaError

VIEWS = {
    "map": lambda ds: ds.map(double),
    "select": lambda ds: ds.select("data"),
    "rename": lambda ds: ds.rename({"data": "x"}),
    "windows": lambda ds: ds.windows(2),
    "labels": lambda ds: ds.with_labels(name_of),
    "labels of windows": lambda ds: ds.windows(3).with_labels(name_of),
    "windows by label": lambda ds: ds.with_labels(name_of).windows(2, by="label"),
    "origin": lambda ds: ds.with_origin(),
    "sum": lambda ds: ds + ds,
    "sum of others": lambda ds: ds + ds.map(double).rename({"twice": "data"}),
    "source of a dict": lambda ds: ndfeed.open({"a": ds, "b": ds.map(double)}),
    "crops": lambda ds: ds.windows(4).crops({"data": (2,)}, grid=1),
    "mix": lambda ds: ndfeed.mix({"a": ds, "b": ds.map(double).rename({"twice": "data"})}),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("pickled", [False, True])
def test_views_are_made_again(three, view, pickled):
    """Each gives what it would give on the dataset of the files that are there now."""
    ds = view(ndfeed.open(three, sample="row"))
    if pickled:
        ds = pickle.loads(pickle.dumps(ds))
    write(three, 5, 25)
    now, wanted = ds.refresh(), view(ndfeed.open(three, sample="row"))
    assert now.fingerprint == wanted.fingerprint
    found, right = now[:], wanted[:]
    assert list(found) == list(right)
    for name in right:
        np.testing.assert_array_equal(found[name], right[name])


FIXED = {
    "take": lambda ds: ds.take(slice(2)),
    "where": lambda ds: ds.where("data"),
    "split": lambda ds: ds.split(0.5)[0],
    "split by values": lambda ds: ds.split(0.5, by=np.arange(len(ds)))[0],
    "in_memory": lambda ds: ds.in_memory(),
    "labels of samples": lambda ds: ds.with_labels(np.arange(len(ds))),
    "bounds": lambda ds: ds.windows(2, bounds=[0, 4]),
    "crops at": lambda ds: ds.windows(4).crops({"data": (2,)}, at=[(0, 1)]),
    "array": lambda ds: ndfeed.open({"x": ds, "y": np.arange(len(ds))}),
    "map of a split": lambda ds: ds.split(0.5)[0].map(double),
}


@pytest.mark.parametrize("view", FIXED.values(), ids=FIXED)
def test_views_that_name_samples_cannot_follow(three, view):
    """They would silently name others: one line says what to do instead."""
    ds = view(ndfeed.open(three, sample="row"))
    with pytest.raises(ValueError, match=r"cannot grow after .*; refresh the"):
        ds.refresh()


def test_sources_of_a_dict_grow_together(tmp_path):
    """What belongs together still does: files wait for those of the same name in other sources.

    Here each source has a file that the other lacks: as many, but not the same.
    """
    for name in "xy":
        (tmp_path / name).mkdir()
        write(tmp_path / name, 1, 4)
    sources = {name: tmp_path / name / "*.npy" for name in "xy"}
    ds = ndfeed.open(sources, sample="row")
    write(tmp_path / "x", 0, 2)
    write(tmp_path / "y", 0, 3)
    now = ds.refresh()
    assert values(now, "x") == values(now, "y") == expected(0, 1, 4)
    assert [error.path[-7:] for error in now.skipped] == ["002.npy", "003.npy"]
    write(tmp_path / "y", 2)
    write(tmp_path / "x", 3)
    now = now.refresh()
    assert values(now, "x") == values(now, "y") == expected(0, 1, 2, 3, 4)
    assert now.skipped == []


def test_sources_with_other_names_must_have_as_many_samples(tmp_path):
    """There, nothing tells which belong together but their number."""
    for name in "xy":
        (tmp_path / name).mkdir()
    write(tmp_path / "x", 1, 2)
    write(tmp_path / "y", 5, 6)
    ds = ndfeed.open({name: tmp_path / name / "*.npy" for name in "xy"}, sample="row")
    write(tmp_path / "x", 3)
    with pytest.raises(SchemaError, match="differ in their number of samples"):
        ds.refresh()


def test_classes_keep_their_codes(tmp_path):
    """A class that sorts before the others would change the codes of all: it is an error."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, 1)
    ds = ndfeed.open(tmp_path, sample="file").with_labels(ndfeed.folder_name)
    write(tmp_path / "cat", 2)
    assert ds.refresh()[:]["label"].tolist() == [0, 0, 1]
    (tmp_path / "ant").mkdir()
    write(tmp_path / "ant", 1)
    with pytest.raises(SchemaError, match="labels that are not in classes=: 'ant'"):
        ds.refresh()


def test_labels_in_a_table_grow_with_it(three, tmp_path):
    """The table is read again, and must have the new files."""
    table = tmp_path / "labels.csv"
    table.write_text("file,label\n010,b\n020,a\n030,b\n")
    ds = ndfeed.open(three, sample="file").with_labels(table)
    write(three, 5)
    with pytest.raises(SchemaError, match="005"):
        ds.refresh()
    table.write_text("file,label\n005,a\n010,b\n020,a\n030,b\n")
    assert ds.refresh()[:]["label"].tolist() == [0, 1, 0, 1]
