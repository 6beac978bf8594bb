"""Runs a plan: prepares the files, runs the tasks, and makes the result appear in one step.

Everything is repeatable: a run that finds the staging folder of an earlier one skips what is
prepared already, and runs only those tasks that the journal lacks. The dataset appears only where
nothing else is.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.open import open as open_dataset
from ndfeed.errors import (
    CastError,
    ChangedError,
    ConflictError,
    Error,
    FormatError,
    SchemaError,
    SpaceError,
    shown,
)
from ndfeed.files import write
from ndfeed.files.folder import Folder
from ndfeed.formats.manifest import NAME, Manifest, Part
from ndfeed.index.table import Ints
from ndfeed.packing.columns import Columns, Spot, as_bytes
from ndfeed.packing.executors import Stage, Worker, WorkerPool
from ndfeed.packing.journal import (
    MOST_FILES,
    Commits,
    Journal,
    PlanCheck,
    Publishing,
    Record,
    name_task,
)
from ndfeed.packing.member_checksums import MemberChecks
from ndfeed.packing.plan import OffsetsTask, PlaceTask, Plan, RowsTask, Task
from ndfeed.packing.request import Request, find_manifest
from ndfeed.packing.staging_folder import JOURNAL, StagingFolder, record_inodes
from ndfeed.packing.tasks import DATA, ORDER, PLAN, SPOOL, VALUES, shapes_name, spool_name

_RESUME = "rerun to resume: finished work is reused"

Progress = Callable[[int, int], None]  # rows and bytes that were just written


def run_pack(
    request: Request,
    plan: Plan,
    order: Ints | None,
    before: Manifest | None,
    pool: WorkerPool,
    progress: Progress,
) -> Dataset:
    """Run a plan whose target lacks it, and open the dataset; ``before`` is what is appended to."""
    work = StagingFolder(request.target, plan.digest)
    _check_space(work, plan)
    if before is not None:
        check_places(work, plan)
    work.warn_of_leftovers()
    with work, _keep_for_resume(work):
        work.remove_others(lambda: _list_parts(request.target))
        parts = _PackRun(work, plan, order, request, pool, progress).run()
        request.source.check_unchanged()
        _publish(work, plan, parts, before)
    return open_dataset(os.fsdecode(request.target))


def open_finished(work: StagingFolder) -> Dataset:
    """Open a target that has everything; remove what a run that was interrupted late left."""
    if work.list_leftovers():
        with suppress(ConflictError), work:  # else somebody is about to add to it
            work.remove_others(lambda: _list_parts(work.target))
            work.remove()
    return open_dataset(os.fsdecode(work.target))


def _check_space(work: StagingFolder, plan: Plan) -> None:
    """Refuse to start if the disk does not have enough space."""
    free = write.free_bytes(work.parent)
    needed = plan.columns.known_bytes
    if free is not None and needed > free and not work.exists:
        raise SpaceError(
            work.target,
            f"{needed:,} bytes needed, {free:,} free on {os.fsdecode(work.parent)}",
            remedy="free some space, or choose a target elsewhere",
        )


@contextmanager
def _keep_for_resume(work: StagingFolder) -> Iterator[None]:
    """After an error keep finished work for the same call to resume, unless that cannot help."""
    try:
        yield
    except (CastError, ChangedError, ConflictError, FormatError, SchemaError):
        _discard(work)  # fixing that makes another plan
        raise
    except BaseException as error:
        if work.is_resumable:
            error.add_note(_RESUME)
        else:
            _discard(work)
        raise


def _discard(work: StagingFolder) -> None:
    """Remove a staging folder after an error, which is the one to report."""
    with suppress(Error):
        work.remove()


def _list_parts(target: bytes) -> frozenset[str]:
    """Return the parts that the manifest of a target lists at this moment."""
    manifest = find_manifest(target)
    return frozenset(part.folder for part in manifest.parts) if manifest else frozenset()


class _Uncovered(Exception):
    """The journal says that all is done, but some bytes of the columns are in no record."""


class _PackRun:
    """Runs a plan in a staging folder that this process owns."""

    def __init__(
        self,
        work: StagingFolder,
        plan: Plan,
        order: Ints | None,
        request: Request,
        pool: WorkerPool,
        progress: Progress,
    ) -> None:
        self._work = work
        self._plan = plan
        self._order = order
        self._source = request.source
        self._pool = pool
        self._progress = progress
        self._columns = plan.columns
        self._encoded = plan.encode()
        digest = hashlib.sha256(self._encoded).hexdigest()
        self._worker = Worker(work.folder, digest, request.source.ds)

    def run(self) -> tuple[Part, ...]:
        """Run all tasks that are not done; return the manifest's entries for the parts.

        The journal then says that they are about to be published; from there on nothing is changed.
        """
        work = self._work
        journal = Journal(work.inside, JOURNAL, work.seal, PlanCheck(self._plan))
        try:
            if not self._has_folders(journal):
                journal.clear()
            resumed = bool(journal.done or journal.publishing)
            try:
                return self._run(journal)
            except _Uncovered as error:
                if not resumed:
                    raise ChangedError(
                        work.folder, f"changed while it was in use: {error}"
                    ) from None
            journal.clear()  # an earlier run left a journal that is wrong
            self._columns = self._plan.columns
            return self._run(journal)
        finally:
            self._worker.close()
            journal.close()

    def _run(self, journal: Journal) -> tuple[Part, ...]:
        plan = self._plan
        if journal.publishing:  # what is prepared may have been moved already
            self._columns = plan.columns_with(self._count_values(journal))
            return self._describe_parts(journal)
        try:
            self._prepare()
        except SpaceError:
            if not journal.done:
                self._work.remove()  # its space may be what is missing elsewhere
            raise
        done = [record for task, record in journal.done.items() if isinstance(task, RowsTask)]
        self._progress(sum(r.rows for r in done), sum(r.nbytes for r in done))
        if plan.spooled:
            self._run_stage(journal, plan.rows_tasks())
            self._run_stage(journal, plan.offsets_tasks())
            self._allocate_values(journal)
            self._run_stage(journal, plan.place_tasks())
        else:
            self._run_stage(journal, plan.offsets_tasks())
            self._run_stage(journal, plan.rows_tasks())
        self._run_stage(journal, plan.sums_tasks(self._columns))
        checks = MemberChecks(self._source, plan.pieces, in_order=plan.in_order)
        checks.check_shared(journal.read())
        parts = self._describe_parts(journal)
        journal.append([Publishing()])
        return parts

    def _has_folders(self, journal: Journal) -> bool:
        """Are the folders there that finished tasks were written to?

        Not where nothing was started, nor where parts were moved to the target already and the
        record that they would be is damaged.
        """
        folders = map(self._columns.folder, range(len(self._plan.parts) - 1))
        gone = [n for n in folders if not write.present(self._work.inside.joined(DATA, n.encode()))]
        if not gone or not journal.publishing:
            return not gone
        return self._work.moved_parts().are_in(self._work.beside, self._work.name, gone)

    def _describe_parts(self, journal: Journal) -> tuple[Part, ...]:
        """Return the manifest's entries for the parts, whose bytes must all be recorded."""
        written = journal.written()
        try:
            parts = range(len(self._plan.parts) - 1)
            return tuple(self._columns.describe_part(n, written) for n in parts)
        except ValueError as error:
            raise _Uncovered(str(error)) from None

    def _run_stage(self, journal: Journal, tasks: list[Task]) -> None:
        """Run those of some tasks that are not done, and record them."""
        left = [task for task in tasks if task not in journal.done]
        if not left:
            return
        names = self._files_to_sync() if isinstance(left[0], RowsTask) else []
        with Commits(journal, self._work.inside, names, self._plan.columns.known_bytes) as commits:

            def record(records: list[Record]) -> None:
                commits.add(records)
                self._progress(sum(r.rows for r in records), sum(r.nbytes for r in records))

            self._pool.run(Stage(self._worker, left, not names, record, self._describe_task))

    def _files_to_sync(self) -> list[bytes]:
        """Return the files to sync for the workers, where these are on this machine."""
        spots = [s for s in self._columns.spots() if s.role in ("rows", "values")]
        if not self._pool.is_local or self._plan.spooled or len(spots) > MOST_FILES:
            return []
        return [b"/".join([DATA, self._columns.file(spot).name]) for spot in spots]

    def _describe_task(self, task: Task) -> str:
        """Describe a task for people: its rows, and the files they come from."""
        name = f"task {name_task(task)!r}"
        if not isinstance(task, RowsTask | PlaceTask):
            return name
        start, end = self._plan.pieces[task.number :][:2]
        at = np.array([start, end - 1])
        rows = self._plan.rows_of(at if self._order is None else self._order[at])
        first, last = (shown(self._source.path_of(int(row))) for row in rows)
        return f"{name} ({end - start} rows of {first} to {last})"

    def _prepare(self) -> None:
        """Make folders, files of their final size with their headers, and last the plan."""
        inside, plan, columns = self._work.inside, self._plan, self._columns
        with inside.inner(DATA, new=True) as data:
            for part in range(len(plan.parts) - 1):
                data.inner(columns.folder(part).encode(), new=True).close()
        self._allocate(columns, columns.known_spots())
        if plan.spooled:
            inside.inner(SPOOL, new=True).close()
            for i in plan.spooled:
                with inside.output(shapes_name(i), new=True) as output:
                    output.allocate(8 * len(plan.fields[i].shape) * plan.rows)
        if self._order is not None:
            inside.write(ORDER, as_bytes(self._order).tobytes())
        inside.write(PLAN, self._encoded)
        inside.sync()
        self._work.beside.sync()

    def _allocate(self, columns: Columns, spots: list[Spot]) -> None:
        """Make files of columns: of their final size, with their headers, synced."""
        with self._work.inside.inner(DATA) as data:
            for spot in spots:
                file = columns.file(spot)
                with data.output(file.name, new=True) as output:
                    output.allocate(file.size)
                    output.write(0, file.header)
                    output.sync()
            for part in range(len(columns.rows)):
                with data.inner(columns.folder(part).encode()) as folder:
                    folder.sync()
            data.sync()

    def _allocate_values(self, journal: Journal) -> None:
        """Make the files whose sizes are known only when all lengths are."""
        plan = self._plan
        values = self._count_values(journal)
        self._check_spooled(values)
        self._work.inside.write(VALUES, json.dumps(values).encode())
        self._columns = plan.columns_with(values)
        spots = [s for s in self._columns.spots() if s.role == "values" and s.field in plan.spooled]
        self._allocate(self._columns, spots)

    def _check_spooled(self, values: tuple[tuple[int | None, ...], ...]) -> None:
        """Compare the expected numbers of values with those that the maps made."""
        pieces = range(len(self._plan.pieces) - 1)
        with self._work.inside.inner(SPOOL) as spool:
            for i in self._plan.spooled:
                found = [spool.status(spool_name(n, i)) for n in pieces]
                nbytes = sum(one.st_size for one in found if one is not None)
                size = self._plan.fields[i].row_bytes("values")
                if nbytes != size * sum(part[i] or 0 for part in values):
                    raise _Uncovered(f"{self._plan.fields[i]}: other lengths than were written")

    def _count_values(self, journal: Journal) -> tuple[tuple[int | None, ...], ...]:
        """Return how many values each ragged field has in each part, all of them known."""
        count = len(self._plan.fields)
        values = [list(part) for part in self._plan.values]
        for part in range(len(values)):
            for i in self._plan.spooled:
                record = journal.done.get(OffsetsTask(part * count + i))
                if record is None:
                    raise _Uncovered("lengths of samples were not written")
                values[part][i] = record.values
        return tuple(map(tuple, values))


def _publish(
    work: StagingFolder, plan: Plan, parts: Sequence[Part], before: Manifest | None
) -> None:
    """Make the target appear, or its manifest change, in one step; then remove the work."""
    packs = (before.source or {}).get("packs", []) if before else []
    packs = [*(packs if isinstance(packs, list) else []), plan.pack._asdict()]
    old = before.parts if before else ()
    manifest = Manifest(plan.fields, (*old, *parts), {"packs": packs})
    inside, beside = work.inside, work.beside
    if before is None:
        with inside.inner(DATA) as data:
            data.write(NAME, manifest.encoded())
            data.sync()
        inside.move(DATA, beside, work.name)
        beside.sync()
    else:
        with beside.inner(work.name) as target:
            _check_unchanged(work.target, before)
            _add_parts(work, target, parts)
            inside.write(NAME, manifest.encoded())
            _check_unchanged(work.target, before)
            inside.move(NAME, target, NAME, over=True)
            target.sync()
    work.remove()


def check_places(work: StagingFolder, plan: Plan) -> None:
    """Refuse at once to add parts where something exists that is not ours to remove."""
    moved = work.moved_parts()
    with Folder(work.parent, followed=True) as beside, beside.inner(work.name) as target:
        for part in range(len(plan.parts) - 1):
            moved.refuse_others(target, plan.columns.folder(part))


def _add_parts(work: StagingFolder, target: Folder, parts: Sequence[Part]) -> None:
    """Move the new parts into place; nobody sees them before the manifest lists them."""
    before = work.moved_parts()
    with work.inside.inner(DATA) as data:
        new = record_inodes(data, {p.folder: tuple(c.file for c in p.columns) for p in parts})
        for name in new.parts:
            before.refuse_others(target, name)
            # Not in the manifest, so an earlier run left it behind.
            if work.is_alone and before.has(target, name):
                before.remove_part(target, name)
        if new.parts:
            (before | new).write(work.inside, work.seal)
        for name in new.parts:
            data.move(name.encode(), target, name.encode())
    target.sync()


def _check_unchanged(target: bytes, before: Manifest) -> None:
    now = find_manifest(target)
    if now is None or now.digest != before.digest:
        raise ConflictError(target, "somebody else changed it meanwhile", remedy="rerun")
