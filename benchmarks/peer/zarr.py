"""Zarr: version 3, chunks of about 256 KB, or of one row if that is larger."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from peer.mapped import same

NAME = "Zarr"
PACKAGES = ("zarr",)
FORMAT = "Zarr 3"
SHUFFLE = "exact"
SETTINGS = (
    {"workers": 0},
    {"workers": 2},
    {"workers": 0, "each": True},
    {"workers": 2, "each": True},
)
CHUNK = 256 << 10


def convert(source: Path, target: Path) -> None:
    """Write without compression, since noise does not shrink."""
    import zarr

    rows = np.load(source, mmap_mode="r")
    chunk = max(1, CHUNK // rows[0].nbytes)
    array = zarr.create_array(
        str(target),
        shape=rows.shape,
        dtype=rows.dtype,
        chunks=(chunk, *rows.shape[1:]),
        compressors=None,
    )
    step = chunk * max(1, (64 << 20) // (chunk * rows[0].nbytes))
    for start in range(0, len(rows), step):
        array[start : start + step] = rows[start : start + step]


class Rows:
    """One row at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._array: Any = None

    @property
    def array(self) -> Any:
        """Opened on first use: each worker process opens its own."""
        if self._array is None:
            import zarr

            self._array = zarr.open_array(str(self.path), mode="r")
        return self._array

    def __len__(self) -> int:
        return json.loads((self.path / "zarr.json").read_text())["shape"][0]

    def __getitem__(self, row: int) -> Any:
        import torch

        return torch.from_numpy(self.array[row])


class Batches(Rows):
    """One batch with one orthogonal index, whose chunks Zarr reads concurrently."""

    def __getitems__(self, rows: list[int]) -> Any:
        import torch

        return torch.from_numpy(self.array.oindex[np.array(rows)])


def batches(target: Path, batch: int, workers: int, each: bool = False) -> Any:
    """Use spawned workers: Zarr's event loop does not survive a fork."""
    from torch.utils.data import DataLoader

    return DataLoader(
        (Rows if each else Batches)(target),
        batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
        collate_fn=None if each else same,
    )
