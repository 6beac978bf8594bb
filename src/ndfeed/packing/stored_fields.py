"""The fields that are stored, with their dtypes and shapes, and the bytes of their columns.

After a ``map`` fields are learned by running it on a few samples: the first and some spread over
all. A later sample that does not match is then an error. Batches are converted to the bytes of
columns: shapes are compared, dtypes cast, and ragged samples laid end to end. Where blocks of a
column lie and which are damaged is in ``formats.checksums``.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndfeed.dataset.column import Field as SampleField
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch
from ndfeed.errors import CastError, FieldError, SchemaError
from ndfeed.files.file import File
from ndfeed.formats.dtypes import EXTENDED, cast, check_possible, named, on_disk
from ndfeed.formats.manifest import Column, Field
from ndfeed.index.table import Ints
from ndfeed.packing.columns import Bytes, as_bytes
from ndfeed.packing.source_rows import NAMES, SourceRows

_PROBED = 8
_REMEDY = "make them alike with map, or return a list of arrays for samples that differ"


def find_fields(ds: Dataset, dtypes: Mapping[str, object], *, names: bool) -> tuple[Field, ...]:
    """Return the fields to write; ``dtypes`` has the dtypes of those that are to be cast."""
    found = _probe_fields(ds) if ds.steps and len(ds) else list(ds.fields.values())
    known = [field.name for field in found]
    for name in dtypes:
        if name not in known:
            raise FieldError(name, known)
    made = [_store_field(ds, field, dtypes.get(field.name)) for field in found]
    if names:
        if NAMES in known:
            raise ValueError(f"names=True adds the field {NAMES!r}, which is there already")
        made.append(Field(NAMES, "|u1", (None,)))
    return tuple(made)


def _store_field(ds: Dataset, field: SampleField, dtype: object) -> Field:
    path = ds.first_file
    if field.shape is None:
        raise SchemaError(
            path,
            f"field {field.name!r} has samples that differ in their number of dimensions, which "
            f"no column holds",
            remedy="leave it out (fields=) or reshape it with map",
        )
    stored = on_disk(field.type)
    if dtype is not None:
        wanted = on_disk(named(dtype))
        check_possible(field.name, stored, wanted)
        stored = wanted
    try:
        return Field(field.name, stored, field.shape)
    except ValueError as error:
        raise SchemaError(path, f"{error}", remedy="convert it with map") from None


def _probe_rows(count: int) -> Ints:
    """Return the rows on which maps are tried: the first ones, and some spread over all."""
    spread = np.linspace(0, count - 1, _PROBED).astype(np.int64)
    return np.unique(np.concatenate([np.arange(min(_PROBED, count)), spread]))


def probe_row_bytes(ds: Dataset) -> int:
    """Estimate the bytes of a sample after the maps; 0 where there are none."""
    if not ds.steps or not len(ds):
        return 0
    rows = _probe_rows(len(ds))
    made = ds.read(rows).values()
    return sum(sum(np.asarray(value).nbytes for value in values) for values in made) // len(rows)


def _probe_fields(ds: Dataset) -> list[SampleField]:
    """Return the fields that the maps make."""
    made = ds.read(_probe_rows(len(ds)))
    return [_probe_field(ds, name, values) for name, values in made.items()]


def _probe_field(ds: Dataset, name: str, values: object) -> SampleField:
    if not isinstance(values, list | tuple):
        array = np.asarray(values)
        return SampleField(name, array.dtype, array.shape[1:], _name_dtype(ds, name, array.dtype))
    samples = [np.asarray(value) for value in values]
    ranks = {sample.ndim for sample in samples}
    if len(ranks) > 1 or 0 in ranks:
        return SampleField(name, samples[0].dtype, None, _name_dtype(ds, name, samples[0].dtype))
    shapes = np.array([sample.shape for sample in samples])
    same = (shapes == shapes[0]).all(axis=0)
    shape = [int(n) if one else None for n, one in zip(shapes[0], same, strict=True)]
    if None not in shape:
        shape[0] = None
    return SampleField(
        name, samples[0].dtype, tuple(shape), _name_dtype(ds, name, samples[0].dtype)
    )


def _name_dtype(ds: Dataset, name: str, dtype: np.dtype) -> str:
    try:
        return named(dtype)
    except ValueError as error:
        raise SchemaError(ds.first_file, f"field {name!r} that map makes: {error}") from None


class OffsetsCheck:
    """Checks that the offsets of a ragged column rise from 0 to ``values``.

    For blocks that several threads read in any order, each block in consecutive chunks.
    """

    def __init__(self, column: Column, values: int) -> None:
        self._values = values
        self._first: Ints = np.zeros(column.blocks + 1, np.int64)
        self._last: Ints = np.full(column.blocks + 1, -1)
        self._falls = np.zeros(column.blocks + 1, bool)

    def add(self, block: int, data: NDArray[np.uint8]) -> None:
        """Check a chunk of a block."""
        if block == 0 or not len(data):
            return
        numbers = data.view("<i8")
        if self._last[block] < 0:
            self._first[block] = numbers[0]
        elif numbers[0] < self._last[block]:
            self._falls[block] = True
        self._falls[block] |= bool((numbers[1:] < numbers[:-1]).any())
        self._last[block] = numbers[-1]

    def damaged_blocks(self) -> list[int]:
        """Return blocks whose offsets do not continue those before, once all were checked."""
        falls = self._falls
        falls[1] |= bool(self._first[1] != 0)
        falls[2:] |= self._first[2:] < self._last[1:-1]
        falls[-1] |= bool(self._last[-1] != self._values)
        return np.flatnonzero(falls).tolist()


class Offsets:
    """Offsets in an open file, read one at a time: to search among them, however many."""

    def __init__(self, file: File, column: Column) -> None:
        self._file = file
        self._column = column

    def __len__(self) -> int:
        return self._column.rows

    def __getitem__(self, index: int) -> int:
        data = self._file.read(self._column.header + 8 * index, 8)
        return int.from_bytes(data, "little", signed=True)

    def samples_of(self, first: int, last: int) -> tuple[int, int]:
        """Return the samples [a, b) to which the values [first, last) belong."""
        begin = max(bisect_right(self, first) - 1, 0)
        return begin, max(min(bisect_left(self, last), len(self) - 1), begin)


class StoredValues(NamedTuple):
    """Samples of one field: their bytes, and their shapes where it is ragged."""

    data: Bytes
    shapes: Ints


def count_values(field: Field, shapes: Ints) -> Ints:
    """Count the values of samples of some shapes."""
    counts: Ints = shapes.prod(axis=1) if "shapes" in field.roles else shapes[:, 0]
    return counts


def to_stored_values(field: Field, batch: Batch, rows: Ints, source: SourceRows) -> StoredValues:
    """Return the samples of a field as they are written."""
    if field.name not in batch:
        raise SchemaError(
            source.path_of(int(rows[0])),
            f"field {field.name!r} is missing in what map returned for row {rows[0]}",
        )
    values = batch[field.name]
    if "values" in field.roles:
        return _join_ragged(field, values, rows, source)
    if isinstance(values, list | tuple):
        values = _stack(field, values, rows, source)
    array = np.asarray(values)
    if array.shape != (len(rows), *field.shape):
        _refuse_shape(field, array.shape[1:], int(rows[0]), source)
    made = _cast(field, array, np.arange(len(rows) + 1), rows, source)
    return StoredValues(as_bytes(made), np.empty((0, 0), np.int64))


def cast_flat(field: Field, values: NDArray[Any], row: int, source: SourceRows) -> NDArray[Any]:
    """Cast some of the values of one row to the field's dtype."""
    return _cast(field, values, np.array([0, len(values)]), np.array([row]), source)


def _stack(
    field: Field, values: Sequence[ArrayLike], rows: Ints, source: SourceRows
) -> NDArray[Any]:
    for row, value in zip(rows.tolist(), values, strict=True):
        if np.shape(value) != field.shape:
            _refuse_shape(field, np.shape(value), row, source)
    return np.stack([np.asarray(value) for value in values])


def _join_ragged(
    field: Field, values: Sequence[ArrayLike], rows: Ints, source: SourceRows
) -> StoredValues:
    samples = [np.asarray(value) for value in values]
    rank = len(field.shape)
    for row, sample in zip(rows.tolist(), samples, strict=True):
        pairs = zip(sample.shape, field.shape, strict=False)
        if sample.ndim != rank or any(n != m for n, m in pairs if m is not None):
            _refuse_shape(field, sample.shape, row, source)
    shapes = np.array([sample.shape for sample in samples], np.int64).reshape(-1, rank)
    flat = np.concatenate([sample.reshape(-1) for sample in samples])
    ends = np.concatenate([[0], np.cumsum(shapes.prod(axis=1))])
    return StoredValues(as_bytes(_cast(field, flat, ends, rows, source)), shapes)


def _cast(
    field: Field, array: NDArray[Any], ends: Ints, rows: Ints, source: SourceRows
) -> NDArray[Any]:
    """Cast values to the field's dtype; ``ends`` says where each row ends in ``array``."""
    if field.dtype in EXTENDED and array.dtype.kind == "u" and not source.ds.steps:
        return array  # its bits, where ml_dtypes is not installed
    made, misfit = cast(array, field.dtype)
    if misfit is not None:
        each = max(array.size // max(len(array), 1), 1)
        at = int(np.searchsorted(ends, misfit.at // each, side="right")) - 1
        row = int(rows[at])
        name = field.dtype if field.dtype in EXTENDED else np.dtype(field.dtype).name
        raise CastError(field.name, row, misfit.value, name, os.fsdecode(source.path_of(row)))
    return made


def _refuse_shape(field: Field, found: tuple[int, ...], row: int, source: SourceRows) -> None:
    wanted = str(field.shape).replace("None", "…")
    raise SchemaError(
        source.path_of(row),
        f"field {field.name!r}, row {row}: expected shape {wanted} as in the first rows, found "
        f"{tuple(found)}",
        remedy=_REMEDY,
    )
