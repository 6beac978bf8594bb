"""``ndfeed verify PATH…``: read whole packed datasets, and show what is damaged."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import ndfeed
from ndfeed.cli.console import complain, literal, make_console, print_json
from ndfeed.cli.options import JsonLinesOption
from ndfeed.errors import Error, shown_size

_SHOWN = 100


def verify(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="The folder of a packed dataset.", show_default=False),
    ],
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Number of reading threads; chosen automatically by default."),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Read packed datasets whole and compare every byte with its checksum.

    Lists damaged columns with the affected rows. The exit status is 1 if there
    are any.

    \b
    ndfeed verify packed/
    ndfeed verify packed/ --json | jq .damaged
    """
    out = make_console()
    failed = False
    for path in paths:
        try:
            found = ndfeed.verify(path, threads=threads)
        except (Error, OSError) as error:
            complain(error)
            failed = True
            continue
        if as_json:
            print_json(_describe(found))
        else:
            _print(out, found)
        if not found.ok:
            count = len(found.damaged)
            complain(
                f"{found.path}: {count:,} damaged range{'s' * (count > 1)}; restore "
                f"{'them' if count > 1 else 'it'} with ndfeed pack --repair"
            )
            failed = True
    if failed:
        raise typer.Exit(1)


def _describe(found: ndfeed.Verified) -> dict[str, object]:
    return {
        "path": found.path,
        "ok": found.ok,
        "rows": found.rows,
        "columns": found.columns,
        "bytes": found.nbytes,
        "seconds": round(found.seconds, 3),
        "damaged": [
            {"file": one.file, "field": one.field, "rows": list(one.rows), "problem": one.problem}
            for one in found.damaged
        ],
    }


def _print(out: Console, found: ndfeed.Verified) -> None:
    out.print(literal(found.path, "bold"))
    rate = shown_size(found.nbytes / max(found.seconds, 1e-9))
    out.print(
        f"  {found.rows:,} rows in {found.columns:,} columns, {shown_size(found.nbytes)} read in "
        f"{found.seconds:.1f} s ({rate}/s)",
        soft_wrap=True,
    )
    if found.ok:
        out.print("  no damage found", style="green")
        return
    table = Table(show_edge=False)
    for name in ("damaged column", "field", "rows", "problem"):
        table.add_column(name, overflow="fold")
    for one in found.damaged[:_SHOWN]:
        rows = f"[{one.rows[0]}, {one.rows[1]})"
        table.add_row(literal(one.file), literal(one.field), rows, literal(one.problem))
    if len(found.damaged) > _SHOWN:
        table.add_row(f"… and {len(found.damaged) - _SHOWN:,} more; --json lists them")
    out.print(table)
