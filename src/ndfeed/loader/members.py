"""Streams that hold many rows and must be decoded whole."""

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.members import Decoded, Key
from ndfeed.dataset.rows import key_of, stream_of
from ndfeed.formats.array import INLINE, RAW
from ndfeed.order.permutation import Ints


class Coded:
    """The streams of a group that hold several rows each."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.columns = [] if group.by_file else [c for c in group.columns if _coded(c, group).any()]
        # Per part: bytes of its streams, each counted once for all columns it holds.
        self.sizes = np.zeros(len(group.starts) - 1, np.int64)
        seen: list[Ints] = []
        for column in self.columns:
            table, arrays = column.table, column.arrays
            places = table.offset[arrays]
            fresh = _coded(column, group)
            for earlier in seen:
                fresh &= places != earlier
            seen.append(places)
            self.sizes += np.where(
                fresh, np.maximum(table.decoded[arrays], table.length[arrays]), 0
            )

    def decode(self, part: int, decoded: Decoded) -> None:
        """Decode whatever of a part is not decoded yet."""
        for column in self.columns:
            if column.coding[part] not in (RAW, INLINE):
                stream_of(column, part, decoded)

    def keys(self, part: int) -> list[Key]:
        """What the streams of a part are kept under."""
        return [key_of(column, part) for column in self.columns]


def _coded(column: Column, group: Group) -> NDArray[np.bool_]:
    """Per part: does it hold several rows that cannot be read alone?"""
    coding = column.coding
    return np.asarray((coding != RAW) & (coding != INLINE) & (np.diff(group.starts) > 1))
