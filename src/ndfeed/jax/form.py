"""What becomes of a batch of arrays before JAX gets it: which of them, and of which types."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.field import Field
from ndfeed.errors import FieldError, SchemaError
from ndfeed.jax.types import (
    Dtype,
    cast,
    holds,
    kept,
    may_become,
    named,
    of_a_kind,
    whole,
    wide,
)
from ndfeed.loader.options import known_fields, unheld
from ndfeed.loader.padding import Pads, padded_field
from ndfeed.loader.pool import Pool
from ndfeed.loader.structure import Structure

Casts = Any  # a type, or a dict of field name to type; whatever NumPy or JAX take for one
_KEPT = 16  # pieces of memory of one size kept for their next use


class Form:
    """How arrays are handed to JAX; checked before anything is read.

    ``fields`` are those of a batch where they are known, with the shapes that they will have.
    """

    def __init__(
        self,
        ds: Dataset,
        structure: Structure,
        casts: Casts = None,
        pads: Pads | None = None,
    ) -> None:
        self.structure = structure
        names = structure.names
        self._wide = wide()
        known = known_fields(ds)
        each = casts if isinstance(casts, Mapping) else {}
        self._casts = {name: named(dtype) for name, dtype in each.items()}
        self._cast_all = None if casts is None or each is casts else named(casts)
        self._becomes: dict[tuple[str, Dtype], Dtype] = {}
        fields = known or {}
        if known is not None:
            _check_names(tuple(self._casts), known, names)
        chosen_ones = [field for name, field in fields.items() if names is None or name in names]
        if known is not None and self._cast_all is not None:
            _check_some(self._cast_all, chosen_ones)
        for field in chosen_ones:
            if not holds(field):
                raise unheld(ds, field, "JAX")
            try:
                self._target(field.name, field.dtype)
            except (TypeError, ValueError) as error:
                raise SchemaError(ds.first_file, f"{error}") from None
        self.fields = {field.name: padded_field(field, pads or {}) for field in chosen_ones}

    def _target(self, name: str, dtype: Dtype) -> Dtype:
        """The type that values of a field become."""
        key = name, dtype
        found = self._becomes.get(key)
        if found is None:
            wanted, every = self._casts.get(name), self._cast_all
            if every is not None and of_a_kind(dtype, every):
                wanted = every
            found = self._becomes[key] = _target(name, dtype, wanted)
        return found

    @property
    def growth(self) -> float:
        """Bytes that casts take for every byte that they are given, at most."""
        casts = (
            (field.dtype, self._target(name, field.dtype)) for name, field in self.fields.items()
        )
        return max((new.itemsize / old.itemsize for old, new in casts if new != old), default=0.0)

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
        return array


def memory() -> Pool:
    """Where arrays that were cast lie."""
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


def _check_some(every: Dtype, fields: Sequence[Field]) -> None:
    """Refuse one type for all fields where it would be for none of them."""
    if not any(of_a_kind(field.dtype, every) for field in fields):
        kind = "integers" if whole(every) else "numbers of that kind"
        example = next((field.name for field in fields), "x")
        raise ValueError(
            f"cast={every.name!r} is for all fields of {kind}, and there are none; name the field: "
            f"cast={{{example!r}: {every.name!r}}}"
        )
