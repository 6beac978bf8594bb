"""Every file is described, and every bad one is named at once."""

import dataclasses
import os
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from children import AS_NOBODY, WATCHING, folder_for_all, processes_at_work, run
from index.lists import same

import ndfeed
from ndfeed.files import platform_calls, process_server
from ndfeed.index import build, codec
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


@contextmanager
def by_processes(monkeypatch):
    """Within, processes describe most files, however quickly that is done."""
    if process_server.why_not():
        pytest.skip("needs fork")
    monkeypatch.setattr(build, "WORTH_IT", -1)
    monkeypatch.setattr(build, "_CHUNK", 64)
    monkeypatch.setattr(platform_calls, "cores", lambda: 3)
    with processes_at_work():
        yield


def mixed(folder):
    """Files of several formats, shapes and types, often, and some that hold no arrays."""
    (folder / "0").mkdir()
    for i in range(300):
        np.save(folder / "0" / f"{i}.npy", np.zeros((i % 7, i % 3), "<f4" if i % 2 else ">i2"))
        eye = np.asfortranarray(np.eye(3))
        np.savez(folder / "0" / f"{i}.npz", x=np.zeros(i % 5), **{f"y{i % 9}": eye})
    for i in range(0, 300, 9):
        (folder / "0" / f"{i}.txt").write_text("no array")
    for i in range(1, 25):
        (folder / f"{i}").symlink_to("0")


def test_processes_make_the_same_table(tmp_path, monkeypatch):
    """Nobody may see who described the files: neither in the table nor in the cache."""
    mixed(tmp_path)
    alone = open_table([tmp_path] * 2)
    kept = cached(alone)
    os.remove(alone.table.caches[0])
    with by_processes(monkeypatch):
        shared = open_table([tmp_path] * 2)

    assert same(shared.table, alone.table)
    assert cached(shared) == kept
    assert shared.table.passed_over == 2 * 25 * 34


def cached(opened):
    """What is in the cache of a table, but for the time at which it was built."""
    (path,) = opened.table.caches
    with open(path, "rb") as file:
        data = file.read()
    table, extra = codec.decode(data[:-32], checked=True)
    del extra["built"]
    columns = {field.name: getattr(table, field.name) for field in dataclasses.fields(table)}
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in {**columns, **extra}.items()
    }


@pytest.mark.parametrize("skip", [False, True])
def test_processes_find_the_same_errors(tmp_path, monkeypatch, skip):
    """All bad files at once, in their order, word for word."""
    mixed(tmp_path)
    spoil(tmp_path / "0", 40)
    (tmp_path / "0" / "bad3.npy").unlink()
    (tmp_path / "0" / "bad3.npy").symlink_to("none")
    said = errors_of([tmp_path] * 2, skip=skip)
    with by_processes(monkeypatch):
        assert errors_of([tmp_path] * 2, skip=skip) == said

    assert len(said) == 2 * 25 * 40 + (not skip)


def errors_of(source, *, skip):
    """What is said of the bad files, skipped or not."""
    if skip:
        table = open_table(source, build.Demand(skip=True), cached=False).table
        return [(type(error), str(error)) for error in table.skipped]
    with pytest.raises(ndfeed.BadFilesError) as caught:
        opened(source)
    return [(type(error), str(error)) for error in (caught.value, *caught.value.problems)]


# The same file often: enough to describe that processes pay.
LONG = f"""{WATCHING}
source = [args[0]] * 150_000
"""


def long_open(tmp_path, code):
    """What a process printed that opens so many files."""
    if process_server.why_not():
        pytest.skip("needs fork")
    np.save(tmp_path / "x.npy", np.arange(3.0))
    return run(LONG + textwrap.dedent(code), tmp_path / "x.npy")


def test_killed_processes_change_nothing(tmp_path):
    """As when memory runs out: the files that they had are described here."""
    code = """
    threading.Thread(target=watch, args=(kill,), daemon=True).start()
    ds = ndfeed.open(source, sample="file", cache=False)
    print(len(seen), len(ds), ds[149_999]["data"].tolist(), workers())
    """

    assert long_open(tmp_path, code) == "1 150000 [0.0, 1.0, 2.0] []\n"


def test_ctrl_c_leaves_no_process(tmp_path):
    """The interrupt is the caller's; the processes end first."""
    code = """
    interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=watch, args=(interrupt,), daemon=True).start()
    try:
        ndfeed.open(source * 3, sample="file", cache=False)
    except KeyboardInterrupt:
        print("interrupted", workers())
    """

    assert long_open(tmp_path, code) == "interrupted []\n"


def test_a_limit_on_processes_is_kept(tmp_path):
    """As on shared machines: with as many as there may be, threads included, or with none."""
    code = """
    mine = [one for one in psutil.process_iter(["num_threads", "uids"])
            if one.info["uids"] and one.info["uids"].real == os.getuid()]
    used = sum(one.info["num_threads"] for one in mine)
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    for spare in (0, 2, 5, 6):
        resource.setrlimit(resource.RLIMIT_NPROC, (used + spare, hard))
        print(len(ndfeed.open(source[:60_000], sample="file", cache=False)))
    """
    with folder_for_all() as folder:
        found = long_open(folder, AS_NOBODY + textwrap.dedent(code))

    assert found == "60000\n" * 4


def test_daemonic_processes_may_index_in_processes(tmp_path):
    """multiprocessing forbids such a process children of its own kind."""
    code = """
    import multiprocessing
    def work():
        threading.Thread(target=watch, args=(lambda: None,), daemon=True).start()
        ds = ndfeed.open(source, sample="file", cache=False)
        print(len(seen), len(ds), flush=True)
    child = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    child.start()
    child.join()
    """

    assert long_open(tmp_path, code) == "1 150000\n"


def test_a_script_that_indexes_needs_no_guard(tmp_path):
    """Nobody imports it again."""
    script = tmp_path / "script.py"
    prelude = "import sys, time\nimport ndfeed\nargs = sys.argv[1:]\nprint('top level')\n"
    script.write_text(
        f"{prelude}{LONG}\n"
        "threading.Thread(target=watch, args=(lambda: None,), daemon=True).start()\n"
        "print(len(ndfeed.open(source, sample='file', cache=False)), len(seen))\n"
    )
    np.save(tmp_path / "x.npy", np.arange(3.0))
    done = subprocess.run(
        [sys.executable, script, tmp_path / "x.npy"],
        capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip

    assert done.stdout == f"top level\n150000 {int(not process_server.why_not())}\n"
    assert done.stderr == ""
