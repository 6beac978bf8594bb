"""A progress bar on standard error, only where someone is looking and only after a second."""

import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE = 1.0


class Bar:
    """Counts towards ``total``; shows itself when that takes longer than a second."""

    def __init__(self, label: str, total: int, *, wanted: bool = True) -> None:
        self._label = label
        self._total = total
        self._done = 0
        self._begun = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None
        self._wanted = wanted and _watched()

    def advance(self, count: int) -> None:
        """Say that ``count`` more are done."""
        self._done += count
        if self._shown is None and self._wanted and time.monotonic() - self._begun > _PATIENCE:
            self._shown = self._show()
        if self._shown is not None:
            self._shown[0].update(self._shown[1], completed=self._done)

    def _show(self) -> "tuple[Progress, TaskID]":
        # Imported late: rich would double the time that importing ndfeed takes.
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import Progress  # noqa: PLC0415

        progress = Progress(console=Console(stderr=True), transient=True)
        task = progress.add_task(self._label, total=self._total, completed=self._done)
        progress.start()
        return progress, task

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown[0].stop()


def _watched() -> bool:
    """Is standard error a terminal?"""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False
