"""Where samples go: one array for samples of one shape, an array each for ragged ones.

Ragged samples may also be laid out in one piece of memory, each from a byte of its own.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column
from ndfeed.dataset.field import Field
from ndfeed.files import system
from ndfeed.index.table import Ints


class Laid(NamedTuple):
    """Memory, as bytes, and where in it each sample begins."""

    memory: NDArray[np.uint8]
    starts: Ints


Arrays = NDArray[Any] | list[NDArray[Any]] | Laid  # of samples of one shape, or one for each


def check_fits(field: Field, out: NDArray[Any], count: int) -> None:
    """Refuse an array that ``count`` samples of ``field`` cannot be written to."""
    if field.ragged:
        raise ValueError(f"field {field.name!r} is ragged: read() gives its samples, one by one")
    wanted = (count, *(field.shape or ()))
    found = np.asarray(out)
    if found is not out or found.shape != wanted or found.dtype != field.dtype:
        raise ValueError(
            f"out[{field.name!r}] must be {field.dtype} {wanted}, got {found.dtype} {found.shape}"
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"out[{field.name!r}] must be writable and in C order")


class Target:
    """Room for the samples of one field of a batch, as bytes.

    Samples of one shape are one array: the caller's, or made when first asked for, so that a
    call that makes its own result can hand it over with ``adopt``.
    """

    __slots__ = ("_array", "_memory", "_part", "_ragged", "column", "laid")

    def __init__(self, column: Column, part: Ints, arrays: Arrays | None = None) -> None:
        self.column = column
        self.laid = arrays if isinstance(arrays, Laid) else None
        self._part = part
        self._array = arrays if isinstance(arrays, np.ndarray) else None
        self._ragged = arrays if isinstance(arrays, list) else None
        self._memory: memoryview | None = None

    @property
    def arrays(self) -> Arrays:
        """The samples: an array of them, or a list where they are ragged."""
        return self.ragged if self.column.field.ragged else self.array

    @property
    def array(self) -> NDArray[Any]:
        """Samples of one shape."""
        if self._array is None:
            field = self.column.field
            self._array = np.empty((len(self._part), *field.shape), field.dtype)  # type: ignore[misc]
        return self._array

    @property
    def ragged(self) -> list[NDArray[Any]]:
        """Samples that differ in shape."""
        if self._ragged is None:
            dtype = self.column.field.dtype
            shapes = self.column.shapes(self._part)
            size = int(self.column.nbytes[self._part].sum())
            system.require_memory(size, self.column.table.path(0))
            self._ragged = [np.empty(shape, dtype) for shape in shapes]
        return self._ragged

    @property
    def given(self) -> bool:
        """Is there already room for ragged samples?"""
        return self._ragged is not None or self.laid is not None

    def hold(self, arrays: list[NDArray[Any]]) -> None:
        """Take ``arrays`` as the room for ragged samples."""
        self._ragged = arrays

    def lay(self, laid: Laid, shapes: Ints) -> None:
        """Take ``laid``, which is of this field's elements, as the room for ragged samples."""
        dtype = self.column.field.dtype
        values = laid.memory.view(dtype)
        ends = (laid.starts // dtype.itemsize).tolist()
        ends.append(len(values))
        pieces = [values[a:b] for a, b in pairwise(ends)]
        if shapes.shape[1] > 1:
            pieces = [p.reshape(s) for p, s in zip(pieces, shapes.tolist(), strict=True)]
        self._ragged = pieces

    @property
    def flat(self) -> NDArray[np.uint8]:
        """All bytes of samples of one shape."""
        return self.array.reshape(-1).view(np.uint8)

    def adopt(self, records: NDArray[np.void]) -> None:
        """Fill with ``records``, or hand them over as they are where there is nothing to fill."""
        if self._array is not None:
            self.flat.view(records.dtype)[...] = records
            return
        field = self.column.field
        self._array = records.view(field.dtype).reshape(len(records), *field.shape)  # type: ignore[misc]

    def sample(self, at: int) -> NDArray[Any]:
        """Sample ``at`` as an array to write to."""
        if self.column.field.ragged:
            return self.ragged[at]
        return self.array[at, ...]  # with the dots a view even where samples are scalars

    def memory(self, at: int, size: int) -> memoryview:
        """The bytes of sample ``at``, of which there are ``size``."""
        if self.column.field.ragged:
            return self.ragged[at].reshape(-1).view(np.uint8).data
        if self._memory is None:
            self._memory = self.flat.data
        return self._memory[at * size : at * size + size]

    def copy(self, source: int, at: int) -> None:
        """Make sample ``at`` the same as sample ``source``."""
        self.sample(at)[...] = self.sample(source)

    def swap(self, which: NDArray[np.bool_]) -> None:
        """Turn the bytes of some samples round."""
        if not self.column.field.ragged and which.all():
            self.array.byteswap(inplace=True)
            return
        for at in np.flatnonzero(which).tolist():
            self.sample(at).byteswap(inplace=True)
