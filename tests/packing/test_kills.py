"""A pack may end at any moment: what is there is whole or absent, and the same call goes on.

``faults`` kills it at every call.
"""

import errno
import os
import random
import shutil
import signal
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from children import run
from faults.packs import Case
from faults.seam import BROKEN, NO_SPACE, failing, forked, shorter, system, tree
from packing import making

import ndfeed
from ndfeed.files import write


def raised(function):
    """The error of ours or the system's that a function raises, if it does."""
    try:
        function()
    except (ndfeed.Error, OSError) as error:
        return error
    return None


@pytest.fixture(params=["fresh", "scattered", "appended"])
def case(request, folder):
    return Case(request.param, folder)


@pytest.mark.parametrize(
    ("happen", "names"),
    [
        (NO_SPACE, {"pwrite", "posix_fallocate", "ftruncate", "open", "mkdir"}),
        (BROKEN, {"pwrite", "posix_fallocate", "ftruncate", "open", "mkdir"}),
        (BROKEN, {"fsync"}),
        (NO_SPACE, {"fsync"}),
        (BROKEN, {"rename", "replace", "unlink", "rmdir", "close"}),
        (failing(errno.EACCES), {"open", "mkdir", "rename", "replace"}),
    ],
    ids=["no-space", "write", "sync", "sync-no-space", "rename", "denied"],
)
def test_failing_at_every_call(case, happen, names):
    """An error of the disk is one of ours, and leaves what can be gone on with."""
    for at in count(1):
        case.begin()
        with system(at, happen, names) as used:
            error = raised(case.run)
            failed = used.count >= at
        if error is not None:
            assert isinstance(error, ndfeed.Error)
            assert isinstance(error, OSError)
            assert error.path
            assert "\n" not in str(error)
            assert happen is not NO_SPACE or isinstance(error, ndfeed.SpaceError)
        assert case.is_whole_or_absent(), f"failed at call {at}"
        assert case.goes_on(), f"failed at call {at}"
        if not failed:
            break
    assert at > 5


@pytest.mark.parametrize("compressed", [True, False])
def test_every_close_may_fail(folder, monkeypatch, compressed):
    """Also those of files that are read: some file systems tell of an error only then."""
    ds = making.npz_of_rows(folder / "source", files=2, rows=4, compressed=compressed)
    real = os.close
    for at in count(1):
        closed = []

        def close(fd, at=at, closed=closed):
            real(fd)
            closed.append(fd)
            if len(closed) == at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, "close", close)
            error = raised(lambda at=at: ndfeed.pack(ds, folder / f"packed{at}", workers=1))
        assert error is None or isinstance(error, ndfeed.Error)
        if len(closed) < at:
            break
    assert at > 15


def test_short_writes_are_gone_on_with(case):
    """A kernel may write less than it is asked to."""
    for at in range(1, 12):
        case.begin()
        with system(at, shorter, {"pwrite"}):
            case.run()

        assert tree(case.folder) == case.after


def test_a_sync_that_failed_is_not_tried_again(folder):
    """The second one would say that all is well, of bytes that are gone."""
    with write.Output(os.fsencode(folder / "file"), new=True) as file:
        file.write(0, b"data")
        with system(1, BROKEN, {"fsync"}), pytest.raises(ndfeed.TargetError, match="cannot sync"):
            file.sync()

        with pytest.raises(ndfeed.TargetError, match="lost"):
            file.sync()


def _large(folder):
    """Data enough for a pack to take some time, in pieces."""
    rng = np.random.default_rng(0)
    (folder / "source").mkdir()
    for i in range(12):
        rows = rng.integers(0, 9, (600, 700), np.uint8)
        np.savez_compressed(folder / f"source/{i}.npz", x=rows, y=np.arange(600))
    return ndfeed.open(folder / "source", sample="row")


def test_killed_at_random_moments(folder):
    """200 times, at moments that no call chose, of a pack with two threads; going on each time.

    In a program of its own: a fork of this one, which has imported every framework, is slow.
    """
    code = """
    from pathlib import Path
    from packing.test_kills import kill_at_random_moments
    print(kill_at_random_moments(Path(args[0])))
    """
    tests = os.fspath(Path(__file__).parent.parent)
    paths = os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))

    assert int(run(code, folder, env=os.environ | {"PYTHONPATH": paths})) > 100


def kill_at_random_moments(folder):
    """Say how many of 200 packs were killed before their end."""
    ds = _large(folder)
    work = folder / "work"
    work.mkdir()

    def pack():
        ndfeed.pack(ds, work / "packed", workers=2, memory="1MB")

    began = time.perf_counter()
    assert forked(pack) == 0
    took = time.perf_counter() - began
    expected = tree(work)
    rng = random.Random(0)
    ends = {0: 0, -signal.SIGKILL: 0}
    shutil.rmtree(work / "packed")
    for _ in range(200):
        child = os.fork()
        if not child:
            pack()
            os._exit(0)
        time.sleep(rng.random() * took * 0.6)
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ends[status] += 1
        took *= 1.02 if status else 0.9  # how long it takes depends on what else the machine does
        if (work / "packed").exists():
            assert (tree(work / "packed").items()) <= {
                name.removeprefix("packed/"): data for name, data in expected.items()
            }.items()
            pack()
            assert tree(work) == expected
            shutil.rmtree(work / "packed")
    pack()

    assert tree(work) == expected
    return ends[-signal.SIGKILL]
