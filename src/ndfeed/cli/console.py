"""Where commands write to: tables and text on standard output, complaints on standard error."""

import re
import sys
from typing import TextIO

from rich.console import Console
from rich.text import Text

from ndfeed.errors import shown

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
    """Say on standard error what is wrong."""
    print(f"ndfeed: {in_options(str(problem))}", file=file or sys.stderr)


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
