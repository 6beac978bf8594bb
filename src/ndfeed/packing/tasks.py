"""The tasks of a plan: each needs only the plan's folder and the dataset, on any machine.

A task writes the same whatever was there before, so it may run twice, or in two processes at
once. What it returns is for the journal: its output is synced by then.

The values that maps make for ragged fields wait in ``spool/N.FIELD``, with their counts beside
them, and their shapes go to ``shapes.FIELD``: their places are known when all are made. The plan's
file is trusted if it has the digest given by whoever submits the tasks; other files as far as they
can be: numbers are within their bounds, or it is an error.
"""

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.row_ranges import stretches
from ndfeed.errors import ChangedError, MissingError, WorkerError
from ndfeed.files.folder import Folder, read_contents
from ndfeed.formats.inflate import crc32
from ndfeed.formats.manifest import Field, Role
from ndfeed.index.table import Ints
from ndfeed.packing.columns import (
    Columns,
    OrderedStore,
    ScatteredStore,
    Spot,
    Store,
    Stretch,
    as_bytes,
)
from ndfeed.packing.journal import Record
from ndfeed.packing.member_checksums import MemberChecks
from ndfeed.packing.plan import OffsetsTask, PlaceTask, Plan, RowsTask, SumsTask, Task
from ndfeed.packing.source_rows import RowReader, SourceRows, read_chunks
from ndfeed.packing.stored_fields import StoredValues, cast_flat, count_values, to_stored_values

PLAN, ORDER, VALUES, DATA, SPOOL = b"plan", b"order", b"values", b"data", b"spool"
_COUNTS = b".n"  # ends the name of the file with the counts of spooled values
_MOST_SMALL = 1 << 30  # bytes of a plan
_AT_ONCE = 1 << 20


class Stopped(Exception):
    """Nobody wants the result of the task any more."""


class Job:
    """A plan in the process that runs its tasks, and the folder it runs in."""

    def __init__(self, path: bytes, digest: str, ds: Dataset, *, seeds_globals: bool) -> None:
        self.folder, self.plan = _open_plan(path, digest)
        in_order = self.plan.in_order
        self.source = SourceRows(ds, names=self.plan.pack.names, in_order=in_order)
        self.seeds_globals = seeds_globals
        self.checks = MemberChecks(self.source, self.plan.pieces, in_order=in_order)
        self.stopped = False

    def check_wanted(self) -> None:
        """End the task if nobody wants its result."""
        if self.stopped:
            raise Stopped

    def columns(self, *, final: bool) -> Columns:
        """Return the files to write; when ``final``, all numbers of values must be known."""
        data = read_contents(self.folder, VALUES, _MOST_SMALL) if self.plan.spooled else None
        if data is not None:
            return self.plan.columns_with(self._parse_values(data))
        if final and self.plan.spooled:
            raise _changed(self.folder.joined(VALUES))
        return self.plan.columns

    def _parse_values(self, data: bytes) -> tuple[tuple[int | None, ...], ...]:
        """Parse the numbers of values in a file that the coordinating process has written."""
        try:
            values = tuple(map(tuple, json.loads(data)))
            parts = zip(values, self.plan.values, strict=True)
            pairs = [pair for part in parts for pair in zip(*part, strict=True)]
        except (ValueError, TypeError, RecursionError):
            raise _changed(self.folder.joined(VALUES)) from None
        if not all(_is_count(new) if old is None else new == old for new, old in pairs):
            raise _changed(self.folder.joined(VALUES))
        return values

    def targets(self, start: int, end: int) -> Ints:
        """Return the rows of the target at some places of the work."""
        if not self.plan.scattered:
            return np.arange(start, end)
        with self.folder.file(ORDER) as file:
            found = np.frombuffer(file.read(8 * start, 8 * (end - start)), np.int64)
        if len(found) and not (found.min() >= 0 and found.max() < self.plan.rows):
            raise _changed(self.folder.joined(ORDER))
        return found

    def open_store(self, columns: Columns) -> Store:
        """Open the columns for rows in the order of the work."""
        kind = ScatteredStore if self.plan.scattered else OrderedStore
        return kind(self.folder.inner(DATA), columns, self.plan.parts)


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 62)


def _changed(path: bytes) -> ChangedError:
    """Make the error for a file of the staging folder that is not what was written to it."""
    return ChangedError(path, "changed while it was in use", remedy="rerun")


def _open_plan(path: bytes, digest: str) -> tuple[Folder, Plan]:
    """Open the folder of a plan and load the plan, if its file has that digest."""
    try:
        folder = Folder(path)
        data = read_contents(folder, PLAN, _MOST_SMALL)
    except MissingError:
        data = None
    if data is None or hashlib.sha256(data).hexdigest() != digest:
        raise WorkerError(
            f"the worker on host {socket.gethostname()} cannot read {os.fsdecode(path)}",
            "put the target on a file system that all workers share",
        )
    return folder, Plan.decode(data)


def run_task(job: Job, task: Task, *, sync: bool) -> Record:
    """Run a task; unless ``sync``, the rows it writes are synced by somebody else."""
    match task:
        case RowsTask():
            return _copy_rows(job, task, sync)
        case OffsetsTask():
            return _write_offsets(job, task)
        case PlaceTask():
            return _place_values(job, task)
        case SumsTask():
            return _sum_blocks(job, task)


def _copy_rows(job: Job, task: RowsTask, sync: bool) -> Record:
    """Read the rows of a piece, convert them, and write them to their places or to spools."""
    plan, source, sums = job.plan, job.source, job.checks.new_sums()
    start, end = plan.pieces[task.number :][:2]
    job.checks.verify_others(task.number)
    store = job.open_store(job.columns(final=False))
    with store, ExitStack() as stack:
        reader = stack.enter_context(
            RowReader(source, sums.add_rows, seeds_globals=job.seeds_globals)
        )
        spools = {i: _Spool(job, task.number, i, stack) for i in plan.spooled}
        written = 0
        for targets in _cut_batches(job, start, end):
            job.check_wanted()
            rows = plan.rows_of(targets)
            if len(rows) == 1 and not source.ds.steps and source.sizes(rows)[0] > plan.large:
                written += _copy_large_row(job, reader, store, int(targets[0]), int(rows[0]))
                continue
            batch = reader.read(rows)
            for i, field in enumerate(plan.fields):
                values = to_stored_values(field, batch, rows, source)
                written += len(values.data)
                if i in spools:
                    spools[i].append(targets, values)
                else:
                    _write_values(store, i, field, targets, values)
        if sync:
            store.sync()
        for spool in spools.values():
            spool.sync()
        if spools:  # including the names of new files: the journal will mention them
            with job.folder.inner(SPOOL) as folder:
                folder.sync()
    read = job.checks.check_task(task.number, sums)
    return Record(task, store.stretches(), end - start, written, read=read)


def _write_values(
    store: Store, number: int, field: Field, targets: Ints, values: StoredValues
) -> None:
    if "values" in field.roles:
        store.write_values(number, targets, count_values(field, values.shapes), values.data)
    else:
        store.write_rows(number, targets, values.data)


def _copy_large_row(job: Job, reader: RowReader, store: Store, target: int, row: int) -> int:
    """Copy a row that is larger than memory; return its size in bytes."""
    numbers = {field.name: (i, field) for i, field in enumerate(job.plan.fields)}
    written = 0
    for name, values in read_chunks(job.source, reader, row, job.plan.batch):
        i, field = numbers[name]
        role: Role = "values" if "values" in field.roles else "rows"
        at = 0
        for chunk in values:
            job.check_wanted()
            data = as_bytes(cast_flat(field, chunk, row, job.source))
            store.write_chunk(i, role, target, at, data)
            at += len(data)
        written += at
    return written


def _cut_batches(job: Job, start: int, end: int) -> Iterator[Ints]:
    """Yield rows of the target, about as many as are to be in memory at a time."""
    most, least = job.plan.batch, max(job.plan.made, 1)
    at = start
    while at < end:
        each = job.source.row_bytes
        count = _AT_ONCE if each is None else max(most // max(each, least), 1)
        targets = job.targets(at, min(at + count, end))
        if each is None:
            sizes = job.source.sizes(job.plan.rows_of(targets))
            ends = np.cumsum(np.maximum(sizes, least))
            cut = max(int(np.searchsorted(ends, most, side="right")), 1)
            targets = targets[:cut]
        yield targets
        at += len(targets)


class _Spool:
    """Ragged values that maps made in a task, until their places are known."""

    def __init__(self, job: Job, number: int, field: int, stack: ExitStack) -> None:
        name = spool_name(number, field)
        self._values = stack.enter_context(job.folder.output(SPOOL, name, new=True))
        self._counts = stack.enter_context(job.folder.output(SPOOL, name + _COUNTS, new=True))
        self._shapes = stack.enter_context(job.folder.output(shapes_name(field)))
        self._values.allocate(0)
        self._counts.allocate(0)
        self._field = job.plan.fields[field]
        self._at = self._rows = 0

    def append(self, targets: Ints, made: StoredValues) -> None:
        """Store the values of some rows."""
        self._values.write(self._at, made.data.data)
        self._at += len(made.data)
        counts = count_values(self._field, made.shapes)
        self._counts.write(8 * self._rows, as_bytes(counts).data)
        self._rows += len(counts)
        width = 8 * len(self._field.shape)
        order = np.argsort(targets)
        for start, end in stretches(len(order), np.diff(targets[order]) != 1):
            data = as_bytes(made.shapes[order[start:end]]).data
            self._shapes.write(width * int(targets[order[start]]), data)

    def sync(self) -> None:
        """Sync everything to disk."""
        for output in (self._values, self._counts, self._shapes):
            output.sync()


def spool_name(number: int, field: int) -> bytes:
    """Return the file in the spool that has the values of a field of a piece."""
    return b"%d.%d" % (number, field)


def shapes_name(field: int) -> bytes:
    """Return the file that has the shapes of all samples of a spooled field."""
    return b"shapes.%d" % field


def _write_offsets(job: Job, task: OffsetsTask) -> Record:
    """Write where the samples of a ragged field start in a part, and their shapes if needed."""
    plan = job.plan
    part, field_number = divmod(task.number, len(plan.fields))
    field = plan.fields[field_number]
    start, end = plan.parts[part : part + 2]
    total = 0
    columns = job.columns(final=False)
    with OrderedStore(job.folder.inner(DATA), columns, plan.parts) as store:
        begins = store.open_writer(Spot(part, field_number, "offsets"), 0)
        begins.append(as_bytes(np.zeros(1, "<i8")).data)
        for at in range(start, end, _AT_ONCE):
            job.check_wanted()
            shapes = _read_shapes(job, field_number, at, min(at + _AT_ONCE, end))
            ends = total + np.cumsum(count_values(field, shapes))
            total = int(ends[-1])
            begins.append(as_bytes(ends.astype("<i8")).data)
            if "shapes" in field.roles:
                writer = store.open_writer(Spot(part, field_number, "shapes"), 0)
                writer.append(as_bytes(shapes.astype("<i8")).data)
        store.sync()
        return Record(task, store.stretches(), values=total)


def _read_shapes(job: Job, field: int, start: int, end: int) -> Ints:
    """Read the shapes of a ragged field's samples in rows of the target."""
    if field not in job.plan.spooled:
        rows = job.plan.rows_of(np.arange(start, end))
        return job.source.shapes(job.plan.fields[field].name, rows)
    rank = len(job.plan.fields[field].shape)
    with job.folder.file(shapes_name(field)) as file:
        data = file.read(8 * rank * start, 8 * rank * (end - start))
        shapes = np.frombuffer(data, np.int64).reshape(-1, rank)
        # As floats, which do not overflow: their product is the number of a sample's values.
        if (shapes < 0).any() or (shapes.astype(float).prod(axis=1) >= 1 << 62).any():
            raise _changed(file.path)
    return shapes


def _place_values(job: Job, task: PlaceTask) -> Record:
    """Write the spooled values of a piece to their places."""
    plan = job.plan
    start, end = plan.pieces[task.number :][:2]
    with job.open_store(job.columns(final=True)) as store:
        for i in plan.spooled:
            size = plan.fields[i].row_bytes("values")
            name = spool_name(task.number, i)
            counts = _read_counts(job, name + _COUNTS, end - start)
            with job.folder.file(SPOOL, name) as file:
                if file.size != int(counts.sum()) * size:
                    raise _changed(file.path)
                at = byte = 0
                while at < end - start:
                    job.check_wanted()
                    ends = np.cumsum(counts[at:]) * size
                    taken = max(int(np.searchsorted(ends, plan.batch, side="right")), 1)
                    length = int(ends[taken - 1])
                    data = np.frombuffer(file.read(byte, length), np.uint8)
                    targets = job.targets(start + at, start + at + taken)
                    store.write_values(i, targets, counts[at : at + taken], data)
                    at, byte = at + taken, byte + length
        store.sync()
        return Record(task, store.stretches())


def _read_counts(job: Job, name: bytes, rows: int) -> Ints:
    """Read how many values a task's samples have, as they were spooled."""
    with job.folder.file(SPOOL, name) as file:
        if file.size != 8 * rows:
            raise _changed(file.path)
        counts = np.frombuffer(file.read(0, file.size), np.int64)
        if rows and (counts.min() < 0 or counts.astype(float).sum() >= 1 << 62):
            raise _changed(file.path)
    return counts


def _sum_blocks(job: Job, task: SumsTask) -> Record:
    """Read blocks that were written in no order, for their checksums."""
    columns = job.columns(final=True)
    spot, start, end = columns.sum_ranges()[task.number]
    column = columns.file(spot)
    sums = []
    with job.folder.file(DATA, column.name) as file:
        for block in range(start, end, column.block):
            job.check_wanted()
            found, stop = 0, min(block + column.block, end)
            for at in range(block, stop, _AT_ONCE):
                data = file.read(len(column.header) + at, min(_AT_ONCE, stop - at))
                found = crc32(data, found)
            sums.append(found)
    return Record(task, {spot: Stretch(start, end, sums)})
