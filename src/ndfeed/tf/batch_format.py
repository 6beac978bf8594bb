"""How a batch of arrays becomes tensors: fields, dtypes, shapes and structure.

What becomes of a batch of arrays: which tensors, of which types and shapes, in which container.

Everything is known before anything is read. Axes whose length is not are those along which
samples differ, and the first where a last batch may be short.

What a loader of arrays is told where its batches go to TensorFlow.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import FieldError
from ndfeed.loading.adapter import Arrays, encoded
from ndfeed.loading.engine import BatchGroup, count_batches
from ndfeed.loading.options import Options, refuse_dtype
from ndfeed.loading.ragged import owner, padded_field, uneven_field

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


def type_of(field: Field) -> tf.DType | None:
    """The type of a field's tensors; nothing where TensorFlow has none."""
    if field.dtype.kind in "SU":
        return tf.string
    return _SMALL.get(field.dtype.name) or _TYPES.get(field.dtype.newbyteorder("="))


class BatchFormat:
    """How the batches of a dataset are handed to TensorFlow.

    ``size`` is how many samples a batch has, ``full`` whether all of them have so many, and
    ``joint`` whether they come several in one piece, side by side.
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
        self.signature: dict[str, tf.TensorSpec] = {}  # of what the generator gives
        self.ragged: dict[str, str] = {}  # field to its offsets
        every = size if full else None
        own = (None, every) if joint else (every,)
        for name, field in ds.fields.items():
            if names is not None and name not in _owners(names, ds.fields, ragged):
                continue
            dtype = _checked(ds, field)
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
    def given(self) -> Any:  # noqa: ANN401
        """The types and shapes of what the generator gives."""
        return self._arranged(self.signature)

    def arrays(self, found: Any) -> list[Any]:  # noqa: ANN401
        """What the generator gives, one after the other, for something that a loader delivered."""
        if not self.joint:
            return [self._arranged(self._checked(found))]
        made = self._checked(found.made if isinstance(found, BatchGroup) else found)
        size = self.size
        whole = len(next(iter(made.values()))) // size
        end = whole * size
        parts = []
        if whole:
            parts.append({n: a[:end].reshape(-1, size, *a.shape[1:]) for n, a in made.items()})
        if whole < count_batches(found):  # a last batch that is short, or empty
            parts.append({n: a[None, end:] for n, a in made.items()})
        return [self._arranged(part) for part in parts]

    def _arranged(self, parts: dict[str, Any]) -> Any:  # noqa: ANN401
        """In the structure that was asked for, unless ragged tensors are still to be made."""
        return parts if self.ragged else self._structure.build(parts)

    def cut(self, *parts: Any) -> tf.data.Dataset:
        """The batches of a piece, of which a plain tuple comes as several arguments."""
        several = type(self.given) is tuple
        return tf.data.Dataset.from_tensor_slices(parts if several else parts[0])

    def _checked(self, batch: Mapping[str, Any]) -> ArrayDict:
        """The arrays that go over; a map may have made something else of some samples."""
        arrays = {name: batch[name] for name in self.signature if name in batch}
        for name in self.signature if self._mapped else ():
            found = arrays.get(name)
            expected = self.signature[name].shape
            if self.joint:  # however many there are
                expected = tf.TensorShape([None]).concatenate(expected[2:])
            if not isinstance(found, np.ndarray) or not expected.is_compatible_with(found.shape):
                shape = "nothing" if found is None else getattr(found, "shape", "different shapes")
                raise ValueError(
                    f"field {name!r}: batches of {expected} were expected by what map makes of "
                    f"the first sample, found {shape}; give all samples one shape in map"
                )
        return {name: encoded(values) for name, values in arrays.items()}

    def element(self, tensors: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """The element of the ``tf.data.Dataset``, where some of its fields are ragged."""
        made = dict(tensors)
        for name, offsets in self.ragged.items():
            made[name] = tf.RaggedTensor.from_row_splits(
                made[name], made.pop(offsets), validate=False
            )
        return self._structure.build(made)


def _owners(names: tuple[str, ...], fields: Mapping[str, Field], ragged: Ragged) -> set[str]:
    """The fields that names are of, or stand beside."""
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
            "tensor can hold; give them one in map()"
        )
    return field.shape


def _check_ragged(field: Field) -> None:
    if None in _shape(field)[1:]:
        raise ValueError(
            f"field {field.name!r} {field.shape_text} differs in another than its first axis; "
            'use ragged="pad", or give samples one shape in map()'
        )


def _checked(ds: Dataset, field: Field) -> tf.DType:
    dtype = type_of(field)
    if dtype is None:
        raise refuse_dtype(ds, field, "TensorFlow")
    return dtype


class Pieces(Arrays):
    """Small batches come several in one piece.

    To cross into TensorFlow costs some 100 µs however little is handed over, and there a piece
    is cut for less. TensorFlow takes the memory of arrays as it is where it begins at a multiple
    of 64 bytes, which memory of a megabyte or more from the pool does.
    """

    def __init__(self, together: int, joint: bool, held: int) -> None:
        super().__init__()  # TensorFlow's tuples are made behind the cutting of pieces
        self.together = together
        self.joint = joint
        self.held = held

    def describe(self) -> str:
        """How they are handed over."""
        return "TensorFlow is handed several batches at a time" if self.joint else ""
