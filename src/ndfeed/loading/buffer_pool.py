"""Memory for batches, lent out and returned.

Guarantees:

- Memory that was lent is lent again only when nobody can see it any more: every array made of
  it, every view of one, and whatever another library made of a view (a tensor, a DLPack
  capsule) keeps the loan alive, and only its end returns the memory.
- ``lend`` never waits: where nothing was returned, new memory is made. How much is under way is
  for the engine to limit; what the consumer keeps is the consumer's.
- Returning takes no lock, since it happens wherever the last reference is dropped.

The pool allocates through the function it is given, so that pinned or shared memory is the
business of whoever wants it.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.files import platform_calls

Bytes = NDArray[np.uint8]

# Below this the memory allocator is as fast, and keeps nothing else alive.
SMALL = 64 << 10
# From here on memory is the system's own, and goes back there: an allocator would keep it.
LARGE = 1 << 20
# Where memory begins: at a multiple of this other libraries use it as it is, or else copy it.
ALIGNED = 64


class _Loan:
    """Memory out of the pool, seen by NumPy through its interface; its end returns it."""

    __slots__ = ("__array_interface__", "_free", "_lent", "memory")

    def __init__(self, memory: Bytes, free: "deque[Bytes]", lent: set[int]) -> None:
        self.memory = memory
        self._free = free
        self._lent = lent
        self.__array_interface__ = memory.__array_interface__
        lent.add(id(memory))

    def __del__(self) -> None:
        self._lent.discard(id(self.memory))
        self._free.append(self.memory)


def piece_of(array: NDArray[Any]) -> Bytes | None:
    """The piece of a pool that an array lies in."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base.memory if isinstance(base, _Loan) else None


def _fresh(size: int) -> Bytes:
    if size < LARGE:
        room = np.empty(size + ALIGNED, np.uint8)
        start = -room.ctypes.data % ALIGNED
        return room[start : start + size]
    return np.frombuffer(platform_calls.private_memory(size), np.uint8)


class Pool:
    """Pieces of memory of a few sizes; at most ``keep`` of a size wait to be lent again."""

    def __init__(self, keep: int, allocate: Callable[[int], Bytes] = _fresh) -> None:
        self._keep = keep
        self._allocate = allocate
        self._free: dict[int, deque[Bytes]] = {}
        self._lent: set[int] = set()
        self.made = 0  # pieces allocated so far

    def lend(self, size: int) -> Bytes:
        """``size`` bytes, to be returned when nobody sees them any more."""
        free = self._free.get(size)
        if free is None:
            # Bounded: what a consumer kept and drops all at once is let go, not hoarded.
            free = self._free.setdefault(size, deque(maxlen=self._keep))
        try:
            memory = free.pop()  # the one returned last is most likely still in cache
        except IndexError:
            self.made += 1
            memory = self._allocate(size)
        return np.asarray(_Loan(memory, free, self._lent))

    def array(self, count: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Room for ``count`` samples."""
        size = math.prod(shape) * dtype.itemsize * count
        if size < SMALL:
            return np.empty((count, *shape), dtype)
        return self.lend(size).view(dtype).reshape(count, *shape)

    def clear(self) -> None:
        """Let go of what waits to be lent again."""
        for free in list(self._free.values()):
            free.clear()

    @property
    def lent(self) -> int:
        """Pieces that somebody can see."""
        return len(self._lent)

    @property
    def idle(self) -> int:
        """Bytes that wait to be lent again."""
        return sum(size * len(free) for size, free in list(self._free.items()))
