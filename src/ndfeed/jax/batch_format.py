"""How a batch of arrays becomes JAX arrays: fields, dtypes, and checked casts.

With ``jax_enable_x64`` off, as it is by default, JAX silently truncates 64 bits to 32: a label of
2**32 + 1 becomes 1. Here an integer is narrowed only if it keeps its value, and a floating-point
number only where the caller asked for it, and only if it stays finite.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import CastError, FieldError, SchemaError
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.flips import NO_FLIPS, Flips
from ndfeed.loading.options import Structure, known_fields, refuse_dtype
from ndfeed.loading.ragged import Pads, padded_field

_NAMED = (
    *("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
    *("int2", "int4", "uint2", "uint4"),
)

Dtype = np.dtype[Any]
DtypeLike: TypeAlias = Any  # whatever NumPy or JAX takes for a dtype
Casts: TypeAlias = Any  # a DtypeLike, or a dict of field name to one

# The dtypes of this version of JAX.
_HELD: frozenset[Dtype] = frozenset(
    np.dtype(getattr(jnp, name)) for name in _NAMED if hasattr(jnp, name)
)
# Those whose casts from each other are the same on every device.
_FLOATS = frozenset(np.dtype(t) for t in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64))


def _wide() -> bool:
    """Does JAX keep 64 bits in this thread?"""
    return bool(jax.config.jax_enable_x64)


def _parse_dtype(dtype: DtypeLike) -> Dtype:
    """Return the dtype that a caller wrote, if JAX has it and keeps its bits."""
    try:
        found: Dtype = np.dtype(jnp.dtype(dtype))
    except TypeError:
        raise TypeError(f"cast takes types such as 'float32', got {dtype!r}") from None
    if found not in _HELD:
        raise TypeError(f"cast to {found}: JAX has no such type")
    if _kept(found) != found:
        raise ValueError(
            f"cast to {found}: JAX would make {_kept(found)} of it while jax_enable_x64 is off; "
            f"cast to {_kept(found)} instead, or enable jax_enable_x64"
        )
    return found


def _holds(field: Field) -> bool:
    """Has JAX the dtype of a field?"""
    # Dtypes that NumPy lacks may be delivered as their bits, which have another meaning.
    return field.dtype in _HELD and field.dtype.name == field.dtype_text


def _kept(dtype: Dtype) -> Dtype:
    """Return the dtype that JAX makes of another: less than 64 bits by default."""
    found: Dtype = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    return found


def _is_integer(dtype: Dtype) -> bool:
    """Is it an integer dtype?"""
    return bool(jnp.issubdtype(dtype, np.integer))


def _may_become(dtype: Dtype, other: Dtype) -> bool:
    """Can values of ``dtype`` be cast to ``other``?"""
    if dtype == np.bool_ or dtype == other:
        return True
    if _is_integer(dtype):
        return other != np.bool_
    if jnp.issubdtype(dtype, np.complexfloating):
        return bool(jnp.issubdtype(other, np.complexfloating))
    return bool(jnp.issubdtype(other, np.inexact))


def _of_a_kind(dtype: Dtype, other: Dtype) -> bool:
    """Are both floating-point types, both integers, or both complex?"""
    kinds = (np.integer, np.floating, np.complexfloating, np.bool_)
    return any(jnp.issubdtype(dtype, kind) and jnp.issubdtype(other, kind) for kind in kinds)


def has_every_value(dtype: Dtype, of: Dtype) -> bool:
    """Can floating-point numbers of a dtype be every value of another one?"""
    if dtype not in _FLOATS or (of not in _FLOATS and of.kind not in "biu"):
        return False
    new: Any = jnp.finfo(dtype)
    if of in _FLOATS:
        old: Any = jnp.finfo(of)
        return bool(
            old.nmant <= new.nmant and old.maxexp <= new.maxexp and old.minexp >= new.minexp
        )
    bits = 1 if of.kind == "b" else 8 * of.itemsize - (of.kind == "i")
    return bool(bits <= new.nmant + 1 and bits < new.maxexp)


def _cast(name: str, values: NDArray[Any], dtype: Dtype, pool: Pool) -> NDArray[Any]:
    """Cast values; raises ``CastError`` with the place of one that does not fit."""
    if not values.size:
        return values.astype(dtype)
    if _is_integer(values.dtype) and _is_integer(dtype):
        least, most = _bounds(dtype)
        if values.min() < least or values.max() > most:
            outside = (values < least) | (values > most)
            raise _misfit(name, values, outside, dtype)
        return _copy(values, dtype, pool)
    made = _copy(values, dtype, pool)
    if dtype != np.bool_ and not _is_integer(dtype):
        fine = np.isfinite(made)
        if not fine.all():
            lost = ~fine & (np.isfinite(values) if not _is_integer(values.dtype) else True)
            if lost.any():
                raise _misfit(name, values, lost, dtype)
    return made


def _bounds(dtype: Dtype) -> tuple[int, int]:
    """Return Python ints: NumPy would compare int64 with uint64 as floats."""
    found: Any = jnp.iinfo(dtype)
    return int(found.min), int(found.max)


def _copy(values: NDArray[Any], dtype: Dtype, pool: Pool) -> NDArray[Any]:
    made = pool.array(len(values), dtype, values.shape[1:])
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(made, values, casting="unsafe")
    return made


def _misfit(name: str, values: NDArray[Any], wrong: NDArray[np.bool_], dtype: Dtype) -> CastError:
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return CastError(name, place[0], values[place].item(), dtype.name)


class BatchFormat:
    """How arrays are passed to JAX; checked before anything is read.

    ``fields`` are those of a batch where they are known, with the shapes that they will have.
    """

    def __init__(
        self,
        ds: Dataset,
        structure: Structure,
        casts: Casts = None,
        pads: Pads | None = None,
        flips: Flips = NO_FLIPS,
    ) -> None:
        self.structure = structure
        self.flips = flips
        names = structure.names
        self._wide = _wide()
        known = known_fields(ds)
        each = casts if isinstance(casts, Mapping) else {}
        self._casts = {name: _parse_dtype(dtype) for name, dtype in each.items()}
        self._cast_all = None if casts is None or each is casts else _parse_dtype(casts)
        self._becomes: dict[tuple[str, Dtype], Dtype] = {}
        fields = known or {}
        if known is not None:
            _check_names(tuple(self._casts), known, names)
            flips.check(known, names)
        chosen = [field for name, field in fields.items() if names is None or name in names]
        if known is not None and self._cast_all is not None:
            _check_some(self._cast_all, chosen)
        for field in chosen:
            if not _holds(field):
                raise refuse_dtype(ds, field, "JAX")
            try:
                self._target(field.name, field.dtype)
            except (TypeError, ValueError) as error:
                raise SchemaError(ds.first_file, f"{error}") from None
        self.fields = {field.name: padded_field(field, pads or {}) for field in chosen}

    def _target(self, name: str, dtype: Dtype) -> Dtype:
        """Return the dtype that values of a field are cast to."""
        key = name, dtype
        found = self._becomes.get(key)
        if found is None:
            wanted, every = self._casts.get(name), self._cast_all
            if every is not None and _of_a_kind(dtype, every):
                wanted = every
            found = self._becomes[key] = _target(name, dtype, wanted)
        return found

    @property
    def packs_bits(self) -> bool:
        """Does JAX get a dtype of less than a byte? NumPy has a byte for each of its values."""
        targets = [self._target(name, field.dtype) for name, field in self.fields.items()]
        known = (
            jnp.iinfo(one) if _is_integer(one) else jnp.finfo(one)
            for one in targets
            if jnp.issubdtype(one, np.number)
        )
        return any(one.bits < 8 for one in known)

    @property
    def exact_casts(self) -> dict[str, Dtype]:
        """Fields that are cast to a dtype which has every value of theirs, and that dtype."""
        targets = {name: self._target(name, field.dtype) for name, field in self.fields.items()}
        return {
            name: dtype
            for name, dtype in targets.items()
            if dtype != self.fields[name].dtype and has_every_value(dtype, self.fields[name].dtype)
        }

    @property
    def checked_casts(self) -> list[str]:
        """Fields that are cast to a dtype which may lack values of theirs."""
        exact = self.exact_casts
        fields = self.fields.items()
        changed = [n for n, field in fields if self._target(n, field.dtype) != field.dtype]
        return [name for name in changed if name not in exact]

    @property
    def growth(self) -> float:
        """Bytes that casts allocate for every byte that they are given, at most."""
        casts = (
            (field.dtype, self._target(name, field.dtype)) for name, field in self.fields.items()
        )
        grown = max((new.itemsize / old.itemsize for old, new in casts if new != old), default=0.0)
        return grown + (1.0 if self.flips else 0.0)

    def check_wide(self) -> None:
        """Refuse to go on where JAX does not keep as many bits as when the casts were chosen."""
        if _wide() != self._wide:
            raise RuntimeError(
                f"jax_enable_x64 was {self._wide} when the loader was made and is {not self._wide} "
                "where batches are made; set it for the whole program with jax.config.update"
            )

    def array(self, name: str, values: object, pool: Pool) -> object:
        """Return a field's values in the dtype that JAX is to get; a list becomes a list."""
        self.check_wide()
        if isinstance(values, list | tuple):
            return [self.array(name, one, pool) for one in values]
        array = np.asarray(values)
        dtype = self._target(name, array.dtype)
        if dtype != array.dtype:
            # A 0-d sample of a list is cast as a batch of one.
            array = _cast(name, np.atleast_1d(array), dtype, pool).reshape(array.shape)
        return array


def _target(name: str, dtype: Dtype, wanted: Dtype | None) -> Dtype:
    if wanted is not None:
        if not _may_become(dtype, wanted):
            raise TypeError(
                f"field {name!r} has dtype {dtype}, which is not cast to {wanted}; round in map()"
            )
        return wanted
    found = _kept(dtype)
    if found != dtype and not _is_integer(dtype):
        raise TypeError(
            f"field {name!r} has dtype {dtype}, of which JAX keeps {found} while jax_enable_x64 is "
            f'off; pass cast={{{json.dumps(name)}: "{found}"}}, or enable jax_enable_x64'
        )
    return found


def _check_names(
    asked: Sequence[str], known: Mapping[str, Field], names: tuple[str, ...] | None
) -> None:
    for name in asked:
        if name not in known or (names is not None and name not in names):
            raise FieldError(name, list(known) if names is None else names)


def _check_some(every: Dtype, fields: Sequence[Field]) -> None:
    """Refuse one dtype for all fields where it applies to none of them."""
    if not any(_of_a_kind(field.dtype, every) for field in fields):
        kind = "integers" if _is_integer(every) else "numbers of that kind"
        example = next((field.name for field in fields), "x")
        raise ValueError(
            f"cast={every.name!r} is for all fields of {kind}, and there are none; name the field: "
            f"cast={{{example!r}: {every.name!r}}}"
        )
