"""Output of commands: tables, text and JSON; errors and progress on standard error.

Names and text from files may contain anything, including control codes for terminals. Commands
print such text only through ``literal``, ``print_line``, ``complain`` and ``print_json``, which
leave nothing but printable characters.

Progress is a bar or a changing line in a terminal, and plain lines in a log.
"""

import json
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ndfeed.errors import BadFilesError, Error, shown, shown_size

# Arguments of the library that are options here, at the end of a remedy or with their value.
_ARGUMENTS = re.compile(
    r"""(?<![\w/.=-])(sample|dtype|shape|tail|fields|offsets|by|column|key|each|grid|pad)="""
    r"""(?:(["'])(\w+)\2|\[\.{3}\]|(\d+))?(?=[\s,;:)]|$)"""
)
# What only Python can do, and where a part of a remedy begins.
_PYTHON = re.compile(r"\bdtype=\{|\bndfeed\.open\(|\btake\(\)|\bwindows\(…")
_CLAUSE = re.compile(r"; (?:or )?|, or ")


def make_console() -> Console:
    """Return standard output as it is now. Text from files is never taken for markup."""
    return Console(highlight=False, markup=False, emoji=False)


def literal(text: str, style: str = "") -> Text:
    """Return text from a file or its name, printable, on one line, and without markup."""
    return Text(shown(text), style=style)


def print_line(out: Console, text: str, style: str = "") -> None:
    """Print one line below a heading. Only the terminal wraps it: in a pipe it stays one line."""
    out.print(literal(f"  {text}", style), soft_wrap=True)


def format_rate(count: float) -> str:
    """Format a rate for people.

    >>> format_rate(950), format_rate(12_345), format_rate(2_300_000)
    ('950', '12.3 k', '2.3 M')
    """
    if count < 1000:
        return f"{count:.0f}"
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.1f} k"


def name_options(text: str) -> str:
    """Replace arguments in a text by the options of the command, and mark what has none.

    >>> name_options('choose one: sample="row" or another; check dtype= and shape=')
    'choose one: --sample row or another; check --dtype and --shape'
    >>> name_options("remove dtype=, or convert fields with dtype={'x': 'f4'}")
    "remove --dtype, or in Python: convert fields with dtype={'x': 'f4'}"
    """
    text = text.replace("cast it with dtype=", "cast it with --cast")
    text = text.replace("another name with field=", "another name with --labels NAME=…")
    text = _ARGUMENTS.sub(lambda m: " ".join(filter(None, [f"--{m[1]}", m[3], m[4]])), text)
    found = _PYTHON.search(text)
    if found is None:
        return text
    start = max((m.end() for m in _CLAUSE.finditer(text, 0, found.start())), default=0)
    return f"{text[:start]}in Python: {text[start:]}"


def _describe_error(error: Error) -> str:
    """Return the message of an error, with the options of the command in its remedies."""
    text = str(error)
    wrong = error.problems if isinstance(error, BadFilesError) else [error]
    for remedy in dict.fromkeys(shown(one.remedy) for one in wrong if one.remedy):
        text = text.replace(f"; {remedy}", f"; {name_options(remedy)}")
    return text


def complain(problem: object, file: TextIO | None = None) -> None:
    """Print a problem on standard error. Only errors of the library may have several lines."""
    text = _describe_error(problem) if isinstance(problem, Error) else shown(str(problem))
    print(f"ndfeed: {text}", file=file or sys.stderr)


def print_json(facts: Mapping[str, Any]) -> None:
    """Print one line of JSON in ASCII; JSON itself escapes all control characters but one."""
    print(json.dumps(facts).replace("\x7f", "\\u007f"))


def warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning without the line of code it comes from, and with the options of the command.

    Warnings are texts of our own; a remedy is a part of them.
    """
    complain(f"warning: {name_options(str(message))}", file)


_PATIENCE = 1.0
_BETWEEN = 10.0  # seconds from one line of a log to the next


class Meter:
    """Counts rows towards ``total``, and bytes; is shown after a second.

    The first call of ``advance`` tells what an earlier run did.
    """

    def __init__(self, label: str, total: int) -> None:
        self.rows = 0
        self.nbytes = 0
        self._label = label
        self._total = total
        self._began = time.monotonic()
        self._known: tuple[int, int] | None = (
            None  # rows and bytes of an earlier run, which took no time now
        )
        self._said = self._began
        self._bar: Progress | None = None
        self._watched = sys.stderr.isatty()

    def advance(self, rows: int, nbytes: int) -> None:
        """Add rows and bytes that were just done."""
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
        """Return the progress as text."""
        took = time.monotonic() - self._began
        new = self.rows - (self._known or (0, 0))[0]
        left = f", {(self._total - self.rows) * took / new:.0f} s left" if new else ""
        return f"{self._label}: {self.rows:,} of {self._total:,} rows, {self._rate()}{left}"

    def _rate(self) -> str:
        took = max(time.monotonic() - self._began, 1e-9)
        new = self.nbytes - (self._known or (0, 0))[1]
        return f"{shown_size(self.nbytes)}, {shown_size(new / took)}/s"

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


_STEP_PATIENCE = 1.0


class Steps:
    """Shows on standard error what is being measured; in a log only after the first second."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._began = time.monotonic()
        self._shown: Progress | None = None

    def begin(self, step: str) -> None:
        """Show the next step."""
        took = time.monotonic() - self._began
        if self._shown is not None:
            self._shown.update(self._shown.task_ids[0], step=step, refresh=True)
        elif took > _STEP_PATIENCE and not sys.stderr.isatty():
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
