"""Functions for ``ndfeed bench --map``: importable, as a user's own are."""

import numpy as np

NUMBER = 7


def slow(batch):
    """Sample by sample, as people do: the interpreter's lock is held all the while."""
    return batch | {"x": np.stack([sum(np.sqrt(row) for _ in range(40)) for row in batch["x"]])}


def broken(batch):
    return batch["nope"]


def late(batch):
    """Wrong in the middle of an epoch."""
    if (batch["y"] == 3210).any():
        raise RuntimeError("of one batch only")
    return batch
