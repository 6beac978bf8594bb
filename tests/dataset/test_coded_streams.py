"""Deflated files as the bytes that are stored."""

import zipfile

import numpy as np
import pytest

import ndfeed
from ndfeed.dataset.coded_streams import ALIGNED, list_coded, with_streams
from ndfeed.formats.inflate import whole


def files(folder, count=30):
    for number in range(count):
        rng = np.random.default_rng(number)
        x = rng.integers(0, 5 + 7 * number, (20, 21)).astype("<i2")
        np.savez_compressed(folder / f"{number:02}", x=x, y=np.int64(number))
    return ndfeed.open(folder, sample="file")


def coded_names(ds):
    return [column.field.name for group in ds.groups for column in list_coded(group)]


@pytest.mark.parametrize("names", [("x",), ("x", "y")])
def test_a_stream_is_what_the_archive_holds(tmp_path, names):
    """With what lies behind it, up to a multiple that a decoder can start from."""
    ds = files(tmp_path).take(range(29, 2, -3))
    streams = with_streams(ds, names).read(range(len(ds)))
    for at in range(len(ds)):
        row = 29 - 3 * at
        content = (tmp_path / f"{row:02}.npz").read_bytes()
        with zipfile.ZipFile(tmp_path / f"{row:02}.npz") as archive:
            for name in names:
                entry = archive.getinfo(f"{name}.npy")
                stored = streams[name][at].tobytes()
                assert len(stored) == -(-entry.compress_size // ALIGNED) * ALIGNED
                assert stored[: entry.compress_size] in content
                out = bytearray(entry.file_size)
                data = stored[: entry.compress_size]
                whole(b"x", data, entry.file_size, 0, memoryview(out), entry.CRC)
                assert bytes(out) == archive.read(entry)
        if "y" not in names:
            assert streams["y"][at] == row


def test_the_dataset_itself_stays_as_it_was(tmp_path):
    ds = files(tmp_path)
    before = ds.fingerprint
    with_streams(ds, ("x", "y"))

    assert ds.fingerprint == before
    np.testing.assert_array_equal(ds.read([3])["y"], [3])


def test_files_that_change_are_noticed(tmp_path):
    streams = with_streams(files(tmp_path), ("x", "y"))
    np.savez_compressed(tmp_path / "07", x=np.zeros((20, 21), "<i2"), y=np.int64(0))

    with pytest.raises(ndfeed.ChangedError, match=r"07\.npz"):
        streams.read(range(10))


def save_stored(path, number):
    np.savez(path, x=np.full(5, number))


def save_turned(path, number):
    np.savez_compressed(path, x=np.asfortranarray(np.full((5, 4), number)))


def save_swapped(path, number):
    np.savez_compressed(path, x=np.full(5, number, ">i4"))


def save_ragged(path, number):
    np.savez_compressed(path, x=np.full(number + 1, number))


def save_array(path, number):
    np.save(path, np.full(5, number))


@pytest.mark.parametrize(
    "save",
    [save_stored, save_turned, save_swapped, save_ragged, save_array],
    ids=lambda s: s.__name__,
)
def test_what_a_decoder_alone_does_not_turn_into_samples(tmp_path, save):
    for number in range(5):
        save(tmp_path / f"{number}", number)

    assert coded_names(ndfeed.open(tmp_path, sample="file")) == []


def test_rows_of_one_file_are_no_streams(tmp_path):
    np.savez_compressed(tmp_path / "x", x=np.arange(1000))

    assert coded_names(ndfeed.open(tmp_path / "x.npz", sample="row")) == []
    assert coded_names(ndfeed.open(tmp_path / "x.npz", sample="file")) == ["x"]
    assert coded_names(ndfeed.open(tmp_path / "x.npz", sample="file").in_memory()) == []


def test_a_cast_is_made_on_the_cpu(tmp_path):
    files(tmp_path)
    ds = ndfeed.open(tmp_path, sample="file", dtype={"x": "float32"})

    assert coded_names(ds) == ["y"]
