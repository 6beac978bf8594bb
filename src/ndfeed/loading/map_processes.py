"""Worker processes that run the maps of a dataset, for functions that hold the GIL.

A thread reads a batch into shared memory, borrows a process, and waits for the result of the
maps, which comes back through shared memory too; only small values go through a pipe. The shared
memory has no name: it disappears with the processes that have it mapped.

Guarantees:

- A map returns the same as it would in a thread: same batch, same generators.
- A map that draws from a global generator (``np.random``, ``random``, ``torch``) draws numbers
  fixed by the seed, the epoch and the position of the batch, whichever process runs it.
- A process that dies is replaced, and the thread that waited for it gets ``Died``.
- Processes end when told to and when the process that started them is gone.
"""

import heapq
import os
import threading
import traceback
from collections.abc import Sequence
from itertools import count as count_up
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.global_rng import renew_locks, seed_globals
from ndfeed.dataset.map_steps import Batch, SampleFailed, Step, try_steps
from ndfeed.errors import WorkerError
from ndfeed.files.shared_memory import Block, Handle, attach
from ndfeed.loading.buffer_pool import SMALL, Pool, buffer_of
from ndfeed.loading.map_rng import SampleSeeds
from ndfeed.loading.uninterrupted import uninterrupted
from ndfeed.loading.worker_process import Child, Died, Message, Orphaned, Parent, start_child

_ALIGNED = 64
_MOST_LENT = 64


class _Location(NamedTuple):
    """An array in a block of shared memory."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Processes:
    """Runs the steps of a dataset in ``count`` processes, each used by one thread at a time."""

    def __init__(self, count: int, steps: Sequence[Step]) -> None:
        self.count = count
        self.pool = Pool(2 * count + 2, Block.of)
        self._steps = steps
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._all: list[Child] = []
        # A heap of the positions of batches that wait for a process, each with its queue.
        self._waiting: list[tuple[int, int, SimpleQueue[Child | None]]] = []
        self._number = count_up()
        self._room = 0  # bytes that results needed so far
        self._closed = False

    def start(self) -> None:
        """Start all processes that are not running."""
        self._closed = False
        uninterrupted(self._start)

    def _start(self) -> None:
        with self._lock:
            while len(self._all) < self.count and not self._closed:
                self._add()

    def _add(self) -> None:
        made = start_child(_serve, tuple(self._steps))
        self._all.append(made)
        self._hand_over(made)

    def _hand_over(self, process: Child) -> None:
        """Give the process to the earliest batch that waits, if any; the lock is held."""
        if self._waiting:
            heapq.heappop(self._waiting)[2].put(process)
        else:
            self._idle.append(process)

    def __call__(self, batch: Batch, steps: Sequence[Step], seeds: SampleSeeds) -> Batch:
        """Run the steps on the batch in a process."""
        process = self._borrow(seeds.first)
        alive = False
        try:
            made = self._ask(process, batch, seeds)
            alive = True
            return made
        except Died:
            raise
        except BaseException:
            alive = True  # an error of the map: the process is still usable
            raise
        finally:
            self._return(process, alive)

    def _borrow(self, position: int) -> Child:
        """Return an idle process; the earliest waiting batch gets the first one."""
        handed: SimpleQueue[Child | None] = SimpleQueue()
        with self._lock:
            if self._closed:
                handed.put(None)
            elif self._idle:  # so nobody waits
                handed.put(self._idle.pop())
            else:
                heapq.heappush(self._waiting, (position, next(self._number), handed))
        found = handed.get()
        if found is None:
            raise WorkerError("the loader was closed")
        return found

    def _return(self, process: Child, alive: bool) -> None:
        with self._lock:
            if alive and not self._closed:
                self._hand_over(process)
                return
            if process in self._all:
                self._all.remove(process)
            if not self._closed:
                self._add()
        process.reap()

    def _ask(self, process: Child, batch: Batch, seeds: SampleSeeds) -> Batch:
        sent, blocks = _prepare_to_send(batch)
        room = self.pool.lend(self._room) if self._room else None
        answer = process.ask((sent, blocks, seeds, _get_handle(room)))
        if answer[0] == "room":
            self._room = max(answer[1], self._room)
            room = self.pool.lend(self._room)
            answer = process.ask(_get_handle(room))
        if answer[0] == "error":
            _raise(*answer[1:])
        made = {name: _unpack(value, room) for name, value in answer[1].items()}
        if self.pool.lent > _MOST_LENT:
            # Shared memory takes file descriptors: a consumer that keeps many batches gets copies.
            return {k: np.array(v) if answer[1][k] is not v else v for k, v in made.items()}
        return made

    def close(self) -> None:
        """End all processes; threads that wait for one get an error."""
        with self._lock:
            self._closed = True
            ending, self._all, self._idle = self._all, [], []
            for _, _, handed in self._waiting:
                handed.put(None)
            self._waiting.clear()
        for process in ending:
            process.terminate()
        for process in ending:
            process.reap()


def _get_handle(room: NDArray[np.uint8] | None) -> Handle | None:
    block = None if room is None else buffer_of(room)
    return block.handle if isinstance(block, Block) else None


def _prepare_to_send(batch: Batch) -> tuple[Batch, list[Handle]]:
    """Replace arrays in shared memory by their locations; also return the blocks they lie in."""
    sent: Batch = {}
    blocks: list[Handle] = []
    for name, value in batch.items():
        block = buffer_of(value) if isinstance(value, np.ndarray) else None
        if isinstance(block, Block):
            start = _address(value) - _address(block)
            sent[name] = len(blocks), _Location(start, value.dtype, value.shape)
            blocks.append(block.handle)
        else:
            sent[name] = -1, value
    return sent, blocks


def _address(array: NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _unpack(value: object, room: NDArray[np.uint8] | None) -> object:
    if isinstance(value, _Location) and room is not None:
        return _array(room, value)
    return value


def _array(memory: NDArray[np.uint8], placed: _Location) -> NDArray[Any]:
    size = int(np.prod(placed.shape, dtype=np.int64)) * placed.dtype.itemsize
    own = memory[placed.start : placed.start + size]
    return own.view(placed.dtype).reshape(placed.shape)


def _raise(error: Exception, trace: str, at: int | None) -> None:
    """Raise an error of a worker process, which a function had for sample ``at`` if for one."""
    error.add_note(f"in a process of the loader:\n{trace}")
    raise error if at is None else SampleFailed(at, error)


# What follows runs in the worker processes.


def _serve(parent: Parent, steps: Sequence[Step]) -> None:
    if hasattr(os, "fork"):
        renew_locks()
    while True:
        _answer(parent, steps, parent.receive())


def _answer(parent: Parent, steps: Sequence[Step], message: Message) -> None:
    sent, blocks, seeds, handle = message
    try:
        memories = [attach(block) for block in blocks]
        batch = {
            name: value if block < 0 else _array(memories[block], value)
            for name, (block, value) in sent.items()
        }
        seed_globals(seeds.identity)
        made = try_steps(batch, steps, seeds)
        places, size = _lay_out(made)
        if size > (handle.size if handle is not None else 0):
            parent.send(("room", size))
            handle = parent.receive()
        if handle is not None:
            memory = attach(handle)
            for name, placed in places.items():
                _array(memory, placed)[...] = made[name]
        parent.send(("made", {name: places.get(name, value) for name, value in made.items()}))
    except Orphaned:
        raise
    except SampleFailed as failed:
        _send_error(parent, failed.error, failed.at)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer is to see it
        _send_error(parent, error)


def _lay_out(made: Batch) -> tuple[dict[str, _Location], int]:
    """Lay out the large arrays of a batch, and return the bytes they need together."""
    places: dict[str, _Location] = {}
    end = 0
    for name, value in made.items():
        # No subclasses: a masked array is more than its bytes.
        if type(value) is np.ndarray and value.nbytes >= SMALL and not value.dtype.hasobject:
            places[name] = _Location(end, value.dtype, value.shape)
            end += -(-value.nbytes // _ALIGNED) * _ALIGNED
    return places, end


def _send_error(parent: Parent, error: BaseException, at: int | None = None) -> None:
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        # Both ways: some errors can be pickled but not unpickled.
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # noqa: BLE001 - for whatever reason
        error = WorkerError(f"{type(error).__name__}: {error}")
    parent.send(("error", error, trace, at))
