"""What a worker process does: builds the batches that requests ask for, into shared memory."""

import contextlib
import math
import os
import re
import sys
import traceback
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.decoding import decode_whole
from ndfeed.dataset.global_rng import renew_locks, seed_globals
from ndfeed.dataset.in_memory import memories_of, with_memory
from ndfeed.dataset.map_steps import Batch, SampleFailed, Step
from ndfeed.dataset.row_selection import Rows
from ndfeed.errors import Error, MissingError, WorkerError
from ndfeed.files.file import File
from ndfeed.files.shared_memory import Block, Handle, align, attach
from ndfeed.files.worker_process import Message, Orphaned, Parent
from ndfeed.loading.batch_builder import BatchBuilder
from ndfeed.loading.buffer_pool import SMALL, Bytes, Pool, buffer_of
from ndfeed.loading.coded import make_stream_cache
from ndfeed.loading.host_source import HostSource
from ndfeed.loading.map_rng import SampleSeeds
from ndfeed.loading.map_state import observe_generators
from ndfeed.loading.options import Options
from ndfeed.loading.timing import Timing
from ndfeed.order.permutation import Ints

_OWN = re.compile(b"proc/self/fd/")  # a path that means another file in another process
_MOST_ATTACHED = 256  # blocks that a process keeps mapped


class Location(NamedTuple):
    """An array in a block of shared memory."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Task(NamedTuple):
    """A batch to build: its rows, what seeds the maps, and its stored fields if they were read."""

    rows: Ints
    seeds: SampleSeeds | None
    batch: Batch | None = None


class Detached(Exception):
    """A process cannot reach the memory of the one that asks."""


class Stream(NamedTuple):
    """A stream of many rows to decode: of which group, column and part."""

    group: int
    column: int
    part: int


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker process needs to build batches of a dataset."""

    ds: Dataset
    options: Options


def make_job(ds: Dataset, options: Options) -> Job:
    """Return what worker processes need, without what this process has open."""
    groups = tuple(
        replace(group, columns=tuple(map(replace, group.columns))) for group in ds.groups
    )
    return Job(_restore(groups, ds.rows, ds.steps, ds.names), options)


def _restore(
    groups: tuple[Group, ...], rows: Rows, steps: tuple[Step, ...], names: tuple[str, ...]
) -> Dataset:
    groups = tuple(map(_reattach, groups))
    made = _restore, (groups, rows, steps, names)
    return Dataset(groups, made, rows=rows, steps=steps, names=names)


def can_travel(ds: Dataset) -> bool:
    """Can a fresh process find all the data? Not files that are joined with memory of this one."""
    for table in {id(group.table): group.table for group in ds.groups}.values():
        if not memories_of(table) and any(
            _OWN.search(text) for text in (table.base, table.path_bytes.data)
        ):
            return False
    return True


def _reattach(group: Group) -> Group:
    """Return the group with its memory as this process finds it, where it has no files."""
    memories = memories_of(group.table)
    if not memories:
        return group
    table = with_memory(group.table, *memories)
    return replace(group, columns=tuple(replace(one, table=table) for one in group.columns))


def address(array: NDArray[Any]) -> int:
    """Return where an array's first byte lies."""
    found: int = array.__array_interface__["data"][0]
    return found


def array_at(memory: NDArray[np.uint8], placed: Location) -> NDArray[Any]:
    """Return the array at a location of ``memory``."""
    size = math.prod(placed.shape) * placed.dtype.itemsize
    own = memory[placed.start : placed.start + size]
    return own.view(placed.dtype).reshape(placed.shape)


def get_handle(room: Bytes | None) -> Handle | None:
    """Return by what another process finds memory that a pool lent; ``None`` if it is private."""
    block = None if room is None else buffer_of(room)
    return block.handle if isinstance(block, Block) else None


def prepare_to_send(batch: Batch | None, blocks: list[Handle]) -> Batch | None:
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


def unpack(value: object, room: Bytes | None, *, copies: bool) -> object:
    """Return a value as a process sent it, or the array at its location."""
    if not isinstance(value, Location) or room is None:
        return value
    return np.array(array_at(room, value)) if copies else array_at(room, value)


def serve(parent: Parent, job: Job) -> None:
    """Build batches for the parent until it is gone."""
    if hasattr(os, "fork"):
        renew_locks()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # its threads stayed in the parent, and would be waited for
    worker = _Worker(job)
    while True:
        worker.answer(parent, parent.receive())
        for stream in (sys.stdout, sys.stderr):  # a process that is ended writes nothing more
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()


class _RoomPool(Pool):
    """Lends from the shared memory of a request, as long as there is some left."""

    def __init__(self) -> None:
        super().__init__(0)
        self._room: Bytes | None = None
        self._used = 0

    def begin(self, room: Bytes | None) -> None:
        """Lend from ``room`` from now on."""
        self._room, self._used = room, 0

    def lend(self, size: int) -> Bytes:
        """Lend ``size`` bytes."""
        end = self._used + size
        if self._room is None or end > len(self._room):
            return np.empty(size, np.uint8)
        found = self._room[self._used : end]
        self._used = align(end)
        return found


class _Worker:
    """Builds the batches that requests ask for."""

    def __init__(self, job: Job) -> None:
        self._ds = job.ds
        self._mapped = bool(job.ds.steps)
        self._pool = _RoomPool()
        cache = make_stream_cache([], 0, 0, forward=False)
        source = HostSource(job.ds, job.options, self._pool, cache)
        self._builder = BatchBuilder(job.ds, job.options, self._pool, source)
        self._attached: dict[Handle, Bytes] = {}

    def _attach(self, handle: Handle) -> Bytes:
        """Return the memory of a handle; it stays mapped for a while, since blocks come again."""
        found = self._attached.pop(handle, None)
        if found is None:
            try:
                found = attach(handle)
            except MissingError:
                raise Detached("worker processes may not open /proc/PID/fd of this one") from None
            while len(self._attached) >= _MOST_ATTACHED:
                del self._attached[next(iter(self._attached))]
        self._attached[handle] = found
        return found

    def answer(self, parent: Parent, message: Message) -> None:
        """Build what a message asks for, and send it."""
        try:
            if isinstance(message[0], Stream):
                self._decode(*message)
                parent.send(("decoded",))
            else:
                self._answer(parent, *message)
        except Orphaned:
            raise
        except SampleFailed as failed:
            _send_error(parent, failed.error, failed.at)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer is to see it
            _send_error(parent, error)

    def _decode(self, stream: Stream, handle: Handle) -> None:
        column = self._ds.groups[stream.group].columns[stream.column]
        table, number = column.table, int(column.file[stream.part])
        with File(table.path(number), table.expected(number)) as file:
            decode_whole(file, column, stream.part, self._attach(handle))

    def _answer(
        self,
        parent: Parent,
        tasks: list[Task],
        blocks: list[Handle],
        handle: Handle | None,
        watched: bool,
    ) -> None:
        memories = [self._attach(block) for block in blocks]
        room = None if handle is None else self._attach(handle)
        # Maps get memory of their own: what they return takes the room.
        self._pool.begin(None if self._mapped else room)
        timing = Timing()
        made, drew = [], False
        for task in tasks:
            batch = self._prepare(task, memories)
            before = observe_generators() if watched else ()
            made.append(self._builder.build(task.rows, task.seeds, timing, batch))
            drew |= watched and observe_generators() != before
        places, size = _lay_out(made, room)
        if size > (0 if room is None else len(room)):
            parent.send(("room", size))
            handle = parent.receive()
            if handle is None:
                raise WorkerError("there is no room")
            room = self._attach(handle)
            places, _ = _lay_out(made, room)
        if room is not None:
            _copy(made, places, room)
        found = [
            {name: own[name][0] if name in own else value for name, value in one.items()}
            for one, own in zip(made, places, strict=True)
        ]
        parent.send(("made", found, timing.stages(), drew))

    def _prepare(self, task: Task, memories: list[Bytes]) -> Batch | None:
        """Seed the global generators for a batch; return its stored fields if they were sent."""
        batch = task.batch
        if batch is not None:
            batch = {
                name: value if block < 0 else array_at(memories[block], value)
                for name, (block, value) in batch.items()
            }
        if task.seeds is not None:
            seed_globals(task.seeds.identity)
        return batch


_Placed = dict[str, tuple[Location, bool]]  # where an array goes, and whether it must be copied


def _lay_out(made: list[Batch], room: Bytes | None) -> tuple[list[_Placed], int]:
    """Lay out the large arrays of batches, and return the bytes they need together.

    Arrays that lie in the room already stay where they are, and others come behind them.
    """
    base, length = (0, 0) if room is None else (address(room), len(room))
    places: list[_Placed] = [{} for _ in made]
    end = 0
    others: list[tuple[_Placed, str, NDArray[Any]]] = []
    for one, own in zip(made, places, strict=True):
        for name, value in one.items():
            # No subclasses: a masked array is more than its bytes.
            if type(value) is not np.ndarray or value.nbytes < SMALL or value.dtype.hasobject:
                continue
            start = address(value) - base
            if 0 <= start < length and value.flags.c_contiguous:
                own[name] = Location(start, value.dtype, value.shape), False
                end = max(end, align(start + value.nbytes))
            else:
                others.append((own, name, value))
    for own, name, value in others:
        own[name] = Location(end, value.dtype, value.shape), True
        end += align(value.nbytes)
    return places, end


def _copy(made: list[Batch], places: list[_Placed], room: Bytes) -> None:
    """Copy the arrays that do not lie in the room yet."""
    for one, own in zip(made, places, strict=True):
        for name, (placed, copied) in own.items():
            if copied:
                array_at(room, placed)[...] = one[name]


def _send_error(parent: Parent, error: BaseException, at: int | None = None) -> None:
    # An error about a file says everything in one line.
    trace = "" if isinstance(error, Error) else "".join(traceback.format_exception(error)).rstrip()
    try:
        # Both ways: some errors can be pickled but not unpickled.
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # noqa: BLE001 - for whatever reason
        notes = getattr(error, "__notes__", ())
        error = WorkerError(f"{type(error).__name__}: {error}")
        for note in notes:
            error.add_note(note)
    parent.send(("error", error, trace, at))
