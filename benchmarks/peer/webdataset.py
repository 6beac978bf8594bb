"""WebDataset: tar shards of 64 MB, rows as their bytes."""

from pathlib import Path
from typing import Any

import numpy as np

NAME = "WebDataset"
PACKAGES = ("webdataset",)
FORMAT = "tar"
SHUFFLE = "shards, then a buffer of 1,000 rows"
SETTINGS = ({"workers": 0}, {"workers": 2}, {"workers": 4})
SHARDS = 8


def convert(source: Path, target: Path) -> None:
    """Write one member per row: only bytes, which need no decoding; eight shards, for workers."""
    import webdataset

    rows = np.load(source, mmap_mode="r")
    target.mkdir()
    (target / "shape").write_text(" ".join(map(str, rows.shape[1:])))
    pattern = str(target / "%06d.tar")
    with webdataset.ShardWriter(pattern, -(-len(rows) // SHARDS), verbose=0) as writer:
        for i, row in enumerate(rows):
            writer.write({"__key__": f"{i:08d}", "x": row.tobytes()})


def batches(target: Path, batch: int, workers: int) -> Any:
    """Batch in the workers, as its README advises."""
    import webdataset

    shape = tuple(map(int, (target / "shape").read_text().split()))
    shards = sorted(map(str, target.glob("*.tar")))
    data = (
        webdataset.WebDataset(shards, shardshuffle=100)
        .shuffle(1000)
        .to_tuple("x")
        .batched(batch, collation_fn=Stack(shape))
    )
    return webdataset.WebLoader(
        data, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )


class Stack:
    """Stacks the bytes of rows into one tensor."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __call__(self, samples: list[tuple[bytes]]) -> Any:
        import torch

        joined = bytearray().join(one[0] for one in samples)
        return torch.frombuffer(joined, dtype=torch.uint8).reshape(-1, *self.shape)
