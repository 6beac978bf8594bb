"""Writing: short writes, failing syncs, locks that end with their process."""

import errno
import os
import re
import signal
import subprocess
import sys

import pytest
from faults.seam import BROKEN, NO_SPACE, failing, shorter, system, tree

from ndfeed.errors import ConflictError, DeniedError, MissingError, SpaceError, TargetError
from ndfeed.files import write
from ndfeed.files.folder import Folder, Layout, clear
from ndfeed.files.platform_calls import can
from ndfeed.files.write import Lock, Output

HOLDER = """
import sys, time
from ndfeed.files.write import Lock
lock = Lock(sys.argv[1].encode())
print(lock.held, flush=True)
time.sleep(100)
"""


FORKED = """
import os, sys, time
from ndfeed.files.write import Lock
lock = Lock(sys.argv[1].encode())
if not os.fork():
    print(os.getpid(), flush=True)
time.sleep(100)
"""


@pytest.fixture
def path(tmp_path):
    return os.fsencode(tmp_path / "file")


def contents(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize("by_position", [True, False])
def test_bytes_go_where_they_belong(path, monkeypatch, by_position):
    """In any order, past the end too."""
    monkeypatch.setattr(can, "pwrite", by_position)
    with Output(path, new=True) as file:
        file.write(5, b"world")
        file.write(0, memoryview(b"hello"))
        file.sync()

    assert contents(path) == b"helloworld"


def test_short_writes_are_finished(path):
    """The kernel may take less than it is given, at any call."""
    with Output(path, new=True) as file:
        for at in range(1, 4):
            with system(at, shorter, {"pwrite"}):
                file.write(0, b"x" * 1000)

    assert contents(path) == b"x" * 1000


def test_a_write_of_nothing_is_an_error(path):
    """It would be tried for ever."""
    with (
        Output(path, new=True) as file,
        system(1, lambda *_: 0, {"pwrite"}),
        pytest.raises(TargetError, match="nothing was written"),
    ):
        file.write(0, b"data")


@pytest.mark.parametrize("reserved", [True, False])
def test_room_is_given_and_taken(path, monkeypatch, reserved):
    """What is there stays."""
    monkeypatch.setattr(can, "allocate", reserved)
    with Output(path, new=True) as file:
        file.allocate(10)
        file.write(0, b"ab")
        file.allocate(4)
        file.allocate(6)

    assert contents(path) == b"ab\0\0\0\0"


def test_a_disk_that_cannot_reserve_is_written_all_the_same(path):
    """Some file systems say so only when asked."""
    with Output(path, new=True) as file, system(1, failing(errno.EOPNOTSUPP), {"posix_fallocate"}):
        file.allocate(10)

    assert contents(path) == bytes(10)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, SpaceError),
        (errno.EDQUOT, SpaceError),
        (errno.EFBIG, SpaceError),
        (errno.EIO, TargetError),
        (errno.EACCES, DeniedError),
        (errno.EROFS, DeniedError),
        (errno.ENOENT, MissingError),
    ],
)
def test_errors_have_a_type_and_the_file(path, number, kind):
    """And they are OSErrors too, one line each."""
    with system(1, failing(number), {"open"}), pytest.raises(kind, match="file: ") as caught:
        Output(path, new=True)
    assert isinstance(caught.value, OSError)
    assert caught.value.path == os.fsdecode(path)


def test_files_appear_whole(path):
    """A failure leaves what was there."""
    write.write_file(path, b"one")
    for happen, names in ((NO_SPACE, {"pwrite"}), (BROKEN, {"fsync"}), (BROKEN, {"replace"})):
        with system(1, happen, names), pytest.raises(TargetError, match="file"):
            write.write_file(path, b"two")
        assert contents(path) == b"one"
    write.write_file(path, b"three")

    assert contents(path) == b"three"


@pytest.fixture(params=[True, False], ids=["by descriptor", "by path"])
def top(request, tmp_path, monkeypatch):
    """An open folder, with and without what a platform may lack."""
    monkeypatch.setattr(can, "beneath", request.param)
    with Folder(os.fsencode(tmp_path)) as folder:
        yield folder


LAYOUT = Layout(
    re.compile(rb"a|z|owner"), {re.compile(rb"inner"): Layout(re.compile(rb"b"))}, last=b"owner"
)


def test_folders_are_moved_onto_nothing(tmp_path, top):
    """An empty folder is nothing; a file or a full one is something."""
    for name in ("a", "b", "full", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "full/file").touch()
    (tmp_path / "file").touch()

    for name in (b"full", b"file"):
        with pytest.raises(ConflictError, match="is there already"):
            top.move(b"a", top, name)
    top.move(b"a", top, b"empty")
    assert not (tmp_path / "a").exists()


def removed(top):
    """Remove the folder that the tests below make, if it is there."""
    try:
        folder = top.inner(b"folder")
    except MissingError:
        return
    with folder:
        clear(folder, LAYOUT)
    top.remove_folder(b"folder")


def test_folders_are_removed_with_all_that_is_ours(tmp_path, top):
    """The named file behind all others; what is not there is no error."""
    (tmp_path / "folder/inner").mkdir(parents=True)
    for name in ("a", "owner", "z", "inner/b"):
        (tmp_path / "folder" / name).touch()
    order = []

    def note(name, call, args):
        order.append(os.path.basename(args[0]))
        return call(*args)

    for at in range(1, 6):
        with system(at, note, {"unlink"}):
            removed(top)
        if not (tmp_path / "folder").exists():
            break
    removed(top)

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("what", ["file", "folder", "link", "link to a folder", "folder for file"])
def test_what_is_not_ours_is_named_and_stays(tmp_path, top, what):
    """With all that is beside it: nothing is removed, and no link is followed."""
    (tmp_path / "folder/inner").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/b").touch()
    for name in ("owner", "z", "inner/b"):
        (tmp_path / "folder" / name).touch()
    strange = tmp_path / "folder/inner/notes"
    if what == "file":
        strange.touch()
    elif what == "folder":
        strange.mkdir()
    elif what == "link":
        strange = tmp_path / "folder/a"
        strange.symlink_to(tmp_path / "kept/b")
    elif what == "link to a folder":
        (tmp_path / "folder/inner/b").unlink()
        (tmp_path / "folder/inner").rmdir()
        strange = tmp_path / "folder/inner"
        strange.symlink_to(tmp_path / "kept")
    else:
        strange = tmp_path / "folder/a"
        strange.mkdir()
    before = tree(tmp_path)

    with pytest.raises(ConflictError, match="not made by ndfeed; move it away") as caught:
        removed(top)
    assert caught.value.path == str(strange)
    assert tree(tmp_path) == before


def test_owner_goes_last(tmp_path, top):
    """Whoever finds the folder half removed must still find who owned it."""
    (tmp_path / "folder").mkdir()
    for name in ("a", "owner", "z"):
        (tmp_path / "folder" / name).touch()
    with system(3, BROKEN, {"unlink"}), pytest.raises(TargetError, match="owner"):
        removed(top)

    assert os.listdir(tmp_path / "folder") == ["owner"]


def _links(tmp_path):
    """What may stand in a file's place, each leading to a file that must stay as it is."""
    kept = tmp_path / "kept"
    kept.write_bytes(b"kept")
    (tmp_path / "link").symlink_to(kept)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    os.link(kept, tmp_path / "hard")
    (tmp_path / "folder").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
    return kept, [
        n for n in ("link", "dangling", "hard", "folder", "pipe") if n in os.listdir(tmp_path)
    ]


@pytest.mark.parametrize("new", [True, False])
def test_nothing_is_written_through_a_link(tmp_path, top, new):
    """Symbolic, dangling or hard, and whatever else is no plain file."""
    kept, names = _links(tmp_path)
    for name in names:
        with pytest.raises((ConflictError, TargetError), match=name):
            top.output(name.encode(), new=new)
    for name in names:
        with pytest.raises((ConflictError, TargetError), match=name):
            Lock(os.fsencode(tmp_path / name))

    assert kept.read_bytes() == b"kept"
    assert not (tmp_path / "nothing").exists()


def test_nothing_is_read_or_made_through_a_link(tmp_path, top):
    """Also not by way of a folder that is one."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_bytes(b"kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "file").symlink_to(tmp_path / "kept/file")
    before = tree(tmp_path / "kept")
    for attempt in (
        lambda: top.file(b"file"),
        lambda: top.file(b"link", b"file"),
        lambda: top.output(b"link/new", new=True),
        lambda: top.inner(b"link"),
        lambda: top.inner(b"link", new=True),
        lambda: top.inner(b"link", b"new", new=True),
        lambda: Folder(os.fsencode(tmp_path / "link")),
    ):
        with pytest.raises(ConflictError, match="link"):
            attempt()
    top.write(b"file", b"new")

    assert tree(tmp_path / "kept") == before
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "file").is_symlink()


def test_a_lock_has_one_holder(path):
    """Within a process too, and the next gets it when it is released."""
    first = Lock(path)
    with pytest.raises(ConflictError, match="another process writes here"):
        Lock(path)
    first.release()
    first.release()
    second = Lock(path)

    assert second.held
    assert second.current()
    os.unlink(path)
    assert not second.current()
    second.release()


def test_a_lock_dies_with_its_process(path):
    """However that ends; no file's age or existence matters."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"True\n"
    with pytest.raises(ConflictError, match="another process"):
        Lock(path)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()

    lock = Lock(path)
    assert lock.held
    lock.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_keep_a_lock(path):
    """A worker that outlives its parent must not keep others out."""
    holder = subprocess.Popen(
        [sys.executable, "-c", FORKED, path], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    child = int(holder.stdout.readline())
    with pytest.raises(ConflictError, match="another process"):
        Lock(path)
    holder.kill()
    holder.wait()
    try:
        lock = Lock(path)
        os.kill(child, 0)  # still there

        assert lock.held
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)
        holder.communicate()


def test_without_locks_nobody_is_kept_out(path, monkeypatch):
    """It is said, so that whoever relies on them does not."""
    monkeypatch.setattr(can, "lock", False)
    locks = [Lock(path), Lock(path)]

    assert [lock.held for lock in locks] == [None, None]
    for lock in locks:
        lock.release()
