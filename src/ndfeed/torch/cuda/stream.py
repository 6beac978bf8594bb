"""Work on a stream of its own, and how it is handed to the consumer's.

Tensors made on one stream and used on another need two things: the consumer's stream waits for
the event behind the work, and the allocator is told that the memory is in use there, or it
would give it away while the consumer's kernels still read.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ndfeed.torch.cuda.flight import Flight


class Sent(NamedTuple):
    """A batch on its way to the GPU."""

    made: Any
    event: torch.cuda.Event | None


class Side:
    """A stream beside the consumer's, for all threads: a bus serves one after the other anyway."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flight = Flight()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._local = threading.local()

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
        if self.event is not None:
            self.flight.add(self.event, [held].clear)

    @property
    def event(self) -> torch.cuda.Event | None:
        """Behind what this thread did last."""
        found: torch.cuda.Event | None = getattr(self._local, "event", None)
        return found

    def receive(self, sent: Sent) -> Any:  # noqa: ANN401
        """The batch, safe to use on the stream that is current now."""
        stream = torch.cuda.current_stream(self.device)
        if sent.event is not None:
            stream.wait_event(sent.event)
        made = sent.made
        for value in made.values() if isinstance(made, dict) else made:
            if isinstance(value, torch.Tensor) and value.is_cuda:
                value.record_stream(stream)
        return made
