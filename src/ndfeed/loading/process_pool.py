"""Worker processes that build batches, for work that holds the GIL: opening files, decoding, maps.

A thread borrows a process and asks it for some rows. The process reads them and runs the maps,
straight into shared memory where possible; only small values go through a pipe. The shared memory
has no name: it disappears with the processes that have it mapped.

Guarantees:

- A batch is the same as if it were built in a thread: same rows, same generators.
- A map that draws from a global generator (``np.random``, ``random``, ``torch``) draws numbers
  fixed by the seed, the epoch and the position of the batch, whichever process runs it.
- A process that dies is replaced, and its batch is built once more; then it is an error.
- Processes end when told to and when the process that started them is gone.
- Where no process can be started, batches are built in threads, and ``problem`` says why.
"""

import _thread
import heapq
import math
import threading
import time
from collections.abc import Sequence
from itertools import count as count_up
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch, SampleFailed
from ndfeed.errors import Error, ResourceError, WorkerError
from ndfeed.files.shared_memory import Block, Handle
from ndfeed.loading.batch_builder import BatchBuilder, format_rows
from ndfeed.loading.buffer_pool import SMALL, Bytes, Pool, align, buffer_of
from ndfeed.loading.map_rng import SampleSeeds
from ndfeed.loading.options import stored_fields
from ndfeed.loading.pool_worker import Job, Location, Task, address, array_at, serve
from ndfeed.loading.process_server import Payload, Server, ServerError
from ndfeed.loading.timing import Timing
from ndfeed.loading.uninterrupted import uninterrupted
from ndfeed.loading.worker_process import Child, Died, start_child
from ndfeed.order.permutation import Ints

_MOST_LENT = 128
_TRIES = 2  # of a batch, if processes die
_QUICK = 0.02  # seconds that several batches may take together, since they come together


class _Rooms:
    """Shared memory for what processes build. ``sizes`` are those of a row's fields, if known."""

    def __init__(self, pool: Pool, sizes: list[int], limit: int) -> None:
        self._pool = pool
        self._limit = limit  # bytes of all of it
        self._sizes = sizes
        self._usual = 0  # bytes that were needed at most

    def lend(self, rows: int) -> Bytes | None:
        """Lend what so many rows need, as far as is known."""
        size = sum(align(rows * one) for one in self._sizes) or self._usual
        return self._lend(size) if size >= SMALL else None

    def lend_more(self, size: int) -> Bytes:
        """Lend what was found to be needed."""
        return self._lend(1 << (size - 1).bit_length())  # few different sizes

    def _lend(self, size: int) -> Bytes:
        used = self._pool.lent * self._usual
        if size > self._usual or used + self._pool.idle + size > self._limit:
            self._pool.clear()
        self._usual = max(size, self._usual)
        return self._pool.lend(size) if size == self._usual else self._pool.lend_once(size)


class Processes:
    """Builds batches in ``count`` processes, each used by one thread at a time.

    They are forks of a ``lean`` process or of this one, and share ``limit`` bytes of memory. If
    they do not read the rows themselves (``reads``), threads do, and processes run the maps.
    ``local`` builds batches in this process where none can be started.
    """

    def __init__(
        self,
        count: int,
        job: Job,
        pool: Pool,
        local: BatchBuilder,
        *,
        limit: int,
        reads: bool,
        lean: bool,
    ) -> None:
        self.count = count
        self.problem = ""  # why there are none
        self._job = job
        self._pool = pool
        self._local = local
        self._reads = reads
        self.lean = lean
        self._mapped = bool(job.ds.steps)
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._idle: list[Child] = []
        self._all: list[Child] = []
        self._server: Server | None = None
        # A heap of the positions of batches that wait for a process, each with its queue.
        self._waiting: list[tuple[int, int, SimpleQueue[Child | None]]] = []
        self._number = count_up()
        self._rooms = _Rooms(pool, [] if self._mapped or not reads else _row_sizes(job.ds), limit)
        self._seconds = _QUICK  # that the last batch took
        self._closed = False

    @property
    def ready(self) -> bool:
        """Do all processes run?"""
        return 0 < self.count == len(self._all)

    def reopen(self) -> None:
        """Allow processes to be started, perhaps again after ``close``."""
        self._closed = False

    def start(self) -> None:
        """Start what is missing, unless it was closed; ``problem`` says why that failed."""
        uninterrupted(self._start)

    def _start(self) -> None:
        with self._starting:  # one at a time, and others may be used meanwhile
            problem = self._try_starting()
            if problem and self.lean and self._mapped:  # as was asked for, whatever it takes
                self.lean = False
                problem = self._try_starting()
            with self._lock:
                if problem:
                    self._give_up(problem)
                ending = self._take_all() if self._closed else ([], None)  # closed meanwhile
            _end(*ending)

    def _try_starting(self) -> str:
        """Start what is missing, and return what went wrong."""
        try:
            if self.lean and self._server is None and not self._closed:
                server = Server(Payload(serve, self._job))
                with self._lock:
                    self._server = server
            with self._lock:
                while len(self._all) < self.count and not self._closed:
                    self._add()
        except Exception as error:  # noqa: BLE001 - or whoever waits would wait for ever
            return f"{error}" or type(error).__name__
        return ""

    def _give_up(self, problem: str) -> None:
        """Go on with the processes there are; without any, in threads. The lock is held."""
        self.count = len(self._all)
        self.problem = problem
        if not self._all:
            self._turn_away()

    def _turn_away(self) -> None:
        for _, _, handed in self._waiting:
            handed.put(None)
        self._waiting.clear()

    def _add(self) -> None:
        """Start a process; the lock is held."""
        if not self.lean:
            made = start_child(serve, self._job)
        elif self._server is not None:
            made = self._server.start_child()
        else:
            raise ServerError("the process that starts workers is gone")
        self._all.append(made)
        self._hand_over(made)

    def _hand_over(self, process: Child) -> None:
        """Give the process to the earliest batch that waits, if any; the lock is held."""
        if self._waiting:
            heapq.heappop(self._waiting)[2].put(process)
        else:
            self._idle.append(process)

    # What a ``Builder`` has.

    def read(self, rows: Ints, timing: Timing) -> Batch | None:
        """Return the stored fields of several batches; ``None`` where each is better read alone."""
        if not self._reads:
            return self._local.read(rows, timing)
        return None if self._mapped else self._build([Task(rows, None)], timing)[0]

    def build(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing, batch: Batch | None = None
    ) -> Batch:
        """Return the batch of ``rows``."""
        if not self._mapped and (batch is not None or not self._reads):
            return self._local.build(rows, seeds, timing, batch)
        return self._build([Task(rows, seeds, batch)], timing)[0]

    def build_several(
        self, rows: Sequence[Ints], seeds: Sequence[SampleSeeds], timing: Timing
    ) -> list[Batch] | None:
        """Return several small batches that maps make; ``None`` where that is no faster."""
        if not self._reads or self._seconds * len(rows) > _QUICK:
            return None
        return self._build(list(map(Task, rows, seeds)), timing)

    def _build(self, tasks: list[Task], timing: Timing) -> list[Batch]:
        left = _TRIES
        while True:
            try:
                return self._try_building(tasks, timing)
            except Died as died:
                left -= died.asked  # another one may have died while it was idle
                if not left:
                    raise _make_error(tasks, died, mapped=self._mapped) from None
                if self._reads:
                    continue
                tasks = [task._replace(batch=None) for task in tasks]  # a map may have modified it

    def _try_building(self, tasks: list[Task], timing: Timing) -> list[Batch]:
        if not self._reads:
            tasks = [
                t if t.batch is not None else t._replace(batch=self._local.read(t.rows, timing))
                for t in tasks
            ]
        seeds = tasks[0].seeds
        try:
            room = self._rooms.lend(sum(len(task.rows) for task in tasks))
        except ResourceError:  # too many open files, say
            return self._build_here(tasks, timing)
        process = self._borrow(0 if seeds is None else seeds.first)
        if process is None:
            return self._build_here(tasks, timing)
        alive = False
        try:
            began = time.perf_counter()
            made = self._ask(process, tasks, room, timing)
            self._seconds = (time.perf_counter() - began) / len(tasks)
            alive = True
            return made
        except Died:
            raise
        except BaseException:
            alive = True  # an error of a map or a file: the process is still usable
            raise
        finally:
            self._return(process, alive)

    def _build_here(self, tasks: list[Task], timing: Timing) -> list[Batch]:
        return [self._local.build(*task[:2], timing, task.batch) for task in tasks]

    def _borrow(self, position: int) -> Child | None:
        """Return an idle process, the earliest waiting batch first; ``None`` if there are none."""
        handed: SimpleQueue[Child | None] = SimpleQueue()
        with self._lock:
            if self._closed or (self.problem and not self._all):
                handed.put(None)
            elif self._idle:  # so nobody waits
                handed.put(self._idle.pop())
            else:
                heapq.heappush(self._waiting, (position, next(self._number), handed))
        found = handed.get()
        if found is None and self._closed:
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
                self._replace()
        process.reap()

    def _replace(self) -> None:
        """Start a process in place of one that died; the lock is held."""
        try:
            self._add()
        except ServerError:  # then all others end, too: start over
            self._server = None
            _thread.start_new_thread(self._start, ())
        except (OSError, Error) as error:
            self._give_up(f"{error}")

    def _ask(
        self, process: Child, tasks: list[Task], room: Bytes | None, timing: Timing
    ) -> list[Batch]:
        blocks: list[Handle] = []
        sent = [task._replace(batch=_prepare_to_send(task.batch, blocks)) for task in tasks]
        answer = process.ask((sent, blocks, _get_handle(room)))
        if answer[0] == "room":
            before = room  # kept until all was copied: the process may still read it
            try:
                room = self._rooms.lend_more(answer[1])
            except BaseException:
                process.ask(None)  # it waits for an answer
                raise
            answer = process.ask(_get_handle(room))
            del before
        if answer[0] == "error":
            _raise(*answer[1:])
        _, found, spent = answer
        timing.add_stages(spent)
        # Shared memory takes file descriptors: a consumer that keeps many batches gets copies.
        copies = self._pool.lent > _MOST_LENT
        return [{k: _unpack(v, room, copies=copies) for k, v in one.items()} for one in found]

    def close(self) -> None:
        """End all processes; threads that wait for one get an error."""
        with self._lock:
            self._closed = True
            ending = self._take_all()
            self._turn_away()
        _end(*ending)

    def _take_all(self) -> "tuple[list[Child], Server | None]":
        """Forget all processes, and return them; the lock is held."""
        ending, self._all, self._idle = self._all, [], []
        server, self._server = self._server, None
        return ending, server


def _make_error(tasks: list[Task], died: Died, *, mapped: bool) -> WorkerError:
    rows = format_rows(np.concatenate([task.rows for task in tasks]))
    does = "running map() on" if mapped else "reading"
    what = "the function crashes or" if mapped else "the machine"
    return WorkerError(
        f"{died} while {does} {rows}, as did the one before it",
        f"check whether {what} runs out of memory",
    )


def _end(processes: list[Child], server: Server | None) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.reap()
    if server is not None:
        server.close()


def _row_sizes(ds: Dataset) -> list[int]:
    """Return the bytes of a sample's fields; nothing where samples differ."""
    fields = stored_fields(ds)
    if any(field.ragged for field in fields):
        return []
    return [math.prod(field.lengths) * field.dtype.itemsize for field in fields]


def _get_handle(room: NDArray[np.uint8] | None) -> Handle | None:
    block = None if room is None else buffer_of(room)
    return block.handle if isinstance(block, Block) else None


def _prepare_to_send(batch: Batch | None, blocks: list[Handle]) -> Batch | None:
    """Replace arrays in shared memory by their locations; add the blocks they lie in."""
    if batch is None:
        return None
    sent: Batch = {}
    for name, value in batch.items():
        block = buffer_of(value) if isinstance(value, np.ndarray) else None
        if isinstance(block, Block):
            start = address(value) - address(block)
            sent[name] = len(blocks), Location(start, value.dtype, value.shape)
            blocks.append(block.handle)
        else:
            sent[name] = -1, value
    return sent


def _unpack(value: object, room: Bytes | None, *, copies: bool) -> object:
    if not isinstance(value, Location) or room is None:
        return value
    return np.array(array_at(room, value)) if copies else array_at(room, value)


def _raise(error: Exception, trace: str, at: int | None) -> None:
    """Raise an error of a worker process, which a function had for sample ``at`` if for one."""
    if trace:
        error.add_note(f"in a process of the loader:\n{trace}")
    raise error if at is None else SampleFailed(at, error)
