"""Lengths of samples, from headers and offsets; no sample is read."""

import numpy as np

from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import Rows, select_rows
from ndfeed.index.table import Ints

_AT_ONCE = 1 << 20


def find_lengths(group: Group, column: Column, rows: Rows, count: int) -> Ints:
    """Return the first length of ``count`` samples of a column: of ``rows``, or of all."""
    shape = column.field.shape
    if shape == ():
        raise ValueError(
            f"samples of {column.field.name!r} are single values, which have no length"
        )
    if shape is not None and shape[0] is not None:
        return np.full(count, shape[0], np.int64)
    found = np.empty(count, np.int64)
    for start in range(0, count, _AT_ONCE):
        numbers = np.arange(start, min(start + _AT_ONCE, count))
        samples = select_rows(rows, numbers)
        if column.offsets is None:
            found[numbers] = _from_headers(column, group.locate(samples).part)
            continue
        shapes = reader_of(group).shapes(group, column, samples)
        found[numbers] = shapes[:, 0] if isinstance(shapes, np.ndarray) else [s[0] for s in shapes]
    return found


def _from_headers(column: Column, part: Ints) -> Ints:
    """Return the first length of one sample of each part."""
    dims = column.table.dims[column.table.shape[column.arrays[part]]]
    axis = np.where(column.whole[part], 1, 1 + column.lead)
    if (dims[:, 0] < axis).any():
        raise ValueError(
            f"some samples of {column.field.name!r} are single values, which have no length"
        )
    return np.take_along_axis(dims, axis[:, None], axis=1)[:, 0]
