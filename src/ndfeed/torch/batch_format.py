"""What a batch of arrays becomes: tensors of which types, in which container.

Arrays and tensors share memory wherever both can see it; ragged samples are nested tensors.

Types that NumPy lacks (bfloat16, the float8 kinds, complex32) go over as their bits. NumPy has
them as types of ml_dtypes, or as unsigned integers where that is not installed; then the name of
the field's type says what they are.

Three steps, so that a device can stand between them: ``tensor`` sees the memory of an array,
``converted`` runs where the tensor is to be used, ``arranged`` makes the batch of them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import FieldError
from ndfeed.loading.options import Structure, known_fields, refuse_dtype
from ndfeed.torch.convert import Convert

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


Ragged = Literal["list", "pad", "packed", "nested"]
RAGGED = ("list", "pad", "packed", "nested")
Tensors = dict[str, Any]  # a tensor, or a list of them where samples differ in shape
Batch = Any  # tensors in the structure that the consumer asked for


class BatchFormat:
    """How the batches of a dataset are handed out; checked before anything is read.

    ``dtypes`` are those of its fields, ``text`` names those that are text and come as lists of
    ``str``, and ``ragged`` says whether samples of some field differ in shape.
    """

    def __init__(
        self,
        ds: Dataset,
        structure: Structure,
        convert: Mapping[str, Convert] | None = None,
        ragged: Ragged = "list",
    ) -> None:
        names = structure.names
        fields = known_fields(ds)
        known = fields or {}
        self.structure = structure
        self.convert = dict(convert or {})
        self.ragged = any(field.ragged for field in known.values())
        self._nested = ragged == "nested"
        self._own = frozenset(ds.names if fields is None else fields)
        if fields is not None:
            _check_converts(fields, names, self.convert)
        if fields is not None and self._nested:
            _check_names(fields, names or ())
        chosen = [f for n, f in known.items() if names is None or n in names]
        for field in chosen if self._nested and not ds.steps else ():
            _check_jagged(field)
        self.dtypes = {f.name: _checked(ds, f) for f in chosen if not is_text(f.dtype)}
        self.text = [field.name for field in chosen if is_text(field.dtype)]
        # Behind a map arrays say themselves what they are.
        self._small = {} if ds.steps else {n: d for n, d in self.dtypes.items() if is_small(d)}

    def picked(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The parts of a batch of arrays that are needed, and nothing else."""
        names = self.structure.names
        if names is None or not self._nested:
            return self.structure.pick(batch)
        # A jagged tensor is made of what packing puts beside the values.
        beside = [f"{name}{suffix}" for name in names for suffix in ("_offsets", "_shape")]
        return {name: batch[name] for name in (*names, *beside) if name in batch}

    def tensor(self, name: str, values: Any) -> Any:  # noqa: ANN401
        """A field's array as a tensor of the same memory, text as ``str``; a list as a list."""
        if isinstance(values, list | tuple):
            return [self.tensor(name, one) for one in values]
        if isinstance(values, Tensor | str | bytes):
            return values
        if is_text(values.dtype):  # which no tensor holds
            return values.tolist()
        try:
            return tensor_of(values, self._small.get(name))
        except TypeError:
            raise TypeError(
                f"field {name!r} has dtype {values.dtype}, which torch cannot hold; leave it out "
                "with select() or fields="
            ) from None

    def converted(self, name: str, values: Any) -> Any:  # noqa: ANN401
        """A field's tensor as the consumer wants it, on whatever device it is."""
        convert = self.convert.get(name)
        if convert is None:
            return values
        return [convert(one) for one in values] if isinstance(values, list) else convert(values)

    @property
    def growth(self) -> float:
        """Bytes that conversions take for every byte that they are given, at most."""
        known = ((convert, self.dtypes.get(name)) for name, convert in self.convert.items())
        return max((convert.growth(dtype) for convert, dtype in known if dtype), default=0.0)

    def arranged(self, tensors: Tensors) -> Batch:
        """The batch that the consumer gets, of tensors by name."""
        if self._nested:
            tensors = nested(tensors, self._own)
        return self.structure.build(tensors)


def _check_converts(
    fields: Mapping[str, Field], names: tuple[str, ...] | None, converts: Mapping[str, Convert]
) -> None:
    for name, convert in converts.items():
        if name not in fields or (names is not None and name not in names):
            raise FieldError(name, list(fields) if names is None else names)
        if not isinstance(convert, Convert):
            raise TypeError(f"convert takes a Convert for each field, got {convert!r} for {name!r}")
        convert.check(fields[name])


def _check_names(fields: Mapping[str, Field], names: Sequence[str]) -> None:
    """What packing puts beside a field is no part of a batch of jagged tensors."""
    for name in names:
        if name not in fields:
            raise FieldError(name, list(fields))


def _check_jagged(field: Field) -> None:
    if field.shape is None or None in field.shape[1:]:
        raise ValueError(
            f"field {field.name!r} {field.shape_text} differs in another than its first axis, "
            'which a jagged tensor cannot; use ragged="list", "pad" or "packed"'
        )


def _checked(ds: Dataset, field: Field) -> torch.dtype:
    dtype = dtype_of(field)
    if dtype is None:
        raise refuse_dtype(ds, field, "torch")
    return dtype
