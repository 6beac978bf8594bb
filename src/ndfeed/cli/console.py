"""Where commands write to: tables and text on standard output, complaints on standard error.

Names and text from files may hold anything, also what a terminal obeys. So commands print what is
not their own words through ``literal``, ``line``, ``complain`` and ``print_json`` alone, which
leave nothing but printable characters.
"""

import json
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.text import Text

from ndfeed.errors import Error, shown

# Words of the library that are options here, at the end of a remedy or with their value.
_WORDS = re.compile(
    r"""(?<![\w/.=-])(sample|dtype|shape|fields)=(?:(["'])(\w+)\2)?(?=[\s,;:)]|$)"""
)


def console() -> Console:
    """Standard output as it is now. Nothing from a file is ever taken for markup."""
    return Console(highlight=False, markup=False, emoji=False)


def literal(text: str, style: str = "") -> Text:
    """Text from a file or its name, printable, on one line, and without a meaning to rich."""
    return Text(shown(text), style=style)


def line(out: Console, text: str, style: str = "") -> None:
    """One line below a heading. Wrapped by the terminal, if at all: what is piped stays one."""
    out.print(literal(f"  {text}", style), soft_wrap=True)


def rounded(count: float) -> str:
    """A rate for people.

    >>> rounded(950), rounded(12_345), rounded(2_300_000)
    ('950', '12.3 k', '2.3 M')
    """
    if count < 1000:
        return f"{count:.0f}"
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.1f} k"


def in_options(text: str) -> str:
    """What the library says, in words that can be typed here.

    >>> in_options('x: say which: sample="row" or another; check dtype= and shape=')
    'x: say which: --sample row or another; check --dtype and --shape'
    """
    text = text.replace("cast it with dtype=", "cast it with --cast")
    return _WORDS.sub(lambda m: f"--{m[1]} {m[3]}" if m[3] else f"--{m[1]}", text)


def complain(problem: object, file: TextIO | None = None) -> None:
    """Say on standard error what is wrong. Only an error of ours may have several lines."""
    text = str(problem) if isinstance(problem, Error) else shown(str(problem))
    print(f"ndfeed: {in_options(text)}", file=file or sys.stderr)


def print_json(facts: Mapping[str, Any]) -> None:
    """Facts as one line of JSON. It is ASCII; JSON itself escapes all controls but one."""
    print(json.dumps(facts).replace("\x7f", "\\u007f"))


def bad_option(problem: object) -> typer.BadParameter:
    """The error for an option that cannot be used, in words that can be typed here."""
    return typer.BadParameter(in_options(shown(str(problem))))


def warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning for people: what it says, without the line of code it comes from."""
    complain(f"warning: {message}", file)
