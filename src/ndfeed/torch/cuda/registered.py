"""Pages of mapped files that the GPU may read.

They are registered piece by piece, as they are used, since registering pins them in memory;
and only up to a limit. They are taken back before the map goes, and at ``close``: by those who know
that the GPU reads nothing any more.
"""

import threading
import weakref
from collections.abc import Sequence

import numpy as np

from ndfeed.files.maps import Maps
from ndfeed.order.permutation import Ints
from ndfeed.torch.cuda.driver import Driver, Refused

_BITS = 28
PIECE = 1 << _BITS
_PAGE = 4096


class Registered:
    """The pieces of some maps that are registered. Safe to use from several threads."""

    def __init__(self, driver: Driver, maps: Maps, sizes: Sequence[int], limit: int) -> None:
        self._driver = driver
        self._maps = maps
        self._sizes = np.asarray(sizes, np.int64)
        counts = -(-self._sizes // PIECE)
        self._base = np.cumsum(counts) - counts  # the first piece of each file
        self._have = np.zeros(int(counts.sum()), bool)
        self.complete = False  # is everything registered?
        self._limit = limit
        self._lock = threading.Lock()
        self.nbytes = 0
        self._addresses: list[int] = []
        # With the maps: they are unmapped when this, which refers to them, is gone. Not at the end
        # of the process: that would come before the loader's own, with its threads still at work.
        weakref.finalize(self, _take_back, driver, self._addresses, maps).atexit = False

    def ensure(self, file: Ints | int, start: Ints, size: int) -> None:
        """Register what ``size`` bytes from each start lie in; the files were entered."""
        first = self._base[file] + (start >> _BITS)
        last = self._base[file] + (start + (size - 1) >> _BITS)
        wanted = np.unique(np.concatenate([first, last]))
        with self._lock:
            for piece in wanted[~self._have[wanted]].tolist():
                self._register(piece)
            self.complete = bool(self._have.all())

    def _register(self, piece: int) -> None:
        file = int(np.searchsorted(self._base, piece, side="right")) - 1
        offset = (piece - int(self._base[file])) * PIECE
        size = min(PIECE, int(self._sizes[file]) - offset)
        size = -(-size // _PAGE) * _PAGE
        if self.nbytes + size > self._limit:
            raise Refused(f"more than {self._limit >> 20} MB would have to be pinned")
        address = int(self._maps.address[file]) + offset
        self._driver.register(address, size)
        self._addresses.append(address)
        self._have[piece] = True
        self.nbytes += size

    def close(self) -> None:
        """Take everything back; nothing may be under way."""
        with self._lock:
            _take_back(self._driver, self._addresses, self._maps)
            self._have[:] = self.complete = False
            self.nbytes = 0


def _take_back(driver: Driver, addresses: list[int], maps: Maps) -> None:
    while addresses:
        driver.unregister(addresses.pop())
