"""Determines the fields that are stored, with their dtypes and shapes.

After a ``map`` fields are learned by running it on a few samples: the first and some spread
over all. A later sample that does not match is then an error.
"""

from collections.abc import Mapping

import numpy as np

from ndfeed.dataset.column import Field as Read
from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import FieldError, SchemaError
from ndfeed.formats.dtypes import EXTENDED, check_possible, delivered, named, on_disk
from ndfeed.formats.manifest import Field
from ndfeed.index.table import Ints

NAMES = "file"
_PROBED = 8


def stored_fields(ds: Dataset, dtypes: Mapping[str, object], *, names: bool) -> tuple[Field, ...]:
    """Return the fields to write; ``dtypes`` has the dtypes of those that are to be cast."""
    found = _probed(ds) if ds.steps and len(ds) else list(ds.fields.values())
    known = [field.name for field in found]
    for name in dtypes:
        if name not in known:
            raise FieldError(name, known)
    made = [_field(ds, field, dtypes.get(field.name)) for field in found]
    if names:
        if NAMES in known:
            raise ValueError(f"names=True adds the field {NAMES!r}, which is there already")
        made.append(Field(NAMES, "|u1", (None,)))
    return tuple(made)


def _field(ds: Dataset, field: Read, dtype: object) -> Field:
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


def probed_rows(count: int) -> Ints:
    """Return the rows on which maps are tried: the first ones, and some spread over all."""
    spread = np.linspace(0, count - 1, _PROBED).astype(np.int64)
    return np.unique(np.concatenate([np.arange(min(_PROBED, count)), spread]))


def probe_bytes(ds: Dataset) -> int:
    """Estimate the bytes of a sample after the maps; 0 where there are none."""
    if not ds.steps or not len(ds):
        return 0
    rows = probed_rows(len(ds))
    made = ds.read(rows).values()
    return sum(sum(np.asarray(value).nbytes for value in values) for values in made) // len(rows)


def _probed(ds: Dataset) -> list[Read]:
    """Return the fields that the maps make."""
    made = ds.read(probed_rows(len(ds)))
    return [_made_field(ds, name, values) for name, values in made.items()]


def _made_field(ds: Dataset, name: str, values: object) -> Read:
    if not isinstance(values, list | tuple):
        array = np.asarray(values)
        return Read(name, array.dtype, array.shape[1:], _type(ds, name, array.dtype))
    samples = [np.asarray(value) for value in values]
    ranks = {sample.ndim for sample in samples}
    if len(ranks) > 1 or 0 in ranks:
        return Read(name, samples[0].dtype, None, _type(ds, name, samples[0].dtype))
    shapes = np.array([sample.shape for sample in samples])
    same = (shapes == shapes[0]).all(axis=0)
    shape = [int(n) if one else None for n, one in zip(shapes[0], same, strict=True)]
    if None not in shape:
        shape[0] = None
    return Read(name, samples[0].dtype, tuple(shape), _type(ds, name, samples[0].dtype))


def _type(ds: Dataset, name: str, dtype: np.dtype) -> str:
    try:
        return named(dtype)
    except ValueError as error:
        raise SchemaError(ds.first_file, f"field {name!r} that map makes: {error}") from None


def memory_type(field: Field) -> np.dtype:
    """Return the NumPy dtype of a field's values before they are written."""
    return delivered(field.dtype) if field.dtype in EXTENDED else np.dtype(field.dtype)
