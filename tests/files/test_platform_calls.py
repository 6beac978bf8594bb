"""Hints: right where the system has them, harmless where it has not."""

import os
import time

import pytest

from ndfeed.files import platform_calls
from ndfeed.files.platform_calls import can


@pytest.fixture
def file(tmp_path):
    """An open file of some pages."""
    path = tmp_path / "x"
    path.write_bytes(bytes(64 << 12))
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_what_was_read_is_in_memory(file):
    """Or rows that are there would be asked for again and again."""
    os.pread(file, 64 << 12, 0)

    assert platform_calls.resident(file, 0)
    assert platform_calls.resident(file, (64 << 12) - 1)


def test_beyond_the_end_nothing_is_missing(file):
    """A file that was shortened is for whoever reads to find out."""
    assert platform_calls.resident(file, 1 << 40)


def test_asking_changes_nothing(file):
    """Neither the offset nor the bytes."""
    platform_calls.will_need(file, [(0, 4096), (8 << 12, 64 << 12), (1 << 40, 1 << 41)])

    assert os.lseek(file, 0, os.SEEK_CUR) == 0
    assert os.pread(file, 8, 0) == bytes(8)


@pytest.mark.parametrize("lacking", ["probe", "advise"])
def test_without_the_calls_everything_counts_as_there(file, monkeypatch, lacking):
    """On platforms that lack them reading is as it was."""
    monkeypatch.setattr(can, lacking, False)
    platform_calls.will_need(file, [(0, 4096)])

    assert platform_calls.resident(file, 0)


def test_a_closed_descriptor_is_no_error():
    """A hint that comes too late is none."""
    platform_calls.will_need(1 << 20, [(0, 1)])

    assert platform_calls.resident(1 << 20, 0)


def test_what_is_dropped_is_read_from_the_disk_again(tmp_path):
    """And no byte is another."""
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 4096)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)  # what the disk lacks is never dropped
    for _ in range(20):  # what was just written is not let go of at once
        platform_calls.drop(fd)
        gone = not platform_calls.resident(fd, 1 << 19)
        if gone:
            break
        time.sleep(0.01)
    data = os.pread(fd, 1 << 20, 0)
    os.close(fd)

    assert data == bytes(range(256)) * 4096
    if not gone:
        pytest.skip("this file system keeps everything in memory, or cannot say what it keeps")


def test_dropping_with_nothing_to_drop_is_no_error(file, monkeypatch):
    """Neither a closed descriptor nor a platform that cannot."""
    platform_calls.drop(1 << 20)
    monkeypatch.setattr(can, "advise", False)
    platform_calls.drop(file)

    assert os.pread(file, 8, 0) == bytes(8)
