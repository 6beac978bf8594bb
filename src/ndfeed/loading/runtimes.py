"""The runtimes of a loader: one for each pass in progress, and perhaps one that waits."""

import os
import threading
from collections.abc import Callable

from ndfeed.loading.plan import Plan
from ndfeed.loading.runtime import Runtime
from ndfeed.loading.uninterrupted import clean_up


class Runtimes:
    """Lends a runtime to each pass, by its number. A runtime belongs to a process and a plan."""

    def __init__(self) -> None:
        self.every: list[Runtime] = []  # the one used last comes first
        self._live: dict[int, Runtime] = {}  # by pass
        self._lock = threading.RLock()

    def is_live(self, number: int) -> bool:
        """Is the pass in progress?"""
        return number in self._live

    def lend(self, number: int, plan: Plan, make: Callable[[], Runtime]) -> Runtime:
        """Return the runtime for a pass in this process: one that no other pass uses."""
        with self._lock:
            every, pid = self.every, os.getpid()
            every[:] = [one for one in every if one.pid == pid]
            idle = [one for one in self._list_idle() if one.plan is plan]
            lent = idle[0] if idle else make()
            every[:] = [lent, *(one for one in every if one is not lent)]
            self._live[number] = lent
            return lent

    def finish(self, number: int) -> None:
        """End a pass; the threads of its runtime wait for the next, and those of others end."""
        with self._lock:
            runtime = self._live.get(number)
            spare = {-id(one): one for one in self._list_idle()}
            self._live |= spare  # nobody else gets one that is being stopped
        try:
            if runtime is not None:
                runtime.end()
            _stop_all(list(spare.values()))
        finally:
            for key in (number, *spare):
                self._live.pop(key, None)

    def abandon(self, number: int) -> None:
        """Stop a pass, if it is in progress."""
        runtime = self._live.get(number)
        if runtime is not None:
            _stop_all([runtime])
        self._live.pop(number, None)

    def release_others(self, plan: Plan) -> None:
        """End the runtimes of other plans that no pass uses, and forget them."""
        with self._lock:
            idle = [one for one in self._list_idle() if one.plan is not plan]
            self.every[:] = [one for one in self.every if one not in idle]
        _stop_all(idle)

    def _list_idle(self) -> list[Runtime]:
        used = {id(one) for one in list(self._live.values())}
        return [one for one in self.every if id(one) not in used]

    def close(self) -> None:
        """Stop all passes."""
        _stop_all(self.every)
        self._live.clear()


def _stop_all(runtimes: list[Runtime]) -> None:
    for runtime in runtimes:
        if runtime.pid == os.getpid():  # a forked copy has no threads, and perhaps a held lock
            runtime.stop()


def stop_finally(runtimes: Runtimes) -> None:
    """Stop all passes when the loader itself ends."""
    clean_up(lambda: _stop_all(runtimes.every))
