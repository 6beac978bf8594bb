"""What a long measurement is at: one line that changes for people, plain lines for logs."""

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_PATIENCE = 1.0


class Steps:
    """Says what comes next, on standard error; in a log only from the second second on."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._began = time.monotonic()
        self._shown: Progress | None = None

    def begin(self, step: str) -> None:
        """Say that this comes now."""
        took = time.monotonic() - self._began
        if self._shown is not None:
            self._shown.update(self._shown.task_ids[0], step=step, refresh=True)
        elif took > _PATIENCE and not sys.stderr.isatty():
            print(f"ndfeed: {self._label}, {took:.0f} s: {step}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._shown = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[step]}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._shown.add_task(self._label, total=None, step="")
            self._shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()
