"""How can a memmap be used for training? One answer: processes that put batches in a queue.

By hand, the batches are divided among processes, every batch is pickled into a pipe and unpickled
again, nothing is shuffled, and leaving the loop early means ending the processes yourself. A
loader replaces the queue: threads prefetch batches, copied once, from the map into the tensor.
"""

import multiprocessing

import numpy as np
import torch
from side_by_side import compare, start

import ndfeed
import ndfeed.torch

BATCH, WORKERS, AHEAD = 32, 2, 8
SHAPE = (3, 32, 32)


def make(path, samples):
    """Write a raw file, as np.memmap does; it does not record its dtype and shape."""
    rows = np.memmap(path, np.float32, "w+", shape=(samples, *SHAPE))
    rng = np.random.default_rng(0)
    for at in range(0, samples, 1000):
        rows[at : at + 1000] = rng.random((min(1000, samples - at), *SHAPE), np.float32)
    rows.flush()


def fill(queue, path, starts):
    """Put some of the batches in the queue, then None; runs in a process of its own."""
    rows = np.memmap(path, np.float32, "r").reshape(-1, *SHAPE)
    for at in starts:
        queue.put(np.array(rows[at : at + BATCH]))
    queue.put(None)


class Queue:
    """An epoch of batches, in the order in which the processes finish them."""

    def __init__(self, path, samples):
        self.path, self.starts = path, range(0, samples, BATCH)

    def __iter__(self):
        queue = multiprocessing.Queue(AHEAD)
        processes = [
            multiprocessing.Process(target=fill, args=(queue, self.path, self.starts[i::WORKERS]))
            for i in range(WORKERS)
        ]
        for process in processes:
            process.start()
        left = WORKERS
        while left:
            batch = queue.get()
            if batch is None:
                left -= 1
            else:
                yield torch.from_numpy(batch)
        for process in processes:
            process.join()


def main(folder, samples):
    path = folder / "images.dat"
    make(path, samples)
    ds = ndfeed.open(path, dtype="float32", shape=SHAPE)  # the shape of one sample
    ways = {
        "processes and a queue, in sequence": Queue(path, samples),
        "ndfeed.torch.loader, in sequence": ndfeed.torch.loader(ds, BATCH, fields=("data",)),
        "ndfeed.torch.loader, shuffled": ndfeed.torch.loader(
            ds, BATCH, shuffle=True, fields=("data",)
        ),
    }
    compare("One raw file", ways)


if __name__ == "__main__":
    start(main, samples=4000)
