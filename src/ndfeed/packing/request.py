"""The checked arguments of ``ndfeed.pack``, and a forecast of what it would write."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ndfeed.dataset.arguments import as_bytes, as_count
from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.packed_columns import describe_packed
from ndfeed.dataset.samples import size
from ndfeed.errors import MissingError, shown
from ndfeed.files import write
from ndfeed.packing.plan import Plan, Wanted
from ndfeed.packing.source_rows import Rows, mark_caller
from ndfeed.packing.staging_folder import StagingFolder


@dataclass(frozen=True)
class Request:
    """What a caller wants, checked."""

    source: Rows
    target: bytes
    dtypes: Mapping[str, object]
    shuffle: int | None
    rows_per_part: int | None
    append: bool
    memory: int

    @classmethod
    def of(  # noqa: PLR0913 - as the caller wrote it
        cls,
        ds: Dataset,
        target: str | os.PathLike[str],
        dtype: Mapping[str, object] | None,
        shuffle: int | None,
        names: bool,
        rows_per_part: int | None,
        append: bool,
        memory: int | str | None,
    ) -> "Request":
        """Check what a caller wrote."""
        if dtype is not None and not isinstance(dtype, Mapping):
            raise TypeError(f'dtype must be a dict such as {{"image": "float16"}}, got {dtype!r}')
        if shuffle is not None:
            shuffle = as_count("shuffle", shuffle, 0, (1 << 63) - 1)
        if rows_per_part is not None:
            rows_per_part = as_count("rows_per_part", rows_per_part, 1, (1 << 63) - 1)
        place = os.path.abspath(os.fsencode(os.fspath(target)))
        parent = os.path.dirname(place)
        if not os.path.isdir(parent):
            raise MissingError(parent, "no such folder", remedy="create it first")
        mark_caller()
        return cls(
            Rows(ds, names=names),
            place,
            dtype or {},
            shuffle,
            rows_per_part,
            append,
            as_bytes(memory),
        )

    def wanted(self, workers: int, row_bytes: int, first: int = 0, base: str = "") -> Wanted:
        """Return what the planner needs of it."""
        return Wanted(
            shuffle=self.shuffle,
            rows_per_part=self.rows_per_part,
            names=self.source.names,
            first=first,
            base=base,
            memory=max(self.memory // workers, 1),
            row_bytes=row_bytes,
        )


@dataclass(frozen=True, slots=True)
class Forecast:
    """What ``ndfeed.pack`` would write to ``target``, returned for ``dry_run=True``.

    ``needed`` is bytes of new columns: exact, unless a map makes ragged fields, whose lengths are
    unknown before it has run (then ``exact`` is false). ``free`` is what the disk has, where that
    is known. ``state`` is ``"new"``; ``"begun"`` where an earlier run can be resumed, whose files
    have their space already; or ``"done"`` where everything is there and nothing would happen.
    """

    target: str
    rows: int
    parts: int
    fields: Mapping[str, Field]
    needed: int
    exact: bool
    free: int | None
    state: str

    @property
    def fits(self) -> bool:
        """Is there enough space, as far as the disk says?"""
        return self.state != "new" or self.free is None or self.needed <= self.free

    def __str__(self) -> str:
        what = f"{self.rows:,} rows in {self.parts:,} part{'s' * (self.parts != 1)}"
        if self.state == "done":
            return f"{shown(self.target)}: {what}, already packed: nothing would be written"
        least = "" if self.exact else "at least "
        free = "" if self.free is None else f", {size(self.free)} free"
        tail = "; would resume an earlier run" * (self.state == "begun")
        return f"{shown(self.target)}: {what}, {least}{size(self.needed)} needed{free}{tail}"


def needed(plan: Plan) -> int:
    """Bytes that the target takes, as far as they are known before the maps run."""
    columns = plan.columns
    known = (
        columns.file(spot).size
        for spot in columns.spots()
        if spot.role != "values" or columns.values[spot.part][spot.field] is not None
    )
    return sum(known)


def forecast(work: StagingFolder, plan: Plan, *, done: bool) -> Forecast:
    """Forecast what running a plan in a staging folder would write."""
    return Forecast(
        os.fsdecode(work.target),
        plan.rows,
        len(plan.parts) - 1,
        {field.name: describe_packed(field) for field in plan.fields},
        needed(plan),
        not plan.spooled,
        write.free_bytes(work.parent),
        "done" if done else "begun" if work.begun else "new",
    )
