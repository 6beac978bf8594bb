"""Sources to pack, functions to map that other processes can find, and what must come out."""

import contextlib
import os
import random
import signal
import time
import zipfile
from concurrent.futures import Executor, Future

import numpy as np

import ndfeed
from ndfeed.formats import npy
from ndfeed.order.permutation import key_of, permuted


def npz_of_rows(folder, files=6, rows=7, compressed=True):
    """Files of many rows each."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    save = np.savez_compressed if compressed else np.savez
    for i in range(files):
        image = rng.integers(0, 255, (rows, 3, 4), np.uint8)
        save(folder / f"{i}.npz", image=image, label=np.arange(rows) + rows * i)
    return ndfeed.open(folder, sample="row")


def npz_of_samples(folder, files=10):
    """One sample in each file: of one shape, ragged in its first length, ragged in several."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for i in range(files):
        np.savez(
            folder / f"{i}.npz",
            label=i,
            points=rng.random((i % 4, 3)),
            text=rng.integers(0, 99, i % 6, np.uint8),
            volume=rng.random((i % 3 + 1, 2, i % 5)).astype(np.float32),
        )
    return ndfeed.open(folder, sample="file")


def ragged(batch):
    """A map that makes a ragged field."""
    lengths = batch["label"] % 5
    return {
        "label": batch["label"],
        "counted": [np.arange(n, dtype=np.int32) for n in lengths.tolist()],
        "half": batch["image"].astype(np.float32) / 2,
    }


def drawn(batch):
    """A map that draws from every global generator, and gives other processes time for theirs."""
    import torch

    time.sleep(0.01)
    count = len(batch["label"])
    return {
        "numpy": np.random.random(count),  # noqa: NPY002
        "python": np.array([random.random() for _ in range(count)]),
        "torch": torch.rand(count, dtype=torch.float64).numpy(),
    }


def shuffled(ds, seed):
    """The rows as ``shuffle`` writes them."""
    count = len(ds)
    return ds.take(permuted(np.arange(count), count, key_of("exact", seed, 0)))


def same(found, expected):
    """Have two datasets the same samples, to the bit?"""
    assert list(found.fields) == list(expected.fields)
    assert len(found) == len(expected)
    a, b = (ds.read(np.arange(len(ds))) for ds in (found, expected))
    for name in b:
        for x, y in zip(a[name], b[name], strict=True):
            np.testing.assert_array_equal(x, y)
            assert np.asarray(x).dtype == np.asarray(y).dtype
            assert np.shape(x) == np.shape(y)
    return True


PIECES = {"workers": 1, "memory": 2000}  # many small ones


def interrupted(ds, target):
    """Pack up to the last piece but one: the path of the journal that is left, and its bytes."""
    done = 0

    def stop(rows, nbytes):
        nonlocal done
        done += rows
        if done > 0.8 * len(ds):
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        ndfeed.pack(ds, target, progress=stop, **PIECES)
    (journal,) = target.parent.glob(f".{target.name}.*/journal")
    return journal, journal.read_bytes()


def huge_npz(path, nbytes, compressed):
    """An archive with one large member ``x``, written without ever holding it."""
    block = np.arange(1_000_000, dtype=np.uint8)
    header = npy.preamble("|u1", (nbytes // 1000, 1000))
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind, compresslevel=1) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as member:
            member.write(header)
            for _ in range(nbytes // len(block)):
                member.write(block)
        with archive.open("y.npy", "w") as member:
            np.save(member, np.zeros(nbytes // 1000, np.uint8))
    return path


def slow(batch):
    """A map that takes its time."""
    time.sleep(0.05)
    return {"label": batch["label"] * 2}


class Deadly:
    """A map that kills the process it runs in, as often as there are files in a folder for it."""

    def __init__(self, folder, deaths):
        folder.mkdir()
        self.folder = folder
        self.parent = os.getpid()
        for i in range(deaths):
            (folder / str(i)).touch()

    def __call__(self, batch):
        if os.getpid() == self.parent:
            time.sleep(0.3)  # so that processes are worth while
        elif (batch["label"] == 317).any():
            for marker in sorted(self.folder.iterdir()):
                with contextlib.suppress(FileNotFoundError):
                    marker.unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
        return {"label": batch["label"] * 2}


class Elsewhere(Executor):
    """An executor whose workers do not see the folder."""

    max_workers = 1

    def submit(self, function, *args):
        future = Future()
        worker = function.__self__
        worker.folder += b"/elsewhere"
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the future
            future.set_exception(error)
        return future
