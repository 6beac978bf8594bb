"""Options shared by several commands, and the executors they choose.

Options that several commands have, each declared once, and what their words mean.

Who does the work of a command: this machine, or a cluster of Ray's or Dask's.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Annotated, NamedTuple

import typer

import ndfeed
from ndfeed.cli.console import bad_option
from ndfeed.formats.dtypes import named


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
        raise typer.BadParameter(f"{error}; expected a name such as float16 or <i4") from None


def as_shape(text: str) -> tuple[int, ...]:
    """A shape, as somebody wrote it."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"expected whole numbers such as 3,32,32, got {text!r}") from None


SampleOption = Annotated[Sample, typer.Option(help="What one sample is: a row, or a file.")]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        parser=as_dtype, metavar="NAME", help="Dtype of raw files, such as uint16 or <f4."
    ),
]
ShapeOption = Annotated[
    str | None,
    typer.Option(metavar="N,N,…", help="Shape of one sample of raw files, such as 3,32,32."),
]
FieldsOption = Annotated[
    str | None, typer.Option(metavar="NAME,…", help="Read only these fields, separated by commas.")
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
        raise typer.BadParameter("--shape is for raw files and also needs --dtype")
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


class ExecutorName(NamedTuple):
    """An executor, if it is not to be the usual one, and how many work at once in it."""

    executor: Executor | None = None
    workers: int | None = None


@contextmanager
def make_executor(on: str | None) -> Iterator[ExecutorName]:
    """What ``--on`` means: nothing, ``ray``, ``ray://host:port``, ``dask`` or ``dask://host:port``."""
    if on is None:
        yield ExecutorName()
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
def _ray(address: str | None) -> Iterator[ExecutorName]:
    from ndfeed.ray import Executor as RayExecutor  # noqa: PLC0415 - needed by few

    with RayExecutor(address) as executor:
        yield ExecutorName(executor)


@contextmanager
def _dask(address: str) -> Iterator[ExecutorName]:
    from distributed import Client  # noqa: PLC0415 - needed by few

    where = {"address": f"tcp://{address}"} if address else {"dashboard_address": None}
    with (
        Client(**where) as client,  # type: ignore[no-untyped-call]
        client.get_executor() as executor,
    ):
        yield ExecutorName(executor, max(sum(client.nthreads().values()), 1))
