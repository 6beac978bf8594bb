"""Whole files as samples: few reads, checksums, any mix of codings, each file once."""

import os
import sys
import zipfile

import numpy as np
import pytest

import ndfeed

_reads: list[str] | None = None


def _watch(event, args):
    if _reads is not None and event == "open" and isinstance(args[0], str | bytes):
        _reads.append(os.path.basename(os.fsdecode(args[0])))


sys.addaudithook(_watch)


@pytest.fixture
def opened():
    """The files that are opened while the test runs."""
    global _reads
    _reads = []
    yield _reads
    _reads = None


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_file_is_opened_once_a_batch(tmp_path, save, opened):
    """Several fields and repeated rows cost one open, in the order of the files."""
    for i in range(5):
        save(tmp_path / f"{i}.npz", x=np.full((3, 4), i), y=np.int64(i))
    ds = ndfeed.open(tmp_path)
    del opened[:]
    batch = ds.read([4, 1, 4, 1, 0])

    assert opened == ["0.npz", "1.npz", "4.npz"]
    assert batch["y"].tolist() == [4, 1, 4, 1, 0]
    assert batch["x"][:, 0, 0].tolist() == [4, 1, 4, 1, 0]


def test_fields_far_apart_and_in_another_order(tmp_path):
    """A label behind ten megabytes is not worth reading what lies between."""
    for i in range(3):
        far = np.full(200_000, i, "u1")
        np.savez(tmp_path / f"{i}.npz", a=np.int64(i), unused=far, z=np.arange(i, i + 3))
    ds = ndfeed.open(tmp_path).select("z", "a")
    batch = ds.read([2, 0])

    assert batch["a"].tolist() == [2, 0]
    assert batch["z"].tolist() == [[2, 3, 4], [0, 1, 2]]


def test_members_in_another_order_in_every_file(tmp_path):
    """Places are looked up for every file: no layout is assumed to repeat."""
    np.savez(tmp_path / "0.npz", a=np.int64(1), b=np.arange(3))
    np.savez(tmp_path / "1.npz", b=np.arange(3) + 10, a=np.int64(2))
    batch = ndfeed.open(tmp_path).read([1, 0])

    assert batch["a"].tolist() == [2, 1]
    assert batch["b"].tolist() == [[10, 11, 12], [0, 1, 2]]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("where", [0.4, 0.6])
def test_damage_is_found_when_first_read(tmp_path, save, where):
    """The archive's own checksums are compared: a flipped bit is an error, not a sample."""
    rng = np.random.default_rng(0)
    save(tmp_path / "0.npz", x=rng.integers(0, 9, 4000), y=np.int64(0))
    data = bytearray((tmp_path / "0.npz").read_bytes())
    data[int(len(data) * where)] ^= 4
    (tmp_path / "0.npz").write_bytes(data)
    ds = ndfeed.open(tmp_path / "0.npz", sample="file")

    with pytest.raises(ndfeed.FormatError, match=r"0\.npz.*(checksum|damaged|decoded)"):
        ds.read([0])


def test_a_checksum_is_compared_once(tmp_path):
    """The second read of a sound file costs nothing for it; other files are still compared."""
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=np.full(1000, i), y=np.int64(i))
    ds = ndfeed.open(tmp_path)
    ds.read([0])
    sound = ds.groups[0].__dict__["_reader"]._whole._sound

    assert [column.tolist() for column in sound] == [[True, False], [True, False]]


def test_raw_and_deflated_members_of_one_file(tmp_path):
    """Each member decides for itself how it is stored."""
    for i in range(3):
        np.savez(tmp_path / "plain.npz", x=np.arange(1000) + i, y=np.int64(i))
        plain, mixed = tmp_path / "plain.npz", tmp_path / f"{i}.npz"
        with zipfile.ZipFile(plain) as source, zipfile.ZipFile(mixed, "w") as made:
            made.writestr("x.npy", source.read("x.npy"), zipfile.ZIP_DEFLATED)
            made.writestr("y.npy", source.read("y.npy"), zipfile.ZIP_STORED)
    (tmp_path / "plain.npz").unlink()
    batch = ndfeed.open(tmp_path).read([2, 0])

    np.testing.assert_array_equal(batch["x"], [np.arange(1000) + 2, np.arange(1000)])
    assert batch["y"].tolist() == [2, 0]


def test_large_members_are_decoded_in_pieces(tmp_path):
    """Beyond a megabyte nothing is held but the batch itself."""
    big = np.arange(700_000, dtype="<i4").reshape(7, -1)
    np.savez_compressed(tmp_path / "0.npz", x=big, y=np.int64(5))
    np.savez_compressed(tmp_path / "1.npz", x=big.T.copy().T, y=np.int64(6))
    batch = ndfeed.open(tmp_path).read([1, 0])

    np.testing.assert_array_equal(batch["x"], [big, big])
    assert batch["y"].tolist() == [6, 5]


def test_numbers_kept_in_the_index(tmp_path):
    """Python numbers in a .pt have no bytes of their own in the file."""
    torch = pytest.importorskip("torch")
    for i in range(3):
        content = {"x": torch.arange(3) + i, "n": i, "f": i / 2, "b": i == 1}
        torch.save(content, tmp_path / f"{i}.pt")
    batch = ndfeed.open(tmp_path).read([2, 1, 2])

    assert batch["n"].tolist() == [2, 1, 2]
    assert batch["n"].dtype == np.int64
    assert batch["f"].tolist() == [1.0, 0.5, 1.0]
    assert batch["b"].tolist() == [False, True, False]
    assert batch["b"].dtype == bool
    assert batch["x"].tolist() == [[2, 3, 4], [1, 2, 3], [2, 3, 4]]
