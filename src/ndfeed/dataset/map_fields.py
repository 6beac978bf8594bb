"""Learns which fields the maps of a dataset make, by running them on a few samples.

Where stored samples differ in shape, so do those that are tried, in every axis that does: this
shows whether a map leaves a field ragged. Functions of single samples are tried on some more, since
their results may differ in shape by themselves, as random crops do. A field that is found to be
ragged is a list in every batch, even where the samples of a batch happen to have one shape. The
rule for a field that a map returns:

- An array is of one shape, unless there are functions of single samples, whose results are stacked
  if possible, and all samples that could be tried had one shape to start with: then a field of the
  same name and rank is as ragged as it is stored.
- In a list, the axes differ that do so among the samples tried, and also their number in a field
  that keeps its name and is stored so. In a field that keeps its name and its rank those that
  differ as it is stored do so, too. If there are none, all may differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from ndfeed.dataset.column import Field, Group, columns_of
from ndfeed.dataset.map_steps import (
    Batch,
    Routed,
    Step,
    all_maps,
    as_samples,
    fields_of,
    is_hidden,
)
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_ranges import Ranges, find_parts
from ndfeed.dataset.row_selection import Rows, compose, freeze, select_rows
from ndfeed.formats.description import INLINE
from ndfeed.index.table import Ints

_LOOKED_AT = 1 << 14  # samples whose shapes are compared, spread over all
_TRIED = 8  # samples that functions of single samples are tried on, spread over all


class Samples(Protocol):
    """Samples to try: a dataset."""

    groups: tuple[Group, ...]
    rows: Rows
    names: tuple[str, ...]
    steps: tuple[Step, ...]

    def __len__(self) -> int: ...


def learn_fields(ds: Samples, make: Callable[[Ints], Batch]) -> dict[str, Field]:
    """Learn the fields that the steps of a dataset make; ``make`` runs them on samples."""
    groups = ds.groups
    tried = np.union1d(_pick_varied(groups, ds.rows, len(ds)), _pick_one_of_each(ds))
    # Results for single samples are stacked where possible: that says nothing about others.
    singly = _has_single_maps(ds.steps)
    certain = len(tried) > 1 or not singly
    stored = {column.field.name: column.field for column in columns_of(groups)}
    more = np.linspace(0, len(ds) - 1, min(len(ds), _TRIED)).astype(int) if singly else tried
    try:
        made = make(np.union1d(tried, more))
    except Exception:
        if not singly:
            raise
        made = make(tried)  # some samples make it fail: those that are needed may work
    return {name: _field(name, made[name], stored, certain) for name in made}


def guess_fields(ds: Samples, make: Callable[[Ints], Batch]) -> dict[str, Field]:
    """Return the fields of no samples at all: as they are stored, if functions make others."""
    stored = {column.field.name: column.field for column in columns_of(ds.groups)}
    if next(all_maps(ds.steps), None) is None:
        made = make(np.zeros(0, np.int64))
        arrays = {name: one for name, one in made.items() if isinstance(one, np.ndarray)}
        found = fields_of(arrays)
        if all(name in found or name in stored for name in made):
            return {name: found.get(name) or stored[name] for name in made}
    return {name: stored[name] for name in ds.names if not is_hidden(name)}


def _pick_one_of_each(ds: Samples) -> Ints:
    """Return a row of each of the datasets that were added, if they have different steps."""
    names = _route_fields(ds.steps)
    rows = [np.zeros(1, np.int64)]
    for group in ds.groups:
        columns = tuple(column for column in group.columns if column.field.name in names)
        if columns:
            alone = replace(group, columns=columns)
            tried = _pick_varied_parts(alone, ds.rows, len(ds))
            found: Batch = {}
            reader_of(alone).read(alone, select_rows(ds.rows, tried), found)
            rows += [tried[np.unique(one, return_index=True)[1]] for one in found.values()]
    return np.concatenate(rows)


def _pick_varied_parts(group: Group, rows: Rows, count: int) -> Ints:
    """Return a row of each part if all samples of a part are the same, otherwise all rows."""
    fixed = freeze(rows)
    chosen = group.rows if fixed is None else compose(group.rows, fixed)
    chosen = range(count) if chosen is None else chosen
    same = all((column.coding == INLINE).all() for column in group.columns)
    if same and isinstance(chosen, range | Ranges):
        return np.sort(find_parts(chosen, group.starts)[1])
    return np.arange(count)


def _route_fields(steps: Sequence[Step]) -> list[str]:
    """Return the stored fields that say which dataset a sample is from, if steps depend on any."""
    found: list[str] = []
    for step in steps:
        if isinstance(step, Routed):
            return [*found, step.field]
        if not hasattr(step, "steps"):
            break
        stored = {own: name for name, own in getattr(step, "fields", ())}  # of one of several
        found += [stored.get(name, name) for name in _route_fields(step.steps)]
    return found


def may_differ(groups: Sequence[Group], steps: Sequence[Step]) -> bool:
    """May ``steps`` return samples that have one shape in some batches and not in others?

    What a function of whole batches returns is as it makes it, unless it was given ragged samples.
    """
    return _has_single_maps(steps) or any(c.field.ragged for c in columns_of(groups))


def _has_single_maps(steps: Sequence[Step]) -> bool:
    """Are there functions of single samples?"""
    return not all(step.batched for step in all_maps(steps))


def differing_fields(ds: Samples, known: Callable[[], Mapping[str, Field]]) -> Mapping[str, Field]:
    """Return the ``known`` fields of what maps make, if what they return may differ in shape.

    Empty where a map cannot be tried: it raises its error in its batch.
    """
    try:
        return known() if may_differ(ds.groups, ds.steps) else {}
    except Exception:  # noqa: BLE001 - a map may raise anything
        return {}


def with_lists(batch: Batch, fields: Mapping[str, Field]) -> Batch:
    """Return the batch with a list for every ragged one of ``fields``."""
    return {
        name: list(values)
        if name in fields and fields[name].ragged and not isinstance(values, list | tuple)
        else values
        for name, values in batch.items()
    }


def _field(
    name: str, values: Sequence[object], stored: Mapping[str, Field], certain: bool
) -> Field:
    samples = as_samples(values)
    first = samples[0]
    before = stored.get(name)
    kept: set[int] = set()
    if before is not None and before.shape is not None and len(before.shape) == first.ndim:
        kept = {axis for axis, length in enumerate(before.shape) if length is None}
    shape: tuple[int | None, ...] | None = first.shape
    listed = isinstance(values, list | tuple)
    any_rank = listed and before is not None and before.shape is None
    if any_rank or len({sample.ndim for sample in samples}) > 1:
        shape = None
    elif listed or not certain:
        lengths = np.array([sample.shape for sample in samples]).reshape(len(samples), first.ndim)
        differing = kept | set(np.flatnonzero((lengths != lengths[0]).any(axis=0)).tolist())
        if not differing and certain:
            differing = set(range(first.ndim))
        shape = tuple(None if axis in differing else n for axis, n in enumerate(first.shape))
    found = getattr(values, "dtype", None)  # a framework's tensor has another kind of dtype
    dtype = found if isinstance(found, np.dtype) else first.dtype
    if dtype.kind in "US":  # the widest text of those tried
        dtype = max([dtype, *(sample.dtype for sample in samples)], key=lambda one: one.itemsize)
    return Field(name, dtype, shape, dtype.str)


def _pick_varied(groups: Sequence[Group], rows: Rows, count: int) -> Ints:
    """Return the first row and, for every ragged axis, the shortest and the longest sample.

    Both, so that a map that cuts samples to a maximum length is seen to leave them ragged if it
    does so.
    """
    found = {0}
    looked_at = np.unique(np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(np.int64))
    samples = select_rows(rows, looked_at)
    for group in groups:
        for column in group.columns:
            shape = column.field.shape
            if shape is None or None not in shape:
                continue
            lengths = np.asarray(reader_of(group).shapes(group, column, samples), np.int64)
            for axis in (at for at, length in enumerate(shape) if length is None):
                ends = lengths[:, axis].argmin(), lengths[:, axis].argmax()
                if lengths[ends[0], axis] != lengths[ends[1], axis]:
                    found |= set(looked_at[list(ends)].tolist())
    return np.array(sorted(found), np.int64)
