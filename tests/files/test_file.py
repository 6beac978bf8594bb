"""Files are opened read-only, checked, and closed, whatever happens."""

import os
import threading

import psutil
import pytest
from children import AS_NOBODY, folder_for_all, run
from hypothesis import given
from hypothesis import strategies as st

from ndfeed.errors import ChangedError, DeniedError, MissingError, SourceError, TruncatedError
from ndfeed.files.file import File, Identity, Stretch, fetch, signed


def made(path, data=b"0123456789" * 100):
    """A file with ``data``, its path as bytes, and its identity."""
    path.write_bytes(data)
    return os.fsencode(path), Identity.of(path.stat())


def fds():
    return psutil.Process().num_fds()


def stretch(path, identity, start, *buffers):
    return Stretch(path, identity, start, buffers, sum(map(len, buffers)))


def rewrite(path, data):
    """Write over a file in place, as a program that saves again does."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()


def test_no_such_file(tmp_path):
    """Ours, and Python's own kind too."""
    path = os.fsencode(tmp_path / "none")
    with pytest.raises(MissingError, match="none: no such file or folder"):
        File(path)
    with pytest.raises(FileNotFoundError, match="none: no such file or folder"):
        fetch([stretch(path, Identity(0, 0, 0, 0, 0), 0)])


def test_a_folder_or_device_is_no_file(tmp_path):
    """Only a regular file has the size that everything is checked against."""
    before = fds()
    with pytest.raises(SourceError, match="expected a regular file, found a folder"):
        File(os.fsencode(tmp_path))
    with pytest.raises(SourceError, match="found a pipe or device"):
        File(b"/dev/null")

    assert fds() == before


def test_a_pipe_nobody_writes_to_is_refused_at_once(tmp_path):
    """Opening one waits for a writer unless it is told not to."""
    os.mkfifo(tmp_path / "pipe")
    done = threading.Event()

    def refuse():
        with pytest.raises(SourceError, match="pipe: expected a regular file"):
            File(os.fsencode(tmp_path / "pipe"))
        done.set()

    thread = threading.Thread(target=refuse, daemon=True)
    thread.start()

    assert done.wait(60)


def test_links_that_lead_nowhere(tmp_path):
    """To nothing, and in a circle."""
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    with pytest.raises(MissingError, match="dangling: no such file"):
        File(os.fsencode(tmp_path / "dangling"))
    with pytest.raises(SourceError, match="loop: a loop of symbolic links"):
        File(os.fsencode(tmp_path / "loop"))


def test_a_file_that_may_not_be_read():
    """The error is Python's PermissionError as well, and says what to do."""
    code = """
from ndfeed.files.file import File
try:
    File(os.fsencode(args[0]))
except PermissionError as error:
    print(type(error).__name__, error)
"""
    with folder_for_all() as folder:
        (folder / "x").write_bytes(b"x")
        (folder / "x").chmod(0)
        said = run(AS_NOBODY + code, folder / "x")

    assert said.startswith(f"{DeniedError.__name__} {folder}/x: permission denied; make")


def test_too_many_open_files_is_said_so(tmp_path):
    """And which limit to raise."""
    path, _ = made(tmp_path / "x")
    code = """
    from ndfeed.files.file import File
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
    kept = []
    try:
        while True:
            kept.append(File(os.fsencode(args[0])))
    except ndfeed.SourceError as error:
        kept.clear() or print(error)
    """

    assert "x: too many open files; raise the limit (ulimit -n)" in run(code, path)


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000), st.booleans())
def test_what_is_kept_of_a_file_is_what_it_holds(tmp_path_factory, start, length, tail, first):
    """Head and tail are read once and serve whatever lies in them."""
    data = bytes(range(251)) * 9
    path, _ = made(tmp_path_factory.mktemp("f") / "x", data)
    with File(path) as file:
        if first:
            assert file.head() == data[:1024]
        assert file.tail(tail) == data[max(len(data) - tail, 0) :]
        if start + length <= len(data):
            assert file.read(start, length) == data[start : start + length]
        else:
            with pytest.raises(
                TruncatedError, match=f"expected {start + length} bytes, found 2259"
            ):
                file.read(start, length)


def test_read_into_fills_buffers_in_turn(tmp_path):
    """One call for a header and the data behind it."""
    path, _ = made(tmp_path / "x")
    a, b = bytearray(3), bytearray(5)
    with File(path) as file:
        file.read_into(8, [memoryview(a), memoryview(b)])
        assert (bytes(a), bytes(b)) == (b"890", b"12345")
        with pytest.raises(TruncatedError, match="expected 1003 bytes, found 1000"):
            file.read_into(995, [memoryview(a), memoryview(b)])


@pytest.mark.parametrize("change", ["rewritten", "longer", "replaced", "a folder now"])
def test_another_file_than_expected_is_refused(tmp_path, change):
    """Whatever it is now, it is not what was indexed."""
    path, identity = made(tmp_path / "x")
    if change == "replaced":
        made(tmp_path / "y")
        os.utime(tmp_path / "y", ns=(identity.mtime, identity.mtime))
        os.replace(tmp_path / "y", tmp_path / "x")
    elif change == "a folder now":
        os.unlink(tmp_path / "x")
        os.mkdir(tmp_path / "x")
    else:
        rewrite(path, b"9" * (1000 if change == "rewritten" else 1001))
        os.utime(path, ns=(identity.mtime, identity.mtime + (change == "rewritten")))
    before = fds()

    with pytest.raises(ChangedError, match="x: changed since it was indexed"):
        File(path, identity)
    with pytest.raises(ChangedError, match="x: changed since it was indexed"):
        fetch([stretch(path, identity, 0, memoryview(bytearray(10)))])
    assert fds() == before


def read_while(path, identity, happening):
    """Read a little, and then let something happen before the file is closed."""
    with File(path, identity) as file:
        assert file.read(0, 10) == b"0123456789"
        happening()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    """What was read may be torn: half of it old, half of it new."""
    path, identity = made(tmp_path / "x")
    before = fds()

    with pytest.raises(ChangedError, match="x: changed since"):
        read_while(path, identity, lambda: rewrite(path, b"9" * 1000))
    assert fds() == before


@pytest.mark.parametrize("change", [True, False])
def test_an_error_in_a_file_that_changed_is_that_it_changed(tmp_path, change):
    """Bytes written over look damaged; that is not what is wrong with them."""
    path, identity = made(tmp_path / "x")

    def fail():
        if change:
            rewrite(path, b"9" * 1000)
        raise TruncatedError(path, "looks damaged")

    with pytest.raises(ChangedError if change else TruncatedError, match=r"changed|looks damaged"):
        read_while(path, identity, fail)


def test_fetch_reads_stretches_of_files(tmp_path):
    """Whole samples, each from its own file, straight to where they belong."""
    files = [made(tmp_path / str(i), bytes([i]) * 100) for i in range(5)]
    rooms = [bytearray(60) for _ in files]
    fetch(
        stretch(path, identity, 30, memoryview(room)[:20], memoryview(room)[20:])
        for (path, identity), room in zip(files, rooms, strict=True)
    )

    assert [set(room) for room in rooms] == [{0}, {1}, {2}, {3}, {4}]
    with pytest.raises(TruncatedError, match="expected 120 bytes, found 100"):
        fetch([stretch(*files[0], 60, memoryview(rooms[0]))])


def test_large_numbers_fit_signed_columns():
    """Some file systems have inodes of all 64 bits."""
    assert signed((1 << 64) - 1) == -1
    assert signed(1 << 63) == -(1 << 63)
    assert signed(7) == 7


def test_a_file_deleted_while_it_is_read_is_whole(tmp_path):
    """Deleting changes its ctime, and nothing else."""
    path, identity = made(tmp_path / "x")

    read_while(path, identity, lambda: os.unlink(path))


def test_a_time_that_was_put_back_is_seen(tmp_path):
    """The size, the inode and mtime are as they were; ctime cannot be set."""
    path, identity = made(tmp_path / "x")
    rewrite(path, b"9" * 1000)
    os.utime(path, ns=(identity.mtime, identity.mtime))

    with pytest.raises(
        ChangedError, match=r"x: changed since it was indexed \(written to, renamed"
    ):
        File(path, identity)
    with pytest.raises(
        ChangedError, match=r"x: changed since it was indexed \(written to, renamed"
    ):
        fetch([stretch(path, identity, 0, memoryview(bytearray(10)))])
