"""How is a model trained on one .npy that is larger than memory?

The file is never loaded: each batch copies its rows out of it, in an exact random order, within
a memory limit. The rows of coming batches are prefetched from the disk.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import ndfeed
import ndfeed.torch

ROWS, WIDTH = 20_000, 256  # imagine a thousand times as many


def make(path):
    """Write rows whose first number is the sum of the others, apart from noise."""
    rng = np.random.default_rng(0)
    rows = np.lib.format.open_memmap(path, "w+", np.float16, (ROWS, WIDTH))
    for start in range(0, ROWS, 1000):
        part = rng.normal(size=(1000, WIDTH))
        part[:, 0] = part[:, 1:].sum(1) / WIDTH**0.5
        rows[start : start + 1000] = part
    rows.flush()


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows.npy"
        make(path)

        loader = ndfeed.torch.loader(
            ndfeed.open(path),
            256,
            shuffle=True,  # or ndfeed.Blocks(), if the disk is slow at reading single rows
            memory="4MB",
            fields=("data",),
            convert={"data": ndfeed.torch.Convert(torch.float32)},
        )
        model = nn.Linear(WIDTH - 1, 1)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        losses = []
        for _ in range(3):
            for (rows,) in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(rows[:, 1:]), rows[:, :1])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        report = loader.report()
        loader.close()

        assert losses[-1] < losses[0] / 10
        print(
            f"{len(losses)} batches out of {path.stat().st_size / 1e6:.0f} MB with "
            f"{report.memory / 1e6:.0f} MB of memory, loss {losses[0]:.2f} to {losses[-1]:.4f}"
        )


if __name__ == "__main__":
    main()
