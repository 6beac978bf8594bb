"""Builds batches in worker processes.

A thread borrows a process and asks it for some rows. The process reads them and runs the maps,
straight into shared memory where possible; only small values go through a pipe. The shared memory
has no name: it disappears with the processes that have it mapped.

Guarantees:

- A batch is the same as if it were built in a thread: same rows, same generators.
- A map that draws from a global generator (``np.random``, ``random``, ``torch``) draws numbers
  fixed by the seed, the epoch and the position of the batch, whichever process runs it.
- Where there are no processes, batches are built here.
"""

import contextlib
import math
import time
from collections.abc import Sequence

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch, SampleFailed
from ndfeed.errors import ResourceError
from ndfeed.files.shared_memory import Handle, align
from ndfeed.files.worker_process import Child
from ndfeed.loading.batch_builder import BatchBuilder, format_rows
from ndfeed.loading.buffer_pool import SMALL, Bytes, Pool
from ndfeed.loading.map_rng import SampleSeeds
from ndfeed.loading.options import stored_fields
from ndfeed.loading.pool_worker import Task, get_handle, prepare_to_send, unpack
from ndfeed.loading.process_pool import ProcessPool, ask_into, try_twice
from ndfeed.loading.timing import Timing
from ndfeed.order.permutation import Ints

_MOST_LENT = 128
_MOST_SIZES = 4  # one batch, a group of them, and those at the end of an epoch
_QUICK = 0.02  # seconds that several batches may take together, since they come together


class _Rooms:
    """Shared memory for what processes build. ``sizes`` are those of a row's fields, if known."""

    def __init__(self, pool: Pool, sizes: list[int], limit: int) -> None:
        self._pool = pool
        self._limit = limit  # bytes of all of it
        self._sizes = sizes
        self._per_row = 0.0  # bytes that were needed at most, where sizes are not known
        self._recurring: set[int] = set()  # sizes of buffers that are kept to be lent again

    def lend(self, rows: int) -> Bytes | None:
        """Lend what so many rows need, as far as is known."""
        size = sum(align(rows * one) for one in self._sizes) or _round(rows * self._per_row)
        return self._lend(size) if size >= SMALL else None

    def lend_more(self, size: int, rows: int) -> Bytes:
        """Lend what so many rows were found to need."""
        self._per_row = max(self._per_row, size / max(rows, 1))
        return self._lend(_round(size))

    def _lend(self, size: int) -> Bytes:
        grows = not self._pool.has(size)
        if grows and self._pool.lent_bytes + self._pool.idle + size > self._limit:
            self._pool.clear()
        if size not in self._recurring:
            if len(self._recurring) == _MOST_SIZES and size > max(self._recurring):
                self._recurring.clear()
                self._pool.clear()
            if len(self._recurring) < _MOST_SIZES:
                self._recurring.add(size)
        # A new buffer is zeroed, mapped page by page in every process, and registered with a GPU.
        return self._pool.lend(size) if size in self._recurring else self._pool.lend_once(size)


def _round(size: float) -> int:
    """Round up by an eighth at most, so that there are few different sizes."""
    step = 1 << max(int(size).bit_length() - 4, 6)
    return -(-math.ceil(size) // step) * step


class ProcessBuilder:
    """Builds the batches of a dataset in processes, which share ``limit`` bytes of memory.

    If they do not read the rows themselves, threads do, and processes run the maps. ``local``
    builds batches in this process where none can be started.
    """

    def __init__(
        self, ds: Dataset, processes: ProcessPool, memory: Pool, limit: int, local: BatchBuilder
    ) -> None:
        self._processes = processes
        self._memory = memory
        self._local = local
        self._reads = processes.reads
        self._mapped = bool(ds.steps)
        self._count = len(ds)
        self._rooms = _Rooms(
            memory, [] if self._mapped or not self._reads else _row_sizes(ds), limit
        )
        self._seconds = _QUICK  # that the last batch took

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

    def build_watched(self, rows: Ints, seeds: SampleSeeds | None) -> tuple[Batch, bool]:
        """Return the batch of ``rows``, and whether maps drew from global generators for it."""
        drew: list[bool] = []
        made = self._build([Task(rows, seeds)], Timing(), drew)
        return made[0], any(drew)

    def _build(
        self, tasks: list[Task], timing: Timing, drew: list[bool] | None = None
    ) -> list[Batch]:
        todo = [tasks]

        def attempt() -> list[Batch]:
            now = todo[0]
            todo[0] = [task._replace(batch=None) for task in tasks]  # a map may modify it
            return self._try_building(now, timing, drew)

        does = "running map() on" if self._mapped else "reading"

        def describe() -> str:
            rows = np.concatenate([task.rows for task in tasks])
            return f"{does} {format_rows(rows, self._count)}"

        if not self._mapped:
            return try_twice(attempt, describe)
        return try_twice(attempt, describe, "the function crashes or")

    def _try_building(
        self, tasks: list[Task], timing: Timing, drew: list[bool] | None
    ) -> list[Batch]:
        if not self._reads:
            tasks = [
                t if t.batch is not None else t._replace(batch=self._local.read(t.rows, timing))
                for t in tasks
            ]
        seeds = tasks[0].seeds
        made: list[Batch] | None = None
        with contextlib.suppress(ResourceError):  # too many open files, say
            room = self._rooms.lend(sum(len(task.rows) for task in tasks))
            position = 0 if seeds is None else seeds.first
            made = self._processes.run(
                position, lambda one: self._ask(one, tasks, room, timing, drew)
            )
        if made is None:
            made = [self._local.build(*task[:2], timing, task.batch) for task in tasks]
        return made

    def _ask(
        self,
        process: Child,
        tasks: list[Task],
        room: Bytes | None,
        timing: Timing,
        drew: list[bool] | None,
    ) -> list[Batch]:
        blocks: list[Handle] = []
        sent = [task._replace(batch=prepare_to_send(task.batch, blocks)) for task in tasks]
        began = time.perf_counter()
        question = sent, blocks, get_handle(room), drew is not None
        answer = ask_into(process, question, room, self._processes.patience)
        if answer[0] == "room":
            before = room  # kept until all was copied: the process may still read it
            try:
                room = self._rooms.lend_more(answer[1], sum(len(task.rows) for task in tasks))
            except BaseException:
                process.ask(None)  # it waits for an answer
                raise
            answer = process.ask(get_handle(room))
            del before
        if answer[0] == "error":
            raise_sent(*answer[1:])
        _, found, spent, drawn = answer
        if drew is not None:
            drew.append(drawn)
        timing.add_stages(spent)
        self._seconds = (time.perf_counter() - began) / len(tasks)
        # Shared memory takes file descriptors: a consumer that keeps many batches gets copies.
        copies = self._memory.lent > _MOST_LENT
        return [{k: unpack(v, room, copies=copies) for k, v in one.items()} for one in found]


def _row_sizes(ds: Dataset) -> list[int]:
    """Return the bytes of a sample's fields; nothing where samples differ."""
    fields = stored_fields(ds)
    if any(field.ragged for field in fields):
        return []
    return [math.prod(field.lengths) * field.dtype.itemsize for field in fields]


def raise_sent(error: Exception, trace: str, at: int | None) -> None:
    """Raise an error of a worker process, which a function had for sample ``at`` if for one."""
    if trace:
        error.add_note(f"in a process of the loader:\n{trace}")
    raise error if at is None else SampleFailed(at, error)
