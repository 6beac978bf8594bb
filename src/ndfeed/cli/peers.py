"""Small sources of every kind, and how each is read without ndfeed.

The other side of ``ndfeed demo``, and the only module that may use np.load and its like: it reads
what it has just written itself. What it needs beyond NumPy is imported when asked for, since
none of it has to be installed.
"""

import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ndfeed

Rows = NDArray[np.int64]
Batch = dict[str, Any]
Read = Callable[[Rows], Batch]

IMAGE = (3, 32, 32)


@dataclass(frozen=True, slots=True)
class Peer:
    """One kind of source: how to make it, to open it with ndfeed, and to read it without."""

    source: str
    way: str
    make: Callable[[Path], None]
    open: Callable[[Path], ndfeed.Dataset]
    reader: Callable[[Path], Read]
    needs: str = ""

    @property
    def missing(self) -> bool:
        """Does it need a package that is not installed?"""
        return bool(self.needs) and find_spec(self.needs) is None


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _images(count: int) -> NDArray[np.uint8]:
    # Few levels, so that compressing them does something.
    return _rng().integers(0, 16, (count, *IMAGE), np.uint8)


def _files(folder: Path) -> list[str]:
    return sorted(os.fspath(path) for path in folder.iterdir())


def _stacked(samples: list[Batch]) -> Batch:
    return {name: np.stack([one[name] for one in samples]) for name in samples[0]}


# One .npy, its rows the samples.


def _make_npy(folder: Path) -> None:
    np.save(folder / "images.npy", _images(10_000))


def _read_npy(folder: Path) -> Read:
    mapped = np.load(folder / "images.npy", mmap_mode="r")
    return lambda rows: {"data": mapped[rows]}


# Raw numbers.


def _make_raw(folder: Path) -> None:
    _rng().integers(0, 50_000, (10_000, 512), np.uint16).tofile(folder / "tokens.bin")


def _open_raw(folder: Path) -> ndfeed.Dataset:
    return ndfeed.open(folder / "tokens.bin", dtype="uint16", shape=512, cache=False)


def _read_raw(folder: Path) -> Read:
    mapped = np.memmap(folder / "tokens.bin", np.uint16, "r").reshape(-1, 512)
    return lambda rows: {"data": np.array(mapped[rows])}


# A sample in each file.


def _make_npz(folder: Path) -> None:
    for i, image in enumerate(_images(500)):
        np.savez(folder / f"{i:04}.npz", image=image, label=i)


def _make_gz(folder: Path) -> None:
    for i, image in enumerate(_images(300)):
        with gzip.open(folder / f"{i:04}.npy.gz", "wb", compresslevel=6) as file:
            np.save(file, image)


def _make_ragged(folder: Path) -> None:
    lengths = _rng().integers(10, 100, 1000).tolist()
    for i, length in enumerate(lengths):
        np.save(folder / f"{i:04}.npy", np.full((length, 16), i, np.float32))


def _make_pt(folder: Path) -> None:
    import torch  # noqa: PLC0415  not everybody has it

    for i, image in enumerate(_images(200)):
        torch.save({"image": torch.from_numpy(image), "label": i}, folder / f"{i:04}.pt")


def _open_files(folder: Path) -> ndfeed.Dataset:
    return ndfeed.open(folder, sample="file", cache=False)


def _read_npz(folder: Path) -> Read:
    files = _files(folder)
    return lambda rows: _stacked([dict(np.load(files[row])) for row in rows])


def _read_gz(folder: Path) -> Read:
    files = _files(folder)

    def one(row: int) -> NDArray[Any]:
        with gzip.open(files[row]) as file:
            return np.asarray(np.load(file))

    return lambda rows: {"data": np.stack([one(row) for row in rows])}


def _read_ragged(folder: Path) -> Read:
    files = _files(folder)
    return lambda rows: {"data": [np.load(files[row]) for row in rows]}


def _read_pt(folder: Path) -> Read:
    import torch  # noqa: PLC0415  not everybody has it

    files = _files(folder)

    def one(row: int) -> Batch:
        held = torch.load(files[row], weights_only=True)
        return {"image": held["image"].numpy(), "label": held["label"]}

    return lambda rows: _stacked([one(row) for row in rows])


# Some files with many rows each. Read as one would by hand: each file once a batch.

_PER_FILE = 400


def _make_deflated(folder: Path) -> None:
    for i, part in enumerate(np.split(_images(4 * _PER_FILE), 4)):
        labels = np.arange(i * _PER_FILE, (i + 1) * _PER_FILE)
        np.savez_compressed(folder / f"{i}.npz", image=part, label=labels)


def _make_safetensors(folder: Path) -> None:
    from safetensors.numpy import save_file  # noqa: PLC0415  not everybody has it

    for i, part in enumerate(np.split(_images(4 * _PER_FILE), 4)):
        save_file({"image": np.ascontiguousarray(part)}, folder / f"{i}.safetensors")


def _open_rows(folder: Path) -> ndfeed.Dataset:
    return ndfeed.open(folder, sample="row", cache=False)


def _by_file(folder: Path, load: Callable[[str], Batch]) -> Read:
    files = _files(folder)

    def read(rows: Rows) -> Batch:
        batch: Batch = {}
        for number in np.unique(rows // _PER_FILE):
            at = np.flatnonzero(rows // _PER_FILE == number)
            for name, array in load(files[number]).items():
                out = batch.setdefault(name, np.empty((len(rows), *array.shape[1:]), array.dtype))
                out[at] = array[rows[at] % _PER_FILE]
        return batch

    return read


def _read_deflated(folder: Path) -> Read:
    return _by_file(folder, lambda path: dict(np.load(path)))


def _read_safetensors(folder: Path) -> Read:
    from safetensors.numpy import load_file  # noqa: PLC0415  not everybody has it

    return _by_file(folder, load_file)


def _open_npy(folder: Path) -> ndfeed.Dataset:
    return ndfeed.open(folder / "images.npy", cache=False)


PEERS = (
    Peer("one .npy", "memory map", _make_npy, _open_npy, _read_npy),
    Peer("raw .bin", "memory map", _make_raw, _open_raw, _read_raw),
    Peer("npz files", "np.load", _make_npz, _open_files, _read_npz),
    Peer("deflated rows", "np.load", _make_deflated, _open_rows, _read_deflated),
    Peer("npy.gz files", "np.load", _make_gz, _open_files, _read_gz),
    Peer("ragged files", "np.load", _make_ragged, _open_files, _read_ragged),
    Peer(
        "safetensors",
        "load_file",
        _make_safetensors,
        _open_rows,
        _read_safetensors,
        "safetensors",
    ),
    Peer("pt files", "torch.load", _make_pt, _open_files, _read_pt, "torch"),
)
