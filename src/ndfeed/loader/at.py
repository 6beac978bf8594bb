"""Any batch of any epoch, made when it is asked for.

For those who have workers of their own. The batches are those of a loader, and so are the draws
of maps; nothing is made ahead, and files that are compressed are decoded by whoever needs them
first, and kept within ``memory``.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.loader.adapter import Arrays
from ndfeed.loader.clock import Clock
from ndfeed.loader.draws import Key, Seeded, key_of
from ndfeed.loader.fill import listed
from ndfeed.loader.machine import Machine
from ndfeed.loader.options import Options, Shuffle
from ndfeed.loader.plan import batch_bytes, planned
from ndfeed.order.orders import Epoch, Order
from ndfeed.order.share import Share


class At:
    """Batches by number. Safe to use from several threads; pickles, and survives a fork."""

    def __init__(self, ds: Dataset, share: Share, shuffle: Shuffle, options: Options) -> None:
        self.dataset = ds
        self.share = share
        self._options = options
        self._plan = planned(ds, shuffle, share)
        self._bytes = batch_bytes(ds, share.batch_size, options.memory)
        self._plan.share_out(options.memory, self._bytes)  # refused here, if at all
        self._shuffle = shuffle
        self._machine: Machine | None = None
        self._begun: tuple[int, Epoch, Key] | None = None

    @property
    def order(self) -> Order:
        """How samples are ordered within an epoch."""
        return self._plan.order

    def batch(self, epoch: int, number: int) -> Any:  # noqa: ANN401
        """Batch ``number`` of an epoch."""
        rows, key = self._epoch(epoch)
        spans = self._plan.spans(self.share, number, 0)
        machine = self._machine
        if machine is None or machine.pid != os.getpid():
            adapter = Arrays(self._options.structure)
            machine = Machine(self.dataset, self._options, self._plan, self._bytes, adapter)
            self._machine = machine
        found = self._plan.places(np.concatenate([rows.rows(*span) for span in spans]))
        return machine.filler.make(found, Seeded.of(key, spans), Clock())

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples left out by ``on_error="skip"``: the row and what was wrong, the first 1,000."""
        return () if self._machine is None else listed([self._machine.skipped])

    def _epoch(self, epoch: int) -> tuple[Epoch, Key]:
        begun = self._begun
        if begun is None or begun[0] != epoch:
            seed, plan = self._options.seed, self._plan
            rows = plan.order.begin(self.share.n, seed, epoch, plan.counts)
            begun = self._begun = epoch, rows, key_of(seed, epoch)
        return begun[1], begun[2]

    def __reduce__(self) -> tuple[Any, ...]:
        return At, (self.dataset, self.share, self._shuffle, self._options)
