"""How can many processes share one copy of data in memory?

Compressed files would be decoded again by every worker, and handing arrays to workers copies
them. ``in_memory`` decodes once; what travels to a worker is a handle of some hundred bytes, and
all of them map the same pages. It works the same whether workers are forked or spawned.
"""

import multiprocessing
import pickle
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

import ndfeed

WORKERS = 2


def make(folder):
    for i in range(4):
        x = np.arange(i * 500 * 64, (i + 1) * 500 * 64, dtype=np.int64).reshape(500, 64)
        np.savez_compressed(folder / f"{i}.npz", x=x)


def total(ds, rows):
    """Runs in a worker; ``ds`` came to it as a handle."""
    return int(ds[rows]["x"].sum())


def main():
    with tempfile.TemporaryDirectory() as name:
        make(Path(name))
        ds = ndfeed.open(name, sample="row").in_memory()
    # The files are gone by now. The samples are not.

    sent = len(pickle.dumps(ds))
    assert sent < 10_000 < ds.nbytes

    shares = np.array_split(np.random.default_rng(0).permutation(len(ds)), WORKERS)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=spawn) as pool:
        totals = list(pool.map(total, [ds] * WORKERS, shares))

    assert sum(totals) == sum(range(2000 * 64))
    print(f"{ds.nbytes:,} bytes shared by {WORKERS} workers; {sent:,} were sent to each")


if __name__ == "__main__":
    main()
