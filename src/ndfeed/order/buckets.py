"""Batches of similar length: ``ndfeed.Buckets``.

Samples are divided into buckets by their lengths, and every batch is taken from one bucket, or
from two neighbouring ones where a bucket ends. ``bundles`` has the arithmetic.

An epoch depends on the data, the seed, the epoch and the sizes for which it was made: samples in a
batch, or tokens, and ranks. A state holds these sizes. A run that resumes with others finishes the
epoch in the order that it was begun in, and only cuts it differently; the next epoch is made for
its own sizes.
"""

import copy
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from ndfeed.errors import ResumeError
from ndfeed.order.bucket_edges import check_edges, choose_edges
from ndfeed.order.bundles import BucketWalk, BundleCut, Bundles
from ndfeed.order.epoch import Cut, Epoch, Share, WalkEpoch
from ndfeed.order.permutation import LARGEST, Ints, key_of, keys_from
from ndfeed.order.protocol import Data, Plain, Progress, Spec, Traits, check_bound, check_positive
from ndfeed.order.weighted import as_vector, check_count

_KEPT = 3  # epochs whose bundles are kept: the current one, the next one and one looked at
_LARGEST = 1 << 40  # of a global batch, and of any size in a state
_LISTED = 32  # edges that a state lists
_SHOWN = 6  # edges that a text lists


class Sizes(NamedTuple):
    """What bundles are made for: ranks, and samples in a batch of each or a token budget."""

    ranks: int
    batch_size: int
    tokens: int  # 0 if batches have ``batch_size`` samples

    def batch_of(self, longest: Ints) -> Ints:
        """Return the samples of one rank's batch, given the longest of each."""
        if not self.tokens:
            return np.full(len(longest), self.batch_size, np.int64)
        fitting: Ints = np.maximum(self.tokens // np.maximum(longest, 1), 1)
        return fitting

    def bundle_of(self, longest: Ints) -> Ints:
        """Return the samples of a bundle, given the longest of each."""
        return self.batch_of(longest) * self.ranks

    def as_spec(self) -> Spec:
        """Return the sizes for a state."""
        size = {"tokens": self.tokens} if self.tokens else {"batch_size": self.batch_size}
        return {"ranks": self.ranks, **size}

    @classmethod
    def of_spec(cls, found: Mapping[str, Any]) -> "Sizes":
        """Parse what a state has, which may come from anywhere."""
        sizes = [found.get(name, 0) for name in ("ranks", "batch_size", "tokens")]
        if not all(type(size) is int and 0 <= size <= _LARGEST for size in sizes):
            raise _damaged()
        ranks, batch_size, tokens = sizes
        if not ranks or bool(batch_size) == bool(tokens) or ranks * max(sizes) > _LARGEST:
            raise _damaged()
        return cls(ranks, batch_size, tokens)


def _damaged() -> ResumeError:
    return ResumeError.of_damage("it does not say for which batch size its buckets were made")


class Layout:
    """The samples of each bucket: ``rows`` of one after those of the other, from ``starts`` on."""

    def __init__(self, lengths: Ints, edges: tuple[int, ...]) -> None:
        bucket = np.searchsorted(np.asarray(edges, np.int64), lengths).astype(np.uint16)
        rows = np.argsort(bucket, kind="stable")
        counts = np.bincount(bucket, minlength=1)
        used = np.flatnonzero(counts)  # empty buckets play no part
        self.counts: Ints = counts[used].astype(np.int64)
        self.starts: Ints = np.concatenate(([0], np.cumsum(self.counts)))
        small = len(lengths) < 1 << 31
        self.rows: Ints = rows.astype(np.int32) if small else rows
        begins = self.starts[:-1]
        self.longest: Ints = (
            np.maximum.reduceat(lengths[rows], begins) if len(begins) else np.zeros(0, np.int64)
        )

    def begin(self, sizes: Sizes, seed: int, epoch: int) -> tuple[Bundles, BucketWalk]:
        """Make the bundles of an epoch."""
        key = key_of("buckets", seed, epoch)
        keys = keys_from(key, np.arange(len(self.counts) + 1, dtype=np.int64))
        bundles = Bundles.of(self.counts, sizes.bundle_of(self.longest), int(keys[0]))
        return bundles, BucketWalk(bundles, self.rows, self.starts, keys[1:])


class Bound:
    """What is known of the data that an order is bound to; computed when it is needed, and kept."""

    def __init__(self, lengths: Ints, edges: tuple[int, ...] | None) -> None:
        self.lengths = lengths
        self._edges = edges
        self._layouts: dict[Sizes, Layout] = {}
        self._begun: dict[tuple[Sizes, int, int], tuple[Bundles, BucketWalk]] = {}

    def layout(self, sizes: Sizes) -> Layout:
        """Return the buckets; edges that were not given depend on the sizes of batches."""
        given = self._edges
        known = Sizes(1, 1, 0) if given is not None else sizes
        found = self._layouts.get(known)
        if found is None:
            edges = choose_edges(self.lengths, sizes.bundle_of) if given is None else given
            found = self._layouts[known] = Layout(self.lengths, edges)
        return found

    def begin(self, sizes: Sizes, seed: int, epoch: int) -> tuple[Bundles, BucketWalk]:
        """Return the bundles of an epoch."""
        wanted = sizes, seed, epoch
        found = self._begun.get(wanted)
        if found is None:
            found = self.layout(sizes).begin(sizes, seed, epoch)
            kept = list(self._begun.items())[1 - _KEPT :]
            self._begun = {**dict(kept), wanted: found}  # replaced as one: no lock is needed
        return found


class Buckets(Plain):
    """Batches of samples of similar length, in a random order.

    ``field`` is the name of the field whose lengths count, or of one that holds a length for each
    sample; or an array with a length for each sample. Lengths come from headers and offsets, so
    that nothing is read for them, and are those of stored samples, before any ``map()``.

    ``edges`` are rising lengths: a bucket holds the samples up to its edge that are longer than the
    edge before, and what is longer than the last edge makes another bucket. By default they are
    chosen such that there is little padding.

    The order depends on the number of ranks. ``ranks`` makes it the same for any number of ranks up
    to that one.
    """

    __slots__ = ("_bound", "_digest", "_given", "_resumed", "_sizes", "edges", "field", "ranks")

    def __init__(
        self,
        field: str | ArrayLike,
        edges: Iterable[int] | None = None,
        ranks: int | None = None,
    ) -> None:
        self.field: str | None = field if isinstance(field, str) else None
        self._given = None if isinstance(field, str) else _as_lengths(field)
        self._digest = "" if self._given is None else _digest(self._given)
        self.edges = None if edges is None else check_edges(edges)
        self.ranks = None if ranks is None else check_positive("ranks", ranks)
        self._bound: Bound | None = None
        self._sizes = Sizes(1, 1, 0)
        self._resumed: tuple[int, Sizes] | None = None  # an epoch that was made for other sizes

    @property
    def traits(self) -> Traits:
        """Rows come one by one from anywhere.

        With ``ranks``, how bundles are cut among fewer ranks may depend on which come in turn.
        """
        return Traits(steady=self._resumed is None and self.ranks is None)

    def bind(self, data: Data) -> Self:
        """Return the order for some data, whose lengths it asks for."""
        lengths = self._find_lengths(data)
        longest = int(lengths.max(initial=0))
        if data.tokens and longest > data.tokens:
            raise ValueError(self._explain_budget(lengths, data.tokens))
        made = copy.copy(self)
        ranks = max(self.ranks or 1, data.world)
        made._sizes = Sizes(ranks, 0 if data.tokens else data.batch_size, data.tokens)
        if ranks * max(made._sizes) > _LARGEST:
            raise ValueError(
                f"Buckets makes batches of up to {_LARGEST:,} samples or tokens on all ranks "
                f"together, got {data.tokens or data.batch_size:,} on {ranks:,} ranks; pass a "
                "smaller batch_size or tokens, or fewer ranks"
            )
        if self._bound is None or self._bound.lengths is not lengths:
            made._bound = Bound(lengths, self.edges)
        return made

    def cut(self, share: Share, seed: int, epoch: int) -> Cut:
        """Cut the positions of an epoch into batches of similar length."""
        bound, sizes = self._find_bound(share.n), self._made_for(epoch)
        bundles, _ = bound.begin(sizes, seed, epoch)
        own = Sizes(share.world, share.batch_size, share.tokens)
        longest = bound.layout(sizes).longest
        return BundleCut(bundles, own.bundle_of(longest)[bundles.buckets], share)

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """Make one epoch of ``n`` rows."""
        return WalkEpoch(self._find_bound(n).begin(self._made_for(epoch), seed, epoch)[1])

    def largest_batch(self, data: Data) -> int:
        """Return how many samples of average length the largest batch is worth."""
        lengths = self._find_lengths(data)
        total, longest = int(lengths.sum()), int(lengths.max(initial=0))
        most = data.tokens or data.batch_size * longest
        least = 1 if data.tokens else data.batch_size
        return max(-(-most * len(lengths) // max(total, 1)), least)

    def smallest_batch(self, data: Data) -> int:
        """Return how many samples fit into a batch whatever their lengths are."""
        longest = int(self._find_lengths(data).max(initial=1))
        return max(data.tokens // max(longest, 1), 1) if data.tokens else data.batch_size

    def spec(self) -> Spec:
        """Say which order this is, for JSON; compared on resume."""
        by = {"lengths": self._digest} if self.field is None else {"field": self.field}
        edges = {} if self.edges is None else {"edges": _describe_edges(self.edges)}
        return {"kind": "buckets", **by, **edges}

    def describe(self, n: int, epoch: int, samples: int) -> Spec:
        """Say for which sizes the epoch was made."""
        return self._made_for(epoch).as_spec()

    def resume(self, found: Progress) -> tuple[Self, int] | None:
        """Return the order in which the rest of the epoch comes as it would have come."""
        if dict(found.order) != self.spec():
            return None
        made = copy.copy(self)
        made._resumed = None
        if found.samples and (sizes := Sizes.of_spec(found.more)) != self._sizes:
            made._resumed = found.epoch, sizes
        return made, found.samples

    def continue_with(self, known: Ints, left: Ints, done: int) -> tuple[Self, Ints]:
        """Return the same buckets of the rows that are left; edges not given are chosen anew."""
        made, lengths = copy.copy(self), self._find_bound(None).lengths[left]
        made._bound = Bound(lengths, self.edges)
        if self._given is not None:
            made._given, made._digest = lengths, _digest(lengths)
        return made, left

    @property
    def padding(self) -> float:
        """The share of padding in an epoch, if batches are padded to their longest sample.

        Computed from the lengths: nothing is read.
        """
        bound = self._find_bound(None)
        bundles, walk = bound.begin(self._sizes, 0, 0)
        if not bundles.n:
            return 0.0
        starts, sizes = bundles.starts[:-1], self._sizes
        each = sizes.batch_of(bound.layout(sizes).longest)[bundles.buckets]
        # A bundle is a batch of each rank, so batches begin every ``each`` positions of it.
        counts = -(-np.diff(bundles.starts) // each)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = np.repeat(starts, counts) + number * np.repeat(each, counts)
        lengths = bound.lengths[walk.at(np.arange(bundles.n))]
        padded = np.maximum.reduceat(lengths, begins) * np.diff(np.append(begins, bundles.n))
        return 1.0 - float(lengths.sum()) / max(float(padded.sum()), 1.0)

    def _find_lengths(self, data: Data) -> Ints:
        """Return the length of every sample."""
        if self.field is not None:
            return data.lengths(self.field)
        assert self._given is not None
        check_count("lengths", len(self._given), data.n)
        return self._given

    def _explain_budget(self, lengths: Ints, tokens: int) -> str:
        at = int(np.argmax(lengths))
        field = "lengths" if self.field is None else f"ds.lengths({self.field!r})"
        return (
            f"tokens must hold the longest sample: number {at:,} has {int(lengths[at]):,}, got "
            f"{tokens:,}; raise tokens, or leave out long samples with "
            f"ds.take({field} <= {tokens})"
        )

    def _find_bound(self, n: int | None) -> Bound:
        bound = check_bound(self._bound)
        if n is not None and n != len(bound.lengths):
            raise ValueError(f"n must be {len(bound.lengths)}, as many as lengths, got {n}")
        return bound

    def _made_for(self, epoch: int) -> Sizes:
        """Return the sizes that an epoch is made for."""
        resumed = self._resumed
        return resumed[1] if resumed is not None and resumed[0] == epoch else self._sizes

    def _key(self) -> tuple[Any, ...]:
        return self.field, self._digest, self.edges, self.ranks, self._sizes, self._resumed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Buckets) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __getstate__(self) -> tuple[Any, ...]:
        # Without what is known of the data: it is bound again where it is used.
        return self._given, self._key()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._given, key = state
        self.field, self._digest, self.edges, self.ranks, self._sizes, self._resumed = key
        self._bound = None

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        made.__setstate__(self.__getstate__())
        made._bound = self._bound
        return made

    def __repr__(self) -> str:
        by = repr(self.field) if self._given is None else f"{len(self._given):,} lengths"
        edges = "" if self.edges is None else f", edges={_show_edges(self.edges)}"
        ranks = "" if self.ranks is None else f", ranks={self.ranks}"
        return f"Buckets({by}{edges}{ranks})"


def _as_lengths(given: ArrayLike) -> Ints:
    """Return lengths that a caller gave, or refuse them."""
    found = as_vector(given, "lengths", "iu")
    if len(found) and int(found.min()) < 0:
        raise ValueError(f"lengths must not be negative, got {int(found.min())}")
    if len(found) and int(found.max()) > LARGEST:
        raise ValueError(f"lengths must be at most 2**62, got {int(found.max())}")
    return found.astype(np.int64)


def _digest(values: Ints) -> str:
    return hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=8).hexdigest()


def _describe_edges(edges: tuple[int, ...]) -> str | list[int]:
    """Return edges for a state: a digest of them, if they are many."""
    return list(edges) if len(edges) <= _LISTED else _digest(np.asarray(edges, np.int64))


def _show_edges(edges: tuple[int, ...]) -> str:
    if len(edges) <= _SHOWN:
        return str(edges)
    return f"({', '.join(map(str, edges[:_SHOWN]))}, … {len(edges):,} in all)"
