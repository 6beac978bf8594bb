"""How do labels from a CSV file get to the arrays they belong to?

By hand: a ``Dataset`` that reads the table, looks up the name of every file and loads it. A name
that is missing shows up in the middle of an epoch. ``with_labels`` joins table and files once, and
lists all names that are missing or doubled before training starts.
"""

import csv

import numpy as np
import torch
from side_by_side import compare, start
from torch.utils.data import DataLoader, Dataset

import ndfeed
import ndfeed.torch

BATCH, WORKERS = 32, 2
KINDS = ("cat", "dog", "eel")


def make(folder, samples):
    """Write one array per file, and a table of their labels in no order."""
    rng = np.random.default_rng(0)
    with open(folder / "labels.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["name", "age", "kind"])
        for i in rng.permutation(samples):
            np.save(folder / f"{i:07}.npy", np.full((32, 32), i, np.float32))
            table.writerow([f"{i:07}", int(i % 12), KINDS[i % len(KINDS)]])


class ByHand(Dataset):
    """Looks up the label of every sample by the name of its file."""

    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.npy"))
        with open(folder / "labels.csv", newline="") as file:
            kinds = {row["name"]: row["kind"] for row in csv.DictReader(file)}
        classes = sorted(set(kinds.values()))
        self.codes = {name: classes.index(kind) for name, kind in kinds.items()}

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        path = self.paths[i]
        return torch.from_numpy(np.load(path)), torch.tensor(self.codes[path.stem])


def main(folder, samples):
    make(folder, samples)
    ds = ndfeed.open(folder / "*.npy", sample="file")
    ds = ds.with_labels(folder / "labels.csv", column="kind", key="name")
    assert ds.classes["label"] == KINDS

    by_hand = DataLoader(ByHand(folder), BATCH, num_workers=WORKERS, persistent_workers=True)
    with ndfeed.torch.loader(ds, BATCH, fields=("data", "label")) as ours:
        ways = {"looked up for every sample": by_hand, "with_labels": ours}
        compare("labels from a CSV file", ways, in_order=True)


if __name__ == "__main__":
    start(main, samples=2000)
