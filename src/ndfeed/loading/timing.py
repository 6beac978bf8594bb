"""How one thread spent its time, and how much it produced."""

import time
from dataclasses import dataclass, fields

from ndfeed.dataset.read_timing import spent
from ndfeed.files import platform_calls


@dataclass(slots=True)
class Timing:
    """Seconds by stage, and counts. Written by one thread, read by any."""

    order: float = 0.0  # working out which rows come
    ahead: float = 0.0  # prefetching them
    read: float = 0.0  # reading from files
    inflate: float = 0.0  # decoding
    copy: float = 0.0  # from mapped files and decoded streams into the batch
    transform: float = 0.0  # the functions given to map, and collating ragged fields
    idle: float = 0.0  # waiting for the consumer, or for work
    batches: int = 0
    rows: int = 0
    nbytes: int = 0
    streams: int = 0  # decoded whole, to be kept
    prefetched: int = 0  # bytes prefetched
    tokens: int = 0  # lengths of samples in padded batches, with their padding
    padding: int = 0  # of those, what is padding

    def __add__(self, other: "Timing") -> "Timing":
        names = [field.name for field in fields(Timing)]
        return Timing(*(getattr(self, name) + getattr(other, name) for name in names))

    def __sub__(self, other: "Timing") -> "Timing":
        names = [field.name for field in fields(Timing)]
        return Timing(*(getattr(self, name) - getattr(other, name) for name in names))

    def stages(self) -> tuple[float, ...]:
        """Return the seconds of what a worker process does, for ``add_stages``."""
        return self.read, self.inflate, self.copy, self.transform

    def add_stages(self, spent: tuple[float, ...]) -> None:
        """Add what a worker process has spent."""
        self.read += spent[0]
        self.inflate += spent[1]
        self.copy += spent[2]
        self.transform += spent[3]

    def reading(self) -> "_Reading":
        """Time a block as reading, inflating, and copying for the rest."""
        return _Reading(self)


class _Reading:
    """A class, not a generator: it is entered for every batch."""

    __slots__ = ("_began", "_inflate", "_read", "_streams", "_timing")

    def __init__(self, timing: Timing) -> None:
        self._timing = timing

    def __enter__(self) -> None:
        now = spent
        self._read, self._inflate = now.read, now.inflate
        self._streams = now.streams
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        timing, now = self._timing, spent
        read, inflate = now.read - self._read, now.inflate - self._inflate
        timing.copy += time.perf_counter() - self._began - read - inflate
        timing.read += read
        timing.inflate += inflate
        timing.streams += now.streams - self._streams


class Padding:
    """The padding of a pass: noted as batches are made, counted as they are delivered.

    Batches that were prefetched and not delivered, or belong to the next epoch, do not count.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[int, int]] = {}  # by the number of the batch
        self._counted = self._tokens = self._padding = 0

    def note(self, number: int, tokens: int, padding: int) -> None:
        """Note the lengths of the samples of a batch, padded, and how much of it is padding."""
        self._made[number] = tokens, padding

    def count(self, delivered: int) -> tuple[int, int]:
        """Return the tokens of the first ``delivered`` batches, and how many are padding.

        ``delivered`` must not decrease from call to call.
        """
        if self._made:
            for number in range(self._counted, delivered):
                tokens, padding = self._made.pop(number, (0, 0))
                self._tokens += tokens
                self._padding += padding
            self._counted = max(self._counted, delivered)
        return self._tokens, self._padding


class Disk:
    """What this process has read from disks, and its highest rate."""

    def __init__(self) -> None:
        self.peak = 0.0
        self._first = self._last = platform_calls.disk_bytes()
        self._at = time.perf_counter()

    @property
    def since(self) -> int | None:
        """Bytes since the start."""
        now = platform_calls.disk_bytes()
        return None if now is None or self._first is None else now - self._first

    def look(self) -> None:
        """Note the rate since the last call."""
        now, found = time.perf_counter(), platform_calls.disk_bytes()
        if found is not None and self._last is not None and now > self._at:
            self.peak = max(self.peak, (found - self._last) / (now - self._at))
        self._at, self._last = now, found
