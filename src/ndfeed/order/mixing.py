"""How well an order mixes: a number in ``(0, 1]``, where 1 is an exact shuffle.

The worst case is that all rows of a part are alike, as in files sorted by class. Then rows of one
batch that come from one part say the same thing twice. If every part has one value, drawn with
variance 1, the mean of a batch of b rows has the variance ``1/b + (1 - 1/b) * q``, where q is the
probability that two rows of the batch are of the same part, and the mean of all n rows has that of
one batch of n. What matters to training is how far batches are from the mean of all rows, and since
that is the mean of the batches, the variance of the distance is the difference of the two. The
*mixing ratio* is this variance under an exact shuffle divided by that under the order. An exact
shuffle in batches of b rows has ``(1/b - 1/n) * (1 - q)``, so at a ratio of 0.5 a batch of 256 is
worth one of 128 from an exact shuffle, if rows are that alike. Data whose parts are mixed in
themselves lose nothing, whatever the number.

``measure`` counts q in batches of the order, since a model of it would be another one for every
order, and was wrong where batches and windows do not fit each other.

``Mixing`` is what users read as ``loader.order.mixing``.
"""

import copy
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from ndfeed.order.permutation import Ints

_EPOCHS = 4  # epochs in which batches are counted: files come in another order in each
_BATCHES = 16  # batches of each that are counted
_PLACES = 8  # places in each at which they lie
_OPEN_PARTS = 256  # parts that are open at all those places together, if windows are wide
_COUNTED_ROWS = 1 << 18  # rows of all those batches, unless a few batches have more

_NOTABLE = 0.15  # ratios that differ by a smaller share are not told apart
_EXACT = 0.995  # shown as 1.00

# Parts that are no files or blocks: rows next to each other.
_IN_ROW = {"run": "that are stored next to each other", "value": "of similar value"}


def mixing_ratio(n: int, b: int, q: float, exact: float) -> float:
    """How much less the means of batches vary under an exact shuffle of ``n`` rows.

    ``q`` and ``exact`` are the probabilities that two rows of a batch are of one part.
    """
    best = (1 / b - 1 / n) * (1 - exact)
    ours = best + (1 - 1 / b) * (q - exact)
    return best / ours if ours > best > 0 else 1.0


def alike(amounts: Ints) -> float:
    """The probability that two different rows are of one part, given each part's rows."""
    x = amounts.astype(np.float64)
    total = float(x.sum())
    return float((x * (x - 1)).sum()) / (total * (total - 1)) if total > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Mixing:
    """How far the batches of a loader are from those of a true shuffle; ``print`` it to read it.

    - ``order``, ``rows``, ``batch`` and ``ranks``: the order, the samples of an epoch, and those of
      a batch of all ranks together.
    - ``ratio``, in (0, 1]: a batch is worth ``worth``, that is ``ratio * batch``, rows of a true
      shuffle, in the worst case that the rows of each ``part`` are alike. 1 is a true shuffle.
    - ``part``, ``parts``, ``drawn``: what the order mixes (``"file"``, ``"block"``, ``"run"`` for
      neighbouring rows, or ``"value"`` for those of similar value), how many there are, and of how
      many a batch has rows on average.
    - ``reach``: the share of the epoch's rows that are mixed with each other at a time.
    - ``error``, ``batches``: the standard error of the ratio, and in how many batches of this
      loader it was counted.
    - ``by_file``: the same where only the rows of a file are alike, and files are not the parts
      that the order mixes; otherwise ``None``.
    """

    order: str
    rows: int
    batch: int
    ranks: int
    ratio: float
    part: str
    parts: int
    drawn: float
    reach: float
    error: float
    by_file: float | None
    batches: int

    @property
    def worth(self) -> int:
        """Rows of a true shuffle that a batch is worth in the worst case."""
        return max(round(self.ratio * self.batch), min(self.batch, 1))

    @property
    def is_exact(self) -> bool:
        """Are batches as well mixed as those of a true shuffle, whatever is alike?"""
        return self.ratio >= _EXACT

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self) | {"worth": self.worth, "text": f"{self}"}

    def __str__(self) -> str:
        if self.is_exact:
            return f"{self._batch} is as well mixed as by a true shuffle (1.00)"
        text = (
            f"{self._batch} {self._source}, it is worth {_rows(self.worth)} of a true shuffle "
            f"({self.ratio:.2f}); "
        )
        text += (
            "shuffle=True mixes them" if self.part in _IN_ROW else "shuffle=ndfeed.Exact() is 1.00"
        )
        if self.by_file is not None and self._is_off(self.by_file):
            text += f"; if only the rows of a file are alike, it is {self.by_file:.2f}"
        return text

    def _is_off(self, counted: float) -> bool:
        """Does a ratio differ by more than chance explains, and than anybody would mind?"""
        least = max(_NOTABLE * max(counted, self.ratio), 0.01, 3 * self.error)
        return abs(counted - self.ratio) > least

    @property
    def _batch(self) -> str:
        if self.ranks == 1:
            return f"a batch of {_rows(self.batch)}"
        return f"a batch of {_rows(self.batch)} on {self.ranks} ranks together"

    @property
    def _source(self) -> str:
        if self.part in _IN_ROW:
            return f"has rows {_IN_ROW[self.part]}: if those are alike"
        drawn, name = max(round(self.drawn), 1), self.part
        return (
            f"draws from about {drawn:,} of {self.parts:,} {name}s: if the rows of a {name} are "
            "alike"
        )


def _rows(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"


class Parts(NamedTuple):
    """Parts of which the rows may be alike.

    ``find`` returns the part of each row of an order; ``alike`` is the probability that two
    different rows of the epoch are of one part.
    """

    name: str
    number: int
    alike: float
    find: Callable[[Ints], Ints]

    @classmethod
    def listed(cls, name: str, counts: Ints) -> "Parts":
        """Parts of ``counts`` rows each, one after the other."""
        ends = np.cumsum(counts)
        used = int(np.count_nonzero(counts))
        return cls(name, used, alike(counts), lambda rows: np.searchsorted(ends, rows, "right"))

    @classmethod
    def equal(cls, name: str, n: int, size: int) -> "Parts":
        """``n`` rows in parts of ``size`` rows; the last may have fewer."""
        full, rest = divmod(n, size)
        pairs = full * size * (size - 1) + rest * (rest - 1)
        same = pairs / (n * (n - 1)) if n > 1 else 1.0
        return cls(name, full + (rest > 0), same, lambda rows: rows // size)


class Measured(NamedTuple):
    """What was counted in batches: the ratio, and the parts of a batch on average.

    ``error`` is the standard error of the ratio.
    """

    ratio: float
    drawn: float
    error: float


def choose_batches(n: int, batch: int, open_parts: int = 1) -> Iterator[tuple[int, list[int]]]:
    """Choose some full batches of some epochs; yield the epoch, and positions of its batches.

    They are a few in a row at each of some places, since it is a place in the epoch that costs. The
    more parts are open at a time, the fewer places show what is usual.
    """
    full = n // max(batch, 1)
    wanted = min(max(_COUNTED_ROWS // (_EPOCHS * max(batch, 1)), 1), _BATCHES, full)
    places = min(max(_OPEN_PARTS // open_parts, 1), _PLACES, wanted)
    rng = np.random.default_rng(0)
    for epoch in range(_EPOCHS if wanted else 0):
        starts = (np.arange(places) + rng.random(places)) * (full / places)
        runs = starts.astype(np.int64)[:, None] + np.arange(max(wanted // places, 1))
        yield epoch, (np.unique(np.minimum(runs, full - 1)) * batch).tolist()


def measure(n: int, batches: list[Ints], parts: Parts) -> Measured:
    """Count how often two rows of a batch are of the same part."""
    found = [np.unique(parts.find(rows), return_counts=True)[1] for rows in batches]
    drawn = float(np.mean([len(amounts) for amounts in found]))
    same = np.array([alike(amounts) for amounts in found])
    q, b = float(same.mean()), len(batches[0])
    # At least as if one more pair had been of the same part, or of different ones.
    error = max(float(same.std()) / math.sqrt(len(same)), 2 / (len(same) * max(b * (b - 1), 2)))
    ratios = [mixing_ratio(n, b, one, parts.alike) for one in (q - error, q, q + error)]
    # Chance alone explains a ratio that is so close to 1.
    ratio = 1.0 if q - 3 * error <= parts.alike else ratios[1]
    return Measured(ratio, drawn, max(ratios[0] - ratios[1], ratios[1] - ratios[2]))


class Mixes:
    """What orders have in common: once a loader uses them, they tell how well they mix."""

    __slots__ = ("_measure",)

    _measure: Callable[[], Mixing]  # neither compared nor shown nor pickled

    def find_parts(self, n: int, batch: int) -> Parts | None:
        """Return the parts that an order goes by, if these are not files."""
        return None

    @property
    def mixing(self) -> Mixing:
        """How far batches are from a true shuffle; of ``loader.order``. Computed on first use."""
        try:
            measured = self._measure
        except AttributeError:
            raise AttributeError(
                f"{self} is not in use, and how well it mixes depends on the data; read "
                "loader.order.mixing of a loader"
            ) from None
        return measured()

    def with_mixing(self, measure: Callable[[], Mixing]) -> Self:
        """Return the same order, of which ``mixing`` is what ``measure`` returns."""
        found = copy.copy(self)
        object.__setattr__(found, "_measure", functools.cache(measure))
        return found
