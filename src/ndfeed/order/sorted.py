"""``Sorted``: samples by a value, easy ones first for instance, in stages that are shuffled."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndfeed.order.alias import digest_of
from ndfeed.order.epoch import Epoch, ScatteredWalk, WalkEpoch
from ndfeed.order.mixing import Parts
from ndfeed.order.permutation import Ints, key_of, keys_from, permuted
from ndfeed.order.protocol import Data, Plain, Spec, check_bound, check_positive
from ndfeed.order.weighted import as_vector, check_count

_AT_ONCE = 1 << 16

_Known = tuple[NDArray[Any], NDArray[Any], Spec]  # values, rows by value, and their spec


class Sorted(Plain):
    """Samples in ascending order of a value: a curriculum.

    ``values`` is the name of a field, or an array with a value for each sample; or ``lengths`` is
    the name of a field whose length counts. Samples of equal value stay in the order in which they
    are stored. With ``reverse``, the largest come first.

    With ``stages``, the sorted samples are cut into that many stages of equal size, each of which
    is shuffled in every epoch anew: with ``stages=4``, an epoch begins with the first quarter, in
    random order. Takes up to 8 bytes of memory for each sample.
    """

    __slots__ = ("_known", "_rows", "_spec", "lengths", "reverse", "stages", "values")

    def __init__(
        self,
        values: ArrayLike | str | None = None,
        *,
        lengths: str | None = None,
        reverse: bool = False,
        stages: int | None = None,
    ) -> None:
        if (values is None) == (lengths is None):
            raise TypeError(
                'Sorted takes values or lengths: Sorted("score") for the values of a field, '
                'Sorted(lengths="text") for the lengths of one'
            )
        if lengths is not None and not isinstance(lengths, str):
            raise TypeError(
                f"lengths must be the name of a field, got {type(lengths).__name__}; pass an "
                "array as values"
            )
        given = values if values is None or isinstance(values, str) else _check(values, "values")
        self.values, self.lengths, self.reverse = given, lengths, bool(reverse)
        self.stages = None if stages is None else check_positive("stages", stages)
        self._rows: NDArray[Any] | None = None
        self._spec: Spec = {}
        self._known: _Known | None = None  # of what it was bound to last

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (self.values, self.lengths, self.reverse, self.stages)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sorted):
            return NotImplemented
        if self._rows is not None and other._rows is not None:
            return self.spec() == other.spec()
        same = self.values is other.values or (
            np.array_equal(np.asarray(self.values), np.asarray(other.values))
        )
        mine = self.lengths, self.reverse, self.stages
        return same and mine == (other.lengths, other.reverse, other.stages)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = self.values
        if values is None:
            shown = f"lengths={self.lengths!r}"
        else:
            shown = repr(values) if isinstance(values, str) else f"<{len(values):,} values>"
        reverse = ", reverse=True" if self.reverse else ""
        stages = "" if self.stages is None else f", stages={self.stages}"
        return f"Sorted({shown}{reverse}{stages})"

    def bind(self, data: Data) -> "Sorted":
        """Return the order for the values of some data."""
        if self.lengths is not None:
            values: NDArray[Any] = data.lengths(self.lengths)
        elif isinstance(self.values, str):
            values = _check(data.values(self.values), f"field {self.values!r}")
        else:
            values = np.asarray(self.values)
        check_count("values", len(values), data.n, bound_before=self._known is not None)
        if self.stages is not None and self.stages > data.n > 0:
            raise ValueError(
                f"stages must be at most the number of samples, {data.n:,}, got {self.stages:,}; "
                "pass how many stages an epoch has, not how many samples are in one"
            )
        if self._known is None or self._known[0] is not values:
            self._known = values, *self._sort(values)
        return self._of(self._known, self.stages)

    def continue_with(self, known: Ints, left: Ints, done: int) -> tuple["Sorted", Ints]:
        """Sort what is left; stages stay about as large as those of all rows there are."""
        values = check_bound(self._known)[0][left]
        stages = self.stages
        if stages is not None:
            stages = max(-(-stages * len(left) // max(done + len(left), 1)), 1)
        return self._of((values, *self._sort(values)), stages), left

    def _sort(self, values: NDArray[Any]) -> tuple[NDArray[Any], Spec]:
        """Return rows by value, and what tells this order from others."""
        rows = _sort(values, self.reverse)
        cuts = range(0, len(rows), _AT_ONCE)
        told = digest_of(rows[at : at + _AT_ONCE].astype(np.int64) for at in cuts)
        return rows, {"kind": "sorted", "stages": self.stages or 0, "rows": told}

    def _of(self, known: "_Known", stages: int | None) -> "Sorted":
        """Return the order for some values, without checking all of them once more."""
        made = object.__new__(Sorted)
        made.values, made.lengths = self.values, self.lengths
        made.reverse, made.stages = self.reverse, stages
        made._known = _, made._rows, made._spec = known
        return made

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """Make one epoch."""
        rows = self._get_rows()
        if n != len(rows):
            raise ValueError(f"the order is for {len(rows):,} samples, got {n:,}")
        return WalkEpoch(_Stages(rows, self.stages, key_of("sorted", seed, epoch)))

    def find_parts(self, n: int, batch: int) -> Parts:
        """Return stretches of samples of similar value, a batch long."""
        rows = self._get_rows()
        place = np.empty(n, np.int64)
        place[rows] = np.arange(n)
        stretches = Parts.equal("value", n, max(batch, 1))
        return stretches._replace(find=lambda those: stretches.find(place[those]))

    def spec(self) -> Spec:
        """Say which order this is, for JSON; compared on resume."""
        self._get_rows()
        return dict(self._spec)

    def _get_rows(self) -> NDArray[Any]:
        return check_bound(self._rows)


def _remake(
    values: NDArray[Any] | str | None, lengths: str | None, reverse: bool, stages: int | None
) -> Sorted:
    return Sorted(values, lengths=lengths, reverse=reverse, stages=stages)


class _Stages(ScatteredWalk):
    """The walk of one epoch: each stage permuted in itself."""

    def __init__(self, rows: NDArray[Any], stages: int | None, key: int) -> None:
        self.n = len(rows)
        self._rows = rows
        self._bounds: Ints | None = None
        if stages is not None:
            each = np.arange(min(stages, max(self.n, 1)) + 1)
            self._bounds = np.array([int(one) * self.n // (len(each) - 1) for one in each])
            self._keys = keys_from(key, each[:-1])

    def at(self, positions: Ints) -> Ints:
        place = positions
        if self._bounds is not None:
            stage = np.searchsorted(self._bounds, positions, side="right") - 1
            sizes = np.diff(self._bounds)
            place = permuted(positions - self._bounds[stage], sizes, self._keys, stage)
            place += self._bounds[stage]
        return self._rows[place].astype(np.int64)


def _check(given: ArrayLike, name: str) -> NDArray[Any]:
    """Return values that have an order, one for each sample."""
    values = as_vector(given, name, "biufSUMm")
    unknown = np.isnat(values) if values.dtype.kind in "Mm" else values != values
    if unknown.any():
        raise ValueError(
            f"{name} must have an order, got {values[np.argmax(unknown)]} for sample "
            f"{np.argmax(unknown)}; replace it by a number"
        )
    return values


def _sort(values: NDArray[Any], reverse: bool) -> NDArray[Any]:
    """Return rows by ascending value, or descending; those of equal value by ascending row."""
    if reverse:
        rows = len(values) - 1 - np.argsort(values[::-1], kind="stable")[::-1]
    else:
        rows = np.argsort(values, kind="stable")
    return rows.astype(np.uint32) if len(rows) < 1 << 32 else rows
