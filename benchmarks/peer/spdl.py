"""SPDL: a pipeline of threads over a mapped .npy; it has no format of its own for arrays."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from peer.mapped import Batches

NAME = "SPDL"
PACKAGES = ("spdl",)
FORMAT = ".npy"
SHUFFLE = "exact"
SETTINGS = ({"threads": 1}, {"threads": 2}, {"threads": 4})


def batches(target: Path, batch: int, threads: int) -> Any:
    """Gather batches of row numbers with one index each, in threads."""
    return Epochs(Batches(target), batch, threads)


class Epochs:
    """One pipeline for all epochs: building one takes longer than many batches."""

    def __init__(self, data: Batches, batch: int, threads: int) -> None:
        from spdl.pipeline import PipelineBuilder
        from torch.utils.data import BatchSampler, RandomSampler

        sampler = BatchSampler(RandomSampler(data), batch, drop_last=False)
        self.batches = len(sampler)
        self.pipeline = (
            PipelineBuilder()
            .add_source(endless(sampler))
            .pipe(data.__getitems__, concurrency=threads, output_order="input")
            .add_sink(2 * threads)
            .build(num_threads=threads)
        )
        self.pipeline.start()
        self.found = iter(self.pipeline)

    def __iter__(self) -> Any:
        return islice(self.found, self.batches)

    def __del__(self) -> None:
        self.pipeline.stop()


def endless(sampler: Any) -> Iterator[list[int]]:
    """Yield epoch after epoch, each in its own order."""
    while True:
        yield from sampler
