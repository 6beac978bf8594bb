"""Mapped files: no writer is held up for long, and none ever shows a reader torn data."""

import os
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from children import finish, run, short_lease_breaks, start
from loading.making import eventually

import ndfeed
from ndfeed.files import map_guard
from ndfeed.files.maps import Maps, Unmappable
from ndfeed.files.platform_calls import can

WIDTH = 64

# A writer is noticed at the next look: tests need not wait for it as long as people can.
QUICK = "from ndfeed.files import map_guard; map_guard._LOOK_EVERY = 0.01\n"


def rows(value, count=100):
    """Rows that show whom they are of."""
    return np.full((count, WIDTH), value, "<f4")


def folder_of(path, files):
    """Files of rows, each with a number of its own."""
    for i in range(files):
        np.save(path / f"x{i}.npy", rows(i))
    return path


def open_rows(source, **options):
    """Opened without a cache: these files change all the time."""
    return ndfeed.open(source, sample="row", cache=False, **options)


def rewrite(path, array):
    """Save over a file in place, keeping its size."""
    with open(path, "r+b") as file:
        np.save(file, array)


def leases():
    """Leases this process holds, as the kernel lists them."""
    own = f" {os.getpid()} "
    with open("/proc/locks") as locks:
        return sum("LEASE" in line and own in line for line in locks)


needs_leases = pytest.mark.skipif(not can.lease, reason="leases are Linux's")

READER = """
files, rounds = int(args[1]), int(args[2])
options = {"sample": "row", "cache": False}
if args[3] == "position":
    options["mapped"] = False
if args[3] == "whole":
    options["sample"] = "file"
whole = changed = batches = 0
print("reading", flush=True)
while not os.path.exists(os.path.join(args[0], "done")):
    try:
        ds = ndfeed.open([f"{args[0]}/x{i}.npy" for i in range(files)], **options)
    except (ndfeed.FormatError, ndfeed.BadFilesError):
        continue  # half written: refused when opened
    rng = np.random.default_rng(batches)
    wanted = np.sort(rng.integers(0, len(ds), 256))
    try:
        while not os.path.exists(os.path.join(args[0], "done")):
            got = ds.read(wanted)["data"]
            batches += 1
            for one in got:  # a sample may not be of two versions
                if one.size and not (one == one.flat[0]).all():
                    raise SystemExit(f"torn: {np.unique(one)}")
    except ndfeed.ChangedError:
        changed += 1
print(batches, changed)
"""

WRITER = """
files, rounds = int(args[1]), int(args[2])
for version in range(1, rounds + 1):
    for i in range(0, files, max(files // 3, 1)):
        count = 100 + 37 * (version % 3)
        if version % 4 == 3:  # the same size: only the time tells
            with open(f"{args[0]}/x{i}.npy", "r+b") as file:
                count = np.load(f"{args[0]}/x{i}.npy", mmap_mode="r").shape[0]
                np.save(file, np.full((count, 64), version, "<f4"))
        else:
            np.save(f"{args[0]}/x{i}.npy", np.full((count, 64), version, "<f4"))
    time.sleep(0.03)
open(os.path.join(args[0], "done"), "w").close()
"""


@pytest.mark.parametrize(
    ("files", "way"), [(1, "mapped"), (12, "mapped"), (3, "position"), (12, "whole")]
)
def test_a_writer_never_kills_or_confuses_a_reader(tmp_path, files, way):
    """Saving over files in place, longer and shorter, while they are read without a pause."""
    folder_of(tmp_path, files)
    reader = start(QUICK + READER, tmp_path, str(files), "25", way)
    assert reader.stdout.readline() == "reading\n"
    run(WRITER, tmp_path, str(files), "25", timeout=250)
    batches, changed = map(int, finish(reader).split())

    assert batches > 0
    assert changed > 0


@needs_leases
@pytest.mark.parametrize("files", [1, 12])
def test_a_writer_in_the_same_process_goes_on(tmp_path, files):
    """In a notebook: look at the data, then save it again. The kernel would wait 45 s a file."""
    folder_of(tmp_path, files)
    code = """
    ds = ndfeed.open(args[0], sample="row", cache=False)
    ds[:]
    for name in sorted(os.listdir(args[0])):
        np.save(os.path.join(args[0], name), np.zeros((3, 3)))
    try:
        ds[:]
    except ndfeed.ChangedError as error:
        print("changed")
    """

    assert run(code, tmp_path, timeout=250) == "changed\n"


@needs_leases
def test_a_writer_harms_nobody_who_has_been_idle(tmp_path):
    """Leases that were given up and taken again must not bring a signal that ends the process."""
    folder_of(tmp_path, 3)
    code = """
    ds = ndfeed.open(args[0], sample="row", cache=False)
    for _ in range(3):
        ds[:]
        while " %d " % os.getpid() in open("/proc/locks").read():
            time.sleep(0.01)
    ds[:]
    np.save(os.path.join(args[0], "x1.npy"), np.zeros((3, 3)))
    """

    assert run(f"{QUICK}{textwrap.dedent(code)}", tmp_path, timeout=250) == ""


def test_leases_nobody_looked_after_are_not_believed(tmp_path):
    """A process may be stopped (Ctrl-Z) for longer than the kernel lets writers wait."""
    (tmp_path / "d").mkdir()
    folder_of(tmp_path / "d", 3)
    np.save(tmp_path / "new.npy", rows(99))
    code = """
    from ndfeed.files import map_guard, maps
    maps._TRUST, map_guard._LOOK_EVERY = -1, 1000
    ds = ndfeed.open(args[0], sample="row", cache=False)
    for _ in range(3):
        assert ds[[50, 150, 250]]["data"][:, 0].tolist() == [0, 1, 2]
    os.replace(args[1], os.path.join(args[0], "x1.npy"))
    try:
        ds.read([150])
    except ndfeed.ChangedError as error:
        print(error)
    """

    assert "x1.npy: changed since it was indexed" in run(code, tmp_path / "d", tmp_path / "new.npy")


@needs_leases
def test_a_writer_goes_on_while_many_files_are_read(tmp_path):
    """The leases are kept from call to call, and still nobody waits long."""
    folder_of(tmp_path, 20)
    ds = open_rows(tmp_path)
    writer = start("np.save(args[0], np.zeros((3, 3)))", tmp_path / "x7.npy")

    def read():
        try:
            ds.read([10, 710, 1910])
        except ndfeed.ChangedError as error:
            return error
        return None

    assert eventually(read)
    assert read().path == os.fspath(tmp_path / "x7.npy")
    finish(writer, timeout=250)


@needs_leases
def test_a_writer_waits_for_whoever_is_reading(tmp_path, monkeypatch):
    """A lease that is given up in the middle of a copy guards nothing."""
    monkeypatch.setattr(map_guard, "_LOOK_EVERY", 0.01)
    mapped = Maps(open_rows(folder_of(tmp_path, 2)).groups[0].table)
    mapped.enter(np.array([0, 1]))
    writer = start("np.save(args[0], np.zeros((3, 3)))", tmp_path / "x1.npy")
    assert eventually(lambda: "BREAKING" in Path("/proc/locks").read_text())
    time.sleep(0.2)
    assert writer.poll() is None
    np.testing.assert_array_equal(mapped.bytes(1)[-WIDTH * 4 :].view("<f4"), rows(1)[0])
    mapped.leave()

    finish(writer, timeout=250)
    with pytest.raises(ndfeed.ChangedError, match=r"x1\.npy: changed since"):
        mapped.enter(1)


@needs_leases
def test_leases_are_given_up_when_nobody_reads(tmp_path):
    """And the thread that looks after them ends."""
    ds = open_rows(folder_of(tmp_path, 12))
    ds[:]
    assert leases() == 12
    assert any(thread.name == "ndfeed-leases" for thread in threading.enumerate())

    assert eventually(lambda: leases() == 0)
    assert eventually(lambda: all(t.name != "ndfeed-leases" for t in threading.enumerate()))
    np.testing.assert_array_equal(ds[1150]["data"], rows(11)[0])
    del ds
    assert eventually(lambda: leases() == 0)


@pytest.mark.parametrize("leased", [True, False])
def test_a_file_rewritten_between_two_reads_is_an_error(tmp_path, monkeypatch, leased):
    """The same size, other numbers: without the check it would be other data."""
    monkeypatch.setattr(can, "lease", leased and can.lease)
    ds = open_rows(folder_of(tmp_path, 3))
    np.testing.assert_array_equal(ds[150]["data"], rows(1)[0])
    rewrite(tmp_path / "x1.npy", rows(99))

    for _ in range(2):
        with pytest.raises(ndfeed.ChangedError, match=r"x1\.npy: (changed|opened for writing)"):
            ds.read([0, 150])
    np.testing.assert_array_equal(ds[250]["data"], rows(2)[0])


def test_a_file_rewritten_while_it_is_copied_is_an_error(tmp_path, monkeypatch):
    """Where leases cannot be had, what was read is compared again before it is given out."""
    monkeypatch.setattr(can, "lease", False)
    table = open_rows(folder_of(tmp_path, 2)).groups[0].table
    mapped = Maps(table)
    mapped.enter(np.array([0, 1]))
    rewrite(tmp_path / "x1.npy", rows(99))

    with pytest.raises(ndfeed.ChangedError, match=r"x1\.npy: changed since"):
        mapped.recheck(np.array([0, 1]))
    mapped.leave()
    mapped.enter(0)
    mapped.recheck(0)
    mapped.leave()


@pytest.mark.parametrize("linked", [False, True])
def test_a_replaced_file_is_an_error(tmp_path, linked):
    """The old bytes are still mapped, but they are not the file's any more."""
    (tmp_path / "d").mkdir()
    ds = open_rows(folder_of(tmp_path / "d", 3))
    ds[:]
    if linked:
        os.link(tmp_path / "d" / "x1.npy", tmp_path / "another name")
    np.save(tmp_path / "new.npy", rows(99))
    os.replace(tmp_path / "new.npy", tmp_path / "d" / "x1.npy")

    def read():
        try:
            return bool((ds.read([150])["data"] != 1).any())
        except ndfeed.ChangedError:
            return True

    assert eventually(read)
    for _ in range(2):
        with pytest.raises(ndfeed.ChangedError, match=r"x1\.npy: changed since .*replaced"):
            ds.read([150])


def test_a_deleted_file_is_read_on(tmp_path):
    """Its bytes stay for as long as they are mapped; a new file of that name is another."""
    ds = open_rows(folder_of(tmp_path, 2))
    ds[:]
    os.unlink(tmp_path / "x1.npy")
    time.sleep(2 * map_guard._LOOK_EVERY)
    np.testing.assert_array_equal(ds[150]["data"], rows(1)[0])
    np.save(tmp_path / "x1.npy", rows(1))
    time.sleep(2 * map_guard._LOOK_EVERY)

    with pytest.raises(ndfeed.ChangedError, match=r"x1\.npy: changed since .*replaced"):
        ds.read([150])


def test_a_file_deleted_before_it_was_read_is_missing(tmp_path):
    """Opening costs headers only, so this is when it shows."""
    ds = open_rows(folder_of(tmp_path, 2))
    os.unlink(tmp_path / "x1.npy")

    with pytest.raises(ndfeed.MissingError, match=r"x1\.npy: no such file") as caught:
        ds.read([150])
    assert 'call refresh(missing="skip")' in str(caught.value)


def test_a_sample_whose_file_vanished_can_be_left_out(tmp_path):
    """The error says so, and what it says works."""
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.full(4, i))
    ds = ndfeed.open(tmp_path, sample="file")
    os.unlink(tmp_path / "1.npy")

    with pytest.raises(ndfeed.MissingError, match=r"or pass on_error=\"skip\" to the loader"):
        list(ndfeed.loader(ds, 1))
    left = [[0] * 4, [2] * 4]
    skipping = ndfeed.loader(ds, 3, on_error="skip")
    assert [batch["data"].tolist() for batch in skipping] == [left]
    assert ds.refresh(missing="skip")[:]["data"].tolist() == left


@pytest.mark.filterwarnings("ignore:.*Fortran")
@pytest.mark.parametrize("fortran", [False, True])
def test_a_file_that_somebody_may_write_to_is_read_by_position(tmp_path, fortran):
    """No lease can be had of it, so it is not mapped; it is read right until it is written."""
    order = np.asfortranarray if fortran else np.ascontiguousarray
    np.save(tmp_path / "x.npy", order(np.arange(50.0).reshape(10, 5)))
    held = np.load(tmp_path / "x.npy", mmap_mode="r+")
    ds = open_rows(tmp_path / "x.npy")
    if can.lease:
        with pytest.raises(Unmappable, match=r"x\.npy: somebody has it open for writing"):
            Maps(ds.groups[0].table).enter(0)
    np.testing.assert_array_equal(ds[3]["data"], held[3])
    np.testing.assert_array_equal(ds.read([1, 1, 9])["data"], held[[1, 1, 9]])
    held[3] = 0

    if not fortran:  # those are kept once they are read whole
        with pytest.raises(ndfeed.ChangedError, match=r"x\.npy: changed since"):
            ds.read([3])


def test_more_files_than_may_be_open(tmp_path):
    """They are read by position instead: every row is right and few descriptors are used."""
    folder_of(tmp_path, 500)
    code = """
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    ds = ndfeed.open(args[0], sample="row", cache=False)
    wanted = np.random.default_rng(0).integers(0, len(ds), 2000)
    assert (ds.read(wanted)["data"] == (wanted // 100)[:, None]).all()
    print(len(os.listdir("/proc/self/fd")))
    """

    assert int(run(code, tmp_path)) < 10


def test_descriptors_that_run_out_later_are_no_matter(tmp_path):
    """A program's own files count too; what cannot be mapped is read by position."""
    folder_of(tmp_path, 10)
    code = """
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    ds = ndfeed.open(args[0], sample="row", cache=False)
    ds.read([0, 150])
    kept = []
    try:
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        os.close(kept.pop())
    wanted = np.random.default_rng(0).integers(0, len(ds), 2000)
    assert (ds.read(wanted)["data"] == (wanted // 100)[:, None]).all()
    out = {"data": np.empty((2000, 64), "<f4")}
    ds.read_into(wanted, out)
    assert (out["data"] == (wanted // 100)[:, None]).all()
    """

    assert run(code, tmp_path) == ""


def test_a_file_larger_than_what_may_be_mapped(tmp_path):
    """Address space can be limited; reading by position needs none."""
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "<f4", (1 << 20, WIDTH))[7] = 7
    code = """
    ds = ndfeed.open(args[0], cache=False)
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
    assert (ds.read([7, 1 << 19])["data"] == [[7], [0]]).all()
    """

    assert run(code, tmp_path / "x.npy") == ""


def test_a_child_maps_for_itself_and_the_parent_goes_on(tmp_path):
    """Leases belong to a process: a child must neither use nor give up its parent's."""
    folder_of(tmp_path, 12)
    code = """
    import signal, threading
    ds = ndfeed.open(args[0], sample="row", cache=False)
    wanted = np.arange(0, len(ds), 7)
    right = (wanted // 100)[:, None]
    for _ in range(5):
        assert (ds.read(wanted)["data"] == right).all()
        pid = os.fork()
        if not pid:
            threads = [t.name for t in threading.enumerate()]
            fine = (ds.read(wanted)["data"] == right).all() and threads == ["MainThread"]
            os._exit(0 if fine else 1)
        assert (ds.read(wanted)["data"] == right).all()
        assert os.waitpid(pid, 0)[1] == 0
    pid = os.fork()
    if not pid:  # it has inherited what is mapped, and does nothing with it
        signal.pause()
    assert (ds.read(wanted)["data"] == right).all()
    np.save(os.path.join(args[0], "x3.npy"), np.zeros((3, 3)))
    try:
        ds.read(wanted)
    except ndfeed.ChangedError:
        print("changed")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    """

    assert run(code, tmp_path, timeout=250) == "changed\n"


def test_a_fork_does_not_wait_for_those_who_read(tmp_path):
    """A thread of an abandoned pass may read from a slow disk for minutes. Whoever waits to write
    gets the file as soon as nobody reads it any more, though the child lives on."""
    folder_of(tmp_path, 2)
    code = """
    import fcntl, signal, threading
    from ndfeed.dataset.reader import reader_of
    ds = ndfeed.open(args[0], sample="row", cache=False)
    ds.read([0])
    maps = reader_of(ds.groups[0]).maps
    begun, over = threading.Event(), threading.Event()
    slow = threading.Thread(target=maps.read, args=(0, lambda: begun.set() or over.wait()))
    slow.start()
    begun.wait()
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    assert time.monotonic() - began < 20
    leased = lambda: fcntl.fcntl(maps.fd(0), fcntl.F_GETLEASE) == fcntl.F_RDLCK
    assert leased()  # nobody writes to what is being read
    over.set()
    slow.join()
    maps = ds = None
    import gc
    gc.collect()
    with open(os.path.join(args[0], "x0.npy"), "r+b") as file:  # would wait for 45 s
        pass
    print(time.monotonic() - began < 20)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    """

    assert run(code, tmp_path, timeout=250) == "True\n"


def test_many_threads_map_many_files_at_once(tmp_path):
    """Files are mapped by whoever comes first, while others gather from them."""
    folder_of(tmp_path, 60)
    wanted = [np.random.default_rng(i).integers(0, 6000, 30) for i in range(160)]
    for _ in range(5):
        ds = open_rows(tmp_path)
        begin = threading.Barrier(8)

        def read(thread, ds=ds, begin=begin):
            begin.wait()
            return all(
                (ds.read(some)["data"] == (some // 100)[:, None]).all()
                for some in wanted[thread::8]
            )

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(8)))


def test_many_threads_read_one_file_at_once(tmp_path):
    """What is made at the first read is made once."""
    np.savez(tmp_path / "x.npz", a=np.arange(1000), b=-np.arange(1000))
    for _ in range(20):
        ds = ndfeed.open(tmp_path / "x.npz", cache=False)
        begin = threading.Barrier(8)

        def read(thread, ds=ds, begin=begin):
            begin.wait()
            batch = ds.read(np.arange(thread, 1000, 8))
            return (batch["a"] == np.arange(thread, 1000, 8)).all() and (
                batch["a"] == -batch["b"]
            ).all()

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(8)))


@needs_leases
def test_ctrl_c_at_any_moment_leaves_nothing_held(tmp_path):
    """Interrupted a thousand times, it still reads, and writers still go on."""
    folder_of(tmp_path, 12)
    code = """
    import signal
    reading = False
    def interrupt(*_):
        if reading:  # the kernel may deliver it a moment after the timer was stopped
            raise KeyboardInterrupt
    ds = ndfeed.open(args[0], sample="row", cache=False)
    signal.signal(signal.SIGALRM, interrupt)
    count = 0
    until = time.monotonic() + 2
    while time.monotonic() < until or (count <= 100 and time.monotonic() < until + 60):
        try:
            reading = True
            signal.setitimer(signal.ITIMER_REAL, 0.0003 + 0.00001 * (count % 50))
            for _ in range(1000):  # Python itself may lose one, in a callback of a weak reference
                ds.read([5, 700, 1100])
            reading = False
        except KeyboardInterrupt:
            reading, count = False, count + 1
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert (ds.read([5, 700, 1100])["data"][:, 0] == [0, 7, 11]).all()
    np.save(os.path.join(args[0], "x7.npy"), np.zeros((3, 3)))
    print("saved", count > 100)
    """

    assert run(code, tmp_path) == "saved True\n"


def test_no_descriptor_is_left(tmp_path, monkeypatch):
    """Maps are closed with the last dataset that uses them, also after an error."""
    monkeypatch.setattr(map_guard, "_LOOK_EVERY", 0.01)
    folder_of(tmp_path, 12)
    process = psutil.Process()
    before = process.num_fds()
    for i in range(20):
        ds = open_rows(tmp_path)
        ds[:]
        if i % 2:
            rewrite(tmp_path / "x3.npy", rows(3))
            with pytest.raises(ndfeed.ChangedError, match=r"x3\.npy"):
                ds.read([350])
        del ds

    assert eventually(lambda: process.num_fds() <= before)  # those of other tests may be closed


def test_two_datasets_of_one_folder_do_not_disturb_each_other(tmp_path):
    """Each has leases of its own; one that ends takes only those with it."""
    folder_of(tmp_path, 12)
    first, second = open_rows(tmp_path), open_rows(tmp_path)
    first[:], second[:]
    del first

    np.testing.assert_array_equal(second[1150]["data"], rows(11)[0])


STOPPED = """
import signal
from ndfeed.files.maps import Maps
way = args[1]
ds = ndfeed.open(args[0], cache=False)
maps = Maps(ds.groups[0].table)
out = np.zeros((1000, 4096), "<f4")
def copy():
    data = maps.bytes(0)[-out.nbytes :].view("<f4").reshape(out.shape)
    out[:500] = data[:500]
    if way == "in the middle":
        os.kill(os.getpid(), signal.SIGSTOP)
    out[500:] = data[500:]
try:
    maps.read(0, copy)
    if way == "between two reads":
        os.kill(os.getpid(), signal.SIGSTOP)
        maps.read(0, copy)
    print("read", np.unique(out))
except ndfeed.ChangedError as error:
    print("changed")
"""


@pytest.fixture
def short_breaks():
    """Have the kernel let writers go on sooner; still later than other tests need."""
    with short_lease_breaks(3) as shortened:
        if not can.lease or not shortened:
            pytest.skip("only root can set how long writers wait")
        yield 3


def test_a_stop_longer_than_writers_wait_is_noticed(tmp_path, short_breaks):
    """SIGSTOP, a debugger, a suspended laptop: the kernel takes the lease away meanwhile."""
    readers = []
    for way in ("in the middle", "between two reads"):
        for change in ("shorten", "write over"):
            path = tmp_path / f"{len(readers)}.npy"
            np.save(path, np.ones((1000, 4096), "<f4"))
            readers.append((start(STOPPED, path, way), path, change))
    for reader, _, _ in readers:
        process = psutil.Process(reader.pid)
        assert eventually(lambda process=process: process.status() == psutil.STATUS_STOPPED)
    began = time.monotonic()
    change = """
    with open(args[0], "r+b") as file:
        if args[1] == "shorten":
            file.truncate(5000)
        else:
            file.seek(128)
            file.write(np.full((1000, 4096), 2, "<f4"))
    """
    for writer in [start(change, path, how) for _, path, how in readers]:
        finish(writer, 60)
    waited = time.monotonic() - began
    for reader, _, _ in readers:
        psutil.Process(reader.pid).resume()

    assert waited > short_breaks / 2
    assert [finish(reader) for reader, _, _ in readers] == ["changed\n"] * 4


def restored(path, array):
    """Save over a file in place, and put its times back."""
    before = os.stat(path)
    rewrite(path, array)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = os.stat(path)
    assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


@pytest.mark.parametrize("first", [True, False], ids=["read before", "not read before"])
@pytest.mark.parametrize("way", ["leased", "not leased", "by position", "whole files", "packing"])
def test_writing_and_putting_the_time_back_is_noticed(tmp_path, monkeypatch, way, first):
    """As `cp -p`, `touch -r` and rsync do: new data would be taken for the old."""
    monkeypatch.setattr(can, "lease", way == "leased" and can.lease)
    (tmp_path / "d").mkdir()
    folder_of(tmp_path / "d", 3)
    sample = "file" if way == "whole files" else "row"
    mapped = way not in ("by position", "packing")
    ds = ndfeed.open(tmp_path / "d", sample=sample, cache=False, mapped=mapped)
    if first:
        ds[:]
    restored(tmp_path / "d" / "x1.npy", rows(99))

    with pytest.raises(ndfeed.ChangedError, match=r"x1\.npy: (changed|opened for writing) since"):
        ndfeed.pack(ds, tmp_path / "packed") if way == "packing" else ds[:]


@pytest.mark.parametrize("mapped", [True, False])
def test_other_attributes_cannot_be_told_from_a_write(tmp_path, mapped):
    """The message says both, and what to do; opening again costs a header."""
    ds = open_rows(folder_of(tmp_path, 2), mapped=mapped)
    ds[:]
    (tmp_path / "x1.npy").chmod(0o600)
    time.sleep(2 * map_guard._LOOK_EVERY)

    with pytest.raises(ndfeed.ChangedError, match=r"x1\.npy: .*written to, renamed, .*; open the"):
        ds[150]
    np.testing.assert_array_equal(open_rows(tmp_path)[150]["data"], rows(1)[0])


def test_an_error_in_torn_data_is_that_the_file_changed(tmp_path, monkeypatch):
    """Bytes that change while they are looked at may look like any fault."""
    monkeypatch.setattr(can, "lease", False)
    mapped = Maps(open_rows(folder_of(tmp_path, 2)).groups[0].table)

    def fail():
        rewrite(tmp_path / "x1.npy", rows(99))
        raise ndfeed.FormatError(b"x1.npy", "looks damaged")

    with pytest.raises(ndfeed.ChangedError, match=r"x1\.npy: changed since"):
        mapped.read(1, fail)
    with pytest.raises(ndfeed.FormatError, match="looks damaged"):
        mapped.read(0, fail)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="maps are described on Linux")
@pytest.mark.parametrize("files", [1, 2])
def test_holes_are_not_read_ahead(tmp_path, files):
    """Each page touched would fill megabytes of memory with zeros, where disks read far ahead."""
    for name in ("hollow", "full"):
        (tmp_path / name).mkdir()
        for number in range(files):
            np.save(tmp_path / name / f"{number}.npy", np.ones((1 << 14, WIDTH), "<f4"))
    for path in (tmp_path / "hollow").iterdir():
        os.truncate(path, 128)  # the header
        os.truncate(path, 128 + (4 * WIDTH << 14))
    every = {name: open_rows(tmp_path / name) for name in ("hollow", "full")}

    for name, ds in every.items():
        assert (ds.read([3, 0, len(ds) - 1])["data"] == (name == "full")).all()
        flags = list_flags(tmp_path / name)
        assert ["rr" in own for own in flags] == [name == "hollow"] * files


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="maps are described on Linux")
def test_files_that_the_disk_compresses_are_no_holes(tmp_path, monkeypatch):
    """They take few blocks as well, but every page of theirs is worth reading ahead."""
    np.save(tmp_path / "x.npy", np.ones((1 << 14, WIDTH), "<f4"))

    def in_few_blocks(fd, find=os.fstat):
        found = find(fd)
        every = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return SimpleNamespace(**every | {"st_blocks": 8})

    monkeypatch.setattr(os, "fstat", in_few_blocks)
    ds = open_rows(tmp_path)
    assert (ds.read([3, 0])["data"] == 1).all()
    assert ["rr" in own for own in list_flags(tmp_path)] == [False]


def list_flags(folder):
    """What the kernel was told about the maps of the files in a folder."""
    found, path = [], ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            path = words[-1]
        elif words[0] == "VmFlags:" and Path(path).parent == folder:
            found.append(words[1:])
    return found
