"""Files appear whole or not at all, and only so many are kept."""

import os
import signal

import pytest
from children import finish, run, start

from ndfeed.files import cache_files, platform_calls


def test_the_file_holds_the_pieces_in_turn(tmp_path):
    """Folders on the way are made, for nobody else to read."""
    path = tmp_path / "new" / "index"
    cache_files.publish(os.fsencode(path), [b"one ", memoryview(b"two")])

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
    from ndfeed.files import cache_files
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        cache_files.publish(os.fsencode(args[0]), [b"x" * 100_000])
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
    from ndfeed.files import cache_files
    def pieces():
        yield b"new" * 100_000
        os.kill(os.getpid(), signal.SIGKILL)
    cache_files.publish(os.fsencode(args[0]), pieces())
    """
    with pytest.raises(AssertionError, match=f"exit status -{int(signal.SIGKILL)}"):
        run(code, path)

    assert path.read_bytes() == b"old"


def named(i):
    """A name as caches have them."""
    return f"{i:032x}"


def test_the_newest_files_are_kept(tmp_path):
    """Who opens many sources must not fill the disk with their indexes."""
    for i in range(10):
        path = tmp_path / named(i)
        path.write_bytes(b"x" * 100)
        os.utime(path, (i, i))
    cache_files.keep_newest(os.fsencode(tmp_path), 6, 10_000)
    assert sorted(os.listdir(tmp_path)) == list(map(named, range(4, 10)))

    cache_files.keep_newest(os.fsencode(tmp_path), 6, 250)
    assert sorted(os.listdir(tmp_path)) == list(map(named, range(8, 10)))

    cache_files.keep_newest(os.fsencode(tmp_path), 6, 10)
    assert os.listdir(tmp_path) == [named(9)]


def test_only_files_that_we_wrote_are_removed(tmp_path):
    """Somebody may keep notes there, and links may lead anywhere."""
    other = tmp_path / "other"
    other.write_text("precious")
    folder = tmp_path / "index"
    folder.mkdir(mode=0o700)
    (folder / "notes.txt").write_text("precious")
    (folder / named(0xABC)).mkdir()
    (folder / named(0xDEF)).symlink_to(other)
    left = {*os.listdir(folder), named(9)}
    (folder / ".tmp-0123456789abcdef").write_bytes(b"killed halfway")
    for i in range(10):
        (folder / named(i)).write_bytes(b"x")
        os.utime(folder / named(i), (i + 10, i + 10))
    for name in left - {named(0xDEF)}:
        os.utime(folder / name, (1000, 1000))
    os.utime(folder / ".tmp-0123456789abcdef", (1, 1))
    cache_files.keep_newest(os.fsencode(folder), 1, 100)

    assert set(os.listdir(folder)) == left
    assert other.read_text() == "precious"


def test_nothing_behind_a_link_is_removed_or_written(tmp_path):
    """A link in place of our folder may lead to somebody's data, names like ours or not."""
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    for i in range(3):
        (precious / named(i)).write_text("precious")
    link = tmp_path / "index"
    link.symlink_to(precious)
    path = os.fsencode(link / named(0))
    cache_files.keep_newest(os.fsencode(link), 1, 1)
    cache_files.discard(path)
    cache_files.age(path)
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        cache_files.publish(path, [b"new"])

    assert [(precious / named(i)).read_text() for i in range(3)] == ["precious"] * 3
    assert (precious / named(0)).stat().st_mtime_ns > 0
    assert len(os.listdir(precious)) == 3


def test_a_link_in_place_of_a_file_is_replaced(tmp_path):
    """Not written through: what it leads to is not ours."""
    other = tmp_path / "other"
    other.write_text("precious")
    folder = tmp_path / "index"
    folder.mkdir(mode=0o700)
    (folder / "x").symlink_to(other)
    with (
        cache_files.PrivateFolder(os.fsencode(folder)) as opened,
        pytest.raises(OSError, match=r"link"),
    ):
        opened.read(b"x", 100)
    cache_files.publish(os.fsencode(folder / "x"), [b"new"])

    assert other.read_text() == "precious"
    assert (folder / "x").read_bytes() == b"new"
    assert not (folder / "x").is_symlink()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path, mode):
    """Whatever lies in it may be anybody's."""
    folder = tmp_path / "index"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(OSError, match="nobody else can write"):
        cache_files.publish(os.fsencode(folder / "x"), [b"new"])

    assert os.listdir(folder) == []


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_to_is_not_read(tmp_path, mode):
    """Nor one of another kind."""
    path = tmp_path / "x"
    path.write_bytes(b"x")
    path.chmod(mode)
    os.mkfifo(tmp_path / "pipe")
    with cache_files.PrivateFolder(os.fsencode(tmp_path)) as folder:
        for name in (b"x", b"pipe"):
            with pytest.raises(OSError, match="nobody else can write"):
                folder.read(name, 100)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_not_used(tmp_path):
    """Neither a file nor a folder, whatever its mode."""
    folder = tmp_path / "index"
    folder.mkdir(mode=0o700)
    (folder / named(1)).write_bytes(b"x")
    (folder / named(2)).write_bytes(b"x")
    os.chown(folder / named(1), 65534, 65534)
    with cache_files.PrivateFolder(os.fsencode(folder)) as opened:
        with pytest.raises(OSError, match="belongs to this user"):
            opened.read(named(1).encode(), 100)
        assert [name for _, name in opened.files()] == [named(2).encode()]
    os.chown(folder, 65534, 65534)

    with pytest.raises(OSError, match="belongs to this user"):
        cache_files.PrivateFolder(os.fsencode(folder))


def test_a_file_larger_than_asked_for_is_not_read(tmp_path):
    """A sparse file may claim more than there is memory."""
    with open(tmp_path / "x", "wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "x").chmod(0o600)

    with (
        cache_files.PrivateFolder(os.fsencode(tmp_path)) as folder,
        pytest.raises(OSError, match="bytes"),
    ):
        folder.read(b"x", 1 << 20)


def test_all_of_it_works_without_descriptors_of_folders(tmp_path, monkeypatch):
    """As on Windows."""
    monkeypatch.setattr(platform_calls.can, "beneath", False)
    folder = tmp_path / "new" / "index"
    for i in range(3):
        cache_files.publish(os.fsencode(folder / named(i)), [b"one ", b"two"])
        os.utime(folder / named(i), (i, i))
    with cache_files.PrivateFolder(os.fsencode(folder)) as opened:
        assert opened.read(named(0).encode(), 100)[0] == b"one two"
    cache_files.age(os.fsencode(folder / named(2)))
    cache_files.keep_newest(os.fsencode(folder), 1, 100)

    assert os.listdir(folder) == [named(1)]


@pytest.mark.parametrize("beneath", [True, False])
def test_a_secret_is_made_once(tmp_path, monkeypatch, beneath):
    """For this user alone; and made anew where what is there is none."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    monkeypatch.setattr(platform_calls.can, "beneath", beneath)
    with pytest.raises(FileNotFoundError):
        cache_files.secret()
    first = cache_files.secret(make=True)
    key = tmp_path / "ndfeed" / "private" / "key"
    assert len(first) == 32
    assert first == cache_files.secret() == cache_files.secret(make=True) == key.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700

    for spoil in (lambda: key.chmod(0o640), lambda: key.write_bytes(b"short"), key.unlink):
        before = cache_files.secret()
        spoil()
        with pytest.raises(OSError, match=r"only this user|No such file"):
            cache_files.secret()
        assert cache_files.secret(make=True) != before
    assert os.listdir(key.parent) == ["key"]


def test_processes_agree_on_a_secret(tmp_path, monkeypatch):
    """Every rank of a run makes it at the same moment."""
    code = """
    from ndfeed.files import cache_files
    os.environ["XDG_CACHE_HOME"] = args[0]
    print(cache_files.secret(make=True).hex())
    """
    children = [start(code, tmp_path) for _ in range(4)]

    assert len({finish(child) for child in children}) == 1


def test_a_folder_that_is_not_there_is_no_matter(tmp_path):
    """Pruning is a convenience and never fails."""
    cache_files.keep_newest(os.fsencode(tmp_path / "none"), 1, 1)
    cache_files.discard(os.fsencode(tmp_path / "none"))
    cache_files.age(os.fsencode(tmp_path / "none"))

    assert os.listdir(tmp_path) == []


def test_an_aged_file_is_the_first_to_go(tmp_path):
    """An index in doubt is worth less than any other."""
    for i in range(2):
        (tmp_path / named(i)).write_bytes(b"")
    cache_files.age(os.fsencode(tmp_path / named(1)))
    cache_files.keep_newest(os.fsencode(tmp_path), 1, 100)

    assert os.listdir(tmp_path) == [named(0)]


@pytest.mark.parametrize("chosen", ["", "relative/path"])
def test_the_cache_folder_is_never_relative(tmp_path, monkeypatch, chosen):
    """The specification says so; else every working directory would have a cache of its own."""
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", chosen)

    assert os.fsdecode(cache_files.cache_folder()).startswith(os.fspath(tmp_path))


def test_the_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    """Clusters put caches on a disk of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))

    assert cache_files.cache_folder() == os.fsencode(tmp_path / "ndfeed")
