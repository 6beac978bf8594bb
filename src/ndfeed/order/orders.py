"""The orders a loader can follow (``shuffle=``), and how well each of them mixes.

An order is a value, and sees no files: ``Order`` lists what it says about those it needs. ``begin``
makes an epoch of it, which is a function of the order, the number of rows, the seed and the epoch
alone.

How well an order mixes, as one number in ``(0, 1]``: 1 is an exact shuffle.

The worst case is that all rows of a part are alike, as in files sorted by class. Then rows of
one batch that come from one part say the same thing twice. With q the probability that two
rows of a batch are of the same part, the mean of a batch of b rows varies like
``1/b + (1 - 1/b) * q``. ``mixing`` is that of an exact shuffle divided by that of the order:
at 0.5 a batch of 256 is worth one of about 128 from an exact shuffle, if rows are that alike.
Data whose parts are mixed in themselves lose nothing, whatever the number.

For a window, q is counted from what each part gives to a slot, or to as many slots as a batch
fills, averaged over the epoch: its first slot and its last are less even than those between.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ndfeed.order.epoch import Epoch, Ranges, WalkEpoch, check_span
from ndfeed.order.permutation import LARGEST, EqualParts, Ints, ListedParts, key_of, permuted
from ndfeed.order.window import LaneWalk, WindowWalk, make_lanes

_LOOKED_AT = 64  # stretches of an epoch that stand for all of it


def mixing_ratio(b: int, q: float, exact: float) -> float:
    """The variance of a batch's mean under an exact shuffle, over that under an order."""
    return min((1 + (b - 1) * exact) / (1 + (b - 1) * q), 1.0)


def alike(amounts: Ints) -> float:
    """The probability that two different rows are of one part, given each part's rows."""
    x = amounts.astype(np.float64)
    total = float(x.sum())
    return float((x * (x - 1)).sum()) / (total * (total - 1)) if total > 1 else 1.0


def mixing_of(walk: WindowWalk, batch_size: int, exact: float) -> float:
    """The mixing of a window. A batch is taken to lie inside a slot, or to fill several."""
    b = min(batch_size, walk.n)
    if b < 2:
        return 1.0
    slots = min(max(round(b * walk.slots / walk.n), 1), walk.slots)
    at, stands_for = _sample_slots(walk.slots - slots + 1)
    amounts = [walk.amounts(int(slot), slots) for slot in at]
    weights = stands_for * [float(a.sum()) for a in amounts]
    same = np.array([alike(a) for a in amounts])
    return mixing_ratio(b, float((weights * same).sum() / weights.sum()), exact)


def _sample_slots(slots: int) -> tuple[Ints, NDArray[np.float64]]:
    """Slots from all of an epoch, more of them near its ends, and how many each stands for."""
    near = 1 << np.arange(slots.bit_length(), dtype=np.int64)
    even = np.linspace(0, slots - 1, _LOOKED_AT).astype(np.int64)
    at = np.unique(np.clip(np.concatenate((even, near, slots - 1 - near)), 0, slots - 1))
    edges = np.concatenate(([-0.5], (at[1:] + at[:-1]) / 2, [slots - 0.5]))
    return at, np.diff(edges)


__all__ = ["Blocks", "Epoch", "Exact", "Order", "Sequential", "Windows"]

Spec = dict[str, int | str]


@runtime_checkable
class Order(Protocol):
    """Which row comes at which position of an epoch.

    What it needs of files, so that nobody has to ask which order it is:

    - ``shuffled``: rows come in another order than they are stored in.
    - ``by_file``: ``begin`` needs ``counts``, the rows of each file, which must lie side by side.
    - ``by_part``: rows come from whole blocks or files, which are prefetched as such.
    - ``open_parts``: how many of those are mixed at a time.
    """

    shuffled: ClassVar[bool]
    by_file: ClassVar[bool]
    by_part: ClassVar[bool]

    @property
    def open_parts(self) -> int:
        """How many blocks or files are mixed at a time."""
        ...

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """Make one epoch of ``n`` rows."""
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

    def mixing(self, n: int, batch_size: int, counts: Ints | None = None) -> float:
        """Say how close it comes to an exact shuffle, in ``(0, 1]``."""
        ...


class _OneLane:
    """What orders have in common that do not divide files among ranks."""

    __slots__ = ()

    def lanes(self, ranks: Sequence[int], world: int) -> Sequence[int]:
        """Return nothing: there are no lanes."""
        return ()

    def begin_lanes(
        self, n: int, seed: int, epoch: int, counts: Ints | None, lanes: Sequence[int]
    ) -> Sequence[Epoch]:
        """Return nothing: there are no lanes."""
        return ()


@dataclass(frozen=True, slots=True)
class Sequential(_OneLane):
    """Rows in the order in which they are stored."""

    shuffled: ClassVar[bool] = False
    by_file: ClassVar[bool] = False
    by_part: ClassVar[bool] = False
    open_parts: ClassVar[int] = 1

    def parts_in_use(self, parts: int, rows: int) -> int:
        """Return two: the current file and the one before it."""
        return min(parts, 2)

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """One epoch: the same for every seed."""
        return _SequentialEpoch(_check_length(n))

    def spec(self) -> Spec:
        """What this order is, for JSON; compared on resume."""
        return {"kind": "sequential"}

    def mixing(self, n: int, batch_size: int, counts: Ints | None = None) -> float:
        """As if every batch came from one part: 1 over the batch size, unless parts are few.

        ``counts`` has the rows of each part; without it there are taken to be very many.
        """
        b = min(batch_size, n)
        if b < 2 or b == n:
            return 1.0
        return mixing_ratio(b, 1.0, 0.0 if counts is None else alike(np.asarray(counts)))


@dataclass(frozen=True, slots=True)
class Exact(_OneLane):
    """A permutation of all rows, as good as a true shuffle; nothing is stored for it."""

    shuffled: ClassVar[bool] = True
    by_file: ClassVar[bool] = False
    by_part: ClassVar[bool] = False
    open_parts: ClassVar[int] = 1

    def parts_in_use(self, parts: int, rows: int) -> int:
        """Return all files: any may be needed next."""
        return parts

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """One epoch."""
        return WalkEpoch(_ExactWalk(_check_length(n), key_of("exact", seed, epoch)))

    def spec(self) -> Spec:
        """What this order is, for JSON; compared on resume."""
        return {"kind": "exact"}

    def mixing(self, n: int, batch_size: int, counts: Ints | None = None) -> float:
        """1: this is what others are measured against."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Blocks(_OneLane):
    """Blocks of ``rows`` rows in a permuted order, ``window`` of them mixed at a time.

    Every block is read once, whole, and is in use for one stretch of ``window * rows`` rows.
    """

    rows: int = 4096
    window: int = 32

    shuffled: ClassVar[bool] = True
    by_file: ClassVar[bool] = False
    by_part: ClassVar[bool] = True

    @property
    def open_parts(self) -> int:
        """How many blocks are mixed at a time."""
        return self.window

    def parts_in_use(self, parts: int, rows: int) -> int:
        """Return the files that the blocks of a window may lie in."""
        return min(parts, self.window * -(-self.rows // max(rows, 1)))

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", _check_positive("rows", self.rows))
        object.__setattr__(self, "window", _check_positive("window", self.window))

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """One epoch."""
        return WalkEpoch(self._walk(n, key_of("blocks", seed, epoch)))

    def spec(self) -> Spec:
        """What this order is, for JSON; compared on resume."""
        return {"kind": "blocks", "rows": self.rows, "window": self.window}

    def mixing(self, n: int, batch_size: int, counts: Ints | None = None) -> float:
        """How close to an exact shuffle if the rows of a block are alike, in ``(0, 1]``."""
        if n < 2:
            return 1.0
        full, rest = divmod(n, self.rows)
        pairs = full * self.rows * (self.rows - 1) + rest * (rest - 1)
        return mixing_of(self._walk(n, 0), batch_size, pairs / (n * (n - 1)))

    def _walk(self, n: int, key: int) -> WindowWalk:
        return WindowWalk(EqualParts(_check_length(n), self.rows, key), self.window, key)


@dataclass(frozen=True, slots=True)
class Windows:
    """Files in a permuted order, ``files`` of them open and mixed at a time.

    For rows that cannot be read alone: every file is decoded once per epoch and released when the
    window has moved past it.

    With ``ranks`` > 1, files are divided among that many ranks, differently in every epoch and in
    equal numbers of rows, and each rank has a window over its own files. It decodes no others,
    except at the ``ranks - 1`` boundaries between ranks: a file at a boundary is decoded by both
    ranks. The world size should divide ``ranks``. With any other world size, every sample is still
    read exactly once per epoch, but several ranks may decode the same file. Only ``ranks`` is part
    of the order, not the world size, so a run can be resumed with another world size.
    """

    files: int = 16
    ranks: int = 1

    shuffled: ClassVar[bool] = True
    by_file: ClassVar[bool] = True
    by_part: ClassVar[bool] = True

    @property
    def open_parts(self) -> int:
        """How many files are mixed at a time."""
        return self.files

    def parts_in_use(self, parts: int, rows: int) -> int:
        """Return the files of the window, and the one that it has just left."""
        return min(parts, self.files + 1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", _check_positive("files", self.files))
        object.__setattr__(self, "ranks", _check_positive("ranks", self.ranks))

    def __repr__(self) -> str:
        more = f", ranks={self.ranks}" if self.ranks > 1 else ""
        return f"Windows(files={self.files}{more})"

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """One epoch over files of ``counts`` rows, ``n`` in all."""
        key = key_of("windows", seed, epoch)
        return WalkEpoch(
            self._walk(n, key, counts) if self.ranks == 1 else self._walk_lanes(n, key, counts)
        )

    def lanes(self, ranks: Sequence[int], world: int) -> Sequence[int]:
        """Return the lanes that some of ``world`` ranks take their rows from."""
        return make_lanes(self.ranks, ranks, world) if self.ranks > 1 else ()

    def begin_lanes(
        self, n: int, seed: int, epoch: int, counts: Ints | None, lanes: Sequence[int]
    ) -> Sequence[Epoch]:
        """Make the same epoch for each of ``lanes``, which says when the lane's files arrive."""
        laned = self._walk_lanes(n, key_of("windows", seed, epoch), counts)
        return [WalkEpoch(laned.lane(number)) for number in lanes]

    def spec(self) -> Spec:
        """What this order is, for JSON; compared on resume."""
        divided: Spec = {"ranks": self.ranks} if self.ranks > 1 else {}
        return {"kind": "windows", "files": self.files, **divided}

    def mixing(self, n: int, batch_size: int, counts: Ints | None = None) -> float:
        """How close to an exact shuffle if the rows of a file are alike, in ``(0, 1]``.

        Of ranks together: as if one window were open over the files of all of them.
        """
        walk = WindowWalk(self._files(n, 0, counts), self.files * self.ranks, 0)
        return mixing_of(walk, batch_size, alike(np.asarray(counts)))

    def _walk(self, n: int, key: int, counts: Ints | None) -> WindowWalk:
        return WindowWalk(self._files(n, key, counts), self.files, key)

    def _walk_lanes(self, n: int, key: int, counts: Ints | None) -> LaneWalk:
        return LaneWalk.of(self._files(n, key, counts), self.ranks, self.files, key)

    def _files(self, n: int, key: int, counts: Ints | None) -> ListedParts:
        if counts is None:
            raise ValueError("a window over files needs counts, the rows of each file")
        sizes = np.asarray(counts, np.int64)
        if (sizes < 0).any():
            raise ValueError(f"counts must be rows of files, none below 0, got {sizes.min()}")
        if int(sizes.sum()) != n:
            raise ValueError(f"counts must be the rows of each file, {n} in all, got {sizes.sum()}")
        return ListedParts.permuted(sizes, key)


ORDERS = (Sequential, Exact, Blocks, Windows)  # error messages name them in this order


def is_order(value: object) -> TypeGuard[Order]:
    """Is this an order, rather than ``True``, ``False`` or something else?"""
    return isinstance(value, ORDERS)


def _check_positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)  # NumPy's would wrap, and are not JSON


def _check_length(n: int) -> int:
    length = operator.index(n)
    if not 0 <= length <= LARGEST:
        raise ValueError(f"n must be in [0, 2**62], got {length}")
    return length


class _SequentialEpoch:
    """Rows in the order in which they are stored."""

    def __init__(self, n: int) -> None:
        self.n = n

    def rows(self, start: int, stop: int, step: int = 1) -> Ints:
        check_span(start, stop, self.n)
        return np.arange(start, stop, step, dtype=np.int64)

    def arriving(self, start: int, stop: int) -> Ranges:
        check_span(start, stop, self.n)
        return [(start, stop)]

    def held(self, position: int) -> Ranges:
        check_span(position, position, self.n)
        return []


class _ExactWalk:
    """The walk of an exact shuffle."""

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        self._key = key

    def at(self, positions: Ints) -> Ints:
        return permuted(positions, self.n, self._key)

    def arriving(self, start: int, stop: int) -> None:
        return None

    def held(self, position: int) -> None:
        return None
