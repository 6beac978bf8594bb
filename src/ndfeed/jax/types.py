"""Which types JAX holds, what becomes of the others, and casts that look at every value.

With ``jax_enable_x64`` off, as it is by default, JAX makes 32 bits of 64 and says nothing: a label
of 2**32 + 1 becomes 1. Here an integer is made narrower only if it has the same value afterwards,
and a fraction only where the caller asked for it, and only if it stays finite.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.field import Field
from ndfeed.errors import CastError
from ndfeed.loader.pool import Pool

_NAMED = (
    *("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
    *("int2", "int4", "uint2", "uint4"),
)

Dtype = np.dtype[Any]

# What this version of JAX knows.
_HELD: frozenset[Dtype] = frozenset(
    np.dtype(getattr(jnp, name)) for name in _NAMED if hasattr(jnp, name)
)


def wide() -> bool:
    """Does JAX keep 64 bits, in this thread?"""
    return bool(jax.config.jax_enable_x64)


def named(dtype: Any) -> Dtype:  # noqa: ANN401 - whatever NumPy or JAX takes for one
    """The type that a caller wrote, if JAX has it and keeps its bits."""
    try:
        found: Dtype = np.dtype(jnp.dtype(dtype))
    except TypeError:
        raise TypeError(f"cast takes types such as 'float32', got {dtype!r}") from None
    if found not in _HELD:
        raise TypeError(f"cast to {found}: JAX has no such type")
    if kept(found) != found:
        raise ValueError(
            f"cast to {found}: JAX would make {kept(found)} of it while jax_enable_x64 is off; say "
            "that, or switch it on"
        )
    return found


def holds(field: Field) -> bool:
    """Has JAX the type of a field?"""
    # Types that NumPy lacks may be delivered as their bits, which are not what is meant.
    return field.dtype in _HELD and field.dtype.name == field.dtype_text


def kept(dtype: Dtype) -> Dtype:
    """What JAX makes of a type, which is less than 64 bits by default."""
    found: Dtype = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    return found


def whole(dtype: Dtype) -> bool:
    """Is it one of whole numbers?"""
    return bool(jnp.issubdtype(dtype, np.integer))


def may_become(dtype: Dtype, other: Dtype) -> bool:
    """Is ``other`` of a kind that such values can be cast to?"""
    if dtype == np.bool_ or dtype == other:
        return True
    if whole(dtype):
        return other != np.bool_
    if jnp.issubdtype(dtype, np.complexfloating):
        return bool(jnp.issubdtype(other, np.complexfloating))
    return bool(jnp.issubdtype(other, np.inexact))


def of_a_kind(dtype: Dtype, other: Dtype) -> bool:
    """Are both floating-point types, both integers, or both complex?"""
    kinds = (np.integer, np.floating, np.complexfloating, np.bool_)
    return any(jnp.issubdtype(dtype, kind) and jnp.issubdtype(other, kind) for kind in kinds)


def cast(name: str, values: NDArray[Any], dtype: Dtype, pool: Pool) -> NDArray[Any]:
    """The values in another type; ``CastError`` with the place of one that does not fit."""
    if not values.size:
        return values.astype(dtype)
    if whole(values.dtype) and whole(dtype):
        least, most = _bounds(dtype)
        if values.min() < least or values.max() > most:
            outside = (values < least) | (values > most)
            raise _misfit(name, values, outside, dtype)
        return _copied(values, dtype, pool)
    made = _copied(values, dtype, pool)
    if dtype != np.bool_ and not whole(dtype):
        fine = np.isfinite(made)
        if not fine.all():
            lost = ~fine & (np.isfinite(values) if not whole(values.dtype) else True)
            if lost.any():
                raise _misfit(name, values, lost, dtype)
    return made


def _bounds(dtype: Dtype) -> tuple[int, int]:
    """As Python's numbers: NumPy would compare int64 with uint64 as fractions."""
    found: Any = jnp.iinfo(dtype)
    return int(found.min), int(found.max)


def _copied(values: NDArray[Any], dtype: Dtype, pool: Pool) -> NDArray[Any]:
    made = pool.array(len(values), dtype, values.shape[1:])
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(made, values, casting="unsafe")
    return made


def _misfit(name: str, values: NDArray[Any], wrong: NDArray[np.bool_], dtype: Dtype) -> CastError:
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return CastError(name, place[0], values[place].item(), dtype.name)
