"""Arrays as tensors and tensors as arrays sharing memory; ragged samples as nested tensors.

Arrays as tensors and tensors as arrays, of the same memory wherever both can see it.

Types that NumPy lacks (bfloat16, the float8 kinds, complex32) go over as their bits. NumPy has
them as types of ml_dtypes, or as unsigned integers where that is not installed; then the name of
the field's type says what they are.

Samples of different lengths as jagged tensors, made of packed values without a copy.
"""

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ndfeed.dataset.column import Field

_BITS: dict[int, np.dtype[Any]] = {n: np.dtype(f"u{n}") for n in (1, 2, 4)}
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32}

_NAMED = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_SMALL_NAMED = (
    *("bfloat16", "complex32", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu"),
)

# What torch and NumPy both know; older versions of torch know less.
_SHARED: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, name) for name in _NAMED if hasattr(torch, name)
}
_SMALL: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in _SMALL_NAMED if hasattr(torch, name)
}
try:
    import ml_dtypes
except ImportError:
    _SMALL_ARRAYS: dict[np.dtype[Any], torch.dtype] = {}
else:
    _SMALL_ARRAYS = {
        np.dtype(getattr(ml_dtypes, name)): dtype
        for name, dtype in _SMALL.items()
        if hasattr(ml_dtypes, name)
    }
_ARRAYS_SMALL = {dtype: array for array, dtype in _SMALL_ARRAYS.items()}

# Delivered as plain integers where ml_dtypes is missing, and no integers all the same.
_LACKING = (
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn"),
    *("float4_e2m1fn", "int2", "int4", "uint2", "uint4", *_SMALL_NAMED),
)


def dtype_of(field: Field) -> torch.dtype | None:
    """The torch dtype of a field's tensors; nothing where torch has none."""
    small = _SMALL.get(field.type) or _SMALL_ARRAYS.get(field.dtype)
    if small is not None or field.type in _LACKING:
        return small
    return _SHARED.get(field.dtype.newbyteorder("="))


def is_small(dtype: torch.dtype) -> bool:
    """Is it one that NumPy lacks?"""
    return dtype in _SMALL.values()


def is_text(dtype: np.dtype[Any]) -> bool:
    """Is it text or bytes, which torch has no type for?"""
    return dtype.kind in "US"


def tensor_of(array: NDArray[Any], small: torch.dtype | None = None) -> Tensor:
    """A tensor of the array's memory; of a copy where torch could not write to it.

    ``small`` is the type of which the array has the bits, where its own does not say so.
    """
    small = small or _SMALL_ARRAYS.get(array.dtype)
    if small is not None:
        array = array.view(_BITS[small.itemsize])
    if not array.flags.writeable:
        array = array.copy()
    try:
        tensor = torch.from_numpy(array)
    except ValueError:  # steps backwards, or bytes in the other order
        tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    return tensor if small is None else tensor.view(small)


def array_of(tensor: Tensor) -> NDArray[Any]:
    """An array of the tensor's memory; of a copy where the tensor has none on the CPU."""
    tensor = tensor.detach()
    if not is_small(tensor.dtype):
        return tensor.numpy(force=True)
    known = _ARRAYS_SMALL.get(tensor.dtype)
    if known is None:
        raise TypeError(f"NumPy has no {tensor.dtype}; install ml_dtypes, or return another dtype")
    bits: NDArray[Any] = tensor.view(_SIGNED[tensor.dtype.itemsize]).numpy(force=True)
    return bits.view(known)


def nested(batch: dict[str, Any], own: Collection[str]) -> dict[str, Any]:
    """The batch with packed fields as jagged tensors.

    ``own`` are the names of fields: what packing put beside them is not among these, and goes.
    """
    beside = {
        added
        for name in batch
        for added in (f"{name}_offsets", f"{name}_shape")
        if added in batch and added not in own
    }
    made: dict[str, Any] = {}
    for name, values in batch.items():
        if name in beside:
            continue
        offsets = f"{name}_offsets"
        if offsets in beside:
            shapes = batch.get(f"{name}_shape") if f"{name}_shape" in beside else None
            values = _jagged(name, values, batch[offsets], shapes)
        made[name] = values
    return made


def _jagged(name: str, values: Tensor, offsets: Tensor, shapes: Tensor | None) -> Tensor:
    """One jagged tensor. Where there are ``shapes`` the values are flat."""
    if shapes is not None:
        rest = [int(n) for n in shapes[0, 1:]] if len(shapes) else [0] * (shapes.shape[1] - 1)
        if len(shapes) and not bool((shapes[:, 1:] == shapes[0, 1:]).all()):
            raise ValueError(
                f"field {name!r} differs in more than its first axis, which a jagged tensor "
                'cannot; use ragged="list", "pad" or "packed"'
            )
        lengths = shapes[:, 0].cumsum(0)
        offsets = torch.cat([torch.zeros_like(offsets[:1]), lengths])
        count = int(offsets[-1])
        values = values[: count * math.prod(rest)].reshape(count, *rest)
    return torch.nested.nested_tensor_from_jagged(values, offsets)
