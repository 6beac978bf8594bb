"""Options shared by several commands, how they are parsed, and the executors they choose."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

import ndfeed
from ndfeed.errors import shown
from ndfeed.formats.dtypes import named


class Sample(StrEnum):
    """What one sample is."""

    auto = "auto"
    row = "row"
    file = "file"


class Tail(StrEnum):
    """What becomes of the end of a raw file that is no whole sample."""

    error = "error"
    drop = "drop"


def parse_dtype(text: str) -> str:
    """Parse a dtype."""
    try:
        return named(text)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(f"{error}; expected a name such as float16 or <i4") from None


def _parse_shape(text: str) -> tuple[int, ...]:
    """Parse a shape."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"expected whole numbers such as 3,32,32, got {text!r}") from None


SampleOption = Annotated[Sample, typer.Option(help="What one sample is: a row, or a file.")]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        parser=parse_dtype, metavar="NAME", help="Dtype of raw files, such as uint16 or <f4."
    ),
]
ShapeOption = Annotated[
    str | None,
    typer.Option(metavar="N,N,…", help="Shape of one sample of raw files, such as 3,32,32."),
]
TailOption = Annotated[
    Tail, typer.Option(help="What to do with the end of a raw file that is no whole sample.")
]
WindowsOption = Annotated[
    str | None,
    typer.Option(
        metavar="N[,STRIDE]", help="Windows of N consecutive rows as samples, as Dataset.windows."
    ),
]
ByOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="With --windows: a field that changes between sequences."),
]
FieldsOption = Annotated[
    str | None, typer.Option(metavar="NAME,…", help="Read only these fields, separated by commas.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, on one line.")]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object for each path, on one line.")
]

Opener = Callable[..., ndfeed.Dataset]


def make_opener(
    dtype: str | None,
    shape: str | None,
    tail: Tail,
    fields: str | None,
    windows: str | None,
    by: str | None,
    *,
    cache: bool = True,
) -> Opener:
    """Return ``ndfeed.open`` with these options; it takes the source, and ``sample=``."""
    if shape is not None and dtype is None:
        raise typer.BadParameter("--shape is for raw files and also needs --dtype")
    opener = partial(
        ndfeed.open,
        dtype=dtype,
        shape=None if shape is None else _parse_shape(shape),
        tail=tail.value,
        fields=None if fields is None else fields.split(","),
        cache=cache,
    )
    if windows is None:
        if by is not None:
            raise typer.BadParameter("--by is for --windows")
        return opener
    given = _parse_shape(windows)
    if len(given) not in (1, 2):
        raise typer.BadParameter(f"--windows takes a length and a stride, got {windows!r}")
    length, step = (*given, 1)[:2]
    return lambda source, **options: opener(source, **options).windows(length, stride=step, by=by)


@contextmanager
def report_bad_options() -> Iterator[None]:
    """Report wrong arguments of the library as wrong options. Our own errors are not about them."""
    try:
        yield
    except ndfeed.Error:
        raise
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(shown(str(error))) from None


class ChosenExecutor(NamedTuple):
    """An executor, unless it is the default one, and how many tasks run in it at once."""

    executor: Executor | None = None
    workers: int | None = None


@contextmanager
def make_executor(on: str | None) -> Iterator[ChosenExecutor]:
    """Start what ``--on`` names: ``ray``, ``ray://host:port``, ``dask`` or ``dask://host:port``."""
    if on is None:
        yield ChosenExecutor()
        return
    name, _, address = on.partition("://")
    if name not in ("ray", "dask"):
        raise typer.BadParameter(f"ray, ray://host:port, dask or dask://host:port, got {on!r}")
    try:
        with _ray(on if address else None) if name == "ray" else _dask(address) as found:
            yield found
    except ModuleNotFoundError as error:
        if error.name not in ("ray", "distributed", "dask"):
            raise
        problem = f"--on {name} needs a package: pip install 'ndfeed[{name}]'"
        raise typer.BadParameter(problem) from None


@contextmanager
def _ray(address: str | None) -> Iterator[ChosenExecutor]:
    from ndfeed.ray import Executor as RayExecutor  # noqa: PLC0415 - needed by few

    with RayExecutor(address) as executor:
        yield ChosenExecutor(executor)


@contextmanager
def _dask(address: str) -> Iterator[ChosenExecutor]:
    from distributed import Client  # noqa: PLC0415 - needed by few

    where = {"address": f"tcp://{address}"} if address else {"dashboard_address": None}
    connect: Callable[..., Any] = Client
    with connect(**where) as client, client.get_executor() as executor:
        yield ChosenExecutor(executor, max(sum(client.nthreads().values()), 1))
