"""``ndfeed pack SRC DST``: rewrite a dataset into plain columns, and say what that buys."""

import json
import os
import time
from typing import Annotated, Any

import typer
from rich.console import Console

import ndfeed
from ndfeed.cli.console import complain, console, literal
from ndfeed.cli.engines import engine
from ndfeed.cli.inspect import Sample, as_dtype, as_shape
from ndfeed.cli.meter import Meter
from ndfeed.cli.runs import run
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.show import size
from ndfeed.files import system, write
from ndfeed.pack.pack import forecast
from ndfeed.pack.packing import needed
from ndfeed.pack.request import Request

_BATCH = 256
_SECONDS = 0.5  # for measuring each of two datasets

Facts = dict[str, Any]


def _casts(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, sep, dtype = text.rpartition("=")
        if not sep or not name:
            raise typer.BadParameter(f"NAME=TYPE such as image=float16 expected, got {text!r}")
        try:
            found[name] = as_dtype(dtype)
        except typer.BadParameter as error:
            raise typer.BadParameter(f"--cast {text}: {error.message}") from None
    return found


def pack(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="A file, a folder, or a pattern in quotes."),
    ],
    target: Annotated[str, typer.Argument(metavar="DST", help="The folder to make.")],
    sample: Annotated[Sample, typer.Option(help="What one sample is.")] = Sample.auto,
    dtype: Annotated[
        str | None,
        typer.Option(parser=as_dtype, metavar="NAME", help="Element type of raw files."),
    ] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Shape of one sample of raw files.")
    ] = None,
    fields: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Only these fields, separated by commas.")
    ] = None,
    cast: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TYPE", help="Store a field in another type; may be repeated."),
    ] = None,
    shuffle: Annotated[
        int | None, typer.Option(min=0, metavar="SEED", help="Write rows in a random order.")
    ] = None,
    names: Annotated[
        bool, typer.Option("--names", help='Keep the names of source files, as the field "file".')
    ] = False,
    rows_per_part: Annotated[
        int | None, typer.Option(min=1, help="Split the columns after so many rows.")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Add rows to what is there.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write damaged blocks of DST again from SRC.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help="ray, ray://host:port, dask or dask://host:port."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Pieces worked on at once; chosen if not said.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="For all workers together: 2GB, 512MiB.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, on one line.")
    ] = False,
) -> None:
    """Rewrite a dataset into plain .npy columns, once: whole, or not at all.

    Whatever ends it, the same command goes on where it was.

    \b
    ndfeed pack npz_data/ packed/
    ndfeed pack npz_data/ packed/ --shuffle 0 --cast image=float16
    ndfeed pack more_data/ packed/ --append
    ndfeed pack npz_data/ packed/ --repair
    """
    if shape is not None and dtype is None:
        raise typer.BadParameter("--shape is for raw files and needs --dtype beside it")
    chosen = None if fields is None else fields.split(",")
    lengths = None if shape is None else as_shape(shape)
    try:
        ds = ndfeed.open(source, sample=sample.value, dtype=dtype, shape=lengths, fields=chosen)
        options = {
            "dtype": _casts(cast or []),
            "shuffle": shuffle,
            "names": names,
            "rows_per_part": rows_per_part,
            "append": append,
            "memory": memory,
        }
        if dry_run:
            _show(_forecast(ds, source, target, options, workers), as_json)
            return
        found = _packed(ds, target, options, on, workers, repair)
    except KeyboardInterrupt as error:
        complain("; ".join(["interrupted", *getattr(error, "__notes__", ())]))
        raise typer.Exit(130) from None
    except (TypeError, ValueError) as error:
        if isinstance(error, ndfeed.Error):
            raise
        raise typer.BadParameter(str(error)) from None
    _show({"source": source, "target": target} | found, as_json)


def _packed(
    ds: Dataset, target: str, options: Facts, on: str | None, workers: int | None, repair: bool
) -> Facts:
    """Do it; the facts of what was done."""
    began = time.perf_counter()
    with engine(on) as used, Meter("packing", len(ds)) as meter:
        made = ndfeed.pack(
            ds,
            target,
            repair=repair,
            executor=used.executor,
            workers=workers or used.workers,
            progress=meter.advance,
            **options,
        )
    took = time.perf_counter() - began
    found: Facts = {
        "rows": len(made),
        "parts": len({os.path.dirname(file) for file in made.files}),
        "bytes": _on_disk(made),
        "source_bytes": _on_disk(ds),
        "seconds": round(took, 3),
        "repaired": repair,
    }
    if not repair and len(made) and len(ds):
        found |= {"rows_per_second": {"before": _rate(ds), "after": _rate(made.select(*ds.fields))}}
    return found


def _forecast(ds: Dataset, source: str, target: str, options: Facts, workers: int | None) -> Facts:
    request = Request.of(ds, target, **options)
    plan = forecast(request, workers or system.cores())
    return {
        "source": source,
        "target": target,
        "rows": plan.rows,
        "parts": len(plan.parts) - 1,
        "pieces": max(len(plan.pieces) - 1, 0),
        "fields": [{"name": f.name, "dtype": f.dtype, "shape": list(f.shape)} for f in plan.fields],
        "bytes": needed(plan),
        "free": write.free_bytes(os.path.dirname(request.target)),
    }


def _on_disk(ds: Dataset) -> int:
    tables = {id(group.table): group.table for group in ds.groups}
    return sum(int(table.identity[:, 2].sum()) for table in tables.values())


def _rate(ds: Dataset) -> int:
    """Shuffled rows a second, measured on a few batches behind the first."""
    loader = ndfeed.loader(ds, min(_BATCH, max(len(ds) // 4, 1)), shuffle=True)
    return round(run(loader, _SECONDS).rows_per_second)


def _show(found: Facts, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    out = console()
    out.print(literal(found["target"], "bold"))
    what = f"{found['rows']:,} rows in {found['parts']:,} part{'s' * (found['parts'] != 1)}"
    if "pieces" in found:
        free = "" if found["free"] is None else f", {size(found['free'])} free there"
        _line(out, f"would have {what}, and need {size(found['bytes'])}{free}")
        for one in found["fields"]:
            shape = str(tuple(one["shape"])).replace("None", "…")
            _line(out, f"  {one['name']} {one['dtype']} {shape}")
        return
    if found["repaired"]:
        _line(out, f"{what}, all sound now ({found['seconds']:.1f} s)")
        return
    rate = size(found["bytes"] / max(found["seconds"], 1e-9))
    before, after = size(found["source_bytes"]), size(found["bytes"])
    _line(out, f"{what}, {before} before, {after} now, in {found['seconds']:.1f} s ({rate}/s)")
    speeds = found.get("rows_per_second")
    if speeds and speeds["before"] and speeds["after"]:
        _line(
            out,
            f"shuffled batches: {speeds['before']:,} rows/s before, {speeds['after']:,} now "
            f"({speeds['after'] / speeds['before']:.1f}×)",
        )


def _line(out: Console, text: str) -> None:
    # Wrapped by the terminal, if at all: what is piped or copied stays one line.
    out.print(literal(f"  {text}"), soft_wrap=True)
