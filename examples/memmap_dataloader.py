"""How can a memmap be used for training? Another answer: a Dataset around it, in a DataLoader.

Samples are copied out of the map one by one, stacked into batches, and sent to the main process. A
faster way by hand is ``__getitems__``, with which DataLoader asks for a batch at a time. ndfeed
copies a batch out of the map at once, ahead of use, in threads or in the DataLoader you have.
"""

import numpy as np
import torch
from side_by_side import compare, start
from torch.utils.data import DataLoader, Dataset

import ndfeed
import ndfeed.torch

BATCH, WORKERS = 32, 2
SHAPE = (3, 32, 32)


def make(path, samples):
    """Write a raw file, as np.memmap does; it does not record its dtype and shape."""
    rows = np.memmap(path, np.float32, "w+", shape=(samples, *SHAPE))
    rng = np.random.default_rng(0)
    for at in range(0, samples, 1000):
        rows[at : at + 1000] = rng.random((min(1000, samples - at), *SHAPE), np.float32)
    rows.flush()


class Memmap(Dataset):
    """One sample at a time."""

    def __init__(self, path):
        self.rows = np.memmap(path, np.float32, "r").reshape(-1, *SHAPE)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return torch.tensor(self.rows[i])  # a copy: torch warns about read-only memory


class Batches(Memmap):
    """One batch at a time."""

    def __getitems__(self, rows):
        return torch.from_numpy(self.rows[rows])


def main(folder, samples):
    path = folder / "images.dat"
    make(path, samples)
    ds = ndfeed.open(path, dtype="float32", shape=SHAPE)  # the shape of one sample

    words = {"batch_size": BATCH, "shuffle": True}
    workers = words | {"num_workers": WORKERS, "persistent_workers": True}
    kept = DataLoader(
        ndfeed.torch.dataset(ds, ("data",)), collate_fn=ndfeed.torch.collate, **workers
    )
    whole = DataLoader(Batches(path), collate_fn=lambda batch: batch, **workers)

    ways = {
        "memmap in a DataLoader": DataLoader(Memmap(path), **workers),
        "the same, with __getitems__": whole,
        "ndfeed in a DataLoader": kept,
        "ndfeed.torch.loader": ndfeed.torch.loader(ds, fields=("data",), **words),
    }
    compare("One raw file, shuffled", ways)


if __name__ == "__main__":
    start(main, samples=2000)
