"""What the GPU still reads: kept until it is done.

Copies go on after the call that asked for them. What they read must stay as it is until then:
buffers that would be used again, and files that a writer waits for. So whoever asks for a copy
hands over what is to be let go, with an event behind the copy; it is let go by whoever asks for
the next copy, or by a thread that looks every few milliseconds while anything is under way.
"""

import threading
from collections import deque
from collections.abc import Callable

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
