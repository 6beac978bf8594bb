"""How is a model trained on a folder of .npz files?

There is one compressed file per sample, and nothing is converted first. Threads read and
decompress files ahead of training; bytes become fractions in the memory layout that convolutions
prefer.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import ndfeed
import ndfeed.torch

COUNT = 400


def make(folder):
    """Write images of two kinds: bright in the left half, or in the right."""
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        image = rng.integers(0, 100, (16, 16, 3), np.uint8)
        label = i % 2
        image[:, 8 * label : 8 * label + 8] += 100
        np.savez_compressed(folder / f"{i}.npz", image=image, label=label)


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 7, 2)
    )


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)

        train, test = ndfeed.open(folder, sample="file").split(0.8, seed=0)
        words = {
            "fields": ("image", "label"),
            "convert": {"image": ndfeed.torch.Convert(torch.float32, scale=1 / 255, hwc=True)},
        }
        upside_down = {"image": 0}  # half of the images, drawn anew in every epoch
        loader = ndfeed.torch.loader(train, 32, shuffle=True, flip=upside_down, **words)

        model = network().to(memory_format=torch.channels_last)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(3):
            for image, label in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(image), label)
                loss.backward()
                optimizer.step()

        right = 0
        with torch.no_grad():
            for image, label in ndfeed.torch.loader(test, 32, **words):
                right += int((model(image).argmax(1) == label).sum())
        loader.close()

        assert right > 0.9 * len(test)
        print(f"trained on {len(train)} files for 3 epochs, {right} of {len(test)} others right")


if __name__ == "__main__":
    main()
