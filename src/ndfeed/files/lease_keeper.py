"""Mapped files, their read leases, and the thread that looks after them.

A read lease makes writers of a mapped file wait. There is one keeper per process, and only while
somebody holds leases. It checks them every quarter of a second, so a writer waits no longer than
that. It ends when nobody has read for a second. It also counts the descriptors that maps may hold.

A forked child starts with nothing: neither the thread nor, usually, any lease outlives a fork. A
fork does not wait for readers, though: leases that are in use then stay the parent's. Should it be
killed before it gives them up, writers wait as long as the kernel makes them (45 s by default) if
the child still lives.
"""

import contextlib
import math
import os
import signal
import threading
import weakref
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import SourceError
from ndfeed.files import platform_calls
from ndfeed.files.file import File, Identity, behind_name, status_of
from ndfeed.files.platform_calls import can, fcntl


class Unmappable(SourceError):
    """A file that cannot be mapped, or not now; it can still be read by position."""


class MappedFile:
    """One mapped file."""

    __slots__ = ("bytes", "file", "found", "leased", "number", "refused", "taken")

    def __init__(self, number: int, file: File) -> None:
        self.number = number
        self.file = file
        self.bytes: NDArray[np.uint8] = np.frombuffer(platform_calls.map_whole(file.fd), np.uint8)
        self.leased = False
        self.refused = not can.lease  # this file cannot be leased
        self.taken = False  # a writer has had the file since it was mapped
        self.found: Identity | None = None  # its new identity, if it changed

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
        """Note a writer that waits, or was let in by the kernel."""
        if self.leased and self.wanted():
            self.taken = True

    def give_up(self) -> None:
        """Let writers continue."""
        if self.leased:
            self.leased = False
            with contextlib.suppress(OSError):  # the kernel may have taken it away
                fcntl.fcntl(self.file.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def wanted(self) -> bool:
        """Does a writer wait for the lease, or has the kernel taken it away?"""
        try:
            return fcntl.fcntl(self.file.fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK
        except OSError:  # if it cannot be queried it cannot be trusted
            return True

    def identity(self, expected: Identity) -> Identity:
        """Return the file's current identity; ``expected`` if it was only deleted since."""
        status = status_of(self.file.path, self.file.fd)
        found = Identity.of(status)
        if found != expected and found.same_data(expected):
            return behind_name(self.file.path, status) or expected
        return found

    def disturbed(self) -> bool:
        """Does a writer wait, or may another file have replaced this one?"""
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
        """Has anybody read since the last check?"""
        ...

    def tend(self) -> bool:
        """Give up the leases that must be given up; are there any left to look after?"""
        ...

    def release(self, until: float) -> bool:
        """Give up every lease, unless that takes longer than ``until``; were they given up?"""
        ...


class Keeper:
    """What this process has mapped and leased, within half the descriptors it may have open."""

    def __init__(self) -> None:
        self.generation = 0
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._used = 0
        self._returned: list[int] = []
        self._held: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._in_use: list[Holder] = []  # during a fork: those whose leases could not be given up

    def reserve(self, count: int) -> bool:
        """May ``count`` more descriptors be held?"""
        with self._lock:
            while self._returned:
                self._used -= self._returned.pop()
            if self._used + count > platform_calls.open_files_limit() // 2:
                return False
            self._used += count
            return True

    def release(self, count: int, generation: int) -> None:
        """Give descriptors back, unless they belong to another process."""
        # Maps are collected at any moment, even while this very thread holds the lock.
        if generation == self.generation:
            self._returned.append(count)

    def keep(self, holder: Holder) -> None:
        """Look after the leases of ``holder``."""
        with self._lock:
            self._held.add(holder)
            # Not alive: it has ended, or an interrupt came before it could start.
            if self._thread is None or not self._thread.is_alive():
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._look_after, args=(self._stop,), name="ndfeed-leases", daemon=True
                )
                self._thread.start()

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
        """Reset in a child: nothing that lives on has anything mapped."""
        self.generation += 1
        self._reset()


keeper = Keeper()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=keeper.before_fork,
        after_in_parent=keeper.after_fork_in_parent,
        after_in_child=keeper.after_fork,
    )
