"""Pages of mapped files that the device may read itself.

They are registered with the driver piece by piece, as they are used, since registering pins them in
memory; and only up to a limit. Loaders that read the same maps share them, since pages can be
registered only once. Each read that the device has not done counts as a user as well: a thread may
still be reading when its loader is closed. The last user unregisters them.
"""

import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from ndfeed.cuda.driver import Driver, Refused, is_ours
from ndfeed.files.maps import Maps
from ndfeed.order.permutation import Ints

_BITS = 28
PIECE = 1 << _BITS
_PAGE = 4096


_sharing = threading.Lock()
_shared: "weakref.WeakValueDictionary[tuple[int, int], Registered]" = weakref.WeakValueDictionary()


def share_registered(driver: Driver, maps: Maps, sizes: Sequence[int]) -> "Registered":
    """Return the registered pieces of some maps, for one more user, who calls ``release``."""
    with _sharing:
        key = id(driver), id(maps)  # which live as long as what they are the key of
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = Registered(driver, maps, sizes)
        found.users += 1
        return found


class Registered:
    """The registered pieces of some mapped files. Thread-safe."""

    def __init__(self, driver: Driver, maps: Maps, sizes: Sequence[int]) -> None:
        self.users = 0
        self._driver = driver
        self._maps = maps
        self._sizes = np.asarray(sizes, np.int64)
        counts = -(-self._sizes // PIECE)
        self._base = np.cumsum(counts) - counts  # the first piece of each file
        self._have = np.zeros(int(counts.sum()), bool)
        self.complete = False  # is everything registered?
        self._lock = threading.Lock()
        self.nbytes = 0
        self._addresses: list[int] = []
        # The finalizer refers to the maps, so they are unmapped after it. It does not run at exit:
        # that would be before the loader ends its threads, which still read.
        weakref.finalize(self, _unregister, driver, self._addresses, maps).atexit = False

    def ensure(self, file: Ints | int, start: Ints, size: int, limit: int) -> None:
        """Register the pieces that hold ``size`` bytes from each start; files must be entered.

        At most ``limit`` bytes are registered in all.
        """
        first = self._base[file] + (start >> _BITS)
        last = self._base[file] + (start + (size - 1) >> _BITS)
        wanted = np.unique(np.concatenate([first, last]))
        with self._lock:
            for piece in wanted[~self._have[wanted]].tolist():
                self._register(piece, limit)
            self.complete = bool(self._have.all())

    def _register(self, piece: int, limit: int) -> None:
        file = int(np.searchsorted(self._base, piece, side="right")) - 1
        offset = (piece - int(self._base[file])) * PIECE
        size = min(PIECE, int(self._sizes[file]) - offset)
        size = -(-size // _PAGE) * _PAGE
        if self.nbytes + size > limit:
            raise Refused(f"more than {limit >> 20} MB would have to be pinned")
        address = int(self._maps.address[file]) + offset
        self._driver.register(address, size)
        self._addresses.append(address)
        self._have[piece] = True
        self.nbytes += size

    def retain(self) -> None:
        """Begin one more use."""
        with _sharing:
            self.users += 1

    def release(self) -> None:
        """End one use, of which no copy is in flight; the last one unregisters everything."""
        with _sharing:
            self.users -= 1
            if self.users:
                return
            with self._lock:
                _unregister(self._driver, self._addresses, self._maps)
                self._have[:] = self.complete = False
                self.nbytes = 0


def _unregister(driver: Driver, addresses: list[int], maps: Maps) -> None:
    if addresses and is_ours(driver):
        with suppress(RuntimeError), driver.context():
            while addresses:
                driver.unregister(addresses.pop())
