"""Grain: ArrayRecord files with one record per group, as its guide for random access says.

Reading one record takes longer the more there are, so Grain is also tried over the .npy, with a
random-access source as in its guide.
"""

from pathlib import Path
from typing import Any

import numpy as np

NAME = "Grain"
PACKAGES = ("grain",)
FORMAT = "ArrayRecord, or the .npy"
SHUFFLE = "exact"
SETTINGS = (
    {"threads": 2},
    {"threads": 2, "workers": 2},
    {"threads": 0, "npy": True},
    {"threads": 2, "npy": True},
    {"threads": 16, "npy": True},
    {"threads": 2, "workers": 2, "npy": True},
)


def convert(source: Path, target: Path) -> None:
    """Write rows as their bytes, not compressed, since noise does not shrink."""
    from array_record.python.array_record_module import ArrayRecordWriter

    rows = np.load(source, mmap_mode="r")
    target.mkdir()
    (target / "x.npy").symlink_to(source)
    (target / "shape").write_text(" ".join(map(str, rows.shape[1:])))
    writer = ArrayRecordWriter(str(target / "x.array_record"), "group_size:1,uncompressed")
    for row in rows:
        writer.write(row.tobytes())
    writer.close()


def batches(target: Path, batch: int, threads: int, workers: int = 0, npy: bool = False) -> Any:
    """Source, shuffle, decode, batch; with threads that read, and processes that run all of it."""
    import grain

    if npy:
        data = grain.MapDataset.source(Rows(target / "x.npy")).seed(0).shuffle().batch(batch)
    else:
        shape = tuple(map(int, (target / "shape").read_text().split()))
        source = grain.sources.ArrayRecordDataSource(str(target / "x.array_record"))
        data = grain.MapDataset.source(source).seed(0).shuffle().map(Decode(shape)).batch(batch)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=8 * max(threads, 1))
    flow = data.to_iter_dataset(options if threads else grain.ReadOptions(0, 0))
    if workers:
        flow = flow.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return Tensors(flow)


class Rows:
    """A mapped array, opened again in each process that receives it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> np.ndarray:
        return self.rows[row]

    def __reduce__(self) -> Any:
        return Rows, (self.path,)


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
