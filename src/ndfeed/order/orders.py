"""The orders a loader can follow (``shuffle=``).

An order is a value, and sees no files: ``Order`` lists what it says about those it needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ndfeed.order.epoch import Epoch, Ranges, ScatteredWalk, WalkEpoch, check_span
from ndfeed.order.mixing import Parts
from ndfeed.order.permutation import EqualParts, Ints, ListedParts, key_of, permuted
from ndfeed.order.protocol import Plain, Spec, Traits, check_length, check_positive
from ndfeed.order.window import LaneWalk, WindowWalk, make_lanes


@dataclass(frozen=True, slots=True)
class Sequential(Plain):
    """Rows in the order in which they are stored."""

    @property
    def traits(self) -> Traits:
        """Rows come as they are stored."""
        return Traits(shuffled=False, grows=True)

    def parts_in_use(self, parts: int, rows: int) -> int:
        """Return two: the current file and the one before it."""
        return min(parts, 2)

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """One epoch: the same for every seed."""
        return _SequentialEpoch(check_length(n))

    def spec(self) -> Spec:
        """What this order is, for JSON; compared on resume."""
        return {"kind": "sequential"}


@dataclass(frozen=True, slots=True)
class Exact(Plain):
    """A permutation of all rows, as good as a true shuffle; nothing is stored for it."""

    @property
    def traits(self) -> Traits:
        """Rows come one by one from anywhere."""
        return Traits(grows=True)

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """One epoch."""
        return WalkEpoch(_ExactWalk(check_length(n), key_of("exact", seed, epoch)))

    def spec(self) -> Spec:
        """What this order is, for JSON; compared on resume."""
        return {"kind": "exact"}


@dataclass(frozen=True, slots=True)
class Blocks(Plain):
    """Blocks of ``rows`` rows in a permuted order, ``window`` of them mixed at a time.

    Every block is read once, whole, and is in use for one stretch of ``window * rows`` rows.
    """

    rows: int = 4096
    window: int = 32

    @property
    def traits(self) -> Traits:
        """Rows come from whole blocks."""
        return Traits(by_part=True, open_parts=self.window, grows=True)

    def find_parts(self, n: int, batch: int) -> Parts:
        """Return the blocks."""
        return Parts.equal("block", n, self.rows)

    def parts_in_use(self, parts: int, rows: int) -> int:
        """Return the files that the blocks of a window may lie in."""
        return min(parts, self.window * -(-self.rows // max(rows, 1)))

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", check_positive("rows", self.rows))
        object.__setattr__(self, "window", check_positive("window", self.window))

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """One epoch."""
        return WalkEpoch(self._walk(n, key_of("blocks", seed, epoch)))

    def spec(self) -> Spec:
        """What this order is, for JSON; compared on resume."""
        return {"kind": "blocks", "rows": self.rows, "window": self.window}

    def _walk(self, n: int, key: int) -> WindowWalk:
        return WindowWalk(EqualParts(check_length(n), self.rows, key), self.window, key)


@dataclass(frozen=True, slots=True)
class Windows(Plain):
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

    @property
    def traits(self) -> Traits:
        """Rows come from whole files."""
        return Traits(by_file=True, by_part=True, open_parts=self.files, grows=True)

    def parts_in_use(self, parts: int, rows: int) -> int:
        """Return the files of the window, and the one that it has just left."""
        return min(parts, self.files + 1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", check_positive("files", self.files))
        object.__setattr__(self, "ranks", check_positive("ranks", self.ranks))

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


class _ExactWalk(ScatteredWalk):
    """The walk of an exact shuffle."""

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        self._key = key

    def at(self, positions: Ints) -> Ints:
        return permuted(positions, self.n, self._key)
