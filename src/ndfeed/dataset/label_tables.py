"""Reads tables of labels: the columns of CSV and Parquet files.

A CSV file has no types. A column whose cells are all whole numbers, written as Python writes them,
holds integers; one of numbers holds floats; anything else is text, and so are ``007`` and whole
numbers that int64 cannot hold. An empty cell is a label that is missing, and among numbers so are
``NA`` and ``nan``. Where cells are separated by semicolons, decimals may have a comma.
"""

import importlib
import io
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ndfeed.dataset.label_names import looks_like_names
from ndfeed.errors import FormatError, SchemaError, UnsupportedError
from ndfeed.files.file import File

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_LONGEST = 20  # characters of an int64
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_MISSING = ("na", "n/a", "nan", "null", "none")  # what programs write for it among numbers
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class LabelTable(NamedTuple):
    """The columns of a table, by name, and a function that reads the values of one of them."""

    path: str
    columns: tuple[str, ...]
    texts: Callable[[str], list[str]]  # of a column that holds names of files
    values: Callable[[str], list[Any]]  # of a column of labels; ``None`` where one is missing

    def check_column(self, name: str, argument: str) -> str:
        """Return ``name`` if it is one of the columns."""
        if name not in self.columns:
            raise SchemaError(self.path, f"no column {name!r}", remedy=self.suggest(argument))
        return name

    def suggest(self, argument: str) -> str:
        """Return the remedy that lists the columns."""
        listed = ", ".join(map(repr, self.columns)) or "none"
        return f"the columns are {listed}: choose one with {argument}="


def open_label_table(path: str | os.PathLike[str], *, as_text: bool) -> LabelTable:
    """Open a table; ``as_text`` leaves the cells of a CSV file as they are."""
    name = os.fspath(path)
    suffix = os.path.splitext(name)[1].lower()
    if suffix in (".csv", ".tsv"):
        return _open_csv(name, "\t" if suffix == ".tsv" else ",", as_text)
    if suffix == ".parquet":
        return _open_parquet(name)
    raise UnsupportedError(
        name,
        "labels are read from .csv, .tsv and .parquet files",
        remedy="convert the file, or pass the labels as a dict or an array",
    )


def _read_all(path: str) -> bytes:
    with File(os.fsencode(os.path.abspath(os.path.expanduser(path)))) as file:
        return file.read(0, file.size)


def _open_csv(path: str, separator: str, as_text: bool) -> LabelTable:
    try:
        text = _read_all(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = "a table of labels must be UTF-8 text"
        raise FormatError(path, problem, error.start, remedy="save it as UTF-8") from None
    rows = _parse(path, text, separator)
    if rows and len(rows[0]) == 1 and ";" in rows[0][0]:  # as spreadsheets write it in Europe
        separator = ";"
        rows = _parse(path, text, separator)
    if not rows:
        raise SchemaError(path, "the table is empty", remedy="its first line must name the columns")
    names = tuple(name.strip() for name in rows[0])
    _check_header(path, names)
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise FormatError(
                path,
                f"expected {len(names)} cells in row {number}, as in the first, found {len(row)}",
                remedy="quote cells that contain the separator",
            )

    def cells(name: str) -> list[str]:
        at = names.index(name)
        return [row[at].strip() for row in rows[1:]]

    def values(name: str) -> list[Any]:
        found = cells(name)
        return [cell or None for cell in found] if as_text else _infer(found, separator == ";")

    return LabelTable(path, names, cells, values)


def _parse(path: str, text: str, separator: str) -> list[list[str]]:
    csv = importlib.import_module("csv")  # only who has labels in a table waits for it
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        return [row for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise FormatError(path, f"not a CSV table: {error}", remedy="save it again") from None


def _check_header(path: str, names: Sequence[str]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        listed = ", ".join(map(repr, doubled))
        raise SchemaError(path, f"two columns have the same name: {listed}", remedy="rename one")


def _infer(cells: Sequence[str], decimal_comma: bool) -> list[Any]:
    """Return numbers where all cells are numbers, otherwise the text."""
    numbers = ["" if cell.casefold() in _MISSING else cell for cell in cells]
    if decimal_comma:
        numbers = [cell.replace(",", ".") for cell in numbers]
    known = [cell for cell in numbers if cell]
    if known and all(map(_INTEGER.fullmatch, known)):
        if all(len(cell) <= _LONGEST and _LEAST <= int(cell) <= _MOST for cell in known):
            return [int(cell) if cell else None for cell in numbers]
    elif known and all(map(_NUMBER.fullmatch, known)) and not any(map(_has_leading_zero, known)):
        return [float(cell) if cell else None for cell in numbers]
    return [cell or None for cell in cells]


def _has_leading_zero(cell: str) -> bool:
    """Is it a code such as ``007``, and not a number?"""
    digits = cell.lstrip("+-")
    return len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()


def _open_parquet(path: str) -> LabelTable:
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        text = "labels from Parquet files need pyarrow, which is not installed: "
        raise ModuleNotFoundError(f"{text}pip install 'ndfeed[tables]'", name="pyarrow") from None
    data = arrow.BufferReader(_read_all(path))
    try:
        file = parquet.ParquetFile(data)
        names = tuple(file.schema_arrow.names)
    except arrow.ArrowInvalid as error:
        raise FormatError(path, f"not a Parquet file: {error}") from None
    _check_header(path, names)

    def values(name: str) -> list[Any]:
        try:
            column = file.read(columns=[name]).column(name)
        except (arrow.ArrowInvalid, OSError) as error:
            raise FormatError(path, f"column {name!r} cannot be read: {error}") from None
        return _convert(arrow.types, column, path, name)

    def texts(name: str) -> list[str]:
        return ["" if one is None else str(one) for one in values(name)]

    def labels(name: str) -> list[Any]:
        _check_labels(path, arrow.types, file.schema_arrow.field(name))
        return values(name)

    return LabelTable(path, names, texts, labels)


def _check_labels(path: str, types: Any, column: Any) -> None:  # noqa: ANN401 - of pyarrow
    refused = types.is_temporal, types.is_decimal, types.is_struct, types.is_map, types.is_binary
    if any(is_such(column.type) for is_such in (*refused, types.is_large_binary)):
        problem = f"column {column.name!r} is {column.type}, neither text nor numbers"
        raise SchemaError(path, problem, remedy="convert it before it is saved")


def _convert(types: Any, column: Any, path: str, name: str) -> list[Any]:  # noqa: ANN401
    """Return the values of a column; ``None`` where one is missing."""
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    convert = _converter(types, column.type)
    try:
        return [None if one is None or one == "" else convert(one) for one in column.to_pylist()]
    except TypeError:
        problem = f"lists of column {name!r} have empty cells"
        raise SchemaError(path, problem, remedy="fill them, or leave these rows out") from None


def _converter(types: Any, kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - of pyarrow
    """Return what makes numbers of the column's own dtype; anything else stays as it is."""
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        number: Callable[[Any], Any] = kind.to_pandas_dtype()
        return number
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type.to_pandas_dtype()
        return lambda items: np.asarray(items, inner)
    return lambda value: value


def choose_columns(
    table: LabelTable, paths: Sequence[str], column: str | None, key: str | None
) -> tuple[list[str], list[Any]]:
    """Return the names of files and the labels in a table."""
    if column is not None:
        table.check_column(column, "column")
    if key is None:
        # What has no name is the index that pandas writes: its numbers may look like files' names.
        named = (name for name in table.columns if name and not name.startswith("Unnamed: "))
        others = [name for name in named if name != column]
        fits = others
        if len(others) > 1:
            fits = [name for name in others if looks_like_names(paths, table.texts(name))]
        if len(fits) != 1:
            problem = "no column has" if not fits else "several columns have"
            raise SchemaError(
                table.path, f"{problem} the names of the files", remedy=table.suggest("key")
            )
        key = fits[0]
    names = table.texts(table.check_column(key, "key"))
    if column is None:
        others = [name for name in table.columns if name != key]
        if len(others) != 1:
            problem = "no column of labels" if not others else "several columns may have the labels"
            raise SchemaError(table.path, problem, remedy=table.suggest("column"))
        column = others[0]
    values = table.values(column)
    kept = [at for at, name in enumerate(names) if name]  # a row without one is of no file
    return [names[at] for at in kept], [values[at] for at in kept]
