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

    __slots__ = ("_first", "_known", "_members", "classes", "rows", "weights")

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
        self._first: _Members | None = None  # what comes before all others, if rows were added
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
        if values.dtype.kind in "fMm" and (values != values)[-1:].any():  # NaN comes last
            raise ValueError(
                f"classes must have one for each sample, got {values[-1]} for sample "
                f"{np.argmax(self.classes != self.classes)}; give it one, or take() the others"
            )
        return codes.reshape(-1), [str(value) for value in values.tolist()], "classes"

    def cut(self, share: Share, seed: int, epoch: int) -> Cut:
        """Cut the positions of an epoch into batches of one size."""
        return replace(share, n=self._count_rows())

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """Make one epoch."""
        return WalkEpoch(self._make_rounds(seed, epoch))

    def find_rest(self, n: int, seed: int, epoch: int, position: int) -> tuple[int, Ints]:
        """Return the end of the round, and the samples that each class's pass has left there."""
        return self._make_rounds(seed, epoch).find_rest(position)

    def continue_with(self, known: Ints, left: Ints, done: int) -> tuple["Balanced", Ints]:
        """Begin with what is left of each class; then come all of its samples, pass after pass."""
        members = self._get_members()
        codes = members.find_codes()[known]
        used = np.bincount(codes, minlength=len(members.shares)) > 0
        used |= members.shares == 0  # a class that came later is not there yet
        codes = (np.cumsum(used) - 1)[codes]
        made = Balanced(self.classes, self.rows, self.weights)
        made._members = _Members.of(codes, members.shares[used])
        if done:
            made._first = made._members.choose(np.searchsorted(known, left), codes)
            made.rows = made._count_rows(done)
        return made, known

    def _make_rounds(self, seed: int, epoch: int) -> "_Rounds":
        rows, members = self._count_rows(), self._get_members()
        if self._first is not None:
            return _Rounds(members, self._first, rows, seed, 0)
        return _Rounds(members, members.choose(_NONE, _NONE), rows, seed, epoch * rows % LARGEST)

    def spec(self) -> Spec:
        """Say which order this is, for JSON; compared on resume."""
        return {
            "kind": "balanced",
            "rows": self._count_rows(),
            "classes": self._get_members().digest,
        }

    def _count_rows(self, done: int = 0) -> int:
        """Return how many positions an epoch has after the first ones."""
        if self.rows is not None:
            return max(self.rows - done, 0)
        members = self._get_members()
        each = len(members.slots)
        return -(-max(members.samples - done, 0) // each) * each

    def _get_members(self) -> "_Members":
        return check_bound(self._members)


_KIND = "biufSUM"
_NONE: Ints = np.empty(0, np.int64)


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

    def find_codes(self) -> Ints:
        """Return the class of each sample."""
        codes = np.empty(self.samples, np.int64)
        codes[self.rows] = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return codes

    def choose(self, rows: Ints, codes: Ints) -> "_Members":
        """Return some of the samples; ``codes`` has the class of all."""
        own = codes[rows]
        sizes = np.bincount(own, minlength=len(self.sizes)).astype(np.int64)
        chosen = rows[np.argsort(own, kind="stable")].astype(self.rows.dtype)
        return self._replace(rows=chosen, firsts=np.cumsum(sizes) - sizes, sizes=sizes)


def _cut(numbers: Ints) -> list[Ints]:
    return [numbers[at : at + _AT_ONCE] for at in range(0, len(numbers), _AT_ONCE)]


class _Pass(NamedTuple):
    """Where draws of classes are: in which pass over a class, and at which place of how many.

    ``begin`` is where the samples of the pass are among all.
    """

    turn: Ints
    place: Ints
    size: Ints
    begin: Ints


class _Rounds(ScatteredWalk):
    """The walk of one epoch, which begins at position ``base`` of all epochs end to end.

    A class begins with the samples that ``first`` has of it, if any, before its first pass.
    """

    def __init__(self, members: _Members, first: _Members, rows: int, seed: int, base: int) -> None:
        self.n = rows
        self._members, self._first = members, first
        self._rows = members.rows
        if len(first.rows):
            self._rows = np.concatenate([members.rows, first.rows])
        self._round, self._slot = divmod(base, len(members.slots))
        self._key = key_of("balanced rounds", seed, 0)
        each = np.arange(len(members.sizes), dtype=np.int64)
        self._own = keys_from(key_of("balanced classes", seed, 0), each)

    def at(self, positions: Ints) -> Ints:
        slots, nth, shares = self._members[4:7]
        number, slot = np.divmod(positions + self._slot, len(slots))
        number += self._round
        slot = permuted(slot, len(slots), keys_from(self._key, number))
        own = slots[slot]
        turn, place, size, begin = self._find_pass(own, number * shares[own] + nth[slot])
        place = permuted(place, size, keys_from(self._own[own], turn))
        found: Ints = self._rows[begin + place].astype(np.int64)
        return found

    def find_rest(self, position: int) -> tuple[int, Ints]:
        """Return where the round ends, and the samples that are left in each class's pass."""
        each, shares = len(self._members.slots), self._members.shares
        rounds = -(-(self._slot + position) // each)
        own = np.flatnonzero(shares)
        turn, place, size, begin = self._find_pass(own, (self._round + rounds) * shares[own])
        counts = size - place
        of = np.repeat(np.arange(len(own)), counts)
        places = place[of] + np.arange(len(of)) - (np.cumsum(counts) - counts)[of]
        places = permuted(places, size, keys_from(self._own[own], turn), of)
        left = np.sort(self._rows[begin[of] + places].astype(np.int64))
        return min(rounds * each - self._slot, self.n), left

    def _find_pass(self, own: Ints, draws: Ints) -> _Pass:
        """Return where some draws are, of those of their classes ``own``."""
        members, first = self._members, self._first
        sizes, begins = members.sizes[own], members.firsts[own]
        if not len(first.rows):
            return _Pass(*np.divmod(draws, sizes), sizes, begins)
        early = first.sizes[own]
        turn, place = np.divmod(draws - early, sizes)
        before = turn < 0  # what is left is no more than all: it is one pass
        begins = np.where(before, len(members.rows) + first.firsts[own], begins)
        return _Pass(turn, np.where(before, draws, place), np.where(before, early, sizes), begins)


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
    found = {str(name): int(share) for name, share in weights.items()}
    if len(found) < len(weights):
        raise ValueError(
            f"weights must have each class once, got {_list(list(weights))}; 1 and '1' are the "
            "same class"
        )
    return found


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


def _list(names: Sequence[object]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
