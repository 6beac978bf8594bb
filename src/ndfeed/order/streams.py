"""The sources of a mixture as endless streams of rows, and an epoch that interleaves them.

A stream is the source's own order's epoch 0, then its epoch 1, and so on, here called passes. An
epoch of the mixture takes up every stream where the epoch before left it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.order.epoch import (
    Arrival,
    Epoch,
    Ranges,
    ScatteredWalk,
    Walk,
    WalkEpoch,
    Window,
    rows_at,
)
from ndfeed.order.period import Period, period_of
from ndfeed.order.permutation import Ints
from ndfeed.order.protocol import Data, Fill, Order
from ndfeed.order.weighting import Layout, Stretch

_PASSES = 4  # passes of a source that are remembered
_STRETCHES = 4  # stretches of an epoch that are remembered


@dataclass(frozen=True, slots=True)
class Source:
    """A source: its name, how many rows it has, and their order.

    ``length`` is how many positions a pass of the order has, once that is known. ``data`` is the
    fingerprint of the rows. If they became more during a pass, ``grown`` is the order with that
    pass in it.
    """

    name: str
    rows: int
    order: Order
    length: int = 0
    data: str = ""
    grown: Order | None = None

    @property
    def in_use(self) -> Order:
        """The order that passes follow."""
        return self.order if self.grown is None else self.grown


def cut_counts(counts: Ints, start: int, end: int) -> Ints:
    """Return the rows of the files of one source."""
    ends = np.cumsum(counts)
    return counts[np.searchsorted(ends, start, side="right") : np.searchsorted(ends, end) + 1]


@dataclass(frozen=True, slots=True)
class SourceData:
    """What is known about the samples of one source: some of all samples."""

    data: Data
    start: int
    stop: int

    @property
    def n(self) -> int:
        """How many samples there are."""
        return self.stop - self.start

    @property
    def batch_size(self) -> int:
        """How many samples a rank gets at a time, of all sources together."""
        return self.data.batch_size

    @property
    def tokens(self) -> int:
        """How long the samples of a batch may be together when padded; 0 if that does not count."""
        return self.data.tokens

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.data.world

    def values(self, field: str) -> NDArray[Any]:
        """Return the value of a field in every sample."""
        return self.data.values(field)[self.start : self.stop]

    def classes(self, field: str) -> tuple[NDArray[Any], Sequence[str]]:
        """Return the class of every sample as a number from 0 on, and the names of all classes."""
        codes, names = self.data.classes(field)
        return codes[self.start : self.stop], names

    def lengths(self, field: str) -> Ints:
        """Return the length of a field in every sample."""
        return self.data.lengths(field)[self.start : self.stop]

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """Do what ``map`` does, with several calls at once."""
        return self.data.each(function, items)

    def share(self, name: str, size: int, fill: Fill) -> NDArray[np.uint8]:
        """Return bytes that all processes of this machine share."""
        return self.data.share(name, size, fill)


class Stream:
    """The rows of one source from a position on, pass after pass; ``at`` is its first row."""

    def __init__(self, source: Source, at: int, key: int, base: int, files: Ints | None) -> None:
        self.source = source
        self.length = source.length
        self._at, self._key, self._base, self._files = at, key, base, files
        # However many epochs there were: numbers below stay small.
        self._passes, self.skipped = divmod(base, self.length)
        self._memory: dict[int, Epoch] = {}

    def skip(self, count: int) -> "Stream":
        """Return the stream from a later position on."""
        return Stream(self.source, self._at, self._key, self._base + count, self._files)

    def count_open(self) -> int:
        """Return how many files or blocks are mixed at a time."""
        traits = self.source.order.traits
        if self._files is None or not traits.by_file:
            return traits.open_parts
        return min(traits.open_parts, max(int(np.count_nonzero(self._files)), 1))

    def begin_pass(self, turn: int) -> Epoch:
        """Return a pass, counted from the one in progress at the beginning."""
        memory = self._memory
        found = memory.get(turn)
        if found is None:
            rows, order = self.source.rows, self.source.order
            found = order.begin(rows, self._key, self._passes + turn, self._files)
            kept = list(memory.items())[1 - _PASSES :]
            self._memory = {**dict(kept), turn: found}
        return found

    def span(self, start: int, stop: int) -> Ints:
        """Return the rows at consecutive places of the stream."""
        at, stop = start + self.skipped, stop + self.skipped
        parts = []
        while at < stop:
            turn, inner = divmod(at, self.length)
            end = min(inner + stop - at, self.length)
            parts.append(rows_at(self.begin_pass(turn), np.arange(inner, end, dtype=np.int64)))
            at += end - inner
        out = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return out + self._at

    def rows(self, index: Ints) -> Ints:
        """Return the rows at ascending places of the stream."""
        index = index + self.skipped
        out = np.empty_like(index)
        done = 0
        while done < len(index):
            turn = int(index[done]) // self.length
            first = turn * self.length
            stop = int(np.searchsorted(index, first + self.length))
            out[done:stop] = rows_at(self.begin_pass(turn), index[done:stop] - first)
            done = stop
        out += self._at
        return out

    def shift(self, ranges: Sequence[tuple[int, int]], turn: int) -> list[Arrival]:
        """Return ranges of rows of the source as those of all rows."""
        return [(first + self._at, end + self._at, turn) for first, end in ranges]


class MixtureWalk(ScatteredWalk):
    """The walk of a mixture."""

    def __init__(self, n: int, period: Period, streams: Sequence[Stream]) -> None:
        self.n = n
        self.streams = streams
        self.period = period

    def at(self, positions: Ints) -> Ints:
        """Rows at ascending positions."""
        first, end = int(positions[0]), int(positions[-1]) + 1
        if end - first == len(positions):
            return self._span(first, end)
        period = self.period
        whole, rest = np.divmod(positions, period.length)
        which = period.which[rest]
        index = whole * period.weights[which] + period.rank[rest]
        out = np.empty_like(positions)
        for number, stream in enumerate(self.streams):
            own = np.flatnonzero(which == number)
            if len(own):
                out[own] = stream.rows(index[own])
        return out

    def _span(self, first: int, end: int) -> Ints:
        """Rows at consecutive positions, which are consecutive in every stream: half the work."""
        period = self.period
        out = np.empty(end - first, np.int64)
        for number, stream in enumerate(self.streams):
            span = period.count(number, first), period.count(number, end)
            if span[0] < span[1]:
                places = period.list_places(number, *span)
                places -= first
                out[places] = stream.span(*span)
        return out


class StretchesWalk(ScatteredWalk):
    """The walk of an epoch of several stretches, or of the rest of one: that of each stretch.

    Positions before the first stretch are the same pattern continued backwards: nobody needs them.
    """

    def __init__(self, layout: Layout, streams: Sequence[Stream]) -> None:
        self.n = layout.n
        self._layout, self._streams = layout, streams
        self._memory: dict[int, MixtureWalk] = {}

    def at(self, positions: Ints) -> Ints:
        """Rows at ascending positions."""
        out = np.empty_like(positions)
        done = 0
        while done < len(positions):
            number = self._layout.find(int(positions[done]))
            stretch = self._layout.stretches[number]
            stop = int(np.searchsorted(positions, stretch.stop))
            walk = self._begin_stretch(number, stretch)
            out[done:stop] = walk.at(positions[done:stop] - stretch.start)
            done = stop
        return out

    def _begin_stretch(self, number: int, stretch: Stretch) -> MixtureWalk:
        """Return the walk of a stretch, in which every stream continues where it stood."""
        memory = self._memory
        found = memory.get(number)
        if found is None:
            start, stop, weights, before = stretch
            streams = [one.skip(count) for one, count in zip(self._streams, before, strict=True)]
            found = MixtureWalk(stop - start, period_of(weights), streams)
            self._memory = {**dict(list(memory.items())[1 - _STRETCHES :]), number: found}
        return found


class MixtureEpoch:
    """One epoch of a mixture, with a window for each source that takes up whole files or blocks."""

    def __init__(self, layout: Layout, streams: Sequence[Stream]) -> None:
        used = np.any([stretch.weights for stretch in layout.stretches], axis=0)
        walk: Walk = StretchesWalk(layout, streams)
        start, stop, weights, _ = layout.stretches[0]
        if (start, stop) == (0, layout.n):
            walk = MixtureWalk(stop, period_of(weights), streams)
        self._epoch = WalkEpoch(walk)
        self.windows: Sequence[Window] = [
            _SourceWindow(layout, number, stream)
            for number, stream in enumerate(streams)
            if used[number] and stream.begin_pass(0).arriving(0, 0) is not None
        ]

    def rows(self, start: int, stop: int, step: int = 1) -> Ints:
        """The rows at every ``step``-th of positions ``[start, stop)``, in a new vector."""
        return self._epoch.rows(start, stop, step)

    def arriving(self, start: int, stop: int) -> Ranges | None:
        """Return nothing: a row may come several times, and ``windows`` say which arrive."""
        return self._epoch.arriving(start, stop)

    def held(self, position: int) -> Ranges | None:
        """Return nothing: see ``arriving``."""
        return self._epoch.held(position)


class _SourceWindow:
    """Says when the files of one source arrive: in every pass again."""

    def __init__(self, layout: Layout, number: int, stream: Stream) -> None:
        self._layout, self._number, self._stream = layout, number, stream
        self.open_parts = stream.count_open()

    def held(self, position: int) -> Sequence[Arrival]:
        """Ranges of rows that arrived before ``position`` and may be needed from there on."""
        turn, inner = divmod(self._index(position), self._stream.length)
        ranges = self._stream.begin_pass(turn).held(inner)
        return self._stream.shift(ranges or (), turn)

    def arriving(self, start: int, stop: int) -> Sequence[Arrival]:
        """Ranges of rows first needed at positions ``[start, stop)``, in order of need."""
        at, end = self._index(start), self._index(stop)
        found: list[Arrival] = []
        while at < end:
            turn, inner = divmod(at, self._stream.length)
            upto = min(inner + end - at, self._stream.length)
            ranges = self._stream.begin_pass(turn).arriving(inner, upto)
            found += self._stream.shift(ranges or (), turn)
            at += upto - inner
        return found

    def _index(self, position: int) -> int:
        return self._stream.skipped + self._layout.count(self._number, position)
