"""How can samples be loaded that are scattered over many .pt files? With an index of rows.

The files have different lengths and lie in several folders. By hand: add up how many rows each
has, which means loading all of them once, and find the file of a sample by bisection. Each sample
still loads an entire file, unless it is mapped. ndfeed builds this index from headers, caches it
for the next run, and copies the rows of a batch together.
"""

from bisect import bisect
from itertools import accumulate

import torch
from side_by_side import compare, start
from torch.utils.data import DataLoader, Dataset

import ndfeed
import ndfeed.torch

BATCH, WORKERS = 32, 2
FILES, WIDTH = 20, 64


def make(folder, samples):
    """Write files of different lengths, ten per folder."""
    torch.manual_seed(0)
    cuts = torch.randperm(samples - 1)[: FILES - 1].sort().values + 1
    for i, rows in enumerate(torch.randn(samples, WIDTH).tensor_split(cuts)):
        (folder / f"day_{i // 10}").mkdir(exist_ok=True)
        torch.save(rows.clone(), folder / f"day_{i // 10}" / f"part_{i}.pt")


class Indexed(Dataset):
    """Finds the file at once and loads it; ``mmap`` helps where files are large."""

    def __init__(self, folder, mmap):
        self.paths, self.mmap = sorted(folder.rglob("*.pt")), mmap
        self.ends = list(accumulate(len(torch.load(path)) for path in self.paths))

    def __len__(self):
        return self.ends[-1]

    def __getitem__(self, i):
        at = bisect(self.ends, i)
        rows = torch.load(self.paths[at], mmap=self.mmap)
        return rows[i - self.ends[at]].clone()  # a negative index, from the file's end


def main(folder, samples):
    make(folder, samples)
    words = {"batch_size": BATCH, "shuffle": True}
    workers = words | {"num_workers": WORKERS, "persistent_workers": True}

    ds = ndfeed.open(folder, sample="row")  # in natural order: part_2 before part_10
    train, test = ds.split(0.9, seed=0)
    assert len(train) + len(test) == samples

    ways = {
        "index and torch.load": DataLoader(Indexed(folder, mmap=False), **workers),
        "index and torch.load(mmap=True)": DataLoader(Indexed(folder, mmap=True), **workers),
        "ndfeed.torch.loader": ndfeed.torch.loader(ds, fields=("data",), **words),
    }
    compare(f"Rows of {FILES} .pt files of different lengths", ways)


if __name__ == "__main__":
    start(main, samples=600)
