"""Room on a disk: without a name, given up in turn, never on a file system that is memory."""

import contextlib
import os
import tempfile

import numpy as np
import pytest

from ndfeed.errors import ResourceError
from ndfeed.files import scratch
from ndfeed.files.platform_calls import can
from ndfeed.files.scratch import Forward, Scratch, Slabs


def count_open(folder):
    """Descriptors of files in a folder, named or not, that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(path.startswith(os.fspath(folder)) for path in found)


@pytest.mark.parametrize("off", [(), ("pwrite", "allocate")])
def test_what_was_written_is_read(tmp_path, monkeypatch, off):
    """At any place, and nothing of it has a name."""
    for name in off:
        monkeypatch.setattr(can, name, False)
    made = Scratch(100_000, os.fspath(tmp_path))
    made.write(70_000, memoryview(b"abc"))

    assert bytes(made.data[69_999:70_004]) == b"\0abc\0"
    assert os.listdir(tmp_path) == []
    assert not made.data.flags.writeable


def test_the_descriptor_goes_with_its_user(tmp_path):
    """Or a long run would come to an end of them."""
    made = Scratch(1000, os.fspath(tmp_path))
    assert count_open(tmp_path) > 0
    del made

    assert count_open(tmp_path) == 0


def test_more_than_the_disk_has_is_refused(tmp_path):
    """With the remedy, and before anything is written."""
    with pytest.raises(ResourceError, match="set TMPDIR to a folder on a disk with more room"):
        Scratch(1 << 60, os.fspath(tmp_path))
    with pytest.raises(ResourceError, match=r"MB of temporary disk space needed, [\d,]+ MB are"):
        Slabs(os.fspath(tmp_path)).piece(1 << 60)
    assert os.listdir(tmp_path) == []


def test_many_pieces_share_few_files(tmp_path):
    """A descriptor each would be too many."""
    slabs = Slabs(os.fspath(tmp_path))
    pieces = [slabs.piece(5000) for _ in range(1000)]
    for number, piece in enumerate(pieces):
        piece.write(0, memoryview(number.to_bytes(5000, "little")))

    assert [int.from_bytes(bytes(p.data), "little") for p in pieces] == list(range(1000))
    assert count_open(tmp_path) < 10
    slabs.clear()
    assert all(piece.given_up for piece in pieces)
    assert int.from_bytes(bytes(pieces[7].data), "little") == 7


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no tmpfs to try")
def test_a_file_system_in_memory_is_no_disk(monkeypatch):
    """What is written there takes the very memory that is short."""
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")

    assert scratch.folder() != "/dev/shm"


def test_a_folder_that_is_missing_is_no_disk(monkeypatch, tmp_path):
    """TMPDIR may name anything."""
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path / "missing"))

    assert scratch.folder() != os.fspath(tmp_path / "missing")
    assert scratch.room_in(os.fspath(tmp_path / "missing")) == 0


@pytest.mark.skipif(not can.sparse, reason="memory is not given back in pages here")
def test_forgotten_bytes_take_no_memory():
    """That is what it is for."""

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    made = Forward(1 << 40)
    before = resident()
    for start in range(0, 256 << 20, 16 << 20):
        made.data[start : start + (16 << 20)] = 7
        made.forget(0, start)

    assert resident() - before < 64 << 20
    np.testing.assert_array_equal(made.data[(256 << 20) - 5 : 256 << 20], 7)
