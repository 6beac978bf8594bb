"""How a batch of arrays becomes tensors: fields, dtypes, shapes and structure.

Everything is known before anything is read, except the lengths of some axes: those along which
samples differ, and the first one where the last batch may be short.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import FieldError
from ndfeed.loading.adapter import Arrays, encode_text
from ndfeed.loading.engine import BatchGroup, count_batches
from ndfeed.loading.options import Options, refuse_dtype
from ndfeed.loading.ragged import owner, padded_field, uneven_field
from ndfeed.tf.framework_hacks import Element, Spec

Ragged = Literal["ragged", "pad"]
RAGGED = ("ragged", "pad")
ArrayDict = dict[str, NDArray[Any]]

_TYPES = {
    np.dtype(name): tf.as_dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
# Types that NumPy lacks and TensorFlow has, as those of ml_dtypes, which comes with it.
_SMALL = {
    name: getattr(tf, name, None) or getattr(tf.dtypes.experimental, name)
    for name in ("bfloat16", "float8_e4m3fn")
}


def _dtype_of(field: Field) -> tf.DType | None:
    """Return the dtype of a field's tensors; ``None`` where TensorFlow has none."""
    if field.dtype.kind in "SU":
        return tf.string
    return _SMALL.get(field.dtype.name) or _TYPES.get(field.dtype.newbyteorder("="))


class BatchFormat:
    """How the batches of a dataset become elements of a ``tf.data.Dataset``.

    ``size`` is the number of samples of a batch, ``full`` says whether all batches have that many,
    and ``joint`` whether several batches cross into TensorFlow in one piece, side by side.
    """

    def __init__(
        self,
        ds: Dataset,
        options: Options,
        ragged: Ragged,
        size: int,
        *,
        full: bool,
        joint: bool,
    ) -> None:
        self.full = full
        self.joint = joint
        self.size = size
        self._structure = options.structure.with_tuples()
        names, pads = self._structure.names, options.pads
        self._mapped = bool(ds.steps)
        self.signature: dict[str, tf.TensorSpec] = {}  # of what the generator yields
        self.ragged: dict[str, str] = {}  # field name to the name of its offsets
        every = size if full else None
        own = (None, every) if joint else (every,)
        for name, field in ds.fields.items():
            if names is not None and name not in _owners(names, ds.fields, ragged):
                continue
            dtype = _check_dtype(ds, field)
            field = uneven_field(field, pads)
            if not field.ragged:
                self._add(name, (*own, *(field.shape or ())), dtype)
            elif ragged == "pad":
                uneven = sum(length is None for length in _shape(field))
                self._add(name, (every, *_shape(padded_field(field, pads))), dtype)
                self._add(f"{name}_length", (every, *(() if uneven == 1 else (uneven,))), tf.int64)
            else:
                _check_ragged(field)
                self._add(name, (None, *_shape(field)[1:]), dtype)
                self._add(f"{name}_offsets", (size + 1 if full else None,), tf.int64)
                self.ragged[name] = f"{name}_offsets"

    def _add(self, name: str, shape: tuple[int | None, ...], dtype: tf.DType) -> None:
        if name in self.signature:
            raise ValueError(f"a ragged field would add {name!r}, which is a field; rename it")
        self.signature[name] = tf.TensorSpec(shape, dtype)

    @property
    def generator_spec(self) -> Spec:
        """The types and shapes of what the generator yields."""
        return self._build(self.signature)

    def arrays(self, found: BatchGroup | ArrayDict) -> list[Element]:
        """Convert what a loader delivered to what the generator yields, one after the other."""
        made = self._check(found.made if isinstance(found, BatchGroup) else found)
        if not self.joint:
            return [self._build(made)]
        size = self.size
        whole = len(next(iter(made.values()))) // size
        end = whole * size
        parts = []
        if whole:
            parts.append({n: a[:end].reshape(-1, size, *a.shape[1:]) for n, a in made.items()})
        if whole < count_batches(found):  # a last batch that is short, or empty
            parts.append({n: a[None, end:] for n, a in made.items()})
        return [self._build(part) for part in parts]

    def _build(self, parts: dict[str, Any]) -> Element:
        """Build the structure of ``fields=``, unless ragged tensors are still to be made."""
        return parts if self.ragged else self._structure.build(parts)

    def split(self, *parts: Element) -> tf.data.Dataset:
        """Split a piece into its batches. TensorFlow passes a plain tuple as several arguments."""
        several = type(self.generator_spec) is tuple
        return tf.data.Dataset.from_tensor_slices(parts if several else parts[0])

    def _check(self, batch: Mapping[str, Any]) -> ArrayDict:
        """Return the arrays of a batch, if they have the shapes that the first sample promised."""
        arrays = {name: batch[name] for name in self.signature if name in batch}
        for name in self.signature if self._mapped else ():
            found = arrays.get(name)
            expected = self.signature[name].shape
            if self.joint:  # any number of batches
                expected = tf.TensorShape([None]).concatenate(expected[2:])
            if not isinstance(found, np.ndarray) or not expected.is_compatible_with(found.shape):
                shape = "nothing" if found is None else getattr(found, "shape", "different shapes")
                raise ValueError(
                    f"field {name!r}: expected batches of shape {expected}, as map() made of the "
                    f"first sample, found {shape}; give all samples one shape in map()"
                )
        return {name: encode_text(values) for name, values in arrays.items()}

    def element(self, tensors: Mapping[str, tf.Tensor]) -> Element:
        """Make the element of the ``tf.data.Dataset``, where some of its fields are ragged."""
        made = dict(tensors)
        for name, offsets in self.ragged.items():
            made[name] = tf.RaggedTensor.from_row_splits(
                made[name], made.pop(offsets), validate=False
            )
        return self._structure.build(made)


def _owners(names: tuple[str, ...], fields: Mapping[str, Field], ragged: Ragged) -> set[str]:
    """Return the fields that the names belong to; padding adds the name of a field's lengths."""
    known, found = list(fields), set()
    for name in names:
        beside = owner(name, known, "pad") if ragged == "pad" else None
        field = name if name in fields else beside
        if field is None:
            raise FieldError(name, known)
        found.add(field)
    return found


def _shape(field: Field) -> tuple[int | None, ...]:
    if field.shape is None:
        raise ValueError(
            f"field {field.name!r} has samples of different numbers of dimensions, which no "
            "tensor can hold; give them the same number in map()"
        )
    return field.shape


def _check_ragged(field: Field) -> None:
    if None in _shape(field)[1:]:
        raise ValueError(
            f"field {field.name!r} {field.shape_text} differs in another than its first axis; "
            'use ragged="pad", or give samples one shape in map()'
        )


def _check_dtype(ds: Dataset, field: Field) -> tf.DType:
    dtype = _dtype_of(field)
    if dtype is None:
        raise refuse_dtype(ds, field, "TensorFlow")
    return dtype


class TfAdapter(Arrays):
    """Hands small batches to TensorFlow several at a time, in one piece.

    Crossing into TensorFlow takes some 100 µs however little is handed over, and splitting a piece
    there takes less. TensorFlow uses the memory of arrays without a copy where it is aligned to 64
    bytes, as memory of a megabyte or more from the pool is.
    """

    def __init__(self, together: int, joint: bool, held: int) -> None:
        super().__init__()  # the structure is built later, when pieces are split
        self.together = together
        self.joint = joint
        self.held = held

    def describe(self) -> str:
        """Say how batches are handed over."""
        return "TensorFlow is handed several batches at a time" if self.joint else ""
