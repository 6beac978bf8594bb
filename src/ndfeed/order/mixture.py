"""A mixture of sources: rows of several datasets, interleaved in exact proportions.

``period`` says which source comes at which position. Every source is an endless stream: its own
order's epoch 0, then its epoch 1, and so on. The seed of these depends on the loader's seed and the
name of the source alone. An epoch of the mixture continues each stream where the one before it
stopped. So no row of a source comes again before all of them came, whatever the lengths of epochs,
and a position in the mixture is a position in each of the streams.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from ndfeed.errors import ResumeError
from ndfeed.order.epoch import Cut, Share
from ndfeed.order.permutation import Ints, key_of
from ndfeed.order.protocol import Data, Plain, Progress, Spec, Traits, check_length
from ndfeed.order.streams import MixtureEpoch, Source, SourceData, Stream, cut_counts
from ndfeed.order.weighting import End, Layout, Stages, lay_out, list_changes, list_weights

_LARGEST = 1 << 124  # of a position: more than any number of epochs leads to
_MOST_TEXT = 200  # characters in a state, for what can be told by a digest


class Start(NamedTuple):
    """Where every source stands at the beginning of an epoch, if not where epochs before led."""

    epoch: int
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mixture(Plain):
    """Sources whose rows lie one after the other, interleaved in exact proportions.

    ``stages`` has weights, and the epoch and the sample of it from which on they hold. ``end`` says
    how long an epoch is: as long as no source's share is more than it has (``"first"``), until the
    share of each is at least that (``"last"``), or as many positions as all sources have rows
    (``"cycle"``). Where a state of other weights was loaded, ``start`` is where these began to
    hold.
    """

    sources: tuple[Source, ...]
    stages: Stages
    end: End = "first"
    start: Start | None = None

    @property
    def traits(self) -> Traits:
        """Rows come from all sources in turn."""
        every = [source.order.traits for source in self.sources]
        return Traits(
            by_file=any(one.by_file for one in every),
            by_part=all(one.by_part for one in every),
            steady=len(self.stages) == 1 or self.end == "cycle",
        )

    def bind(self, data: Data) -> "Mixture":
        """Return the mixture with the order of every source bound to its own samples."""
        if data.n != (total := sum(source.rows for source in self.sources)):
            raise ValueError(f"the mixture has {total:,} samples, and the dataset {data.n:,}")
        made, at = [], 0
        for source in self.sources:
            made.append(_bind(source, SourceData(data, at, at + source.rows)))
            at += source.rows
        return replace(self, sources=tuple(made))

    def cut(self, share: Share, seed: int, epoch: int) -> Cut:
        """Cut the positions of an epoch into batches of one size."""
        return replace(share, n=check_length(self._lay_out(epoch).n))

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> "MixtureEpoch":
        """Make one epoch. ``counts`` are the rows of all files, source after source."""
        bases = self._find_bases(epoch)
        streams, at = [], 0
        for number, source in enumerate(self.sources):
            files = None if counts is None else cut_counts(counts, at, at + source.rows)
            key = key_of(f"mixture:{source.name}", seed, 0)
            streams.append(Stream(source, at, key, bases[number], files))
            at += source.rows
        return MixtureEpoch(self._lay_out(epoch), streams)

    def spec(self) -> Spec:
        """Say which order this is, for JSON; compared on resume."""
        weights = ";".join(
            f"{epoch}{f'+{samples}' if samples else ''}:{','.join(map(str, own))}"
            for (epoch, samples), own in self.stages
        )
        orders = {source.name: source.order.spec() for source in self.sources}
        first = next(iter(orders.values()))
        alike = all(order == first for order in orders.values())
        spec: Spec = {
            "kind": "mixture",
            "end": self.end,
            "weights": _shorten(weights),
            "rows": {source.name: source.rows for source in self.sources},
            "orders": first
            if alike
            else {name: _shorten(_as_text(o)) for name, o in orders.items()},
        }
        if self.start is not None:
            spec["start"] = {"epoch": self.start.epoch, "sources": self._name(self.start.positions)}
        return spec

    def describe(self, n: int, epoch: int, samples: int) -> Spec:
        """Say where each source stands: how many of its rows were delivered, in all epochs."""
        layout, bases = self._lay_out(epoch), self._find_bases(epoch)
        return {"sources": self._name([b + layout.count(s, samples) for s, b in enumerate(bases)])}

    def resume(self, found: Progress) -> "tuple[Mixture, int] | None":
        """Return the mixture that continues at a position, and the samples of it that are over.

        With other weights, or another ``end``, every source continues where it stood, and an epoch
        of the new length begins there.
        """
        own, order = self.spec(), dict(found.order)
        if order == own:
            if dict(found.more) != self.describe(0, found.epoch, found.samples):
                raise ResumeError.of_damage("its sources are not where its samples say")
            return self, found.samples
        told = {name: order.get(name) for name in ("kind", "rows", "orders")}
        if told != {name: own[name] for name in told}:
            return None
        if all(order.get(name) == own[name] for name in ("end", "weights")):
            start = order.get("start")
            if start is None:
                return replace(self, start=None), found.samples
            if not isinstance(start, Mapping):
                return None
            made = self._begin_at(start.get("epoch"), start)
            return None if made is None else (made, found.samples)
        made = self._begin_at(found.epoch, found.more)
        return None if made is None else (made, 0)

    def __repr__(self) -> str:
        weights = self.stages[0][1]
        told = [
            f"{source.name} {weight / sum(weights):.4g} {source.order}"
            for source, weight in zip(self.sources, weights, strict=True)
        ]
        more = f", {len(self.stages)} stages" if len(self.stages) > 1 else ""
        return f"Mixture({', '.join(told)}, end={self.end!r}{more})"

    def _lay_out(self, epoch: int) -> Layout:
        """Return the stretches of an epoch."""
        lengths = [source.length for source in self.sources]
        return lay_out(list_weights(self.stages, max(epoch, 0)), lengths, self.end)

    def _find_bases(self, epoch: int) -> list[int]:
        """Return where each source stands at the beginning of an epoch."""
        start = self.start
        if start is None or epoch < start.epoch:
            start = Start(0, (0,) * len(self.sources))
        bases = list(start.positions)
        for first, end in pairwise(list_changes(self.stages, start.epoch, epoch)):
            layout = self._lay_out(first)
            bases = [b + (end - first) * layout.count(s, layout.n) for s, b in enumerate(bases)]
        return bases

    def _name(self, positions: Sequence[int]) -> dict[str, int]:
        return {s.name: place for s, place in zip(self.sources, positions, strict=True)}

    def _begin_at(self, epoch: object, told: Mapping[str, Any]) -> "Mixture | None":
        """Return this mixture with the positions that a state tells; ``None`` if it is damaged."""
        positions = told.get("sources")
        if not isinstance(positions, Mapping) or not isinstance(epoch, int) or epoch < 0:
            return None
        found = [positions.get(source.name) for source in self.sources]
        good = [one for one in found if type(one) is int and 0 <= one <= _LARGEST]
        if len(positions) != len(found) or len(good) != len(found):
            return None
        return replace(self, start=Start(epoch, tuple(good)))


def _bind(source: Source, data: "SourceData") -> Source:
    """Bind the order of a source, and refuse one that says more than which row comes when."""
    try:
        order = source.order.bind(data)
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise ValueError(
            f"source {source.name!r}: {error}; each source has an order of its own, which a dict "
            f"gives: shuffle={{{source.name!r}: ...}}"
        ) from None
    cut = order.cut(Share(source.rows, data.batch_size), 0, 0)
    if not cut.even or not order.traits.steady:
        raise ValueError(
            f"source {source.name!r}: {order} cuts batches itself, which are made of all sources "
            "in a mixture; choose another order, such as shuffle=True, and batch_size"
        )
    if order.lanes((0,), 1):
        raise ValueError(
            f"source {source.name!r}: a mixture does not divide files among ranks; leave out ranks="
        )
    return replace(source, order=order, length=cut.n)


def _as_text(spec: Spec) -> str:
    return json.dumps(spec, sort_keys=True, separators=(",", ":"))


def _shorten(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
