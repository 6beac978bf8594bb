"""Reads of every kind that can be repeated from the same beginning, with the right answer known."""

import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

import ndfeed

ROWS, WIDTH = 40, 300


def _one_npy(folder):
    np.save(folder / "x.npy", _rows())


def _many_npy(folder):
    for i in range(5):
        np.save(folder / f"{i}.npy", _rows()[8 * i : 8 * i + 8])


def _sample_npy(folder):
    for i in range(ROWS):
        np.save(folder / f"{i:02}.npy", _rows()[i])


def _stored_npz(folder):
    for i in range(ROWS // 4):
        np.savez(folder / f"{i:02}.npz", data=_rows()[4 * i : 4 * i + 4])


def _deflated_npz(folder):
    for i in range(ROWS // 4):
        np.savez_compressed(folder / f"{i:02}.npz", data=_rows()[4 * i : 4 * i + 4])


def _raw(folder):
    _rows().tofile(folder / "x.bin")


def _packed(folder):
    np.save(folder / "x.npy", _rows())
    ndfeed.pack(folder / "x.npy", folder / "packed", workers=1)
    (folder / "x.npy").unlink()


def _rows():
    return np.arange(ROWS * WIDTH, dtype="<i8").reshape(ROWS, WIDTH)


@dataclass(frozen=True)
class Kind:
    """How to make a source, to open it, and to read all of it."""

    make: object
    options: dict
    name: str = ""
    take: object = lambda ds: ds[:]["data"]


def _by_loader(ds):
    """An epoch, in order and by two threads."""
    with ndfeed.loader(ds, 16, threads=2, memory="8MB") as loader:
        return np.concatenate([batch["data"] for batch in loader])


def _scattered(ds):
    """All rows in another order, put back."""
    rows = np.random.default_rng(0).permutation(len(ds))
    found = np.empty((len(ds), WIDTH), "<i8")
    found[rows] = ds.read(rows)["data"]
    return found


def _in_memory(ds):
    return ds.in_memory()[:]["data"]


ROW, FILE = {"sample": "row"}, {"sample": "file"}
READS = {
    "rows of a mapped file": Kind(_one_npy, ROW, "x.npy"),
    "rows of many mapped files": Kind(_many_npy, ROW, take=_scattered),
    "rows by position": Kind(_many_npy, {**ROW, "mapped": False}, take=_scattered),
    "samples that are files": Kind(_sample_npy, FILE),
    "stored archives": Kind(_stored_npz, ROW, take=_scattered),
    "compressed archives": Kind(_deflated_npz, ROW),
    "a raw file": Kind(_raw, {"dtype": "<i8", "shape": (WIDTH,)}, "x.bin"),
    "a packed dataset": Kind(_packed, {}, "packed", take=_scattered),
    "a loader": Kind(_many_npy, ROW, take=_by_loader),
    "a loader of compressed archives": Kind(_deflated_npz, ROW, take=_by_loader),
    "memory of its own": Kind(_deflated_npz, ROW, take=_in_memory),
}


class Read:
    """A source on the disk and what must come out of it."""

    def __init__(self, kind, folder):
        self._kind = kind
        self._pristine, self._folder = folder / "pristine", folder / "data"
        self._pristine.mkdir(parents=True)
        kind.make(self._pristine)
        self.restore()

    def restore(self):
        """Put the files back."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._pristine, self._folder)

    def begin(self):
        """Put back what a run may have left."""
        shutil.rmtree(os.path.join(os.environ["XDG_CACHE_HOME"], "ndfeed", "index"), True)

    @contextmanager
    def opened(self):
        """The dataset."""
        yield ndfeed.open(self._folder / self._kind.name, **self._kind.options)

    def take(self, ds):
        """All of its rows."""
        return self._kind.take(ds)

    def run(self):
        """Open, read, open once more by what was kept, read."""
        for _ in range(2):
            with self.opened() as ds:
                found = self.take(ds)
        return found

    def is_right(self, found):
        """Are these the rows?"""
        return np.array_equal(found, _rows())

    def paths(self):
        """The files that hold the rows."""
        return [path for path in sorted(self._folder.rglob("*")) if path.suffix in _ARRAYS]


_ARRAYS = {".npy", ".npz", ".bin"}


def open_read(name, folder):
    """A read of that kind, its files made."""
    return Read(READS[name], folder)
