"""A small classifier, trained as people do, to see how long it waits for its batches."""

import time
from typing import NamedTuple

import torch
from torch import nn

from ndfeed import torch as feed
from ndfeed.dataset.dataset import Dataset

_EPOCHS = 8


class Trained(NamedTuple):
    """What came of it."""

    epochs: int
    seconds: float
    accuracy: float  # share of samples it has never seen that it is right about
    waiting: float  # share of the time


def train(ds: Dataset, batch_size: int, seconds: float) -> Trained:
    """Train on nine tenths of the samples for about so many seconds, and try the others."""
    torch.manual_seed(0)
    learned, unseen = ds.split(0.9, seed=0)
    classes = 1 + int(ds.select("label")[:]["label"].max())
    model = _model(len(ds[0]["image"]), classes)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = feed.loader(learned, batch_size, shuffle=True, fields=("image", "label"))
    epochs, took, waited = 0, 0.0, 0.0
    with loader:
        # Not begun if it would end too late; the first always is.
        while epochs < _EPOCHS and took * (epochs + 1) <= seconds * max(epochs, 1):
            began = time.perf_counter()
            for image, label in loader:
                optimiser.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(model(image), label))
                optimiser.step()
            took += time.perf_counter() - began
            waited += loader.report().consumer_waiting
            epochs += 1
    return Trained(epochs, took, _accuracy(model, unseen), waited / max(took, 1e-9))


class _Scaled(nn.Module):
    """Bytes as numbers around zero."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.float() / 127.5 - 1


def _model(channels: int, classes: int) -> nn.Module:
    """Two convolutions and a layer."""
    return nn.Sequential(
        _Scaled(),
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 16, classes),
    )


def _accuracy(model: nn.Module, ds: Dataset) -> float:
    held = ds.read(range(len(ds)))
    with torch.inference_mode():
        guessed = model(torch.from_numpy(held["image"])).argmax(1).numpy()
    return float((guessed == held["label"]).mean()) if len(ds) else 0.0
