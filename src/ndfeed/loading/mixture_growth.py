"""Mixtures whose sources grow under a loader: every source continues in its own stream.

What was delivered of the pass of a source that is in progress stays delivered; what is left of it
and what is new comes before anything comes again, as in an epoch that has grown (``order.grown``).
So the order of that source is one with a pass that has grown in it. ``order.standing`` has what a
state tells of such passes, from which they are made again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.grown import Past, find_past, match_past
from ndfeed.dataset.mix import list_sources, mix_others
from ndfeed.errors import Error, ResumeError
from ndfeed.loading.coded import Coded
from ndfeed.loading.options import Shuffle
from ndfeed.loading.order_choice import MixturePlan, plan_mixture
from ndfeed.loading.plan import Plan
from ndfeed.loading.setup import Setup
from ndfeed.loading.state import State
from ndfeed.order.grown import Generation, Grown, Stretches
from ndfeed.order.mixture import Mixture
from ndfeed.order.permutation import Ints
from ndfeed.order.protocol import Order, Progress
from ndfeed.order.standing import Pass
from ndfeed.order.streams import Source, cut_counts

MOST = 128  # times that all sources together may grow within passes over them

_REMEDY = "pass the mixture as it was then: grown=ndfeed.mix(...)"

_Find = Callable[[int, int, str], Past]  # of a source: the samples that it had, and their print


def continue_mixture(before: Setup, coming: Setup, epoch: int) -> Setup:
    """Return the setup of an epoch that begins with the data of another one, which may have grown.

    Sources of a mixture continue where they stand in the setup before. Passes that have grown and
    are over then are left out.
    """
    old, new = before.plan.order, coming.plan.order
    if not isinstance(old, Mixture) or not isinstance(new, Mixture):
        return coming
    if before.request.ds.fingerprint == coming.request.ds.fingerprint:
        settled = new.settle(epoch)
        return coming if settled is new else coming.with_order(settled)
    made = old.settle(epoch).grow(new, epoch, 0)
    if made.start is None or not any(made.start.positions):
        return coming  # nothing was delivered yet
    _check_growing(old, new)
    pairs = zip(list_sources(coming.request.ds), list_sources(before.request.ds), strict=True)
    sources = list(new.sources)
    for number, (ds, old_ds) in enumerate(pairs):
        one = made.start.find_pass(number)
        if one.past:
            moved = _match(sources[number].name, ds, old_ds)
            sources[number] = _carry_pass(before.plan, coming.plan, number, one, moved)
    return coming.with_order(_check_number(replace(made, sources=tuple(sources))))


def _carry_pass(before: Plan, coming: Plan, number: int, one: Pass, moved: Stretches) -> Source:
    """Return a source with the pass that is in progress, whose rows have moved."""
    old, new = (_find_source(plan, number) for plan in (before, coming))
    was = old.source.grown if isinstance(old.source.grown, Grown) else None
    past = () if was is None else was.past
    known = [rows for rows in past if (rows.rows, rows.samples, rows.data) in one.past]
    now = [*(_move(rows.now, moved) for rows in known), moved]
    if was is not None and known:
        return _with_pass(new.source, was.base, was.counts, one, now)
    return _with_pass(new.source, old.source.order, old.files, one, now)


def resume_mixture(setup: Setup, found: State, grown: object) -> tuple[Setup, int] | None:
    """Return the setup to continue with and the samples that are over, if a mixture has grown."""
    ds = setup.request.ds
    if ds.mixture is None or (found.data, found.rows) == (ds.fingerprint, len(ds)):
        return None
    if not isinstance(grown, bool | Dataset):
        raise TypeError(f"grown must be True, False or a Dataset, got {type(grown).__name__}")
    plain = setup.with_order(find_asked(setup.request.shuffle))
    new, find = plain.plan.order, _make_finder(ds, grown)
    assert isinstance(new, Mixture), "a mixture has no other order"
    old = _find_order(plain, new, found, find)
    if found.epoch or found.samples:
        _check_growing(old, new)
    elif _find_fixed(old, new) is not None:
        return plain, 0  # nothing was delivered that its order would have to know
    continued = old.resume(Progress(dict(found.order), found.epoch, found.samples, found.more))
    if continued is None:
        raise found.make_order_error(new.spec())
    old, samples = continued
    if samples > (most := old.cut(setup.request.share, found.seed, found.epoch).n):
        raise found.make_count_error(most)
    made = old.grow(new, found.epoch, samples)
    if made.start is None or not any(made.start.positions):
        return plain, samples  # nothing was delivered yet
    return plain.with_order(_add_passes(plain, made, find)), samples


def follow(setup: Setup, order: Order, grown: object) -> Setup:
    """Return a setup with an order that a state led to; of a mixture, with the passes it tells."""
    if isinstance(order, Mixture) and order.start is not None and order.start.grown:
        order = _add_passes(setup, order, _make_finder(setup.request.ds, grown))
    return setup.with_order(order)


def begin_anew(setup: Setup) -> Setup:
    """Refuse a mixture where epochs with other data do not know what came before them."""
    if setup.request.ds.mixture is not None:
        raise ValueError(
            "refresh() cannot tell where the sources of a mixture stand while TensorFlow or Keras "
            "takes batches ahead; make another dataset of the files there are now, and load a "
            "state into it with grown=True"
        )
    return setup


def find_asked(shuffle: Shuffle) -> Shuffle:
    """Return what a caller gave as ``shuffle=``, before it led to a mixture that continues."""
    asked: Shuffle = shuffle.asked if isinstance(shuffle, Mixture) else shuffle
    return asked


def _make_finder(ds: Dataset, grown: object) -> _Find:
    """Return what finds the samples that a source had in those that it has now."""
    try:
        sources = list_sources(ds)
        before = list_sources(grown) if isinstance(grown, Dataset) and grown.mixture else ()
    except ValueError as error:  # a view that cannot grow
        raise ResumeError(f"{error}") from None
    if isinstance(grown, Dataset) and len(before) != len(sources):
        raise ResumeError(
            "the dataset given as grown= is not that of the state, which is a mixture",
            _REMEDY,
        )

    def find(number: int, rows: int, data: str) -> Past:
        name = ds.mixture.names[number] if ds.mixture else ""
        try:
            if before and before[number].fingerprint == data:
                return match_past(sources[number], before[number])
            return find_past(sources[number], data, rows)
        except ResumeError as error:
            raise ResumeError(
                f"source {name!r}: {error.args[0]}",
                _REMEDY,
            ) from None
        except Error:
            raise
        except ValueError as error:  # a view that cannot grow
            raise ResumeError(f"source {name!r}: {error}") from None

    return find


def _list_told(found: State, new: Mixture) -> list[tuple[int, str]]:
    """Return the rows of each source of a state, and their fingerprint."""
    rows, prints = found.order.get("rows"), found.order.get("data")
    if not isinstance(rows, Mapping) or not isinstance(prints, Mapping):
        raise ResumeError.of_damage("it does not say which samples its sources had")
    told = [(rows.get(source.name), prints.get(source.name)) for source in new.sources]
    if any((type(count), type(data)) != (int, str) for count, data in told):
        raise ResumeError.of_damage("it does not say which samples its sources had")
    return [(int(count or 0), str(data)) for count, data in told]


def _find_order(setup: Setup, new: Mixture, found: State, find: _Find) -> Mixture:
    """Return the order of the mixture that a state belongs to, for its positions alone."""
    pasts = [find(number, *one) for number, one in enumerate(_list_told(found, new))]
    ds = mix_others(setup.request.ds, [past.dataset for past in pasts])
    if ds.fingerprint != found.data:
        raise ResumeError(
            "cannot tell which samples the mixture of the state had: its sources had other ones",
            _REMEDY,
        )
    order = _plan_past(setup, ds).order
    pairs = zip(order.sources, new.sources, strict=True)
    # A source that has grown has a position for each row, or is refused.
    made = [now if old.data == now.data else replace(old, length=old.rows) for old, now in pairs]
    return replace(order, sources=tuple(made))


def _plan_past(setup: Setup, ds: Dataset) -> MixturePlan:
    """Return the plan of a mixture as it was."""
    assert ds.mixture is not None, "made by mix_others"
    asked = find_asked(setup.request.shuffle)
    return plan_mixture(
        ds, ds.mixture, asked, [one for one in map(Coded, ds.groups) if one.columns]
    )


def _add_passes(setup: Setup, made: Mixture, find: _Find) -> Mixture:
    """Return a mixture with the passes that have grown, of which it knows the generations."""
    ds, start = setup.request.ds, made.start
    if start is None or not start.grown:
        return made
    every, sources = list(list_sources(ds)), list(made.sources)
    pasts: dict[int, list[Past]] = {}
    for number in range(len(every)):
        if told := start.find_pass(number).past:
            pasts[number] = [find(number, rows, data) for rows, _, data in told]
            every[number] = pasts[number][0].dataset
    plan = _plan_past(setup, mix_others(ds, every))
    for number, found in pasts.items():
        old, _ = _find_source(plan, number), _find_source(setup.plan, number)
        now = [Stretches(past.stretches) for past in found]
        one = start.find_pass(number)
        sources[number] = _with_pass(sources[number], old.source.order, old.files, one, now)
    return _check_number(replace(made, sources=tuple(sources)))


class _Found(NamedTuple):
    """A source in a plan, and the rows of its files if its order goes by files."""

    source: Source
    files: Ints | None


def _find_source(plan: Plan | MixturePlan, number: int) -> _Found:
    """Find a source in a plan; refuses windows over files whose rows are not side by side."""
    order = plan.order
    assert isinstance(order, Mixture), "a mixture has no other order"
    source = order.sources[number]
    if plan.counts is None or not source.order.traits.by_file:
        return _Found(source, None)
    start = sum(one.rows for one in order.sources[:number])
    if not plan.places.are_plain(range(start, start + source.rows)):
        raise ResumeError(
            f"source {source.name!r}: a pass of {source.order} cannot take in what is new where "
            "rows are not in the order of their files",
            "make a new loader of the refreshed mixture, in which every source begins anew",
        )
    return _Found(source, cut_counts(plan.counts, start, start + source.rows))


def _with_pass(
    source: Source, base: Order, files: Ints | None, one: Pass, now: Sequence[Stretches]
) -> Source:
    """Return a source whose order has a pass in it that has grown; ``now`` says where rows are."""
    past = tuple(Generation(*told, rows) for told, rows in zip(one.past, now, strict=False))
    for old, new in pairwise(past):
        if len(new.now.without(old.now)) != new.rows - old.rows:
            raise ResumeError(
                f"source {source.name!r}: cannot tell which files came when: those that were there "
                "later lack some that were there before",
                "resume from a later state, or start over",
            )
    return replace(source, grown=Grown(base, files, source.order, None, one.number, past))


def _check_number(made: Mixture) -> Mixture:
    """Refuse more growth than a short state can list."""
    count = 0 if made.start is None else sum(len(one.past) for one in made.start.passes)
    if count > MOST:
        raise ResumeError(
            f"the sources of the mixture have grown {count} times within passes over them, more "
            f"than {MOST}",
            "look for new files less often, or make a new loader",
        )
    return made


def _move(rows: Stretches, moved: Stretches) -> Stretches:
    """Return where rows are after they moved."""
    ranges = zip(rows.firsts.tolist(), rows.lasts.tolist(), strict=True)
    return Stretches(np.array([(a, b - a) for a, b in moved.find_ranges(list(ranges))]))


def _match(name: str, ds: Dataset, old: Dataset) -> Stretches:
    """Find the samples that a source had before it was refreshed."""
    try:
        if ds.fingerprint == old.fingerprint:
            return Stretches(np.array([[0, len(ds)]]))
        return Stretches(match_past(ds, old).stretches)
    except ResumeError:
        raise ResumeError(
            f"source {name!r} has lost files in the middle of a pass over it",
            "restore them, or make a new loader of the refreshed mixture, in which every source "
            "begins anew",
        ) from None


def _check_growing(old: Mixture, new: Mixture) -> None:
    """Refuse sources whose order cannot take in what is new."""
    if (was := _find_fixed(old, new)) is not None:
        raise ResumeError(
            f"source {was.name!r}: a pass of {was.order} cannot take in what is new, only one of "
            "True, False, Exact(), Blocks() and Windows() can",
            "make a new loader of the refreshed mixture, in which every source begins anew",
        )


def _find_fixed(old: Mixture, new: Mixture) -> Source | None:
    """Return a source that has grown though its order cannot take in what is new, if there is."""
    for was, now in zip(old.sources, new.sources, strict=True):
        if was.data != now.data and not (was.order.traits.grows and was.length == was.rows):
            return was
    return None
