"""``np.load`` in a loop, as people write it today: what ``ndfeed demo`` compares with.

The only module that may call ``np.load``: it reads files that the demo has just written itself.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Batch = dict[str, NDArray[Any]]


class Loop:
    """Shuffled batches of compressed .npz files with one sample each, read one by one."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        self._files = sorted(os.fspath(path) for path in folder.iterdir())
        self._size = batch_size
        self._rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one epoch."""
        order = self._rng.permutation(len(self._files)).tolist()
        for start in range(0, len(order), self._size):
            samples = [self._load(row) for row in order[start : start + self._size]]
            yield {name: np.stack([one[name] for one in samples]) for name in samples[0]}

    def _load(self, row: int) -> Batch:
        with np.load(self._files[row]) as file:
            return dict(file)
