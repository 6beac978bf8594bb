"""Zarr: version 3, chunks of about 48 KB or a row in shards of about 64 MB."""

from pathlib import Path
from typing import Any

import numpy as np

from peer.mapped import same

NAME = "Zarr"
PACKAGES = ("zarr",)
FORMAT = "Zarr 3, sharded"
SHUFFLE = "exact"
SETTINGS = ({"workers": 0}, {"workers": 2}, {"workers": 4})
CHUNK, SHARD = 48 << 10, 64 << 20


def convert(source: Path, target: Path) -> None:
    """Not compressed: noise does not shrink."""
    import zarr

    rows = np.load(source, mmap_mode="r")
    chunk = max(1, CHUNK // rows[0].nbytes)
    shard = min(max(1, SHARD // rows[0].nbytes // chunk), -(-len(rows) // chunk)) * chunk
    array = zarr.create_array(
        str(target),
        shape=rows.shape,
        dtype=rows.dtype,
        chunks=(chunk, *rows.shape[1:]),
        shards=(shard, *rows.shape[1:]),
        compressors=None,
    )
    for start in range(0, len(rows), shard):
        array[start : start + shard] = rows[start : start + shard]


class Rows:
    """A batch with one orthogonal index, whose chunks Zarr reads concurrently."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._array: Any = None

    @property
    def array(self) -> Any:
        """Opened where it is used: a worker process opens its own."""
        if self._array is None:
            import zarr

            self._array = zarr.open_array(str(self.path), mode="r")
        return self._array

    def __len__(self) -> int:
        import json

        return json.loads((self.path / "zarr.json").read_text())["shape"][0]

    def __getitems__(self, rows: list[int]) -> Any:
        import torch

        return torch.from_numpy(self.array.oindex[np.array(rows)])


def batches(target: Path, batch: int, workers: int) -> Any:
    """Spawned workers: Zarr's event loop does not survive a fork."""
    from torch.utils.data import DataLoader

    return DataLoader(
        Rows(target),
        batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
        collate_fn=same,
    )
