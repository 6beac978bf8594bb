"""Guard mapped files against changes: read leases, and a handler of SIGBUS.

**SIGBUS.** Reading a page of a map beyond the end of its file raises SIGBUS, which ends the process
by default. The signal is synchronous: it arrives in the thread that is copying from the map, in the
middle of a C call of NumPy, so a handler may run Python. Ours finds the map that contains the
address, appends it to the list that was given to ``watch``, and replaces the entire map by zero
pages; the copy then continues, and its caller finds the mark. The same happens for a page that the
disk or a server fails to deliver.

Guarantees:

- A map is marked before any of its bytes turn to zero. Code that has copied from it and finds no
  mark has copied the file's own bytes.
- A bus error at any other address, or a signal that was sent, goes to the previous handler of
  SIGBUS, or ends the process as before.
- A handler installed after ours (``faulthandler.enable()``, a worker of PyTorch's DataLoader)
  is chained after it at the next ``ensure``.
- Nothing is installed before the first file is mapped. Forked children inherit the handler
  together with the maps. The handler takes no lock.

Linux on 64-bit x86 and ARM only, where the layouts below hold in glibc and in musl.

**Leases.** A read lease makes writers of a mapped file wait. There is one keeper per process, which
runs only while leases are held. It checks them every quarter of a second, so a writer waits no
longer than that. It ends when nobody has read for a second. It also counts the descriptors and
maps that there may be.

A forked child starts with nothing: neither the thread nor, usually, any lease survives a fork. A
fork does not wait for readers, though: leases in use at that time stay the parent's. If the parent
is killed before it gives them up, and the child still lives, writers wait as long as the kernel
makes them (45 s by default).
"""

import contextlib
import math
import mmap
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import SourceError
from ndfeed.files import platform_calls
from ndfeed.files.file import File, Identity, behind_name, is_same, status_of
from ndfeed.files.map_room import Room
from ndfeed.files.platform_calls import can, fcntl, fill_holes_singly, map_whole

with contextlib.suppress(ImportError):  # an interpreter without libffi
    import ctypes  # NumPy has imported it already

_SA_SIGINFO, _SA_NODEFER = 0x4, 0x40000000
_SI_CODE, _SI_ADDR = 8, 16  # offsets in siginfo_t
_MASK_WORDS = 16  # sigset_t has 128 bytes
_PROT_READ, _PRIVATE_ZEROS = 0x1, 0x2 | 0x10 | 0x20  # MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS
_FAILED = -1
_MOST_MAPS = 32_768  # of all files together: half of Linux's default vm.max_map_count


class _Watched(weakref.ref[NDArray[np.uint8]]):
    """The addresses of one map, known for as long as its array lives.

    An array is destroyed before the memory that it shows is unmapped, and the callback of a weak
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


def watch(data: NDArray[np.uint8], start: int, lost: list[int], number: int) -> None:
    """Append ``number`` to ``lost`` when a byte of ``data``, a map at ``start``, cannot be read."""
    one = _Watched(data, _watched.discard)
    one.start, one.end = start, start + len(data)
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
        self._mmap = platform_calls.find_mmap()
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t)
        callback = kind(self._handle)
        # The kernel keeps its address: it must outlive this module at interpreter exit.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))
        self._ours = Action(ctypes.cast(callback, ctypes.c_void_p), flags=_SA_SIGINFO | _SA_NODEFER)
        self._default = Action()
        self._before: Any = self._default
        self._current = Action
        self._gave_way = False

    def ensure(self) -> bool:
        """Become the handler of SIGBUS; a handler installed meanwhile is chained after ours."""
        now = self._current()
        if self._sigaction(signal.SIGBUS, None, now):
            return False
        if now.handler == self._ours.handler:
            return True
        self._before, self._gave_way = now, False
        return not self._sigaction(signal.SIGBUS, self._ours, None)

    def _handle(self, number: int, info: int, _: int) -> None:
        code = ctypes.c_int.from_address(info + _SI_CODE).value
        if code > 0:  # a fault; otherwise somebody sent the signal
            address = ctypes.c_size_t.from_address(info + _SI_ADDR).value
            for one in tuple(_watched):
                if one.start <= address < one.end:
                    one.lost.append(one.number)
                    # All of it, not only the rest: that would be one more map, and there may
                    # already be as many as the system allows.
                    size = one.end - one.start
                    if self._mmap(one.start, size, _PROT_READ, _PRIVATE_ZEROS, -1, 0) != _FAILED:
                        return
        # Not ours: the instruction faults again, into the previous handler. If that one returns
        # it to us, as faulthandler does, there is no handler left to try.
        self._sigaction(number, self._default if self._gave_way else self._before, None)
        self._gave_way = True
        if code <= 0:
            self._raise(number)


_handler: _Handler | None = None


def ensure() -> bool:
    """Ensure that bus errors in watched maps are caught; return whether they can be."""
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


class Unmappable(SourceError):
    """A file that cannot be mapped, or not now; it can still be read by position."""


class MappedFile:
    """One mapped file, at its place in a room if there is one."""

    __slots__ = ("bytes", "expected", "file", "found", "leased", "number", "refused", "taken")

    def __init__(
        self, number: int, file: File, expected: Identity, room: Room | None = None
    ) -> None:
        self.number = number
        self.file = file
        self.expected = expected
        found = self._map() if room is None else room.map(number, file.fd)
        self.bytes: NDArray[np.uint8] = np.frombuffer(found, np.uint8)
        self.leased = False
        self.refused = not can.lease  # this file cannot be leased
        self.taken = False  # a writer has had the file since it was mapped
        self.found: Identity | None = None  # its new identity, if it changed

    def _map(self) -> mmap.mmap:
        made = map_whole(self.file.fd)
        fill_holes_singly(self.file.fd, made, 0, len(made))
        return made

    def lease(self) -> None:
        """Make writers wait; some files cannot be leased."""
        self.look()
        if self.leased or self.refused or self.taken:
            return
        try:
            # The signal that announces a writer must be one that is ignored: SIGIO, the default,
            # would end the process. Giving up a lease restores the default.
            fcntl.fcntl(self.file.fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self.file.fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            self.leased = True
        except BlockingIOError:
            raise Unmappable(self.file.path, "somebody has it open for writing") from None
        except OSError:  # owned by another user, or its file system has none
            self.refused = True

    def look(self) -> None:
        """Record a writer that waits, or that the kernel let in."""
        if self.leased and self.wanted():
            self.taken = True

    def give_up(self) -> None:
        """Let writers continue."""
        if self.leased:
            self.leased = False
            with contextlib.suppress(OSError):  # the kernel may have taken it away
                fcntl.fcntl(self.file.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def wanted(self) -> bool:
        """Return whether a writer waits for the lease, or the kernel has taken it away."""
        try:
            return fcntl.fcntl(self.file.fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK
        except OSError:  # if it cannot be queried it cannot be trusted
            return True

    def identity(self) -> Identity:
        """Return the file's current identity; ``expected`` if it was only deleted since."""
        expected = self.expected
        status = status_of(self.file.path, self.file.fd)
        if is_same(expected, status):
            return expected
        found = Identity.of(status)
        if found != expected and found.same_data(expected):
            return behind_name(self.file.path, status) or expected
        return found

    def disturbed(self) -> bool:
        """Return whether a writer waits, or another file may have replaced this one."""
        try:
            now = os.fstat(self.file.fd)
        except OSError:
            return True
        return self.wanted() or now.st_ctime_ns != self.file.status.st_ctime_ns


_LOOK_EVERY = 0.25  # seconds; far below any sensible lease-break-time
_PATIENCE = 0.5  # seconds that a fork waits for a reader


def acquire_until(lock: threading.Lock, until: float) -> bool:
    """Acquire a lock, waiting no longer than ``until``."""
    left = -1.0 if until == math.inf else max(until - platform_calls.elapsed(), 0.0)
    return lock.acquire(timeout=left)


class Holder(Protocol):
    """An object that holds leases."""

    @property
    def used(self) -> bool:
        """Whether anybody has read since the last check."""
        ...

    def tend(self) -> bool:
        """Give up the leases that must be given up; return whether any are left."""
        ...

    def release(self, until: float) -> bool:
        """Give up every lease, unless that takes longer than ``until``; return whether it did."""
        ...


class Keeper:
    """What this process has mapped and leased, within half of what it may map and have open."""

    def __init__(self) -> None:
        self.generation = 0
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._used = self._maps = 0
        self._returned: list[tuple[int, int]] = []
        self._held: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._in_use: list[Holder] = []  # during a fork: those whose leases could not be given up

    def reserve(self, count: int, maps: int) -> bool:
        """Return whether ``count`` more descriptors and ``maps`` more maps may be held."""
        with self._lock:
            while self._returned:
                found = self._returned.pop()
                self._used, self._maps = self._used - found[0], self._maps - found[1]
            used, held = self._used + count, self._maps + maps
            if used > platform_calls.open_files_limit() // 2 or held > _MOST_MAPS:
                return False
            self._used, self._maps = used, held
            return True

    def release(self, count: int, maps: int, generation: int) -> None:
        """Give descriptors and maps back, unless they belong to another process."""
        # Maps may be collected at any moment, even while this very thread holds the lock.
        if generation == self.generation:
            self._returned.append((count, maps))

    def keep(self, holder: Holder) -> bool:
        """Look after the leases of ``holder``; return false where no thread can be started."""
        with self._lock:
            self._held.add(holder)
            # Not alive: it has ended, or an interrupt came before it could start.
            if self._thread is None or not self._thread.is_alive():
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._look_after, args=(self._stop,), name="ndfeed-leases", daemon=True
                )
                with contextlib.suppress(RuntimeError):
                    self._thread.start()
            return self._thread.is_alive()

    def _look_after(self, stop: threading.Event) -> None:
        while not stop.wait(_LOOK_EVERY):
            with self._lock:
                held = list(self._held)
            idle = [one for one in held if not one.tend()]
            with self._lock:
                self._held.difference_update(one for one in idle if not one.used)
                if not self._held:
                    self._thread = None
                    return
            del held, idle  # while it waits, the keeper must not keep anybody alive

    def before_fork(self) -> None:
        """Give up leases and end the thread, if possible: children must not inherit them."""
        until = platform_calls.elapsed() + _PATIENCE
        with self._lock:
            thread, stop = self._thread, self._stop
            self._thread = None
            held = list(self._held)
            self._held.clear()
        if thread is not None and thread.is_alive():
            stop.set()
            thread.join(_PATIENCE)
        self._in_use += [one for one in held if not one.release(until)]

    def after_fork_in_parent(self) -> None:
        """Continue to look after the leases that were in use."""
        in_use, self._in_use = self._in_use, []
        for one in in_use:
            self.keep(one)

    def after_fork(self) -> None:
        """Reset in a child: nothing that survives has anything mapped."""
        self.generation += 1
        self._reset()


keeper = Keeper()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=keeper.before_fork,
        after_in_parent=keeper.after_fork_in_parent,
        after_in_child=keeper.after_fork,
    )
