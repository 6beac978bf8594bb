"""Work on a stream beside the consumer's, and when each piece of it is done.

Copies end some time after the call that started them. Until then, what they read must not change:
buffers that would be used again, and files that a writer waits for. So whoever starts a copy hands
over what is to be released, with an event recorded after the copy. It is released by whoever starts
the next copy, or by a thread that looks every few milliseconds while copies are in flight.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeAlias

from ndfeed.cuda.driver import Driver, Event, Stream
from ndfeed.loading.uninterrupted import start_own_thread

_EVERY = 0.005  # seconds between two looks at copies in flight
_LOOKS = 200  # looks that find none, after which the thread ends: starting one takes a while

MOST_AHEAD = 512 << 20  # bytes of batches that are on the device ahead of use

# Recorded after work on a stream; or a future, if another thread will record it.
Recorded: TypeAlias = Event | Future[Event]
OnDevice: TypeAlias = Any  # rows of a field in a framework's memory: sliced like an array


def resolve(event: Recorded) -> Event:
    """Return the event, once it has been recorded."""
    return event.result() if isinstance(event, Future) else event


class Sent(NamedTuple):
    """A batch on its way to the device."""

    made: dict[str, OnDevice]
    event: Recorded
    reserved: object = None  # room on the device, while the batch waits there
    users: set[int] | None = None  # streams that use the memory which batches of a group share


class Memory(Protocol):
    """The memory of a device, in arrays of a framework or of our own."""

    def join(self) -> None:
        """Prepare this thread, which does nothing else, to make arrays on our stream."""
        ...

    def empty(self, name: str, count: int) -> OnDevice:
        """Make an array for ``count`` samples of a field."""
        ...

    def address(self, array: OnDevice) -> int:
        """Return where an array begins."""
        ...


class Flight:
    """Work in flight, and what to do when each piece of it is done. Thread-safe."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Event, Callable[[], object]]] = deque()
        self._thread: threading.Thread | None = None

    def add(self, event: Event, done: Callable[[], object]) -> None:
        """Call ``done`` once the event has been passed."""
        with self._lock:
            self._waiting.append((event, done))
            if self._thread is None:
                self._thread = start_own_thread("ndfeed-flight", self._look)

    def settle(self, most: int | None = None) -> None:
        """Release what is done; with ``most``, wait until at most that many are in flight."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                event, done = self._waiting[0]
                wait = most is not None and len(self._waiting) > most
                if not (wait or event.passed()):
                    return
                self._waiting.popleft()
            with contextlib.suppress(RuntimeError):  # a device that failed does nothing more
                event.wait()
            done()

    def _look(self) -> None:
        try:
            self._driver.use()
        except RuntimeError:  # it is tried again with the next work
            with self._lock:
                self._thread = None
            return
        quiet = 0
        while True:
            time.sleep(_EVERY)
            self.settle()
            with self._lock:
                quiet = 0 if self._waiting else quiet + 1
                if quiet > _LOOKS:
                    self._thread = None
                    return


class Side:
    """A stream beside the consumer's, a framework's memory, and what is in flight."""

    def __init__(self, driver: Driver, stream: Stream, memory: Memory) -> None:
        self.driver = driver
        self.stream = stream
        self.memory = memory
        self.flight = Flight(driver)
        self._local = threading.local()
        self._awaited: tuple[int, Recorded] | None = None

    def join(self) -> None:
        """Prepare this thread, which does nothing else, for work on the stream."""
        if not hasattr(self._local, "joined"):
            self.driver.use()
            self.memory.join()
            self.record()  # a batch without samples is work, too
            self._local.joined = True

    def record(self) -> Event:
        """Record an event after the work so far, as the last one of this thread."""
        self._local.event = event = self.stream.record()
        return event

    @property
    def event(self) -> Recorded:
        """Recorded after the last work of this thread, or that it left to another."""
        found: Recorded = self._local.event
        return found

    @event.setter
    def event(self, event: Recorded) -> None:
        self._local.event = event

    def let_wait(self, stream: int, event: Recorded) -> None:
        """Let the stream of a consumer wait for an event; small batches share one."""
        if self._awaited != (stream, event):
            with self.driver.context():
                self.stream.other(stream).wait_for(resolve(event))
            self._awaited = stream, event
