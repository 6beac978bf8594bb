"""Streams that memory does not hold: read in order out of a window, else from a disk."""

import functools
import gzip
import io
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ndfeed
from ndfeed.dataset.decoding import Decoded
from ndfeed.dataset.large_members import Large, Streams, make_decoded_cache
from ndfeed.dataset.reader import reader_of
from ndfeed.files.platform_calls import can

ROWS, WIDTH = 400, 10_000


def numbered(dtype="<i4"):
    """Rows that differ from each other and along themselves."""
    return (np.arange(ROWS)[:, None] * 7 + np.arange(WIDTH) % 251).astype(dtype)


def structured():
    """Two fields that share a stream."""
    made = np.zeros(ROWS, [("a", "<i8"), ("b", "<f4", (500,))])
    made["a"], made["b"] = np.arange(ROWS), np.arange(ROWS)[:, None]
    return made


def write(folder, kind):
    """A file of 16 MB in the way that ``kind`` says, and its rows by field."""
    data = numbered(">i4" if kind == "swapped" else "<i4")
    if kind == "fortran":
        data = np.asfortranarray(data)
    if kind == "structured":
        data = structured()
    path = folder / ("x.npy.gz" if kind == "gzip" else "x.npz")
    if kind == "gzip":
        held = io.BytesIO()
        np.save(held, data)
        path.write_bytes(gzip.compress(held.getvalue(), 1))
    else:
        np.savez_compressed(path, x=data)
    return ndfeed.open(path, sample="row"), data


def filled(ds, rows, decoded):
    """What a reader gives that keeps streams in ``decoded``."""
    found = {}
    for group in ds.groups:
        for target in reader_of(group).fill(group, np.asarray(rows), {}, decoded):
            found[target.column.field.name] = target.arrays
    return found


def check(ds, data, rows, decoded):
    """The rows are right, whatever the field is called."""
    found = filled(ds, rows, decoded)
    if data.dtype.names:
        for name in data.dtype.names:
            np.testing.assert_array_equal(found[f"x/{name}"], data[rows][name])
    else:
        np.testing.assert_array_equal(next(iter(found.values())), data[rows])


KINDS = ["deflate", "gzip", "swapped", "structured", "fortran"]
REQUESTS = [
    list(range(ROWS)),
    [0],
    [ROWS - 1],
    [5, 3, 5, 200, 4],
    list(range(100, 140)),
    list(range(ROWS - 1, -1, -1)),
    [],
    [17],
]


@pytest.mark.filterwarnings("ignore:.*Fortran")
@pytest.mark.parametrize("off", ["nothing", "sparse", "scratch"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_rows_are_right(tmp_path, monkeypatch, kind, off):
    """Forwards, backwards and twice, by windows, from a disk, and with either alone."""
    if kind == "fortran" and off == "scratch":
        pytest.skip("scattered rows need a disk")
    ds, data = write(tmp_path, kind)
    if off != "nothing":
        monkeypatch.setattr(can, off, False)
    decoded = make_decoded_cache([Streams.of(group) for group in ds.groups], 1 << 20)
    for rows in REQUESTS * 2:
        check(ds, data, rows, decoded)

    assert decoded.held <= 4 << 20


@pytest.mark.filterwarnings("ignore:.*Fortran")
@pytest.mark.parametrize("kind", KINDS)
def test_any_rows_are_right_from_the_disk(tmp_path, kind):
    """Where the order is known to be none, the disk is used from the first row on."""
    ds, data = write(tmp_path, kind)
    decoded = Decoded(0, Large(0, 0, 0, forward=False))
    for rows in REQUESTS:
        check(ds, data, rows, decoded)

    assert decoded.large.on_disk > 0
    assert decoded.held == 0
    decoded.clear()
    assert decoded.large.on_disk == 0


def test_rows_in_order_decode_a_stream_once(tmp_path):
    """Also in a second pass: once each."""
    ds, data = write(tmp_path, "deflate")
    decoded = make_decoded_cache([Streams.of(ds.groups[0])], 4 << 20)
    from ndfeed.dataset.read_timing import spent

    before = spent.streams
    for _ in range(3):
        for start in range(0, ROWS, 50):
            check(ds, data, list(range(start, start + 50)), decoded)

    assert spent.streams - before == 3
    assert decoded.large.on_disk == 0


def test_rows_out_of_order_end_on_the_disk(tmp_path):
    """Decoding from the beginning again and again is given up after a while."""
    ds, data = write(tmp_path, "deflate")
    decoded = make_decoded_cache([Streams.of(ds.groups[0])], 4 << 20)
    for row in np.random.default_rng(0).integers(0, ROWS, 50).tolist():
        check(ds, data, [row], decoded)

    assert decoded.large.on_disk > 0


def test_threads_share_a_window(tmp_path):
    """None sees what another has just forgotten."""
    ds, data = write(tmp_path, "deflate")
    decoded = make_decoded_cache([Streams.of(ds.groups[0])], 2 << 20)
    begin = threading.Barrier(8)

    def work(first):
        begin.wait()
        for start in range(first * 5, ROWS, 40):
            check(ds, data, list(range(start, min(start + 5, ROWS))), decoded)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_damage_is_found_at_the_end_of_a_stream(tmp_path):
    """The checksum is that of the whole: who reads to the end in order compares it."""
    ds, _ = write(tmp_path, "deflate")
    path = tmp_path / "x.npz"
    status, content = os.stat(path), bytearray(path.read_bytes())
    at = content.rfind(b"PK\x01\x02") + 16  # the checksum in the directory
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    ds = ndfeed.open(path, sample="row", cache=False)
    decoded = make_decoded_cache([Streams.of(ds.groups[0])], 1 << 20)
    filled(ds, range(10), decoded)
    with pytest.raises(ndfeed.ChecksumError, match=r"x\.npz"):
        filled(ds, range(10, ROWS), decoded)
    with pytest.raises(ndfeed.ChecksumError, match=r"x\.npz"):
        filled(ds, range(10), Decoded(0, Large(0, 0, 0, forward=False)))


def test_a_file_that_changes_between_two_reads_is_an_error(tmp_path):
    """The window is half old then: never half new."""
    ds, data = write(tmp_path, "deflate")
    decoded = make_decoded_cache([Streams.of(ds.groups[0])], 1 << 20)
    check(ds, data, list(range(20)), decoded)
    os.utime(tmp_path / "x.npz", ns=(1, 1))

    with pytest.raises(ndfeed.ChangedError, match=r"x\.npz"):
        filled(ds, range(100, 120), decoded)


MEASURED = """
import sys, threading, time
import numpy as np
import ndfeed
def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024
ds = ndfeed.open(sys.argv[1], sample="row")
ndfeed.loader(ds, 8, memory="32MB", shuffle=True)
before = peak = anonymous()
over = threading.Event()
def watch():
    global peak
    while not over.wait(0.001):
        peak = max(peak, anonymous())
watcher = threading.Thread(target=watch)
watcher.start()
WORK
over.set()
watcher.join()
print(peak - before)
"""

WORK = {
    "one row": "assert ds[7]['x'][0] == 7 % 256\nassert ds[3]['x'][0] == 3",
    "the last row": "assert ds[len(ds) - 1]['x'][0] == (len(ds) - 1) % 256",
    "in order": """
for epoch in range(2):
    with ndfeed.loader(ds, 8, memory="32MB") as loader:
        got = np.concatenate([batch["x"][:, 0] for batch in loader])
    assert (got == np.arange(len(ds)) % 256).all()
""",
    "shuffled": """
with ndfeed.loader(ds, 8, memory="32MB", shuffle=True) as loader:
    for epoch in range(2):
        got = np.concatenate([batch["x"][:, 0] for batch in loader])
        assert (np.bincount(got) == np.bincount(np.arange(len(ds)) % 256)).all()
        assert loader.report().streams == (1 if epoch == 0 else 0)
""",
}


@pytest.fixture(scope="module")
def zeros(tmp_path_factory):
    """The path of a compressed file of some rows, which are made once."""

    @functools.cache
    def write(rows):
        path = tmp_path_factory.mktemp("zeros") / "x.npz"
        data = np.zeros((rows, 100_000), np.uint8)
        data[:, 0] = np.arange(rows) % 256
        np.savez_compressed(path, x=data)
        return path

    return write


@pytest.mark.skipif(sys.platform != "linux", reason="measures as Linux counts")
@pytest.mark.parametrize("work", WORK)
def test_memory_is_kept_by_a_member_of_many_times_its_size(zeros, work):
    """400 MB in 400 kB, memory of 32 MB: never a quarter of it is in memory at a time.

    Reading without a loader keeps streams of up to 512 MB, so it is given a larger one.
    """
    path = zeros(7000 if "row" in work else 4000)
    code = MEASURED.replace("WORK", WORK[work])
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100_000_000
