"""Deflated files inflated on the device: their bytes are sent as stored, decoded, checked and cut.

The device takes as long for one stream as for a thousand. So small batches are decoded together,
and several groups at once, each in a lane: a stream of the device with memory of its own. The
thread that made a batch waits until its lane is done, and looks at sizes, statuses and checksums
before anybody gets the batch. If anything is wrong with a sample, the batch is read again on the
CPU, which gives the right values or names the file.

nvCOMP promises little about damaged streams. It is told how much room each has; what it may read
outside of a stream, since a stream refers to what lies up to 32 KB before, is memory of the lane.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

import numpy as np

from ndfeed.cuda.driver import Driver, Refused
from ndfeed.cuda.kernels import Found, Upload, find_word, gather
from ndfeed.cuda.nvcomp import Streams
from ndfeed.cuda.pieces import memory_of
from ndfeed.cuda.side import OnDevice, Side
from ndfeed.dataset.coded_streams import ALIGNED
from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch
from ndfeed.dataset.row_selection import select_rows
from ndfeed.loading.batch_builder import Source
from ndfeed.loading.ragged import Room
from ndfeed.order.permutation import Ints

INFLATED = 16 << 20  # bytes of small batches that are worth inflating together
_MOST_LANES = 8
_MOST_BYTES = 2 << 30  # of the batches in all lanes, decoded
_GUARD = 64 << 10  # bytes before and after streams
_TABLE = 7  # numbers for each stream
_LOOK_EVERY = 1.0  # seconds


class Library(Protocol):
    """What decodes on a device. See ``ndfeed.cuda.nvcomp.Nvcomp``."""

    alignment: int

    def room(self, streams: Streams, stream: int) -> int:
        """Return how many bytes of device memory decoding takes besides."""
        ...

    def decode(self, streams: Streams, room: tuple[int, int], stream: int) -> None:
        """Decode streams."""
        ...

    def compute_checksums(self, streams: Streams, stream: int) -> None:
        """Compute the checksums of what was decoded."""
        ...


class _Lane:
    """A stream of the device, with memory for one batch. Used by one thread at a time."""

    def __init__(self, driver: Driver) -> None:
        self.stream = driver.make_stream()
        self._driver = driver
        self._numbers: Upload | None = None
        self._address = self._size = 0

    def memory(self, size: int) -> int:
        """Return the address of so much device memory; what was there before is lost."""
        if size > self._size:
            self._free_memory()
            size += size // 8  # batches differ a little
            self._address = self._driver.allocate(size)
            self._size = size
        return self._address

    def numbers(self, count: int) -> Upload:
        """Return memory for numbers on their way to the device and back."""
        if self._numbers is None or self._numbers.room < count:
            self._free_numbers()
            self._numbers = Upload(self._driver, count)
        return self._numbers

    def finish(self) -> None:
        """Wait until nothing that was started reads or writes memory any more."""
        try:
            self.stream.record().wait()
        except BaseException:
            self._driver.synchronize()
            raise

    def _free_memory(self) -> None:
        if self._size:
            self._driver.free(self._address)
            self._size = 0

    def _free_numbers(self) -> None:
        if self._numbers is not None:
            self._numbers.close()
            self._numbers = None

    def close(self) -> None:
        """Free the memory, which nothing uses any more, and give the stream back."""
        self._free_memory()
        self._free_numbers()
        self._driver.idle_streams.append(self.stream)


class _Placed(NamedTuple):
    """Where the streams of a batch lie and go: positions from where their memory begins."""

    bases: list[int]  # of the compressed bytes, field by field
    sources: Ints
    lengths: Ints
    targets: Ints
    sizes: Ints
    values: Ints  # of the arrays, behind the headers
    checksums: Ints  # negative where there is none
    end: int


class Inflater:
    """Reads batches of compressed bytes as arrays on the device. Thread-safe.

    ``names`` are the fields that come compressed; those in ``kept`` are left as they are, and all
    others are copied. ``host`` reads rows on the CPU where that fails; without it, that is refused.
    """

    def __init__(
        self, ds: Dataset, names: Sequence[str], kept: Sequence[str], side: Side, library: Library
    ) -> None:
        self.host: Source | None = None
        self.failed = 0  # samples that were read on the CPU in the end
        self.refused = ""  # why all of them are
        self._ds = ds
        self._columns = [(g, c) for g in ds.groups for c in g.columns if c.field.name in names]
        self._plain = [n for n in ds.names if n not in names and n not in kept]
        self._kept = kept
        self._side = side
        self._library = library
        self._lanes: SimpleQueue[_Lane] = SimpleQueue()
        self._left = 1  # lanes that may still be made
        self._making = threading.Lock()

    def set_batch(self, nbytes: int) -> None:
        """Say how large batches are, before any is read."""
        self._left = max(min(_MOST_LANES, _MOST_BYTES // max(nbytes, INFLATED)), 1)

    def read(self, made: Batch, rows: Ints) -> Batch:
        """Return a batch on the device, complete; for threads of the loader only."""
        self._side.join()
        made = _collate(made)
        memory = self._side.memory
        names = [name for name in self._ds.names if name not in self._kept]
        there = {name: memory.empty(name, len(rows)) for name in names}
        if len(rows):
            with self._lane() as lane:
                sound = not self.refused and self._inflate(lane, made, rows, there)
            if not sound:
                self._read_on_cpu(rows, there)
        self._side.record()
        return {name: there[name] if name in there else made[name] for name in self._ds.names}

    @contextmanager
    def _lane(self) -> Iterator[_Lane]:
        """Lend a lane, whose work may begin when that of our stream is done so far."""
        lane = self._take()
        try:
            lane.stream.wait_for(self._side.stream.record())
            yield lane
        finally:
            self._lanes.put(lane)

    def _take(self) -> _Lane:
        while True:
            with self._making:
                make = self._left > 0 and self._lanes.empty()
                self._left -= make
            if make:
                try:
                    return _Lane(self._side.driver)
                except BaseException:
                    with self._making:
                        self._left += 1  # or others would wait for it
                    raise
            with suppress(Empty):
                return self._lanes.get(timeout=_LOOK_EVERY)  # they may have been closed

    def _inflate(self, lane: _Lane, made: Batch, rows: Ints, there: dict[str, OnDevice]) -> bool:
        """Fill ``there``; return whether every sample is as it should be."""
        placed = self._place(made, rows)
        try:
            numbers = self._start(lane, placed, made, there)
        except Refused as error:
            self.refused = f"{error}"
            return False
        finally:
            lane.finish()
        count = len(placed.sizes)
        sizes = numbers.numbers[:count]
        statuses, checksums = numbers.numbers[count : 2 * count].view(np.uint32).reshape(2, count)
        known = placed.checksums >= 0
        wrong = (statuses != 0) | (sizes != placed.sizes)
        wrong |= known & (checksums != placed.checksums)
        self.failed += int(wrong.reshape(-1, len(rows)).any(axis=0).sum())
        return not wrong.any()

    def _place(self, made: Batch, rows: Ints) -> _Placed:
        """Find out where streams lie in the compressed bytes, and where they go."""
        samples = select_rows(self._ds.rows, rows)
        at, bases, each = _GUARD, [], []
        for group, column in self._columns:
            name = column.field.name
            each.append((made[f"{name}_offsets"][:-1] + at, *_facts(group, column, samples)))
            bases.append(at)
            at += made[name].nbytes
        sources, lengths, sizes, skips, checksums = (
            np.concatenate(values) for values in zip(*each, strict=True)
        )
        steps = -(-sizes // ALIGNED) * ALIGNED + ALIGNED
        # Arrays begin at multiples, wherever the headers before them begin.
        targets = at + _GUARD + np.cumsum(steps) - steps + -skips % ALIGNED
        end = at + _GUARD + int(steps.sum()) + _GUARD
        return _Placed(bases, sources, lengths, targets, sizes, targets + skips, checksums, end)

    def _start(
        self, lane: _Lane, placed: _Placed, made: Batch, there: dict[str, OnDevice]
    ) -> Upload:
        """Have everything done; return what will have the results then."""
        stream, library, count = lane.stream, self._library, len(placed.sizes)
        numbers = lane.numbers(_TABLE * count)
        found, statuses, sources, lengths, targets, sizes, values = (
            numbers.device + 8 * count * k for k in range(_TABLE)
        )
        largest, total = int(placed.sizes.max()), int(placed.sizes.sum())
        streams = Streams(
            count, largest, total, sources, lengths, targets, sizes, found,
            statuses, statuses + 4 * count,
        )  # fmt: skip
        needed = library.room(streams, stream.handle)
        base = lane.memory(placed.end + needed)
        failed = np.full(2 * count, -1)  # until it is known better
        own = base + np.concatenate([placed.sources, placed.targets, placed.values])
        first, second, third = own.reshape(3, count)
        table = failed, first, placed.lengths, second, placed.sizes, third
        numbers.send(np.concatenate(table), stream)
        for (_, column), at in zip(self._columns, placed.bases, strict=True):
            address, size = memory_of(made[column.field.name])
            stream.copy(base + at, address, size)
        library.decode(streams, (base + placed.end, needed), stream.handle)
        library.compute_checksums(streams, stream.handle)
        numbers.fetch(2 * count, stream)
        self._cut(lane, values, third, there)
        self._copy(lane, {name: made[name] for name in self._plain}, there)
        return numbers

    def _cut(self, lane: _Lane, numbers: int, values: Ints, there: dict[str, OnDevice]) -> None:
        """Copy arrays without their headers to where they belong."""
        count = len(values) // len(self._columns)
        for k, (_, column) in enumerate(self._columns):
            size = column.field.nbytes or 0
            if size:
                word = find_word(values[k * count : (k + 1) * count], size)
                found = Found(numbers + 8 * count * k, 0, 1, word)
                target = self._side.memory.address(there[column.field.name])
                gather(lane.stream, found, target, count, size)

    def _copy(self, lane: _Lane, batch: Batch, there: dict[str, OnDevice]) -> None:
        for name, values in batch.items():
            address, size = memory_of(values)
            if size:
                lane.stream.copy(self._side.memory.address(there[name]), address, size)

    def _read_on_cpu(self, rows: Ints, there: dict[str, OnDevice]) -> None:
        if self.host is None:
            raise Refused(self.refused or "nvCOMP cannot decode some of the files")
        batch = self.host.read(rows)
        with self._lane() as lane:
            try:
                self._copy(lane, {name: batch[name] for name in there}, there)
            finally:
                lane.finish()

    def describe(self, device: str) -> str:
        """Say where samples are inflated."""
        if self.refused:
            return f"inflated on the CPU for {device}, since {self.refused}"
        failed = f", {self.failed:,} samples on the CPU" if self.failed else ""
        return f"inflated on {device} by nvCOMP{failed}"

    def close(self) -> None:
        """Free the memory of lanes that are not in use."""
        with self._side.driver.context():
            while True:
                try:
                    lane = self._lanes.get_nowait()
                except Empty:
                    return
                lane.close()
                with self._making:
                    self._left += 1


def _collate(batch: Batch) -> Batch:
    """Return a batch with the fields that were read into their form just now."""
    made: Batch = {}
    for name, values in batch.items():
        made |= values.batch if isinstance(values, Room) else {name: values}
    return made


def _facts(group: Group, column: Column, samples: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return how long streams are, how large decoded, where arrays begin in them, and checksums."""
    table, arrays = column.table, column.arrays[group.locate(samples).part]
    return table.length[arrays], table.decoded[arrays], table.skip[arrays], table.crc[arrays]
