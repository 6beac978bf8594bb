"""What people write today: ``np.load`` in a loop. The other side of ``ndfeed demo``.

The only module that may use it: it reads what the demo has just written itself.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Batch = dict[str, NDArray[Any]]


class Loop:
    """Shuffled batches of compressed .npz files, a sample each, one file after the other."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        self._files = sorted(os.fspath(path) for path in folder.iterdir())
        self._size = batch_size
        self._rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[Batch]:
        """An epoch."""
        order = self._rng.permutation(len(self._files)).tolist()
        for start in range(0, len(order), self._size):
            samples = [self._sample(row) for row in order[start : start + self._size]]
            yield {name: np.stack([one[name] for one in samples]) for name in samples[0]}

    def _sample(self, row: int) -> Batch:
        with np.load(self._files[row]) as file:
            return dict(file)
