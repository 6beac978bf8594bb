"""Copies on a CUDA stream of their own, and what the GPU still reads.

Copies end some time after the call that started them. Until then, what they read must not change:
buffers that would be used again, and files that a writer waits for. So whoever starts a copy hands
over what is to be released, with an event recorded after the copy. It is released by whoever starts
the next copy, or by a thread that looks every few milliseconds while copies are in flight.

Tensors made on one stream and used on another need two things: the consumer's stream waits for the
event, and the allocator is told that the memory is in use there. Otherwise it would give the memory
away while kernels of the consumer still read it.
"""

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ndfeed.torch.batch_format import Tensors

_EVERY = 0.005  # seconds between two looks at copies in flight
# Typed here, since torch has no types for their constructors.
_make_event: Callable[..., torch.cuda.Event] = torch.cuda.Event
_make_stream: Callable[..., torch.cuda.Stream] = torch.cuda.Stream


class Flight:
    """Copies in flight, and what to do when each has ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[torch.cuda.Event, Callable[[], None]]] = deque()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def add(self, event: torch.cuda.Event, done: Callable[[], None]) -> None:
        """Call ``done`` once the event has been reached."""
        with self._lock:
            self._waiting.append((event, done))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="ndfeed-flight", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def settle(self, most: int | None = None) -> None:
        """Release what is done; with ``most``, wait until at most that many are in flight."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                event, done = self._waiting[0]
                wait = most is not None and len(self._waiting) > most
                if not (wait or event.query()):  # type: ignore[no-untyped-call]
                    return
                self._waiting.popleft()
            event.synchronize()
            done()

    def _look(self) -> None:
        while True:
            self.settle()
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
            self._wake.clear()
            self._wake.wait(_EVERY)


# Recorded after work on a stream; or a future, if another thread will record it.
Event = torch.cuda.Event | Future[torch.cuda.Event]


def resolve(event: Event) -> torch.cuda.Event:
    """Return the event, once it has been recorded."""
    return event.result() if isinstance(event, Future) else event


class Sent(NamedTuple):
    """A batch on its way to the GPU."""

    made: Tensors
    event: Event


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return one stream for all loaders, which can then use each other's memory at once."""
    return _make_stream(device)


class Side:
    """A stream beside the consumer's, for all threads: the bus serves one copy at a time anyway."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flight = Flight()
        self._stream = _stream(device)
        self._local = threading.local()
        self._awaited: tuple[torch.cuda.Stream, Event] | None = None

    def join(self) -> torch.cuda.Stream:
        """Put all work of this thread on the stream, for threads that do nothing else."""
        if not hasattr(self._local, "joined"):
            torch.cuda.set_device(self.device)
            torch.cuda.set_stream(self._stream)
            torch.cuda.mem_get_info(self.device)  # as in ``work``
            self._local.joined = True
        return self._stream

    @contextmanager
    def work(self) -> Iterator[torch.cuda.Stream]:
        """Put everything within on the stream; ``event`` is then recorded after it."""
        if not hasattr(self._local, "event"):
            # This call makes the device's context current in this thread, which driver calls need.
            torch.cuda.mem_get_info(self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield self._stream
            event = _make_event(blocking=True)
            event.record(self._stream)
            self._local.event = event

    def keep(self, held: object) -> None:
        """Keep an object until the last work of this thread is done."""
        self.flight.add(resolve(self.event), [held].clear)

    @property
    def event(self) -> Event:
        """Recorded after the last work of this thread, or that it left to another."""
        found: Event = self._local.event
        return found

    @event.setter
    def event(self, event: Event) -> None:
        self._local.event = event

    def receive(self, sent: Sent) -> Tensors:
        """Return the tensors, safe to use on the stream that is current now."""
        stream = torch.cuda.current_stream(self.device)
        if self._awaited != (stream, sent.event):  # small batches share one
            stream.wait_event(resolve(sent.event))
            self._awaited = stream, sent.event
        made = sent.made
        for value in made.values():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                value.record_stream(stream)
        return made
