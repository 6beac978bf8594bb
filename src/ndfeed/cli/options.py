"""Options shared by several commands, how they are parsed, and the executors they choose."""

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from enum import StrEnum
from functools import partial, wraps
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

import ndfeed
from ndfeed.cli.console import name_options
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


_SAMPLES = "What a sample is"


def _about(text: str, metavar: str | None = None, **more: Any) -> Any:  # noqa: ANN401 - Typer's
    """Return an option that says what samples are."""
    return typer.Option(metavar=metavar, help=text, rich_help_panel=_SAMPLES, **more)


FieldsOption = Annotated[
    str | None, typer.Option(metavar="NAME,…", help="Read only these fields, separated by commas.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, on one line.")]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object for each path, on one line.")
]


class SampleOptions(NamedTuple):
    """The options that say what samples are, in the words of the library."""

    sample: Annotated[Sample, _about("What one sample is: a row, or a file.")] = Sample.auto
    dtype: Annotated[
        str | None,
        _about("Dtype of raw files, such as uint16 or <f4.", "NAME", parser=parse_dtype),
    ] = None
    shape: Annotated[
        str | None, _about("Shape of one sample of raw files, such as 3,32,32.", "N,N,…")
    ] = None
    tail: Annotated[
        Tail, _about("What to do with the end of a raw file that is no whole sample.")
    ] = Tail.error
    offsets: Annotated[
        str | None,
        _about(
            "Samples lie end to end in one array: the file that says where each starts.", "FILE"
        ),
    ] = None
    labels: Annotated[
        str | None,
        _about(
            "One more field, from a .csv, .tsv or .parquet file; folder_name takes the folder "
            "of each file. It is called label unless there is a NAME.",
            "[NAME=]FILE",
        ),
    ] = None
    column: Annotated[
        str | None, _about("With --labels: the column of the table that has them.", "NAME")
    ] = None
    key: Annotated[
        str | None, _about("With --labels: the column that has the names of files.", "NAME")
    ] = None
    windows: Annotated[
        str | None,
        _about("Windows of N consecutive rows as samples, as Dataset.windows.", "N[,STRIDE]"),
    ] = None
    by: Annotated[
        str | None, _about("With --windows: a field that changes between sequences.", "NAME")
    ] = None
    crops: Annotated[
        list[str] | None,
        _about(
            "Random boxes out of a field as samples, as Dataset.crops, such as image=96,96; a "
            "colon keeps an axis whole, as in image=:,96,96. Repeat it for fields that are cut at "
            "the same place.",
            "NAME=N,N,…",
        ),
    ] = None
    each: Annotated[
        int | None, _about("With --crops: how many for every sample, if not one.", "N")
    ] = None
    grid: Annotated[
        str | None,
        _about("With --crops: cover samples with boxes that overlap by so much.", "N[,N…]"),
    ] = None
    pad: Annotated[
        list[str] | None,
        _about(
            "With --crops: fill up samples that are smaller; can be repeated for fields.",
            "[NAME=]VALUE",
        ),
    ] = None

    def without_crops(self) -> "SampleOptions":
        """Return the options of the samples that crops are cut from."""
        return self._replace(crops=None, each=None, grid=None, pad=None)

    def list_given(self) -> Iterator[str]:
        """Yield the words of these options, as they were given."""
        for name, value in self._asdict().items():
            if value != self._field_defaults[name]:
                for one in value if isinstance(value, list) else [value]:
                    yield from (f"--{name}", str(one))


Command = Callable[..., None]


def takes_samples(command: Command) -> Command:
    """Give a command all ``SampleOptions``, in place of its parameter ``samples``."""

    @wraps(command)
    def run(*args: object, **given: Any) -> None:
        options = SampleOptions(**{name: given.pop(name) for name in SampleOptions._fields})
        command(*args, samples=options, **given)

    own = inspect.signature(command, eval_str=True)
    parameters = []
    for parameter in own.parameters.values():
        if parameter.name != "samples":
            parameters.append(parameter)
            continue
        hints = get_type_hints(SampleOptions, include_extras=True)
        for name, default in SampleOptions._field_defaults.items():
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            parameters.append(
                inspect.Parameter(name, kind, default=default, annotation=hints[name])
            )
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


_Step = Callable[[ndfeed.Dataset], ndfeed.Dataset]


class Opener:
    """Opens sources as options say: ``whole`` first, with windows and labels, then ``cut``."""

    def __init__(self, given: SampleOptions, fields: str | None, *, cache: bool = True) -> None:
        if given.shape is not None and given.dtype is None:
            raise typer.BadParameter("--shape is for raw files and also needs --dtype")
        for name, needed in (("by", "windows"), ("column", "labels"), ("key", "labels"),
                             ("each", "crops"), ("grid", "crops"), ("pad", "crops")):  # fmt: skip
            if getattr(given, name) is not None and not getattr(given, needed):
                raise typer.BadParameter(f"--{name} is for --{needed}")
        self._open: Callable[..., ndfeed.Dataset] = partial(
            ndfeed.open,
            dtype=given.dtype,
            shape=None if given.shape is None else _parse_numbers("shape", given.shape),
            tail=given.tail.value,
            offsets=given.offsets,
            fields=None if fields is None else fields.split(","),
            cache=cache,
        )
        self._sample = given.sample.value
        # Labels last: a window of them has as many as it has rows.
        steps = [_parse_windows(given), _parse_labels(given)]
        self._steps = [one for one in steps if one is not None]
        self._crops = _parse_crops(given)

    def __call__(self, source: str, sample: str | None = None) -> ndfeed.Dataset:
        """Open a source as the options say, or with another ``sample``."""
        return self.cut(self.whole(source, sample))

    def whole(self, source: str, sample: str | None = None) -> ndfeed.Dataset:
        """Open a source, before crops are cut."""
        ds = self._open(source, sample=sample or self._sample)
        for step in self._steps:
            ds = step(ds)
        return ds

    def cut(self, ds: ndfeed.Dataset) -> ndfeed.Dataset:
        """Return the crops of a dataset, or itself."""
        return ds if self._crops is None else self._crops(ds)


def _parse_labels(given: SampleOptions) -> _Step | None:
    if given.labels is None:
        return None
    field, source = _split_name(given.labels)
    options: dict[str, Any] = {
        "field": field or "label",
        "column": given.column,
        "key": given.key,
    }
    if source == ndfeed.folder_name.__name__:
        return lambda ds: ds.with_labels(ndfeed.folder_name, **options)
    return lambda ds: ds.with_labels(source, **options)


def _parse_windows(given: SampleOptions) -> _Step | None:
    if given.windows is None:
        return None
    numbers = _parse_numbers("windows", given.windows)
    if len(numbers) not in (1, 2):
        problem = f"--windows takes a length and a stride, got {given.windows!r}"
        raise typer.BadParameter(problem)
    length, step = (*numbers, 1)[:2]
    return lambda ds: ds.windows(length, stride=step, by=given.by)


def _parse_crops(given: SampleOptions) -> _Step | None:
    if not given.crops:
        return None
    sizes: dict[str, tuple[int | None, ...]] = {}
    for text in given.crops:
        name, _, size = text.rpartition("=")
        if not name or not size:
            raise typer.BadParameter(f"--crops takes NAME=N,N such as image=96,96, got {text!r}")
        sizes[name] = _parse_numbers("crops", size, whole=":")
    overlap = None if given.grid is None else _parse_numbers("grid", given.grid)
    options: dict[str, Any] = {
        "each": 1 if given.each is None else given.each,
        "grid": overlap[0] if overlap is not None and len(overlap) == 1 else overlap,
        "pad": _parse_pads(given.pad or []),
    }
    return lambda ds: ds.crops(sizes, **options)


def _parse_pads(texts: list[str]) -> float | dict[str, float] | None:
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            number = float(value)
            found[name] = (
                int(value) if number.is_integer() and value.lstrip("+-").isdigit() else number
            )
        except ValueError:
            raise typer.BadParameter(f"--pad takes a number, got {text!r}") from None
    if "" in found and len(found) > 1:
        raise typer.BadParameter("--pad takes one number, or a NAME=NUMBER for each field")
    return found.get("", found or None)


def _split_name(text: str) -> tuple[str, str]:
    """Return the field and the file of ``NAME=FILE``; the name is empty if there is none."""
    name, sign, rest = text.partition("=")
    return (name, rest) if sign and name and not set(name) & {"/", "."} else ("", text)


def _parse_numbers(option: str, text: str, whole: str | None = None) -> tuple[Any, ...]:
    """Parse whole numbers; ``whole`` in place of one is ``None``."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return tuple(None if part == whole else int(part) for part in parts)
    except ValueError:
        problem = f"--{option}: expected whole numbers such as 3,32,32, got {text!r}"
        raise typer.BadParameter(problem) from None


@contextmanager
def report_bad_options() -> Iterator[None]:
    """Report wrong arguments of the library as wrong options. Our own errors are not about them."""
    try:
        yield
    except ndfeed.Error:
        raise
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(name_options(shown(str(error)))) from None


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
