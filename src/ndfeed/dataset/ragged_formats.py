"""Opens formats whose samples are ranges of an array: pairs of Megatron-LM, and sparse matrices.

A sequence of tokens in a .bin file is found by the .idx file beside it, a row of a matrix that
scipy.sparse saved as csr by its ``indptr``. Both are read like any array with offsets.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ndfeed.dataset import samples
from ndfeed.dataset.column import Column, Field, Group, lengths, with_type
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.in_memory import make_constant
from ndfeed.dataset.layout import Sample, layout
from ndfeed.dataset.ragged_files import as_ends, join_tables, locate
from ndfeed.dataset.remake import Change, remade_by, repeatable
from ndfeed.errors import FormatError, SchemaError, shown
from ndfeed.files.file import File
from ndfeed.files.listing import Paths
from ndfeed.files.shared_memory import Shared
from ndfeed.formats import megatron
from ndfeed.formats.dtypes import check_possible, delivered, itemsize, plain
from ndfeed.index import codec
from ndfeed.index.build import make_table
from ndfeed.index.open import Opened
from ndfeed.index.source import MANY
from ndfeed.index.table import Table, concat

_CSR = "csr"
_CSR_FIELDS = ("indices", "data")
_COLUMNS = "columns"


class Wish(NamedTuple):
    """How a source is to be opened: the fields, the dtypes to convert to, and whether mapped."""

    fields: tuple[str, ...] | None
    casts: object
    mapped: bool
    sample: Sample


def replace_values(source: Paths, *, typed: bool) -> Paths:
    """Return the source with .bin files replaced by the Megatron index beside them, if any."""
    if typed or len(source) > MANY or not any(path.endswith(megatron.VALUES) for path in source):
        return source
    return Paths(megatron.index_beside(path) or path for path in source)


def open_ragged(opened: Opened, wish: Wish) -> Dataset | None:
    """Open the files of a table that are Megatron indexes or sparse matrices; else ``None``."""
    table = opened.table
    for name, make in ((megatron.FORMAT, _open_megatron), (_CSR, _open_csr)):
        if name not in table.formats:
            continue
        own = table.format == table.formats.index(name)
        if not np.count_nonzero(own):
            continue
        what = "indexes of Megatron-LM" if name == megatron.FORMAT else "sparse matrices"
        if not own.all():
            other = int(np.flatnonzero(~own)[0])
            raise SchemaError(
                table.path(other), f"a file of another kind beside {what}", remedy="open each alone"
            )
        if wish.sample == "file":
            raise SchemaError(
                table.path(0), f"the samples of {what} are rows", remedy="remove sample="
            )
        if wish.casts is not None and not isinstance(wish.casts, dict):
            raise SchemaError(
                table.path(0),
                "already has a dtype",
                remedy=f"remove dtype=, or convert a field with dtype={{'data': {wish.casts!r}}}",
            )
        return make(opened, wish)
    return None


def _open_csr(opened: Opened, wish: Wish) -> Dataset:
    """Open sparse matrices: a sample is a row."""
    width = _check_width(opened.table)
    asked = wish.fields or _CSR_FIELDS
    stored = tuple(dict.fromkeys(name for name in asked if name != _COLUMNS)) or _CSR_FIELDS
    ends = as_ends(_rows_of(opened, ("indptr",), None, wish.mapped), lambda ds: ds)
    values = _rows_of(opened, stored, wish.casts, wish.mapped)
    why = f"sparse matrix of {width:,} columns, row by row"
    made = locate(values, ends, why=why, spare=True)
    if _COLUMNS in asked:
        made = _with_columns(made, width)
    return made.select(*asked) if wish.fields else made


def _check_width(table: Table) -> int:
    """Return the number of columns that all matrices have."""
    widths = table.offset[table.name == table.names.index(_COLUMNS)]
    if len(np.unique(widths)) > 1:
        odd = int(np.flatnonzero(widths != widths[0])[0])
        raise SchemaError(
            table.path(odd),
            f"a matrix of {widths[odd]:,} columns, in {shown(table.path(0))} there are "
            f"{widths[0]:,}",
            remedy="open each alone, or save matrices of the same number of columns",
        )
    return int(widths[0])


@repeatable
def _with_columns(ds: Dataset, columns: int) -> Dataset:
    """Add a field with the number of columns, the same in every sample."""
    field = Field(_COLUMNS, np.dtype(np.int64), (), "<i8")
    groups = (*ds.groups, make_constant([field], len(ds), columns))
    return ds.view(_with_columns, columns, groups=groups, names=(*ds.names, _COLUMNS))


def _rows_again(
    change: Change, opened: Opened, fields: tuple[str, ...], casts: object, mapped: bool
) -> Dataset:
    opened = change(opened)
    _check_width(opened.table)
    return _rows_of(opened, fields, casts, mapped)


@remade_by(_rows_again)
def _rows_of(opened: Opened, fields: tuple[str, ...], casts: object, mapped: bool) -> Dataset:
    """Return the rows of some arrays of every file."""
    found = layout(opened.table, fields, casts, None, "row")
    group = samples.group(found, "row", mapped=mapped)
    return Dataset((group,), (_rows_of, (opened, fields, casts, mapped)))


class _Stored:
    """A table of files that pickles, in shared memory."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._memory: Shared | None = None

    def __reduce__(self) -> tuple[Callable[..., "_Stored"], tuple[Any, ...]]:
        if self._memory is None:
            self._memory = Shared.of(codec.encode(self.table))
        return _unpickle, (self._memory,)


def _unpickle(memory: Shared) -> _Stored:
    return _Stored(codec.decode(memory.view().data, checked=False)[0])


def _open_megatron(opened: Opened, wish: Wish) -> Dataset:
    """Open pairs of .bin and .idx files: a sample is a sequence."""
    tables: list[Table] = []
    known: dict[str, bytes] = {}
    for number, path in enumerate(opened.table.paths()):
        with File(path, opened.table.expected(number)) as index:
            dtype = megatron.dtype_of(index)
        known.setdefault(dtype, path)
        if len(known) > 1:
            (first, other), *_ = known.items()
            raise SchemaError(
                path,
                f"holds {np.dtype(dtype)}, {shown(other)} holds {np.dtype(first)}",
                remedy="open each with one dtype={'data': ...}, and add them",
            )
        with File(megatron.values_beside(path)) as file:
            tables.append(make_table(file, megatron.describe_values(file, dtype)))
    made = _pair(_Stored(concat(tables)), opened, wish)
    _check_pairs(made.groups[0])
    return made if wish.fields is None else made.select(*wish.fields)


def _pair_again(change: Change, values: _Stored, opened: Opened, wish: Wish) -> Dataset:
    return _open_megatron(change(opened), wish)


@remade_by(_pair_again)
def _pair(values: _Stored, opened: Opened, wish: Wish) -> Dataset:
    """Make the dataset of pairs."""
    table, shift = join_tables(values.table, opened.table)
    every = len(values.table.file)
    sizes, pointers = (
        shift + np.flatnonzero(opened.table.name == opened.table.names.index(name))
        for name in (megatron.SIZES, megatron.POINTERS)
    )
    kind = plain(values.table.dtypes[0])
    field = Field("data", delivered(kind), (None,), kind)
    column = Column(field, table, np.arange(every), np.zeros(every, bool), pointers, sizes)
    for name, cast in (wish.casts or {}).items():  # type: ignore[attr-defined]
        if name == field.name:
            check_possible(name, kind, cast)
            column = with_type(column, plain(cast))
    starts = np.concatenate([[0], np.cumsum(lengths(table, pointers))])
    group = Group(starts, (column,), wish.mapped)
    return Dataset((group,), (_pair, (values, opened, wish)), why="sequences of Megatron-LM")


def _check_pairs(group: Group) -> None:
    """Check that the last sequence of every file ends where the file does."""
    column, table = group.columns[0], group.table
    assert column.offsets is not None, "made by _pair"
    assert column.extents is not None, "made by _pair"
    size = itemsize(table.dtypes[table.dtype[column.arrays[0]]])
    for part, count in enumerate(np.diff(group.starts).tolist()):
        pointers, sizes = int(column.offsets[part]), int(column.extents[part])
        path = table.path(int(column.file[part]))
        end = 0
        if count:
            number = int(table.file[pointers])
            with File(table.path(number), table.expected(number)) as file:
                last = file.read(int(table.offset[pointers]) + 8 * (count - 1), 8)
                length = file.read(int(table.offset[sizes]) + 4 * (count - 1), 4)
            end = int.from_bytes(last, "little", signed=True)
            end += size * int.from_bytes(length, "little", signed=True)
        if end != table.length[column.arrays[part]]:
            raise FormatError(
                path,
                f"expected {end} bytes, the end of the last sequence in its index, found "
                f"{int(table.length[column.arrays[part]])}",
                remedy="the two files do not belong together, or one is cut off",
            )
