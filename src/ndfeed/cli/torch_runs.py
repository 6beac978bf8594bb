"""What needs PyTorch: the rates of a CUDA device, and a small classifier for ``ndfeed demo``."""

import time
from typing import NamedTuple

import torch
from torch import nn

from ndfeed import torch as feed
from ndfeed.cli.throughput import Ran, run
from ndfeed.dataset.dataset import Dataset
from ndfeed.loading.options import Shuffle

_EPOCHS = 8
_NBYTES = 32 << 20
_COPIES = 8
_ROUNDS = 5


def has_device() -> bool:
    """Does torch see a CUDA device?"""
    return torch.cuda.is_available()


def copy_rate() -> float:
    """Measure bytes per second from pinned memory: the best of some rounds, as a bus wakes up."""
    host = torch.empty(_NBYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_NBYTES, dtype=torch.uint8, device="cuda")
    best = 0.0
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(_COPIES):
            device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, _COPIES * _NBYTES / (time.perf_counter() - began))
    return best


def run_on_device(ds: Dataset, batch_size: int, shuffle: Shuffle, seconds: float) -> Ran:
    """Run torch's loader, whose batches arrive on the device."""
    return run(feed.loader(ds, batch_size, shuffle=shuffle, device="cuda"), seconds)


class Trained(NamedTuple):
    """How the training went."""

    epochs: int
    seconds: float
    accuracy: float  # share of unseen samples that are classified correctly
    waiting: float  # share of the time spent waiting for batches


def train(ds: Dataset, batch_size: int, seconds: float) -> Trained:
    """Train on nine tenths of the samples for about ``seconds``, and test on the others."""
    torch.manual_seed(0)
    learned, unseen = ds.split(0.9, seed=0)
    classes = 1 + int(ds.select("label")[:]["label"].max())
    model = _model(len(ds[0]["image"]), classes)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = feed.loader(learned, batch_size, shuffle=True, fields=("image", "label"))
    epochs, took, waited = 0, 0.0, 0.0
    with loader:
        # No epoch starts that would end too late, except for the first.
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
    """Scales bytes to numbers around zero."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.float() / 127.5 - 1


def _model(channels: int, classes: int) -> nn.Module:
    """Make a model of two convolutions and a linear layer."""
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
