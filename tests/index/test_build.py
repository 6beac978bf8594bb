"""Every file is described, and every bad one is named at once."""

import os
import threading

import numpy as np
import pytest
from children import run
from index.lists import same

import ndfeed
from ndfeed.index import build
from ndfeed.index.open import open_table


def opened(source, **options):
    return ndfeed.open(source, sample="file", cache=False, **options)


def spoil(folder, count, good=1):
    """Files cut short, and some that are not."""
    for i in range(good):
        np.save(folder / f"good{i}.npy", np.zeros(3))
    whole = (folder / "good0.npy").read_bytes()
    for i in range(count):
        (folder / f"bad{i}.npy").write_bytes(whole[:-1])


def test_one_bad_file_raises_its_own_error(tmp_path):
    """Nothing to unpack: the error says the file and what is wrong with it."""
    spoil(tmp_path, 1, good=5)

    with pytest.raises(ndfeed.TruncatedError, match=rf"^{tmp_path}/bad0\.npy") as caught:
        opened(tmp_path)
    assert caught.value.path == f"{tmp_path}/bad0.npy"


def test_every_bad_file_is_listed(tmp_path):
    """Ten and a count: who mends them one by one need not find them one by one."""
    spoil(tmp_path, 25, good=5)
    (tmp_path / "bad3.npy").unlink()
    (tmp_path / "bad3.npy").symlink_to("none")

    with pytest.raises(ndfeed.BadFilesError) as caught:
        opened(tmp_path)
    lines = str(caught.value).splitlines()
    assert [os.path.basename(line.split(" ")[0].strip(":")) for line in lines[:10]] == [
        f"bad{i}.npy" for i in range(10)
    ]
    assert lines[3].startswith(f"{tmp_path}/bad3.npy: no such file or folder")
    assert lines[10:] == ["… and 15 more", "25 of 30 files cannot be used"]
    assert [error.path for error in caught.value.problems] == [
        f"{tmp_path}/bad{i}.npy" for i in range(25)
    ]


def test_missing_files_of_a_list_are_listed_too(tmp_path):
    """With all others, not the first alone."""
    spoil(tmp_path, 1)
    source = [tmp_path / name for name in ("none1.npy", "good0.npy", "bad0.npy", "none2.npy")]

    with pytest.raises(ndfeed.BadFilesError) as caught:
        opened(source)
    assert [os.path.basename(error.path) for error in caught.value.problems] == [
        "none1.npy", "bad0.npy", "none2.npy",
    ]  # fmt: skip


def test_errors_keep_nothing_alive(tmp_path):
    """A million bad files are a million errors, but not a million frames with them."""
    spoil(tmp_path, 3)

    with pytest.raises(ndfeed.BadFilesError) as caught:
        opened(tmp_path)
    assert all(error.__traceback__ is None for error in caught.value.problems)


def test_bad_files_are_counted_among_all_when_some_are_known(tmp_path):
    """What need not be described again was checked as well."""
    spoil(tmp_path, 0, good=5)
    ndfeed.open(tmp_path, sample="file")
    spoil(tmp_path, 2, good=1)

    with pytest.raises(ndfeed.BadFilesError, match="2 of 7 files cannot be used"):
        ndfeed.open(tmp_path, sample="file")


def test_threads_make_the_same_table(tmp_path, monkeypatch):
    """Where the disk is slow, several share the work; nobody may see a difference."""
    for i in range(300):
        np.save(tmp_path / f"{i}.npy", np.zeros((i % 7, i % 3), "<f4" if i % 2 else ">i2"))
    (tmp_path / "README").write_text("no array")
    alone = open_table(tmp_path, cached=False).table
    monkeypatch.setattr(build, "_WAITS_PER_FILE", -1)
    monkeypatch.setattr(build, "_FIRST", 10)
    monkeypatch.setattr(build, "_CHUNK", 16)
    before = set(threading.enumerate())

    assert same(open_table(tmp_path, cached=False).table, alone)
    assert set(threading.enumerate()) <= before  # those of other tests may end meanwhile
    spoil(tmp_path, 40)
    with pytest.raises(ndfeed.BadFilesError, match="40 of 342 files cannot be used"):
        open_table(tmp_path, cached=False)
    assert set(threading.enumerate()) <= before


def test_ctrl_c_does_not_wait_for_the_other_files(tmp_path):
    """Threads that have much to do yet are not waited for."""
    np.save(tmp_path / "x.npy", np.zeros(3))
    code = """
    import signal, sys, threading
    from ndfeed.index import build
    build._WAITS_PER_FILE = -1
    build._CHUNK = 100
    def interrupt():
        while len(sys._current_frames()) < 4:
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        ndfeed.open([args[0]] * 500_000, sample="file", cache=False)
    except KeyboardInterrupt:
        print("interrupted")
    """

    assert run(code, tmp_path / "x.npy", timeout=250) == "interrupted\n"


def test_huge_numbers_in_a_header_are_an_error_of_ours(tmp_path):
    """Columns have 64 bits; what does not fit them must not get that far."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 100000000000000000000), }\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    (tmp_path / "x.npy").write_bytes(data)

    with pytest.raises(ndfeed.FormatError, match=rf"^{tmp_path}/x\.npy"):
        opened(tmp_path / "x.npy")
