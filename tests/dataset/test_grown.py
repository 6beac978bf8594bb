"""Old samples of a dataset that has grown, found by the fingerprint it had."""

import os
import time

import numpy as np
import pytest
from growing import ROWS, double, name_of, values, write
from hypothesis import given
from hypothesis import strategies as st

import ndfeed
from ndfeed.dataset.grown import find_past, match_past
from ndfeed.errors import ResumeError


def rows_of(past):
    """The numbers of the old samples in the dataset as it is now."""
    pieces = [np.arange(start, start + count) for start, count in past.stretches.tolist()]
    return np.concatenate(pieces)


def check(now, old, past):
    """Are these the samples, in their order?"""
    rows = rows_of(past)
    assert past.dataset.fingerprint == old.fingerprint
    assert len(rows) == len(old)
    found, right = now[rows], old[:]
    for name in right.keys() - {"case"}:  # the number of a crop's case, which counts all
        np.testing.assert_array_equal(found[name], right[name])


def date(folder, *numbers, at=0):
    """Give files times in this order, after ``at`` seconds of a day long past."""
    for second, number in enumerate(numbers, 1_000_000 + at):
        os.utime(folder / f"{number:03}.npy", (second, second))


VIEWS = {
    "rows": lambda ds: ds,
    "map": lambda ds: ds.map(double),
    "windows": lambda ds: ds.windows(2, stride=2),
    "windows that some files have": lambda ds: ds.windows(5),
    "labels": lambda ds: ds.with_labels(name_of),
    "crops of a grid": lambda ds: ds.windows(4).crops({"data": (2,)}, grid=1),
    "random crops": lambda ds: ds.windows(4).crops({"data": (2,)}, each=3).map(size),
    "dict": lambda ds: ndfeed.open({"a": ds, "b": ds.map(double)}),
}


def size(batch):
    """A map of random crops that is the same whatever is drawn."""
    return {"size": np.full(len(batch["data"]), 2)}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("new", [(40, 50), (5, 15, 40)], ids=["after", "anywhere"])
def test_the_fingerprint_tells_old_samples(tmp_path, view, new):
    """Files that came after the others by name or by time, under any view of rows."""
    write(tmp_path, 10, 20, 30)
    np.save(tmp_path / "020.npy", np.arange(80, 85))
    date(tmp_path, 10, 30, 20)
    old = view(ndfeed.open(tmp_path, sample="row"))
    write(tmp_path, *new)
    now = view(ndfeed.open(tmp_path, sample="row"))
    check(now, old, find_past(now, old.fingerprint, len(old)))
    check(now, old, match_past(now, old))


def test_whole_files_and_sums_are_told_apart_by_time(tmp_path):
    """Where names do not help, times do, over all sources together."""
    for name in "ab":
        (tmp_path / name).mkdir()
        write(tmp_path / name, 10, 20)
        date(tmp_path / name, 10, 20)
    sources = [tmp_path / name for name in "ab"]

    def add():
        one, two = (ndfeed.open(source, sample="file") for source in sources)
        return one + two

    old = add()
    for name in "ab":
        write(tmp_path / name, 15, 30)
    now = add()
    check(now, old, find_past(now, old.fingerprint, len(old)))
    check(now, old, match_past(now, old))


def test_sources_of_a_dict_are_told_apart_together(tmp_path):
    """One file of the first may have the samples of several of the second."""
    for name in "xy":
        (tmp_path / name).mkdir()

    def grow(number):
        write(tmp_path / "x", number)
        for row in range(ROWS):
            np.save(tmp_path / "y" / f"{number:03}-{row}.npy", ROWS * number + row)

    def fetch():
        source = {"x": tmp_path / "x/*.npy", "y": tmp_path / "y/*.npy"}
        return ndfeed.open(source, sample={"x": "row", "y": "file"})

    for number in (10, 20):
        grow(number)
    old = fetch()
    grow(30)
    now = fetch()
    check(now, old, find_past(now, old.fingerprint, len(old)))
    check(now, old, match_past(now, old))
    assert values(now, "x") == values(now, "y")


def test_what_cannot_be_told_is_an_error(tmp_path):
    """Times that were lost by copying, for example: the caller has to say which were there."""
    write(tmp_path, 10, 20, 30)
    old = ndfeed.open(sorted(tmp_path.glob("*.npy")), sample="row")
    write(tmp_path, 15, 40)
    kept = [tmp_path / f"{number:03}.npy" for number in (10, 20, 30)]
    for number in (15, 10, 40, 20, 30):  # also the times of change are those of a copy
        date(tmp_path, number, at=number % 7)
        time.sleep(0.02)
    now = ndfeed.open(tmp_path, sample="row")
    with pytest.raises(ResumeError, match=r"cannot tell which of 5 files were there before.*pass "):
        find_past(now, old.fingerprint, len(old))
    old = ndfeed.open(kept, sample="row")
    check(now, old, match_past(now, old))


def test_new_files_that_sort_before_all_others_need_no_times(tmp_path):
    """Where files were copied, and have the times of the copy."""
    write(tmp_path, 10, 20)
    write(tmp_path, 1, 2, 3)
    date(tmp_path, 1, 10, 2, 20, 3)
    old = ndfeed.open(tmp_path / "0[12]0.npy", sample="row")
    now = ndfeed.open(tmp_path, sample="row")
    check(now, old, find_past(now, old.fingerprint, len(old)))


def test_folders_of_the_same_names_are_not_mistaken_for_each_other(tmp_path):
    """A fingerprint does not say which folder: without more to go by, nothing is assumed."""
    (tmp_path / "b").mkdir()
    write(tmp_path / "b", 1, 2)
    old = ndfeed.open(tmp_path, sample="row")
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", 1, 2)
    now = ndfeed.open(tmp_path, sample="row")
    with pytest.raises(ResumeError, match="several sets of files could be that of the state"):
        find_past(now, old.fingerprint, len(old))
    assert match_past(now, old).stretches.tolist() == [[2 * ROWS, 2 * ROWS]]


def test_other_data_is_an_error(tmp_path):
    """Neither fewer samples nor those of other files pass."""
    write(tmp_path, 10, 20)
    now = ndfeed.open(tmp_path, sample="row")
    with pytest.raises(ResumeError, match="belongs to 9 samples, and now there are 8"):
        find_past(now, now.fingerprint, 9)
    with pytest.raises(ResumeError, match="cannot tell"):
        find_past(now, "0123456789abcdef", ROWS)
    with pytest.raises(ResumeError, match="cannot tell"):
        find_past(now, "0123456789abcdef", ROWS + 1)
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", 10)
    with pytest.raises(ResumeError, match="is not part of this one"):
        match_past(now, ndfeed.open(tmp_path / "other", sample="row"))


def test_views_that_name_samples_have_no_past(tmp_path):
    """A split of more samples is another split."""
    write(tmp_path, 10, 20)
    old = ndfeed.open(tmp_path, sample="row").split(0.5)[0]
    write(tmp_path, 30)
    now = ndfeed.open(tmp_path, sample="row").split(0.5)[0]
    with pytest.raises(ValueError, match="cannot grow after split"):
        find_past(now, old.fingerprint, len(old))


@given(
    files=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12),
)
def test_any_history_is_found_again(tmp_path_factory, files):
    """Files of any length, also without rows, that came in a few steps: every step is found."""
    folder = tmp_path_factory.mktemp("history")
    steps = []
    for step in sorted({step for _, step in files}):
        for number, (length, own) in enumerate(files):
            if own == step:
                np.save(folder / f"{number:03}.npy", np.arange(length) + 10 * number)
                date(folder, number, at=step)
        steps.append(ndfeed.open(folder, sample="row", cache=False))
    now = steps[-1]
    for old in steps:
        if len(old):
            check(now, old, find_past(now, old.fingerprint, len(old)))
            check(now, old, match_past(now, old))
