"""The thread that looks after leases, and the descriptors that maps may hold.

There is one keeper in a process, and only while somebody holds leases. It looks at them every
quarter of a second: whoever waits to write waits no longer than that. It ends when nobody has
read for a second. Neither it nor any lease outlives a fork: the child begins with nothing.
"""

import os
import threading
import weakref
from typing import Protocol

from ndfeed.files import system

_LOOK_EVERY = 0.25  # seconds; far below any sensible lease-break-time


class Holder(Protocol):
    """Somebody who holds leases."""

    @property
    def used(self) -> bool:
        """Has anybody read since the last look?"""
        ...

    def tend(self) -> bool:
        """Look, and give up what must be given up; is there anything left to tend?"""
        ...

    def release(self) -> None:
        """Give up every lease."""
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

    def reserve(self, count: int) -> bool:
        """May ``count`` more descriptors be held?"""
        with self._lock:
            while self._returned:
                self._used -= self._returned.pop()
            if self._used + count > system.open_files_limit() // 2:
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
        """Leases and threads are not for children: give up the one, end the other."""
        with self._lock:
            thread, stop = self._thread, self._stop
            self._thread = None
            held = list(self._held)
            self._held.clear()
        if thread is not None and thread.is_alive():
            stop.set()
            thread.join()
        for one in held:
            one.release()

    def after_fork(self) -> None:
        """In a child nothing is mapped by anything that lives on."""
        self.generation += 1
        self._reset()


keeper = Keeper()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=keeper.before_fork, after_in_child=keeper.after_fork)
