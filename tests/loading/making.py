"""What the loader's tests share: datasets in every layout, and ways to look at batches.

Maps that run in other processes or are given to several tests live here too: a child that is
spawned imports this module and no test.
"""

import gzip
import itertools
import os
import threading
import time

import imported
import numpy as np
import psutil
import safetensors.numpy
from dataset.layouts import COUNT, open_layout, samples

import ndfeed

LARGE = 64 << 10  # bytes from which on memory is lent out of a pool, and shared with processes


def numbers(folder, n, width=1, name="x.npy", dtype="<i8"):
    """A dataset of ``n`` rows, each full of its own number."""
    path = folder / name
    rows = np.repeat(np.arange(n).astype(dtype)[:, None], width, axis=1)
    np.save(path, rows if width > 1 else rows[:, 0])
    return ndfeed.open(path)


def files(folder, **shapes):
    """A dataset of one file for each field, of a dtype and a shape; their values differ by row."""
    for name, (dtype, *shape) in shapes.items():
        values = np.arange(np.prod(shape)) * 7 % 251
        np.save(folder / f"{name}.npy", values.reshape(shape).astype(dtype))
    return ndfeed.open({name: folder / f"{name}.npy" for name in shapes}, sample="row")


def images(folder, n=100, shape=(4, 4, 3)):
    """Images of bytes with a label each; both say which row they are."""
    folder.mkdir(exist_ok=True, parents=True)
    x = np.zeros((n, *shape), np.uint8)
    x.reshape(n, -1)[:, 0] = np.arange(n)
    np.savez(folder / "images.npz", image=x, label=np.arange(n))
    return ndfeed.open(folder / "images.npz")


def labels(batches):
    """The labels of batches of any framework, one after the other."""
    return [label for batch in batches for label in np.asarray(batch["label"]).tolist()]


def large_rows(folder, n, size=LARGE // 4):
    """Rows of which a few make a batch that is lent and recycled; a label beside each."""
    folder.mkdir(exist_ok=True)
    image = np.repeat(np.arange(n, dtype="<u4")[:, None], size // 4, axis=1)
    np.savez(folder / "x.npz", image=image, label=np.arange(n))
    return ndfeed.open(folder / "x.npz")


def compressed(folder, files, rows, width=16):
    """Files of many rows each that must be inflated whole, and what all rows are together."""
    folder.mkdir(exist_ok=True)
    data = np.random.default_rng(0).integers(0, 200, (files * rows, width)).astype("u1")
    data[:, 0] = np.arange(files * rows) % 251
    for i in range(files):
        part = slice(i * rows, (i + 1) * rows)
        np.savez_compressed(folder / f"{i:03}.npz", x=data[part], n=np.arange(files * rows)[part])
    return ndfeed.open(folder, sample="row"), data


def damaged(path, name="x"):
    """Change a byte of a member in the middle of a zip file, which keeps size and date."""
    status = os.stat(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def ragged(folder, lengths, shape=lambda n: (n,), **more):
    """A file a sample, of as many elements as its length says; ``n`` is the sample's number."""
    folder.mkdir(exist_ok=True)
    for i, n in enumerate(lengths):
        x = (100 * i + np.arange(np.prod(shape(n), dtype=int))).reshape(shape(n)).astype("<f4")
        extra = {name: value[i] for name, value in more.items()}
        np.savez(folder / f"{i:03}.npz", x=x, n=np.int64(i), **extra)
    return ndfeed.open(folder, sample="file")


def _torch_files(folder):
    torch = __import__("torch")
    for i, row in enumerate(samples()):
        torch.save({"data": torch.from_numpy(row)}, folder / f"{i:02}.pt")
    return ndfeed.open(folder, sample="file")


def _safetensors(folder):
    save_file = __import__("safetensors.numpy").numpy.save_file
    for i, row in enumerate(samples()):
        save_file({"data": row.copy()}, folder / f"{i:02}.safetensors")
    return ndfeed.open(folder, sample="file")


def _together(folder):
    """Compressed rows and raw ones side by side."""
    (folder / "z").mkdir()
    for i in range(0, COUNT, 6):
        np.savez_compressed(folder / "z" / f"{i:02}.npz", samples()[i : i + 6])
    np.save(folder / "label.npy", np.arange(COUNT))
    return ndfeed.open({"image": folder / "z", "label": folder / "label.npy"}, sample="row")


def _permuted(name):
    def made(folder):
        return open_layout(folder, name).take(np.random.default_rng(3).permutation(COUNT)[:19])

    return made


def _added(folder):
    first = open_layout(folder / "a", "many deflated npz of rows")
    return first.take([20, 3, 3, 4]) + open_layout(folder / "b", "one npy")


# Every way that samples can lie, and every kind of view.
MADE = {
    name: lambda folder, name=name: open_layout(folder, name)
    for name in (
        "one npy",
        "one Fortran npy",
        "one big-endian npy",
        "one deflated npz",
        "many npy of rows",
        "many deflated npz of rows",
        "many npy.gz of rows",
        "an npy a sample",
        "a stored npz a sample",
        "a deflated npz a sample",
        "an npy.gz a sample",
        "a big-endian npy a sample",
    )
} | {
    "a pt a sample": _torch_files,
    "a safetensors a sample": _safetensors,
    "compressed and raw together": _together,
    "in memory": lambda f: open_layout(f, "many deflated npz of rows").in_memory(),
    "not mapped": lambda f: open_layout(f, "many npy of rows", mapped=False),
    "a permuted view": _permuted("one npy"),
    "a permuted view of compressed rows": _permuted("many deflated npz of rows"),
    "a part of a split": lambda f: open_layout(f, "many deflated npz of rows").split(0.7)[0],
    "a selection": lambda f: _together(f).select("label"),
    "one behind the other": _added,
    "nothing": lambda f: open_layout(f, "many deflated npz of rows").take([]),
    "one row": lambda f: open_layout(f, "many deflated npz of rows").take([5]),
    "samples of several shapes": lambda f: ragged(f, [3, 0, 1, 7, 2, 2, 5, 1, 4, 6, 0]),
}


def made(folder, name):
    """A dataset of ``MADE`` in a folder of its own."""
    folder.mkdir(exist_ok=True, parents=True)
    return MADE[name](folder)


def epoch_of(ds, batch_size=5, **options):
    """All batches of the first epoch, and nothing left running."""
    with ndfeed.loader(ds, batch_size, **options) as loader:
        return list(loader)


def refused(loader):
    """What is raised when a pass begins."""
    try:
        next(iter(loader))
    except RuntimeError as error:
        return str(error)
    return ""


def assert_same(found, expected):
    """Bit for bit: types, shapes and the kinds of containers included."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        return
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def rows_of(batches, name="data"):
    """The row numbers that batches of ``numbers`` hold, one after the other."""
    return [int(np.ravel(row)[0]) for batch in batches for row in batch[name]]


def collect(loader, into, name="data"):
    """Iterate, adding the rows of every batch to a list: it keeps them if an error ends it."""
    for batch in loader:
        into += rows_of([batch], name)


def chained(lists):
    """Lists one behind the other."""
    return list(itertools.chain.from_iterable(lists))


earlier_threads = set()  # those there were when the test began: garbage of other tests


def threads():
    """The loaders' threads of this test. The one that looks after leases is not theirs."""
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("ndfeed-")
        and thread.name != "ndfeed-leases"
        and thread not in earlier_threads
    ]


def running(pid=None):
    """Child processes that still run, but for those that multiprocessing keeps for itself."""
    return [child for child in psutil.Process(pid).children(recursive=True) if _runs(child)]


def _runs(child):
    """Does it, and is it none of those that serve a whole run of tests?"""
    try:
        words = " ".join(child.cmdline())
        if child.status() == psutil.STATUS_ZOMBIE:
            return False
    except psutil.NoSuchProcess:
        return False
    helpers = "multiprocessing.resource_tracker", "multiprocessing.forkserver", imported.__file__
    return not any(name in words for name in helpers)


def eventually(condition, seconds=60):
    """Wait until it holds, for as long as a loaded machine may need."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def alive(pid):
    """Does a process run, other than as a corpse?"""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# Maps.


def doubled(batch):
    return {name: values * 2 for name, values in batch.items()}


def noisy(batch, rng):
    return {name: values + rng.integers(0, 1 << 40, values.shape) for name, values in batch.items()}


def in_process(batch):
    """Adds the number of the process that ran it."""
    count = len(next(iter(batch.values())))
    return {**batch, "pid": np.full(count, os.getpid())}


def with_half(batch):
    """Another field, and one of a type that no framework has."""
    half = batch["label"].astype(np.float32) / 2
    return {**batch, "half": half, "text": np.zeros(len(half), "V4")}


def cropped(sample):
    """Crops of different lengths out of equal rows, of one sample."""
    return {"x": sample["data"][: 1 + sample["data"][0] % 3]}


def one_per_file(folder, kind, n=40, shape=(40, 40), ragged=False):
    """A file for each sample, in a format; large enough that batches go by shared memory."""
    folder.mkdir(exist_ok=True)
    for i in range(n):
        rows = shape[0] + (i % 5 if ragged else 0)
        x, path = np.full((rows, *shape[1:]), i, "<f4"), folder / f"{i:03}"
        if kind == "npy":
            np.save(path, x)
        elif kind == "npz":
            np.savez(path, x=x, y=np.int64(i), name=np.array(f"sample {i}"))
        elif kind == "deflated npz":
            np.savez_compressed(path, x=x, y=np.int64(i))
        elif kind == "npy.gz":
            with gzip.open(f"{path}.npy.gz", "wb") as file:
                np.save(file, x)
        elif kind == "safetensors":
            safetensors.numpy.save_file({"x": x, "y": np.array([i])}, f"{path}.safetensors")
    return ndfeed.open(folder, sample="file")
