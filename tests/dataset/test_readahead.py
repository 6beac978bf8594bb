"""Samples asked for ahead: only those that are not in memory, and nothing else changes."""

import os

import numpy as np
import pytest

import ndfeed
from ndfeed.dataset import readahead
from ndfeed.files.platform_calls import can

PAGE = 4096


def forgotten(path):
    """Have the system drop what it keeps of a file; could it be made to?"""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.preadv(fd, [bytearray(1)], os.fstat(fd).st_size // 2, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


@pytest.fixture
def opened(tmp_path):
    """Rows of three pages, cold, and the only group they are in."""
    path = tmp_path / "x.npy"
    np.save(path, np.arange(300 * 3 * PAGE // 8).reshape(300, -1))
    ds = ndfeed.open(path)
    if not forgotten(path):
        pytest.skip("this file system keeps everything in memory, or cannot say what it keeps")
    return ds, ds.groups[0]


def test_cold_samples_are_asked_for_and_warm_ones_are_not(opened):
    """What was read is in memory: asking again would cost and give nothing."""
    ds, group = opened
    rows = np.arange(0, 300, 7)

    assert not readahead.resident(group, rows)
    assert readahead.ask(group, rows) >= len(rows) * 3 * PAGE
    ds.read(rows)
    assert readahead.resident(group, rows)
    assert readahead.ask(group, rows) == 0


def test_neighbours_are_asked_for_together(opened):
    """In whole pages, and hardly more than that."""
    _, group = opened

    assert readahead.ask(group, np.arange(50)) <= (50 * 3 + 2) * PAGE


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.windows(offsets=range(0, 5, 2)),
        lambda ds: ds.windows(2).windows(2),
        lambda ds: ds.windows(3) + ds.windows(3, stride=2),
    ],
)
def test_cold_windows_with_gaps_are_asked_for(opened, make):
    """Not only rows side by side: each fault would be a request of its own."""
    ds, _ = opened
    windows = make(ds)
    rows = np.arange(0, 140, 20)

    assert readahead.ask(windows.groups[0], rows) >= len(rows) * 3 * 3 * PAGE
    windows.read(rows)
    assert readahead.resident(windows.groups[0], rows)


def test_no_samples_are_nothing(opened):
    """As where a rank has none."""
    assert readahead.ask(opened[1], np.zeros(0, np.int64)) == 0


def test_a_file_that_cannot_be_mapped_is_asked_for_too(opened):
    """Somebody has it open for writing: it is read by position then, and just as cold."""
    ds, group = opened
    if not can.lease:
        pytest.skip("without leases every file is mapped")
    with open(ds.files[0], "rb+"):
        assert readahead.ask(group, np.arange(5)) > 0


def test_raw_files_beside_compressed_ones_are_asked_for(tmp_path):
    """As in a mixture: rows of raw files are asked for one by one, and no others."""
    rows = np.arange(100 * 3 * PAGE // 8).reshape(100, -1)
    np.savez(tmp_path / "raw.npz", x=rows)
    np.savez_compressed(tmp_path / "small.npz", x=rows)
    sources = {name: ndfeed.open(tmp_path / f"{name}.npz") for name in ("raw", "small")}
    (group,) = ndfeed.mix(sources).groups
    if not forgotten(tmp_path / "raw.npz"):
        pytest.skip("this file system keeps everything in memory, or cannot say what it keeps")

    assert readahead.ask(group, np.array([150, 3, 199])) >= 3 * PAGE
    assert readahead.ask(group, np.arange(100, 200)) == 0


def test_whole_files_are_asked_for(tmp_path):
    """One sample each."""
    for i in range(6):
        np.savez_compressed(tmp_path / f"{i}.npz", x=np.random.default_rng(i).random(4 * PAGE))
    ds = ndfeed.open(tmp_path, sample="file")
    if not all(forgotten(path) for path in ds.files):
        pytest.skip("this file system keeps everything in memory, or cannot say what it keeps")

    assert readahead.ask(ds.groups[0], np.arange(6)) > 0
    assert readahead.ask_parts(ds.groups[0], np.arange(6)) >= 0


def test_memory_of_our_own_is_never_asked_for(tmp_path):
    """It is there."""
    np.save(tmp_path / "x.npy", np.zeros((10, 4)))
    group = ndfeed.open(tmp_path / "x.npy").in_memory().groups[0]

    assert readahead.resident(group, np.arange(10))
    assert readahead.ask(group, np.arange(10)) == 0


def test_a_file_that_is_gone_is_for_the_reader_to_meet(tmp_path):
    """A hint raises nothing."""
    np.save(tmp_path / "x.npy", np.zeros((10, 4)))
    ds = ndfeed.open(tmp_path / "x.npy")
    (tmp_path / "x.npy").unlink()

    assert readahead.ask(ds.groups[0], np.arange(10)) == 0


def test_stretches_hold_the_samples(tmp_path):
    """Every byte of the rows, in whole pages, neighbours together, and no other rows."""
    np.save(tmp_path / "x.npy", np.arange(400 * 3 * PAGE // 8).reshape(400, -1))
    ds = ndfeed.open(tmp_path / "x.npy")
    first = (tmp_path / "x.npy").stat().st_size - 400 * 3 * PAGE
    ((path, found),) = readahead.stretches(ds.groups[0], np.array([300, 7, 8, 100]))

    assert os.fsdecode(path) == ds.files[0]
    assert len(found) == 3
    for (start, end), (low, high) in zip(found, [(7, 9), (100, 101), (300, 301)], strict=True):
        assert start <= first + low * 3 * PAGE < start + PAGE
        assert end - PAGE < first + high * 3 * PAGE <= end


def test_stretches_of_crops_are_their_boxes(tmp_path):
    """Not whole files: ``ndfeed bench`` measures the disk by them."""
    np.save(tmp_path / "x.npy", np.zeros((64, 64, 64)))
    ds = ndfeed.open([tmp_path / "x.npy"], sample="file")
    crops = ds.crops({"data": (8, 16, 64)}, each=2)
    found = dict(readahead.stretches(crops.groups[0], np.array([1])))
    (taken,) = (sum(end - start for start, end in own) for own in found.values())

    assert 8 * 16 * 64 * 8 <= taken <= 8 * (16 * 64 * 8 + 2 * PAGE)


@pytest.mark.parametrize("sample", ["file", "row"])
def test_stretches_of_what_is_decoded_are_whole_members(tmp_path, sample):
    """A row of a compressed member takes all of it, whichever rows are wanted."""
    for i in range(3):
        np.savez_compressed(tmp_path / f"{i}.npz", x=np.random.default_rng(i).random((8, 2 * PAGE)))
    ds = ndfeed.open(tmp_path, sample=sample)
    rows = np.array([2, 1]) if sample == "file" else np.array([17, 8, 16])
    found = dict(readahead.stretches(ds.groups[0], rows))

    assert [os.path.basename(path) for path in found] == [b"1.npz", b"2.npz"]
    for path, stretches in found.items():
        assert sum(end - start for start, end in stretches) >= 0.9 * os.path.getsize(path)


@pytest.mark.skipif(not can.probe, reason="no system call says what is in memory")
def test_few_bytes_of_a_scattered_row_are_looked_at(tmp_path, monkeypatch):
    """A row in Fortran order has a place of its own for each of its elements."""
    path = tmp_path / "x.npy"  # a file of holes
    np.lib.format.open_memmap(path, "w+", np.float64, (20_000, 1000), fortran_order=True)
    with pytest.warns(UserWarning, match="Fortran order"):
        ds = ndfeed.open(path)
    looks = []

    def count(fd, buffers, offset, flags=0, read=os.preadv):
        looks.append(offset)
        return read(fd, buffers, offset, flags)

    ds.read([0])
    monkeypatch.setattr(os, "preadv", count)
    readahead.ask(ds.groups[0], np.arange(0, 20_000, 100))

    assert 0 < len(looks) < 200
