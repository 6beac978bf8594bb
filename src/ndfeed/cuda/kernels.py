"""Kernels: rows gathered from any places, and the order worked out.

Few blocks keep the bus full, and leave nearly all multiprocessors to training. Row numbers get to
the device through pinned memory, which is used again afterwards.
"""

import ctypes
import sys
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.cuda.driver import Driver, Event, Refused, Stream, is_ours
from ndfeed.cuda.side import Side
from ndfeed.order.permutation import Ints, Scheme

# Blocks and threads that keep the bus full: of smaller words more have to be under way.
_SHAPES = {"gather_16": (16, 512), "gather_8": (16, 1024), "gather_any": (32, 1024)}
_WIDEST, _NARROWEST = 16, 8  # bytes of a word
_LEAST = 1 << 12  # numbers that there is always room for
_MANY = 1 << 15  # positions from which on the device works an order out faster


class Found(NamedTuple):
    """Where rows lie: row i at ``base + numbers[i] * pitch``, all multiples of ``word`` bytes."""

    numbers: int  # the address of numbers on the device
    base: int
    pitch: int
    word: int


def gather(stream: Stream, found: Found, target: int, count: int, size: int) -> None:
    """Copy ``size`` bytes of each row, rows one behind the other, to ``target``."""
    numbers, base, pitch, word = found
    name = f"gather_{word}" if word >= _NARROWEST else "gather_any"
    stream.launch(name, *_SHAPES[name], numbers, base, pitch, target, count, size)


class Upload:
    """Pinned memory, and as much of the device's, for some numbers.

    It is closed by who used it last; or, after an error on the way, when nobody refers to it.
    """

    def __init__(self, driver: Driver, room: int) -> None:
        self.room = room
        self._driver = driver
        self._open = False
        self._host = driver.allocate_pinned(8 * room)
        try:
            self.device = driver.allocate(8 * room)
        except BaseException:
            driver.free_pinned(self._host)
            raise
        self._open = True
        kind = ctypes.c_int64 * room
        self.numbers: Ints = np.ctypeslib.as_array(kind.from_address(self._host))

    def send(self, numbers: Ints, stream: Stream) -> None:
        """Copy numbers to the device."""
        self.numbers[: len(numbers)] = numbers
        stream.copy(self.device, self._host, 8 * len(numbers))

    def pass_on(self, values: NDArray[Any], target: int, stream: Stream) -> None:
        """Copy any values to another address of the device."""
        size = values.nbytes
        self.numbers.view(np.uint8)[:size] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        stream.copy(target, self._host, size)

    def fetch(self, count: int, stream: Stream) -> None:
        """Copy numbers back from the device."""
        stream.copy_back(self._host, self.device, 8 * count)

    def close(self) -> None:
        """Free the memory, which nothing uses any more."""
        self._open = False
        self._driver.free_pinned(self._host)
        self._driver.free(self.device)

    def __del__(self) -> None:
        # Not at exit, when copies may still read it.
        if self._open and is_ours(self._driver) and not sys.is_finalizing():
            with suppress(RuntimeError), self._driver.context():
                self._driver.synchronize()
                self.close()


class Uploads:
    """Memory for numbers on their way to the device, used again. Thread-safe."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._idle: deque[Upload] = deque()

    def take(self, count: int) -> Upload:
        """Return memory for so many numbers."""
        try:
            found = self._idle.pop()
        except IndexError:
            found = None
        if found is not None and found.room >= count:
            return found
        if found is not None:
            found.close()
        room = max(_LEAST, 1 << max(count - 1, 0).bit_length())
        return Upload(self._side.driver, room)

    def send(self, numbers: Ints) -> Upload:
        """Copy numbers to the device."""
        made = self.take(len(numbers))
        made.send(numbers, self._side.stream)
        return made

    def pass_on(self, values: NDArray[Any], target: int) -> Upload:
        """Copy values of any kind to an address of the device."""
        made = self.take(-(-values.nbytes // 8))
        made.pass_on(values, target, self._side.stream)
        return made

    def release(self, some: list[Upload], event: Event) -> None:
        """Use memory again after an event."""
        for one in some:
            self._side.flight.add(event, partial(self._idle.append, one))

    def close(self) -> None:
        """Free what is not in use."""
        while self._idle:
            self._idle.pop().close()


class Places:
    """Where rows of mapped files lie, for the host and for the device."""

    def __init__(self, uploads: Uploads, base: Ints | int, row: Ints) -> None:
        self.row = row
        self._uploads = uploads
        self._base = base  # a number where there is one file
        self._rows: Upload | None = None
        self._used: list[Upload] = []

    def on_host(self, pitch: int, first: Ints | int) -> tuple[Ints, Ints]:
        """Return where each row starts in its file, and its address."""
        at = self.row * pitch + first
        return at, at + self._base

    def on_device(self, size: int, pitch: int, first: Ints | int) -> Found:
        """Return where the rows lie, for a kernel."""
        base = self._base + first
        word = find_word(base, size | pitch)
        if np.ndim(base):
            return Found(self._send(self.row * pitch + base).device, 0, 1, word)
        if self._rows is None:  # one base for all rows: the device computes the addresses
            self._rows = self._send(self.row)
        return Found(self._rows.device, int(base), pitch, word)

    def of_stretches(self, start: Ints, size: int) -> Found:
        """Return where stretches lie that start at some places of the files of these rows."""
        address = (start + np.reshape(self._base, (-1, 1))).reshape(-1)
        return Found(self._send(address).device, 0, 1, find_word(address, size))

    def _send(self, numbers: Ints) -> Upload:
        made = self._uploads.send(numbers)
        self._used.append(made)
        return made

    def release(self, event: Event) -> None:
        """Give up the memory for numbers, once an event is passed."""
        self._uploads.release(self._used, event)


def find_word(address: Ints | int, sizes: int) -> int:
    """Return the bytes of the widest word that addresses and sizes are multiples of."""
    odd = int(np.bitwise_or.reduce(address, axis=None)) | sizes
    return min(odd & -odd, _WIDEST)


class Orders:
    """Works large parts of an order out on the device, on a stream of its own. Thread-safe."""

    def __init__(self, driver: Driver, many: int = _MANY) -> None:
        self._driver = driver
        self._many = many
        self._idle: deque[tuple[Stream, Upload, Upload]] = deque()
        self.refused = False

    def permute(self, positions: Ints, scheme: Scheme) -> Ints | None:
        """Return where each of ``positions`` goes; ``None`` where that is not worth it."""
        count = len(positions)
        if self.refused or count < self._many:
            return None
        try:
            self._driver.use()
            stream, upload, factors = self._take(count)
            factors.send(np.array(scheme.factors, np.uint64).view(np.int64), stream)
            upload.send(positions, stream)
            stream.launch(
                f"permute_{scheme.bits}", 64, 512, upload.device, count, scheme.n,
                scheme.low, scheme.high, scheme.key, scheme.step, factors.device,
                len(scheme.factors),
            )  # fmt: skip
            upload.fetch(count, stream)
            stream.record().wait()
        except (Refused, RuntimeError):
            self.refused = True
            return None
        found = upload.numbers[:count].copy()
        self._idle.append((stream, upload, factors))
        return found

    def _take(self, count: int) -> tuple[Stream, Upload, Upload]:
        try:
            stream, upload, factors = self._idle.pop()
        except IndexError:
            upload, factors = Upload(self._driver, count), Upload(self._driver, 64)
            return self._driver.make_stream(), upload, factors
        if upload.room < count:
            upload.close()
            upload = Upload(self._driver, count)
        return stream, upload, factors

    def close(self) -> None:
        """Free the memory."""
        while self._idle:
            stream, upload, factors = self._idle.pop()
            upload.close()
            factors.close()
            self._driver.idle_streams.append(stream)
