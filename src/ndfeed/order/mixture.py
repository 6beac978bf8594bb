"""A mixture of sources: rows of several datasets, interleaved in exact proportions.

``period`` says which source comes at which position. Every source is an endless stream: its own
order's epoch 0, then its epoch 1, and so on. The seed of these depends on the loader's seed and the
name of the source alone. An epoch of the mixture continues each stream where the one before it
stopped. So no row of a source comes again before all of them came, whatever the lengths of epochs,
and a position in the mixture is a position in each of the streams.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from ndfeed.errors import ResumeError
from ndfeed.order.epoch import Cut, Share
from ndfeed.order.permutation import Ints, key_of
from ndfeed.order.protocol import Data, Plain, Progress, Spec, Traits, check_length
from ndfeed.order.standing import Start, keep_passes, parse_start
from ndfeed.order.streams import MixtureEpoch, Source, SourceData, Stream, cut_counts
from ndfeed.order.weighting import End, Layout, Stages, lay_out, list_changes, list_weights

_MOST_TEXT = 200  # characters in a state, for what can be told by a digest


@dataclass(frozen=True, slots=True)
class Mixture(Plain):
    """Sources whose rows lie one after the other, interleaved in exact proportions.

    ``stages`` has weights, and the epoch and the sample of it from which on they hold. ``end`` says
    how long an epoch is: as long as no source's share is more than it has (``"first"``), until the
    share of each is at least that (``"last"``), or as many positions as all sources have rows
    (``"cycle"``). Where a state of other weights was loaded, or sources have grown, ``start`` is
    where that was. ``asked`` is what the caller gave as ``shuffle``.
    """

    sources: tuple[Source, ...]
    stages: Stages
    end: End = "first"
    start: Start | None = None
    asked: Any = field(default=None, compare=False)

    @property
    def traits(self) -> Traits:
        """Rows come from all sources in turn."""
        every = [source.in_use.traits for source in self.sources]
        return Traits(
            by_file=any(one.by_file for one in every),
            by_part=all(one.by_part for one in every),
            steady=not (self.start and self.start.samples)
            and (len(self.stages) == 1 or self.end == "cycle"),
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
        bases, since = self._find_bases(epoch), self._find_start(epoch)
        streams, at = [], 0
        for number, source in enumerate(self.sources):
            files = None if counts is None else cut_counts(counts, at, at + source.rows)
            key = key_of(f"mixture:{source.name}", seed, 0)
            if since is self.start:
                source = replace(source, order=source.in_use)
            # As if all passes before had been as long as those that come.
            one = since.find_pass(number)
            base = bases[number] - one.begin + one.number * source.length
            streams.append(Stream(source, at, key, base, files))
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
        if all(source.data for source in self.sources):
            spec["data"] = {source.name: source.data for source in self.sources}
        if self.start is not None:
            spec["start"] = self.start.as_spec([source.name for source in self.sources])
        return spec

    def describe(self, n: int, epoch: int, samples: int) -> Spec:
        """Say where each source stands: how many of its rows were delivered, in all epochs."""
        names = [source.name for source in self.sources]
        return {"sources": dict(zip(names, self._find_positions(epoch, samples), strict=True))}

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
            if "start" not in order:
                return self.leave(), found.samples
            start = order["start"]
            if not isinstance(start, Mapping):
                return None
            made = self._begin_at(start.get("epoch"), start)
            if made is not None and found.samples < made._find_skipped(found.epoch):
                raise ResumeError.of_damage("it stands before its own start")
            return None if made is None else (made, found.samples)
        passes = _list_passes(order.get("start"))
        made = self._begin_at(found.epoch, {**passes, **found.more})
        return None if made is None else (made, 0)

    def leave(self) -> "Mixture":
        """Return the mixture of the same sources that begins with the first epoch."""
        sources = tuple(replace(source, grown=None) for source in self.sources)
        return replace(self, sources=sources, start=None)

    def settle(self, epoch: int) -> "Mixture":
        """Return the mixture without what is over as an epoch begins: passes that have grown.

        An epoch that begins once more, after sources grew within it, begins where that was.
        """
        start = self.start
        if start is None or epoch < start.epoch or not (start.samples or start.grown):
            return self
        if epoch == start.epoch:
            anew = start._replace(samples=0, delivered=())
            return replace(self, start=anew) if start.samples else self
        made = self._continue(epoch, 0)
        pairs = [(one, made.find_pass(number)) for number, one in enumerate(start.passes)]
        if not start.samples and all(bool(new.past) == bool(old.past) for old, new in pairs):
            return self
        sources = tuple(
            source if made.find_pass(number).past else replace(source, grown=None)
            for number, source in enumerate(self.sources)
        )
        return replace(self, sources=sources, start=made)

    def grow(self, new: "Mixture", epoch: int, samples: int) -> "Mixture":
        """Return the mixture of sources that have more rows, continued from a position of this one.

        Passes that are in progress then are told by ``start``, and their orders (``Source.grown``)
        are left to the caller.
        """
        start = self._continue(epoch, samples)
        passes = []
        for number, (old, now) in enumerate(zip(self.sources, new.sources, strict=True)):
            position, one = start.positions[number], start.find_pass(number)
            one = one.find(position, old.length)
            came = position - one.begin
            if now.data != old.data and came and (not one.past or one.past[-1][1] < came):
                one = one._replace(past=(*one.past, (old.rows, came, old.data)))
            passes.append(one.shorten(now.length))
        return replace(new.leave(), start=start._replace(passes=keep_passes(passes)))

    def _continue(self, epoch: int, samples: int) -> Start:
        """Return where every source stands at a position."""
        bases, since = self._find_bases(epoch), self._find_start(epoch)
        positions = self._find_positions(epoch, samples)
        start = self._find_passes(Start(epoch, positions, passes=since.passes))
        if not samples:
            return start
        earlier = since.delivered if epoch == since.epoch else ()
        delivered = [
            position - base + (earlier[number] if earlier else 0)
            for number, (position, base) in enumerate(zip(positions, bases, strict=True))
        ]
        return start._replace(samples=samples, delivered=tuple(delivered))

    def _find_passes(self, start: Start) -> Start:
        """Return where sources stand with the passes that are in progress there."""
        passes = [
            start.find_pass(number).find(position, source.length).shorten(source.length)
            for number, (position, source) in enumerate(
                zip(start.positions, self.sources, strict=True)
            )
        ]
        return start._replace(passes=keep_passes(passes))

    def __repr__(self) -> str:
        weights = self.stages[0][1]
        told = [
            f"{source.name} {weight / sum(weights):.4g} {source.order}"
            for source, weight in zip(self.sources, weights, strict=True)
        ]
        more = f", {len(self.stages)} stages" if len(self.stages) > 1 else ""
        return f"Mixture({', '.join(told)}, end={self.end!r}{more})"

    def _lay_out(self, epoch: int) -> Layout:
        """Return the stretches of an epoch, or of the rest of one that ``start`` is in."""
        lengths = [source.length for source in self.sources]
        start = self._find_start(epoch)
        if epoch != start.epoch:
            return lay_out(list_weights(self.stages, max(epoch, 0)), lengths, self.end)
        weights = list_weights(self.stages, max(epoch, 0), start.samples)
        return lay_out(weights, lengths, self.end, start.delivered)

    def _find_start(self, epoch: int) -> Start:
        """Return from where on the positions of an epoch are counted."""
        if self.start is None or epoch < self.start.epoch:
            return Start(0, (0,) * len(self.sources))
        return self.start

    def _find_skipped(self, epoch: int) -> int:
        """Return how many samples of an epoch came before ``start``."""
        start = self._find_start(epoch)
        return start.samples if epoch == start.epoch else 0

    def _find_bases(self, epoch: int) -> list[int]:
        """Return where each source stands at the beginning of an epoch, or of the rest of one."""
        start = self._find_start(epoch)
        bases = list(start.positions)
        for first, end in pairwise(list_changes(self.stages, start.epoch, epoch)):
            layout = self._lay_out(first)
            bases = [b + (end - first) * layout.count(s, layout.n) for s, b in enumerate(bases)]
        return bases

    def _find_positions(self, epoch: int, samples: int) -> tuple[int, ...]:
        """Return where each source stands after some samples of an epoch."""
        layout, bases = self._lay_out(epoch), self._find_bases(epoch)
        return tuple(base + layout.count(number, samples) for number, base in enumerate(bases))

    def _begin_at(self, epoch: object, told: Mapping[str, Any]) -> "Mixture | None":
        """Return this mixture with the positions that a state tells; ``None`` if it is damaged."""
        start = parse_start(epoch, told, [source.name for source in self.sources])
        if start is None:
            return None
        return replace(self.leave(), start=self._find_passes(start))


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


def _list_passes(start: object) -> dict[str, Any]:
    """Return what a state tells of passes of sources that have grown."""
    told = start if isinstance(start, Mapping) else {}
    return {name: told[name] for name in ("passes", "grown") if name in told}


def _as_text(spec: Spec) -> str:
    return json.dumps(spec, sort_keys=True, separators=(",", ":"))


def _shorten(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
