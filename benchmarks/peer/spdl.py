"""SPDL: a pipeline of threads over a mapped .npy; it has no format of its own for arrays."""

from pathlib import Path
from typing import Any

from peer.mapped import Batches

NAME = "SPDL"
PACKAGES = ("spdl",)
FORMAT = ".npy"
SHUFFLE = "exact"
SETTINGS = ({"threads": 1}, {"threads": 2}, {"threads": 4})


def batches(target: Path, batch: int, threads: int) -> Any:
    """Row numbers, a batch of them at a time, gathered with one index in threads."""
    return Epochs(Batches(target), batch, threads)


class Epochs:
    """A pipeline for each epoch, as a pipeline ends with its source."""

    def __init__(self, data: Batches, batch: int, threads: int) -> None:
        self.data, self.batch, self.threads = data, batch, threads

    def __iter__(self) -> Any:
        from spdl.pipeline import PipelineBuilder
        from torch.utils.data import BatchSampler, RandomSampler

        pipeline = (
            PipelineBuilder()
            .add_source(BatchSampler(RandomSampler(self.data), self.batch, drop_last=False))
            .pipe(self.data.__getitems__, concurrency=self.threads, output_order="input")
            .add_sink(2 * self.threads)
            .build(num_threads=self.threads)
        )
        with pipeline.auto_stop():
            yield from pipeline
