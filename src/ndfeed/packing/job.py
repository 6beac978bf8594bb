"""A plan in the process that runs one of its tasks, and the files that say what to do.

The plan's file is trusted if it has the digest given by the process that submits the tasks; the
other files as far as they can be: numbers are within their bounds, or it is an error.
"""

import hashlib
import json
import os
import socket

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import ChangedError, MissingError, WorkerError
from ndfeed.files.folder import Folder, read_contents
from ndfeed.index.table import Ints
from ndfeed.packing.columns import Columns, InOrder, Scattered, Store
from ndfeed.packing.member_checksums import Watch
from ndfeed.packing.plan import Plan
from ndfeed.packing.source_rows import Rows

PLAN, ORDER, VALUES, DATA, SPOOL = b"plan", b"order", b"values", b"data", b"spool"
_MOST_SMALL = 1 << 30  # bytes of a plan


class Job:
    """A plan in this process, and the folder it runs in."""

    def __init__(self, path: bytes, digest: str, ds: Dataset) -> None:
        self.path, self.digest = path, digest
        self.folder, self.plan = _opened(path, digest)
        in_order = self.plan.shuffle is None and not self.plan.scattered
        self.source = Rows(ds, names=self.plan.names, in_order=in_order)
        self.watch = Watch(self.source, self.plan.pieces, in_order=in_order)

    @property
    def columns(self) -> Columns:
        """Return the files to write, with all that is known by now."""
        if not self.plan.spooled:
            return self.plan.columns
        known = read_contents(self.folder, VALUES, _MOST_SMALL)
        return self.plan.columns if known is None else self._with_values(known)

    @property
    def final_columns(self) -> Columns:
        """Return the files to write, when the number of values of every field must be known."""
        if not self.plan.spooled:
            return self.plan.columns
        known = read_contents(self.folder, VALUES, _MOST_SMALL)
        if known is None:
            raise changed(self.folder.joined(VALUES))
        return self._with_values(known)

    def _with_values(self, known: bytes) -> Columns:
        return self.plan.columns_with(self._values(known))

    def _values(self, data: bytes) -> tuple[tuple[int | None, ...], ...]:
        """Parse the numbers of values in a file that the coordinating process has written."""
        try:
            found = json.loads(data)
            values = tuple(map(tuple, found))
        except (ValueError, TypeError, RecursionError):
            values = ()
        same = len(values) == len(self.plan.values) and all(
            len(new) == len(old)
            and all(a == b if b is not None else _may_be(a) for a, b in zip(new, old, strict=True))
            for new, old in zip(values, self.plan.values, strict=True)
        )
        if not same:
            raise changed(self.folder.joined(VALUES))
        return values

    def targets(self, start: int, end: int) -> Ints:
        """Return the rows of the target at some places of the work."""
        if not self.plan.scattered:
            return np.arange(start, end)
        with self.folder.file(ORDER) as file:
            found = np.frombuffer(file.read(8 * start, 8 * (end - start)), np.int64)
        if len(found) and not (found.min() >= 0 and found.max() < self.plan.rows):
            raise changed(self.folder.joined(ORDER))
        return found

    def store(self, columns: Columns) -> Store:
        """Return where rows go."""
        kind = Scattered if self.plan.scattered else InOrder
        return kind(self.folder.inner(DATA), columns, self.plan.parts)

    def in_order(self, columns: Columns) -> InOrder:
        """Return where consecutive rows go."""
        return InOrder(self.folder.inner(DATA), columns, self.plan.parts)


def _may_be(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 62)


def changed(path: bytes) -> ChangedError:
    """Make the error for a file of the staging folder that is not what was written to it."""
    return ChangedError(path, "changed while it was in use", remedy="rerun")


def _opened(path: bytes, digest: str) -> tuple[Folder, Plan]:
    """Open the folder of a plan and load the plan, if its file has that digest."""
    try:
        folder = Folder(path)
        data = read_contents(folder, PLAN, _MOST_SMALL)
    except MissingError:
        data = None
    if data is None or hashlib.sha256(data).hexdigest() != digest:
        raise WorkerError(
            f"the worker on host {socket.gethostname()} does not see {os.fsdecode(path)}: "
            f"all workers need the target's folder on a file system that they share"
        )
    return folder, Plan.decoded(data)
