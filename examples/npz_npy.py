"""How can .npz files be read with several workers? One answer: convert them to .npy first.

The same folder is read three times, with one compressed sample per file. ``np.load`` in the
workers of a DataLoader decompresses every sample again, in Python. Converted to .npy, nothing needs
decompressing, but there are two files per sample, each opened, read and sent to the main process
separately. ndfeed reads the .npz files as they are: in threads, a batch at a time, without sending.
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
        image = rng.integers(0, 64, (32, 32, 3), np.uint8)
        np.savez_compressed(folder / f"{i:07}.npz", image=image, label=i)


def to_npy(source, target):
    """Write each array to a file of its own; done once, before training."""
    target.mkdir()
    for path in source.glob("*.npz"):
        with np.load(path) as arrays:
            for name in arrays:
                np.save(target / f"{path.stem}_{name}.npy", arrays[name])


class Npz(Dataset):
    """The first attempt: np.load for every sample."""

    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.npz"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with np.load(self.paths[i]) as arrays:
            return torch.from_numpy(arrays["image"]), int(arrays["label"])


class Npy(Npz):
    """The second attempt: load the converted files."""

    def __init__(self, folder):
        self.paths = sorted(folder.glob("*_image.npy"))

    def __getitem__(self, i):
        label = str(self.paths[i]).replace("_image", "_label")
        return torch.from_numpy(np.load(self.paths[i])), int(np.load(label))


def main(folder, samples):
    files, converted = folder / "npz", folder / "npy"
    files.mkdir()
    make(files, samples)
    seconds = once(to_npy, files, converted)

    words = {"batch_size": BATCH, "shuffle": True}
    workers = words | {"num_workers": WORKERS, "persistent_workers": True}
    ds = ndfeed.open(files, sample="file")
    fields = ("image", "label")
    # If you must keep the DataLoader: the same workers, but each batch is one read.
    kept = DataLoader(ndfeed.torch.dataset(ds, fields), collate_fn=ndfeed.torch.collate, **workers)

    ways = {
        "np.load of .npz in a DataLoader": DataLoader(Npz(files), **workers),
        f"np.load of .npy, converted in {seconds:.1f} s": DataLoader(Npy(converted), **workers),
        "ndfeed in a DataLoader, .npz as they are": kept,
        "ndfeed.torch.loader, .npz as they are": ndfeed.torch.loader(ds, fields=fields, **words),
    }
    compare("One sample in each .npz", ways)


if __name__ == "__main__":
    start(main, samples=400)
