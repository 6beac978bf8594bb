"""Handles SIGBUS: reading a truncated mapped file gives zeros and a mark, not a crash.

Reading a page of a map that lies beyond the end of its file raises SIGBUS, whose default is to
end the process. The signal is synchronous: it arrives in the thread that is copying from the map,
in the middle of a C call of NumPy, so a handler may run Python. Ours finds the map that the
address lies in, appends it to the list that was given to ``watch``, and replaces the whole map by
zero pages; the copy then continues, and its caller finds the mark. The same happens for a page
that the disk or a server fails to deliver.

Guarantees:

- A map is marked before any of its bytes turn to zero. Whoever has copied from it and finds no
  mark has copied the file's own bytes.
- A bus error at any other address, or a signal that was sent, goes to the previous handler of
  SIGBUS, or ends the process as it always did.
- A handler installed after ours (``faulthandler.enable()``, a worker of PyTorch's DataLoader)
  is put behind it at the next ``ensure``.
- Nothing is installed before the first file is mapped. Forked children inherit the handler
  together with the maps. The handler takes no lock.

Linux on 64-bit x86 and ARM only, where the layouts below hold in glibc and in musl.
"""

import signal
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.files.platform_calls import can

try:
    import ctypes  # NumPy has imported it already
except ImportError:  # an interpreter without libffi
    can.catch_sigbus = False

_SA_SIGINFO, _SA_NODEFER = 0x4, 0x40000000
_SI_CODE, _SI_ADDR = 8, 16  # offsets in siginfo_t
_MASK_WORDS = 16  # sigset_t has 128 bytes
_PROT_READ, _PRIVATE_ZEROS = 0x1, 0x2 | 0x10 | 0x20  # MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS
_FAILED = -1


class _Watched(weakref.ref[NDArray[np.uint8]]):
    """The addresses of one map, known for as long as its array lives.

    An array ends before the memory that it shows is unmapped, and the callback of a weak
    reference is a C function here: no interrupt can come between, so memory of others is never
    mistaken for ours.
    """

    __slots__ = ("end", "lost", "number", "start")
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    start: int
    end: int
    lost: list[int]
    number: int


_watched: set[_Watched] = set()


def watch(data: NDArray[np.uint8], lost: list[int], number: int) -> None:
    """Append ``number`` to ``lost`` when a byte of ``data``, a whole map, cannot be read."""
    one = _Watched(data, _watched.discard)
    one.start = data.__array_interface__["data"][0]
    one.end = one.start + data.nbytes
    one.lost, one.number = lost, number
    _watched.add(one)


class _Handler:
    """The C side: made once, when the first file is mapped, and never freed."""

    def __init__(self) -> None:
        class Action(ctypes.Structure):
            """``struct sigaction``."""

            _fields_ = (
                ("handler", ctypes.c_void_p),
                ("mask", ctypes.c_ulong * _MASK_WORDS),
                ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p),
            )

        libc = ctypes.PyDLL(None)
        pointer = ctypes.POINTER(Action)
        self._sigaction = libc.sigaction
        self._sigaction.argtypes = (ctypes.c_int, pointer, pointer)
        self._raise: Callable[[int], int] = getattr(libc, "raise")
        self._mmap = libc.mmap
        word = ctypes.c_size_t
        self._mmap.argtypes = (word, word, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        self._mmap.restype = ctypes.c_ssize_t
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t)
        callback = kind(self._handle)
        # The kernel keeps its address: it must outlive this module when the interpreter ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))
        self._ours = Action(ctypes.cast(callback, ctypes.c_void_p), flags=_SA_SIGINFO | _SA_NODEFER)
        self._default = Action()
        self._before: Any = self._default
        self._current = Action
        self._gave_way = False

    def ensure(self) -> bool:
        """Become the handler of SIGBUS; one that was installed meanwhile comes behind us."""
        now = self._current()
        if self._sigaction(signal.SIGBUS, None, now):
            return False
        if now.handler == self._ours.handler:
            return True
        self._before, self._gave_way = now, False
        return not self._sigaction(signal.SIGBUS, self._ours, None)

    def _handle(self, number: int, info: int, _: int) -> None:
        code = ctypes.c_int.from_address(info + _SI_CODE).value
        if code > 0:  # a fault; else somebody sent the signal
            address = ctypes.c_size_t.from_address(info + _SI_ADDR).value
            for one in tuple(_watched):
                if one.start <= address < one.end:
                    one.lost.append(one.number)
                    # All of it, not the rest from here on: that would be one more map, and there
                    # may be as many as the system allows.
                    size = one.end - one.start
                    if self._mmap(one.start, size, _PROT_READ, _PRIVATE_ZEROS, -1, 0) != _FAILED:
                        return
        # Not ours: the instruction faults again, into the previous handler. If that one hands it
        # back to us, as faulthandler does, there is no handler left to try.
        self._sigaction(number, self._default if self._gave_way else self._before, None)
        self._gave_way = True
        if code <= 0:
            self._raise(number)


_handler: _Handler | None = None


def ensure() -> bool:
    """Make sure that bus errors in watched maps are caught; can they be?"""
    global _handler
    if not can.catch_sigbus:
        return False
    if _handler is None:
        try:
            _handler = _Handler()
        except (AttributeError, MemoryError, OSError):  # the system forbids callbacks
            can.catch_sigbus = False
            return False
    return _handler.ensure()
