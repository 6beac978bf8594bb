"""Memory for batches, lent out and returned.

Guarantees:

- Memory is lent again only when nobody can see it any more: every array made from it, every view
  of one, and whatever another library made from a view (a tensor, a DLPack capsule) keeps the
  loan alive, and only the end of the loan returns the memory.
- ``lend`` never waits: if nothing was returned, it allocates. The engine limits how many batches
  are in progress; what the consumer keeps is the consumer's.
- Returning takes no lock, since it happens wherever the last reference is dropped.
- What was lent when the process was forked is not lent again: the child may see it.

The pool allocates through the function it is given, which may return pinned or shared memory.
"""

import math
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.files import platform_calls

Bytes = NDArray[np.uint8]

# Below this the memory allocator is as fast, and keeps nothing else alive.
SMALL = 64 << 10
# From this size on memory is mapped from the system and returned to it: an allocator keeps it.
LARGE = 1 << 20
# Alignment with which other libraries use the memory in place; otherwise they copy it.
ALIGNED = 64


def align(size: int) -> int:
    """Round up to where the next array may begin."""
    return -(-size // ALIGNED) * ALIGNED


_forks = [0]  # how often this process was forked


def _count_fork() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_count_fork)


class _Loan:
    """Memory lent by the pool, exposed to NumPy by its array interface; returned on deletion."""

    __slots__ = ("__array_interface__", "_forks", "_free", "_lent", "memory")

    def __init__(self, memory: Bytes, free: "deque[Bytes]", lent: set[int]) -> None:
        self.memory = memory
        self._free = free
        self._lent = lent
        self._forks = _forks[0]
        self.__array_interface__ = memory.__array_interface__
        lent.add(id(memory))

    def __del__(self) -> None:
        self._lent.discard(id(self.memory))
        if self._forks == _forks[0]:  # else a forked child may still see it, if it is shared
            self._free.append(self.memory)


def buffer_of(array: NDArray[Any]) -> Bytes | None:
    """Return the pool's buffer that an array lies in."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base.memory if isinstance(base, _Loan) else None


def _allocate_private(size: int) -> Bytes:
    if size < LARGE:
        room = np.empty(size + ALIGNED, np.uint8)
        start = -room.ctypes.data % ALIGNED
        return room[start : start + size]
    return np.frombuffer(platform_calls.private_memory(size), np.uint8)


class Pool:
    """Buffers of a few sizes; keeps at most ``keep`` free ones of each size."""

    def __init__(self, keep: int, allocate: Callable[[int], Bytes] = _allocate_private) -> None:
        self._keep = keep
        self._allocate = allocate
        self._free: dict[int, deque[Bytes]] = {}
        self._lent: set[int] = set()
        self.made = 0  # buffers allocated so far

    def lend(self, size: int) -> Bytes:
        """Lend ``size`` bytes, which are returned when nobody can see them any more."""
        free = self._free.get(size)
        if free is None:
            # Bounded: when a consumer drops many batches at once, the surplus is freed.
            free = self._free.setdefault(size, deque(maxlen=self._keep))
        try:
            memory = free.pop()  # the most recently returned one is most likely still in cache
        except IndexError:
            self.made += 1
            memory = self._allocate(size)
        return np.asarray(_Loan(memory, free, self._lent))

    def lend_once(self, size: int) -> Bytes:
        """Lend ``size`` bytes that are freed once nobody can see them any more."""
        self.made += 1
        return np.asarray(_Loan(self._allocate(size), deque(maxlen=0), self._lent))

    def array(self, count: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return an uninitialized array for ``count`` samples."""
        size = math.prod(shape) * dtype.itemsize * count
        if size < SMALL:
            return np.empty((count, *shape), dtype)
        return self.lend(size).view(dtype).reshape(count, *shape)

    def clear(self) -> None:
        """Free all buffers that are not lent."""
        for free in list(self._free.values()):
            free.clear()

    @property
    def lent(self) -> int:
        """Number of buffers that are lent."""
        return len(self._lent)

    @property
    def idle(self) -> int:
        """Bytes of buffers that are not lent."""
        return sum(size * len(free) for size, free in list(self._free.items()))
