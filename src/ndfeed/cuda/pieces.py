"""Rows sent to the device through pinned memory that stays in the processor's cache.

Threads gather rows into pieces of some megabytes. A piece is used again as soon as it was copied,
and there are few. If the cache holds them all, main memory is only read, for the rows: neither what
is written to a piece nor what the device reads from it passes through it.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.cuda.driver import Event
from ndfeed.cuda.sender import Copy, Sender
from ndfeed.cuda.side import OnDevice, Side
from ndfeed.dataset.map_steps import Batch
from ndfeed.loading.batch_builder import Source
from ndfeed.loading.host_source import HostSource
from ndfeed.order.permutation import Ints

_PIECE = 20 << 20  # bytes that are sent at a time: with fewer, threads wait for the GIL
_ALL = 320 << 20  # bytes of pieces that are being filled or sent


class Pieces(Source):
    """Reads rows into pinned memory with another source, and sends them piece by piece.

    A dataset as large as the device takes no more pinned memory than a few pieces.
    """

    def __init__(self, host: HostSource, side: Side, sender: Sender) -> None:
        self._host = host
        self._side = side
        self._sender = sender
        ds = host.ds
        row = max(ds.nbytes // max(len(ds), 1), 1)
        self._at_once = max(_PIECE // row, 1)
        self._room: SimpleQueue[None] = SimpleQueue()  # an entry for every piece not in use
        for _ in range(max(_ALL // max(_PIECE, row), 2)):
            self._room.put(None)

    def read(self, rows: Ints) -> Batch:
        """Return the fields of ``rows`` on the device; for threads of the loader only."""
        made = self._empty(len(rows))
        self._side.event = self._send(rows, made)
        return made

    def load(self, threads: int) -> dict[str, OnDevice]:
        """Return the fields of all rows on the device."""
        count = len(self._host.ds)
        step = max(-(-count // (4 * threads)), self._at_once)
        with ThreadPoolExecutor(threads) as pool:
            # Not in this thread, which may be the consumer's and keeps its own stream.
            made = pool.submit(self._empty, count).result()

            def send(start: int) -> Future[Event]:
                stop = min(start + step, count)
                return self._send(np.arange(start, stop), {n: made[n][start:stop] for n in made})

            every = list(pool.map(send, range(0, count, step)))
        with self._side.driver.context():
            for sent in every:
                sent.result().wait()
        return made

    def _empty(self, count: int) -> dict[str, OnDevice]:
        """Make arrays; for threads that do nothing else."""
        self._side.join()
        return {name: self._side.memory.empty(name, count) for name in self._host.ds.names}

    def _send(self, rows: Ints, made: dict[str, OnDevice]) -> Future[Event]:
        """Let the fields of ``rows`` be copied to arrays of the device."""
        targets = {name: self._side.memory.address(array) for name, array in made.items()}
        count = len(rows)
        step = -(-count // -(-count // self._at_once))  # pieces of about one size
        sent: Future[Event] = Future()
        kept = list(made.values())
        for start in range(0, count, step):
            self._room.get()
            try:
                batch = self._host.read(rows[start : start + step])
                copies = []
                for name, target in targets.items():
                    address, size = memory_of(batch[name])
                    if size:
                        copies.append(Copy(target, address, size))
                    targets[name] = target + size
                last = start + step >= count
                self._sender.send(copies, partial(self._release, batch, kept), sent, last=last)
            except BaseException:
                self._room.put(None)
                raise
            del batch
        return sent  # after all pieces, since they are sent in order

    def _release(self, batch: Batch, _: list[OnDevice]) -> None:
        """Let go of what was copied, and of what it was copied to."""
        batch.clear()  # the memory goes back before there is room
        self._room.put(None)


def memory_of(values: NDArray[Any]) -> tuple[int, int]:
    """Return the address of an array and its size in bytes."""
    return values.__array_interface__["data"][0], values.nbytes
