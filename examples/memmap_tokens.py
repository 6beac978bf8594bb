"""How can a raw memory-mapped file be used for training?

The file holds tokens for a language model: one long sequence of uint16 and nothing else. ndfeed
maps it, gathers each batch with one copy, and returns memory of your own: arrays you keep do not
keep the map open, and nothing can write to the file by mistake.
"""

import tempfile
from pathlib import Path

import numpy as np

import ndfeed

CONTEXT = 64


def make(path):
    """Write some tokens, as np.memmap does."""
    tokens = np.random.default_rng(0).integers(0, 50_257, 1000 * (CONTEXT + 1)).astype(np.uint16)
    written = np.memmap(path, np.uint16, "w+", shape=tokens.shape)
    written[:] = tokens
    written.flush()
    return tokens.reshape(-1, CONTEXT + 1)


def next_token(batch):
    """Return the model's input and the tokens it should predict."""
    tokens = batch["data"].astype(np.int64)
    return {"x": tokens[:, :-1], "y": tokens[:, 1:]}


def main():
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "train.bin"
        windows = make(path)

        # The file does not record its contents: give the dtype and the shape of one sample.
        ds = ndfeed.open(path, dtype="uint16", shape=(CONTEXT + 1,)).map(next_token)

        first = set()
        for batch in ndfeed.loader(ds, 100, shuffle=True):
            assert (batch["y"][:, :-1] == batch["x"][:, 1:]).all()
            first.update(map(tuple, batch["x"][:, :8].tolist()))

        assert first == set(map(tuple, windows[:, :8].tolist()))
        print(f"{len(ds):,} windows of {CONTEXT} tokens from one raw file, shuffled")


if __name__ == "__main__":
    main()
