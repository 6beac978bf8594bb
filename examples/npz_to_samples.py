"""How can .npz files be read with several workers in a PyTorch DataLoader?

A folder with one sample in each .npz, as it is: nothing is converted first. The adapter has
``__getitems__``, so that DataLoader asks for a whole batch at a time and each worker reads it in
one call, straight into the arrays that become tensors.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import ndfeed

COUNT = 300


class Samples(Dataset):
    """An ndfeed dataset as DataLoader wants it."""

    def __init__(self, ds):
        self.ds = ds

    def __len__(self):
        return len(self.ds)

    def __getitems__(self, rows):
        return self.ds.read(rows)


def to_tensors(batch):
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def make(folder):
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        image = rng.integers(0, 256, (3, 32, 32), np.uint8)
        image[0, 0, 0] = i % 256  # so that image and label can be told to belong together
        np.savez_compressed(folder / f"{i}.npz", image=image, label=i)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)

        ds = ndfeed.open(folder)
        loader = DataLoader(
            Samples(ds), batch_size=32, shuffle=True, num_workers=2, collate_fn=to_tensors
        )

        seen = []
        for batch in loader:
            assert batch["image"].shape[1:] == (3, 32, 32)
            assert torch.equal(batch["image"][:, 0, 0, 0].long(), batch["label"] % 256)
            seen += batch["label"].tolist()

        assert sorted(seen) == list(range(COUNT))
        assert seen != list(range(COUNT))
        print(f"{len(seen)} samples from {len(ds.files)} files, shuffled, through 2 workers")


if __name__ == "__main__":
    main()
