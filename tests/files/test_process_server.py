"""Files read by lean processes: what they are, what they deliver, and how they end."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import numpy as np
import psutil
import pytest
from children import AS_NOBODY, folder_for_all, run
from loading.making import (
    assert_same,
    epoch_of,
    eventually,
    one_per_file,
    running,
)

import ndfeed
from ndfeed.files import process_server

pytestmark = pytest.mark.skipif(process_server.why_not() != "", reason="needs fork")

KINDS = ["npy", "npz", "deflated npz", "npy.gz", "safetensors"]


def by_processes(ds, batch_size, epochs=8, **options):
    """Epochs until processes build the batches, and the first that they built whole."""
    with ndfeed.loader(ds, batch_size, processes=2, **options) as loader:
        list(loader)
        assert eventually(lambda: loader.report().processes == 2 or not list(loader))
        loader.epoch = 0
        return list(loader)


def flat(batch):
    """A batch of any structure as a dict."""
    if isinstance(batch, tuple):
        return {"0": batch[0], **batch[1]}
    return batch


def workers():
    """Processes of this one's loaders: the servers and their workers."""
    found = []
    for one in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it ends just now
            if "process_server" in " ".join(one.cmdline()):
                found += [one, *one.children(recursive=True)]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_read_as_by_threads(tmp_path, kind):
    """Shuffled, with a last batch that is smaller."""
    ds = one_per_file(tmp_path / "x", kind)

    assert_same(by_processes(ds, 12, shuffle=True), epoch_of(ds, 12, shuffle=True, processes=0))


@pytest.mark.parametrize("form", ["list", "pad", "packed"])
def test_ragged_samples_come_in_their_form(tmp_path, form):
    """Their size is not known before they are read."""
    ds = one_per_file(tmp_path / "x", "npz", ragged=True)
    options = {"ragged": form, "fields": ["x", "y"]}

    assert_same(by_processes(ds, 16, **options), epoch_of(ds, 16, processes=0, **options))


def test_views_and_conversions_are_the_same(tmp_path):
    """Rows of a view, other names, one field, numbers of files."""
    one_per_file(tmp_path / "x", "npz")
    ds = ndfeed.open(tmp_path / "x", sample="file", dtype={"x": "float64"})
    view = ds.rename({"x": "image"}).take(np.arange(39, 2, -1))

    for fields in (None, ["image"], ("name", {"of": "image"})):
        found, expected = (by_processes(view, 10, fields=fields), epoch_of(view, 10, fields=fields))
        assert_same(list(map(flat, found)), list(map(flat, expected)))


def test_an_error_is_the_one_of_threads(tmp_path):
    """One line, the file first: that it happened in a process is of no interest."""
    ds = one_per_file(tmp_path / "x", "npz")
    list(ndfeed.loader(ds, 8, processes=0))
    os.truncate(tmp_path / "x" / "011.npz", 200)
    said = []
    for processes in (0, 2):
        with (
            ndfeed.loader(ds, 8, processes=processes) as loader,
            pytest.raises(ndfeed.Error, match=r"011\.npz") as caught,
        ):
            assert eventually(lambda loader=loader: not list(loader))
        said.append((type(caught.value), str(caught.value)))
        assert not hasattr(caught.value, "__notes__")

    assert said[0] == said[1]


def test_bad_files_are_skipped_and_listed(tmp_path):
    """Found by this process, which knows what was skipped."""
    ds = one_per_file(tmp_path / "x", "npz")
    os.truncate(tmp_path / "x" / "011.npz", 200)
    with ndfeed.loader(ds, 8, processes=2, on_error="skip") as loader:
        for _ in range(5):
            found = [int(y) for batch in loader for y in batch["y"]]
            assert found == [i for i in range(40) if i != 11]
        assert [row for row, _ in loader.skipped] == [11]


def test_workers_are_lean(tmp_path):
    """Whatever this process has imported: they start quickly and take little memory."""
    import torch

    ds = one_per_file(tmp_path / "x", "npz")
    before = {one.pid for one in workers()}  # of loaders that other tests have dropped
    with ndfeed.loader(ds, 4, processes=2) as loader:
        assert eventually(lambda: loader.report().processes or not list(loader))
        mine = {one.pid for one in workers()} - before
        maps = [pathlib.Path(f"/proc/{pid}/maps").read_text() for pid in mine]

    assert torch.__file__
    assert len(maps) == 3
    assert not [text for text in maps if "/torch/" in text]


def test_samples_in_memory_come_along(tmp_path):
    """As the numbers of files and rows do: they have no path of their own."""
    ds = one_per_file(tmp_path / "x", "npz").with_origin()

    assert_same(by_processes(ds, 12, shuffle=True), epoch_of(ds, 12, shuffle=True, processes=0))


def test_a_forked_child_keeps_its_batch(tmp_path):
    """What it has seen does not change when the parent goes on."""
    one_per_file(tmp_path / "x", "npz", n=200)
    code = """
    ds = ndfeed.open(args[0], sample="file")
    for processes in (0, 2):
        loader = ndfeed.loader(ds, 8, processes=processes, fields="x")
        while processes and not loader.report().processes:
            list(loader)
        batches = iter(loader)
        batch = next(batches)
        before = batch.copy()
        child = os.fork()
        if not child:
            time.sleep(1)
            os._exit(not (batch == before).all())
        del batch
        for _ in range(3):
            sum(float(one.sum()) for one in batches)
            batches = iter(loader)
        print(os.waitpid(child, 0)[1])
        loader.close()
    """

    assert run(code, tmp_path / "x") == "0\n0\n"


def test_a_worker_that_is_killed_is_replaced(tmp_path):
    """Its batch is built again; the same order goes on."""
    ds = one_per_file(tmp_path / "x", "npz", n=200)
    expected = epoch_of(ds, 8, processes=0, shuffle=True)
    with ndfeed.loader(ds, 8, processes=2, shuffle=True) as loader:
        assert eventually(lambda: loader.report().processes == 2 or not list(loader))
        server = next(one for one in workers() if one.ppid() == os.getpid())
        loader.epoch = 0
        found = []
        for batch in loader:
            found.append(batch)
            if len(found) % 5 == 0:
                for child in server.children()[:1]:
                    with contextlib.suppress(psutil.NoSuchProcess):  # one killed before
                        child.kill()
        assert_same(found, expected)


def test_a_server_that_is_killed_is_replaced(tmp_path):
    """With all its workers, as by a limit on memory."""
    ds = one_per_file(tmp_path / "x", "npz", n=100)
    others = {one.pid for one in workers()}  # of loaders that other tests have dropped
    with ndfeed.loader(ds, 4, processes=2) as loader:
        assert eventually(lambda: loader.report().processes or not list(loader))
        before = {one.pid for one in workers()}
        for pid in before - others:
            os.kill(pid, signal.SIGKILL)
        for _ in range(5):
            assert [int(y) for batch in loader for y in batch["y"]] == list(range(100))

        assert eventually(
            lambda: list(loader) and len({one.pid for one in workers()} - before) == 3
        )


def test_close_ends_all_of_them(tmp_path):
    """Also where it comes while they are being started."""
    ds = one_per_file(tmp_path / "x", "npz")
    for wait in (False, True):
        with ndfeed.loader(ds, 4, processes=2) as loader:
            next(iter(loader))
            if wait:
                assert eventually(
                    lambda loader=loader: loader.report().processes or not list(loader)
                )
        assert eventually(lambda: not running() and not workers())


def test_close_ends_one_that_is_still_importing(tmp_path):
    """A framework may take a minute; and the loader can be used again as if nothing had been."""
    (tmp_path / "mine.py").write_text(
        "import os, time\ntime.sleep(float(os.environ.get('SLOW', 0)))\n"
        "def same(batch):\n    return batch\n"
    )
    one_per_file(tmp_path / "x", "npz")
    code = """
    import psutil
    sys.path.insert(0, args[0])
    sys.modules["jax"] = type(sys)("jax")  # beside which nothing is forked
    import mine
    ds = ndfeed.open(args[0] + "/x", sample="file", cache=False).map(mine.same)
    os.environ["SLOW"] = "100"
    loader = ndfeed.loader(ds, 8, processes=2)
    batches = iter(loader)
    while not psutil.Process().children():
        time.sleep(0.01)
    loader.close()
    print(psutil.Process().children())
    os.environ["SLOW"] = "0"
    batches = list(loader)
    print(len(batches), loader.report().processes, repr(loader.report().obstacle))
    """
    assert run(code, tmp_path, timeout=60) == "[]\n5 2 ''\n"


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "forked"])
def test_they_end_with_the_process_that_started_them(tmp_path, forked):
    """Even where that was killed, and could tell nobody; or where a fork of it lives on."""
    one_per_file(tmp_path / "x", "npz")
    code = """
    import psutil
    ds = ndfeed.open(args[0], sample="file")
    loader = ndfeed.loader(ds, 4, processes=2)
    while not loader.report().processes:
        list(loader)
    print(*(one.pid for one in psutil.Process().children(recursive=True)), flush=True)
    if args[1] == "True" and not os.fork():
        os.close(1)
        os.close(2)
        time.sleep(200)  # holds what the other had open
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", "import os, signal, sys, time, ndfeed; args = sys.argv[1:]\n"
               + textwrap.dedent(code), str(tmp_path / "x"), str(forked)]  # fmt: skip
    # Ends when nobody can write to the pipes any more, among them the processes in question.
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    pids = list(map(int, done.stdout.split()))

    assert done.returncode == -signal.SIGKILL
    assert len(pids) == 3
    assert eventually(lambda: not any(map(psutil.pid_exists, pids)))


SCRIPT = """
import sys
import numpy as np
import ndfeed

print("top level", flush=True)

def double(batch):
    return {"x": batch["x"] * 2}

ds = ndfeed.open(sys.argv[1], sample="file")
for made in (ds, ds.map(double), ds.map(lambda batch: {"x": batch["x"] * 2})):
    with ndfeed.loader(made, 8, processes=2) as loader:
        for _ in range(3):
            total = sum(float(batch["x"].sum()) for batch in loader)
    print(total)
"""


def test_a_script_needs_no_guard(tmp_path):
    """Nobody imports it again: neither for files, nor for functions that it defines."""
    one_per_file(tmp_path / "x", "npz")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "x"],
        capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip
    total = sum(i * 1600.0 for i in range(40))

    assert done.stdout.split("\n") == ["top level", *map(str, (total, 2 * total, 2 * total)), ""]
    assert done.stderr == ""


@pytest.mark.parametrize("mode", ["files", "map"])
@pytest.mark.parametrize("spare", [4, 20])
def test_a_limit_on_processes_is_kept(mode, spare):
    """As on shared machines: with those that there may be, or by threads; the report says so."""
    code = """
    mine = [one for one in psutil.process_iter(["num_threads", "uids"])
            if one.info["uids"] and one.info["uids"].real == os.getuid()]
    most = sum(one.info["num_threads"] for one in mine) + int(args[2])
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    ds = ndfeed.open(args[0], sample="file", cache=False)
    if args[1] == "map":
        ds = ds.map(lambda batch: {"y": batch["y"] * 1})
    with ndfeed.loader(ds, 8, threads=2, processes=64) as loader:
        while not loader.report().obstacle:
            assert [int(y) for batch in loader for y in batch["y"]] == list(range(40))
        print(loader.report().processes < 64, loader.report().obstacle)
    """
    with folder_for_all() as folder:
        one_per_file(folder / "x", "npz")
        said = run(
            "import psutil" + AS_NOBODY + textwrap.dedent(code), folder / "x", mode, str(spare)
        )

    assert said.startswith("True ")
    if "Permission denied: '" in said:
        pytest.skip("only root may run this Python")
    # Threads count as well, and were there first.
    assert "Resource temporarily unavailable" in said or "can't start new thread" in said


def test_daemonic_processes_may_use_them(tmp_path):
    """multiprocessing forbids such a process children of its own kind."""
    one_per_file(tmp_path / "x", "npz")
    code = """
    import multiprocessing
    def work(path):
        loader = ndfeed.loader(ndfeed.open(path, sample="file"), 8, processes=2)
        while not loader.report().processes:
            assert [int(y) for batch in loader for y in batch["y"]] == list(range(40))
        loader.close()
        print("done", flush=True)
    child = multiprocessing.get_context("fork").Process(target=work, args=args[:1], daemon=True)
    child.start()
    child.join()
    """

    assert run(code, tmp_path / "x") == "done\n"


def test_a_frozen_program_reads_with_threads(tmp_path):
    """Its executable is no Python; functions run in its forks all the same."""
    one_per_file(tmp_path / "x", "npz")
    code = """
    sys.frozen = True
    ds = ndfeed.open(args[0], sample="file")
    for made in (ds, ds.map(lambda batch: batch | {"y": batch["y"] + os.getpid()})):
        with ndfeed.loader(made, 8, processes=2) as loader:
            found = {int(y) for batch in loader for y in batch["y"]}
            report = loader.report()
            print(found <= set(range(40)), report.processes, report.obstacle)
    """
    files, mapped = run(code, tmp_path / "x").splitlines()

    assert files == "True 0 the program is frozen"
    assert mapped == "False 2 "
