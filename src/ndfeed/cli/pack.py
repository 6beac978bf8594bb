"""``ndfeed pack SRC DST``: rewrite a dataset into plain columns, and measure what that gains."""

import os
import time
from typing import Annotated, Any

import typer
from rich.console import Console

import ndfeed
from ndfeed.cli.console import Meter, complain, literal, make_console, print_json, print_line
from ndfeed.cli.options import (
    FieldsOption,
    JsonOption,
    Opener,
    SampleOptions,
    make_executor,
    parse_dtype,
    report_bad_options,
    takes_samples,
)
from ndfeed.cli.throughput import run_epochs
from ndfeed.errors import shown_size

_BATCH = 256
_AT_LEAST = 1.0  # seconds of whole epochs, before and after: less is unreliable
_AT_MOST = 3.0  # seconds for each, including the first epoch, which is not counted
# Epochs of less data than this are too short to measure.
_LEAST_ROWS = 4 * _BATCH
_LEAST_BYTES = 64 << 20

Facts = dict[str, Any]


def _parse_casts(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, sep, dtype = text.rpartition("=")
        if not sep or not name:
            raise typer.BadParameter(f"expected NAME=TYPE such as image=float16, got {text!r}")
        try:
            found[name] = parse_dtype(dtype)
        except typer.BadParameter as error:
            raise typer.BadParameter(f"--cast {text}: {error.message}") from None
    return found


@takes_samples
def pack(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="A file, a folder, or a pattern in quotes."),
    ],
    target: Annotated[str, typer.Argument(metavar="DST", help="The folder to create.")],
    samples: SampleOptions,
    fields: FieldsOption = None,
    cast: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TYPE", help="Store a field as another dtype; can be repeated."),
    ] = None,
    shuffle: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="SEED", help="Write rows in a random order fixed by this seed."
        ),
    ] = None,
    names: Annotated[
        bool, typer.Option("--names", help='Keep the names of source files, as the field "file".')
    ] = False,
    rows_per_part: Annotated[
        int | None, typer.Option(min=1, help="Start a new part after this many rows.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Append rows to an existing dataset.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Restore damaged blocks of DST from SRC.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Where to run: ray, ray://host:port, dask or dask://host:port.",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of workers; chosen automatically by default.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory limit for all workers together, such as 2GB or 512MiB."
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(help="Measure shuffled epochs of SRC and DST afterwards, one second each."),
    ] = True,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be written, without writing anything."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a dataset to plain .npy columns. The result appears complete or not at all.

    After any interruption the same command resumes the work.

    \b
    ndfeed pack npz_data/ packed/
    ndfeed pack npz_data/ packed/ --shuffle 0 --cast image=float16
    ndfeed pack more_data/ packed/ --append
    ndfeed pack npz_data/ packed/ --repair
    """
    opened = Opener(samples, fields)
    options: Facts = {
        "dtype": _parse_casts(cast or []),
        "shuffle": shuffle,
        "names": names,
        "rows_per_part": rows_per_part,
        "append": append,
        "repair": repair,
        "memory": memory,
    }
    try:
        with report_bad_options():
            ds = opened(source)
            if dry_run:
                plan = ndfeed.pack(ds, target, workers=workers, dry_run=True, **options)
                found = _describe_forecast(plan, append)
            else:
                found = _run_pack(ds, target, options, on, workers)
                if measure and found["written"]:
                    found |= _measure(ds, target)
    except KeyboardInterrupt as error:
        complain("; ".join(["interrupted", *getattr(error, "__notes__", ())]))
        raise typer.Exit(130) from None
    _show({"source": source, "target": target} | found, as_json)


def _run_pack(
    ds: ndfeed.Dataset, target: str, options: Facts, on: str | None, workers: int | None
) -> Facts:
    """Pack, and describe the result."""
    began = time.perf_counter()
    with make_executor(on) as used, Meter("packing", len(ds)) as meter:
        made: ndfeed.Dataset = ndfeed.pack(
            ds,
            target,
            executor=used.executor,
            workers=workers or used.workers,
            progress=meter.advance,
            **options,
        )
    took = time.perf_counter() - began
    repaired = bool(options["repair"])
    # Packing reports rows, including those of an earlier run; a finished target reports none.
    written = meter.rows > 0 or not len(ds)
    return {
        "rows": len(made),
        "parts": len({os.path.dirname(file) for file in made.files}),
        "bytes": _count_bytes(made),
        "source_bytes": _count_bytes(ds),
        "seconds": round(took, 3),
        "repaired": repaired,
        "written": written and not repaired,
        "rows_per_second": None,
        "measured_seconds": None,
        "unmeasured": None,
    }


def _describe_forecast(found: ndfeed.Forecast, append: bool) -> Facts:
    return {
        "rows": found.rows,
        "parts": found.parts,
        "appended": append,
        "fields": [
            {"name": f.name, "dtype": f.type, "shape": list(f.shape or ()), "text": str(f)}
            for f in found.fields.values()
        ],
        "bytes": found.needed,
        "free": found.free,
        "fits": found.fits,
        "state": found.state,
    }


def _count_bytes(ds: ndfeed.Dataset) -> int:
    tables = {id(group.table): group.table for group in ds.groups}
    return sum(int(table.identity[:, 2].sum()) for table in tables.values())


def _measure(ds: ndfeed.Dataset, target: str) -> Facts:
    """Measure shuffled epochs before and after, or say why that was not possible."""
    try:
        return _measure_rates(ds, ndfeed.open(target).select(*ds.fields))
    except KeyboardInterrupt as error:
        error.add_note(f"{target} is complete; only its speed was not measured")
        raise


def _measure_rates(ds: ndfeed.Dataset, made: ndfeed.Dataset) -> Facts:
    """Measure rows per second of whole epochs after the first, with equal loaders."""
    if len(ds) < _LEAST_ROWS and ds.nbytes < _LEAST_BYTES:
        return {"unmeasured": "too little data to measure their speed"}
    batch = min(_BATCH, max(len(ds) // 4, 1))
    found = {}
    for name, one in (("before", ds), ("after", made)):
        epochs = run_epochs(ndfeed.loader(one, batch, shuffle=True), _AT_LEAST, _AT_MOST)
        if epochs is None:
            how = "ndfeed bench measures a part of them"
            return {"unmeasured": f"epochs take too long to measure here; {how}"}
        found[name] = epochs
    return {
        "rows_per_second": {name: round(one.rows_per_second) for name, one in found.items()},
        "measured_seconds": {name: round(one.seconds, 3) for name, one in found.items()},
    }


def _show(found: Facts, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out = make_console()
    out.print(literal(found["target"], "bold"))
    what = f"{found['rows']:,} rows in {found['parts']:,} part{'s' * (found['parts'] != 1)}"
    if "state" in found:
        _show_forecast(out, what, found)
        return
    if found["repaired"]:
        print_line(out, f"{what}, no damage left ({found['seconds']:.1f} s)")
        return
    if not found["written"]:
        print_line(out, f"{what}, already packed from this source: nothing was written")
        return
    rate = shown_size(found["bytes"] / max(found["seconds"], 1e-9))
    before, after = shown_size(found["source_bytes"]), shown_size(found["bytes"])
    print_line(out, f"{what}, {before} before, {after} now, in {found['seconds']:.1f} s ({rate}/s)")
    if found["unmeasured"] is not None:
        print_line(out, f"shuffled batches: {found['unmeasured']}")
    elif found["rows_per_second"] is not None:
        _show_speed(out, found["rows_per_second"], found["measured_seconds"])


def _show_speed(out: Console, speeds: dict[str, int], seconds: dict[str, float]) -> None:
    gain = speeds["after"] / max(speeds["before"], 1)
    print_line(
        out,
        f"shuffled epochs after the first: {speeds['before']:,} rows/s before, "
        f"{speeds['after']:,} now ({gain:.1f}×), over {seconds['before']:.1f} s and "
        f"{seconds['after']:.1f} s",
    )


def _show_forecast(out: Console, what: str, found: Facts) -> None:
    if found["state"] == "done":
        print_line(out, f"already has {what} of this source: nothing would be written")
        return
    free = "" if found["free"] is None else f", {shown_size(found['free'])} free"
    verb = "get" if found["appended"] else "have"
    print_line(out, f"would {verb} {what}, and need {shown_size(found['bytes'])}{free}")
    if not found["fits"]:
        print_line(
            out, "not enough disk space: free some, or choose a target elsewhere", "bold red"
        )
    if found["state"] == "begun":
        print_line(out, "this would resume an earlier run")
    for one in found["fields"]:
        print_line(out, f"  {one['text']}")
