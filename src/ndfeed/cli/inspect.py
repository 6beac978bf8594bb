"""``ndfeed inspect PATH…``: show what each source holds, reading only headers."""

import warnings
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ndfeed.cli import description
from ndfeed.cli.console import complain, literal, make_console, print_json, print_line
from ndfeed.cli.description import Facts, FieldFacts, Reading
from ndfeed.cli.options import (
    FieldsOption,
    JsonLinesOption,
    Opener,
    SampleOptions,
    report_bad_options,
    takes_samples,
)
from ndfeed.dataset import samples
from ndfeed.errors import AmbiguousError, Error, shown_size

_SHOWN_FIELDS = 100
_SHOWN_REMARKS = 10


@takes_samples
def inspect(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="A file, a folder with everything below it, or a pattern in quotes. Each is "
            "opened separately.",
            show_default=False,
        ),
    ],
    samples: SampleOptions,
    fields: FieldsOption = None,
    as_json: JsonLinesOption = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Do not use or write the cached index of the files.")
    ] = False,
) -> None:
    """Show what array files hold, reading their headers only.

    Says what the samples are and why, and what would make reading them faster.

    \b
    ndfeed inspect npz_data/
    ndfeed inspect "train/*.npz" --sample file
    ndfeed inspect tokens.bin --dtype uint16 --windows 1025
    ndfeed inspect scans/ --sample file --crops image=96,96,96 --each 4
    ndfeed inspect npz_data/ --json | jq .samples
    """
    opened = Opener(samples, fields, cache=not no_cache)
    out = make_console()
    failed = False
    for path in paths:
        try:
            with report_bad_options():
                found = describe(path, opened)
        except (Error, OSError) as error:
            complain(error)
            failed = True
            continue
        if as_json:
            print_json(found)
        else:
            _print(out, found)
    if failed:
        raise typer.Exit(1)


def describe(path: str, opened: Opener) -> Facts:
    """Describe one source; both readings where it could be read two ways."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = description.describe_source(path, opened(path))
        except AmbiguousError as ambiguous:
            try:
                readings = opened(path, sample="file"), opened(path, sample="row")
            except (Error, TypeError, ValueError):  # windows or crops of the one or the other
                raise ambiguous from None
            found = description.describe_undecided(path, *readings)
    texts = dict.fromkeys((str(one.message), one.category) for one in caught)
    for text, category in texts:
        if issubclass(category, UserWarning):  # about the files
            found["warnings"].append(text)
        else:
            complain(f"warning: {text}")
    return found


def _print(out: Console, found: Facts) -> None:
    out.print(literal(found["path"], "bold"))
    if found["fields"] is None:
        _print_readings(out, found["readings"])
    else:
        out.print(_make_field_table(found["fields"]))
        size = shown_size(found["bytes"] or 0)
        print_line(out, f"{_format_count(found['samples'] or 0, 'sample')}, {size} decoded")
        print_line(out, f"{samples.READINGS[found['sample'] or 'both']} ({found['why']})")
    formats = ", ".join(f"{count:,} {name}" for name, count in found["formats"].items())
    size = shown_size(found["bytes_on_disk"])
    print_line(out, f"{_format_count(found['files'], 'file')} ({formats}), {size} on disk")
    for name, classes in found["classes"].items():
        print_line(out, samples.describe_classes(name, classes))
    _print_remarks(out, found)
    if found["advice"]:
        print_line(out, "what would make it faster:", "bold")
        for one in found["advice"]:
            print_line(out, f"- {one['text']}")
    out.print()


def _format_count(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _format_shape(field: FieldFacts) -> str:
    shape = field["shape"]
    return "(…)" if shape is None else str(tuple(shape)).replace("None", "…")


def _make_field_table(fields: list[FieldFacts]) -> Table:
    table = Table(show_edge=False)
    for name in ("field", "dtype", "shape"):
        table.add_column(name, overflow="fold")
    table.add_column("bytes a sample", justify="right")
    table.add_column("stored")
    for field in fields[:_SHOWN_FIELDS]:
        uneven = field["shape"] is None or None in field["shape"]
        table.add_row(
            literal(field["name"]),
            literal(field["dtype"]),
            literal(_format_shape(field)),
            f"{'about ' * uneven}{field['bytes_per_sample']:,}",
            ", ".join(field["stored"]),
        )
    if len(fields) > _SHOWN_FIELDS:
        table.add_row(f"… and {len(fields) - _SHOWN_FIELDS:,} more fields")
    return table


def _print_readings(out: Console, readings: list[Reading]) -> None:
    """Print the two ways to read the samples, and the option that chooses."""
    table = Table(show_edge=False)
    for name in ("to add", "samples", "a sample is", "fields"):
        table.add_column(name, overflow="fold", justify="right" if name == "samples" else "left")
    for one in readings:
        listed = [
            f"{f['name']} {f['dtype']} {_format_shape(f)}" for f in one["fields"][:_SHOWN_REMARKS]
        ]
        more = len(one["fields"]) - len(listed)
        table.add_row(
            f"--sample {one['sample']}",
            f"{one['samples']:,}",
            samples.READINGS[one["sample"]].removeprefix("a sample is "),
            literal(", ".join(listed) + f" and {more:,} more" * (more > 0)),
        )
    print_line(out, "could be read in two ways; choose one:")
    out.print(table)
    print_line(out, 'in Python: ndfeed.open(…, sample="file") or ndfeed.open(…, sample="row")')


def _print_remarks(out: Console, found: Facts) -> None:
    """Print warnings, remarks (equal ones together), and files that were left out."""
    told = any(one["kind"] == "scattered-rows" for one in found["advice"])
    texts: dict[str, list[str]] = {}
    for remark in found["remarks"]:
        texts.setdefault(remark["text"], []).append(remark["file"])
    lines = [f"warning: {text}" for text in found["warnings"]]
    for text, files in texts.items():
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        lines.append(f"{files[0]}{more}: {text}")
    # The advice below says this once for all files, with a remedy.
    lines = [one for one in lines if not (told and "Fortran order" in one)]
    if lines:
        print_line(out, "remarks:", "bold")
    for one in lines[:_SHOWN_REMARKS]:
        print_line(out, f"- {one}")
    if len(lines) > _SHOWN_REMARKS:
        print_line(out, f"- … {len(lines) - _SHOWN_REMARKS:,} more kinds; --json lists them")
    if found["ignored_total"]:
        names = ", ".join(found["ignored"])
        more = ", …" if found["ignored_total"] > len(found["ignored"]) else ""
        total = _format_count(found["ignored_total"], "file")
        print_line(out, f"{total} without arrays left out: {names}{more}")
