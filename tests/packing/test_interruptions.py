"""How packing ends when something is in the way: other writers, changes, Ctrl-C, little room."""

import dataclasses
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import packed_making
import pytest
from children import finish, run, start
from faults.seam import BROKEN, system, tree
from packing import making
from packing.making import same

import ndfeed
from ndfeed.files.platform_calls import can


def test_a_source_that_changes_meanwhile(tmp_path):
    """Even one that was read already: the target would be of no version."""
    ds = making.npz_of_rows(tmp_path / "source", compressed=False)

    def touch(rows, nbytes):
        if rows:
            os.utime(tmp_path / "source/0.npz", ns=(1, 1))

    with pytest.raises(ndfeed.ChangedError, match=r"0\.npz: changed since it was indexed"):
        ndfeed.pack(ds, tmp_path / "packed", progress=touch)
    assert os.listdir(tmp_path) == ["source"]


def test_a_source_that_vanishes_meanwhile(tmp_path):
    """The same."""
    ds = making.npz_of_rows(tmp_path / "source", compressed=False)

    def remove(rows, nbytes):
        if rows:
            (tmp_path / "source/5.npz").unlink()

    with pytest.raises(ndfeed.ChangedError, match=r"5\.npz: removed"):
        ndfeed.pack(ds, tmp_path / "packed", progress=remove)
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_source(tmp_path, save):
    """Its own checksum tells, also where its rows are read one by one."""
    x = np.random.default_rng(0).random((200, 3))
    save(tmp_path / "x.npz", x=x, y=np.zeros(200))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[2000] ^= 1
    (tmp_path / "x.npz").write_bytes(data)

    with pytest.raises(ndfeed.FormatError, match=r"x\.npz.*(checksum|damaged|decoded)"):
        ndfeed.pack(ndfeed.open(tmp_path / "x.npz"), tmp_path / "packed")
    assert os.listdir(tmp_path) == ["x.npz"]


@pytest.mark.parametrize("what", ["pack", "a pool that is passed", "verify"])
def test_ctrl_c_finds_no_lock_that_it_could_leave_held(tmp_path, what):
    """Locks written in Python are used in other threads only: interrupted there, all would hang."""
    ds = making.npz_of_rows(tmp_path / "source", files=8, rows=100)
    done = ndfeed.pack(ds, tmp_path / "done")
    calls = set()

    def note(frame, event, _):
        if event == "call":
            calls.add((os.path.basename(frame.f_code.co_filename), frame.f_code.co_qualname))

    with ThreadPoolExecutor(2) as pool:
        sys.setprofile(note)  # of this thread
        try:
            if what == "verify":
                ndfeed.verify(tmp_path / "done", threads=2)
            else:
                executor = None if what == "pack" else pool
                done = ndfeed.pack(ds, tmp_path / "new", executor=executor, memory=2000)
        finally:
            sys.setprofile(None)

    assert calls
    kinds = ("Condition.", "Event.", "Thread.", "Future.", "Queue.")
    assert not [c for c in calls if c[1].startswith(kinds) or "Executor.s" in c[1]]
    assert same(done, ds)


def test_ctrl_c_ends_a_pack_after_the_tasks_that_are_running(tmp_path):
    """Those that wait for a thread are not run first."""
    np.save(tmp_path / "x.npy", np.zeros((1000, 16)))
    code = """
    import signal, threading
    begun = []
    def slow(batch):
        if threading.current_thread() is threading.main_thread():
            return batch  # tried once, before packing begins
        begun.append(None)
        if len(begun) == 2:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        time.sleep(0.5)
        return batch
    ds = ndfeed.open(os.path.join(args[0], "x.npy")).map(lambda batch: slow(batch), batched=True)
    try:
        ndfeed.pack(ds, os.path.join(args[0], "packed"), workers=2, memory=10_000)
    except KeyboardInterrupt as error:
        print("rerun to resume" in error.__notes__[0], len(begun) < 10)
    """

    assert run(code, tmp_path) == "True True\n"


def test_ctrl_c_keeps_what_is_done(tmp_path):
    """The next run does the rest and no more."""
    ds = making.npz_of_rows(tmp_path / "source", files=8, rows=100)

    def interrupt(rows, nbytes):
        if rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        ndfeed.pack(ds, tmp_path / "packed", progress=interrupt, workers=1, memory=2000)
    assert "rerun to resume" in caught.value.__notes__[0]
    assert not (tmp_path / "packed").exists()
    steps = []
    packed = ndfeed.pack(
        ds, tmp_path / "packed", workers=1, memory=2000, progress=lambda n, _: steps.append(n)
    )

    assert steps[0] >= 100  # those of the first run, known from the journal
    assert sum(steps) == 800
    assert same(packed, ds)
    assert sorted(os.listdir(tmp_path)) == ["packed", "source"]


def test_finished_pieces_are_not_done_again(tmp_path):
    """A map that fails at the end: what it made before is kept."""
    ds = making.npz_of_rows(tmp_path / "source", files=8, rows=100)
    calls, fail = [], [True]

    def fragile(batch):
        calls.append(len(batch["label"]))
        if fail[0] and (batch["label"] == 750).any():
            raise RuntimeError("not yet")
        return {"label": batch["label"]}

    mapped = ds.map(fragile)
    with pytest.raises(RuntimeError, match="not yet"):
        ndfeed.pack(mapped, tmp_path / "packed", workers=1, memory=2000)
    fail[0] = False
    before = len(calls)
    packed = ndfeed.pack(mapped, tmp_path / "packed", workers=1, memory=2000)

    assert sum(calls[before:]) < 400  # the first rows again, to see what the map makes
    assert packed[:]["label"].tolist() == list(range(800))


def test_an_edited_map_begins_anew(tmp_path):
    """Pieces of two functions must not be mixed."""
    ds = making.npz_of_rows(tmp_path / "source", files=8, rows=100)

    def stop(rows, nbytes):
        if rows:
            raise KeyboardInterrupt

    once = ds.map(lambda b: {"x": b["label"] + 1})
    twice = ds.map(lambda b: {"x": b["label"] + 2})
    with pytest.raises(KeyboardInterrupt):
        ndfeed.pack(once, tmp_path / "packed", progress=stop, workers=1, memory=2000)
    packed = ndfeed.pack(twice, tmp_path / "packed")

    assert packed[:]["x"].tolist() == list(range(2, 802))
    assert sorted(os.listdir(tmp_path)) == ["packed", "source"]


@pytest.mark.parametrize("what", ["a file", "a link"])
def test_a_target_that_is_no_folder_is_refused_at_once(tmp_path, what):
    """Not when all the work is done."""
    ds = making.npz_of_rows(tmp_path / "source")
    (tmp_path / "packed").touch() if what == "a file" else (tmp_path / "packed").symlink_to("x")
    steps = []

    with pytest.raises(ndfeed.ConflictError, match="packed: exists and is not a folder"):
        ndfeed.pack(ds, tmp_path / "packed", progress=lambda *step: steps.append(step))
    assert steps == []


def test_the_same_rows_are_appended_to_what_was_made_of_them(tmp_path):
    """Once: the same call again may be one that was ended late."""
    ds = making.npz_of_rows(tmp_path / "source")
    ndfeed.pack(ds, tmp_path / "packed")

    assert len(ndfeed.pack(ds, tmp_path / "packed", append=True)) == 2 * len(ds)
    assert len(ndfeed.pack(ds, tmp_path / "packed", append=True)) == 2 * len(ds)


PACKS = {
    "no object": [5],
    "no list": {"first": 0},
    "text for a number": [{"first": "0"}],
    "a negative number": [{"first": 0, "rows": 1}, {"first": 0}],
    "true for a number": [{"rows": True}],
    "a number for text": [{"fingerprint": 5}],
    "a number for names": [{"names": 1}],
    "text in the place of a seed": [{"shuffle": "3"}],
    "maps that are no texts": [{"maps": [None]}],
}


@pytest.mark.parametrize("what", PACKS)
def test_what_a_manifest_says_of_its_source_is_checked(tmp_path, what):
    """By whoever relies on it. Reading does not: other programs may write there what they like."""
    np.save(tmp_path / "x.npy", np.arange(10))
    packed = tmp_path / "packed"
    packed_making.write(packed, {"data": np.arange(10)}, source={"packs": PACKS[what]})
    assert len(ndfeed.open(packed)) == 10
    column = packed / "00000/data.npy"
    column.write_bytes(column.read_bytes()[:-1] + b"?")
    before = tree(tmp_path)
    for options in ({}, {"append": True}, {"repair": True}, {"append": True, "dry_run": True}):
        with pytest.raises(
            ndfeed.ManifestError, match=r"ndfeed\.json: source\.packs.* expected|rise"
        ):
            ndfeed.pack(tmp_path / "x.npy", packed, **options)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("folder", ["9" * 19, "9" * 255])
def test_no_number_is_left_for_a_part(tmp_path, folder):
    """A manifest may name its parts as it likes."""
    np.save(tmp_path / "x.npy", np.arange(10))
    made = packed_making.write(tmp_path / "packed", {"data": np.arange(10)})
    os.rename(tmp_path / "packed/00000", tmp_path / "packed" / folder)
    parts = [dataclasses.replace(part, folder=folder) for part in made.parts]
    text = dataclasses.replace(made, parts=tuple(parts)).encoded()
    (tmp_path / "packed/ndfeed.json").write_bytes(text)

    with pytest.raises(ndfeed.SchemaError, match="no more rows or parts fit"):
        ndfeed.pack(tmp_path / "x.npy", tmp_path / "packed", append=True)


WRITER = """
ds = ndfeed.open(args[0], sample="row")
def wait(rows, nbytes):
    if rows:
        print("writing", flush=True)
        sys.stdin.readline()
ndfeed.pack(ds, args[1], progress=wait, shuffle=int(args[2]))
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_a_second_writer_is_refused(tmp_path, seed):
    """Whether it would write the same or something else; the first one goes on."""
    ds = making.npz_of_rows(tmp_path / "source")
    first = start(WRITER, tmp_path / "source", tmp_path / "packed", "0")
    assert first.stdout.readline() == "writing\n"

    with pytest.raises(ndfeed.ConflictError, match="another process is writing it"):
        ndfeed.pack(ds, tmp_path / "packed", shuffle=seed)
    first.stdin.write("\n" * 100)
    finish(first)
    assert same(ndfeed.open(tmp_path / "packed"), making.shuffled(ds, 0))
    assert sorted(os.listdir(tmp_path)) == ["packed", "source"]


def test_a_dead_writer_is_in_nobodys_way(tmp_path):
    """Its lock went with it; what it left is removed by whoever writes something else."""
    ds = making.npz_of_rows(tmp_path / "source")
    first = start(WRITER, tmp_path / "source", tmp_path / "packed", "0")
    assert first.stdout.readline() == "writing\n"
    first.kill()
    first.communicate()
    assert len(os.listdir(tmp_path)) == 2

    assert same(ndfeed.pack(ds, tmp_path / "packed", shuffle=1), making.shuffled(ds, 1))
    assert sorted(os.listdir(tmp_path)) == ["packed", "source"]


def test_two_threads_are_two_writers(tmp_path):
    """A lock is an open file's, not a process's."""
    ds = making.npz_of_rows(tmp_path / "source")
    inside, leave = threading.Event(), threading.Event()

    def wait(rows, nbytes):
        if rows:
            inside.set()
            leave.wait(60)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ndfeed.pack, ds, tmp_path / "packed", progress=wait)
        inside.wait(60)
        with pytest.raises(ndfeed.ConflictError, match="another process is writing"):
            ndfeed.pack(ds, tmp_path / "packed")
        leave.set()

        assert same(first.result(), ds)


@pytest.mark.parametrize("lacking", ["lock", "allocate", "pwrite", "beneath"])
def test_what_a_platform_lacks_is_done_without(tmp_path, monkeypatch, lacking):
    """Locks, reserving space, writing by position."""
    monkeypatch.setattr(can, lacking, False)
    ds = making.npz_of_samples(tmp_path / "source")

    assert same(ndfeed.pack(ds, tmp_path / "packed"), ds)
    assert sorted(os.listdir(tmp_path)) == ["packed", "source"]


def test_without_locks_the_first_to_finish_wins(tmp_path, monkeypatch):
    """The other is told, and has changed nothing."""
    monkeypatch.setattr(can, "lock", False)
    ds = making.npz_of_rows(tmp_path / "source")

    def overtake(rows, nbytes):
        if rows and not (tmp_path / "packed").exists():
            ndfeed.pack(ds, tmp_path / "packed", shuffle=1)

    with pytest.raises(ndfeed.ConflictError, match="is there already"):
        ndfeed.pack(ds, tmp_path / "packed", progress=overtake)
    assert same(ndfeed.open(tmp_path / "packed"), making.shuffled(ds, 1))
    assert sorted(os.listdir(tmp_path)) == ["packed", "source"]


def test_two_who_append_at_once(tmp_path, monkeypatch):
    """Without locks too: one wins, and nothing of the other's is seen."""
    monkeypatch.setattr(can, "lock", False)
    ds = making.npz_of_rows(tmp_path / "source")
    ndfeed.pack(ds, tmp_path / "packed")
    done = []

    def overtake(rows, nbytes):
        if rows and not done:
            done.append(ndfeed.pack(ds.take([1, 2]), tmp_path / "packed", append=True))

    with pytest.raises(ndfeed.ConflictError, match="somebody else changed it"):
        ndfeed.pack(ds.take([3]), tmp_path / "packed", append=True, progress=overtake)
    assert len(ndfeed.open(tmp_path / "packed")) == 44
    assert ndfeed.verify(tmp_path / "packed").ok


needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or sys.platform != "linux",
    reason="only root may mount a file system",
)


@pytest.fixture
def small(tmp_path):
    """A real file system of 400 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no mount: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@needs_root
def test_a_full_disk(tmp_path, small):
    """Refused at once where the size is known; nothing is left there."""
    ds = making.npz_of_rows(tmp_path / "source", files=6, rows=5000)

    with pytest.raises(ndfeed.SpaceError, match=r"600,\d+ bytes needed, 4\d\d,\d+ free"):
        ndfeed.pack(ds, small / "packed")
    assert os.listdir(small) == []


def _long(batch):
    return {"x": [np.full(2000, n) for n in batch["label"].tolist()], "label": batch["label"]}


@needs_root
def test_a_disk_that_fills_up(tmp_path, small):
    """Nobody can know how much maps make; with more room the same call goes on."""
    ds = making.npz_of_rows(tmp_path / "source").map(_long)

    with pytest.raises(ndfeed.SpaceError, match=r"no space left .* rerun: finished"):
        ndfeed.pack(ds, small / "packed", workers=1, executor=ThreadPoolExecutor(1))
    assert not (small / "packed").exists()
    subprocess.run(["mount", "-o", "remount,size=10m", small], check=True)

    assert same(ndfeed.pack(ds, small / "packed", executor=ThreadPoolExecutor(1)), ds)
    assert os.listdir(small) == ["packed"]


@needs_root
def test_a_disk_that_others_fill(tmp_path, small):
    """What was free when it began is not free when it is reserved."""
    ds = making.npz_of_rows(tmp_path / "source", files=6, rows=2500)
    (small / "filler").write_bytes(bytes(200_000))
    before = tree(small)
    unknown = system(names={"statvfs"}, at=1, happen=BROKEN)  # where nobody can tell
    with unknown, pytest.raises(ndfeed.SpaceError, match="reserve"):
        ndfeed.pack(ds, small / "packed")
    assert tree(small) == before


MEMORY = """
import threading
folder, sample = args
def used():
    with open("/proc/self/status") as status:
        facts = dict(line.split(":", 1) for line in status)
    return int(facts["RssAnon"].split()[0]) * 1024
ds = ndfeed.open(folder, sample=sample)
ds[0] if sample == "row" else None
np.zeros(1).sum()
before, most, done = used(), [0], threading.Event()
def watch():
    while not done.wait(0.005):
        most[0] = max(most[0], used())
thread = threading.Thread(target=watch)
thread.start()
packed = ndfeed.pack(ds, folder + ".packed", memory="16MB", fields=["x"])
done.set()
thread.join()
print(most[0] - before, len(packed), packed.nbytes)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no RssAnon to ask for")
@pytest.mark.parametrize("sample", ["row", "file"])
@pytest.mark.parametrize("compressed", [False, True])
def test_memory_stays_within_the_budget(tmp_path, sample, compressed):
    """Members far larger than ``memory``, as many samples or as one."""
    path = making.huge_npz(tmp_path / "x.npz", 160_000_000, compressed)
    most, rows, nbytes = map(int, run(MEMORY, path, sample).split())

    assert nbytes == 160_000_000
    assert rows == (1 if sample == "file" else 160_000)
    assert most < 16e6 + 12e6  # and some for the threads themselves
