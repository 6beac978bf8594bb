"""How can samples that are scattered over many files be loaded by one index?

Files of different lengths, some .npy and some .pt, in several folders. ndfeed knows every length
from the headers, so sample 1234 is found without opening, let alone loading, the files before
it, and a shuffled batch reads only its own rows.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

import ndfeed


def make(folder):
    """Files of 1 to 200 rows; returns all rows in the order of the files' names."""
    rng = np.random.default_rng(0)
    parts = []
    for i in range(40):
        rows = rng.normal(size=(int(rng.integers(1, 200)), 16)).astype(np.float32)
        below = folder / f"day_{i // 10}"
        below.mkdir(exist_ok=True)
        if i % 2:
            np.save(below / f"part_{i}.npy", rows)
        else:
            torch.save(torch.from_numpy(rows), below / f"part_{i}.pt")
        parts.append(rows)
    return np.concatenate(parts)


def main():
    with tempfile.TemporaryDirectory() as name:
        everything = make(Path(name))

        ds = ndfeed.open(name, sample="row")  # in natural order: part_2 before part_10
        assert len(ds) == len(everything)

        order = np.random.default_rng(1).permutation(len(ds))
        for start in range(0, len(ds), 256):
            rows = order[start : start + 256]
            assert (ds[rows]["data"] == everything[rows]).all()

        train, test = ds.split(0.9, seed=0)
        assert len(train) + len(test) == len(ds)
        print(f"{len(ds):,} rows of {len(ds.files)} files in any order, {len(test)} kept for tests")


if __name__ == "__main__":
    main()
