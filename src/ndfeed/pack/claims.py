"""What a journal may claim: pieces that the plan has, and bytes that its columns have.

A journal's own grammar is that of ``journal``; here it is held against the plan. A claim that no
piece of the plan would make is not believed, nor is anything behind it.
"""

from ndfeed.pack.columns import Spot, blocks_touched
from ndfeed.pack.journal import PUBLISHING, Record
from ndfeed.pack.piece import summed
from ndfeed.pack.plan import Plan


class Claims:
    """Sees the records of a journal in their order, and says of each whether it may be."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._values = [list(part) for part in plan.values]
        self._columns = plan.columns
        self._summed: int | None = None

    def __call__(self, record: Record) -> bool:
        """Could a piece of the plan have said that?"""
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
                self._summed = len(summed(self._columns)) if plan.scattered and known else 0
            return self._summed
        return len(plan.pieces) - 1 if kind == "rows" or plan.spooled else 0

    def _ragged(self) -> list[list[int | None]]:
        fields = [i for i, field in enumerate(self._plan.fields) if "values" in field.roles]
        return [[part[i] for i in fields] for part in self._values]

    def _learned(self, number: int, values: int) -> bool:
        """Take note of how many values a ragged field has in a part."""
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
        """Has a column these bytes, and as many blocks as there are checksums?"""
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
