"""What the maps of a dataset make of its fields, learned by running them on a few samples.

Where stored samples differ in shape, so do those that are tried, in every axis that does: then one
can tell whether a map leaves a field ragged. The rule for a field that a map returns:

- An array is of one shape, unless there are functions of single samples, whose results are stacked
  if possible, and all samples that could be tried had one shape to begin with: then a field of the
  same name and rank is as ragged as it is stored.
- In a list, the axes differ that do so among the samples tried. In a field that keeps its name and
  its rank those that differ as it is stored do so, too. If there are none, all may differ.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ndfeed.dataset.column import Group
from ndfeed.dataset.field import Field
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.route import all_maps
from ndfeed.dataset.rowset import Rows, chosen
from ndfeed.dataset.step import Batch, Step, as_samples
from ndfeed.index.table import Ints

_LOOKED_AT = 1 << 14  # samples whose shapes are compared, spread over all


class Samples(Protocol):
    """Samples to try: a dataset."""

    groups: tuple[Group, ...]
    rows: Rows

    def __len__(self) -> int: ...

    def read(self, rows: Ints, /) -> Batch:
        """What the steps make of some of them."""
        ...


def fields_behind(
    ds: Samples, steps: Sequence[Step], examples: Sequence[int] | Ints
) -> dict[str, Field]:
    """The fields that ``steps`` make of samples, some of which must be tried: ``examples``."""
    groups = ds.groups
    tried = np.union1d(_varied(groups, ds.rows, len(ds)), examples)
    stored = {column.field.name: column.field for group in groups for column in group.columns}
    maps = all_maps(steps)
    # Results for single samples are stacked wherever that is possible: it says nothing of others.
    certain = len(tried) > 1 or all(step.batched for step in maps)
    made = ds.read(tried)
    return {name: _field(name, made[name], stored, certain) for name in made}


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
    if len({sample.ndim for sample in samples}) > 1:
        shape = None
    elif isinstance(values, list | tuple) or not certain:
        lengths = np.array([sample.shape for sample in samples]).reshape(len(samples), first.ndim)
        differing = kept | set(np.flatnonzero((lengths != lengths[0]).any(axis=0)).tolist())
        if not differing and certain:
            differing = set(range(first.ndim))
        shape = tuple(None if axis in differing else n for axis, n in enumerate(first.shape))
    return Field(name, first.dtype, shape, first.dtype.str)


def _varied(groups: Sequence[Group], rows: Rows, count: int) -> Ints:
    """The first row and, for every ragged axis, the shortest and the longest sample.

    The shortest and the longest, so that a map that cuts samples to some length at most is seen to
    leave them ragged if it does so.
    """
    found = {0}
    looked_at = np.unique(np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(np.int64))
    samples = chosen(rows, looked_at)
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
