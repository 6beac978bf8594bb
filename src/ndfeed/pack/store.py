"""Where a piece's rows go: to the next place of each column, or each to a place of its own.

``InOrder`` writes rows that follow each other in the target, and knows the checksums of what it
wrote. ``Scattered`` writes rows from anywhere to anywhere; who needs checksums reads what came
of it when all is there.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.rowset import stretches
from ndfeed.files.folder import Folder
from ndfeed.files.write import Output
from ndfeed.formats.manifest import Role
from ndfeed.index.table import Ints
from ndfeed.pack.columns import Columns, File, Spot, Stretch, Writer

Bytes = NDArray[np.uint8]

_NEAR = 4096  # bytes between two offsets that are read over rather than apart


class _Files:
    """The open columns of a piece, synced and closed together."""

    def __init__(self, folder: Folder, columns: Columns, parts: tuple[int, ...]) -> None:
        self._folder = folder
        self._columns = columns
        self._starts = np.array(parts, np.int64)
        self._stack = ExitStack()
        self._stack.enter_context(folder)
        self._open: dict[Spot, tuple[Output, File]] = {}

    def output(self, spot: Spot) -> tuple[Output, File]:
        """The file of a column, open for writing."""
        if spot not in self._open:
            file = self._columns.file(spot)
            output = self._stack.enter_context(self._folder.output(file.name))
            self._open[spot] = output, file
        return self._open[spot]

    def part_of(self, target: int) -> tuple[int, int]:
        """The part that has a row of the target, and that part's first row."""
        part = int(np.searchsorted(self._starts, target, side="right")) - 1
        return part, int(self._starts[part])

    def offsets(self, part: int, field: int, rows: Ints) -> Ints:
        """Where the values of a part's rows, which rise, begin."""
        file = self._columns.file(Spot(part, field, "offsets"))
        found = np.empty(len(rows), np.int64)
        near = _NEAR // 8
        with self._folder.file(file.name) as source:
            for start, end in stretches(len(rows), np.diff(rows) > near):
                first, last = int(rows[start]), int(rows[end - 1])
                data = source.read(len(file.header) + 8 * first, 8 * (last + 1 - first))
                found[start:end] = np.frombuffer(data, "<i8")[rows[start:end] - first]
        return found

    def sync(self) -> None:
        """Have the disk hold all that was written."""
        for output, _ in self._open.values():
            output.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


class InOrder(_Files):
    """Takes rows of one part that follow each other."""

    def __init__(self, folder: Folder, columns: Columns, parts: tuple[int, ...]) -> None:
        super().__init__(folder, columns, parts)
        self._writers: dict[Spot, Writer] = {}

    def writer(self, spot: Spot, first: int) -> Writer:
        """What writes a column, beginning with its row ``first`` at the first call."""
        if spot not in self._writers:
            output, file = self.output(spot)
            self._writers[spot] = Writer(output, file, first * file.row_bytes)
        return self._writers[spot]

    def rows(self, field: int, targets: Ints, data: Bytes) -> None:
        """Write rows of a field of one shape."""
        part, start = self.part_of(int(targets[0]))
        self.writer(Spot(part, field, "rows"), int(targets[0]) - start).append(data.data)

    def values(self, field: int, targets: Ints, counts: Ints, data: Bytes) -> None:
        """Write the values of rows of a ragged field."""
        part, start = self.part_of(int(targets[0]))
        spot = Spot(part, field, "values")
        first = 0
        if spot not in self._writers:
            first = int(self.offsets(part, field, targets[:1] - start)[0])
        self.writer(spot, first).append(data.data)

    def part_of_row(self, field: int, role: Role, target: int, at: int, data: Bytes) -> None:
        """Write the bytes of one row from ``at`` on; those before them are written."""
        targets = np.array([target])
        if role == "rows":
            self.rows(field, targets, data)
        else:
            self.values(field, targets, targets, data)

    def wrote(self) -> dict[str, Stretch]:
        """What was written, by column."""
        return {str(spot): writer.stretch() for spot, writer in self._writers.items()}


class Scattered(_Files):
    """Takes rows for any places."""

    def rows(self, field: int, targets: Ints, data: Bytes) -> None:
        """Write rows of a field of one shape."""
        order = np.argsort(targets, kind="stable")
        sorted_rows = data.reshape(len(targets), -1)[order]
        for part, start, first, last in self._runs(targets[order]):
            output, file = self.output(Spot(part, field, "rows"))
            at = len(file.header) + int(targets[order[first]] - start) * file.row_bytes
            output.write(at, sorted_rows[first:last].reshape(-1).data)

    def values(self, field: int, targets: Ints, counts: Ints, data: Bytes) -> None:
        """Write the values of rows of a ragged field."""
        order = np.argsort(targets, kind="stable")
        ends = np.cumsum(counts)
        for part, start, first, last in self._runs(targets[order]):
            output, file = self.output(Spot(part, field, "values"))
            own = order[first:last]
            places = self.offsets(part, field, targets[own] - start) * file.row_bytes
            for i, place in zip(own.tolist(), places.tolist(), strict=True):
                end = int(ends[i]) * file.row_bytes
                begin = end - int(counts[i]) * file.row_bytes
                output.write(len(file.header) + place, data[begin:end].data)

    def part_of_row(self, field: int, role: Role, target: int, at: int, data: Bytes) -> None:
        """Write the bytes of one row from ``at`` on."""
        part, start = self.part_of(target)
        output, file = self.output(Spot(part, field, role))
        row = target - start
        if role == "values":
            row = int(self.offsets(part, field, np.array([row]))[0])
        output.write(len(file.header) + row * file.row_bytes + at, data.data)

    def _runs(self, targets: Ints) -> Iterator[tuple[int, int, int, int]]:
        """Stretches of rising rows that follow each other in a part: part, its start, from, to."""
        starts = np.searchsorted(self._starts, targets, side="right") - 1
        new = (np.diff(targets) != 1) | (np.diff(starts) != 0)
        ends = [*(np.flatnonzero(new) + 1).tolist(), len(targets)]
        for first, last in zip([0, *ends], ends, strict=False):
            part = int(starts[first])
            yield part, int(self._starts[part]), first, last

    def wrote(self) -> dict[str, Stretch]:
        """Nothing that is of use: stretches are not whole."""
        return {}


Store = InOrder | Scattered
OFFSETS: tuple[Role, Role] = ("offsets", "shapes")


def as_bytes(array: NDArray[Any]) -> Bytes:
    """The bytes of an array in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
