"""Rows that are all in the device's memory, and are gathered there."""

from collections.abc import Mapping

import numpy as np

from ndfeed.cuda.kernels import Places, Uploads, gather
from ndfeed.cuda.side import OnDevice, Side
from ndfeed.dataset.map_steps import Batch
from ndfeed.loading.batch_builder import Source
from ndfeed.order.permutation import Ints


class Resident(Source):
    """Reads rows out of ``fields``, which hold the rows of a whole dataset."""

    def __init__(
        self, fields: Mapping[str, OnDevice], sizes: Mapping[str, int], side: Side
    ) -> None:
        self._fields = fields
        self._sizes = sizes  # bytes of a row
        self._side = side
        self._uploads = Uploads(side)

    def read(self, rows: Ints) -> Batch:
        """The fields of ``rows``."""
        side, count = self._side, len(rows)
        side.join()
        side.flight.settle()
        places = Places(self._uploads, 0, np.asarray(rows, np.int64))
        batch: Batch = {}
        for name, values in self._fields.items():
            size = self._sizes[name]
            batch[name] = out = side.memory.empty(name, count)
            found = places.on_device(size, size, side.memory.address(values))
            gather(side.stream, found, side.memory.address(out), count, size)
        places.release(side.record())
        return batch

    def close(self) -> None:
        """Free the memory for row numbers."""
        with self._side.driver.context():
            self._side.flight.settle(0)
            self._uploads.close()
