"""A mapped .npy as a map-style dataset of torch, one row or one batch at a time."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np


class Rows:
    """The first attempt: one row at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._array: np.ndarray | None = None

    @property
    def array(self) -> np.ndarray:
        """The map, opened on first use: each worker process opens its own."""
        if self._array is None:
            self._array = np.load(self.path, mmap_mode="r")
        return self._array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, row: int) -> Any:
        import torch

        return torch.from_numpy(np.array(self.array[row]))


class Batches(Rows):
    """The second attempt: all rows of a batch with one index."""

    def __getitems__(self, rows: list[int]) -> Any:
        import torch

        return torch.from_numpy(self.array[rows])


def same(batch: Any) -> Any:
    """Return a batch that needs no collating."""
    return batch


class Pooled:
    """Batches of a sampler, fetched in a pool of threads, with two in flight for each."""

    def __init__(self, sampler: Any, fetch: Callable[[list[int]], Any], threads: int) -> None:
        self.sampler, self.fetch, self.threads = sampler, fetch, threads

    def __iter__(self) -> Iterator[Any]:
        with ThreadPoolExecutor(self.threads) as pool:
            waiting: deque[Any] = deque()
            for rows in self.sampler:
                waiting.append(pool.submit(self.fetch, rows))
                if len(waiting) > 2 * self.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
