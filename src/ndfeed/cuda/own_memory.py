"""Device memory of our own, for frameworks whose allocator cannot be called from outside.

It is lent out in blocks and used again when nobody refers to them any more. The device may still be
writing to a block then, but what it is used for next is queued behind that, on the same stream.
Who lets others read a block refers to it until they are done.

A framework gets at a block by DLPack, without a copy. It calls a function when it lets go, in any
thread, even after the interpreter has ended: so that is one of the C library, which does nothing.
"""

import contextlib
import ctypes
import math
import sys
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any, SupportsIndex

import numpy as np

from ndfeed.cuda.driver import Driver, Event, Refused, Stream, is_ours

_ROUND = 2 << 20  # bytes: blocks are multiples of it, so that more of them are of one size
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5}
ALIGNED = 16  # bytes: XLA takes an array that begins at a multiple of them, and no other
_OTHERS = 256  # where NumPy's numbers of dtypes begin that are not its own
CUDA = 2  # the kind of device, as DLPack numbers them


class _Block:
    """Some memory of the device, returned when nobody refers to it."""

    __slots__ = ("_pool", "_size", "address")

    def __init__(self, pool: "OwnMemory", address: int, size: int) -> None:
        self._pool, self.address, self._size = pool, address, size

    def __del__(self) -> None:
        self._pool.take_back(self.address, self._size)


class Span:
    """An array in a block."""

    __slots__ = ("_block", "address", "dtype", "shape")

    def __init__(
        self, block: _Block, address: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        self._block = block
        self.address = address
        self.dtype = dtype
        self.shape = shape

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> "Span":
        start, stop, _ = part.indices(len(self))
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        shape = max(stop - start, 0), *self.shape[1:]
        return Span(self._block, self.address + start * row, self.dtype, shape)


class OwnMemory:
    """Lends device memory for the fields of batches. Thread-safe. See ``Memory`` in ``side``."""

    def __init__(
        self, driver: Driver, fields: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
    ) -> None:
        self._driver = driver
        self._fields = dict(fields)
        self._free: dict[int, deque[int]] = {}
        # Blocks may come back after ``trim``; when nobody refers to this, all have. Not at exit,
        # when copies may still write to them.
        self._last = weakref.finalize(self, _free_at_last, driver, self._free)
        self._last.atexit = False

    def join(self) -> None:
        """Nothing has to be prepared."""

    def empty(self, name: str, count: int) -> Span:
        """Make an array for ``count`` samples of a field; for threads that use the driver."""
        dtype, shape = self._fields[name]
        return self.empty_like(dtype, (count, *shape))

    def empty_like(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Span:
        """Make an array of any shape."""
        nbytes = math.prod(shape) * dtype.itemsize
        size = max(-(-nbytes // _ROUND), 1) * _ROUND
        try:
            address = self._free[size].pop()
        except (KeyError, IndexError):
            address = self._allocate(size)
        return Span(_Block(self, address, size), address, dtype, shape)

    def _allocate(self, size: int) -> int:
        try:
            return self._driver.allocate(size)
        except Refused:
            self.trim()  # there may be blocks of other sizes
        try:
            return self._driver.allocate(size)
        except Refused as error:
            raise MemoryError(
                f"{error}; give the loader a smaller memory=, or the framework a smaller part of "
                "the device's"
            ) from None

    def address(self, array: Span) -> int:
        """Return where an array begins."""
        return array.address

    def take_back(self, address: int, size: int) -> None:
        """Lend memory again, wherever its last reference was dropped."""
        free = self._free.setdefault(size, deque())
        free.append(address)
        if not self._last.alive:  # both are collected together: finalizers come first then
            _free_at_last(self._driver, self._free)

    def trim(self) -> None:
        """Free the blocks that are not lent."""
        _free_all(self._driver, self._free)


def _free_all(driver: Driver, every: dict[int, deque[int]]) -> None:
    for free in list(every.values()):
        with contextlib.suppress(IndexError):  # there are no more
            while True:
                driver.free(free.pop())


def _free_at_last(driver: Driver, every: dict[int, deque[int]]) -> None:
    if any(every.values()) and is_ours(driver) and not sys.is_finalizing():
        with contextlib.suppress(RuntimeError), driver.context():
            _free_all(driver, every)


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    """DLManagedTensor, with room for its shape."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("lengths", ctypes.c_int64 * 33),
    ]


_new_capsule: Any = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_library = ctypes.CDLL(None if sys.platform != "win32" else "msvcrt")
_DO_NOTHING = ctypes.cast(_library.labs, ctypes.c_void_p).value  # the absolute value of a pointer
# Never freed: a framework may let go of them at any time.
_tensors: deque[_Tensor] = deque()
_AGAIN = 1024  # descriptions after which the first is used again


def is_named(dtype: np.dtype[Any]) -> bool:
    """Has DLPack a name for a dtype? Others are passed on as their bits."""
    # A dtype of ml_dtypes may have the kind of NumPy's own ones.
    return dtype.kind in _CODES and dtype.num < _OTHERS


class Shareable:
    """A span as a framework takes it over: it waits for the event before it reads.

    The span has to be kept until the framework has read it.
    """

    def __init__(self, span: Span, stream: Stream, event: Event, device: tuple[int, int]) -> None:
        self._span = span
        self._stream = stream
        self._event = event
        self._device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: SupportsIndex | None = None, **_: object) -> object:
        """Return a capsule; ``stream`` is the one that will read."""
        if stream is not None:
            self._stream.other(int(stream)).wait_for(self._event)
        else:
            self._event.wait()
        span = self._span
        made = _tensors.popleft() if len(_tensors) >= _AGAIN else _Tensor()
        _tensors.append(made)
        made.data = span.address
        made.device = _Device(*self._device)
        made.ndim = len(span.shape)
        code = _CODES[span.dtype.kind if is_named(span.dtype) else "u"]
        made.dtype = _Type(code, 8 * span.dtype.itemsize, 1)
        made.lengths[: len(span.shape)] = span.shape
        made.shape = ctypes.addressof(made.lengths)
        made.deleter = _DO_NOTHING
        return _new_capsule(ctypes.addressof(made), b"dltensor", None)
