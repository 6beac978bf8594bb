"""Copies to the GPU: on a stream of their own, through pinned memory, and when each has ended.

Copies end some time after the call that started them. Until then, what they read must not change:
buffers that would be used again, and files that a writer waits for. So whoever starts a copy hands
over what is to be released, with an event recorded after the copy. It is released by whoever starts
the next copy, or by a thread that looks every few milliseconds while copies are in flight.

Tensors made on one stream and used on another need two things: the consumer's stream waits for the
event, and the allocator is told that the memory is in use there. Otherwise it would give the memory
away while kernels of the consumer still read it.

Rows go through pinned memory that stays in the processor's cache. Threads gather them into pieces
of some megabytes. One thread sends the pieces, since many threads that call the driver would spend
most of their time waiting for the GIL. A piece is used again as soon as it was copied, and there
are few. If the cache holds them all, main memory is only read, for the rows: neither what is
written to a piece nor what the device reads from it passes through it.
"""

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ndfeed.dataset.column import columns_of
from ndfeed.dataset.map_steps import Batch
from ndfeed.loading.host_source import HostSource
from ndfeed.order.permutation import Ints
from ndfeed.torch.batch_format import BatchFormat, Tensors
from ndfeed.torch.cuda.driver import Driver, Mark

_EVERY = 0.005  # seconds between two looks at copies in flight
_PIECE = 20 << 20  # bytes that are sent at a time: with fewer, threads wait for the GIL
_LOOK_EVERY = 0.0005  # seconds, for pieces that were copied
_ALL = 320 << 20  # bytes of pieces that are being filled or sent
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


class _Copy(NamedTuple):
    """Bytes of one field."""

    target: int
    source: int
    size: int


class _Job(NamedTuple):
    """A piece to be sent, and a future for the event after the last piece of a batch."""

    copies: list[_Copy]
    batch: Batch  # kept until it was copied
    sent: "Future[torch.cuda.Event]"
    last: bool


class Pieces:
    """Reads rows into pinned memory with another source, and sends them piece by piece.

    A dataset as large as the device takes no more pinned memory than a few pieces. The thread that
    sends ends with ``close``, and is started again when there is more to send.
    """

    def __init__(self, host: HostSource, form: BatchFormat, side: Side) -> None:
        self._host = host
        self._side = side
        self._driver = Driver()
        ds = host.ds
        row = max(ds.nbytes // max(len(ds), 1), 1)
        self._at_once = max(_PIECE // row, 1)
        self._count = max(_ALL // max(_PIECE, row), 2)
        self._room: SimpleQueue[None] = SimpleQueue()  # an entry for every piece not in use
        for _ in range(self._count):
            self._room.put(None)
        fields = {c.field.name: c.field for c in columns_of(ds.groups)}
        self._fields = [(name, fields[name].lengths, form.dtypes[name]) for name in ds.names]
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # the thread's own
        self._lock = threading.Lock()

    def read(self, rows: Ints) -> Batch:
        """Return the fields of ``rows`` on the device; for threads of the loader only."""
        self._side.join()
        made = self._empty(len(rows))
        self._side.event = self._send(rows, {name: made[name].data_ptr() for name in made})
        return made

    def load(self, threads: int) -> dict[str, torch.Tensor]:
        """Return the fields of all rows on the device."""
        count = len(self._host.ds)
        with self._side.work():
            made = self._empty(count)
        step = max(-(-count // (4 * threads)), self._at_once)

        def send(start: int) -> Future[torch.cuda.Event]:
            rows = np.arange(start, min(start + step, count))
            return self._send(rows, {name: made[name][start:].data_ptr() for name in made})

        with ThreadPoolExecutor(threads) as pool:
            for sent in list(pool.map(send, range(0, count, step))):
                sent.result().synchronize()
        return made

    def _empty(self, count: int) -> dict[str, torch.Tensor]:
        return {
            name: torch.empty((count, *shape), dtype=dtype, device=self._side.device)
            for name, shape, dtype in self._fields
        }

    def _send(self, rows: Ints, targets: dict[str, int]) -> Future[torch.cuda.Event]:
        """Let the fields of ``rows`` be copied to addresses of the device."""
        count = len(rows)
        step = -(-count // -(-count // self._at_once))  # pieces of about one size
        sent: Future[torch.cuda.Event] = Future()
        for start in range(0, count, step):
            self._room.get()
            try:
                batch = self._host.read(rows[start : start + step])
            except BaseException:
                self._room.put(None)
                raise
            copies = []
            for name, target in targets.items():
                address, size = _memory(batch[name])
                if size:
                    copies.append(_Copy(target, address, size))
                targets[name] = target + size
            self._hand_over(_Job(copies, batch, sent, start + step >= count))
            del batch
        return sent  # after all pieces, since they are sent in order

    def _hand_over(self, job: _Job) -> None:
        with self._lock:
            if self._thread is None:
                self._jobs = SimpleQueue()
                self._thread = threading.Thread(
                    target=self._run, args=(self._jobs,), name="ndfeed-sender", daemon=True
                )
                self._thread.start()
            self._jobs.put(job)

    def _run(self, jobs: "SimpleQueue[_Job | None]") -> None:
        stream = self._side.join()
        idle = [Mark(self._driver) for _ in range(self._count)]
        in_flight: deque[tuple[Mark, _Job]] = deque()
        ended = False
        while in_flight or not ended:
            with contextlib.suppress(Empty):
                job = jobs.get(timeout=_LOOK_EVERY if in_flight else None)
                ended = ended or job is None
                if job is not None:
                    in_flight.append((idle.pop(), job))
                    _issue(self._driver, *in_flight[-1], stream)
                    del job  # its memory must not be kept while this thread waits
            while in_flight and in_flight[0][0].passed():
                mark, done = in_flight.popleft()
                done.batch.clear()  # the memory goes back before there is room
                idle.append(mark)
                self._room.put(None)

    def close(self) -> None:
        """Wait for what is in flight, and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._jobs.put(None)
        if thread is not None:
            thread.join()


def _memory(values: NDArray[Any]) -> tuple[int, int]:
    """Return the address of an array and its size in bytes."""
    return values.__array_interface__["data"][0], values.nbytes


def _issue(driver: Driver, mark: Mark, job: _Job, stream: torch.cuda.Stream) -> None:
    """Start the copies of a piece; complete its future if it is the last of a batch."""
    try:
        for target, source, size in job.copies:
            driver.copy(target, source, size, stream.cuda_stream)
        mark.record(stream.cuda_stream)
        event = stream.record_event() if job.last else None
    except RuntimeError as error:
        if not job.sent.done():
            job.sent.set_exception(error)
    else:
        if event is not None and not job.sent.done():
            job.sent.set_result(event)
