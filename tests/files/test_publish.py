"""Files appear whole or not at all, and only so many are kept."""

import os
import signal

import pytest
from children import run

from ndfeed.files import publish


def test_the_file_holds_the_pieces_in_turn(tmp_path):
    """Folders on the way are made, for nobody else to read."""
    path = tmp_path / "new" / "index"
    publish.publish(os.fsencode(path), [b"one ", memoryview(b"two")])

    assert path.read_bytes() == b"one two"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["index"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    """A full disk must cost the new file only."""
    path = tmp_path / "index"
    path.write_bytes(b"old")
    code = """
    import signal
    from ndfeed.files import publish
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        publish.publish(os.fsencode(args[0]), [b"x" * 100_000])
    except OSError as error:
        print(error.errno)
    """

    assert run(code, path).strip() == "27"  # EFBIG
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["index"]


def test_a_writer_that_is_killed_leaves_the_old_file(tmp_path):
    """The rename is the only moment that counts."""
    path = tmp_path / "index"
    path.write_bytes(b"old")
    code = """
    import signal
    from ndfeed.files import publish
    def pieces():
        yield b"new" * 100_000
        os.kill(os.getpid(), signal.SIGKILL)
    publish.publish(os.fsencode(args[0]), pieces())
    """
    with pytest.raises(AssertionError, match=f"exit status -{int(signal.SIGKILL)}"):
        run(code, path)

    assert path.read_bytes() == b"old"


def test_the_newest_files_are_kept(tmp_path):
    """Who opens many sources must not fill the disk with their indexes."""
    for i in range(10):
        path = tmp_path / str(i)
        path.write_bytes(b"x" * 100)
        os.utime(path, (i, i))
    publish.keep_newest(os.fsencode(tmp_path), 6, 10_000)
    assert sorted(os.listdir(tmp_path)) == list("456789")

    publish.keep_newest(os.fsencode(tmp_path), 6, 250)
    assert sorted(os.listdir(tmp_path)) == list("89")

    publish.keep_newest(os.fsencode(tmp_path), 6, 10)
    assert os.listdir(tmp_path) == ["9"]


def test_a_folder_that_is_not_there_is_no_matter(tmp_path):
    """Pruning is a convenience and never fails."""
    publish.keep_newest(os.fsencode(tmp_path / "none"), 1, 1)
    publish.discard(os.fsencode(tmp_path / "none"))
    publish.age(os.fsencode(tmp_path / "none"))

    assert os.listdir(tmp_path) == []


def test_an_aged_file_is_the_first_to_go(tmp_path):
    """An index in doubt is worth less than any other."""
    for name in "ab":
        (tmp_path / name).write_bytes(b"")
    publish.age(os.fsencode(tmp_path / "b"))
    publish.keep_newest(os.fsencode(tmp_path), 1, 100)

    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("chosen", ["", "relative/path"])
def test_the_cache_folder_is_never_relative(tmp_path, monkeypatch, chosen):
    """The specification says so; else every working directory would have a cache of its own."""
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", chosen)

    assert os.fsdecode(publish.cache_folder()).startswith(os.fspath(tmp_path))


def test_the_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    """Clusters put caches on a disk of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))

    assert publish.cache_folder() == os.fsencode(tmp_path / "ndfeed")
