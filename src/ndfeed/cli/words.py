"""Options that several commands have, each declared once, and what their words mean."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

import ndfeed
from ndfeed.cli.console import bad_option
from ndfeed.formats.types import named


class Sample(StrEnum):
    """What one sample is."""

    auto = "auto"
    row = "row"
    file = "file"


def as_dtype(text: str) -> str:
    """The name of an element type, as somebody wrote it."""
    try:
        return named(text)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(f"{error}; a name such as float16 or <i4 expected") from None


def as_shape(text: str) -> tuple[int, ...]:
    """A shape, as somebody wrote it."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"whole numbers such as 3,32,32 expected, got {text!r}") from None


SampleOption = Annotated[Sample, typer.Option(help="What one sample is.")]
DtypeOption = Annotated[
    str | None,
    typer.Option(parser=as_dtype, metavar="NAME", help="Element type of raw files: uint16, <f4."),
]
ShapeOption = Annotated[
    str | None, typer.Option(metavar="N,N,…", help="Shape of one sample of raw files: 3,32,32.")
]
FieldsOption = Annotated[
    str | None, typer.Option(metavar="NAME,…", help="Only these fields, separated by commas.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, on one line.")]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object for each path, on one line.")
]

Opener = Callable[..., ndfeed.Dataset]


def opener(
    dtype: str | None, shape: str | None, fields: str | None, *, cache: bool = True
) -> Opener:
    """``ndfeed.open`` with what the options say; takes the source, and ``sample=``."""
    if shape is not None and dtype is None:
        raise typer.BadParameter("--shape is for raw files and needs --dtype beside it")
    return partial(
        ndfeed.open,
        dtype=dtype,
        shape=None if shape is None else as_shape(shape),
        fields=None if fields is None else fields.split(","),
        cache=cache,
    )


@contextmanager
def options_refused() -> Iterator[None]:
    """A wrong argument of the library's is told as a wrong option."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, ndfeed.Error):
            raise
        raise bad_option(error) from None
