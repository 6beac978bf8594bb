"""``ndfeed demo``: compressed files read with np.load, with ndfeed, and packed by it."""

import errno
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import ndfeed
from ndfeed.cli import chart
from ndfeed.cli.baseline import Loop
from ndfeed.cli.console import Meter, format_rate, literal, make_console, print_json
from ndfeed.cli.options import JsonOption
from ndfeed.cli.throughput import length, run
from ndfeed.errors import DeniedError, MissingError, SpaceError, shown_size
from ndfeed.files.threads import run_apart
from ndfeed.progress import Bar

_BATCH = 128
_SECONDS = 2.0  # for each way
_TRAINING = 8.0
_SHAPE = (3, 32, 32)
_CLASSES = 10
_PICTURE = "ndfeed-demo.svg"
_WIDEST = 24  # characters of a bar

Facts = dict[str, Any]


def demo(
    files: Annotated[int, typer.Option(min=20, help="Number of files to create.")] = 4000,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Create the files in a new folder in DIR instead of the temporary folder.",
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the files.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Chart file, {_PICTURE} by default; a .png needs Matplotlib.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.05, help="Seconds to measure each way.")
    ] = _SECONDS,
    as_json: JsonOption = False,
) -> None:
    """Read compressed .npz files with np.load and with ndfeed, pack them, and compare.

    Makes the files, checks that every way reads the same samples, times
    shuffled batches, draws a chart, and removes the files again. Trains a small
    classifier if torch is installed.

    \b
    ndfeed demo
    ndfeed demo --plot chart.svg --json
    """
    picture = _choose_picture(plot)
    say = None if as_json else make_console()
    with _make_folder(folder, keep=keep) as made:
        found = _run_demo(made, files, seconds, say)
    found["plot"] = chart.save(picture, chart.draw(picture, _make_chart(found["ways"])))
    found["folder"] = os.fspath(made) if keep else None
    if say is None:
        print_json(found)
        return
    say.print(literal(f"chart: {found['plot']}"), soft_wrap=True)
    if keep:
        say.print(literal(f"the files are in {made}"), soft_wrap=True)
    say.print("all ways read the same samples; next, your files: ndfeed bench YOUR_FOLDER")


def _choose_picture(plot: Path | None) -> str:
    """Return where the chart can be written; checked before anything else."""
    try:
        return chart.check(plot or _PICTURE)
    except DeniedError:
        if plot is not None:
            raise
    return os.path.join(tempfile.gettempdir(), _PICTURE)


@contextmanager
def _make_folder(parent: Path | None, *, keep: bool) -> Iterator[Path]:
    """Make a new folder, which is removed afterwards whatever happens, unless it is to be kept."""
    if parent is not None and not parent.is_dir():
        raise MissingError(parent, "no such folder", remedy="create it, or choose another --folder")
    # Named before it exists, so that an interrupt at any moment leaves nothing behind.
    made = (parent or Path(tempfile.gettempdir())) / f"ndfeed-demo-{secrets.token_hex(8)}"
    try:
        made.mkdir(0o700)
        yield made
    except BaseException as error:
        shutil.rmtree(made, ignore_errors=True)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            remedy = "choose another --folder, or fewer --files"
            raise SpaceError(made.parent, "the disk is full", remedy=remedy) from None
        raise
    if not keep:
        shutil.rmtree(made, ignore_errors=True)


def _run_demo(made: Path, files: int, seconds: float, say: Console | None) -> Facts:
    """Run the demo, from making files to training."""
    source, target = made / "npz", made / "packed"
    source.mkdir()
    _tell(say, f"making {files:,} compressed .npz files: an image and a label in each …")
    make(source, files)
    ds = ndfeed.open(source, sample="file", cache=False)
    batch = min(_BATCH, files // 10)
    _tell(say, "reading them, and packing them …")
    usual = Loop(source, batch)
    expected = samples_of(usual)
    began = time.perf_counter()
    with Meter("packing", files) as meter:
        packed = ndfeed.pack(ds, target, progress=meter.advance)
    took = time.perf_counter() - began
    ours = {"ndfeed, in place": ds, "ndfeed, packed": packed}
    loaders = {way: ndfeed.loader(data, batch, shuffle=True) for way, data in ours.items()}
    for way, loader in loaders.items():
        if samples_of(loader) != expected:
            raise RuntimeError(f"{way}: samples differ from those of np.load; please report this")
    rates = {"np.load in a loop": _measure_loop(usual, seconds)}
    rates |= {way: run(loader, seconds).rows_per_second for way, loader in loaders.items()}
    slowest = rates["np.load in a loop"]
    ways = [
        {"way": way, "rows_per_second": round(rate), "ratio": round(rate / slowest, 1)}
        for way, rate in rates.items()
    ]
    found: Facts = {
        "files": files,
        "batch_size": batch,
        "bytes": {"npz": _count_bytes(source), "packed": _count_bytes(target)},
        "pack_seconds": round(took, 3),
        "ways": ways,
        "training": None,
    }
    if say is not None:
        say.print(_make_table(ways))
        before, after = (shown_size(found["bytes"][name]) for name in ("npz", "packed"))
        say.print(f"packing took {took:.1f} s, once: {before} before, {after} now")
    found["training"] = _train(packed, batch, seconds, say)
    return found


def _tell(say: Console | None, text: str) -> None:
    if say is not None:
        say.print(text, style="dim", soft_wrap=True)


def make(folder: Path, files: int) -> None:
    """Write images of ten classes, each a pattern under noise, one to a file."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 4, (_CLASSES, _SHAPE[0], *(n // 8 for n in _SHAPE[1:])), np.uint8)
    labels = rng.integers(0, _CLASSES, files)
    stopped: list[None] = []
    with Bar("making files", files) as bar:

        def write() -> None:
            for number, label in enumerate(labels.tolist()):
                if stopped:
                    return
                image = np.kron(patterns[label] * np.uint8(40), np.ones((1, 8, 8), np.uint8))
                image += rng.integers(0, 16, _SHAPE, np.uint8)  # few levels, so that they compress
                np.savez_compressed(folder / f"{number:06}.npz", image=image, label=label)
                bar.advance(1)

        # Apart: a Ctrl-C within zipfile would become an error, or be lost.
        run_apart(write, lambda: stopped.append(None))


def samples_of(batches: Iterable[Any]) -> list[bytes]:
    """Return the samples of an epoch in any order: a digest of each, sorted."""
    found = []
    for batch in batches:
        names = sorted(batch)
        for row in range(length(batch)):
            digest = hashlib.sha256()
            for name in names:
                value = np.asarray(batch[name][row])
                digest.update(f"{name} {value.dtype} {value.shape} ".encode())
                digest.update(value.tobytes())
            found.append(digest.digest())
    return sorted(found)


def _measure_loop(loop: Loop, seconds: float) -> float:
    """Measure rows per second of ``np.load`` in a loop."""
    rows, began = 0, time.perf_counter()
    while True:
        for batch in loop:
            rows += length(batch)
            took = time.perf_counter() - began
            if took > seconds:
                return rows / took


def _train(packed: ndfeed.Dataset, batch: int, seconds: float, say: Console | None) -> Facts | None:
    """Train on the packed files, where torch is installed."""
    if find_spec("torch") is None:
        _tell(say, "install torch to train a classifier here: pip install torch")
        return None
    _tell(say, "training a small classifier with torch …")
    from ndfeed.cli.torch_runs import train  # noqa: PLC0415 - not everybody has torch

    done = train(packed, batch, min(seconds * 4, _TRAINING))
    if say is not None:
        say.print(
            f"trained {done.epochs} epoch{'s' * (done.epochs != 1)} in {done.seconds:.1f} s: "
            f"{done.accuracy:.0%} of unseen images right, {done.waiting:.1%} of the time spent "
            "waiting for data",
            soft_wrap=True,
        )
    return {
        "epochs": done.epochs,
        "seconds": round(done.seconds, 3),
        "accuracy": round(done.accuracy, 4),
        "waiting": round(done.waiting, 4),
    }


def _count_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _make_table(ways: list[Facts]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("shuffled batches")
    table.add_column("rows/s", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("")
    top = max(way["rows_per_second"] for way in ways)
    for way in ways:
        long = max(round(_WIDEST * way["rows_per_second"] / top), 1)
        rate, ratio = format_rate(way["rows_per_second"]), f"{way['ratio']:.1f}×"
        table.add_row(way["way"], rate, ratio, "█" * long)
    return table


def _make_chart(ways: list[Facts]) -> chart.Chart:
    bars = [
        chart.Bar(
            way["way"],
            way["rows_per_second"],
            f"{format_rate(way['rows_per_second'])} rows/s, {way['ratio']:.1f}×",
            marked=not way["way"].startswith("ndfeed"),
        )
        for way in ways
    ]
    title = "Compressed .npz files: shuffled batches"
    return chart.Chart(title, bars, "rows per second")
