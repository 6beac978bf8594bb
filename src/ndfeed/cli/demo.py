"""``ndfeed demo``: read small files of every kind, with ndfeed and without, and compare."""

import itertools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypedDict

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ndfeed.cli.console import console, literal
from ndfeed.cli.peers import PEERS, Batch, Peer, Read, Rows
from ndfeed.progress import Bar

_BATCH = 256
_SECONDS = 0.2  # for each source, both ways together
_CHECKED = 3


class Compared(TypedDict):
    """One source, read two ways."""

    source: str
    samples: int
    fields: list[str]
    way: str
    usual_per_second: int
    ndfeed_per_second: int
    ratio: float


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Make the files in a new folder in DIR, not in the temporary one."
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the files there.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each source, on one line.")
    ] = False,
) -> None:
    """Read shuffled batches of small files of every kind, with ndfeed and without.

    Makes the files, compares what is read, then how fast, and removes them again.

    The files are small and in memory, the reader is one thread: a taste, no benchmark.
    """
    chosen = [peer for peer in PEERS if not peer.missing]
    with _made_folder(folder, keep=keep) as made, Bar("demo", len(chosen)) as bar:
        rows = []
        for number, peer in enumerate(chosen):
            rows.append(compare(peer, made / str(number)))
            bar.advance(1)
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    out = console()
    out.print(_table(rows))
    left_out = [f"{peer.source} (needs {peer.needs})" for peer in PEERS if peer.missing]
    if left_out:
        out.print(f"left out: {', '.join(left_out)}", soft_wrap=True)
    if keep:
        out.print(literal(f"the files are in {made}"), soft_wrap=True)
    out.print("every batch was equal; now look at your own files: ndfeed inspect YOUR_FOLDER")


@contextmanager
def _made_folder(parent: Path | None, *, keep: bool) -> Iterator[Path]:
    """A new folder, gone afterwards whatever happens, unless it is to be kept."""
    made = Path(tempfile.mkdtemp(prefix="ndfeed-demo-", dir=parent))
    try:
        yield made
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    if not keep:
        shutil.rmtree(made, ignore_errors=True)


def compare(peer: Peer, folder: Path) -> Compared:
    """Make the source in ``folder``, check that both ways read the same, then time them."""
    folder.mkdir()
    peer.make(folder)
    ds = peer.open(folder)
    usual = peer.reader(folder)
    batches = _batches(len(ds))
    for rows in batches[:_CHECKED]:
        if not _same(ds.read(rows), usual(rows)):
            raise RuntimeError(f"{peer.source}: read differently by ndfeed; please report this")
    slow, fast = _per_second(usual, ds.read, batches)
    return Compared(
        source=peer.source,
        samples=len(ds),
        fields=list(ds.fields),
        way=peer.way,
        usual_per_second=round(slow),
        ndfeed_per_second=round(fast),
        ratio=round(fast / slow, 1),
    )


def _batches(count: int) -> list[Rows]:
    """A shuffled epoch, cut into batches of one size."""
    order = np.random.default_rng(0).permutation(count)
    size = min(_BATCH, count // _CHECKED)
    return [order[start : start + size] for start in range(0, count - size + 1, size)]


def _same(mine: Batch, theirs: Batch) -> bool:
    return mine.keys() == theirs.keys() and all(
        len(mine[name]) == len(theirs[name]) and all(map(np.array_equal, mine[name], theirs[name]))
        for name in mine
    )


def _per_second(usual: Read, ours: Read, batches: list[Rows]) -> tuple[float, float]:
    """Samples a second, both ways: by turns and of the median batch, as other programs run too."""
    times: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    for rows in itertools.cycle(batches):
        for read, took in zip((usual, ours), times, strict=True):
            start = time.perf_counter()
            read(rows)
            took.append(time.perf_counter() - start)
        if len(times[0]) >= _CHECKED and time.perf_counter() - begun > _SECONDS:
            break
    slow, fast = (len(batches[0]) / statistics.median(took) for took in times)
    return slow, fast


def _rounded(count: float) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.1f} k"


def _table(rows: list[Compared]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("source", "samples", "fields", "usual way", "samples/s", "ndfeed", "ratio"):
        left = name in ("source", "fields", "usual way")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(
            row["source"],
            f"{row['samples']:,}",
            ", ".join(row["fields"]),
            row["way"],
            _rounded(row["usual_per_second"]),
            _rounded(row["ndfeed_per_second"]),
            f"{row['ratio']:.1f}×",
        )
    return table
