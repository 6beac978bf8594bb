"""A thread that sends host memory to the device.

One thread sends for all, since many threads that call the driver would spend most of their time
waiting for the GIL. It also notices when a copy is done, and releases what was copied at once: the
fewer buffers are in use, the more of them stay in the processor's cache, and what the device reads
from there does not pass through main memory.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import NamedTuple

from ndfeed.cuda.driver import Event
from ndfeed.cuda.side import Side
from ndfeed.loading.uninterrupted import start_own_thread

_LOOK_EVERY = 0.0005  # seconds, for copies that are done


class Copy(NamedTuple):
    """Bytes of host memory, and where they go on the device."""

    target: int
    source: int
    size: int


class _Job(NamedTuple):
    copies: Sequence[Copy]
    done: Callable[[], object]  # called when they are copied
    sent: "Future[Event]"  # given the event after the last of several, or what went wrong
    last: bool


class Sender:
    """Sends in the order in which it is asked to. Thread-safe.

    The thread ends with ``close``, and is started again when there is more to send.
    """

    def __init__(self, side: Side) -> None:
        self._side = side
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # the thread's own
        self._lock = threading.Lock()

    def send(
        self,
        copies: Sequence[Copy],
        done: Callable[[], object],
        sent: "Future[Event]",
        *,
        last: bool = True,
    ) -> None:
        """Have bytes copied; ``done`` is called when they are, and ``sent`` gets the event.

        It gets that of the ``last`` of several. Until ``done`` is called, whoever asks keeps the
        memory at both ends: a copy that waits its turn would write to what is another's by then.
        """
        with self._lock:
            if self._thread is None:
                self._jobs = SimpleQueue()
                self._thread = start_own_thread("ndfeed-sender", self._run, self._jobs)
            self._jobs.put(_Job(copies, done, sent, last))

    def _run(self, jobs: "SimpleQueue[_Job | None]") -> None:
        in_flight: deque[tuple[Event | None, Callable[[], object]]] = deque()
        ended = False
        while in_flight or not ended:
            with contextlib.suppress(Empty):
                job = jobs.get(timeout=_LOOK_EVERY if in_flight else None)
                ended = ended or job is None
                if job is not None:
                    in_flight.append((self._issue(job), job.done))
                    del job  # its memory must not be kept while this thread waits
            while in_flight and ((event := in_flight[0][0]) is None or event.passed()):
                in_flight.popleft()[1]()

    def _issue(self, job: _Job) -> Event | None:
        """Start the copies, and tell who waits for it."""
        stream, sent = self._side.stream, job.sent
        try:
            self._side.driver.use()
            for copy in job.copies:
                stream.copy(*copy)
            event = stream.record()
        except RuntimeError as error:
            self._side.driver.synchronize()  # some of the copies may have begun
            if not sent.done():
                sent.set_exception(error)
            return None
        if job.last and not sent.done():
            sent.set_result(event)
        return event

    def close(self) -> None:
        """Wait for what is in flight, and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._jobs.put(None)
        if thread is not None:
            thread.join()
