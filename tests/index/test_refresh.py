"""``Dataset.refresh``: files that came, went or changed since a dataset was opened."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from children import run
from growing import ROWS, age, expected, values, write

import ndfeed
from ndfeed.errors import (
    ChangedError,
    MissingError,
    TruncatedError,
)
from ndfeed.index.open import open_table
from ndfeed.index.refresh import Terms, refresh


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("pattern", ["", "*.npy", "**/*.npy"])
def test_new_files_come_in_where_their_names_sort(three, pattern, cached):
    """As if the source had been opened now; the dataset that was there stays as it is."""
    source = three / pattern if pattern else three
    ds = ndfeed.open(source, sample="row", cache=cached)
    write(three, 5, 15, 40)
    now = ds.refresh()
    assert values(now) == expected(5, 10, 15, 20, 30, 40)
    assert values(ds) == expected(10, 20, 30)
    assert now.fingerprint == ndfeed.open(source, sample="row", cache=False).fingerprint
    write(three, 35)
    assert values(now.refresh()) == expected(5, 10, 15, 20, 30, 35, 40)


def test_a_list_of_folders_grows_in_each(three, tmp_path):
    """New files of the first come before the files of the second."""
    other = tmp_path / "other"
    other.mkdir()
    write(other, 1)
    ds = ndfeed.open([three, other], sample="row")
    write(three, 40)
    write(other, 2)
    assert values(ds.refresh()) == expected(10, 20, 30, 40, 1, 2)


def test_known_files_are_not_read_again(three):
    """Refreshing after one file came opens that file alone: a million known ones cost a listing."""
    code = """
    ds = ndfeed.open(args[0], sample="row")
    np.save(args[0] + "/040.npy", np.arange(4))
    opened = []
    def watch(event, details):
        if event == "open" and isinstance(details[0], bytes | str):
            opened.append(os.path.basename(os.fsdecode(details[0])))
    sys.addaudithook(watch)
    now = ds.refresh()
    print(len(now), [name for name in opened if name.endswith(".npy")])
    """
    assert run(code, three) == "16 ['040.npy']\n"


def test_without_changes_it_is_the_same_dataset(three):
    """Also in its fingerprint, which a loader's state holds."""
    time.sleep(0.1)  # the folder was written a moment ago
    ds = ndfeed.open(three, sample="row")
    assert ds.refresh().fingerprint == ds.fingerprint
    assert values(ds.refresh()) == values(ds)


def test_a_packed_dataset_stays_or_is_named(three, tmp_path):
    """It never grows in place; another one under its name is no growth."""
    packed = tmp_path / "packed"
    ds = ndfeed.pack(ndfeed.open(three, sample="row"), packed)
    assert values(ds.refresh()) == expected(10, 20, 30)
    write(three, 40)
    ndfeed.pack(ndfeed.open(three, sample="row"), tmp_path / "again")
    packed.rename(tmp_path / "away")
    with pytest.raises(MissingError, match="the packed dataset is gone"):
        ds.refresh()
    (tmp_path / "again").rename(packed)
    with pytest.raises(ChangedError, match="was replaced by another one"):
        ds.refresh()


# Files that vanish or change


@pytest.mark.parametrize("as_list", [False, True])
def test_files_that_vanished_are_named(three, as_list):
    """The first of them is to blame, with the number of all and what to do."""
    write(three, *range(40, 45))
    ds = ndfeed.open(sorted(three.iterdir()) if as_list else three, sample="row")
    for number in (20, 41, 42, 44):
        (three / f"{number:03}.npy").unlink()
    with pytest.raises(MissingError) as caught:
        ds.refresh()
    assert caught.value.path == str(three / "020.npy")
    assert "4 of 8 files of the dataset are gone (also " in str(caught.value)
    assert "042.npy, 1 more); restore what is gone, or" in str(caught.value)
    now = ds.refresh(missing="skip")
    assert values(now) == expected(10, 30, 40, 43)
    assert [Path(error.path).name[:3] for error in now.skipped] == ["020", "041", "042", "044"]
    if not as_list:  # a list still names them
        assert now.refresh().skipped == []
    write(three, 20)
    assert 20 * ROWS in values(now.refresh(missing="skip"))


@pytest.mark.parametrize("change", ["touch", "rewrite", "replace", "shape"])
def test_a_file_that_changed_is_named(three, change):
    """Its rows would be others under the same numbers: never silently."""
    path = three / "020.npy"
    ds = ndfeed.open(three, sample="row")
    write(three, 40)
    if change == "touch":
        os.utime(path)
    elif change == "replace":
        np.save(three / "x.npy.tmp", np.arange(ROWS), allow_pickle=False)
        os.replace(three / "x.npy.tmp.npy", path)
    else:
        np.save(path, np.arange(ROWS if change == "rewrite" else ROWS + 1))
    with pytest.raises(ChangedError, match="1 of 3 files of the dataset is not as it was") as e:
        ds.refresh()
    assert e.value.path == str(path)
    with pytest.raises(ChangedError):
        ds.refresh(missing="skip")


@pytest.mark.parametrize("changed", [False, True])
def test_a_file_that_changed_within_a_tick_of_the_clock_is_described_again(three, changed):
    """Its size and times do not tell, so its header must."""
    path = three / "020.npy"
    opened = open_table(three, cached=False)
    if changed:
        path.write_bytes(path.read_bytes().replace(b"<i8", b"<f8"))
    found = os.stat(path)
    identity = opened.table.identity.copy()
    identity[1] = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    opened.table = replace(opened.table, identity=identity)  # as if the clock had stood still
    opened.built = found.st_mtime_ns
    if not changed:
        assert refresh(opened, Terms()).table.files == 3
        return
    with pytest.raises(ChangedError, match="1 of 3 files of the dataset is not as it was"):
        refresh(opened, Terms())


# A folder that is written to


def truncated(path):
    """A file whose writer has not finished."""
    np.save(path, np.arange(1000))
    os.truncate(path, 500)


def archive(path):
    """An archive without its directory, which comes last."""
    with open(path, "wb") as file:
        np.savez(file, data=np.arange(ROWS))
    os.truncate(path, os.path.getsize(path) // 2)


INCOMPLETE = {
    "truncated": ("090.npy", truncated),
    "empty": ("090.npy", lambda path: path.touch()),
    "a header alone": ("090.npy", lambda path: (truncated(path), os.truncate(path, 128))),
    "archive": ("090.npz", archive),
}


@pytest.mark.parametrize(("name", "make"), INCOMPLETE.values(), ids=INCOMPLETE)
def test_incomplete_files_are_left_out_until_they_are_complete(three, name, make):
    """They are listed, and come in as soon as they can be read."""
    ds = ndfeed.open(three, sample="row")
    make(three / name)
    write(three, 40)
    now = ds.refresh()
    assert values(now) == expected(10, 20, 30, 40)
    assert [error.path for error in now.skipped] == [str(three / name)]
    assert now.refresh().skipped[0].path == str(three / name)
    save = np.savez if name.endswith("z") else np.save
    (three / name).unlink()
    save(three / name, **{"data" if name.endswith("z") else "arr": np.arange(ROWS)})
    assert values(now.refresh()) == expected(10, 20, 30, 40, 0)
    assert now.refresh().skipped == []


def test_a_broken_file_that_nobody_writes_any_more_is_an_error(three):
    """How long to wait is the caller's to say."""
    ds = ndfeed.open(three, sample="row")
    truncated(three / "090.npy")
    assert values(ds.refresh()) == expected(10, 20, 30)
    with pytest.raises(TruncatedError, match=r"090\.npy"):
        ds.refresh(settle=0)
    age(three / "090.npy", 61)
    with pytest.raises(TruncatedError, match=r"090\.npy"):
        ds.refresh()
    assert values(ds.refresh(settle=120)) == expected(10, 20, 30)
    skipping = ndfeed.open(three / "0[123]0.npy", sample="row", on_error="skip")
    assert values(skipping.refresh()) == expected(10, 20, 30)


def test_a_file_that_was_skipped_when_the_folder_was_opened_comes_in(three):
    """Whoever opens a folder that is being written to skips what is incomplete then."""
    truncated(three / "090.npy")
    with pytest.warns(UserWarning, match="are skipped"):
        ds = ndfeed.open(three, sample="row", on_error="skip")
    assert values(ds) == values(ds.refresh()) == expected(10, 20, 30)
    write(three, 90)
    assert values(ds.refresh()) == expected(10, 20, 30, 90)
    assert ds.refresh().skipped == []


def test_an_incomplete_file_is_not_forgotten_by_the_next_run(three):
    """The cached index of a run that left it out must not hide it."""
    ds = ndfeed.open(three, sample="row")
    truncated(three / "090.npy")
    write(three, 40)
    ds.refresh()
    age(three / "090.npy")
    with pytest.raises(TruncatedError):
        ndfeed.open(three, sample="row")


@pytest.mark.parametrize("name", ["x.npy.tmp", "x.npy.part", "x.npy~", ".x.npy", "x.tmp"])
def test_temporary_names_are_left_out_of_folders(three, name):
    """They vanish when their writer renames them: their samples would come and go."""
    with open(three / name, "wb") as file:
        np.save(file, np.arange(ROWS))
    ds = ndfeed.open(three, sample="row")
    assert values(ds) == expected(10, 20, 30)
    (three / name).rename(three / "001.npy")
    assert values(ds.refresh()) == expected(0, 10, 20, 30)
    with open(three / name, "wb") as file:
        np.save(file, np.arange(ROWS))
    assert values(ndfeed.open(three / name)) == expected(0)  # named, it is opened


def test_a_folder_is_followed_while_it_is_written(tmp_path):
    """However a refresh meets the writer: rows are right, and nothing is lost in the end."""
    write(tmp_path, 0)
    count = 150

    def work():
        for number in range(1, count):
            rows = np.arange(ROWS * number, ROWS * (number + 1))
            if number % 3 == 0:  # some writers rename, others do not
                np.save(tmp_path / f"{number}.npy.tmp", rows)
                os.replace(tmp_path / f"{number}.npy.tmp.npy", tmp_path / f"{number:03}.npy")
                continue
            with open(tmp_path / f"{number:03}.npy", "wb", buffering=0) as file:
                np.save(file, rows)

    ds = ndfeed.open(tmp_path / "[0-9][0-9][0-9].npy", sample="row")
    writer = threading.Thread(target=work)
    writer.start()
    sizes = []
    while writer.is_alive():
        ds = ds.refresh()
        found = np.array(values(ds)).reshape(-1, ROWS)
        assert (found == found[:, :1] + np.arange(ROWS)).all()
        assert (np.diff(found[:, 0]) > 0).all()
        sizes.append(len(found))
    writer.join()
    assert sizes == sorted(sizes)
    assert values(ds.refresh()) == expected(*range(count))


@pytest.mark.parametrize("wrong", [{"missing": "ignore"}, {"settle": -1}, {"settle": "60"}])
def test_wrong_arguments_are_named(three, wrong):
    """At once, with what is possible."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ndfeed.open(three, sample="row").refresh(**wrong)
