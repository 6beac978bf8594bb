"""The same samples in every layout that can hold them, to be read the same way from each."""

import gzip

import numpy as np
import packed_making

import ndfeed

COUNT, SHAPE = 24, (3, 5)


def samples(dtype="<f4"):
    """Samples that no two tests confuse: every element differs."""
    return np.arange(COUNT * np.prod(SHAPE)).reshape(COUNT, *SHAPE).astype(dtype)


def _files(folder, data, save, each):
    for i in range(0, COUNT, each):
        save(folder / f"part{i // each}", data[i] if each == 1 else data[i : i + each])


def _npz(**options):
    def save(stem, array):
        writer = np.savez_compressed if options else np.savez
        writer(stem.with_suffix(".npz"), data=array)

    return save


def _npy(stem, array):
    np.save(stem.with_suffix(".npy"), array)


def _gz(stem, array):
    with gzip.open(stem.with_suffix(".npy.gz"), "wb") as file:
        np.save(file, array)


LAYOUTS = {
    "one npy": lambda d, x: (np.save(d / "x.npy", x), {})[1],
    "one Fortran npy": lambda d, x: (np.save(d / "x.npy", np.asfortranarray(x)), {})[1],
    "one big-endian npy": lambda d, x: (np.save(d / "x.npy", x.astype(">f4")), {})[1],
    "one stored npz": lambda d, x: (np.savez(d / "x.npz", data=x), {})[1],
    "one deflated npz": lambda d, x: (np.savez_compressed(d / "x.npz", data=x), {})[1],
    "one npy.gz": lambda d, x: (_gz(d / "x", x), {})[1],
    "one raw file": lambda d, x: (x.tofile(d / "x.bin"), {"dtype": "<f4", "shape": SHAPE})[1],
    "many npy of rows": lambda d, x: (_files(d, x, _npy, 4), {"sample": "row"})[1],
    "many stored npz of rows": lambda d, x: (_files(d, x, _npz(), 4), {"sample": "row"})[1],
    "many deflated npz of rows": lambda d, x: (_files(d, x, _npz(z=1), 4), {"sample": "row"})[1],
    "many npy.gz of rows": lambda d, x: (_files(d, x, _gz, 4), {"sample": "row"})[1],
    "an npy a sample": lambda d, x: (_files(d, x, _npy, 1), {"sample": "file"})[1],
    "a stored npz a sample": lambda d, x: (_files(d, x, _npz(), 1), {"sample": "file"})[1],
    "a deflated npz a sample": lambda d, x: (_files(d, x, _npz(z=1), 1), {"sample": "file"})[1],
    "an npy.gz a sample": lambda d, x: (_files(d, x, _gz, 1), {"sample": "file"})[1],
    "a Fortran npy a sample": lambda d, x: (
        _files(d, x, lambda s, a: _npy(s, np.asfortranarray(a)), 1),
        {"sample": "file"},
    )[1],
    "a big-endian npy a sample": lambda d, x: (
        _files(d, x, lambda s, a: _npy(s, a.astype(">f4")), 1),
        {"sample": "file"},
    )[1],
    "packed": lambda d, x: (packed_making.write(d, {"data": x}), {})[1],
    "packed in parts": lambda d, x: (packed_making.write(d, {"data": x}, parts=5), {})[1],
}


def open_layout(folder, name, **options):
    """``samples()`` written to ``folder`` in a layout, opened."""
    folder.mkdir(exist_ok=True)
    given = LAYOUTS[name](folder, samples())
    return ndfeed.open(folder, **{**given, **options})


def check_in_child(ds, rows, results):
    """Runs in another process, which imports this module and no test."""
    results.put(np.array_equal(ds.read(rows)["data"], samples()[rows]))
