"""What an order is: which row comes at which position of an epoch.

An order is a value. It sees no files and no samples: ``Data`` lists what it may ask about them.
``begin`` makes an epoch of it, which is a function of the order, the data, the seed and the epoch
alone, and ``cut`` says how that epoch is cut into batches.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ndfeed.order.epoch import Cut, Epoch, Share
from ndfeed.order.mixing import Mixes, Mixing
from ndfeed.order.permutation import LARGEST, Ints

T = TypeVar("T")

# Like ``map``; the items are a sequence.
Each = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
Fill = Callable[[NDArray[np.uint8]], None]
Spec = dict[str, Any]  # JSON: numbers and short texts, in lists and dicts


class Data(Protocol):
    """What an order may ask about the data: never a sample, only a number for each of them.

    ``n`` is how many samples there are, ``batch_size`` how many a rank gets at a time, at most if
    there is a budget of ``tokens``, and ``world`` how many ranks there are.
    """

    @property
    def n(self) -> int:
        """How many samples there are."""
        ...

    @property
    def batch_size(self) -> int:
        """How many samples a rank gets at a time."""
        ...

    @property
    def tokens(self) -> int:
        """How long the samples of a batch may be together when padded; 0 if that does not count."""
        ...

    @property
    def world(self) -> int:
        """How many ranks there are."""
        ...

    def values(self, field: str) -> NDArray[Any]:
        """Return the value of a field in every sample."""
        ...

    def classes(self, field: str) -> tuple[NDArray[Any], Sequence[str]]:
        """Return the class of every sample as a number from 0 on, and the names of all classes."""
        ...

    def lengths(self, field: str) -> Ints:
        """Return the length of a field in every sample."""
        ...

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """Do what ``map`` does, with several calls at once."""
        ...

    def share(self, name: str, size: int, fill: Fill) -> NDArray[np.uint8]:
        """Return ``size`` bytes, computed by ``fill`` once for all processes of a machine.

        ``name`` is a digest, of 32 digits, of what they are computed from.
        """
        ...


class Progress(NamedTuple):
    """What a state says about a position: the order it belongs to, and where in it.

    ``more`` is what the order itself added to the state.
    """

    order: Spec
    epoch: int
    samples: int
    more: Mapping[str, Any]


class Traits(NamedTuple):
    """What a loader has to know about an order, so that nobody has to ask which one it is.

    - ``shuffled``: rows come in another order than they are stored in.
    - ``by_file``: ``begin`` needs ``counts``, the rows of each file, which must lie side by side.
    - ``by_part``: rows come from whole blocks or files, which are prefetched as such.
    - ``open_parts``: how many of those are mixed at a time.
    - ``steady``: every epoch has as many positions as the others.
    - ``grows``: an epoch can take in rows that were added, since it needs to know nothing of them.
    - ``draws``: every position is drawn from all rows, whatever came before it, so that an epoch
      can take in rows at any of them.
    """

    shuffled: bool = True
    by_file: bool = False
    by_part: bool = False
    open_parts: int = 1
    steady: bool = True
    grows: bool = False
    draws: bool = False


class Growing(Protocol):
    """What an order says about an epoch in which rows were added."""

    def find_rest(self, n: int, seed: int, epoch: int, position: int) -> tuple[int, Ints]:
        """Return where an epoch can take in rows, from a position on, and the rows that are left.

        Those are the rows that come next, each once, before any comes again.
        """
        ...

    def continue_with(self, known: Ints, left: Ints, done: int) -> "tuple[Order, Ints] | None":
        """Return the order of the rest of an epoch of some rows, and the row of each of its own.

        ``known`` are all rows that there are in it and ``left`` those of them that come next, both
        ascending; ``done`` is how many positions are over. If none are, the order is the one that
        there would be if it was bound to these rows alone. ``None`` if nobody can tell.
        """
        ...


@runtime_checkable
class Order(Growing, Protocol):
    """Which row comes at which position of an epoch.

    ``bind`` is called for some data before anything else, and perhaps again for others. An epoch
    has as many positions as its ``cut`` says, which may be other than the number of rows.
    """

    @property
    def traits(self) -> Traits:
        """What a loader has to know about it."""
        ...

    def bind(self, data: Data) -> "Order":
        """Return the order for some data, having asked what it needs to know; refuses others."""
        ...

    def cut(self, share: Share, seed: int, epoch: int) -> Cut:
        """Cut the positions of an epoch of ``share.n`` rows into batches."""
        ...

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """Make one epoch of ``n`` rows."""
        ...

    def largest_batch(self, data: Data) -> int:
        """Return how many samples of average size the largest batch of a rank is worth.

        Called without ``bind``, to find out how much memory batches need.
        """
        ...

    def lanes(self, ranks: Sequence[int], world: int) -> Sequence[int]:
        """Return the lanes that some ranks take rows from, if files are divided among ranks."""
        ...

    def begin_lanes(
        self, n: int, seed: int, epoch: int, counts: Ints | None, lanes: Sequence[int]
    ) -> Sequence[Epoch]:
        """Make the same epoch for each of some lanes, which says when the lane's files arrive."""
        ...

    def parts_in_use(self, parts: int, rows: int) -> int:
        """Return the most files that are in use at a time, of ``parts`` with ``rows`` rows each.

        A file that was just left counts too: batches that need it may still be in progress.
        """
        ...

    def spec(self) -> Spec:
        """Say which order this is, for JSON; compared on resume."""
        ...

    def describe(self, n: int, epoch: int, samples: int) -> Spec:
        """Say more about a position, for a state; nothing if the number of samples tells all."""
        ...

    def resume(self, found: Progress) -> "tuple[Order, int] | None":
        """Return the order to continue with and the samples of its epoch that are over.

        ``None`` if the position belongs to another order.
        """
        ...


class OrderInUse(Order, Protocol):
    """An order that a loader uses, which tells how well it mixes the data."""

    @property
    def mixing(self) -> Mixing:
        """How far batches are from a true shuffle."""
        ...


class Plain(Mixes):
    """What most orders have in common.

    They need to know nothing of the data, have a position for every row, do not divide files among
    ranks, take in no rows within an epoch, and resume only where nothing was changed.
    """

    __slots__ = ()

    @property
    def traits(self) -> Traits:
        """Rows come one by one from anywhere."""
        return Traits()

    def bind(self, data: Data) -> Self:
        """Return the same order: it fits all data."""
        return self

    def cut(self, share: Share, seed: int, epoch: int) -> Cut:
        """Cut the positions of an epoch into batches of one size."""
        return share

    def largest_batch(self, data: Data) -> int:
        """Return the batch size: all batches are alike."""
        return data.batch_size

    def lanes(self, ranks: Sequence[int], world: int) -> Sequence[int]:
        """Return nothing: there are no lanes."""
        return ()

    def begin_lanes(
        self, n: int, seed: int, epoch: int, counts: Ints | None, lanes: Sequence[int]
    ) -> Sequence[Epoch]:
        """Return nothing: there are no lanes."""
        return ()

    def parts_in_use(self, parts: int, rows: int) -> int:
        """Return all files: any may be needed next."""
        return parts

    def find_rest(self: Order, n: int, seed: int, epoch: int, position: int) -> tuple[int, Ints]:
        """Return the position itself, and all rows from there on."""
        end = self.cut(Share(n, 1), seed, epoch).n
        return position, np.sort(self.begin(n, seed, epoch).rows(position, end))

    def continue_with(self, known: Ints, left: Ints, done: int) -> "tuple[Order, Ints] | None":
        """Return nothing: an epoch goes on with the rows it began with."""
        return None

    def spec(self) -> Spec:
        """Say which order this is, for JSON; compared on resume."""
        raise NotImplementedError

    def describe(self, n: int, epoch: int, samples: int) -> Spec:
        """Return nothing: the number of samples tells all."""
        return {}

    def resume(self, found: Progress) -> tuple[Self, int] | None:
        """Return this order, if it is the same one."""
        return (self, found.samples) if found.order == self.spec() else None


def is_order(value: object) -> TypeGuard[Order]:
    """Is this an order, rather than ``True``, ``False`` or something else?"""
    return isinstance(value, Plain)


def check_bound(found: T | None) -> T:
    """Return what an order has learned from data, or refuse one that has seen none."""
    if found is None:
        raise ValueError("the order has seen no data yet; pass it to a loader as shuffle=")
    return found


def check_positive(name: str, value: int) -> int:
    """Return a whole number of at least 1, or refuse it."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    if value > LARGEST:
        raise ValueError(f"{name} must be at most 2**62, got {value}")
    return int(value)  # NumPy's would wrap, and are not JSON


def check_length(n: int) -> int:
    """Return a number of rows that an order can have, or refuse it."""
    length = operator.index(n)
    if not 0 <= length <= LARGEST:
        raise ValueError(f"n must be in [0, 2**62], got {length}")
    return length
