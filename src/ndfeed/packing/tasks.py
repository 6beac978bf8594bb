"""The tasks of a plan: each needs only the plan's folder and the dataset, on any machine.

    rows N      read the rows of piece N, and write them to their places
    offsets N   write where the samples of a ragged field of a part start
    place N     write the ragged values that the maps made of piece N, their places being known
    sums N      read blocks that were written in no order, for their checksums

A task writes the same whatever was there before, so it may run twice, or in two processes at
once. What it returns is for the journal: its output is synced by then.

The values that maps make for ragged fields wait in ``spool/N.FIELD``, with their counts beside
them, and their shapes go to ``shapes.FIELD``, row by row: their places are known when all are made.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from ndfeed.dataset.column import Column
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.decoding import verify
from ndfeed.dataset.row_selection import stretches
from ndfeed.files.write import Output
from ndfeed.formats.description import RAW
from ndfeed.formats.inflate import crc32
from ndfeed.formats.manifest import Field, Role
from ndfeed.index.table import Ints
from ndfeed.packing.column_values import Stored, cast_flat, to_stored_values
from ndfeed.packing.columns import Columns, Spot, Store, as_bytes
from ndfeed.packing.job import DATA, SPOOL, Job, changed
from ndfeed.packing.journal import Record
from ndfeed.packing.member_checksums import Summing
from ndfeed.packing.plan import lengths
from ndfeed.packing.source_rows import Reading, chunks

_AT_ONCE = 1 << 20
_SUMMED = 64 << 20


class Stopped(Exception):
    """Nobody wants the result of the task any more."""


_jobs: dict[bytes, Job] = {}  # by folder, only the newest
_lock = threading.Lock()
stopped: set[bytes] = set()  # folders whose tasks in threads of this process should end


def work(folder: bytes, digest: str, ds: Dataset, task: str, synced: bool = True) -> Record:
    """Run a task of the plan in ``folder``; with ``synced`` it syncs its output itself.

    ``digest`` is that of the plan's file, so that no other plan is mistaken for it.
    """
    with _lock:
        job = _jobs.get(folder)
        if job is None or job.digest != digest:
            _jobs.clear()
            job = _jobs[folder] = Job(folder, digest, ds)
    kind, number = task.split()
    made = _rows(job, int(number), synced) if kind == "rows" else _KINDS[kind](job, int(number))
    return {"task": task, **made}


def forget(folder: bytes) -> None:
    """Drop a plan from this process."""
    with _lock:
        _jobs.pop(folder, None)
        stopped.discard(folder)


def _check(job: Job) -> None:
    if job.path in stopped:
        raise Stopped


def _rows(job: Job, number: int, synced: bool) -> Record:
    plan, source = job.plan, job.source
    start, end = plan.pieces[number : number + 2]
    _verify(job, number)
    summing = job.watch.summing()
    with ExitStack() as stack:
        reading = stack.enter_context(Reading(source, summing.rows))
        store = job.store(job.columns)
        stack.enter_context(store)
        spools = {i: stack.enter_context(_Spool(job, number, i)) for i in plan.spooled}
        written = 0
        for targets in _batches(job, start, end):
            _check(job)
            rows = plan.rows_of(targets)
            if len(rows) == 1 and not source.ds.steps and source.sizes(rows)[0] > plan.large:
                written += _one_large(job, reading, store, int(targets[0]), int(rows[0]))
                continue
            batch = reading.read(rows)
            for i, field in enumerate(plan.fields):
                made = to_stored_values(field, batch, rows, source)
                written += len(made.data)
                if i in spools:
                    spools[i].put(targets, made)
                else:
                    _put(store, i, field, targets, made)
        if synced:
            store.sync()
        for spool in spools.values():
            spool.sync()
        if spools:  # including the names of new files: the journal will mention them
            with job.folder.inner(SPOOL) as folder:
                folder.sync()
    read = _checked(job, number, summing)
    return {"wrote": store.wrote(), "rows": end - start, "bytes": written, **read}


def _put(store: Store, number: int, field: Field, targets: Ints, made: Stored) -> None:
    if "values" in field.roles:
        store.values(number, targets, lengths(field, made.shapes), made.data)
    else:
        store.rows(number, targets, made.data)


def _checked(job: Job, number: int, summing: Summing) -> Record:
    """Compare checksums of members that this task has read whole; return the other sums."""
    whole = job.watch.whole(number)
    for member in whole:
        job.watch.check(member, summing.of(member))
    left = summing.left(whole)
    return {"read": left} if left else {}


def _one_large(job: Job, reading: Reading, store: Store, target: int, row: int) -> int:
    """Copy a row that is larger than memory; return its size in bytes."""
    numbers = {field.name: (i, field) for i, field in enumerate(job.plan.fields)}
    written = 0
    for name, values in chunks(job.source, reading, row, job.plan.batch):
        i, field = numbers[name]
        role: Role = "values" if "values" in field.roles else "rows"
        at = 0
        for chunk in values:
            _check(job)
            data = as_bytes(cast_flat(field, chunk, row, job.source))
            store.part_of_row(i, role, target, at, data)
            at += len(data)
        written += at
    return written


def _batches(job: Job, start: int, end: int) -> Iterator[Ints]:
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


def _verify(job: Job, number: int) -> None:
    """Compare checksums of stored members that are not computed while they are read.

    Each member is checked by one task; this does those of task ``number``.
    """
    every = len(job.plan.pieces) - 1
    for group in job.source.ds.groups:
        if not group.by_file:
            columns = [
                Column(c.field, c.table, c.arrays[number::every], c.whole[number::every])
                for c in group.columns
                if (c.coding == RAW).any() and not job.watch.sees(c)
            ]
            if columns:
                verify(columns)


class _Spool:
    """Ragged values that maps made in a task, until their places are known."""

    def __init__(self, job: Job, number: int, field: int) -> None:
        names = spool_names(number, field)
        self._stack = ExitStack()
        self._folder = job.folder
        self._values = self._output(names.values)
        self._counts = self._output(names.counts)
        self._shapes = self._stack.enter_context(job.folder.output(names.shapes))
        self._field = job.plan.fields[field]
        self._at = self._rows = 0

    def _output(self, name: bytes) -> Output:
        output = self._stack.enter_context(self._folder.output(SPOOL, name, new=True))
        output.allocate(0)
        return output

    def put(self, targets: Ints, made: Stored) -> None:
        """Store the values of some rows."""
        self._values.write(self._at, made.data.data)
        self._at += len(made.data)
        counts = lengths(self._field, made.shapes)
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

    def __enter__(self) -> "_Spool":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


class SpoolNames(NamedTuple):
    """The files of a spooled field."""

    values: bytes
    counts: bytes
    shapes: bytes


def spool_names(number: int, field: int) -> SpoolNames:
    """Return the files that hold a spooled field of a task."""
    return SpoolNames(
        b"%d.%d" % (number, field), b"%d.%d.n" % (number, field), b"shapes.%d" % field
    )


def _offsets(job: Job, number: int) -> Record:
    plan = job.plan
    part, field_number = divmod(number, len(plan.fields))
    field = plan.fields[field_number]
    start, end = plan.parts[part : part + 2]
    total = 0
    with job.in_order(job.columns) as store:
        begins = store.writer(Spot(part, field_number, "offsets"), 0)
        begins.append(as_bytes(np.zeros(1, "<i8")).data)
        for at in range(start, end, _AT_ONCE):
            _check(job)
            shapes = _shapes(job, field_number, at, min(at + _AT_ONCE, end))
            ends = total + np.cumsum(lengths(field, shapes))
            total = int(ends[-1])
            begins.append(as_bytes(ends.astype("<i8")).data)
            if "shapes" in field.roles:
                writer = store.writer(Spot(part, field_number, "shapes"), 0)
                writer.append(as_bytes(shapes.astype("<i8")).data)
        store.sync()
        return {"wrote": store.wrote(), "values": total, "rows": 0, "bytes": 0}


def _shapes(job: Job, field: int, start: int, end: int) -> Ints:
    """Read the shapes of a ragged field's samples in rows of the target."""
    if field not in job.plan.spooled:
        rows = job.plan.rows_of(np.arange(start, end))
        return job.source.shapes(job.plan.fields[field].name, rows)
    rank = len(job.plan.fields[field].shape)
    with job.folder.file(spool_names(0, field).shapes) as file:
        data = file.read(8 * rank * start, 8 * rank * (end - start))
        shapes = np.frombuffer(data, np.int64).reshape(-1, rank)
        # As floats, which do not overflow: their product is the number of a sample's values.
        if (shapes < 0).any() or (shapes.astype(float).prod(axis=1) >= 1 << 62).any():
            raise changed(file.path)
    return shapes


def _place(job: Job, number: int) -> Record:
    plan = job.plan
    start, end = plan.pieces[number : number + 2]
    with job.store(job.final_columns) as store:
        for i in plan.spooled:
            size = plan.fields[i].row_bytes("values")
            names = spool_names(number, i)
            counts = _counts(job, names.counts, end - start)
            with job.folder.file(SPOOL, names.values) as file:
                if file.size != int(counts.sum()) * size:
                    raise changed(file.path)
                at = byte = 0
                while at < end - start:
                    _check(job)
                    ends = np.cumsum(counts[at:]) * size
                    taken = max(int(np.searchsorted(ends, plan.batch, side="right")), 1)
                    length = int(ends[taken - 1])
                    data = np.frombuffer(file.read(byte, length), np.uint8)
                    targets = job.targets(start + at, start + at + taken)
                    store.values(i, targets, counts[at : at + taken], data)
                    at, byte = at + taken, byte + length
        store.sync()
        return {"wrote": store.wrote(), "rows": 0, "bytes": 0}


def _counts(job: Job, name: bytes, rows: int) -> Ints:
    """Read how many values a task's samples have, as they were spooled."""
    with job.folder.file(SPOOL, name) as file:
        if file.size != 8 * rows:
            raise changed(file.path)
        counts = np.frombuffer(file.read(0, file.size), np.int64)
        if rows and (counts.min() < 0 or counts.astype(float).sum() >= 1 << 62):
            raise changed(file.path)
    return counts


def sum_checksums(columns: Columns) -> list[tuple[Spot, int, int]]:
    """Return the byte ranges after headers to read for their checksums, split between blocks."""
    found = []
    for spot in columns.spots():
        if spot.role in ("rows", "values"):
            file = columns.file(spot)
            step = max(_SUMMED // max(file.block, 1), 1) * file.block
            found += [
                (spot, at, min(at + step, file.data)) for at in range(0, file.data, step or 1)
            ]
    return found


def _sums(job: Job, number: int) -> Record:
    columns = job.final_columns
    spot, start, end = sum_checksums(columns)[number]
    column = columns.file(spot)
    sums = []
    with job.folder.file(DATA, column.name) as file:
        for at in range(start, end, column.block):
            _check(job)
            found = 0
            for piece in range(at, min(at + column.block, end), _AT_ONCE):
                length = min(_AT_ONCE, at + column.block - piece, end - piece)
                found = crc32(file.read(len(column.header) + piece, length), found)
            sums.append(found)
    return {"wrote": {str(spot): (start, end, sums)}, "rows": 0, "bytes": 0}


_KINDS = {"offsets": _offsets, "place": _place, "sums": _sums}
