"""Where samples come from: ``files``, ``locate``, ``with_origin``; and fingerprints of the data."""

import os
import pickle
import shutil
import subprocess
import sys

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


@pytest.fixture
def scans(tmp_path):
    """Twelve files of one sample each, whose value is in the name."""
    (tmp_path / "scans").mkdir()
    for i in range(12):
        np.savez(tmp_path / "scans" / f"{i:02}.npz", scan=np.full((2, 2), i), age=np.int64(i))
    return ndfeed.open(tmp_path / "scans")


@pytest.fixture
def shards(tmp_path):
    """Files of 3, 0, 4 and 5 rows; a row is 100 times its file's number and its own."""
    (tmp_path / "shards").mkdir()
    for i, count in enumerate((3, 0, 4, 5)):
        np.save(tmp_path / "shards" / f"{i}.npy", 100 * i + np.arange(count))
    return ndfeed.open(tmp_path / "shards", sample="row")


def stems(ds):
    return [os.path.splitext(os.path.basename(path))[0] for path in ds.files]


VIEWS = {
    "take": lambda ds: ds.take([7, 2, 2, 9]),
    "slice": lambda ds: ds.take(slice(None, None, -3)),
    "mask": lambda ds: ds.take(np.arange(12) % 5 == 1),
    "split": lambda ds: ds.split(0.5, seed=3)[1],
    "view of a view": lambda ds: ds.split(0.5)[0].take([3, 0, 1]),
    "select": lambda ds: ds.take([5, 1]).select("age"),
    "rename": lambda ds: ds.take([5, 1]).rename({"scan": "x"}),
    "map": lambda ds: ds.take([5, 1]).map(lambda b: {"age": b["age"]}),
    "sum": lambda ds: ds.take([5, 1]) + ds.take([0]),
    "whole sum": lambda ds: ds + ds,
    "sum of maps": lambda ds: ds.take([5, 1]).map(dict) + ds.take([0]),
    "in memory": lambda ds: ds.take([8, 3]).in_memory(),
    "view of memory": lambda ds: ds.take([8, 3, 4]).in_memory().take([2, 0]),
    "memory twice": lambda ds: ds.take([8, 3, 4]).in_memory().take([2, 0]).in_memory(),
    "memory and files": lambda ds: ds.take([8, 3]).in_memory() + ds.take([1]),
    "memory and memory": lambda ds: ds.in_memory() + ds.take([1, 0]).in_memory(),
    "with_origin": lambda ds: ds.take([5, 1]).with_origin(),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_files_label_the_samples_of_any_view(scans, view):
    """``zip(ds.files, ds)`` is how people label; a list of other files mislabels in silence."""
    ds = view(scans)

    assert len(ds.files) == len(ds)
    assert [int(stem) for stem in stems(ds)] == [int(sample["age"]) for sample in ds]
    files, rows = ds.locate(range(len(ds)))
    assert files.tolist() == list(range(len(ds)))
    assert not rows.any()


@pytest.mark.parametrize("view", [v for n, v in VIEWS.items() if "map" not in n])
def test_files_of_a_pickled_view(scans, view):
    """A worker process labels the same way."""
    ds = view(scans)

    assert list(pickle.loads(pickle.dumps(ds)).files) == list(ds.files)


def test_files_of_rows_are_listed_once_as_they_are_needed(shards):
    """Many rows share a file, so there is no pairing: the distinct ones, first needed first."""
    assert stems(shards) == ["0", "1", "2", "3"]
    assert stems(shards.take([4, 11, 3, 0, 5])) == ["2", "3", "0"]
    assert stems(shards.take([1, 2])) == ["0"]
    assert stems(shards.take([])) == []
    assert repr(shards.take([]).files) == "<no files>"
    first, second = shards.split(0.5)
    assert sorted(stems(first + second)) == ["0", "2", "3"]
    assert stems(shards.take([9, 1]).in_memory()) == ["3", "0"]


@pytest.mark.parametrize(
    "view",
    [
        lambda ds: ds,
        lambda ds: ds.take([10, 4, 0, 3]),
        lambda ds: ds.take([10, 4]) + ds.take([0, 11]),
        lambda ds: ds.take([10, 4, 0]).in_memory().take([2, 1]),
        lambda ds: ds.take([10, 4]).map(dict) + ds.take([0, 11]),
    ],
)
def test_locate_names_the_file_and_the_row(shards, view):
    """What was wrong with sample 17 is looked up in its file."""
    ds = view(shards)
    files, rows = ds.locate(range(len(ds)))

    for value, file, row in zip(ds[:]["data"].tolist(), files.tolist(), rows.tolist(), strict=True):
        assert np.load(ds.files[file])[row] == value
    assert ds.locate([-1])[1] == rows[-1]
    with pytest.raises(IndexError, match="rows must be in"):
        ds.locate([len(ds)])


def test_several_sources_are_labelled_by_the_one_that_is_files(tmp_path, scans):
    """Labels in one file, images in many: whichever comes first in the dict."""
    np.save(tmp_path / "labels.npy", np.arange(12))
    for order in (1, -1):
        source = {"scan": tmp_path / "scans", "label": tmp_path / "labels.npy"}
        ds = ndfeed.open(dict(list(source.items())[::order]), sample={"scan": "file"}).take([7, 3])
        assert [int(stem) for stem in stems(ds)[:2]] == ds[:]["label"].tolist() == [7, 3]
        assert stems(ds)[2:] == ["labels"]
        assert stems(ds.select("label")) == ["labels"]


def test_files_of_a_packed_view(tmp_path):
    """Those of the parts that hold its samples, and of the fields that it has."""
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", a=np.arange(4) + 4 * i, b=[f"{i}"] * 4)
    ds = ndfeed.pack(
        ndfeed.open(tmp_path, sample="row").select("a"), tmp_path / "p", rows_per_part=4
    )
    parts = [os.path.relpath(path, tmp_path / "p") for path in ds.take([9, 1]).files]

    assert parts == [os.path.join("00002", "a.npy"), os.path.join("00000", "a.npy")]
    assert len(ds.files) == 3
    assert ds.locate([9])[1] == [1]


@pytest.mark.parametrize("memory", [False, True])
def test_with_origin_says_where_each_sample_of_a_batch_is_from(shards, memory):
    """For predictions that are written beside their inputs, whatever the order and the engine."""
    ds = shards.split(0.7, seed=1)[0].with_origin()
    ds = ds.in_memory() if memory else ds
    seen = 0
    for processes in (0, 2):
        loader = ndfeed.loader(ds.map(dict), 3, shuffle=True, processes=processes)
        for batch in loader:
            for value, file, row in zip(batch["data"], batch["file"], batch["row"], strict=True):
                assert np.load(ds.files[file])[row] == value
                seen += 1
        loader.close()

    assert seen == 2 * len(ds) == 16
    assert ds.fields["file"].dtype == np.int64
    assert ds.fingerprint == shards.split(0.7, seed=1)[0].fingerprint


def test_with_origin_behind_a_map(scans):
    """The function neither sees the two fields nor loses them, and draws what it drew before."""

    def noisy(batch, rng):
        assert sorted(batch) == ["age", "scan"]
        return {"x": batch["scan"] + rng.normal(size=(len(batch["age"]), 1, 1))}

    plain = scans.take([4, 2]).map(noisy)
    ds = plain.with_origin(file="from", row="at")

    assert list(ds.fields) == ["x", "from", "at"]
    np.testing.assert_array_equal(ds[:]["x"], plain[:]["x"])
    assert ds[:]["from"].tolist() == [0, 1]
    assert ds.select("at", "from")[1] == {"at": 0, "from": 1}
    for batch, other in zip(ndfeed.loader(ds, 2), ndfeed.loader(plain, 2), strict=True):
        np.testing.assert_array_equal(batch["x"], other["x"])


def test_with_origin_numbers_cannot_go_stale(scans):
    """Views made behind it have files of their own: numbers of others would mislabel."""
    ds = scans.with_origin()
    for view in (lambda: ds.take([1]), lambda: ds.split(0.5), lambda: ds + ds, ds.with_origin):
        with pytest.raises(ValueError, match="take, split and add first"):
            view()
    with pytest.raises(ValueError, match="field 'age' exists"):
        scans.with_origin(file="age")


@pytest.mark.parametrize(
    "rows", [range(9), range(1, 8, 3), range(8, -1, -1), range(7, 0, -5), range(3, 3), range(5, 6)]
)
def test_files_of_a_range_are_those_of_its_rows(tmp_path, rows):
    """In the order in which they are needed first."""
    for i, count in enumerate((2, 0, 4, 1, 2)):
        np.save(tmp_path / f"{i}.npy", np.zeros(count))
    ds = ndfeed.open(tmp_path, sample="row")

    assert list(ds.take(rows).files) == list(ds.take(list(rows)).files)


@pytest.mark.parametrize("rows", [range(17_000_000), range(0, 34_000_000, 2)])
def test_many_rows_are_the_same_however_they_are_given(tmp_path, rows):
    """A range is not listed to be identified, and equal row numbers are equal data."""
    with open(tmp_path / "x.bin", "wb") as file:
        file.truncate(34_000_000)
    ds = ndfeed.open(tmp_path / "x.bin", dtype="u1", shape=())
    listed = np.arange(rows.start, rows.stop, rows.step)
    one = ds.take(rows).fingerprint

    assert ds.take(listed).fingerprint == one
    listed[5] = 3
    assert ds.take(listed).fingerprint != one
    assert ds.take(range(1, 17_000_001)).fingerprint != one


def test_with_origin_numbers_are_those_of_windows_and_crops(tmp_path):
    """Files that have no window, and cases in another order, would be counted otherwise."""
    for i, count in enumerate((2, 6, 4)):
        np.save(tmp_path / f"{i}.npy", np.arange(2 * count).reshape(count, 2))
    rows = ndfeed.open(tmp_path, sample="row")
    cases = ndfeed.open(tmp_path, sample="file")
    box, at = {"data": (1,)}, [[2, 0], [1, 0]]

    for ds in (rows.windows(3).with_origin(), cases.crops(box, at=at).with_origin()):
        files = [ds.files[number] for number in ds[:]["file"]]
        assert files == [ds.files[number] for number in ds.locate(range(len(ds)))[0]]
    grid = cases.with_origin().crops(box, grid=0)
    assert grid[:]["file"].tolist() == grid[:]["case"].tolist()
    wrong = (
        lambda: rows.with_origin().windows(3),
        lambda: cases.with_origin().crops(box, at=at),
        lambda: cases.take([0, 0, 1]).with_origin().crops(box, grid=0),
    )
    for view in wrong:
        with pytest.raises(ValueError, match=r"not possible after with_origin\(\), which numbers"):
            view()


def test_with_origin_can_be_packed(shards, tmp_path):
    """The two are fields like any other."""
    made = ndfeed.pack(shards.with_origin(), tmp_path / "p")

    np.testing.assert_array_equal(made[:]["file"] * 100 + made[:]["row"], made[:]["data"])


def test_files_of_memory_in_a_spawned_process(scans, tmp_path):
    """The paths travel with the memory, though there are no such files any more."""
    held = scans.take([8, 3]).in_memory()
    for path in scans.files:
        os.unlink(path)
    code = "import pickle, sys; print(list(pickle.load(sys.stdin.buffer).files))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(held), capture_output=True, check=True
    )

    assert done.stdout.decode().strip() == str(
        [str(tmp_path / "scans" / f"{i:02}.npz") for i in (8, 3)]
    )


def test_files_are_made_when_asked_for(tmp_path):
    """A list of a million paths would take longer than opening them does."""
    np.save(tmp_path / "x.npy", np.arange(2))
    ds = ndfeed.open([tmp_path / "x.npy"] * 1000, sample="file")
    files = ds.take(np.arange(1000)[::-1]).files

    assert not isinstance(files, list)
    assert len(files) == 1000
    assert files[-1] == files[0] == str(tmp_path / "x.npy")
    assert len(files[2:5]) == 3


def test_names_that_are_packed_are_those_of_files(scans, tmp_path):
    """Also of samples that were loaded into memory, which has no name."""
    for number, ds in enumerate(
        (scans.take([8, 3]).in_memory(), scans.take([8]).map(dict) + scans.take([3]).in_memory())
    ):
        packed = ndfeed.pack(ds, tmp_path / f"p{number}", names=True)
        assert [bytes(name) for name in packed[:]["file"]] == [b"08.npz", b"03.npz"]
