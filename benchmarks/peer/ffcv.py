"""FFCV: one .beton with an array field, and its loader's threads.

Needs OpenCV, libturbojpeg and a compiler.
"""

from pathlib import Path
from typing import Any

import numpy as np

NAME = "FFCV"
PACKAGES = (
    "ffcv",
    "numba",
    "opencv-python-headless",
    "pillow",
    "tqdm",
)  # all but the first are dependencies that it does not declare
FORMAT = ".beton"
SHUFFLE = "exact"
SETTINGS = ({"workers": 1}, {"workers": 2})  # it allows at most one per core


class Rows:
    """Rows as FFCV's writer expects them: tuples."""

    def __init__(self, path: Path) -> None:
        self.array = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, row: int) -> tuple[np.ndarray]:
        return (np.array(self.array[row]),)


def convert(source: Path, target: Path) -> None:
    """Convert with two processes; pages are as large as a row needs."""
    from ffcv.fields import NDArrayField
    from ffcv.writer import DatasetWriter

    rows = Rows(source)
    field = NDArrayField(np.dtype(np.uint8), rows.array.shape[1:])
    DatasetWriter(str(target), {"x": field}, num_workers=2).from_indexed_dataset(rows)


def batches(target: Path, batch: int, workers: int) -> Any:
    """Read the file through the system's page cache, in random order."""
    from ffcv.fields.decoders import NDArrayDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor

    return Only(
        Loader(
            str(target),
            batch_size=batch,
            num_workers=workers,
            order=OrderOption.RANDOM,
            os_cache=True,
            drop_last=False,
            pipelines={"x": [NDArrayDecoder(), ToTensor()]},
        )
    )


class Only:
    """The only field; FFCV reuses its memory, so the consumer gets its own copy."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        for (found,) in self.loader:
            yield found.clone()
