"""Runs a plan: prepares the files, runs the tasks, and checks what the journal claims.

Everything is repeatable: a run that finds the staging folder of an earlier one skips what is
prepared already, and runs only those tasks that the journal lacks.

``journal`` parses the lines; here they are compared with the plan. A claim that no task of the
plan would make is not trusted, nor is anything after it.
"""

import hashlib
import json
import os
from collections.abc import Callable

import numpy as np

from ndfeed.errors import ChangedError, SpaceError, shown
from ndfeed.files import write
from ndfeed.formats.manifest import Part
from ndfeed.index.table import Ints
from ndfeed.packing.columns import Columns, Spot, as_bytes, blocks_touched
from ndfeed.packing.executors import Orders, WorkerPool
from ndfeed.packing.job import DATA, ORDER, PLAN, SPOOL, VALUES
from ndfeed.packing.journal import MOST_FILES, PUBLISHING, Commits, Journal, Record
from ndfeed.packing.member_checksums import Watch
from ndfeed.packing.plan import Plan
from ndfeed.packing.request import needed
from ndfeed.packing.staging_folder import JOURNAL, StagingFolder
from ndfeed.packing.tasks import spool_names, sum_checksums


class Claims:
    """Checks the records of a journal in their order: may each be true?"""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._values = [list(part) for part in plan.values]
        self._columns = plan.columns
        self._summed: int | None = None

    def __call__(self, record: Record) -> bool:
        """Could a task of the plan have written that?"""
        if record["task"] == PUBLISHING:
            return True
        kind, number = record["task"].split()
        if not int(number) < self._count(kind):
            return False
        if kind == "offsets" and not self._learned(int(number), record["values"]):
            return False
        if kind == "rows":
            start, end = self._plan.pieces[int(number) : int(number) + 2]
            if record["rows"] != end - start:
                return False
        return all(self._written(spot, *stretch) for spot, stretch in record["wrote"].items())

    def _count(self, kind: str) -> int:
        plan = self._plan
        if kind == "offsets":
            return (len(plan.parts) - 1) * len(plan.fields)
        if kind == "sums":
            if self._summed is None:
                known = all(None not in values for values in self._ragged())
                self._summed = len(sum_checksums(self._columns)) if plan.scattered and known else 0
            return self._summed
        return len(plan.pieces) - 1 if kind == "rows" or plan.spooled else 0

    def _ragged(self) -> list[list[int | None]]:
        fields = [i for i, field in enumerate(self._plan.fields) if "values" in field.roles]
        return [[part[i] for i in fields] for part in self._values]

    def _learned(self, number: int, values: int) -> bool:
        """Remember how many values a ragged field has in a part."""
        part, field = divmod(number, len(self._plan.fields))
        if "values" not in self._plan.fields[field].roles:
            return False
        if field not in self._plan.spooled:
            return values == self._plan.values[part][field]
        if values * self._plan.fields[field].row_bytes("values") >= 1 << 62:
            return False
        self._values[part][field] = values
        self._columns = self._plan.columns_with(tuple(map(tuple, self._values)))
        return True

    def _written(self, name: str, start: int, end: int, sums: list[int]) -> bool:
        """Does a column have these bytes, and as many blocks as there are checksums?"""
        spot = self._spot(name)
        if spot is None:
            return False
        file = self._columns.file(spot)
        return end <= file.data and len(sums) == blocks_touched(file, start, end)

    def _spot(self, name: str) -> Spot | None:
        part, field, role = name.split(".")
        spot = Spot(int(part), int(field), role)  # type: ignore[arg-type]  # a role by its grammar
        plan = self._plan
        if str(spot) != name or spot.part >= len(plan.parts) - 1 or spot.field >= len(plan.fields):
            return None
        if role not in plan.fields[spot.field].roles:
            return None
        unknown = role == "values" and self._values[spot.part][spot.field] is None
        return None if unknown else spot


Progress = Callable[[int, int], None]  # rows and bytes that were just written


class _Uncovered(Exception):
    """The journal says that all is done, but some bytes of the columns are in no record."""


class PackRun:
    """Runs a plan in a staging folder that this process owns."""

    def __init__(
        self,
        work: StagingFolder,
        plan: Plan,
        order: Ints | None,
        pool: WorkerPool,
        progress: Progress,
    ) -> None:
        self._work = work
        self._plan = plan
        self._order = order
        self._source = pool.source
        self._pool = pool
        self._progress = progress
        self._columns = plan.columns
        self._encoded = plan.encoded()
        self._digest = hashlib.sha256(self._encoded).hexdigest()

    def run(self) -> tuple[Part, ...]:
        """Run all tasks that are not done; return the manifest's entries for the parts.

        The journal then says that they are about to be published; from there on nothing is changed.
        """
        work = self._work
        journal = Journal(work.inside, JOURNAL, work.seal, Claims(self._plan))
        try:
            if not self._in_place(published=PUBLISHING in journal.done):
                journal.forget()
            again = bool(journal.done)
            try:
                return self._run(journal)
            except _Uncovered as error:
                if not again:
                    raise ChangedError(work.folder, f"changed meanwhile: {error}") from None
            journal.forget()  # an earlier run left a journal that is wrong
            self._columns = self._plan.columns
            return self._run(journal)
        finally:
            journal.close()

    def _run(self, journal: Journal) -> tuple[Part, ...]:
        plan = self._plan
        if PUBLISHING in journal.done:  # what is prepared may have been moved already
            self._columns = plan.columns_with(self._values(journal))
            return self._parts(journal)
        try:
            self._prepare()
        except SpaceError:
            if not journal.done:
                self._work.remove()  # its space may be what is missing elsewhere
            raise
        done = [record for task, record in journal.done.items() if task.startswith("rows")]
        self._progress(sum(r["rows"] for r in done), sum(r["bytes"] for r in done))
        pieces = range(len(plan.pieces) - 1)
        ragged = [i for i, field in enumerate(plan.fields) if "values" in field.roles]
        offsets = [
            f"offsets {part * len(plan.fields) + i}"
            for part in range(len(plan.parts) - 1)
            for i in ragged
        ]
        stages = [offsets, [f"rows {n}" for n in pieces]]
        if plan.spooled:
            stages = [stages[1], offsets]
        for stage in stages:
            self._do(journal, stage)
        if plan.spooled:
            self._allocate_values(journal)
            self._do(journal, [f"place {n}" for n in pieces])
        if plan.scattered:
            self._do(journal, [f"sums {n}" for n in range(len(sum_checksums(self._columns)))])
        self._check_members(journal)
        parts = self._parts(journal)
        journal.note([{"task": PUBLISHING}])
        return parts

    def _in_place(self, *, published: bool) -> bool:
        """Are the folders there that finished tasks were written to?

        Not where nothing was started, nor where parts were moved to the target already and the
        record that they would be is damaged.
        """
        folders = map(self._columns.folder, range(len(self._plan.parts) - 1))
        gone = [n for n in folders if not write.present(self._work.inside.joined(DATA, n.encode()))]
        if not gone or not published:
            return not gone
        return self._work.moved().hold(self._work.beside, self._work.name, gone)

    def _parts(self, journal: Journal) -> tuple[Part, ...]:
        stretches = journal.stretches()
        parts = range(len(self._plan.parts) - 1)
        try:
            return tuple(self._columns.part(n, stretches) for n in parts)
        except ValueError as error:
            raise _Uncovered(str(error)) from None

    def _check_members(self, journal: Journal) -> None:
        """Compare the checksums of stored members that several tasks have read."""
        in_order = self._plan.shuffle is None and not self._plan.scattered
        watch = Watch(self._source, self._plan.pieces, in_order=in_order)
        read = journal.read()
        for member in watch.split():
            watch.check(member, read.get(str(member), []))

    def _do(self, journal: Journal, tasks: list[str]) -> None:
        left = [task for task in tasks if task not in journal.done]
        names = self._synced_here() if left and left[0].startswith("rows") else []
        with Commits(journal, self._work.inside, names, needed(self._plan)) as commits:

            def note(records: list[Record]) -> None:
                commits.add(records)
                self._progress(sum(r["rows"] for r in records), sum(r["bytes"] for r in records))

            orders = Orders(self._work.folder, self._digest, not names, note, self._described)
            self._pool.run(orders, left)

    def _synced_here(self) -> list[bytes]:
        """Return the files to sync for the workers, where these are on this machine."""
        spots = [s for s in self._columns.spots() if s.role in ("rows", "values")]
        if not self._pool.own or self._plan.spooled or len(spots) > MOST_FILES:
            return []
        return [b"/".join([DATA, self._columns.file(spot).name]) for spot in spots]

    def _described(self, task: str) -> str:
        """Describe a task for people: its rows, and the files they come from."""
        kind, number = task.split()
        if kind not in ("rows", "place"):
            return f"piece {task!r}"
        start, end = self._plan.pieces[int(number) : int(number) + 2]
        files = [self._source.path_of(row) for row in self._ends(start, end)]
        return f"piece {task!r}, {end - start} rows of {shown(files[0])} to {shown(files[1])}"

    def _ends(self, start: int, end: int) -> list[int]:
        """Return the first and the last row of the dataset at some places of the work."""
        at = np.array([start, end - 1])
        rows = self._plan.rows_of(at if self._order is None else self._order[at])
        return [int(row) for row in rows]

    def _prepare(self) -> None:
        """Make folders, files of their final size with their headers, and last the plan."""
        inside, plan, columns = self._work.inside, self._plan, self._columns
        with inside.inner(DATA, new=True) as data:
            for part in range(len(plan.parts) - 1):
                data.inner(columns.folder(part).encode(), new=True).close()
        known = [
            spot
            for spot in columns.spots()
            if spot.role != "values" or columns.values[spot.part][spot.field] is not None
        ]
        self._allocate(columns, known)
        if plan.spooled:
            inside.inner(SPOOL, new=True).close()
            for i in plan.spooled:
                with inside.output(spool_names(0, i).shapes, new=True) as output:
                    output.allocate(8 * len(plan.fields[i].shape) * plan.rows)
        if self._order is not None:
            inside.write(ORDER, as_bytes(self._order).tobytes())
        inside.write(PLAN, self._encoded)
        inside.sync()
        self._work.beside.sync()

    def _allocate(self, columns: Columns, spots: list[Spot]) -> None:
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
        values = self._values(journal)
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
                found = [spool.status(spool_names(n, i).values) for n in pieces]
                nbytes = sum(one.st_size for one in found if one is not None)
                size = self._plan.fields[i].row_bytes("values")
                if nbytes != size * sum(part[i] or 0 for part in values):
                    raise _Uncovered(f"{self._plan.fields[i]}: other lengths than were written")

    def _values(self, journal: Journal) -> tuple[tuple[int | None, ...], ...]:
        """Return how many values each ragged field has in each part, all of them known."""
        count = len(self._plan.fields)
        values = [list(part) for part in self._plan.values]
        for part in range(len(values)):
            for i in self._plan.spooled:
                record = journal.done.get(f"offsets {part * count + i}")
                if record is None:
                    raise _Uncovered("lengths of samples were not written")
                values[part][i] = record["values"]
        return tuple(map(tuple, values))


def check_space(work: StagingFolder, plan: Plan) -> None:
    """Refuse to start if the disk does not have enough space."""
    free = write.free_bytes(work.parent)
    wanted = needed(plan)
    if free is not None and wanted > free and not work.begun:
        raise SpaceError(
            work.target,
            f"{wanted:,} bytes needed, {free:,} free on {os.fsdecode(work.parent)}",
            remedy="free some space, or choose a target elsewhere",
        )
