"""Stored samples: columns of files, and a selection of their rows."""

import math
import os

import numpy as np
from numpy.typing import ArrayLike

from ndfeed.dataset import provenance
from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.provenance import Files, Origin, make_origins
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import Rows, as_rows, select_rows
from ndfeed.errors import Error
from ndfeed.index.table import Ints


class Stored:
    """What a dataset knows of its samples before any ``map``: how many, how large, and where."""

    def __init__(
        self,
        groups: tuple[Group, ...],
        rows: Rows,
        identity: str,
        origins: tuple[Origin, ...],
        skipped: tuple[Error, ...] = (),
    ) -> None:
        self.groups = groups
        self.rows = rows
        self._identity = identity  # fingerprint of all the groups' samples, if they cannot tell
        self._origins = origins  # of all the groups' samples, if they cannot tell
        self._skipped = skipped  # errors from opening files that the groups no longer have
        self._count = len(groups[0]) if rows is None else len(rows)
        self._fingerprint: str | None = None
        self._files: Files | None = None

    def __len__(self) -> int:
        return self._count

    def _columns(self) -> list[Column]:
        return [column for group in self.groups for column in group.columns]

    @property
    def nbytes(self) -> int:
        """Bytes of all samples as read, before any ``map``."""
        return sum(self._bytes_of(c, group) for group in self.groups for c in group.columns)

    def _bytes_of(self, column: Column, group: Group) -> int:
        if column.even:
            return int(column.nbytes[0]) * len(self)
        if self.rows is None:
            return column.total(group.starts)
        samples = select_rows(self.rows, np.arange(len(self)))
        if column.offsets is None:
            return int(column.nbytes[group.locate(samples).part].sum())
        shapes = reader_of(group).shapes(group, column, samples)
        return sum(math.prod(shape) for shape in shapes) * column.field.dtype.itemsize

    @property
    def files(self) -> Files:
        """The files that hold the samples, as a sequence of paths.

        Where a sample is a whole file there is one path for each sample, in the order of the
        samples: ``zip(ds.files, ds)`` pairs them. Otherwise every file is listed once, in the order
        in which the samples first need it.
        """
        if self._files is None:
            self._files = Files(self._all_origins(), self.rows)
        return self._files

    @property
    def skipped(self) -> list[Error]:
        """The errors of the files that ``ndfeed.open(..., on_error="skip")`` skipped."""
        tables = dict.fromkeys(group.table for group in self.groups)
        return [*self._skipped, *(error for table in tables for error in table.skipped)]

    @property
    def first_file(self) -> str:
        """A file to name in messages, even where there are no samples."""
        return self.files[0] if len(self) else os.fsdecode(self._all_origins()[0].table.path(0))

    @property
    def origin(self) -> Origin:
        """Where the samples of the first group lie, or where they were loaded from."""
        return self._origins[0] if self._origins else make_origins(self.groups[:1])[0]

    def _all_origins(self) -> tuple[Origin, ...]:
        return self._origins or make_origins(self.groups)

    def locate(self, rows: ArrayLike) -> tuple[Ints, Ints]:
        """Return the file of each of ``rows``, and its row in that file.

        The file is a number: its path is ``ds.files[number]``. Where a sample is a whole file its
        row is 0. Nothing is read.
        """
        wanted = as_rows(rows, len(self), from_end=True)
        return self.files.locate(wanted, select_rows(self.rows, wanted))

    @property
    def fingerprint(self) -> str:
        """Short text that identifies these samples and their order.

        A copy of the files elsewhere has the same one, and so does ``in_memory()``.
        """
        if self._fingerprint is None:
            self._fingerprint = provenance.of_rows(self._fingerprint_all(), self.rows)
        return self._fingerprint

    def _fingerprint_all(self) -> str:
        """The fingerprint of all samples of the groups."""
        if self._identity:
            return self._identity
        # Computed fields have their group in memory, and do not count.
        in_files = [group for group in self.groups if not group.table.sealed]
        return provenance.of_groups(in_files or self.groups)
