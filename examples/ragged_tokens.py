"""How can texts of different lengths be read from one array of tokens?

The texts lie end to end in one ``.npy``, and a second one has their offsets: the layout of
tokenized datasets. The usual Dataset slices the map once for each text, pads in ``collate_fn``, and
sends batches to the main process. ndfeed reads both files in place, many texts at a time. The
``.bin`` and ``.idx`` files of Megatron-LM hold the same: ``ndfeed.open("corpus.idx")`` opens them.
"""

import numpy as np
import torch
from side_by_side import compare, start
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import ndfeed
import ndfeed.torch

BATCH, WORKERS, LONGEST = 64, 2, 200


def make(folder, samples):
    """Write tokens and offsets."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, LONGEST + 1, samples)
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
    loader = ndfeed.torch.loader(ds, BATCH, shuffle=True, ragged="pad", fields=fields, device="cpu")

    assert ds.lengths("data").max() <= LONGEST  # from the offsets: no text is read
    ways = {f"DataLoader, {WORKERS} workers": usual, "ndfeed.torch.loader": loader}
    compare("texts in one array", ways, texts_of)


if __name__ == "__main__":
    start(main, 5000)
