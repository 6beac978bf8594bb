"""The command line: ``ndfeed inspect``, ``bench``, ``pack``, ``verify`` and ``demo``.

Commands declare their options (``options`` has the shared ones), call the library and print.
``description`` holds what ``inspect`` prints; ``measurements`` what ``bench`` prints, with
``throughput`` for rates and ``diagnosis`` for the verdict; ``chart`` draws pictures. Only this
package imports Typer and rich, so ``import ndfeed`` does without them.
"""

import io
import sys
import warnings
from typing import Annotated

import typer

import ndfeed
from ndfeed.cli import bench, demo, inspect, pack, verify
from ndfeed.cli.console import complain, warn
from ndfeed.errors import Error

app = typer.Typer(
    name="ndfeed",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(inspect.inspect)
app.command()(bench.bench)
app.command()(pack.pack)
app.command()(verify.verify)
app.command()(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ndfeed {ndfeed.__version__}")
        raise typer.Exit


@app.callback()
def _ndfeed(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Open array files as they are: .npy, .npz, .npy.gz, .pt, .safetensors and raw.

    \b
    ndfeed demo                     compare np.load, ndfeed and packed files
    ndfeed inspect npz_data/        show what a folder holds, from its headers
    ndfeed bench npz_data/          find the bottleneck, and what would help
    ndfeed pack npz_data/ packed/   convert a dataset to plain .npy columns
    ndfeed verify packed/           read a whole packed dataset, and find damage
    """


def main() -> int:
    """Run the command line. A wrong file is one line on standard error and status 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character gets its number, not a traceback.
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = warn
    try:
        app()
    except (Error, OSError) as error:
        complain(error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
