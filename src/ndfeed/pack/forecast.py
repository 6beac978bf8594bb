"""What packing would write, and the room it needs, before any of it is done."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ndfeed.dataset.field import Field
from ndfeed.dataset.packed import described
from ndfeed.dataset.show import size
from ndfeed.errors import shown
from ndfeed.files import write
from ndfeed.pack.plan import Plan
from ndfeed.pack.work import Work


@dataclass(frozen=True, slots=True)
class Forecast:
    """What ``ndfeed.pack`` would write to ``target``, as ``dry_run=True`` tells it.

    ``needed`` is bytes of new columns: to the byte, unless a map makes ragged fields, whose lengths
    nobody knows before it has run (then ``exact`` is false). ``free`` is what the disk has, where
    it says. ``state`` is ``"new"``; ``"begun"`` where an earlier run left work to go on with, whose
    files have their room already; or ``"done"`` where all of it is there and nothing would happen.
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
        """Is there room, as far as the disk says?"""
        return self.state != "new" or self.free is None or self.needed <= self.free

    def __str__(self) -> str:
        what = f"{self.rows:,} rows in {self.parts:,} part{'s' * (self.parts != 1)}"
        if self.state == "done":
            return f"{shown(self.target)}: {what}, there already: nothing would be written"
        least = "" if self.exact else "at least "
        free = "" if self.free is None else f", {size(self.free)} free there"
        tail = "; an earlier run left work that would be gone on with" * (self.state == "begun")
        return f"{shown(self.target)}: {what}, {least}{size(self.needed)} needed{free}{tail}"


def needed(plan: Plan) -> int:
    """Bytes that the target takes, as far as they are known before the maps are run."""
    columns = plan.columns
    known = (
        columns.file(spot).size
        for spot in columns.spots()
        if spot.role != "values" or columns.values[spot.part][spot.field] is not None
    )
    return sum(known)


def forecast(work: Work, plan: Plan, *, done: bool) -> Forecast:
    """What carrying out a plan in a folder of work would come to."""
    return Forecast(
        os.fsdecode(work.target),
        plan.rows,
        len(plan.parts) - 1,
        {field.name: described(field) for field in plan.fields},
        needed(plan),
        not plan.spooled,
        write.free_bytes(work.parent),
        "done" if done else "begun" if work.begun else "new",
    )
