"""Lance: a column of fixed-size lists, read one batch of rows at a time."""

from pathlib import Path
from typing import Any

import numpy as np

from peer.mapped import Pooled, same

NAME = "Lance"
PACKAGES = ("pylance",)
FORMAT = "Lance"
SHUFFLE = "exact"
SETTINGS = ({"workers": 0}, {"threads": 2}, {"threads": 4}, {"workers": 2})


def convert(source: Path, target: Path) -> None:
    """Write a stream, one record batch at a time."""
    import lance
    import pyarrow

    rows = np.load(source, mmap_mode="r")
    width, step = rows[0].nbytes, max(1, (16 << 20) // rows[0].nbytes)
    schema = pyarrow.schema([("x", pyarrow.list_(pyarrow.uint8(), width))])

    def pieces() -> Any:
        for start in range(0, len(rows), step):
            flat = pyarrow.array(np.array(rows[start : start + step]).reshape(-1))
            lists = pyarrow.FixedSizeListArray.from_arrays(flat, width)
            yield pyarrow.record_batch([lists], schema=schema)

    reader = pyarrow.RecordBatchReader.from_batches(schema, pieces())
    lance.write_dataset(reader, str(target))
    (target / "shape").write_text(" ".join(map(str, rows.shape[1:])))


class Rows:
    """``take`` of a batch; the tensor uses the memory of Arrow's array."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shape = tuple(map(int, (path / "shape").read_text().split()))
        self._data: Any = None

    @property
    def data(self) -> Any:
        """Opened on first use: each worker process opens its own."""
        if self._data is None:
            import lance

            self._data = lance.dataset(str(self.path))
        return self._data

    def __len__(self) -> int:
        return self.data.count_rows()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_data": None}

    def __getitems__(self, rows: list[int]) -> Any:
        import torch

        column = self.data.take(rows, columns=["x"]).column("x").combine_chunks()
        flat = column.flatten().to_numpy(zero_copy_only=True)
        return torch.from_numpy(flat.reshape(-1, *self.shape))


def batches(target: Path, batch: int, workers: int = 0, threads: int = 0) -> Any:
    """``take`` through DataLoader, spawned as its guide says, or in a pool of threads."""
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    data = Rows(target)
    if threads:
        sampler = BatchSampler(RandomSampler(data), batch, drop_last=False)
        return Pooled(sampler, data.__getitems__, threads)
    return DataLoader(
        data,
        batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
        collate_fn=same,
    )
