"""Who gets what: positions cut into global batches, and each of those among ranks.

A global batch is ``batch_size * world`` consecutive positions, and rank r takes the r-th slice
of it. So the ranks together walk the one order of the epoch, whatever their number: an epoch
that was left after some global batches can be taken up at that position by another number of
ranks. All ranks get the same number of batches. A short last global batch is split evenly, the
first ranks getting one sample more where it does not come out; where samples are fewer than
ranks, the last ranks get an empty batch.

Where an order divides files among ranks, they take every ``world``-th position instead of slices
(``stripes``); all of the above holds as well.

A process that feeds several devices may be several ranks at once: it takes the slices of all of
them, one after the other.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of ``n`` positions. ``batch_size`` is that of one rank.

    ``others`` are ranks above ``rank``, in order, whose slices are taken as well.
    """

    n: int
    batch_size: int
    rank: int = 0
    world: int = 1
    drop_last: bool = False
    others: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("n", "batch_size", "rank", "world"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            object.__setattr__(self, name, int(value))  # NumPy's would wrap, and are not JSON
        if not isinstance(self.drop_last, bool):
            raise TypeError(f"drop_last must be True or False, got {self.drop_last!r}")
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.n < 0:
            raise ValueError(f"n must be at least 0, got {self.n}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.world < 1:
            raise ValueError(f"world must be at least 1, got {self.world}")
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank must be in [0, {self.world}), got {self.rank}")
        if list(self.ranks) != sorted({*self.ranks}) or self.ranks[-1] >= self.world:
            raise ValueError(f"ranks must rise within [0, {self.world}), got {self.ranks}")

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whose slices are taken."""
        return self.rank, *self.others

    @property
    def size(self) -> int:
        """Samples of a full batch here."""
        return self.batch_size * len(self.ranks)

    @property
    def together(self) -> int:
        """Samples of a global batch, all ranks together."""
        return self.batch_size * self.world

    def batches(self, start: int = 0) -> int:
        """Batches of this and of every rank, from position ``start`` on."""
        self._check(start)
        whole, rest = divmod(self.n - start, self.together)
        return whole + (rest > 0 and not self.drop_last)

    def spans(self, k: int, start: int = 0) -> list[tuple[int, int]]:
        """The positions of global batch ``k`` that are taken: half open, one for each rank."""
        count = self.batches(start)
        if not 0 <= k < count:
            raise IndexError(f"batches must be in [0, {count}), got {k}")
        first = start + k * self.together
        each, more = divmod(min(self.together, self.n - first), self.world)
        begins = [(rank, first + rank * each + min(rank, more)) for rank in self.ranks]
        return [(begin, begin + each + (rank < more)) for rank, begin in begins]

    def stripes(self, k: int, start: int = 0) -> list[tuple[int, int, int]]:
        """The same where rank r takes every position p with ``p % world == r``.

        Beginning, end and step. A global batch has as many of them for every rank, but for a last
        one that is short.
        """
        count = self.batches(start)
        if not 0 <= k < count:
            raise IndexError(f"batches must be in [0, {count}), got {k}")
        first, end = self.consumed(k, start), self.consumed(k + 1, start)
        begins = [first + (rank - first) % self.world for rank in self.ranks]
        return [(min(begin, end), end, self.world) for begin in begins]

    def consumed(self, k: int, start: int = 0) -> int:
        """Samples of the epoch that all ranks have had after ``k`` batches."""
        self._check(start)
        return min(start + k * self.together, self.n)

    def _check(self, start: int) -> None:
        if not 0 <= start <= self.n:
            raise ValueError(f"start must be in [0, {self.n}], got {start}")
