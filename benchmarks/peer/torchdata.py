"""torchdata: its nodes with threads, and its StatefulDataLoader with processes."""

from pathlib import Path
from typing import Any

from peer.mapped import Batches, same

NAME = "torchdata"
PACKAGES = ("torchdata",)
FORMAT = ".npy"
SHUFFLE = "exact"
SETTINGS = (
    {"threads": 0},
    {"threads": 2},
    {"threads": 4},
    {"workers": 0},
    {"workers": 2},
)


def batches(target: Path, batch: int, threads: int = 0, workers: int | None = None) -> Any:
    """Fetch batches of row numbers with one index each: the fastest way for both."""
    data = Batches(target)
    if workers is None:
        return nodes(data, batch, threads)
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        data,
        batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=same,
    )


def nodes(data: Batches, batch: int, threads: int) -> Any:
    """Batch a sampler and map it in threads, two batches ahead."""
    from torch.utils.data import BatchSampler, RandomSampler
    from torchdata.nodes import Loader, ParallelMapper, Prefetcher, SamplerWrapper

    rows = SamplerWrapper(BatchSampler(RandomSampler(data), batch, drop_last=False))
    mapped = ParallelMapper(rows, data.__getitems__, num_workers=threads, method="thread")
    return Loader(Prefetcher(mapped, prefetch_factor=2) if threads else mapped)
