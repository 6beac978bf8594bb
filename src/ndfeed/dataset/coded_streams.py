"""Deflated files as samples of their stored bytes, for code that decodes them elsewhere.

Where a sample is a whole file, each of its deflated members becomes a field of bytes: the stream as
it is stored. Everything that reads whole files then reads compressed bytes, with the same checks
that a file is still the one that was opened. Nothing is decoded, and no checksum is compared: the
code that decodes a stream compares its size and checksum with those of the original table.

Streams are read up to the next multiple of ``ALIGNED`` bytes, so that those of a batch, end to end,
begin at such multiples. The bytes behind a stream are those of the archive's directory.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ndfeed.dataset.column import Column, Field, Group, is_converted
from ndfeed.dataset.dataset import Dataset
from ndfeed.formats.description import DEFLATE, RAW
from ndfeed.index.table import Ints, Table

ALIGNED = 16
_BYTE = "|u1"


def list_coded(group: Group) -> list[Column]:
    """Return the columns whose deflated streams hold one sample each, of one size, in C order."""
    if not group.by_file or group.checks is not None or group.table.sealed:
        return []
    return [column for column in group.columns if _is_simple(column)]


def _is_simple(column: Column) -> bool:
    if column.field.ragged or column.any_swapped or is_converted(column):
        return False
    if column.strided.any() or (column.coding != DEFLATE).any():
        return False
    table, arrays = column.table, column.arrays
    ends = table.offset[arrays] + _round(table.length[arrays])
    return bool((ends <= table.identity[column.file, 2]).all())


def _round(lengths: Ints) -> Ints:
    return -(-lengths // ALIGNED) * ALIGNED


def with_streams(ds: Dataset, names: tuple[str, ...]) -> Dataset:
    """Return the dataset with fields ``names``, of those above, as the bytes that are stored."""
    groups = tuple(_with_streams(group, names) for group in ds.groups)
    return Dataset(groups, (Dataset, ()), rows=ds.rows, names=ds.names)


def _with_streams(group: Group, names: tuple[str, ...]) -> Group:
    chosen = [column for column in group.columns if column.field.name in names]
    if not chosen:
        return group
    table = _describe_streams(group.table, np.concatenate([c.arrays for c in chosen]))
    columns = tuple(
        replace(column, table=table, field=_stream_field(column)) if column in chosen else column
        for column in group.columns
    )
    return replace(group, columns=columns)


def _stream_field(column: Column) -> Field:
    return Field(column.field.name, np.dtype(np.uint8), (None,), _BYTE)


def _describe_streams(table: Table, arrays: Ints) -> Table:
    """Return the table with some arrays as raw bytes, as many as are stored."""
    stored, which = np.unique(_round(table.length[arrays]), return_inverse=True)
    width = max(table.dims.shape[1], 2)
    known = np.pad(table.dims, ((0, 0), (0, width - table.dims.shape[1])))
    dims = np.zeros((len(stored), width), np.int64)
    dims[:, 0], dims[:, 1] = 1, stored
    dtypes = table.dtypes if _BYTE in table.dtypes else (*table.dtypes, _BYTE)
    sizes = stored[which.reshape(-1)]
    new = {
        "dtype": dtypes.index(_BYTE), "shape": len(known) + which.reshape(-1), "length": sizes,
        "decoded": sizes, "skip": 0, "crc": -1, "coding": RAW,
    }  # fmt: skip
    made: dict[str, Any] = {name: getattr(table, name).copy() for name in new}
    for name, values in new.items():
        made[name][arrays] = values
    return replace(table, dtypes=dtypes, dims=np.concatenate([known, dims]), **made)
