"""How can .npz files be read with several workers? A third answer: decode once, share memory.

By hand, everything is loaded and copied to a shared array whose size must be known, and that array
must be passed to workers in the right way, or each gets a copy. Samples still travel one by one.
``in_memory`` decodes in threads, directly into memory that all processes share, whether forked or
spawned: a worker is sent only a handle of a few hundred bytes.
"""

import multiprocessing
import pickle

import numpy as np
import torch
from side_by_side import compare, once, start
from torch.utils.data import DataLoader, Dataset

import ndfeed
import ndfeed.torch

BATCH, WORKERS = 32, 2
SHAPE = (32, 32, 3)


def make(folder, samples):
    rng = np.random.default_rng(0)
    for i in range(samples):
        image = rng.integers(0, 64, SHAPE, np.uint8)
        np.savez_compressed(folder / f"{i:07}.npz", image=image, label=i)


class Shared(Dataset):
    """All images in one array that workers inherit, and the labels in another."""

    def __init__(self, folder):
        paths = sorted(folder.glob("*.npz"))
        size = int(np.prod(SHAPE))
        images = multiprocessing.RawArray("B", len(paths) * size)
        self.images = np.frombuffer(images, np.uint8).reshape(-1, *SHAPE)
        self.labels = np.frombuffer(multiprocessing.RawArray("q", len(paths)), np.int64)
        for i, path in enumerate(paths):
            with np.load(path) as arrays:
                self.images[i], self.labels[i] = arrays["image"], arrays["label"]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i]), int(self.labels[i])


def main(folder, samples):
    make(folder, samples)
    by_hand = once(lambda: Shared(folder))
    ds = ndfeed.open(folder, sample="file")
    seconds = once(lambda: ds.in_memory())
    held = ds.in_memory()
    assert len(pickle.dumps(held)) < 10_000 < held.nbytes  # what a spawned worker would be sent

    words = {"batch_size": BATCH, "shuffle": True}
    workers = words | {"num_workers": WORKERS, "persistent_workers": True}
    fields = ("image", "label")
    kept = DataLoader(
        ndfeed.torch.dataset(held, fields), collate_fn=ndfeed.torch.collate, **workers
    )

    ways = {
        f"RawArray in a DataLoader, filled in {by_hand:.1f} s": DataLoader(
            Shared(folder), **workers
        ),
        "ndfeed in_memory in a DataLoader": kept,
        f"ndfeed.torch.loader, in_memory in {seconds:.1f} s": ndfeed.torch.loader(
            held, fields=fields, **words
        ),
    }
    compare("One copy in memory for all workers", ways)


if __name__ == "__main__":
    start(main, samples=400)
