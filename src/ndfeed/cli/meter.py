"""How far a long copy has come: a bar for people, plain lines for logs."""

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ndfeed.dataset.show import size

_PATIENCE = 1.0
_BETWEEN = 10.0  # seconds from one line of a log to the next


class Meter:
    """Counts rows towards ``total``, and bytes; shows itself after a second.

    What it is told first was done by an earlier run.
    """

    def __init__(self, label: str, total: int) -> None:
        self.rows = 0
        self.nbytes = 0
        self._label = label
        self._total = total
        self._began = time.monotonic()
        self._known: tuple[int, int] | None = None  # of an earlier run: they took no time now
        self._said = self._began
        self._bar: Progress | None = None
        self._watched = sys.stderr.isatty()

    def advance(self, rows: int, nbytes: int) -> None:
        """Say that so many more are done."""
        self._known = self._known or (rows, nbytes)
        self.rows += rows
        self.nbytes += nbytes
        now = time.monotonic()
        if self._watched and now - self._began > _PATIENCE:
            self._show()
        elif not self._watched and now - self._said > _BETWEEN:
            self._said = now
            print(f"ndfeed: {self.line()}", file=sys.stderr, flush=True)

    def line(self) -> str:
        """All of it as text."""
        took = time.monotonic() - self._began
        new = self.rows - (self._known or (0, 0))[0]
        left = f", {(self._total - self.rows) * took / new:.0f} s left" if new else ""
        return f"{self._label}: {self.rows:,} of {self._total:,} rows, {self._rate()}{left}"

    def _rate(self) -> str:
        took = max(time.monotonic() - self._began, 1e-9)
        new = self.nbytes - (self._known or (0, 0))[1]
        return f"{size(self.nbytes)}, {size(new / took)}/s"

    def _show(self) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:,.0f} of {task.total:,.0f} rows, {task.fields[rate]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.add_task(self._label, total=self._total, rate="")
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self.rows, rate=self._rate())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
