"""How a batch of arrays becomes tensors: dtypes, conversions and structure.

Arrays and tensors share memory wherever both can use it; ragged samples are nested tensors.

Dtypes that NumPy lacks (bfloat16, the float8 kinds, complex32) are passed on as their bits. NumPy
has them as dtypes of ml_dtypes, or as unsigned integers where that is not installed; then the type
of the field says what they are.

There are three steps, so that a copy to a device can happen between them: ``tensor`` shares the
memory of an array, ``convert_all`` runs where tensors are used, ``build`` makes the batch.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import FieldError
from ndfeed.loading.flips import DRAWN, NO_FLIPS, Flips
from ndfeed.loading.options import Structure, known_fields, refuse_dtype
from ndfeed.torch.convert import Convert

_BITS: dict[int, np.dtype[Any]] = {n: np.dtype(f"u{n}") for n in (1, 2, 4)}
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32}
_OF_BYTES = {**_SIGNED, 8: torch.int64, 16: torch.complex128}

_NAMED = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_SMALL_NAMED = (
    *("bfloat16", "complex32", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu"),
)

# Dtypes of both torch and NumPy; older versions of torch have fewer.
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

# Delivered as integers where ml_dtypes is missing, although they are something else.
_LACKING = (
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn"),
    *("float4_e2m1fn", "int2", "int4", "uint2", "uint4", *_SMALL_NAMED),
)


def _dtype_of(field: Field) -> torch.dtype | None:
    """Return the torch dtype of a field's tensors; ``None`` where torch has none."""
    small = _SMALL.get(field.type) or _SMALL_ARRAYS.get(field.dtype)
    if small is not None or field.type in _LACKING:
        return small
    return _SHARED.get(field.dtype.newbyteorder("="))


def _is_small(dtype: torch.dtype) -> bool:
    """Is it a dtype that NumPy lacks?"""
    return dtype in _SMALL.values()


def is_text(dtype: np.dtype[Any]) -> bool:
    """Is it text or bytes, for which torch has no dtype?"""
    return dtype.kind in "US"


def tensor_of(array: NDArray[Any], small: torch.dtype | None = None) -> Tensor:
    """Make a tensor that shares the array's memory; a copy if that is read-only.

    ``small`` is the dtype whose bits the array holds, where its own dtype does not say so.
    """
    small = small or _SMALL_ARRAYS.get(array.dtype)
    if small is not None:
        array = array.view(_BITS[small.itemsize])
    if not array.flags.writeable:
        array = array.copy()
    try:
        tensor = torch.from_numpy(array)
    except ValueError:  # negative strides, or the other byte order
        tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    return tensor if small is None else tensor.view(small)


def array_of(tensor: Tensor) -> NDArray[Any]:
    """Make an array that shares the tensor's memory; a copy if that is not on the CPU."""
    tensor = tensor.detach()
    if not _is_small(tensor.dtype):
        return tensor.numpy(force=True)
    known = _ARRAYS_SMALL.get(tensor.dtype)
    if known is None:
        raise TypeError(f"NumPy has no {tensor.dtype}; install ml_dtypes, or return another dtype")
    bits: NDArray[Any] = tensor.view(_SIGNED[tensor.dtype.itemsize]).numpy(force=True)
    return bits.view(known)


def _nest_ragged(batch: "Tensors", own: Collection[str]) -> "Tensors":
    """Make jagged tensors of the packed fields of a batch.

    ``own`` are the names of the fields. What packing added beside them is left out.
    """
    beside = {
        added
        for name in batch
        for added in (f"{name}_offsets", f"{name}_shape")
        if added in batch and added not in own
    }
    made: Tensors = {}
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
    """Make one jagged tensor. With ``shapes``, the values are flat."""
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
Values: TypeAlias = Any  # of a field: a tensor, or a list of them, or of ``str``, per sample
Tensors: TypeAlias = dict[str, Values]
Batch: TypeAlias = Any  # tensors in the structure that ``fields=`` has


class BatchFormat:
    """How the batches of a dataset become tensors; checked before anything is read.

    ``dtypes`` are those of its fields, ``text`` names the fields that are delivered as lists of
    ``str``, and ``ragged`` says whether samples of some field differ in shape.
    """

    def __init__(
        self,
        ds: Dataset,
        structure: Structure,
        convert: Mapping[str, Convert] | None = None,
        ragged: Ragged = "list",
        flips: Flips = NO_FLIPS,
    ) -> None:
        names = structure.names
        fields = known_fields(ds)
        known = fields or {}
        self.structure = structure
        self.convert = dict(convert or {})
        self.flips = flips
        self.ragged = any(field.ragged for field in known.values())
        self._nested = ragged == "nested"
        self._own = frozenset(ds.names if fields is None else fields)
        if fields is not None:
            _check_converts(fields, names, self.convert)
            flips.check(fields, names)
            self._check_channels(fields)
        if fields is not None and self._nested:
            _check_names(fields, names or ())
        chosen = [f for n, f in known.items() if names is None or n in names]
        for field in chosen if self._nested and not ds.steps else ():
            _check_jagged(field)
        self.dtypes = {f.name: _check_dtype(ds, f) for f in chosen if not is_text(f.dtype)}
        self.text = [field.name for field in chosen if is_text(field.dtype)]
        # After a map, the dtype of an array says what it holds.
        self._small = {} if ds.steps else {n: d for n, d in self.dtypes.items() if _is_small(d)}

    def _check_channels(self, fields: Mapping[str, Field]) -> None:
        """Refuse to flip channels: axes count as samples are stored, not as tensors come out."""
        for name, convert in self.convert.items():
            ndim = 1 + len(fields[name].shape or ())
            channels = ndim - 1 if convert.hwc else 1 if convert.channels_last else None
            if channels in self.flips.find_axes(name, ndim, fields[name].shape_text):
                raise ValueError(
                    f"flip would reverse the channels of {name!r}, whose samples are stored as "
                    f"{fields[name].shape_text}; the width is axis {1 if convert.hwc else -1}"
                )

    def pick(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the arrays of a batch that are needed, and no others."""
        names = self.structure.names
        if names is None or not self._nested:
            return self.structure.pick(batch)
        # A jagged tensor also needs what packing adds beside the values.
        beside = [f"{name}{suffix}" for name in names for suffix in ("_offsets", "_shape")]
        return {name: batch[name] for name in (*names, *beside) if name in batch}

    def tensor(self, name: str, values: Values) -> Values:
        """Make a tensor that shares the memory of a field's array; text becomes ``str``."""
        if isinstance(values, list | tuple):
            return [self.tensor(name, one) for one in values]
        if isinstance(values, Tensor | str | bytes):
            return values
        if is_text(values.dtype):  # tensors hold no text
            return values.tolist()
        try:
            return tensor_of(values, self._small.get(name))
        except TypeError:
            raise TypeError(
                f"field {name!r} has dtype {values.dtype}, which torch cannot hold; leave it out "
                "with select() or fields="
            ) from None

    def convert_all(self, made: Tensors) -> Tensors:
        """Flip and convert the fields of a batch, on the device that its tensors are on."""
        drawn = made.get(DRAWN)
        if drawn is not None:
            made = {n: self._flip(n, values, drawn) for n, values in made.items() if n != DRAWN}
        return {name: self._convert(name, values) for name, values in made.items()}

    def _convert(self, name: str, values: Values) -> Values:
        convert = self.convert.get(name)
        if convert is None:
            return values
        return [convert(one) for one in values] if isinstance(values, list) else convert(values)

    def _flip(self, name: str, values: Values, drawn: Tensor) -> Values:
        """Return a tensor with its samples flipped; the one given is not changed."""
        if name not in self.flips.axes:
            return values
        if isinstance(values, list):
            raise TypeError(f"flip of {name!r}, whose samples differ in shape: flip it in a map()")
        bits = values.view(_OF_BYTES[values.itemsize])  # torch lacks some functions for some dtypes
        shape = tuple(values.shape[1:])
        for bit, axis in enumerate(self.flips.find_axes(name, values.ndim, shape)):
            turned = (drawn >> bit & 1).bool().view(-1, *(1,) * (values.ndim - 1))
            bits = torch.where(turned, bits.flip(axis), bits)
        return bits.view(values.dtype)

    @property
    def growth(self) -> float:
        """Bytes that conversions allocate for every byte that they are given, at most."""
        known = ((convert, self.dtypes.get(name)) for name, convert in self.convert.items())
        converts = max((convert.growth(dtype) for convert, dtype in known if dtype), default=0.0)
        return converts + (2.0 if self.flips else 0.0)

    def build(self, tensors: Tensors) -> Batch:
        """Build the batch that the consumer gets from tensors by name."""
        if self._nested:
            tensors = _nest_ragged(tensors, self._own)
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
    """Refuse names of what packing adds beside a field: jagged tensors have no such part."""
    for name in names:
        if name not in fields:
            raise FieldError(name, list(fields))


def _check_jagged(field: Field) -> None:
    if field.shape is None or None in field.shape[1:]:
        raise ValueError(
            f"field {field.name!r} {field.shape_text} differs in another than its first axis, "
            'which a jagged tensor cannot; use ragged="list", "pad" or "packed"'
        )


def _check_dtype(ds: Dataset, field: Field) -> torch.dtype:
    dtype = _dtype_of(field)
    if dtype is None:
        raise refuse_dtype(ds, field, "torch")
    return dtype
