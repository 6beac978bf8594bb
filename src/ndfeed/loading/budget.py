"""Divides a loader's memory limit: batches in progress, decoded streams, groups of small batches.

Everything here is arithmetic: nothing is read, allocated or measured.
"""

from dataclasses import dataclass, replace

import numpy as np

from ndfeed.dataset.column import is_converted, widest_stored
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.row_selection import select_rows
from ndfeed.errors import ResourceError, shown_size
from ndfeed.order.permutation import Ints

_IN_PROGRESS = 8  # batches that decoded streams leave room for; more if they are small
SMALL = 32 << 20  # bytes of small batches that may be in progress, if memory is plenty
_MOST_GROUPED = 64  # batches
_FAR_AHEAD = 64 << 20  # bytes to prefetch from disk
_BATCHES_AHEAD = 4  # or this many batches, if that is more
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Budget:
    """How much memory goes where, in bytes unless stated otherwise.

    - ``batch_bytes`` is the expected size of a batch while it is made and delivered. Maps may make
      larger ones, so ``depth`` and ``readahead`` take the largest seen so far.
    - ``batches`` is for all batches in progress together, ``streams`` for decoded streams.
    - ``group`` is how many small batches are read together, and ``group_bytes`` their most bytes.
    """

    batch_bytes: int
    batches: int
    streams: int
    group: int
    group_bytes: int
    growth: float  # bytes that an adapter allocates per byte of a batch

    def count(self, nbytes: int) -> int:
        """Return the memory that a batch of ``nbytes`` takes, with what an adapter makes of it."""
        return int(nbytes * (1 + self.growth))

    def depth(self, batch_bytes: int, threads: int) -> int:
        """Return how many batches may be in progress.

        One more is counted for the consumer, who holds it while the next is made.
        """
        fits = self.batches // max(batch_bytes, 1) - 1
        enough = self.group * (2 * threads + 2)
        return max(min(fits, enough), 1)

    def readahead(self, batch_bytes: int, scattered: int = 0) -> int:
        """Return how many batches ahead of the current one are prefetched from disk.

        ``scattered`` is the number of rows of a batch that lie apart: each costs a disk a page.
        """
        size = max(batch_bytes, scattered * _PAGE, 1)
        return max(_FAR_AHEAD // size, _BATCHES_AHEAD, self.group)


def make_budget(
    memory: int,
    batch_bytes: int,
    *,
    decodes: bool,
    splits: bool = False,
    group_bytes: int = 0,
    growth: float = 0.0,
    held: int = 0,
) -> Budget:
    """Divide ``memory``, which holds at least one batch of ``batch_bytes``.

    - ``decodes``: some streams have to be decoded whole. They get what the batches leave; without
      such streams batches get all of it.
    - ``splits``: several batches may be read together and split, since no field is ragged.
    - ``group_bytes``: bytes of small batches that are worth making at a time.
    - ``growth``: bytes that an adapter allocates per byte of a batch.
    - ``held``: bytes of delivered batches that a framework may keep.
    """
    batch_bytes = int(batch_bytes * (1 + growth))
    memory = max(memory - held, batch_bytes)
    batches = memory
    if decodes:
        enough = max(_IN_PROGRESS * batch_bytes, min(SMALL, memory // 16))
        batches = min(enough, max(memory // 4, batch_bytes))
    group_bytes = min(group_bytes, batches // 4)
    group = min(max(group_bytes // max(batch_bytes, 1), 1), _MOST_GROUPED) if splits else 1
    return Budget(batch_bytes, batches, memory - batches, group, group_bytes, growth)


def estimate_batch_bytes(ds: Dataset, batch_size: int, memory: int) -> int:
    """Return the bytes of a batch as it is read; refuse one that exceeds the memory limit.

    Refuses a single sample likewise, where samples differ in size. Fields that are converted count
    with their stored values and a temporary copy of the result.
    """
    batch_size = min(batch_size, len(ds))
    size = -(-(ds.nbytes + _converted_bytes(ds)) * batch_size // max(len(ds), 1))
    if size > memory:
        raise ValueError(
            f"memory must hold a batch: {shown_size(size)} for {batch_size:,} samples of average "
            f"size, got {shown_size(memory)}; raise memory or lower batch_size or tokens"
        )
    _check_samples(ds, memory)
    return size


def _converted_bytes(ds: Dataset) -> int:
    """Return the bytes that converting the fields of all samples takes besides the result.

    The stored values, and the result once more: values that may not fit are converted into a
    temporary array and checked.
    """
    found = 0.0
    for group in ds.groups:
        for column in group.columns:
            if is_converted(column):
                alone = Dataset((replace(group, columns=(column,)),), (Dataset, ()), rows=ds.rows)
                found += alone.nbytes * (1 + widest_stored(column) / column.field.dtype.itemsize)
    return int(found)


def _check_samples(ds: Dataset, memory: int) -> None:
    """Refuse a sample that is larger than the memory limit for all batches together."""
    for group in ds.groups:
        if all(column.even or column.offsets is not None for column in group.columns):
            continue
        every = [c.nbytes for c in group.columns if c.offsets is None]
        sizes: Ints = np.sum(every, axis=0)
        if ds.rows is not None or group.rows is not None:
            used = np.unique(group.locate(select_rows(ds.rows, np.arange(len(ds)))).part)
            sizes = np.where(np.isin(np.arange(len(sizes)), used), sizes, 0)
        at = int(np.argmax(sizes))
        if sizes[at] > memory:
            raise ResourceError(
                group.table.path(int(group.columns[0].file[at])),
                f"one sample takes {shown_size(int(sizes[at]))}, but memory= is "
                f"{shown_size(memory)}",
                remedy="raise memory=, or exclude the file",
            )
