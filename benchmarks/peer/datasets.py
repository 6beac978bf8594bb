"""Hugging Face datasets: an Arrow table of lists of one length, a batch of rows at a time."""

from pathlib import Path
from typing import Any

import numpy as np

NAME = "Hugging Face datasets"
PACKAGES = ("datasets",)
FORMAT = "Arrow"
SHUFFLE = "exact"
SETTINGS = (
    {"workers": 0},
    {"workers": 2},
    {"workers": 0, "arrow": True},
    {"workers": 2, "arrow": True},
)


def convert(source: Path, target: Path) -> None:
    """Write lists of a fixed length, which are read without Python objects."""
    import pyarrow
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    rows = np.load(source, mmap_mode="r")
    width, step = rows[0].nbytes, max(1, (16 << 20) // rows[0].nbytes)
    target.mkdir()
    (target / "shape").write_text(" ".join(map(str, rows.shape[1:])))
    features = Features({"x": List(Value("uint8"), length=width)})
    writer = ArrowWriter(features=features, path=str(target / "x.arrow"))
    for start in range(0, len(rows), step):
        flat = pyarrow.array(np.array(rows[start : start + step]).reshape(-1))
        lists = pyarrow.FixedSizeListArray.from_arrays(flat, width)
        writer.write_table(pyarrow.table({"x": lists}))
    writer.finalize()
    writer.close()


def batches(target: Path, batch: int, workers: int, arrow: bool = False) -> Any:
    """Use a sampler of batches, as its guide for DataLoader says, in torch's or Arrow's format."""
    import torch
    from datasets import Dataset
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    shape = tuple(map(int, (target / "shape").read_text().split()))
    data = Dataset.from_file(str(target / "x.arrow"))
    data = data.with_format("arrow") if arrow else data.with_format("torch", dtype=torch.uint8)
    return DataLoader(
        data,
        batch_size=None,
        sampler=BatchSampler(RandomSampler(data), batch, drop_last=False),
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=Column(shape),
    )


class Column:
    """The only column of a batch as a tensor of rows."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __call__(self, found: Any) -> Any:
        import torch

        if not isinstance(found, dict):  # an Arrow table
            flat = found.column("x").combine_chunks().flatten()
            return torch.from_numpy(flat.to_numpy()).reshape(-1, *self.shape)
        return found["x"].reshape(-1, *self.shape)
