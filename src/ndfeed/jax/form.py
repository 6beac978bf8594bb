"""What becomes of a batch of arrays before JAX gets it: types, and lengths that do not change.

A jitted function is compiled anew for every shape. Padding makes arrays of samples of different
lengths, and ``pad_to`` makes all of these arrays one shape.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.field import Field
from ndfeed.dataset.rowset import chosen
from ndfeed.errors import FieldError, SchemaError
from ndfeed.jax.types import Dtype, cast, holds, kept, may_become, named, whole, wide
from ndfeed.loader.options import known_fields, unheld
from ndfeed.loader.pool import Pool

PadTo = Mapping[str, int | Sequence[int]]
_KEPT = 16  # pieces of memory of one size kept for their next use


class Form:
    """How arrays are handed to JAX; checked before anything is read.

    ``fields`` are those of a batch where they are known, with the shapes that they will have.
    """

    def __init__(
        self,
        ds: Dataset,
        names: tuple[str, ...] | None,
        casts: Mapping[str, Any] | None = None,
        pad_to: PadTo | None = None,
    ) -> None:
        self.names = names
        self._wide = wide()
        known = known_fields(ds)
        self._casts = {name: named(dtype) for name, dtype in (casts or {}).items()}
        self._lengths = {name: _as_lengths(name, to) for name, to in (pad_to or {}).items()}
        self._becomes: dict[tuple[str, Dtype], Dtype] = {}
        fields = known or {}
        if known is not None:
            _check_names((*self._casts, *self._lengths), known, names)
        chosen_ones = [field for name, field in fields.items() if names is None or name in names]
        for field in chosen_ones:
            if not holds(field):
                raise unheld(ds, field, "JAX")
            try:
                self._target(field.name, field.dtype)
            except (TypeError, ValueError) as error:
                raise SchemaError(ds.first_file, f"{error}") from None
        self.fields = {field.name: self._padded_field(ds, field) for field in chosen_ones}

    def _padded_field(self, ds: Dataset, field: Field) -> Field:
        """The field as it will be, ``pad_to`` seen to."""
        lengths = self._lengths.get(field.name)
        if lengths is None:
            return field
        if not field.ragged or field.shape is None:
            raise ValueError(
                f"pad_to is for fields whose samples differ in length; {field.name!r} has samples "
                f"of {field.shape_text}"
            )
        differing = [axis for axis, length in enumerate(field.shape) if length is None]
        if len(lengths) == 1:
            lengths *= len(differing)
        if len(lengths) != len(differing):
            raise ValueError(
                f"pad_to needs a length for each of {len(differing)} axes of {field.name!r} "
                f"{field.shape_text}, got {lengths}"
            )
        shape = list(field.shape)
        for axis, length in zip(differing, lengths, strict=True):
            shape[axis] = length
        padded = Field(field.name, field.dtype, tuple(shape), field.type)
        if not ds.steps:
            _check_lengths(ds, padded)
        return padded

    def _target(self, name: str, dtype: Dtype) -> Dtype:
        """The type that values of a field become."""
        key = name, dtype
        found = self._becomes.get(key)
        if found is None:
            found = self._becomes[key] = _target(name, dtype, self._casts.get(name))
        return found

    def named(self, made: Any) -> dict[str, Any]:  # noqa: ANN401
        """A batch by names, whether they make tuples or not."""
        return made if isinstance(made, dict) else dict(zip(self.names or (), made, strict=True))

    def array(self, name: str, values: Any, pool: Pool) -> Any:  # noqa: ANN401
        """A field's values as JAX is to get them; a list as a list of them."""
        if wide() != self._wide:
            raise RuntimeError(
                f"jax_enable_x64 was {self._wide} when the loader was made and is {not self._wide} "
                "in its threads; set it for the whole program with jax.config.update"
            )
        if isinstance(values, list | tuple):
            return [self.array(name, one, pool) for one in values]
        array = np.asarray(values)
        dtype = self._target(name, array.dtype)
        if dtype != array.dtype:
            # A 0-d sample of a list is cast as a batch of one.
            array = cast(name, np.atleast_1d(array), dtype, pool).reshape(array.shape)
        return self._padded(name, array, pool) if name in self._lengths else array

    def _padded(self, name: str, array: NDArray[Any], pool: Pool) -> NDArray[Any]:
        field = self.fields.get(name)
        shape = () if field is None else field.lengths
        if array.shape[1:] == shape:
            return array
        if any(n > to for n, to in zip(array.shape[1:], shape, strict=True)):
            raise ValueError(
                f"field {name!r} has samples of up to {array.shape[1:]}, pad_to makes {shape}; "
                "raise pad_to, or cut samples in map()"
            )
        made = pool.array(len(array), array.dtype, shape)
        made[...] = 0
        made[tuple(map(slice, array.shape))] = array
        return made


def memory() -> Pool:
    """Where arrays that were cast or padded lie."""
    return Pool(_KEPT)


def _target(name: str, dtype: Dtype, wanted: Dtype | None) -> Dtype:
    if wanted is not None:
        if not may_become(dtype, wanted):
            raise TypeError(
                f"field {name!r} has dtype {dtype}, which is not cast to {wanted}; round in map()"
            )
        return wanted
    found = kept(dtype)
    if found != dtype and not whole(dtype):
        raise TypeError(
            f"field {name!r} has dtype {dtype}, of which JAX keeps {found} while jax_enable_x64 is "
            f'off; say cast={{{json.dumps(name)}: "{found}"}}, or switch it on'
        )
    return found


def _check_names(
    asked: Sequence[str], known: Mapping[str, Field], names: tuple[str, ...] | None
) -> None:
    for name in asked:
        if name not in known or (names is not None and name not in names):
            raise FieldError(name, list(known) if names is None else names)


def _as_lengths(name: str, given: int | Sequence[int]) -> tuple[int, ...]:
    found: tuple[Any, ...] = tuple(given) if isinstance(given, Sequence) else (given,)
    if not found or not all(isinstance(n, int | np.integer) and n >= 0 for n in found):
        raise ValueError(f"pad_to takes a length or a tuple of them, got {given!r} for {name!r}")
    return tuple(map(int, found))


def _check_lengths(ds: Dataset, padded: Field) -> None:
    """Refuse what is longer than it is to be padded to: headers say how long samples are."""
    for group in ds.groups:
        for column in group.columns:
            if column.field.name != padded.name:
                continue
            parts = np.unique(group.locate(chosen(ds.rows, np.arange(len(ds)))).part)
            _, some = np.unique(column.table.shape[column.arrays[parts]], return_index=True)
            for part, shape in zip(parts[some], column.shapes(parts[some]), strict=True):
                if any(n > (to or 0) for n, to in zip(shape, padded.shape or (), strict=True)):
                    path = column.table.path(int(column.file[part]))
                    raise SchemaError(
                        path,
                        f"field {padded.name!r} has a sample of {shape}, pad_to makes "
                        f"{padded.shape}; raise pad_to, or leave it out with take()",
                    )
