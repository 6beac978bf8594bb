"""A plan carried out: everything prepared, pieces in their order, the parts of a manifest.

Whatever is done is done so that it can be done again: a run that finds the folder of an earlier
one prepares what is prepared already, and has only those pieces done that the journal lacks.
"""

import json
import os
from collections.abc import Callable

import numpy as np

from ndfeed.errors import SpaceError, shown
from ndfeed.files import write
from ndfeed.files.write import Output
from ndfeed.formats.manifest import Part
from ndfeed.index.table import Ints
from ndfeed.pack.columns import Columns, Spot
from ndfeed.pack.commit import MOST_FILES, Commits
from ndfeed.pack.engine import Orders, Pool
from ndfeed.pack.forecast import needed
from ndfeed.pack.journal import Journal, Record
from ndfeed.pack.members import Watch
from ndfeed.pack.piece import DATA, ORDER, PLAN, SPOOL, VALUES, spool_names, summed
from ndfeed.pack.plan import Plan
from ndfeed.pack.store import as_bytes
from ndfeed.pack.work import JOURNAL, Work

PUBLISHING = "publish"

Progress = Callable[[int, int], None]  # rows and bytes that were written now


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

    def run(self) -> tuple[Part, ...]:
        """Do all that is not done; what the manifest says of the parts then.

        The journal says that they are about to be published, from where on nothing is touched.
        """
        journal = Journal(self._work.path(JOURNAL))
        try:
            if PUBLISHING not in journal.done and not self._in_place():
                journal.forget()
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

    def _in_place(self) -> bool:
        """Are the folders there that finished pieces were written to?

        Not where nothing was begun, nor where parts were moved to the target already and the note
        that they would be is damaged.
        """
        folders = map(self._columns.folder, range(len(self._plan.parts) - 1))
        return all(write.present(self._work.path(DATA, name.encode())) for name in folders)

    def _parts(self, journal: Journal) -> tuple[Part, ...]:
        stretches = journal.stretches()
        return tuple(self._columns.part(n, stretches) for n in range(len(self._plan.parts) - 1))

    def _check_members(self, journal: Journal) -> None:
        """Compare the checksums of stored members that several pieces have read."""
        in_order = self._plan.shuffle is None and not self._plan.scattered
        watch = Watch(self._source, self._plan.pieces, in_order=in_order)
        read = journal.read()
        for member in watch.split():
            watch.check(member, read.get(str(member), []))

    def _do(self, journal: Journal, tasks: list[str]) -> None:
        left = [task for task in tasks if task not in journal.done]
        paths = self._synced_here() if left and left[0].startswith("rows") else []
        with Commits(journal, paths, needed(self._plan)) as commits:

            def note(records: list[Record]) -> None:
                commits.add(records)
                self._progress(sum(r["rows"] for r in records), sum(r["bytes"] for r in records))

            orders = Orders(self._work.folder, self._plan.digest, not paths, note, self._described)
            self._pool.run(orders, left)

    def _synced_here(self) -> list[bytes]:
        """The files to sync for the workers, where these are on this machine."""
        spots = [s for s in self._columns.spots() if s.role in ("rows", "values")]
        if not self._pool.own or self._plan.spooled or len(spots) > MOST_FILES:
            return []
        return [self._work.path(DATA, self._columns.file(spot).name) for spot in spots]

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
        work, plan, columns = self._work, self._plan, self._columns
        write.make_folder(work.path(DATA))
        for part in range(len(plan.parts) - 1):
            write.make_folder(work.path(DATA, columns.folder(part).encode()))
        known = [
            spot
            for spot in columns.spots()
            if spot.role != "values" or columns.values[spot.part][spot.field] is not None
        ]
        self._allocate(columns, known)
        if plan.spooled:
            write.make_folder(work.path(SPOOL))
            for i in plan.spooled:
                with Output(work.path(spool_names(0, i).shapes), new=True) as output:
                    output.allocate(8 * len(plan.fields[i].shape) * plan.rows)
        if self._order is not None:
            write.write_file(work.path(ORDER), as_bytes(self._order).tobytes())
        write.write_file(work.path(PLAN), plan.encoded())
        write.sync_folder(work.folder)
        write.sync_folder(work.parent)

    def _allocate(self, columns: Columns, spots: list[Spot]) -> None:
        for spot in spots:
            file = columns.file(spot)
            with Output(self._work.path(DATA, file.name), new=True) as output:
                output.allocate(file.size)
                output.write(0, file.header)
                output.sync()
        for part in range(len(columns.rows)):
            write.sync_folder(self._work.path(DATA, columns.folder(part).encode()))
        write.sync_folder(self._work.path(DATA))

    def _allocate_values(self, journal: Journal) -> None:
        """Make the files whose sizes are known only when all lengths are."""
        plan = self._plan
        values = self._values(journal)
        write.write_file(self._work.path(VALUES), json.dumps(values).encode())
        self._columns = plan.columns_with(values)
        spots = [s for s in self._columns.spots() if s.role == "values" and s.field in plan.spooled]
        self._allocate(self._columns, spots)

    def _values(self, journal: Journal) -> tuple[tuple[int | None, ...], ...]:
        """How many values each ragged field has in each part, all of them known."""
        count = len(self._plan.fields)
        values = [list(part) for part in self._plan.values]
        for part in range(len(values)):
            for i in self._plan.spooled:
                values[part][i] = journal.done[f"offsets {part * count + i}"]["values"]
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
