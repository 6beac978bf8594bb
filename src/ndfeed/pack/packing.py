"""A plan carried out: everything prepared, pieces in their order, the parts of a manifest.

Whatever is done is done so that it can be done again: a run that finds the folder of an earlier
one prepares what is prepared already, and has only those pieces done that the journal lacks.
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
from ndfeed.pack.claims import Claims
from ndfeed.pack.columns import Columns, Spot
from ndfeed.pack.commit import MOST_FILES, Commits
from ndfeed.pack.engine import Orders, Pool
from ndfeed.pack.forecast import needed
from ndfeed.pack.job import DATA, ORDER, PLAN, SPOOL, VALUES
from ndfeed.pack.journal import PUBLISHING, Journal, Record
from ndfeed.pack.members import Watch
from ndfeed.pack.piece import spool_names, summed
from ndfeed.pack.plan import Plan
from ndfeed.pack.store import as_bytes
from ndfeed.pack.work import JOURNAL, Work

Progress = Callable[[int, int], None]  # rows and bytes that were written now


class _Uncovered(Exception):
    """The journal says that all is done, but some bytes of the columns are in no record."""


class Packing:
    """Carries out a plan in a folder that is owned."""

    def __init__(
        self, work: Work, plan: Plan, order: Ints | None, pool: Pool, progress: Progress
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
        """Do all that is not done; what the manifest says of the parts then.

        The journal says that they are about to be published, from where on nothing is touched.
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
                self._work.remove()  # its room may be what is missing elsewhere
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
            self._do(journal, [f"sums {n}" for n in range(len(summed(self._columns)))])
        self._check_members(journal)
        parts = self._parts(journal)
        journal.note([{"task": PUBLISHING}])
        return parts

    def _in_place(self, *, published: bool) -> bool:
        """Are the folders there that finished pieces were written to?

        Not where nothing was begun, nor where parts were moved to the target already and the note
        that they would be is damaged.
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
        """Compare the checksums of stored members that several pieces have read."""
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
        """The files to sync for the workers, where these are on this machine."""
        spots = [s for s in self._columns.spots() if s.role in ("rows", "values")]
        if not self._pool.own or self._plan.spooled or len(spots) > MOST_FILES:
            return []
        return [b"/".join([DATA, self._columns.file(spot).name]) for spot in spots]

    def _described(self, task: str) -> str:
        """A piece for people: its rows, and the files they come from."""
        kind, number = task.split()
        if kind not in ("rows", "place"):
            return f"piece {task!r}"
        start, end = self._plan.pieces[int(number) : int(number) + 2]
        files = [self._source.path_of(row) for row in self._ends(start, end)]
        return f"piece {task!r}, {end - start} rows of {shown(files[0])} to {shown(files[1])}"

    def _ends(self, start: int, end: int) -> list[int]:
        """The first and the last row of the dataset at some places of the work."""
        at = np.array([start, end - 1])
        rows = self._plan.rows_of(at if self._order is None else self._order[at])
        return [int(row) for row in rows]

    def _prepare(self) -> None:
        """Folders, files of their final size with their headers, and the plan behind them."""
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
        """Compare how many values there are to be with how many the maps made."""
        pieces = range(len(self._plan.pieces) - 1)
        with self._work.inside.inner(SPOOL) as spool:
            for i in self._plan.spooled:
                found = [spool.status(spool_names(n, i).values) for n in pieces]
                nbytes = sum(one.st_size for one in found if one is not None)
                size = self._plan.fields[i].row_bytes("values")
                if nbytes != size * sum(part[i] or 0 for part in values):
                    raise _Uncovered(f"{self._plan.fields[i]}: other lengths than were written")

    def _values(self, journal: Journal) -> tuple[tuple[int | None, ...], ...]:
        """How many values each ragged field has in each part, all of them known."""
        count = len(self._plan.fields)
        values = [list(part) for part in self._plan.values]
        for part in range(len(values)):
            for i in self._plan.spooled:
                record = journal.done.get(f"offsets {part * count + i}")
                if record is None:
                    raise _Uncovered("lengths of samples were not written")
                values[part][i] = record["values"]
        return tuple(map(tuple, values))


def check_space(work: Work, plan: Plan) -> None:
    """Refuse to begin what the disk has no room for."""
    free = write.free_bytes(work.parent)
    wanted = needed(plan)
    if free is not None and wanted > free and not work.begun:
        raise SpaceError(
            work.target,
            f"{wanted:,} bytes needed, {free:,} free on {os.fsdecode(work.parent)}; make room, "
            f"or choose a target elsewhere",
        )
