"""How do I train a language model on random windows of one long file of tokens?

Compared with the ``get_batch`` that nanoGPT made popular: it maps the file anew for every batch,
slices one window after the other and stacks them. It also draws with replacement, so an epoch
leaves out a third of all windows; here both get the same windows, to be compared.
"""

import numpy as np
import torch
from side_by_side import compare, start

import ndfeed.torch

CONTEXT, BATCH = 256, 32


def get_batches(path, samples):
    """Batches of x and y, window by window."""
    rows = np.random.default_rng(0).permutation(samples)
    for at in range(0, samples, BATCH):
        data = np.memmap(path, np.uint16, "r")
        some = rows[at : at + BATCH]
        x = [torch.from_numpy(data[i : i + CONTEXT].astype(np.int64)) for i in some]
        y = [torch.from_numpy(data[i + 1 : i + 1 + CONTEXT].astype(np.int64)) for i in some]
        yield torch.stack(x), torch.stack(y)


class Repeated:
    """Can be iterated once per epoch."""

    def __init__(self, *args):
        self.args = args

    def __iter__(self):
        return get_batches(*self.args)


def to_long(batch):
    """Tokens as embeddings want them."""
    return {name: values.astype(np.int64) for name, values in batch.items()}


def main(folder, samples):
    path = folder / "train.bin"
    tokens = np.random.default_rng(1).integers(0, 50_257, samples + CONTEXT, np.uint16)
    tokens.tofile(path)

    ds = ndfeed.open(path, dtype="uint16", shape=()).windows(CONTEXT, offsets={"x": 0, "y": 1})
    loader = ndfeed.torch.loader(ds.map(to_long), BATCH, shuffle=True, fields=("x", "y"))

    ways = {"get_batch": Repeated(path, samples), "ndfeed": loader}
    compare("windows of one file of tokens", ways)


if __name__ == "__main__":
    start(main, samples=4_000)
