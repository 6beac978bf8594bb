"""Fields: what a sample is made of."""

import math
from dataclasses import dataclass

import numpy as np

from ndfeed.errors import shown
from ndfeed.formats.types import EXTENDED


@dataclass(frozen=True, slots=True)
class Field:
    """One named array of a sample.

    ``shape`` has ``None`` where samples differ, and is ``None`` itself where they differ in
    rank. ``dtype`` is what NumPy delivers; ``type`` names the element also where NumPy has no
    such type and delivers its bits (``bfloat16`` without ml_dtypes).
    """

    name: str
    dtype: np.dtype
    shape: tuple[int | None, ...] | None
    type: str

    @property
    def ragged(self) -> bool:
        """Do samples of this field differ in shape?"""
        return self.shape is None or None in self.shape

    @property
    def lengths(self) -> tuple[int, ...]:
        """The shape of a sample as plain numbers, 0 where samples differ."""
        return tuple(n or 0 for n in self.shape or ())

    @property
    def nbytes(self) -> int | None:
        """Bytes of one sample; ``None`` where samples differ."""
        return None if self.ragged else math.prod(self.lengths) * self.dtype.itemsize

    @property
    def dtype_text(self) -> str:
        """The element type by its plainest name."""
        return self.type if self.type in EXTENDED else str(self.dtype)

    @property
    def shape_text(self) -> str:
        """The shape of a sample, with dots where samples differ."""
        return "(…)" if self.shape is None else str(self.shape).replace("None", "…")

    def __str__(self) -> str:
        return f"{shown(self.name)} {self.dtype_text} {self.shape_text}"
