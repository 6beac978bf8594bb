"""How does a run that was stopped in the middle of an epoch resume?

The loader's state is a few hundred bytes in the checkpoint. Loading it costs nothing, wherever
in the epoch it was saved, and random transforms continue as they would have. The weights are
therefore the same as those of an uninterrupted run, bit for bit.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import ndfeed
import ndfeed.torch

EPOCHS = 3


def make(path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 8)).astype(np.float32)
    np.savez(path, x=x, y=x[:, :1] * 2)


def noisy(batch):
    """Add noise, as transforms do; the loader's seed and the position fix the random numbers."""
    return batch | {"x": batch["x"] + 0.1 * torch.randn_like(batch["x"])}


class Run:
    """A model in training, with its loader and optimizer."""

    def __init__(self, path):
        torch.manual_seed(0)
        ds = ndfeed.torch.map(ndfeed.open(path), noisy)
        self.loader = ndfeed.torch.loader(ds, 32, shuffle=True, seed=5)
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)

    def parts(self):
        return {"loader": self.loader, "model": self.model, "optimizer": self.optimizer}

    def train(self, save=None, at=None):
        """Train to the end, or up to step ``at`` and save a checkpoint there."""
        step = 0
        while self.loader.epoch < EPOCHS:
            for batch in self.loader:
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.model(batch["x"]), batch["y"]).backward()
                self.optimizer.step()
                step += 1
                if step == at:
                    torch.save({n: part.state_dict() for n, part in self.parts().items()}, save)
                    return step
        return step

    def load(self, path):
        for name, state in torch.load(path, weights_only=True).items():
            self.parts()[name].load_state_dict(state)


def main():
    with tempfile.TemporaryDirectory() as name:
        data, checkpoint = Path(name) / "data.npz", Path(name) / "checkpoint.pt"
        make(data)

        whole = Run(data)
        steps = whole.train()

        stopped = Run(data).train(checkpoint, at=45)  # within the second epoch
        resumed = Run(data)
        resumed.load(checkpoint)
        rest = resumed.train()

        assert stopped + rest == steps
        assert torch.equal(whole.model.weight, resumed.model.weight)
        print(f"{stopped} steps, a stop, {rest} more: the same weights as after {steps} in one go")


if __name__ == "__main__":
    main()
