"""Data that grows under a loader: looking at its files again, and resuming after they became more.

A state says which samples its epoch had by their number and a fingerprint. ``dataset.grown`` finds
them in the data as it is now; ``order.grown`` has the rest of such an epoch.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.grown import (
    Past,
    count_new,
    find_past,
    list_new_files,
    match_past,
    refresh_together,
)
from ndfeed.dataset.sampling import Missing
from ndfeed.errors import Error, ResumeError, SchemaError
from ndfeed.loading.facts import Facts
from ndfeed.loading.mixture_growth import find_asked
from ndfeed.loading.options import Request, stored_fields
from ndfeed.loading.plan import Plan, make_plan
from ndfeed.loading.setup import Setup
from ndfeed.loading.state import Before, State
from ndfeed.order.grown import Generation, Grown, Stretches
from ndfeed.order.protocol import Spec

MOST = 64  # times that data may grow within an epoch


def refresh(
    setup: Setup, missing: Missing, settle: float, among: Sequence[str] | None = None
) -> tuple[Setup, int]:
    """Return the setup for the files that there are now, and how many samples are new."""
    setup = leave(setup)
    request, old = setup.request, setup.request.ds
    ds, every = refresh_together((old, request.facts.ds), missing, settle, among)
    _check_fields(old, ds)
    share = replace(request.share, n=len(ds))
    shuffle = request.shuffle
    made = replace(request, ds=ds, share=share, shuffle=find_asked(shuffle), facts=Facts(every))
    if ds.fingerprint == old.fingerprint:  # the plan is kept, and with it what is running
        same = replace(made, shuffle=shuffle, facts=request.facts.for_dataset(every))
        return setup._replace(request=same), 0
    rebind = getattr(setup.adapt, "for_dataset", None)  # of adapters that read by themselves
    adapt = setup.adapt if rebind is None else rebind(ds)
    return Setup.of(made, adapt), count_new(ds, old)


def _check_fields(old: Dataset, ds: Dataset) -> None:
    """Refuse new files that change what a field is: batches would not be what they were."""
    before = {field.name: field for field in stored_fields(old)}
    for field in stored_fields(ds):
        known = before[field.name]
        if (field.dtype, field.shape) != (known.dtype, known.shape):
            raise SchemaError(
                next(iter(list_new_files(ds, old)), ds.first_file),
                f"with the new files, field {field.name!r} is {field.dtype_text} "
                f"{field.shape_text}; it was {known.dtype_text} {known.shape_text}",
                remedy="refresh the dataset, and make another loader of it",
            )


def leave(setup: Setup) -> Setup:
    """Return the setup for an epoch in which data has not grown."""
    order = setup.request.shuffle
    return setup.with_order(order.asked) if isinstance(order, Grown) else setup


def resume(setup: Setup, found: State, grown: bool | Dataset) -> Setup | None:
    """Return the setup to continue with, if data has grown in the epoch of a state."""
    setup = leave(setup)
    ds, order = setup.request.ds, setup.plan.order
    same = found.data == ds.fingerprint and found.rows == len(ds)
    history = _list_generations(found, same, grown)
    if not history:
        return None
    past = [_find(ds, one, grown) for one in history]
    if dict(found.order) != (spec := order.spec() if same else _find_spec(setup, past[-1])):
        raise found.make_order_error(spec)
    if found.samples == 0 or order.traits.draws:
        return setup  # an epoch like any other: nothing of it was delivered, or it does not matter
    grew = _make_order(setup, found.epoch, history, past)
    more = found.get_more() if same else order.describe(len(ds), found.epoch, found.samples)
    return setup.with_order(replace(grew, more=more))


def _list_generations(found: State, same: bool, grown: bool | Dataset) -> list[Before]:
    """Return the data that there was in the epoch of a state."""
    given: object = grown
    if not isinstance(given, bool | Dataset):
        raise TypeError(f"grown must be True, False or a Dataset, got {type(given).__name__}")
    history = found.list_growth()
    if not same:
        if grown is False:
            return []
        history.append(found.as_before())
    if len(history) > MOST:
        raise ResumeError(
            f"the data has grown more than {MOST} times within an epoch",
            "resume from a state of a later epoch, or start over",
        )
    known = [one.data for one in history]
    if isinstance(grown, Dataset) and history and grown.fingerprint not in known:
        raise ResumeError(
            f"the dataset given as grown= is not that of the state: {grown.fingerprint} with "
            f"{len(grown):,} samples, the state belongs to {found.rows:,}",
            "open it with the same arguments and views, and a list of the files there were",
        )
    return history


def _find_spec(setup: Setup, past: Past) -> Spec:
    """Return which order a loader has for data as it was."""
    rows = Stretches(past.stretches).list_rows()
    made = setup.plan.order.continue_with(rows, rows, 0)
    return (_make_plan(setup.request, past).order if made is None else made[0]).spec()


def _make_order(setup: Setup, epoch: int, history: list[Before], past: list[Past]) -> Grown:
    """Make the order of an epoch in which data has grown."""
    generations = tuple(
        Generation(one.rows, one.samples, one.data, Stretches(found.stretches), one.more)
        for one, found in zip(history, past, strict=True)
    )
    for old, new in pairwise(generations):
        if len(new.now.without(old.now)) != new.rows - old.rows:
            raise ResumeError(
                "cannot tell which files came when: those that were there later lack some that "
                "were there before",
                "resume from a state of a later epoch, or start over",
            )
    order, asked = setup.plan.order, setup.request.shuffle
    rows = generations[0].now.list_rows()
    if order.continue_with(rows, rows, 0) is not None:
        return Grown(order, None, order, asked, epoch, generations)
    first = _make_plan(setup.request, past[0])
    in_place = first.places.plain and setup.plan.places.plain
    if not first.order.traits.grows or not in_place:
        raise ResumeError(
            f"an epoch of {first.order} cannot take in what is new: nobody can tell what is left "
            "of it",
            f"start the next epoch: loader.epoch = {epoch + 1}",
        )
    for one in history:
        if one.samples > one.rows:
            raise ResumeError.of_damage(f"{one.samples} of {one.rows} samples delivered")
    return Grown(first.order, first.counts, order, asked, epoch, generations)


def _find(ds: Dataset, one: Before, grown: bool | Dataset) -> Past:
    try:
        if isinstance(grown, Dataset) and grown.fingerprint == one.data:
            return match_past(ds, grown)
        return find_past(ds, one.data, one.rows)
    except Error:
        raise
    except ValueError as error:  # a view that cannot grow
        raise ResumeError(f"{error}") from None


def _make_plan(request: Request, past: Past) -> Plan:
    """Make the plan of a loader for data as it was."""
    ds = past.dataset
    share = replace(request.share, n=len(ds))
    return make_plan(replace(request, ds=ds, share=share, facts=Facts(ds)))
