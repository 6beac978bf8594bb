"""How can samples be loaded that are scattered over many .npy files? With all of them mapped.

Each file holds one sample. By hand: a list of maps, one per file, made before training starts,
until the Linux limit of 65,530 maps is reached. ndfeed maps files only where it helps and reads
the others by position, many at a time, so it can handle millions of files.
"""

import numpy as np
import torch
from side_by_side import compare, once, start
from torch.utils.data import DataLoader, Dataset

import ndfeed
import ndfeed.torch

BATCH, WORKERS = 32, 2


def make(folder, samples):
    rng = np.random.default_rng(0)
    for i in range(samples):
        np.save(folder / f"{i:07}.npy", rng.random((32, 32, 3), np.float32))


class Mapped(Dataset):
    """Maps every file and keeps the maps."""

    def __init__(self, folder):
        paths = sorted(folder.glob("*.npy"))
        self.maps = [np.load(path, mmap_mode="r") for path in paths]

    def __len__(self):
        return len(self.maps)

    def __getitem__(self, i):
        return torch.tensor(self.maps[i])  # a copy: torch warns about read-only memory


def main(folder, samples):
    make(folder, samples)
    words = {"batch_size": BATCH, "shuffle": True}
    workers = {"num_workers": WORKERS, "persistent_workers": True}

    mapping = once(lambda: Mapped(folder))
    opening = once(lambda: ndfeed.open(folder, sample="file"))
    mapped = DataLoader(Mapped(folder), **words, **workers)
    ds = ndfeed.open(folder, sample="file")

    ways = {
        f"maps in a DataLoader, made in {mapping:.2f} s": mapped,
        f"ndfeed.torch.loader, opened in {opening:.2f} s": ndfeed.torch.loader(
            ds, fields=("data",), **words
        ),
    }
    compare("One sample in each .npy", ways)


if __name__ == "__main__":
    start(main, samples=600)
