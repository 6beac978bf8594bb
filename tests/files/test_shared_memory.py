"""Shared memory has no name, cannot change, and is gone when nobody needs it."""

import multiprocessing
import os
import pickle
import tempfile

import numpy as np
import psutil
import pytest
from children import finish, look, names_in_shared_memory, run, start

from ndfeed.errors import MissingError, SourceError
from ndfeed.files.platform_calls import can
from ndfeed.files.shared_memory import Block, Shared, attach

pytestmark = pytest.mark.skipif(not can.memfd, reason="needs Linux")

each_kind = pytest.mark.parametrize("memfd", [True, False], ids=["memfd", "temporary file"])


@pytest.fixture
def kind(memfd, monkeypatch, tmp_path):
    """Shared memory as this platform has it, or as others do."""
    monkeypatch.setattr(can, "memfd", memfd)
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))


def fds():
    return psutil.Process().num_fds()


@each_kind
@pytest.mark.usefixtures("kind")
def test_it_holds_what_was_put_in():
    """Pieces one after the other; none at all is fine too."""
    made = Shared.of([b"one ", memoryview(b"two")])

    assert made.view().tobytes() == b"one two"
    assert Shared.of([]).view().tobytes() == b""


def test_nobody_can_write_to_it():
    """One copy for all processes: who writes to it would write to all."""
    made = Shared.of([b"data"])
    view = made.view()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    fd = os.open(made.path, os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 1)
    os.close(fd)

    assert made.view().tobytes() == b"data"


def test_it_has_no_name():
    """A name in /dev/shm stays there when everybody is killed, and is small in containers."""
    made = Shared.of([b"data"])
    made.view()

    assert not names_in_shared_memory()
    assert os.readlink(made.path).startswith(b"/memfd:")


@each_kind
@pytest.mark.usefixtures("kind")
def test_no_descriptor_and_no_file_is_left(tmp_path):
    """Also where the view outlives what it is a view of."""
    before = fds()
    views = []
    for _ in range(50):
        made = Shared.of([b"data"])
        views.append(made.view())
        again = pickle.loads(pickle.dumps(made))
        assert again.view().tobytes() == b"data"
        del made, again

    assert all(view.tobytes() == b"data" for view in views)
    del views
    assert fds() == before
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_other_processes_see_it(method):
    """By the handle that it pickles as, whatever way they were started."""
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    made = Shared.of([b"data"])
    child = context.Process(target=look, args=(made, queue))
    child.start()
    pid, data = queue.get()
    child.join()

    assert pid != os.getpid()
    assert data == b"data"


def test_once_attached_it_does_not_need_its_owner():
    """The process that loaded the data may end before those that train on it."""
    code = """
    import pickle
    from ndfeed.files.shared_memory import Block, Shared, attach
    made = Shared.of([b"data"])
    sys.stdout.write(pickle.dumps(made).hex() + "\\n")
    sys.stdout.flush()
    sys.stdin.read()
    """
    child = start(code)
    attach = pickle.loads(bytes.fromhex(child.stdout.readline()))
    finish(child)

    assert attach.view().tobytes() == b"data"


def test_without_its_owner_it_is_missing():
    """A pickle that is kept is worth nothing then; the error says what to do."""
    code = """
    import pickle
    from ndfeed.files.shared_memory import Block, Shared, attach
    print(pickle.dumps(Shared.of([b"data"])).hex())
    """
    kept = bytes.fromhex(run(code))

    with pytest.raises(MissingError, match="the process that held this memory is gone"):
        pickle.loads(kept)


def test_a_number_that_means_another_file_now_is_refused():
    """Descriptors are numbered anew; the inode tells."""
    made = Shared.of([b"data"])
    handle = made.handle()
    for field in ("size", "device", "inode"):
        other = handle._replace(**{field: getattr(handle, field) + 1})
        before = fds()
        with pytest.raises(MissingError, match="is gone"):
            Shared.attach(other)
        assert fds() == before


def test_more_than_there_is_is_refused_at_once():
    """The system itself would not refuse: it would end some process to make room."""
    before = fds()
    with pytest.raises(SourceError, match=r"shared memory: \d+ bytes cannot be had, \d+ are free"):
        Shared(1 << 50)

    assert fds() == before


@pytest.mark.parametrize("memfd", [False])
@pytest.mark.usefixtures("kind")
def test_a_full_disk_is_refused_at_once(tmp_path):
    """Reserved before it is filled: else filling it would kill the process (SIGBUS)."""
    with pytest.raises(SourceError, match=r"shared memory: \d+ bytes cannot be had"):
        Shared(1 << 50)

    assert os.listdir(tmp_path) == []


def test_an_error_while_filling_leaves_nothing():
    """As when the files to be loaded turn out damaged."""
    before = fds()

    def fail(out: np.ndarray) -> None:
        out[0] = 1
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        Shared(100).fill(fail)
    assert fds() == before


def test_a_block_is_written_by_both_sides():
    """What a process of the loader leaves in it, the loader finds."""
    block = Block.of(1 << 16)
    other = attach(block.handle)
    other[:4] = [1, 2, 3, 4]
    block[4:8] = 9

    assert block[:5].tolist() == [1, 2, 3, 4, 9]
    assert other[7] == 9


def test_a_block_that_is_gone_cannot_be_attached():
    """An error of ours, not somebody else's memory."""
    block = Block.of(4096)
    handle = block.handle
    del block

    with pytest.raises(MissingError, match="the process that held this memory is gone"):
        attach(handle)


def test_a_block_larger_than_the_machine_is_refused():
    """Before the system ends some process to make room for it."""
    with pytest.raises(SourceError, match="cannot be had"):
        Block.of(1 << 50)


@pytest.mark.parametrize("forked", [False, True])
def test_a_block_is_freed_wherever_it_is_mapped(forked):
    """Workers keep it mapped; but a fork of the process that made it may still use it."""
    block = Block.of(1 << 20)
    block[:] = 7
    seen = attach(block.handle)
    fd = os.open(block.handle.path, os.O_RDONLY)
    try:
        if forked:
            pid = os.fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
        del block

        assert os.fstat(fd).st_size == (1 << 20 if forked else 0)
        assert not forked or (seen == 7).all()
    finally:
        os.close(fd)


def test_a_block_can_be_read_until_the_very_end():
    """By what the program does at exit."""
    code = """
    import atexit
    from ndfeed.files.shared_memory import Block
    block = Block.of(1 << 20)
    atexit.register(lambda: print(int(block[-1])))
    block[:] = 7
    """
    assert run(code) == "7\n"
