"""How is a model trained on samples scattered over many .pt files?

Each file is a dict saved by ``torch.save``: a sequence of some length, and a label. Nothing is
unpickled. Sequences of different lengths arrive end to end, with their offsets: no padding.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import ndfeed
import ndfeed.torch

COUNT = 300


def make(folder):
    """Write sequences of vectors, of two kinds with different means, in folders of a hundred."""
    torch.manual_seed(0)
    for i in range(COUNT):
        (folder / f"{i // 100}").mkdir(exist_ok=True)
        label = i % 2
        steps = torch.randn(int(torch.randint(5, 30, ())), 8) + label
        torch.save({"steps": steps, "label": torch.tensor(label)}, folder / f"{i // 100}/{i}.pt")


class Mean(nn.Module):
    """A layer applied to every step, and the mean over each sequence."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, steps, offsets):
        sums = torch.segment_reduce(torch.relu(self.layer(steps)), "mean", offsets=offsets)
        return self.out(sums)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)

        ds = ndfeed.open(folder, sample="file")
        # "nested" returns one torch.nested tensor; "pad" pads with zeros and adds the lengths.
        words = {"ragged": "packed", "fields": ("steps", "steps_offsets", "label")}
        loader = ndfeed.torch.loader(ds, 30, shuffle=True, **words)
        model = Mean()
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(4):
            right = 0
            for steps, offsets, label in loader:
                optimizer.zero_grad()
                guess = model(steps, offsets)
                nn.functional.cross_entropy(guess, label).backward()
                optimizer.step()
                right += int((guess.argmax(1) == label).sum())
        loader.close()

        assert right > 0.9 * COUNT
        print(f"{len(ds.files)} .pt files, sequences of 5 to 29 steps: {right} of {COUNT} right")


if __name__ == "__main__":
    main()
