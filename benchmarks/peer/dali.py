"""DALI without a GPU: an external source over a mapped .npy, called or in worker processes."""

from pathlib import Path
from typing import Any

import numpy as np

NAME = "DALI, external source"
PACKAGES = ("nvidia-dali-cuda120",)
FORMAT = ".npy"
SHUFFLE = "exact"
SETTINGS = ({"workers": 0}, {"workers": 2}, {"workers": 4})


def batches(target: Path, batch: int, workers: int) -> Any:
    """A batch with one index, in this process or in DALI's workers."""
    return Epochs(target, batch, workers)


class Gather:
    """The rows of a batch of an epoch; the order of an epoch follows from its number."""

    def __init__(self, path: Path, batch: int, listed: bool) -> None:
        self.path, self.batch, self.listed = path, batch, listed
        self.count = len(np.load(path, mmap_mode="r"))
        self._array: Any = None
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __call__(self, info: Any) -> Any:
        if self._array is None:
            self._array = np.load(self.path, mmap_mode="r")
        if info.epoch_idx != self._epoch:
            self._epoch = info.epoch_idx
            self._order = np.random.default_rng(self._epoch).permutation(self.count)
        start = info.iteration * self.batch
        if start >= self.count:
            raise StopIteration
        found = self._array[self._order[start : start + self.batch]]
        return list(found) if self.listed else found  # DALI's workers hand over lists only


class Epochs:
    """A pipeline that is reset at the end of an epoch."""

    def __init__(self, path: Path, batch: int, workers: int) -> None:
        from nvidia.dali import fn, pipeline_def

        @pipeline_def(
            batch_size=batch,
            num_threads=2,
            device_id=None,
            py_num_workers=max(workers, 1),
            py_start_method="spawn",
        )
        def pipeline() -> Any:
            return fn.external_source(
                source=Gather(path, batch, listed=workers > 0),
                batch=True,
                batch_info=True,
                parallel=workers > 0,
                prefetch_queue_depth=2 * workers if workers else None,
            )

        self.pipeline = pipeline()
        self.pipeline.build()

    def __iter__(self) -> Any:
        while True:
            try:
                (found,) = self.pipeline.run()
            except StopIteration:
                self.pipeline.reset()
                return
            yield tensor(found)


def tensor(found: Any) -> Any:
    """DALI lends the memory of a batch until the next: the consumer gets its own copy."""
    import torch

    return torch.from_numpy(np.array(found.as_tensor()))
