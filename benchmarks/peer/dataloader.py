"""torch's DataLoader over a mapped .npy, one row and one batch at a time."""

from pathlib import Path
from typing import Any

from peer.mapped import Batches, Rows, same

NAME = "torch DataLoader"
PACKAGES = ()
FORMAT = ".npy"
SHUFFLE = "exact"
SETTINGS = (
    {"workers": 0},
    {"workers": 2},
    {"workers": 4},
    {"workers": 0, "getitems": True},
    {"workers": 2, "getitems": True},
)


def batches(target: Path, batch: int, workers: int, getitems: bool = False) -> Any:
    """Use persistent workers; ``__getitems__`` is torch's hook for one batch at a time."""
    from torch.utils.data import DataLoader

    options = {"num_workers": workers, "persistent_workers": workers > 0}
    if getitems:
        options["collate_fn"] = same
    return DataLoader((Batches if getitems else Rows)(target), batch, shuffle=True, **options)
