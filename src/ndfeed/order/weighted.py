"""``Weighted``: samples drawn with replacement, each as often as its weight says.

The draw at a position is a function of seed, epoch and position, so that a run resumes at any
position at once. ``alias`` has the table that draws are looked up in.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndfeed.errors import shown
from ndfeed.order.alias import MOST, digest, draw, fill_table, measure_units
from ndfeed.order.epoch import Cut, Epoch, ScatteredWalk, Share, WalkEpoch
from ndfeed.order.permutation import Ints, Keys, key_of
from ndfeed.order.protocol import (
    Data,
    Each,
    Plain,
    Spec,
    Traits,
    check_bound,
    check_positive,
)

_EXPECTED = {"biuf": ("numbers", "float"), "iu": ("integers", "int")}
_SHARED = 16 << 20  # bytes of a table from which on the processes of a machine share it


class Weighted(Plain):
    """Samples drawn at random with replacement, with a weight for each sample.

    ``weights`` has a number of at least 0 for each sample, or is the name of a field that has. They
    need not sum up to 1. ``rows`` is how many samples an epoch draws; by default as many as there
    are. A sample may come several times in an epoch, or not at all. An array is not copied, and
    must not be changed while it is in use: give other weights to another loader.

    Every draw is independent of all others, and of batch size, ranks and threads. A sample's
    probability is its share of all weights, but for an error below ``2**-30`` of that share plus
    ``2**-29`` of the average one. No positive weight is lost.

    Takes 8 bytes of memory for each sample, besides the weights, and up to 4 more while that table
    is made. Where there are several ranks, the processes of one machine share it.
    """

    __slots__ = ("_drawn_from", "_known", "rows", "weights")

    def __init__(self, weights: ArrayLike | str, rows: int | None = None) -> None:
        self.rows = None if rows is None else check_positive("rows", rows)
        self.weights = weights if isinstance(weights, str) else _check_weights(weights, "weights")
        self._drawn_from: _Table | None = None
        self._known: _Table | None = None  # of the weights it was bound to last

    def __reduce__(self) -> tuple[type["Weighted"], tuple[ArrayLike | str, int | None]]:
        return Weighted, (self.weights, self.rows)  # another process has its own table

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Weighted):
            return NotImplemented
        if self._drawn_from is not None and self._drawn_from is other._drawn_from:
            return self.rows == other.rows
        if self._drawn_from is not None and other._drawn_from is not None:
            return self.spec() == other.spec()
        same = self.weights is other.weights or (
            np.array_equal(np.asarray(self.weights), np.asarray(other.weights))
        )
        return self.rows == other.rows and same

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        weights = self.weights
        shown = repr(weights) if isinstance(weights, str) else f"<{len(weights):,} weights>"
        return f"Weighted({shown}{'' if self.rows is None else f', rows={self.rows}'})"

    @property
    def traits(self) -> Traits:
        """Rows are drawn from all of them at every position."""
        return Traits(draws=True)

    def bind(self, data: Data) -> "Weighted":
        """Return the order with a table for the weights of some data."""
        if isinstance(self.weights, str):
            weights = _check_weights(data.values(self.weights), f"field {self.weights!r}")
        else:
            weights = self.weights
            before = self._known is not None
            check_count("weights", len(weights), data.n, "one number", bound_before=before)
        if self._known is None or self._known.weights is not weights:
            self._known = _Table(weights, data.each)
            self._known.fill(data)
        return self._of(self._known)

    def continue_with(self, known: Ints, left: Ints, done: int) -> tuple["Weighted", Ints]:
        """Return the order for the weights of some rows; it has no table to draw from."""
        return self._of(_Table(self._get_table().weights[known])), known

    def _of(self, table: "_Table") -> "Weighted":
        """Return the order for some weights, without checking all of them once more."""
        made = object.__new__(Weighted)
        made.weights, made.rows = self.weights, self.rows
        made._drawn_from = made._known = table
        return made

    def cut(self, share: Share, seed: int, epoch: int) -> Cut:
        """Cut the draws of an epoch into batches of one size."""
        return share if self.rows is None else replace(share, n=self.rows)

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """Make one epoch of draws from ``n`` samples."""
        table = self._get_table()
        if n != len(table.weights):
            raise ValueError(f"the order is for {len(table.weights):,} samples, got {n:,}")
        rows = n if self.rows is None else self.rows
        return WalkEpoch(_Draws(table.columns, rows, key_of("weighted", seed, epoch)))

    def spec(self) -> Spec:
        """Say which order this is, for JSON; compared on resume."""
        table = self._get_table()
        rows = len(table.weights) if self.rows is None else self.rows
        return {"kind": "weighted", "rows": rows, "weights": table.digest}

    def _get_table(self) -> "_Table":
        return check_bound(self._drawn_from)


class _Table:
    """The columns of a draw, and the digest that tells its weights from others."""

    columns: Keys

    def __init__(self, weights: NDArray[Any], each: Each = map) -> None:
        self.weights = weights
        self._units = measure_units(weights, each)
        self._digest: str | None = None

    def fill(self, data: Data) -> None:
        """Compute the columns, which all processes of a machine share if they are large."""
        size = 8 * len(self.weights)
        if data.world > 1 and size >= _SHARED:
            fill = partial(self._fill, data.each)
            self.columns = data.share(f"{self.digest}", size, fill).view(np.uint64)
        else:
            self.columns = np.empty(len(self.weights), np.uint64)
            fill_table(self.weights, self._units, self.columns, data.each)

    @property
    def digest(self) -> str:
        """What tells the weights from others."""
        if self._digest is None:
            self._digest = digest(self.weights, self._units)
        return self._digest

    def _fill(self, each: Each, out: NDArray[np.uint8]) -> None:
        fill_table(self.weights, self._units, out.view(np.uint64), each)


class _Draws(ScatteredWalk):
    """The walk of an epoch of draws."""

    def __init__(self, columns: Keys, rows: int, key: int) -> None:
        self.n = rows
        self._columns, self._key = columns, key

    def at(self, positions: Ints) -> Ints:
        return draw(self._columns, self._key, positions)


def _check_weights(given: ArrayLike, name: str) -> NDArray[Any]:
    """Return weights that are finite, none negative, and not all zero."""
    if isinstance(given, Mapping):
        raise TypeError(
            f"{name} must have one number for each sample, got a {type(given).__name__}; use "
            "ndfeed.Balanced(field, weights=…) to give a weight to each class"
        )
    weights = as_vector(given, name, "biuf")
    if weights.dtype.itemsize > np.dtype(np.float64).itemsize:  # of more than 64 bits
        with np.errstate(over="ignore", under="ignore"):  # what becomes infinite is refused below
            weights = weights.astype(np.float64)
    if not len(weights):
        raise ValueError(f"{name} must have at least one number: there is no sample to draw")
    if len(weights) > MOST:
        raise ValueError(f"{name} must be at most 2**31 numbers, got {len(weights):,}")
    least, largest = weights.min(), weights.max()
    if not (np.isfinite(least) and np.isfinite(largest)):
        at = _first(weights, lambda part: ~np.isfinite(part))
        raise ValueError(
            f"{name} must be finite, got {weights[at]} for sample {at}; use 0 for samples that "
            "are never to be drawn"
        )
    if least < 0:
        at = _first(weights, lambda part: part < 0)
        raise ValueError(
            f"{name} must not be negative, got {weights[at]} for sample {at}; use 0 for samples "
            "that are never to be drawn"
        )
    if not largest > 0:
        raise ValueError(f"{name} must not all be 0; give a positive weight to some sample")
    return weights


def _first(weights: NDArray[Any], wrong: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> int:
    return int(np.argmax(wrong(weights)))


def check_count(
    name: str, count: int, n: int, what: str = "one", *, bound_before: bool = False
) -> None:
    """Refuse an array for another number of samples.

    One that did fit before was given for data that has changed since, as after ``refresh``.
    """
    if count == n:
        return
    remedy = "pass as many, or take() the samples they belong to"
    if bound_before:
        remedy = "the data has changed: use the name of a field, or make a new loader with as many"
    raise ValueError(f"{name} must have {what} for each of {n:,} samples, got {count:,}; {remedy}")


def as_vector(given: ArrayLike, name: str, kinds: str) -> NDArray[Any]:
    """Return an array with one value for each sample, of a dtype of some kinds, or refuse it."""
    try:
        found = np.asarray(given)
    except ValueError:  # lists of different lengths
        found = np.asarray(None)
    except (TypeError, RuntimeError) as error:  # tensors with gradients, or on a GPU
        raise TypeError(
            f"{name} must be an array, and NumPy cannot read this {type(given).__name__} "
            f"({shown(str(error))}); of a tensor, pass .detach().cpu().numpy(), of a dtype that "
            "NumPy has"
        ) from None
    if np.ma.is_masked(given):
        raise ValueError(
            f"{name} must have a value for each sample, and some are masked; give them one with "
            "filled(), or take() the samples that have one"
        )
    if found.ndim != 1:
        raise ValueError(
            f"{name} must have one value for each sample, got {type(given).__name__} of shape "
            f"{found.shape}; pass a one-dimensional array or the name of a field"
        )
    if found.dtype.kind not in kinds and len(found):
        expected, dtype = _EXPECTED.get(kinds, ("numbers or text", "str"))
        raise TypeError(
            f"{name} must be {expected}, got {found.dtype}; convert them with astype({dtype})"
        )
    return found
