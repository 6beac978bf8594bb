"""The CUDA driver, called through its C library: memory, streams, events, copies and kernels.

No framework is needed for it. Frameworks use the primary context of a device, and so does this: the
same addresses, streams and events are valid on both sides.

Calls that only queue work for the device keep the GIL: releasing it and getting it back among many
threads takes ten times as long as the call. Calls that may wait release it.

``copy_rows`` lets the copy engines fetch many pieces with one call. Two forms of that call exist:
CUDA 13 dropped a parameter.
"""

import ctypes
import functools
import importlib.resources
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PORTABLE, _READ_ONLY = 0x01, 0x08
_ANY_ORDER = 3  # the source does not change before the copy is done
_OVERLAP = 1  # rather beside other work than a little sooner
_BESIDE_OTHERS = 1  # a stream that does not wait for the default one
_UNTIMED, _SLEEPING = 2, 1  # events: without a clock; waiting for one lets the processor sleep
_NOT_READY = 600

Addresses = NDArray[np.uint64]


class Refused(RuntimeError):
    """The driver or the available memory does not allow it; the reason is for the report."""


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: the order of access, hints where source and target are, flags."""

    _fields_ = [
        ("order", ctypes.c_int),
        ("source", ctypes.c_int * 2),
        ("target", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    ]


class Calls:
    """The functions of the driver's library: ``quick`` ones keep the GIL, ``slow`` ones do not."""

    def __init__(self) -> None:
        try:
            name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
            self.slow: Any = ctypes.CDLL(name)
            self.quick: Any = ctypes.PyDLL(name)
        except OSError:
            raise Refused("the CUDA driver's library cannot be loaded") from None
        _declare(self.quick)
        _declare(self.slow)
        self.idle_events: deque[int] = deque()


class Event:
    """A place in a stream, which is passed when all work before it is done."""

    __slots__ = ("_calls", "handle")

    def __init__(self, calls: Calls, stream: int) -> None:
        self._calls = calls
        self.handle = 0
        try:
            self.handle = calls.idle_events.pop()
        except IndexError:
            made = ctypes.c_void_p()
            status = calls.quick.cuEventCreate(ctypes.byref(made), _UNTIMED | _SLEEPING)
            _check("cuEventCreate", status)
            self.handle = made.value or 0
        _check("cuEventRecord", calls.quick.cuEventRecord(self.handle, stream))

    def passed(self) -> bool:
        """Was it passed? True for a device that failed as well, which will do nothing more."""
        return bool(self._calls.quick.cuEventQuery(self.handle) != _NOT_READY)

    def wait(self) -> None:
        """Wait until it is passed."""
        _check("cuEventSynchronize", self._calls.slow.cuEventSynchronize(self.handle))

    def __del__(self) -> None:
        if self.handle:
            self._calls.idle_events.append(self.handle)  # to be used again


class Stream:
    """Work that the device does in order. Everything is queued here without waiting."""

    def __init__(self, driver: "Driver", handle: int) -> None:
        self.handle = handle
        self._driver = driver
        self._calls = driver.calls
        self._attributes = _Attributes(_ANY_ORDER, flags=_OVERLAP)
        self._first = ctypes.c_size_t(0)

    def other(self, handle: int) -> "Stream":
        """Return a stream that somebody else made."""
        return Stream(self._driver, handle)

    def record(self) -> Event:
        """Return an event after the work that was queued so far."""
        return Event(self._calls, self.handle)

    def wait_for(self, event: Event) -> None:
        """Let the work that is queued from now on wait for an event of any stream."""
        status = self._calls.quick.cuStreamWaitEvent(self.handle, event.handle, 0)
        _check("cuStreamWaitEvent", status)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy ``size`` bytes of pinned memory to the device."""
        status = self._calls.quick.cuMemcpyHtoDAsync_v2(target, source, size, self.handle)
        _check("cuMemcpyHtoDAsync", status)

    def copy_back(self, target: int, source: int, size: int) -> None:
        """Copy ``size`` bytes of the device to pinned memory."""
        status = self._calls.quick.cuMemcpyDtoHAsync_v2(target, source, size, self.handle)
        _check("cuMemcpyDtoHAsync", status)

    def copy_within(self, target: int, source: int, size: int) -> None:
        """Copy ``size`` bytes of the device to another address of it."""
        status = self._calls.quick.cuMemcpyDtoDAsync_v2(target, source, size, self.handle)
        _check("cuMemcpyDtoDAsync", status)

    def copy_rows(self, target: Addresses, source: Addresses, sizes: Addresses) -> None:
        """Copy piece i from ``source[i]`` to ``target[i]``."""
        arguments: list[Any] = [
            ctypes.c_void_p(target.ctypes.data),
            ctypes.c_void_p(source.ctypes.data),
            ctypes.c_void_p(sizes.ctypes.data),
            ctypes.c_size_t(len(target)),
            ctypes.byref(self._attributes),
            ctypes.byref(self._first),
            ctypes.c_size_t(1),
        ]
        slow = self._calls.slow
        if hasattr(slow, "cuMemcpyBatchAsync_v2"):
            call = slow.cuMemcpyBatchAsync_v2
        else:
            call = slow.cuMemcpyBatchAsync
            arguments.append(ctypes.byref(ctypes.c_size_t(0)))  # which piece failed
        status = call(*arguments, ctypes.c_void_p(self.handle))
        if status:
            raise Refused(f"the driver refuses to copy rows ({status})")

    def launch(self, name: str, blocks: int, threads: int, *arguments: int) -> None:
        """Run a kernel of ``kernels.cu``, whose arguments are all of eight bytes."""
        count = len(arguments)
        values = (ctypes.c_uint64 * count)(*arguments)
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
        status = self._calls.quick.cuLaunchKernel(
            self._driver.function(name), blocks, 1, 1, threads, 1, 1, 0, self.handle, pointers, None
        )
        _check(f"cuLaunchKernel of {name}", status)


class Driver:
    """The driver, for one device. Thread-safe.

    Everything needs the device's context in the calling thread: ``use`` is for threads of our
    own, ``context`` for those of others.
    """

    def __init__(self, device: int) -> None:
        self.calls = Calls()
        self._context = self._retain(device)
        self._local = threading.local()
        self._functions: dict[str, int] = {}
        self.idle_streams: deque[Stream] = deque()  # put back by who needs them no more
        self._loading = threading.Lock()
        self.process = os.getpid()

    def _retain(self, device: int) -> int:
        """Return the context that frameworks use."""
        number, context = ctypes.c_int(), ctypes.c_void_p()
        slow = self.calls.slow
        status = (
            slow.cuInit(0)
            or slow.cuDeviceGet(ctypes.byref(number), device)
            or slow.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
        )
        if status or context.value is None:
            raise Refused(f"the driver has no device {device} ({status})")
        return context.value

    def use(self) -> None:
        """Make the context that of this thread, which uses no other one."""
        if not hasattr(self._local, "used"):
            _check("cuCtxSetCurrent", self.calls.quick.cuCtxSetCurrent(self._context))
            self._local.used = True

    @contextmanager
    def context(self) -> Iterator[None]:
        """Make the context that of this thread, for a while."""
        _check("cuCtxPushCurrent", self.calls.quick.cuCtxPushCurrent_v2(self._context))
        try:
            yield
        finally:
            self.calls.quick.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def synchronize(self) -> None:
        """Wait for everything that the device has to do; one that failed does nothing more."""
        self.calls.slow.cuCtxSynchronize()

    def make_stream(self) -> Stream:
        """Return a stream that nobody else uses; it lives as long as the process."""
        with suppress(IndexError):
            return self.idle_streams.pop()
        handle = ctypes.c_void_p()
        status = self.calls.slow.cuStreamCreate(ctypes.byref(handle), _BESIDE_OTHERS)
        _check("cuStreamCreate", status)
        return Stream(self, handle.value or 0)

    @property
    def copies_rows(self) -> bool:
        """Has the driver a call that copies many pieces? CUDA 12.8 and later do."""
        return hasattr(self.calls.slow, "cuMemcpyBatchAsync")

    def allocate(self, size: int) -> int:
        """Return the address of memory of the device."""
        found = ctypes.c_uint64()
        status = self.calls.slow.cuMemAlloc_v2(ctypes.byref(found), size)
        if status:
            raise Refused(f"the device has no {size >> 20} MB of memory left ({status})")
        return found.value

    def free(self, address: int) -> None:
        """Free memory of the device; waits until the device is done."""
        self.calls.slow.cuMemFree_v2(address)

    def allocate_pinned(self, size: int) -> int:
        """Return the address of host memory that copies reach the rate of the bus from."""
        found = ctypes.c_void_p()
        status = self.calls.slow.cuMemHostAlloc(ctypes.byref(found), size, _PORTABLE)
        if status or found.value is None:
            raise Refused(f"the driver refuses to pin {size} bytes of memory ({status})")
        return found.value

    def free_pinned(self, address: int) -> None:
        """Free host memory; no copy from there may be in flight."""
        self.calls.slow.cuMemFreeHost(address)

    def register(self, address: int, size: int, *, read_only: bool = True) -> None:
        """Let the device read ``size`` bytes at ``address``, both multiples of the page size."""
        flags = _PORTABLE | (_READ_ONLY if read_only else 0)
        status = self.calls.slow.cuMemHostRegister_v2(address, size, flags)
        if status:
            raise Refused(f"the driver refuses to register {size} bytes of memory ({status})")

    def unregister(self, address: int) -> None:
        """Undo ``register``; no copy from there may be in flight."""
        self.calls.slow.cuMemHostUnregister(address)

    def function(self, name: str) -> int:
        """Return a kernel; the first time, all of them are loaded."""
        if name not in self._functions:
            with self._loading:
                self._load()
        return self._functions[name]

    def _load(self) -> None:
        slow, module, found = self.calls.slow, ctypes.c_void_p(), ctypes.c_void_p()
        code = importlib.resources.files("ndfeed.cuda").joinpath("kernels.ptx").read_bytes()
        status = slow.cuModuleLoadData(ctypes.byref(module), code + b"\0")
        if status:
            raise Refused(f"the driver does not take our kernels ({status})")
        for name in KERNELS:
            status = slow.cuModuleGetFunction(ctypes.byref(found), module, name.encode())
            _check("cuModuleGetFunction", status)
            self._functions[name] = found.value or 0


KERNELS = ("gather_16", "gather_8", "gather_any", "permute_32", "permute_64")


def is_ours(driver: Driver) -> bool:
    """Is this the process that uses the device? A fork of it has nothing to free there."""
    return driver.process == os.getpid()


@functools.cache
def driver_of(device: int) -> Driver:
    """Return the driver for a device, one for all loaders."""
    return Driver(device)


@functools.cache
def side_stream(driver: Driver) -> Stream:
    """Return a stream beside the consumer's: one for all threads of all loaders.

    The bus serves one copy at a time anyway; and what is used again after a copy can be used at
    once by the next one, since work of one stream is done in order.
    """
    with driver.context():
        return driver.make_stream()


def _declare(library: Any) -> None:  # noqa: ANN401 - functions by name
    """Say which arguments are wider than ctypes would take a number for."""
    pointer, address, size, flags = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint
    for name, types in {
        "cuCtxSetCurrent": [pointer],
        "cuCtxPushCurrent_v2": [pointer],
        "cuEventRecord": [pointer, pointer],
        "cuEventQuery": [pointer],
        "cuEventSynchronize": [pointer],
        "cuStreamWaitEvent": [pointer, pointer, flags],
        "cuMemAlloc_v2": [pointer, size],
        "cuMemFree_v2": [address],
        "cuMemHostAlloc": [pointer, size, flags],
        "cuMemFreeHost": [pointer],
        "cuMemHostRegister_v2": [pointer, size, flags],
        "cuMemHostUnregister": [pointer],
        "cuMemcpyHtoDAsync_v2": [address, pointer, size, pointer],
        "cuMemcpyDtoHAsync_v2": [pointer, address, size, pointer],
        "cuMemcpyDtoDAsync_v2": [address, address, size, pointer],
        "cuModuleLoadData": [pointer, ctypes.c_char_p],
        "cuModuleGetFunction": [pointer, pointer, ctypes.c_char_p],
        "cuLaunchKernel": [pointer, *[flags] * 7, pointer, pointer, pointer],
    }.items():
        getattr(library, name).argtypes = types


def _check(name: str, status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver's {name} failed with status {status}")
