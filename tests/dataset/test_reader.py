"""Every layout gives the same samples in every way of asking, from any thread or process."""

import contextlib
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from children import examples
from dataset.layouts import COUNT, LAYOUTS, SHAPE, check_in_child, open_layout, samples
from hypothesis import given, settings
from hypothesis import strategies as st

import ndfeed

pytestmark = pytest.mark.filterwarnings("ignore:.*Fortran")
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


@each_layout
@pytest.mark.parametrize("mapped", [True, False])
def test_any_rows_in_any_order(tmp_path, layout, mapped):
    """Sorted for reading, scattered for delivery, duplicates read once: none of it may show."""
    ds = open_layout(tmp_path, layout, mapped=mapped)

    @settings(max_examples=examples(25), deadline=None)
    @given(rows=st.lists(st.integers(0, COUNT - 1), max_size=40))
    def check(rows):
        batch = ds.read(rows)["data"]
        np.testing.assert_array_equal(batch, samples()[rows] if rows else samples()[:0])
        assert batch.shape == (len(rows), *SHAPE)

    check()


@each_layout
def test_batches_are_private_writable_contiguous_native(tmp_path, layout):
    """A batch is handed to frameworks as it is, and written to by transforms."""
    ds = open_layout(tmp_path, layout)
    first = ds.read([5, 3, 3])["data"]
    first[...] = -1

    assert first.flags.c_contiguous
    assert first.flags.writeable
    assert first.dtype.isnative
    np.testing.assert_array_equal(ds.read([5, 3, 3])["data"], samples()[[5, 3, 3]])


@each_layout
def test_read_into_fills_the_callers_memory(tmp_path, layout):
    """The loader reads into buffers it recycles: nothing may be allocated in their place."""
    ds = open_layout(tmp_path, layout)
    out = np.full((4, *SHAPE), -1, np.float32)
    whole = {"data": out}
    ds.read_into([7, 0, 7, 23], whole)

    assert whole["data"] is out
    np.testing.assert_array_equal(out, samples()[[7, 0, 7, 23]])


@each_layout
def test_many_threads_at_once(tmp_path, layout):
    """Readers share descriptors, maps and decoded members: rows must not mix."""
    ds = open_layout(tmp_path, layout)
    rng = np.random.default_rng(0)
    asked = [rng.integers(0, COUNT, 10) for _ in range(200)]
    with ThreadPoolExecutor(8) as pool:
        for rows, batch in zip(asked, pool.map(ds.read, asked), strict=True):
            np.testing.assert_array_equal(batch["data"], samples()[rows])


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("layout", ["one npy", "many npy of rows", "a deflated npz a sample"])
def test_other_processes_read_the_same(tmp_path, layout, method):
    """Worker processes are how most people read today; a dataset must survive the trip."""
    ds = open_layout(tmp_path, layout)
    ds.read([1])  # maps and leases of the parent are there before the child is
    context = multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=check_in_child, args=(ds, [5, 3, 9], results))
    child.start()

    assert results.get(timeout=250)
    child.join()
    assert child.exitcode == 0
    np.testing.assert_array_equal(ds.read([5, 3, 9])["data"], samples()[[5, 3, 9]])


def test_fork_while_threads_read(tmp_path):
    """A fork at any moment leaves both sides able to read: no lock is inherited in mid-air."""
    ds = open_layout(tmp_path, "many npy of rows")
    stop = threading.Event()

    def read_on():
        while not stop.is_set():
            ds.read([1, 9, 17])

    threads = [threading.Thread(target=read_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            pid = os.fork()
            if not pid:
                ok = np.array_equal(ds.read([2, 20])["data"], samples()[[2, 20]])
                os._exit(0 if ok else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("rows", [10, 100_000])
def test_a_pickled_dataset_is_small(tmp_path, rows):
    """A worker gets a handle, not the index, whatever the size of the data."""
    np.save(tmp_path / "x.npy", np.arange(rows))
    ds = ndfeed.open(tmp_path / "x.npy")
    train, _ = ds.split(0.9)
    shuffled = ds.take(np.random.default_rng(0).permutation(rows))

    for view in (ds, train, shuffled, ds.in_memory(), ds + ds, ds.take(slice(0, None, 2))):
        data = pickle.dumps(view)
        assert len(data) < 12_000
        np.testing.assert_array_equal(pickle.loads(data)[:]["data"], view[:]["data"])


def test_a_long_list_of_files_pickles_small_too(tmp_path):
    """The list is in the shared table: sending it again would cost megabytes."""
    for i in range(150):
        np.save(tmp_path / f"{i}.npy", np.full(3, i))
    ds = ndfeed.open(sorted(tmp_path.glob("*.npy")), sample="file")
    data = pickle.dumps(ds)

    assert len(data) < 1000
    np.testing.assert_array_equal(pickle.loads(data)[:]["data"], ds[:]["data"])


def test_a_pickle_outlives_the_memory_it_points_to(tmp_path):
    """On another machine, or after the parent is gone, the source is opened again and checked."""
    open_layout(tmp_path, "many npy of rows")
    code = (
        "import sys, pickle, ndfeed; sys.stdout.buffer.write("
        "pickle.dumps(ndfeed.open(sys.argv[1], sample='row')))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True
    ).stdout

    np.testing.assert_array_equal(pickle.loads(made)[:]["data"], samples())
    np.save(tmp_path / "part3.npy", samples()[:7])
    with pytest.raises(ndfeed.ChangedError, match="fingerprint"):
        pickle.loads(made)


def test_a_changed_file_is_an_error_not_other_data(tmp_path):
    """Whatever way a file is read, what was indexed is what is delivered, or nothing is."""
    for number, layout in enumerate(["one npy", "an npy a sample", "many deflated npz of rows"]):
        folder = tmp_path / str(number)
        ds = open_layout(folder, layout)
        for path in sorted(folder.iterdir()):
            data = path.read_bytes()
            path.write_bytes(data + b"!")

        with pytest.raises(ndfeed.ChangedError, match="changed since it was indexed"):
            ds.read([0, 7])


def test_no_descriptor_is_left_open(tmp_path):
    """Whole-file samples and unmapped rows open and close; views that are gone let go."""
    before = open_files(tmp_path)
    for number, layout in enumerate(LAYOUTS):
        ds = open_layout(tmp_path / str(number), layout)
        ds.read([0, 5])
        ds.in_memory().read([0, 5])
        del ds

    assert len(open_files(tmp_path)) <= len(before) + 1


def open_files(folder):
    """Descriptors of files in a folder, and of memory: others may come and go with other tests."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [one for one in found if one.startswith((os.fspath(folder), "/memfd:"))]


@pytest.mark.parametrize("dtype", ["<u1", "<i2", "<i4", "<i8", "<f8", ">i4", "S5"])
@pytest.mark.parametrize("shape", [(), (3,), (4,), (2, 8)])
def test_stretches_and_scattered_rows_of_many_files(tmp_path, dtype, shape):
    """Rows that follow each other are copied file by file; numbers of one size all at once."""
    rng = np.random.default_rng(0)
    parts = []
    for i, count in enumerate((5, 1, 8, 3)):
        parts.append(rng.integers(0, 100, (count, *shape)).astype(dtype))
        np.save(tmp_path / f"{i}.npy", parts[-1])
    whole = np.concatenate(parts)
    ds = ndfeed.open(tmp_path, sample="row")

    for rows in ([*range(17)], [*range(3, 12)], [5], [0, 16, 5, 5, 9], [16, 15, 14]):
        for batch in ndfeed.loader(ds.take(rows), len(rows), threads=1):
            assert batch["data"].tobytes() == whole[rows].astype(batch["data"].dtype).tobytes()
