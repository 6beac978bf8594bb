"""How can batches of texts have equally many tokens, and little padding?

The usual ``DataLoader`` makes batches of a fixed number of random texts, and each is padded to its
longest text: most of what a GPU computes is padding, and the batch size must be small enough for
the longest texts there are. With ``tokens=``, ndfeed batches texts of similar length, many short
ones or few long ones, so that every batch has about as many tokens and hardly any padding. The
number of batches is known before, it is the same on every rank, and runs resume exactly.
"""

import numpy as np
import torch
from side_by_side import compare, start
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import ndfeed
import ndfeed.torch

TOKENS, LONGEST, WORKERS = 8192, 512, 2
BATCH = TOKENS // LONGEST  # what fits if all texts of a batch may be long


def make(folder, samples):
    """Write tokens and offsets; most texts are short and some are long."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4, 0.8, samples).astype(int), 1, LONGEST)
    offsets = np.insert(np.cumsum(lengths), 0, 0)
    np.save(folder / "tokens.npy", rng.integers(0, 50_257, offsets[-1]).astype(np.int32))
    np.save(folder / "offsets.npy", offsets)


class Texts(Dataset):
    """One text at a time."""

    def __init__(self, folder):
        self.tokens = np.load(folder / "tokens.npy", mmap_mode="r")
        self.offsets = np.load(folder / "offsets.npy")

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, i):
        text = self.tokens[self.offsets[i] : self.offsets[i + 1]]
        return torch.tensor(text)  # a copy: torch warns about read-only memory


def pad(texts):
    """Make a batch of texts as long as the longest."""
    return pad_sequence(texts, batch_first=True), torch.tensor([len(text) for text in texts])


def texts_of(batch):
    """Return what is compared: the texts, padded to the same length in all batches."""
    tokens, length = batch
    return torch.nn.functional.pad(tokens, (0, LONGEST - tokens.shape[1])), length


def padding_of(loader):
    """Measure how many batches there are, and how much of them is padding."""
    sizes = [(tokens.numel(), int(length.sum())) for tokens, length in loader]
    padded, real = map(sum, zip(*sizes, strict=True))
    return len(sizes), 1 - real / padded


def main(folder, samples):
    make(folder, samples)
    usual = DataLoader(
        Texts(folder),
        BATCH,
        shuffle=True,
        collate_fn=pad,
        num_workers=WORKERS,
        persistent_workers=True,
    )

    ds = ndfeed.open(folder / "tokens.npy", offsets=folder / "offsets.npy")
    fields = ("data", "data_length")
    loader = ndfeed.torch.loader(ds, tokens=TOKENS, shuffle=True, ragged="pad", fields=fields)
    estimated = loader.order.padding  # computed from the lengths: nothing is read

    ways = {f"DataLoader, {WORKERS} workers": usual, "ndfeed.torch.loader(tokens=)": loader}
    compare("texts within a budget of tokens", ways, texts_of)
    for name, way in ways.items():
        count, padding = padding_of(way)
        print(f"  {name:50} {count:,} batches, {padding:.0%} of them padding")
    assert padding < 0.2
    assert abs(padding - estimated) < 0.05
    assert count == len(loader)


if __name__ == "__main__":
    start(main, 5000)
