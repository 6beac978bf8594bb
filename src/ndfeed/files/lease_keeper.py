"""Mapped files, their read leases, and the thread that looks after them.

One mapped file, and the read lease that makes its writers wait.

The thread that looks after leases, and the descriptors that maps may hold.

There is one keeper in a process, and only while somebody holds leases. It looks at them every
quarter of a second: whoever waits to write waits no longer than that. It ends when nobody has
read for a second. A child that is forked begins with nothing: neither the thread nor, usually, any
lease outlives a fork. A fork does not wait for those who read, though: leases that are in use then
stay the parent's. Should it be killed before it gives them up, writers wait as long as the kernel
makes them (45 s by default) if the child still lives.
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
        self.refused = not can.lease  # there are no leases on this file
        self.taken = False  # a writer has had the file since it was mapped
        self.found: Identity | None = None  # what it has become, if it changed

    def lease(self) -> None:
        """Make writers wait; some files cannot be leased."""
        self.look()
        if self.leased or self.refused or self.taken:
            return
        try:
            # The signal that tells of a writer must be one that is ignored: SIGIO, the
            # default, would end the process. Giving up a lease brings the default back.
            fcntl.fcntl(self.file.fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self.file.fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            self.leased = True
        except BlockingIOError:
            raise Unmappable(self.file.path, "somebody has it open for writing") from None
        except OSError:  # it is another user's, or its file system has none
            self.refused = True

    def look(self) -> None:
        """Take note of a writer that waits, or has been let in by the kernel."""
        if self.leased and self.wanted():
            self.taken = True

    def give_up(self) -> None:
        """Let writers go on."""
        if self.leased:
            self.leased = False
            with contextlib.suppress(OSError):  # the kernel may have taken it away
                fcntl.fcntl(self.file.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def wanted(self) -> bool:
        """Does a writer wait for the lease, or has the kernel taken it away?"""
        try:
            return fcntl.fcntl(self.file.fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK
        except OSError:  # who cannot be asked cannot be trusted
            return True

    def identity(self, expected: Identity) -> Identity:
        """What the file is now; ``expected`` if it only was deleted since."""
        status = status_of(self.file.path, self.file.fd)
        found = Identity.of(status)
        if found != expected and found.same_data(expected):
            return behind_name(self.file.path, status) or expected
        return found

    def disturbed(self) -> bool:
        """Does a writer wait, or may another file have come in this one's place?"""
        try:
            now = os.fstat(self.file.fd)
        except OSError:
            return True
        return self.wanted() or now.st_ctime_ns != self.file.status.st_ctime_ns


_LOOK_EVERY = 0.25  # seconds; far below any sensible lease-break-time
_PATIENCE = 0.5  # seconds that a fork waits for somebody who reads


def acquire_until(lock: threading.Lock, until: float) -> bool:
    """Acquire a lock, waiting no longer than ``until``."""
    left = -1.0 if until == math.inf else max(until - platform_calls.elapsed(), 0.0)
    return lock.acquire(timeout=left)


class Holder(Protocol):
    """Somebody who holds leases."""

    @property
    def used(self) -> bool:
        """Has anybody read since the last look?"""
        ...

    def tend(self) -> bool:
        """Look, and give up what must be given up; is there anything left to tend?"""
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
        """Give descriptors back, unless they were another process's."""
        # Maps are collected at any moment, also while this very thread holds the lock.
        if generation == self.generation:
            self._returned.append(count)

    def keep(self, holder: Holder) -> None:
        """See to it that the leases of ``holder`` are looked after."""
        with self._lock:
            self._held.add(holder)
            # Not alive: it has ended, or an interrupt came before it could begin.
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
            del held, idle  # while it waits, the keeper keeps nobody alive

    def before_fork(self) -> None:
        """Leases and threads are not for children: give up the one, end the other, if possible."""
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
        """Go on looking after the leases that were in use."""
        in_use, self._in_use = self._in_use, []
        for one in in_use:
            self.keep(one)

    def after_fork(self) -> None:
        """In a child nothing is mapped by anything that lives on."""
        self.generation += 1
        self._reset()


keeper = Keeper()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=keeper.before_fork,
        after_in_parent=keeper.after_fork_in_parent,
        after_in_child=keeper.after_fork,
    )
