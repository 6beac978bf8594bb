"""Work on a CUDA stream of its own, and what the GPU still reads.

What the GPU still reads: kept until it is done.

Copies go on after the call that asked for them. What they read must stay as it is until then:
buffers that would be used again, and files that a writer waits for. So whoever asks for a copy
hands over what is to be let go, with an event behind the copy; it is let go by whoever asks for
the next copy, or by a thread that looks every few milliseconds while anything is under way.

Work on a stream of its own, and how it is handed to the consumer's.

Tensors made on one stream and used on another need two things: the consumer's stream waits for
the event behind the work, and the allocator is told that the memory is in use there, or it
would give it away while the consumer's kernels still read.
"""

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

_EVERY = 0.005  # seconds


class Flight:
    """Copies under way, and what to do when each has ended. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[torch.cuda.Event, Callable[[], None]]] = deque()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def add(self, event: torch.cuda.Event, done: Callable[[], None]) -> None:
        """Call ``done`` once the event has come to pass."""
        with self._lock:
            self._waiting.append((event, done))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="ndfeed-flight", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def settle(self, most: int | None = None) -> None:
        """Let go of what is done; wait until at most ``most`` are under way."""
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


# Behind work on a stream; or somebody else's promise of one.
Event = torch.cuda.Event | Future[torch.cuda.Event]


def settled(event: Event) -> torch.cuda.Event:
    """The event, once it is there."""
    return event.result() if isinstance(event, Future) else event


class Sent(NamedTuple):
    """A batch on its way to the GPU."""

    made: Any
    event: Event


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all loaders: memory that one of them gave back is then another's at once."""
    made: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return made


class Side:
    """A stream beside the consumer's, for all threads: a bus serves one after the other anyway."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flight = Flight()
        self._stream = _stream(device)
        self._local = threading.local()
        self._awaited: tuple[torch.cuda.Stream, Event] | None = None

    def join(self) -> torch.cuda.Stream:
        """Put all work of this thread on the stream: for threads that serve nobody else."""
        if not hasattr(self._local, "joined"):
            torch.cuda.set_device(self.device)
            torch.cuda.set_stream(self._stream)
            torch.cuda.mem_get_info(self.device)  # as in ``work``
            self._local.joined = True
        return self._stream

    @contextmanager
    def work(self) -> Iterator[torch.cuda.Stream]:
        """Everything within is put on the stream; ``event`` is then behind it."""
        if not hasattr(self._local, "event"):
            # Asked for its memory, the device's context becomes this thread's: calls of the
            # driver need one.
            torch.cuda.mem_get_info(self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield self._stream
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(self._stream)
            self._local.event = event

    def keep(self, held: object) -> None:
        """Keep something until what this thread did last is done."""
        self.flight.add(settled(self.event), [held].clear)

    @property
    def event(self) -> Event:
        """Behind what this thread did last, or had another do."""
        found: Event = self._local.event
        return found

    @event.setter
    def event(self, event: Event) -> None:
        self._local.event = event

    def receive(self, sent: Sent) -> Any:  # noqa: ANN401
        """The batch, safe to use on the stream that is current now."""
        stream = torch.cuda.current_stream(self.device)
        if self._awaited != (stream, sent.event):  # small batches share one
            stream.wait_event(settled(sent.event))
            self._awaited = stream, sent.event
        made = sent.made
        for value in made.values():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                value.record_stream(stream)
        return made
