"""Random generators for the functions given to ``map``, fixed by where a sample stands.

A function of single samples gets one by (seed, epoch, position of the sample, which of the maps
it is): the same whatever the batch size, the rank or the thread. A function of whole batches gets
one by the position of the batch's first sample, from which the global generators of worker
processes are seeded as well.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ndfeed.order.permutation import Ints

Key = NDArray[np.uint64]


class SampleSeeds:
    """The generators of one batch: where it begins, and where each of its samples stands."""

    __slots__ = ("_key", "_positions", "first")

    def __init__(self, key: Key, first: int, positions: Ints) -> None:
        self._key = key
        self.first = first
        self._positions = positions

    @classmethod
    def of(cls, key: Key, spans: Sequence[tuple[int, int, int]]) -> "SampleSeeds":
        """Those of a batch whose samples stand at ``spans`` of the epoch.

        Each has a beginning, an end and a step.
        """
        return cls(key, spans[0][0], np.concatenate([np.arange(*span) for span in spans]))

    def only(self, kept: Ints) -> "SampleSeeds":
        """Those of the samples ``kept``, where others were left out."""
        return SampleSeeds(self._key, self.first, self._positions[kept])

    @property
    def identity(self) -> bytes:
        """What tells this batch from all others, of this and of other epochs and seeds."""
        return self._key.tobytes() + self.first.to_bytes(8, "little")

    def batch(self, step: int) -> np.random.Generator:
        """For a step that takes the whole batch."""
        return self._at(self.first, step, 1)

    def sample(self, step: int, at: int) -> np.random.Generator:
        """For a step that takes sample ``at`` of it alone."""
        return self._at(int(self._positions[at]), step, 0)

    def _at(self, position: int, step: int, kind: int) -> np.random.Generator:
        # Philox counts in the first word: streams of different positions never meet.
        counter = np.array([0, position, step, kind], np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))


def key_of(seed: int, epoch: int) -> Key:
    """What all generators of an epoch have in common."""
    digest = hashlib.blake2b(f"map:{seed}:{epoch}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)
