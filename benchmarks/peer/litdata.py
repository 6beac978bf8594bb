"""LitData: chunks of 64 MB, StreamingDataset and StreamingDataLoader."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

NAME = "LitData"
PACKAGES = ("litdata",)
FORMAT = "LitData chunks"
SHUFFLE = "chunks, then rows within a chunk"
SETTINGS = ({"workers": 0}, {"workers": 2}, {"workers": 4})
PIECE = 4096


def convert(source: Path, target: Path) -> None:
    """Write the array in pieces, with two processes."""
    from litdata import optimize

    count = len(np.load(source, mmap_mode="r"))
    optimize(
        fn=partial(rows_from, str(source)),
        inputs=list(range(0, count, min(PIECE, count // 2))),
        output_dir=str(target),
        chunk_bytes="64MB",
        num_workers=2,
    )


def rows_from(source: str, start: int) -> Iterator[Any]:
    """Yield rows as tensors, starting with a given one."""
    import torch

    array = np.load(source, mmap_mode="r")
    for row in array[start : start + min(PIECE, len(array) // 2)]:
        yield torch.from_numpy(np.array(row))


def batches(target: Path, batch: int, workers: int) -> Any:
    """Read as its README shows."""
    from litdata import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(str(target), shuffle=True)
    return StreamingDataLoader(
        data, batch_size=batch, num_workers=workers, persistent_workers=workers > 0
    )
