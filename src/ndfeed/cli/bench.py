"""``ndfeed bench PATH``: find the bottleneck of reading this data, and what would help."""

import importlib
import math
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import ndfeed
from ndfeed.cli import chart
from ndfeed.cli.console import (
    Steps,
    complain,
    format_rate,
    literal,
    make_console,
    print_json,
    print_line,
)
from ndfeed.cli.diagnosis import LABELS
from ndfeed.cli.measurements import Case, Findings, Function, Uncut, examine
from ndfeed.cli.options import (
    FieldsOption,
    JsonOption,
    Opener,
    SampleOptions,
    report_bad_options,
    takes_samples,
)
from ndfeed.cli.order_trials import describe_orders, list_advice, make_orders_table
from ndfeed.dataset.row_selection import Drawn
from ndfeed.errors import SourceError, shown_size

_WIDEST = 16  # characters of a bar: the table then has 80
_MOST = 12.0  # times the shortest bar; longer ones are cut

Facts = dict[str, Any]


@takes_samples
def bench(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A file, a folder, or a pattern in quotes."),
    ],
    samples: SampleOptions,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 256,
    shuffle: Annotated[
        bool, typer.Option(help="Read in random order, or in the order of the files.")
    ] = True,
    function: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="MODULE:NAME",
            help="A function on batches, as for Dataset.map; the current folder is searched, too.",
        ),
    ] = None,
    fields: FieldsOption = None,
    cold: Annotated[
        bool,
        typer.Option(
            "--cold",
            help="Drop the files from the page cache first, to measure the disk. Nothing is "
            "written.",
        ),
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(min=0.1, help="Time to measure; remedies and orders may double it or more."),
    ] = 10.0,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also draw a chart of the stages: .svg, or .png with Matplotlib."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the bottleneck on your own data, and what would help.

    Runs the loader, measures each stage on its own, and tries remedies on a
    sample: packing it, holding it in memory, other numbers of threads, larger
    batches. The data is only read; the packed sample is written to a temporary
    folder and removed again.

    \b
    ndfeed bench npz_data/
    ndfeed bench npz_data/ --batch-size 64 --map augment:flip --plot stages.svg
    ndfeed bench npz_data/ --cold --json | jq .remedies
    """
    opened = Opener(samples, fields)
    picture = None if plot is None else chart.check(plot)
    mapped = None if function is None else _import_function(function)
    ds = _open(path, opened)
    uncut = Uncut(opened.whole(path), opened.cut) if isinstance(ds.rows, Drawn) else None
    packing = _pack_command(path, samples.without_crops() if uncut else samples, fields)
    case = Case(path, packing, ds, mapped, batch_size, shuffle, seconds, cold, uncut=uncut)
    _check_options(case)
    with _report_function_errors(function), Steps("measuring") as steps:
        found = examine(case, steps.begin)
    facts = _describe(case, found)
    if picture is not None:
        facts["plot"] = chart.save(picture, chart.draw(picture, _make_chart(case, found)))
    if as_json:
        print_json(facts)
    else:
        _print(make_console(), case, found, facts["plot"])


def _open(path: str, opened: Opener) -> ndfeed.Dataset:
    """Open the data, which must have samples."""
    with report_bad_options():
        ds = opened(path)
    if not len(ds):
        raise SourceError(path, "no samples to measure")
    return ds


def _check_options(case: Case) -> None:
    """Refuse wrong options before anything is measured."""
    with report_bad_options():
        replace(case, function=None).loader(case.ds)


def _import_function(name: str) -> Function:
    """Import ``module:name``; modules of the current folder are found."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise typer.BadParameter(f"--map needs MODULE:NAME such as augment:flip, got {name!r}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise typer.BadParameter(f"--map {name}: {error}") from None
    if not callable(found):
        raise typer.BadParameter(f"--map {name}: a {type(found).__name__}, not a function")
    function: Function = found
    return function


@contextmanager
def _report_function_errors(function: str | None) -> Iterator[None]:
    """Report whatever the user's function raises on one line."""
    try:
        yield
    except (ndfeed.Error, OSError):
        raise
    except Exception as error:
        if function is None:
            raise
        complain(f"--map {function}: {type(error).__name__}: {error}")
        raise typer.Exit(1) from None


def _pack_command(path: str, samples: SampleOptions, fields: str | None) -> str:
    """Return the command that packs the same samples."""
    words = [path, "packed/", *samples.list_given(), *(["--fields", fields] if fields else [])]
    return f"ndfeed pack {shlex.join(words)}"


def _describe(case: Case, found: Findings) -> Facts:
    row = case.ds.nbytes / len(case.ds)
    return {
        "path": case.path,
        "samples": len(case.ds),
        "bytes_per_sample": round(row, 1),
        "batch_size": case.batch_size,
        "order": found.order,
        "loader": {
            "rows_per_second": round(found.loader.rows_per_second, 1),
            "bytes_per_second": round(found.loader.rows_per_second * row),
            "threads": found.loader.threads,
            "processes": found.report.processes,
            "idle": round(found.idle, 3),
            "limit": found.report.limit,
        },
        "stages": [
            {
                "stage": one.name,
                "rows_per_second": round(one.rows_per_second, 1),
                "bytes_per_second": round(
                    one.rows_per_second * _sample_bytes(one.name, found, row)
                ),
                "share": None if one.share is None else round(one.share, 3),
            }
            for one in found.stages
        ],
        "to_device": None
        if found.to_device is None
        else {"rows_per_second": round(found.to_device.rows_per_second, 1)},
        "limit": found.limit,
        "sample": {"rows": found.sample, "rows_per_second": round(found.base.rate, 1)},
        "trials": [
            {"name": one.name, "how": one.how, "rows_per_second": round(one.rate, 1)}
            for one in found.trials
        ],
        "remedies": [
            {"name": one.name, "how": one.how, "gain": round(one.gain, 2)} for one in found.remedies
        ],
        "orders": describe_orders(found.orders),
        "notes": found.notes,
        "plot": None,
    }


def _sample_bytes(stage: str, found: Findings, row: float) -> float:
    """Return the bytes of a sample in this stage: the device gets what the function returned."""
    return found.loader.row_bytes if stage == "device" else row


def _print(out: Console, case: Case, found: Findings, plot: str | None) -> None:
    ds = case.ds
    out.print(literal(case.path, "bold"))
    row = ds.nbytes / len(ds)
    print_line(
        out,
        f"{len(ds):,} samples of {shown_size(row)}, {found.order}, batches of {case.batch_size:,}, "
        f"{found.report.workers}",
    )
    out.print(_make_table(found, row))
    for note in found.notes:
        print_line(out, note, "dim")
    if found.disk_counts or found.disk_passes:
        print_line(
            out,
            "larger than free memory: every epoch reads from the disk"
            if not found.disk_passes
            else "fits into memory: only the first epoch waits for the disk",
            "dim",
        )
    _print_remedies(out, found)
    _print_orders(out, found)
    if plot is not None:
        print_line(out, f"chart: {plot}")


def _make_table(found: Findings, row: float) -> Table:
    """Make a table of the stages in the order of the data, each with its own rate."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("stage, on its own")
    for name in ("rows/s", "bytes/s", "time"):
        table.add_column(name, justify="right")
    table.add_column("")
    rates = [one.rows_per_second for one in found.stages]
    rates += [rate for _, rate in _list_loaders(found)]
    top = min(max(rates), _MOST * min(rates)) or 1.0  # a loaded machine may deliver nothing
    for one in found.stages:
        rate, limits = one.rows_per_second, one.name == found.limit
        table.add_row(
            one.label,
            format_rate(rate),
            shown_size(rate * _sample_bytes(one.name, found, row)),
            "" if one.share is None else f"{one.share:.0%}",
            _draw_bar(rate, top) + " ◀ bottleneck" * limits,
            style="bold red" if limits else "",
        )
    table.add_section()
    for label, rate in _list_loaders(found):
        table.add_row(
            label, format_rate(rate), shown_size(rate * row), "", _draw_bar(rate, top), style="bold"
        )
    return table


def _draw_bar(rate: float, top: float) -> str:
    return "█" * max(round(_WIDEST * min(rate / top, 1.0)), 1) + "▶" * (rate > top)


def _list_loaders(found: Findings) -> list[tuple[str, float]]:
    """Return the rates of loaders: all stages together, and on the device if there is one."""
    loaders = [("the loader", found.loader.rows_per_second)]
    if found.disk_passes:
        loaders = [("the loader, first epoch", found.loader.rows_per_second)]
        loaders += [("the loader, later epochs", found.later)]
    if found.to_device is not None:
        loaders.append(("the loader, on the device", found.to_device.rows_per_second))
    return loaders


def _print_remedies(out: Console, found: Findings) -> None:
    tried = ", ".join(dict.fromkeys(one.name for one in found.trials))
    if not found.remedies:
        print_line(out, f"nothing helped of what was tried on {found.sample:,} samples: {tried}")
        return
    print_line(out, f"what helps most, measured on {found.sample:,} samples:", "bold")
    for number, one in enumerate(found.remedies, 1):
        print_line(
            out,
            f"{number}. {one.how}  {format_rate(one.before)} → {format_rate(one.after)} rows/s, "
            f"{one.gain:.1f}×",
        )
    print_line(out, f"tried: {tried}", "dim")


def _print_orders(out: Console, found: Findings) -> None:
    table = make_orders_table(found.orders)
    if table is not None:
        out.print(table)
        for line in list_advice(found.orders):
            print_line(out, line)


def _make_chart(case: Case, found: Findings) -> chart.Chart:
    row = case.ds.nbytes / len(case.ds)
    rows = [
        (one.label, one.rows_per_second, _sample_bytes(one.name, found, row), one.loader)
        for one in found.stages
    ]
    rows += [(label, rate, row, 0.0) for label, rate in _list_loaders(found)]
    limit = None if found.limit is None else LABELS[found.limit]
    bars = [
        chart.Bar(label, rate, _describe_bar(rate, each, loader), label == limit)
        for label, rate, each, loader in rows
        if math.isfinite(rate)
    ]
    foot = "; ".join(f"{one.how}: {one.gain:.1f}×" for one in found.remedies)
    title = "What each stage can deliver" + (f"; bottleneck: {limit}" if limit else "")
    return chart.Chart(title, bars, "rows per second", foot)


def _describe_bar(rate: float, row: float, loader: float) -> str:
    """Return the text beside a bar: its value, and its ratio to the loader."""
    ratio = f", {rate / loader:.1f}× the loader" if loader else ""
    return f"{format_rate(rate)} rows/s, {shown_size(rate * row)}/s{ratio}"
