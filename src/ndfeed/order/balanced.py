"""``Balanced``: all classes equally often, however many samples each has.

Positions come in rounds. A round has a slot for each class, or as many as its weight says, in a
permuted order. The samples of a class are permuted, too: its j-th draw is the j-th of them, and
after all have come it begins again in another order. Which draw of a class a slot is follows from
the number of its round, so nothing is counted and every position can be computed by itself.

Rounds and draws continue from one epoch to the next: what one epoch did not reach of a large class
is what the next one begins with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndfeed.order.alias import digest_of
from ndfeed.order.epoch import Cut, Epoch, ScatteredWalk, Share, WalkEpoch
from ndfeed.order.permutation import LARGEST, Ints, key_of, keys_from, permuted
from ndfeed.order.protocol import Data, Plain, Spec, check_bound, check_positive
from ndfeed.order.weighted import as_vector, check_count

_MOST_SLOTS = 1 << 24
_AT_ONCE = 1 << 16
_SHOWN = 5  # classes that an error lists


class Balanced(Plain):
    """Samples of all classes equally often, each class's own samples in a permuted order.

    ``classes`` is the name of a field with the class of each sample, or an array of classes. Of any
    ``C`` positions that make a round, each of ``C`` classes has one: after any number of batches,
    no class is ahead of another by more than one sample, counting the batches of all ranks
    together. A single rank may be ahead in one class and behind in another by a little more. A
    class's samples all come before one of them comes again, also across epochs, so that none is
    starved.

    With ``weights={"cat": 2, "dog": 1}``, a class has as many positions in each round as its weight
    says: whole numbers, 1 for classes that are not listed, 0 to leave a class out. All of the above
    then holds at the end of every round.

    ``rows`` is how many positions an epoch has. By default it is the number of samples, rounded up
    to whole rounds. Samples of large classes may not all come in one epoch, and those of small ones
    come several times. Takes up to 8 bytes of memory for each sample.
    """

    __slots__ = ("_known", "_members", "classes", "rows", "weights")

    def __init__(
        self,
        classes: ArrayLike | str,
        rows: int | None = None,
        weights: Mapping[Any, int] | None = None,
    ) -> None:
        self.classes = classes if isinstance(classes, str) else as_vector(classes, "classes", _KIND)
        self.rows = None if rows is None else check_positive("rows", rows)
        self.weights = _check_shares(weights)
        self._members: _Members | None = None
        self._known: tuple[object, _Members] | None = None  # of the classes it was bound to last

    def __reduce__(self) -> tuple[type["Balanced"], tuple[Any, ...]]:
        return Balanced, (self.classes, self.rows, self.weights)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Balanced):
            return NotImplemented
        if self._members is not None and other._members is not None:
            return self.spec() == other.spec()
        same = self.classes is other.classes or (
            np.array_equal(np.asarray(self.classes), np.asarray(other.classes))
        )
        return same and (self.rows, self.weights) == (other.rows, other.weights)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        classes = self.classes
        shown = repr(classes) if isinstance(classes, str) else f"<{len(classes):,} classes>"
        rows = "" if self.rows is None else f", rows={self.rows}"
        return f"Balanced({shown}{rows}{f', weights={self.weights}' if self.weights else ''})"

    def bind(self, data: Data) -> "Balanced":
        """Return the order for the classes of some data."""
        of = data.classes(self.classes)[0] if isinstance(self.classes, str) else self.classes
        check_count("classes", len(of), data.n, bound_before=self._known is not None)
        if self._known is None or self._known[0] is not of:
            codes, names, what = self._find_classes(data)
            if not data.n:
                raise ValueError(f"{what} must have a class for at least one sample: there is none")
            shares = _find_slots(self.weights, names, codes, what)
            self._known = of, _Members.of(codes, shares)
        made = Balanced(self.classes, self.rows, self.weights)
        made._known, made._members = self._known, self._known[1]
        return made

    def _find_classes(self, data: Data) -> tuple[NDArray[Any], Sequence[str], str]:
        if isinstance(self.classes, str):
            return *data.classes(self.classes), f"field {self.classes!r}"
        values, codes = np.unique(self.classes, return_inverse=True)
        return codes.reshape(-1), [str(value) for value in values.tolist()], "classes"

    def cut(self, share: Share, seed: int, epoch: int) -> Cut:
        """Cut the positions of an epoch into batches of one size."""
        return replace(share, n=self._count_rows())

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """Make one epoch."""
        rows, members = self._count_rows(), self._get_members()
        return WalkEpoch(_Rounds(members, rows, seed, epoch * rows % LARGEST))

    def spec(self) -> Spec:
        """Say which order this is, for JSON; compared on resume."""
        return {
            "kind": "balanced",
            "rows": self._count_rows(),
            "classes": self._get_members().digest,
        }

    def _count_rows(self) -> int:
        if self.rows is not None:
            return self.rows
        members = self._get_members()
        each = len(members.slots)
        return -(-members.samples // each) * each

    def _get_members(self) -> "_Members":
        return check_bound(self._members)


_KIND = "biufSUM"


class _Members(NamedTuple):
    """The samples of each class, one class after another; and the class of each slot of a round.

    ``nth`` is which of its class's slots a slot is, and ``shares`` how many a class has.
    """

    samples: int
    rows: NDArray[Any]
    firsts: Ints
    sizes: Ints
    slots: Ints
    nth: Ints
    shares: Ints
    digest: str

    @classmethod
    def of(cls, codes: NDArray[Any], shares: Ints) -> "_Members":
        """Sort samples by class."""
        sizes = np.bincount(codes, minlength=len(shares)).astype(np.int64)
        rows = np.argsort(codes, kind="stable")
        rows = rows.astype(np.uint32) if len(rows) < 1 << 32 else rows
        slots = np.repeat(np.arange(len(shares)), shares)
        nth = np.arange(len(slots)) - np.repeat(np.cumsum(shares) - shares, shares)
        parts = (rows[at : at + _AT_ONCE].astype(np.int64) for at in range(0, len(rows), _AT_ONCE))
        made = digest_of(part for many in (parts, _cut(sizes), _cut(shares)) for part in many)
        return cls(len(codes), rows, np.cumsum(sizes) - sizes, sizes, slots, nth, shares, made)


def _cut(numbers: Ints) -> list[Ints]:
    return [numbers[at : at + _AT_ONCE] for at in range(0, len(numbers), _AT_ONCE)]


class _Rounds(ScatteredWalk):
    """The walk of one epoch, which begins at position ``base`` of all epochs end to end."""

    def __init__(self, members: _Members, rows: int, seed: int, base: int) -> None:
        self.n = rows
        self._members = members
        self._round, self._slot = divmod(base, len(members.slots))
        self._key = key_of("balanced rounds", seed, 0)
        each = np.arange(len(members.sizes), dtype=np.int64)
        self._own = keys_from(key_of("balanced classes", seed, 0), each)

    def at(self, positions: Ints) -> Ints:
        rows, firsts, sizes, slots, nth, shares = self._members[1:7]
        number, slot = np.divmod(positions + self._slot, len(slots))
        number += self._round
        slot = permuted(slot, len(slots), keys_from(self._key, number))
        own = slots[slot]
        turn, place = np.divmod(number * shares[own] + nth[slot], sizes[own])
        place = permuted(place, sizes[own], keys_from(self._own[own], turn))
        found: Ints = rows[firsts[own] + place].astype(np.int64)
        return found


def _check_shares(weights: Mapping[Any, int] | None) -> dict[str, int]:
    """Return whole numbers by the text of a class's name."""
    if weights is None:
        return {}
    if not isinstance(weights, Mapping):
        raise TypeError(
            f'weights must be a dict of classes such as {{"cat": 2}}, got {type(weights).__name__}'
        )
    for name, share in weights.items():
        given: object = share
        whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
        if not whole or share < 0:
            raise ValueError(
                f"weights must be whole numbers of at least 0, got {share!r} for class {name!r}; "
                "use 3 and 2 for 1.5 and 1"
            )
        if share > _MOST_SLOTS:
            raise ValueError(
                f"weights must sum up to 1 to {_MOST_SLOTS:,}, got {share:,} for class {name!r}; "
                "divide them by a common factor"
            )
    return {str(name): int(share) for name, share in weights.items()}


def _find_slots(
    weights: Mapping[str, int], names: Sequence[str], codes: NDArray[Any], what: str
) -> Ints:
    """Return how many slots of a round each class has."""
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise ValueError(
            f"weights has class {unknown[0]!r}, but {what} has {_list(names)}; use one of these"
        )
    shares = np.array([weights.get(name, 1) for name in names], np.int64)
    sizes = np.bincount(codes, minlength=len(names))
    empty = [name for name, share, n in zip(names, shares, sizes, strict=True) if share and not n]
    if empty:
        left_out = ", ".join(f"{name!r}: 0" for name in empty[:_SHOWN])
        raise ValueError(
            f"{what} has no sample of class {_list(empty)}, which cannot be drawn; leave it out "
            f"with weights={{{left_out}}}"
        )
    if not shares.any():
        raise ValueError(
            f"weights must not all be 0, for {_list(names)}; give a positive one to some class"
        )
    if shares.sum() > _MOST_SLOTS:
        raise ValueError(
            f"weights must sum up to 1 to {_MOST_SLOTS:,}, got {shares.sum():,}; divide them by "
            "a common factor"
        )
    return shares


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
