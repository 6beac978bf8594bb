"""DALI without a GPU: its reader of .npy files, one file per row."""

from pathlib import Path
from typing import Any

import numpy as np

from peer.dali import tensor

NAME = "DALI, readers.numpy"
PACKAGES = ("nvidia-dali-cuda120",)
ENVIRONMENT = "dali"
FORMAT = ".npy, a file a row"
SHUFFLE = "exact"
SETTINGS = ({"threads": 1}, {"threads": 2}, {"threads": 4})
LEAST = 1024  # bytes per row: below this, a file takes more than 4 KB for less than 1 KB


def convert(source: Path, target: Path) -> None:
    """Write one file per row."""
    target.mkdir()
    for i, row in enumerate(np.load(source, mmap_mode="r")):
        np.save(target / f"{i:08d}.npy", row)


def batches(target: Path, batch: int, threads: int) -> Any:
    """Cache headers, as its documentation advises for files of one shape."""
    return Epochs(target, batch, threads)


class Epochs:
    """Runs of the pipeline that make up an epoch."""

    def __init__(self, path: Path, batch: int, threads: int) -> None:
        from nvidia.dali import fn, pipeline_def

        names = sorted(one.name for one in path.iterdir())
        np.random.default_rng(0).shuffle(names)  # the reader's first epoch is in order

        @pipeline_def(batch_size=batch, num_threads=threads, device_id=None)
        def pipeline() -> Any:
            return fn.readers.numpy(
                file_root=str(path),
                files=names,
                shuffle_after_epoch=True,
                cache_header_information=True,
                prefetch_queue_depth=2,
                name="reader",
            )

        self.runs = -(-len(names) // batch)
        self.pipeline = pipeline()
        self.pipeline.build()

    def __iter__(self) -> Any:
        for _ in range(self.runs):
            (found,) = self.pipeline.run()
            yield tensor(found)
