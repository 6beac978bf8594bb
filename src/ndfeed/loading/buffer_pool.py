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
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.files import platform_calls
from ndfeed.files.shared_memory import ALIGNED, count_forks

Bytes = NDArray[np.uint8]

# Below this the memory allocator is as fast, and keeps nothing else alive.
SMALL = 64 << 10
# From this size on memory is mapped from the system and returned to it: an allocator keeps it.
LARGE = 1 << 20


class _Loan:
    """Memory lent by the pool, exposed to NumPy by its array interface; returned on deletion."""

    __slots__ = ("__array_interface__", "_forks", "_free", "_lent", "memory")

    def __init__(self, memory: Bytes, free: "deque[Bytes]", lent: dict[int, int]) -> None:
        self.memory = memory
        self._free = free
        self._lent = lent
        self._forks = count_forks()
        self.__array_interface__ = memory.__array_interface__
        lent[id(memory)] = memory.nbytes

    def drop(self) -> None:
        """Free the memory at the end, instead of returning it."""
        self._free = deque(maxlen=0)

    def __del__(self) -> None:
        self._lent.pop(id(self.memory), None)
        if self._forks == count_forks():  # else a forked child may still see it, if it is shared
            self._free.append(self.memory)


def _find_loan(array: NDArray[Any]) -> _Loan | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, _Loan) else None


def buffer_of(array: NDArray[Any]) -> Bytes | None:
    """Return the pool's buffer that an array lies in."""
    loan = _find_loan(array)
    return None if loan is None else loan.memory


def discard(array: NDArray[Any]) -> None:
    """Have the buffer that an array lies in freed, rather than lent again."""
    loan = _find_loan(array)
    if loan is not None:
        loan.drop()


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
        self._lent: dict[int, int] = {}  # bytes of what is lent, by identity
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

    def has(self, size: int) -> bool:
        """Is a buffer of this size free?"""
        return bool(self._free.get(size))

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
    def lent_bytes(self) -> int:
        """Bytes of buffers that are lent."""
        return sum(list(self._lent.values()))

    @property
    def idle(self) -> int:
        """Bytes of buffers that are not lent."""
        return sum(size * len(free) for size, free in list(self._free.items()))
