"""Stands in for the CUDA driver on machines without a GPU.

Its device memory is memory of this process, and each stream is a thread that does its work in
order, some time after it was asked for: a buffer that is used again too soon gives wrong values
here as it would there. What a real device could not read is an error: memory that is neither
pinned nor registered, memory that was freed, a copy that reaches from one registered piece into the
next.
"""

import ctypes
import os
import threading
import time
import weakref
import zlib
from contextlib import contextmanager, suppress
from queue import SimpleQueue

import numpy as np

from ndfeed.cuda.driver import Refused


class StandInEvent:
    """Passed when its stream has got there."""

    def __init__(self, driver):
        self._driver = driver
        self._reached = threading.Event()
        self.reach = self._reached.set
        self.passed = self._reached.is_set

    def let_pass(self):
        assert self._reached.wait(30)

    def wait(self):
        self.let_pass()
        if self._driver.failed:
            raise RuntimeError("the device has failed")


class StandInStream:
    """Does in another thread what it is asked for."""

    event_kind = StandInEvent

    def __init__(self, driver, handle):
        self.handle = handle
        self._driver = driver
        self._work = SimpleQueue()
        args = self._work, weakref.ref(driver)
        threading.Thread(target=_do_work, args=args, daemon=True).start()
        weakref.finalize(self, self._work.put, None)

    def other(self, handle):
        return self._driver.streams[handle]

    def record(self):
        event = self.event_kind(self._driver)
        self._work.put((event.reach,))
        return event

    def wait_for(self, event):
        self._work.put((event.let_pass,))

    def copy(self, target, source, size):
        if not any(a <= source < a + s for a, s in dict(self._driver.readable).items()):
            # What is not pinned is copied elsewhere before the call returns.
            self._work.put((self._driver.write, target, ctypes.string_at(source, size)))
            return
        self._work.put((self._driver.move, target, source, size))

    def copy_back(self, target, source, size):
        self._work.put((self._driver.move, target, source, size))

    copy_within = copy_back

    def copy_rows(self, target, source, sizes):
        pieces = list(zip(target.tolist(), source.tolist(), sizes.tolist(), strict=True))
        self._work.put((self._copy_rows, pieces))

    def _copy_rows(self, pieces):
        for piece in pieces:
            self._driver.move(*piece)

    def launch(self, name, blocks, threads, *arguments):
        kind, word = name.replace("any", "1").split("_")
        self._work.put((getattr(self, f"_{kind}"), int(word), *arguments))

    def _gather(self, word, numbers, base, pitch, target, count, size):
        for value in (base, pitch, target, size) if base else (target, size):
            assert value % word == 0 or count <= 1, f"{value} is no multiple of {word}"
        for at, number in enumerate(self._numbers(numbers, count).tolist()):
            self._driver.move(target + at * size, base + number * pitch, size, joined=True)

    def _permute(self, bits, rows, count, n, low, high, key, step, factors, rounds):
        found, mask, half = self._numbers(rows, count), (1 << bits) - 1, bits // 2
        factors = self._numbers(factors, rounds).view(np.uint64).tolist()
        for at, position in enumerate(found.tolist()):
            while True:
                big, small, now = position >> low, position & (1 << low) - 1, key
                for r, factor in enumerate(factors):
                    hashed = ((small if r % 2 else big) * factor + now) & mask
                    hashed = hashed * hashed & mask
                    if r % 2:
                        big = (big + ((hashed >> half) * high & mask) // (1 << half)) % high
                    else:
                        small = (small + (hashed >> bits - low)) % (1 << low)
                    now = (now * factor + step) & mask
                position = big << low | small
                if position < n:
                    break
            found[at] = position

    def _numbers(self, address, count):
        self._driver.check(address, 8 * count)
        return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))


def _do_work(asked, find_driver):
    """Do what a stream is asked for, until nobody has its driver any more."""
    while (job := asked.get()) is not None:
        driver = find_driver()
        if driver is None:
            return
        driver.local.is_device = True
        if not driver.go.is_set():
            driver.held.set()
            driver.go.wait(30)
        if driver.lag:
            time.sleep(driver.lag)
        work, *args = job
        try:
            work(*args)
        except Exception as error:  # noqa: BLE001 - asserted by the test's own thread
            driver.faults.append(error)
        del driver, job, work, args


class StandInNvcomp:
    """Decodes in the stream's thread. ``spoil`` may change what it finds out about each stream."""

    alignment = 4

    def __init__(self, driver, spoil=lambda found: None):
        self._driver = driver
        self._spoil = spoil
        self.largest = 0  # streams that were decoded at once

    def room(self, streams, stream):
        return 100

    def decode(self, streams, room, stream):
        assert room[1] == 100
        self._driver.streams[stream]._work.put((self._decode, streams, room))

    def compute_checksums(self, streams, stream):
        self._driver.streams[stream]._work.put((self._compute_checksums, streams))

    def _columns(self, streams, *names):
        yield from zip(
            *(self._read(getattr(streams, n), streams.number) for n in names), strict=True
        )

    def _read(self, address, count, kind=ctypes.c_int64):
        self._driver.check(address, ctypes.sizeof(kind) * count)
        return np.ctypeslib.as_array((kind * count).from_address(address))

    def _decode(self, streams, room):
        self._driver.check(*room)
        self.largest = max(self.largest, streams.number)
        found = self._read(streams.found, streams.number)
        statuses = self._read(streams.statuses, streams.number, ctypes.c_uint32)
        columns = self._columns(streams, "sources", "lengths", "targets", "sizes")
        for at, (source, length, target, size) in enumerate(columns):
            assert source % self.alignment == 0
            self._driver.check(int(source), int(length))
            self._driver.check(int(target), int(size))
            statuses[at] = 0
            try:
                decoder = zlib.decompressobj(-15)
                data = decoder.decompress(ctypes.string_at(int(source), int(length)), int(size) + 1)
            except zlib.error:
                data, statuses[at] = b"", 12
            if len(data) > size:
                data, statuses[at] = data[:size], 12
            ctypes.memmove(int(target), data, len(data))
            found[at] = len(data)
        self._spoil({"found": found, "statuses": statuses, "targets": streams.targets})

    def _compute_checksums(self, streams):
        checksums = self._read(streams.checksums, streams.number, ctypes.c_uint32)
        for at, (target, size) in enumerate(self._columns(streams, "targets", "sizes")):
            checksums[at] = zlib.crc32(ctypes.string_at(int(target), int(size)))


class StandIn:
    """The driver. ``lag`` is how long each piece of work takes to begin, in seconds."""

    copies_rows = True
    stream_kind = StandInStream

    def __init__(self, lag=0.0, room=1 << 30):
        self.lag = lag
        self.go = threading.Event()  # while it is not set, nothing begins
        self.go.set()
        self.held = threading.Event()  # something waits for that
        self.room = room  # bytes of device memory
        self.faults = []  # what went wrong on the device
        self.failed = False  # as after an error in a kernel of the consumer: it stays so
        self.readable = {}  # sizes of pinned, registered and device memory by address
        self.streams = {}
        self.idle_streams = []
        self._making = threading.Lock()
        self._kept = {}
        self.process = os.getpid()
        self.local = threading.local()

    def is_device(self):
        """Is this a thread of a stream? It may collect garbage, but must not wait for itself."""
        return hasattr(self.local, "is_device")

    def use(self):
        pass

    @contextmanager
    def context(self):
        if self.process != os.getpid():
            self.faults.append("used by another process")
        yield

    def make_stream(self):
        with self._making:
            if self.idle_streams:
                return self.idle_streams.pop()
            handle = len(self.streams) + 1
            self.streams[handle] = self.stream_kind(self, handle)
        return self.streams[handle]

    def synchronize(self):
        if self.is_device():
            return
        with suppress(RuntimeError):
            for stream in list(self.streams.values()):
                stream.record().wait()

    def allocate(self, size):
        if size > self.room:
            raise Refused("the device has no memory left")
        self.room -= size
        return self.allocate_pinned(size)

    def free(self, address):
        if self.is_device():
            threading.Thread(target=self.free, args=(address,), daemon=True).start()
            return
        self.synchronize()
        self.room += self.readable[address]
        self.free_pinned(address)

    def allocate_pinned(self, size):
        buffer = ctypes.create_string_buffer(size + 256)
        address = -(-ctypes.addressof(buffer) // 256) * 256
        self._kept[address], self.readable[address] = buffer, size
        return address

    def free_pinned(self, address):
        if self.is_device():
            threading.Thread(target=self._free_later, args=(address,), daemon=True).start()
            return
        del self._kept[address], self.readable[address]

    def _free_later(self, address):
        self.synchronize()
        self.free_pinned(address)

    def register(self, address, size, *, read_only=True):
        assert not address % 4096
        if address in self.readable:
            raise Refused("registered already")
        self.readable[address] = size

    def unregister(self, address):
        del self.readable[address]

    @property
    def registered(self):
        return sum(size for address, size in self.readable.items() if address not in self._kept)

    def check(self, address, size, *, joined=False):
        """Is this within one piece of memory, or, if ``joined``, within adjacent ones?"""
        end = address + size
        while True:
            readable = dict(self.readable)  # threads change it meanwhile
            found = [a for a, s in readable.items() if a <= address < a + s]
            assert found, f"{address} can not be read by the device"
            address = found[0] + readable[found[0]]
            if address >= end:
                return
            assert joined, "a copy reaches into another piece"

    def write(self, target, values):
        self.check(target, len(values))
        ctypes.memmove(target, values, len(values))

    def move(self, target, source, size, *, joined=False):
        self.check(source, size, joined=joined)
        self.check(target, size)
        ctypes.memmove(target, source, size)
