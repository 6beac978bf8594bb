"""CUDA driver calls that PyTorch does not offer, and file pages registered with them.

Registering makes pages of this process known to the GPU, so that it can read them itself; pages of
a file are registered read-only. ``copy_rows`` lets the copy engines fetch many pieces with one
call. Two forms of that call exist: CUDA 13 dropped a parameter.

Calls that only queue work for the device keep the GIL: releasing it and getting it back among many
threads takes ten times as long as the call.

Pages of mapped files are registered piece by piece, as they are used, since registering pins them
in memory; and only up to a limit. They are unregistered before the file is unmapped, and at
``close``: by code that knows that the GPU no longer reads them.
"""

import ctypes
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.files.maps import Maps
from ndfeed.order.permutation import Ints

_PORTABLE, _READ_ONLY = 0x01, 0x08
_ANY_ORDER = 3  # the source does not change before the copy is done
_OVERLAP = 1  # rather beside other work than a little sooner

_UNTIMED = 2
_NOT_READY = 600

Addresses = NDArray[np.uint64]


class Refused(Exception):
    """The driver or the available memory does not allow it; the reason is for the report."""


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: the order of access, hints where source and target are, flags."""

    _fields_ = [
        ("order", ctypes.c_int),
        ("source", ctypes.c_int * 2),
        ("target", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    ]


class Mark:
    """A place in a stream, which is passed when all work before it is done."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        handle = ctypes.c_void_p()
        _check("cuEventCreate", driver.quick.cuEventCreate(ctypes.byref(handle), _UNTIMED))
        self._handle = handle.value

    def record(self, stream: int) -> None:
        """Put the mark after the work that the stream has so far."""
        _check("cuEventRecord", self._driver.quick.cuEventRecord(self._handle, stream))

    def passed(self) -> bool:
        """Was it passed? True for a device that failed as well, which will do nothing more."""
        return bool(self._driver.quick.cuEventQuery(self._handle) != _NOT_READY)

    def __del__(self) -> None:
        self._driver.quick.cuEventDestroy_v2(self._handle)


class Driver:
    """The driver's library, where there is one."""

    def __init__(self) -> None:
        try:
            name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
            self._library: Any = ctypes.CDLL(name)
            self.quick: Any = ctypes.PyDLL(name)  # keeps the GIL
        except OSError:
            raise Refused("the CUDA driver's library cannot be loaded") from None
        pointer, number = ctypes.c_void_p, ctypes.c_uint64
        self.quick.cuMemcpyHtoDAsync_v2.argtypes = [number, pointer, ctypes.c_size_t, pointer]
        self.quick.cuEventRecord.argtypes = [pointer, pointer]
        self.quick.cuEventQuery.argtypes = self.quick.cuEventDestroy_v2.argtypes = [pointer]
        self._attributes = _Attributes(_ANY_ORDER, flags=_OVERLAP)
        self._first = ctypes.c_size_t(0)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy ``size`` bytes of pinned memory to the device on a stream, without waiting."""
        status = self.quick.cuMemcpyHtoDAsync_v2(target, source, size, stream)
        _check("cuMemcpyHtoDAsync", status)

    def register(self, address: int, size: int) -> None:
        """Let the GPU read ``size`` bytes at ``address``, both multiples of the page size."""
        flags = _PORTABLE | _READ_ONLY
        status = self._library.cuMemHostRegister_v2(
            ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_uint(flags)
        )
        if status:
            raise Refused(f"the driver refuses to register {size} bytes of a file ({status})")

    def unregister(self, address: int) -> None:
        """Undo ``register``; no copy from there may be in flight."""
        self._library.cuMemHostUnregister(ctypes.c_void_p(address))

    @property
    def copies_rows(self) -> bool:
        """Has the driver a call that copies many pieces? CUDA 12.8 and later do."""
        return hasattr(self._library, "cuMemcpyBatchAsync")

    def copy_rows(
        self, target: Addresses, source: Addresses, sizes: Addresses, stream: int
    ) -> None:
        """Copy piece i from ``source[i]`` to ``target[i]`` on a stream, without waiting."""
        arguments: list[Any] = [
            ctypes.c_void_p(target.ctypes.data),
            ctypes.c_void_p(source.ctypes.data),
            ctypes.c_void_p(sizes.ctypes.data),
            ctypes.c_size_t(len(target)),
            ctypes.byref(self._attributes),
            ctypes.byref(self._first),
            ctypes.c_size_t(1),
        ]
        if hasattr(self._library, "cuMemcpyBatchAsync_v2"):
            call = self._library.cuMemcpyBatchAsync_v2
        else:
            call = self._library.cuMemcpyBatchAsync
            arguments.append(ctypes.byref(ctypes.c_size_t(0)))  # which piece failed
        status = call(*arguments, ctypes.c_void_p(stream))
        if status:
            raise Refused(f"the driver refuses to copy rows ({status})")


def _check(name: str, status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver's {name} failed with status {status}")


_BITS = 28
PIECE = 1 << _BITS
_PAGE = 4096


class Registered:
    """The registered pieces of some mapped files. Thread-safe."""

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
        # The finalizer refers to the maps, so they are unmapped after it. It does not run at exit:
        # that would be before the loader ends its threads, which still read.
        weakref.finalize(self, _unregister, driver, self._addresses, maps).atexit = False

    def ensure(self, file: Ints | int, start: Ints, size: int) -> None:
        """Register the pieces that hold ``size`` bytes from each start; files must be entered."""
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
        """Unregister everything; no copy may be in flight."""
        with self._lock:
            _unregister(self._driver, self._addresses, self._maps)
            self._have[:] = self.complete = False
            self.nbytes = 0


def _unregister(driver: Driver, addresses: list[int], maps: Maps) -> None:
    while addresses:
        driver.unregister(addresses.pop())
