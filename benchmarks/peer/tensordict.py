"""tensordict: a memory-mapped tensor, indexed one batch at a time by torch's DataLoader."""

from pathlib import Path
from typing import Any

import numpy as np

from peer.mapped import same

NAME = "tensordict"
PACKAGES = ("tensordict",)
FORMAT = "MemoryMappedTensor"
SHUFFLE = "exact"
SETTINGS = ({"workers": 0}, {"workers": 2}, {"workers": 4})


def convert(source: Path, target: Path) -> None:
    """Fill it in pieces, as its tutorial does."""
    import torch
    from tensordict import MemoryMappedTensor, TensorDict

    rows = np.load(source, mmap_mode="r")
    empty = TensorDict({"x": MemoryMappedTensor.empty(rows.shape, dtype=torch.uint8)}, [len(rows)])
    data = empty.memmap_(str(target))
    step = max(1, (16 << 20) // rows[0].nbytes)
    for start in range(0, len(rows), step):
        data["x"][start : start + step] = torch.from_numpy(np.array(rows[start : start + step]))


def batches(target: Path, batch: int, workers: int) -> Any:
    """Read as its tutorial shows: a batch is one index into the tensors."""
    from tensordict import TensorDict
    from torch.utils.data import DataLoader

    data = TensorDict.load_memmap(str(target))
    return Column(
        DataLoader(
            data,
            batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=same,
        )
    )


class Column:
    """The only tensor of each batch."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        for found in self.loader:
            yield found["x"]
