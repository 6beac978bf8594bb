"""How can a raw memory-mapped file be used for training?

Tokens as language models are trained on them: one long file of uint16 and nothing else. ndfeed
maps it, gathers a batch with one copy, and gives memory of your own, so nothing of the map is
left in what you keep and nobody writes to the file by mistake.
"""

import tempfile
from pathlib import Path

import numpy as np

import ndfeed

CONTEXT = 64


def make(path):
    """Some tokens, as np.memmap writes them."""
    tokens = np.random.default_rng(0).integers(0, 50_257, 1000 * (CONTEXT + 1)).astype(np.uint16)
    written = np.memmap(path, np.uint16, "w+", shape=tokens.shape)
    written[:] = tokens
    written.flush()
    return tokens.reshape(-1, CONTEXT + 1)


def next_token(batch):
    """What a model reads, and what it is to say."""
    tokens = batch["data"].astype(np.int64)
    return {"x": tokens[:, :-1], "y": tokens[:, 1:]}


def main():
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "train.bin"
        windows = make(path)

        # The file does not say what it holds: give the dtype, and the shape of one sample.
        ds = ndfeed.open(path, dtype="uint16", shape=(CONTEXT + 1,)).map(next_token)

        first = set()
        for batch in ndfeed.loader(ds, 100, shuffle=True):
            assert (batch["y"][:, :-1] == batch["x"][:, 1:]).all()
            first.update(map(tuple, batch["x"][:, :8].tolist()))

        assert first == set(map(tuple, windows[:, :8].tolist()))
        print(f"{len(ds):,} windows of {CONTEXT} tokens from one raw file, shuffled")


if __name__ == "__main__":
    main()
