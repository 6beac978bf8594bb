"""How can .npz files be read with several workers? Another answer: memory-mapped files.

By hand: one raw file per sample, and code that knows where each array is in it. A wrong offset
gives wrong images and no error. ``ndfeed.pack`` writes one mapped column per field, with names,
dtypes and checksums; it can be interrupted and resumed, and ``ndfeed verify`` checks the result.
"""

import mmap

import numpy as np
import torch
from side_by_side import compare, once, start
from torch.utils.data import DataLoader, Dataset

import ndfeed
import ndfeed.torch

BATCH, WORKERS = 32, 2
SIDE = 64


def make(folder, samples):
    rng = np.random.default_rng(0)
    for i in range(samples):
        image = rng.integers(0, 64, (SIDE, SIDE, 1), np.uint8)
        np.savez_compressed(folder / f"{i:07}.npz", image=image, label=np.int32(i))


def to_raw(source, target):
    """Write the bytes of both arrays one after the other; done once, before training."""
    target.mkdir()
    for path in source.glob("*.npz"):
        with np.load(path) as arrays:
            values = arrays["image"].tobytes() + arrays["label"].tobytes()
        (target / f"{path.stem}.dat").write_bytes(values)


class Mapped(Dataset):
    """Maps the file at each access: a million open maps are more than Linux allows."""

    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.dat"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with open(self.paths[i], "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        image = np.frombuffer(mapped, np.uint8, SIDE * SIDE).reshape(SIDE, SIDE, 1)
        label = np.frombuffer(mapped, np.int32, 1, SIDE * SIDE)
        return torch.tensor(image), torch.tensor(label[0])


def main(folder, samples):
    files, raw, columns = folder / "npz", folder / "raw", folder / "packed"
    files.mkdir()
    make(files, samples)
    by_hand = once(to_raw, files, raw)
    ds = ndfeed.open(files, sample="file")
    packing = once(ndfeed.pack, ds, columns)

    words = {"batch_size": BATCH, "shuffle": True}
    workers = words | {"num_workers": WORKERS, "persistent_workers": True}
    ours = words | {"fields": ("image", "label")}
    packed = ndfeed.torch.loader(ndfeed.open(columns), **ours)

    ways = {
        f"mmap in a DataLoader, converted in {by_hand:.1f} s": DataLoader(Mapped(raw), **workers),
        "ndfeed.torch.loader, .npz as they are": ndfeed.torch.loader(ds, **ours),
        f"ndfeed.torch.loader, packed in {packing:.1f} s": packed,
    }
    compare("A raw file for each .npz", ways)


if __name__ == "__main__":
    start(main, samples=400)
