"""Where samples go: one array for samples of one shape, an array each for ragged ones."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column
from ndfeed.dataset.field import Field
from ndfeed.index.table import Ints


def fitting(field: Field, out: NDArray[Any], count: int) -> NDArray[Any]:
    """``out``, if ``count`` samples of ``field`` can be written to it."""
    if field.ragged:
        raise ValueError(f"field {field.name!r} is ragged: read() gives its samples, one by one")
    wanted = (count, *(field.shape or ()))
    if not isinstance(out, np.ndarray) or out.shape != wanted or out.dtype != field.dtype:
        found = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ValueError(f"out[{field.name!r}] must be {field.dtype} {wanted}, got {found}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"out[{field.name!r}] must be writable and in C order")
    return out


class Target:
    """Room for the samples of one field of a batch, as bytes."""

    def __init__(self, column: Column, arrays: NDArray[np.generic] | list[NDArray[np.generic]]):
        self.column = column
        self.arrays = arrays

    @classmethod
    def fresh(cls, column: Column, part: Ints) -> "Target":
        """New memory for one sample of each ``part``."""
        field = column.field
        if field.ragged:
            return cls(column, [np.empty(column.shape(p), field.dtype) for p in part.tolist()])
        return cls(column, np.empty((len(part), *field.shape), field.dtype))  # type: ignore[misc]

    @cached_property
    def flat(self) -> NDArray[np.uint8]:
        """All bytes of samples of one shape."""
        assert isinstance(self.arrays, np.ndarray)
        return self.arrays.reshape(-1).view(np.uint8)

    @cached_property
    def _memory(self) -> memoryview:
        return memoryview(self.flat)  # type: ignore[arg-type]

    def records(self, size: int) -> NDArray[np.void]:
        """Samples of one shape, each as one opaque element: any dtype, always aligned."""
        return self.flat.view(np.dtype((np.void, size)))

    def sample(self, at: int) -> NDArray[np.generic]:
        """Sample ``at`` as an array to write to."""
        if isinstance(self.arrays, np.ndarray):
            return self.arrays[at, ...]  # with the dots a view even where samples are scalars
        return self.arrays[at]

    def memory(self, at: int, size: int) -> memoryview:
        """The bytes of sample ``at``, of which there are ``size``."""
        if isinstance(self.arrays, np.ndarray):
            return self._memory[at * size : at * size + size]
        return memoryview(self.arrays[at].reshape(-1).view(np.uint8))  # type: ignore[arg-type]

    def copy(self, source: int, at: int) -> None:
        """Make sample ``at`` the same as sample ``source``."""
        self.sample(at)[...] = self.sample(source)

    def swap(self, which: NDArray[np.bool_]) -> None:
        """Turn the bytes of some samples round."""
        if isinstance(self.arrays, np.ndarray) and which.all():
            self.arrays.byteswap(inplace=True)
            return
        for at in np.flatnonzero(which).tolist():
            self.sample(at).byteswap(inplace=True)
