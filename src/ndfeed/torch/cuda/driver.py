"""Calls of the CUDA driver that PyTorch does not offer.

Registering makes pages of this process known to the GPU, so that it can read them itself; for
pages of a file they are registered read-only. ``copy_rows`` has the copy engines fetch many
pieces with one call. Two forms of that call exist: CUDA 13 dropped a parameter.

Calls that only leave work to the device keep the interpreter's lock: to let go of it and get it
back among many threads takes ten times as long as the call.
"""

import ctypes
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PORTABLE, _READ_ONLY = 0x01, 0x08
_ANY_ORDER = 3  # the source does not change before the copy is done
_OVERLAP = 1  # rather beside other work than a little sooner

_UNTIMED = 2
_NOT_READY = 600

Addresses = NDArray[np.uint64]


class Refused(Exception):
    """The driver, or the memory there is, does not allow it; the reason is for the report."""


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: the order of access, hints where source and target are, flags."""

    _fields_ = [
        ("order", ctypes.c_int),
        ("source", ctypes.c_int * 2),
        ("target", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    ]


class Mark:
    """A place in a stream, which comes to pass when all work before it is done."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        handle = ctypes.c_void_p()
        _check("cuEventCreate", driver.quick.cuEventCreate(ctypes.byref(handle), _UNTIMED))
        self._handle = handle.value

    def record(self, stream: int) -> None:
        """Be behind what was left to the stream so far."""
        _check("cuEventRecord", self._driver.quick.cuEventRecord(self._handle, stream))

    def passed(self) -> bool:
        """Did it come to pass? A broken device says so, too: nothing more will."""
        return bool(self._driver.quick.cuEventQuery(self._handle) != _NOT_READY)

    def __del__(self) -> None:
        self._driver.quick.cuEventDestroy_v2(self._handle)


class Driver:
    """The driver's library, where there is one."""

    def __init__(self) -> None:
        try:
            name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
            self._library: Any = ctypes.CDLL(name)
            self.quick: Any = ctypes.PyDLL(name)  # keeps the interpreter's lock
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
        """Let the GPU read ``size`` bytes at ``address``, both multiples of a page."""
        flags = _PORTABLE | _READ_ONLY
        status = self._library.cuMemHostRegister_v2(
            ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_uint(flags)
        )
        if status:
            raise Refused(f"the driver refuses to register {size} bytes of a file ({status})")

    def unregister(self, address: int) -> None:
        """Take that back; nothing may be under way."""
        self._library.cuMemHostUnregister(ctypes.c_void_p(address))

    @property
    def copies_rows(self) -> bool:
        """Is there a call that copies many pieces? From CUDA 12.8 on."""
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
