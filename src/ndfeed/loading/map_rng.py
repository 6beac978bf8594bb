"""Random generators for the functions given to ``map``, fixed by the position of a sample.

A function of single samples gets a generator fixed by (seed, epoch, position of the sample, which
of the maps it is): the same whatever the batch size, rank or thread. A function of whole batches
gets one fixed by the position of the batch's first sample, which also seeds the global generators
of worker processes.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.row_selection import draw_numbers
from ndfeed.order.permutation import Ints

Key = NDArray[np.uint64]
_BYTES = np.array([0x452821E638D01377, 0xBE5466CF34E90C6C], np.uint64)  # apart from random crops


class SampleSeeds:
    """The generators of one batch: its position, and the position of each of its samples."""

    __slots__ = ("first", "key", "positions")

    def __init__(self, key: Key, first: int, positions: Ints) -> None:
        self.key = key
        self.first = first
        self.positions = positions

    @classmethod
    def of(cls, key: Key, spans: Sequence[tuple[int, int, int]]) -> "SampleSeeds":
        """Return those of a batch whose samples are at ``spans`` of the epoch.

        Each span has a start, an end and a step.
        """
        return cls(key, spans[0][0], list_positions(spans))

    @classmethod
    def join(cls, some: Sequence["SampleSeeds"]) -> "SampleSeeds":
        """Return those of several batches of an epoch as of one."""
        positions = np.concatenate([one.positions for one in some])
        return cls(some[0].key, some[0].first, positions)

    def only(self, kept: Ints) -> "SampleSeeds":
        """Return those of the samples ``kept``, where others were skipped."""
        return SampleSeeds(self.key, self.first, self.positions[kept])

    @property
    def identity(self) -> bytes:
        """Bytes that identify this batch among all batches, epochs and seeds."""
        return self.key.tobytes() + self.first.to_bytes(8, "little")

    def batch(self, step: int) -> np.random.Generator:
        """Return the generator for a step that takes the whole batch."""
        return self._at(self.first, step, 1)

    def sample(self, step: int, at: int) -> np.random.Generator:
        """Return the generator for a step that takes sample ``at`` alone."""
        return self._at(int(self.positions[at]), step, 0)

    def draw_bytes(self) -> NDArray[np.uint8]:
        """Return a random byte for each sample."""
        return draw_numbers(self.positions, self.key ^ _BYTES, 256).astype(np.uint8)

    def _at(self, position: int, step: int, kind: int) -> np.random.Generator:
        # Philox counts in the first word: streams of different positions never overlap.
        counter = np.array([0, position, step, kind], np.uint64)
        return np.random.Generator(np.random.Philox(key=self.key, counter=counter))


def list_positions(spans: Sequence[tuple[int, int, int]]) -> Ints:
    """Return the positions in some spans: each has a start, an end and a step."""
    return np.concatenate([np.arange(*span) for span in spans])


def key_of(seed: int, epoch: int) -> Key:
    """Return what all generators of an epoch have in common."""
    digest = hashlib.blake2b(f"map:{seed}:{epoch}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)
