"""``verify=True``: a packed column's blocks are compared with their checksums when first read."""

import os
import pickle
import subprocess
import sys

import numpy as np
import packed_making
import pytest

import ndfeed

ROWS = 60


def packed(folder, **how):
    """Three fields, one of them ragged and one of several lengths, in two parts of small blocks."""
    data = {
        "x": np.arange(ROWS * 5, dtype="<i4").reshape(ROWS, 5),
        "text": [np.arange(i % 7, dtype="<i8") + i for i in range(ROWS)],
        "image": [np.full((1 + i % 3, 1 + i % 2), i, "<f4") for i in range(ROWS)],
    }
    packed_making.write(folder, data, parts=2, rows_per_block=4, **how)
    return data


def flip(path, at):
    """Change one byte and nothing else that shows."""
    status, data = os.stat(path), bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def columns(folder):
    """Every column's file."""
    return sorted(folder.glob("0*/*.npy"))


def left(ds):
    """Blocks that were not compared yet."""
    return sum(group.checks.left for group in ds.groups)


def same(batch, data, rows):
    """The batch holds these rows."""
    np.testing.assert_array_equal(batch["x"], data["x"][rows])
    for name in ("text", "image"):
        for found, row in zip(batch[name], rows, strict=True):
            np.testing.assert_array_equal(found, data[name][row])


@pytest.mark.parametrize("mapped", [True, False])
def test_sound_data_is_read_as_without(tmp_path, mapped):
    """And each block is compared once: afterwards there is nothing left."""
    data = packed(tmp_path / "p")
    ds = ndfeed.open(tmp_path / "p", verify=True, mapped=mapped)
    before = left(ds)
    same(ds.read([3]), data, [3])
    after = left(ds)
    assert 0 < before - after <= 10
    same(ds.read([3]), data, [3])
    assert left(ds) == after
    same(ds[::-1], data, list(range(ROWS))[::-1])

    assert left(ds) == 0


@pytest.mark.parametrize("number", range(12))
def test_a_flip_anywhere_is_found_by_a_full_read(tmp_path, number):
    """In every column of every part: rows, values, offsets and shapes."""
    packed(tmp_path / "p")
    files = columns(tmp_path / "p")
    path = files[number]
    assert len(files) == 12
    flip(path, os.path.getsize(path) - 3)
    ds = ndfeed.open(tmp_path / "p", verify=True)

    with pytest.raises(
        ndfeed.ChecksumError,
        match=r"block \d+ of \d+, rows .* restore it with ndfeed pack --repair",
    ):
        ds[:]
    assert path.name in str(_error(ds))


def _error(ds):
    try:
        ds[:]
    except ndfeed.ChecksumError as error:
        return error


def test_without_it_a_flip_is_delivered(tmp_path):
    """What it is there for: nothing else looks at the bytes."""
    data = packed(tmp_path / "p")
    path = next(path for path in columns(tmp_path / "p") if path.name == "x.npy")
    flip(path, os.path.getsize(path) - 3)

    assert (ndfeed.open(tmp_path / "p")[:]["x"] != data["x"]).any()


def test_only_blocks_that_are_read_are_compared(tmp_path):
    """Rows of sound blocks can still be had."""
    data = packed(tmp_path / "p")
    path = next(path for path in columns(tmp_path / "p") if path.name == "x.npy")
    flip(path, os.path.getsize(path) - 3)  # of part 0: rows [28, 30)
    ds = ndfeed.open(tmp_path / "p", verify=True)
    same(ds.read(list(range(20))), data, list(range(20)))
    for _ in range(2):
        with pytest.raises(ndfeed.ChecksumError, match=r"block 8 of 8, rows \[28, 30\)"):
            ds.read([29])

    out = {"x": np.empty((1, 5), "<i4")}
    with pytest.raises(ndfeed.ChecksumError, match="block 8"):
        ds.read_into([28], out)


@pytest.mark.parametrize("ragged", ["list", "pad"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_meets_damage_in_its_batch(tmp_path, shuffle, ragged):
    """Raised there, or the rows of the block are left out and listed."""
    packed(tmp_path / "p")
    path = next(path for path in columns(tmp_path / "p") if path.name == "x.npy")
    flip(path, os.path.getsize(path) - 3)
    ds = ndfeed.open(tmp_path / "p", verify=True)
    ds = ds.select("x", "text")
    options = {"shuffle": shuffle, "threads": 3, "ragged": ragged}
    with (
        ndfeed.loader(ds, 8, **options) as loader,
        pytest.raises(ndfeed.ChecksumError, match="block 8 of 8"),
    ):
        list(loader)
    with ndfeed.loader(ds, 8, on_error="skip", **options) as loader:
        rows = sum(len(batch["x"]) for batch in loader)

        assert rows == ROWS - 2
        assert sorted(row for row, _ in loader.skipped) == [28, 29]


def test_it_travels_with_the_dataset(tmp_path):
    """Views, sums, copies in memory, pickles: none of them forgets it."""
    data = packed(tmp_path / "p")
    path = next(path for path in columns(tmp_path / "p") if path.name == "x.npy")
    flip(path, os.path.getsize(path) - 3)
    ds = ndfeed.open(tmp_path / "p", verify=True)
    packed(tmp_path / "q")
    other = ndfeed.open(tmp_path / "q")
    views = [
        ds.select("x"),
        ds.take([29]),
        ds + other,
        other + ds,
        pickle.loads(pickle.dumps(ds)),
        ndfeed.open({"a": tmp_path / "p"}, verify=True),
        ndfeed.open([tmp_path / "p", tmp_path / "q"], verify=True),
    ]
    for view in views:
        with pytest.raises(ndfeed.ChecksumError, match="block 8 of 8"):
            view[:]
    with pytest.raises(ndfeed.ChecksumError, match="block 8 of 8"):
        ds.in_memory()

    same((ds + other).read([ROWS + 29]), data, [29])


def test_a_spawned_process_compares_too(tmp_path):
    """It gets the dataset pickled, and reads the manifest for itself."""
    packed(tmp_path / "p")
    path = next(path for path in columns(tmp_path / "p") if path.name == "x.npy")
    flip(path, os.path.getsize(path) - 3)
    (tmp_path / "ds").write_bytes(pickle.dumps(ndfeed.open(tmp_path / "p", verify=True)))
    code = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))[:]"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "ds"], capture_output=True, text=True, check=False
    )

    assert "ChecksumError" in done.stderr
    assert "block 8 of 8" in done.stderr


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_files_without_checksums_of_rows_are_refused(tmp_path, save):
    """Nothing would be compared: better to say so than to let anybody believe it."""
    name = "x.npy" if save is np.save else "x.npz"
    save(tmp_path / name, np.arange(10))

    with pytest.raises(
        ndfeed.UnsupportedError, match=rf"{name}: has no row checksums .* ndfeed pack"
    ):
        ndfeed.open(tmp_path / name, verify=True)
    with pytest.raises(ValueError, match=r"pass it to the ndfeed\.open that opened"):
        ndfeed.open(ndfeed.open(tmp_path / name), verify=True)


def test_empty_datasets_and_empty_samples(tmp_path):
    """Columns without a block, and samples without a value."""
    packed_making.write(tmp_path / "p", {"x": np.zeros((0, 3)), "y": np.zeros((0, 2))})
    assert len(ndfeed.open(tmp_path / "p", verify=True)[:]["x"]) == 0
    data = {"t": [np.zeros(0, "<i8")] * 5}
    packed_making.write(tmp_path / "q", data, shapes={"t": (None,)})

    assert [len(t) for t in ndfeed.open(tmp_path / "q", verify=True)[:]["t"]] == [0] * 5
