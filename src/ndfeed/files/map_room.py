"""A range of addresses for the maps of several files, each at an address of a chosen remainder.

Nothing else lies in that range. So an array over all of it never contains memory of others, such
as a batch: NumPy would copy through a buffer to be safe.

Large files are mapped at multiples of 2 MB, if that is possible: the system can then map large
pieces of them at once. Where it chooses addresses itself, it does the same.
"""

import errno
import math
import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.files.platform_calls import PAGE, can, fill_holes_singly, find_mmap, resource

_NOT_RESERVED = 0x2 | 0x20 | 0x4000  # MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
_SHARED, _FIXED = 0x1, 0x10  # MAP_SHARED, MAP_FIXED
_HUGE = 2 << 20  # bytes of a large page
_MOST_BETWEEN = 64 << 20  # bytes of addresses between two files, at most
_MOST_ADDRESSES = 1 << 40  # bytes in all: some kernels have half as many for a process


class Places(NamedTuple):
    """Addresses of maps: that of each file has its ``remainder`` modulo ``step``."""

    step: int
    remainder: NDArray[np.int64]


def can_place(step: int) -> bool:
    """Can maps begin at addresses of any remainder modulo ``step`` that pages can have?"""
    if not can.place_maps or _count_between(step, PAGE) * PAGE > _MOST_BETWEEN:
        return False
    return resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def _count_between(step: int, unit: int) -> int:
    """Return how many units lie between two whose addresses have the same remainder."""
    return step // math.gcd(step, unit)


def _measure(sizes: Sequence[int], step: int, unit: int) -> int:
    """Return how many bytes of addresses files need whose maps begin at multiples of a unit."""
    return sum(sizes) + (len(sizes) * (_count_between(step, unit) + 1) + 2) * unit


def _choose_unit(sizes: Sequence[int], places: Places) -> int:
    """Return what the addresses of maps are multiples of."""
    if sum(sizes) < len(sizes) * _HUGE or _measure(sizes, places.step, _HUGE) > _MOST_ADDRESSES:
        return PAGE
    return PAGE if (places.remainder % math.gcd(places.step, _HUGE)).any() else _HUGE


class Room:
    """Addresses for files of some sizes, until the last view of them is gone."""

    def __init__(self, sizes: Sequence[int], places: Places) -> None:
        unit = _choose_unit(sizes, places)
        between, common = _count_between(places.step, unit), math.gcd(places.step, unit)
        length = _measure(sizes, places.step, unit)
        if length > _MOST_ADDRESSES:
            raise OSError(errno.ENOMEM, "too many addresses")
        self._memory = mmap.mmap(-1, length, _NOT_RESERVED, mmap.PROT_READ)
        self.start: int = np.frombuffer(self._memory, np.uint8).__array_interface__["data"][0]
        self.stop = self.start + length
        self._sizes = sizes
        self._starts: list[int] = []
        turn = pow(unit // common, -1, between)
        at = -(-self.start // unit) * unit
        for size, remainder in zip(sizes, places.remainder.tolist(), strict=True):
            if (remainder - at) % common:
                raise ValueError(f"no page is at {remainder} modulo {places.step}")
            at += (remainder - at) // common * turn % between * unit
            self._starts.append(at)
            at += -(-size // unit) * unit

    def map(self, number: int, fd: int) -> memoryview:
        """Map a file read-only at its place. It must have the size that was given."""
        size, start = self._sizes[number], self._starts[number]
        if os.fstat(fd).st_size != size or not size:
            raise OSError(errno.EINVAL, "its size is another one")
        if find_mmap()(start, size, mmap.PROT_READ, _SHARED | _FIXED, fd, 0) == -1:
            self.clear(number)  # the old pages may be gone, and others must not come there
            raise OSError(errno.ENOMEM, "cannot be mapped where it should be")
        fill_holes_singly(fd, self._memory, start - self.start, size)
        return memoryview(self._memory)[start - self.start : start - self.start + size]

    def clear(self, number: int) -> None:
        """Drop the map of a file that nobody sees; its addresses stay ours."""
        size, start = self._sizes[number], self._starts[number]
        find_mmap()(start, size, mmap.PROT_READ, _NOT_RESERVED | _FIXED, -1, 0)
