"""Grain: ArrayRecord files with a record a group, as its guide for random access says."""

from pathlib import Path
from typing import Any

import numpy as np

NAME = "Grain"
PACKAGES = ("grain",)
FORMAT = "ArrayRecord"
SHUFFLE = "exact"
SETTINGS = ({"threads": 0}, {"threads": 2}, {"threads": 16}, {"threads": 2, "workers": 2})


def convert(source: Path, target: Path) -> None:
    """Rows as their bytes, not compressed: noise does not shrink."""
    from array_record.python.array_record_module import ArrayRecordWriter

    rows = np.load(source, mmap_mode="r")
    target.mkdir()
    (target / "shape").write_text(" ".join(map(str, rows.shape[1:])))
    writer = ArrayRecordWriter(str(target / "x.array_record"), "group_size:1,uncompressed")
    for row in rows:
        writer.write(row.tobytes())
    writer.close()


def batches(target: Path, batch: int, threads: int, workers: int = 0) -> Any:
    """Source, shuffle, decode, batch; threads that read, and processes that run the whole."""
    import grain

    shape = tuple(map(int, (target / "shape").read_text().split()))
    source = grain.sources.ArrayRecordDataSource(str(target / "x.array_record"))
    data = grain.MapDataset.source(source).seed(0).shuffle().map(Decode(shape)).batch(batch)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=8 * max(threads, 1))
    flow = data.to_iter_dataset(options if threads else grain.ReadOptions(0, 0))
    if workers:
        flow = flow.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return Tensors(flow)


class Decode:
    """A record as an array."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __call__(self, record: bytes) -> np.ndarray:
        return np.frombuffer(record, np.uint8).reshape(self.shape)


class Tensors:
    """Batches of arrays as tensors, without a copy."""

    def __init__(self, flow: Any) -> None:
        self.flow = flow

    def __iter__(self) -> Any:
        import torch

        for found in self.flow:
            yield torch.from_numpy(found)
