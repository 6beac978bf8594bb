"""What becomes of a batch of arrays: which tensors, of which types, in which container.

Three steps, so that a device can stand between them: ``tensor`` sees the memory of an array,
``converted`` runs where the tensor is to be used, ``arranged`` makes the batch of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import FieldError
from ndfeed.loading.options import Structure, known_fields, refuse_dtype
from ndfeed.torch.convert import Convert
from ndfeed.torch.tensors import dtype_of, is_small, is_text, nested, tensor_of

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
