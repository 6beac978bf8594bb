"""How are samples of a memmap augmented for training?

The usual way augments each image separately in the workers of a DataLoader, with random generators
that every worker has to seed. ndfeed's threads prefetch and augment batches. The random numbers
depend only on the seed and the position in the order, so they are the same with any number of
threads and after a resume (see torch_resume.py). The memory-mapped file is never written to.
"""

import numpy as np
import torch
from side_by_side import compare, start
from torch.utils.data import DataLoader, Dataset

import ndfeed
import ndfeed.torch

BATCH, WORKERS = 50, 2
SHAPE = (32, 32, 3)


def make(path, samples):
    """Write images to one .npy, as np.save does."""
    np.save(path, np.random.default_rng(0).integers(0, 255, (samples, *SHAPE), np.uint8))


class Augmented(Dataset):
    """Each image is flipped half the time, shifted by up to two pixels and scaled to [0, 1]."""

    def __init__(self, path):
        self.images = np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = torch.tensor(self.images[i])
        if torch.rand(()) < 0.5:
            image = image.flip(1)
        shifts = torch.randint(-2, 3, (2,)).tolist()
        return image.roll(shifts, (0, 1)).float() / 255


def augmented(batch, rng):
    """Do the same for a batch; all its images are shifted by the same amount."""
    images = batch["data"]  # a copy, so it may be modified
    flip = rng.random(len(images)) < 0.5
    images[flip] = images[flip, :, ::-1]
    images = np.roll(images, rng.integers(-2, 3, 2), axis=(1, 2))
    return {"image": images.astype(np.float32) / 255}


def brightness(batch):
    """Return what neither a flip nor a shift changes: the sum of each image."""
    image = batch[0] if isinstance(batch, tuple) else batch
    return (image * 255).round().sum((1, 2, 3), dtype=torch.float64)


def main(folder, samples):
    path = folder / "images.npy"
    make(path, samples)
    words = {"batch_size": BATCH, "shuffle": True}
    workers = {"num_workers": WORKERS, "persistent_workers": True}

    ds = ndfeed.open(path).map(augmented)
    first, again = (
        next(iter(ndfeed.torch.loader(ds, seed=1, threads=threads, **words))) for threads in (1, 2)
    )
    assert torch.equal(first["image"], again["image"])

    ways = {
        "augmented one by one in a DataLoader": DataLoader(Augmented(path), **words, **workers),
        "ndfeed.torch.loader, augmented in batches": ndfeed.torch.loader(
            ds, fields=("image",), **words
        ),
    }
    compare("Flipped, shifted and scaled", ways, look=brightness)


if __name__ == "__main__":
    start(main, samples=2000)
