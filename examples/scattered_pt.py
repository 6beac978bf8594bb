"""How can samples be loaded that are scattered over many .pt files? The first attempt.

A map-style Dataset that searches the files for every sample loads half of all the data, on
average, to return one row. ndfeed knows the rows of each file from its header and reads rows, not
files; nothing is unpickled. See scattered_indexed.py for an index of rows, and
torch_scattered_pt.py for training on sequences of different lengths.
"""

import torch
from side_by_side import compare, start
from torch.utils.data import DataLoader, Dataset

import ndfeed
import ndfeed.torch

BATCH, WORKERS = 32, 2
FILES, WIDTH = 10, 64


def make(folder, samples):
    torch.manual_seed(0)
    for i, rows in enumerate(torch.randn(samples, WIDTH).tensor_split(FILES)):
        torch.save(rows.clone(), folder / f"{i:03}.pt")  # a view would save all rows every time


class PerFile(Dataset):
    """Searches for each sample, starting with the first file."""

    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.pt"))
        self.samples = sum(len(torch.load(path)) for path in self.paths)

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        for path in self.paths:
            rows = torch.load(path)
            if i < len(rows):
                return rows[i]
            i -= len(rows)
        raise IndexError(i)


def main(folder, samples):
    make(folder, samples)
    words = {"batch_size": BATCH, "shuffle": True}
    workers = {"num_workers": WORKERS, "persistent_workers": True}

    ds = ndfeed.open(folder, sample="row")  # a sample is a row here, not a file
    assert len(ds) == samples

    ways = {
        "torch.load of one file after another": DataLoader(PerFile(folder), **words, **workers),
        "ndfeed.torch.loader": ndfeed.torch.loader(ds, fields=("data",), **words),
    }
    compare(f"Rows of {FILES} .pt files", ways)


if __name__ == "__main__":
    start(main, samples=200)
