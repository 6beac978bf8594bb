"""Opens packed datasets: each field is a separate group of columns.

Fields lie in separate files, so nothing is gained by locating them together; a field of one part
is read like the rows of any .npy file.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ndfeed.dataset.block_checks import Checks, make_checks
from ndfeed.dataset.column import Column, Field, Group, lengths, with_type
from ndfeed.dataset.dataset import Dataset, Made
from ndfeed.dataset.remake import repeatable
from ndfeed.errors import FieldError
from ndfeed.formats import manifest
from ndfeed.formats.dtypes import check_possible, delivered, plain
from ndfeed.index.build import read_manifest
from ndfeed.index.open import Opened
from ndfeed.index.table import Ints, Table


@repeatable
def open_packed_dataset(
    opened: Opened,
    fields: tuple[str, ...] | None,
    mapped: bool,
    verify: bool,
    casts: Mapping[str, str] | None,
) -> Dataset:
    """Open the samples of a packed dataset.

    ``verify`` compares checksums as blocks are read; ``casts`` has the dtypes to convert to.
    """
    table = opened.table
    checks: Mapping[str, Checks] = {}
    if verify:
        checks = make_checks(table, read_manifest(opened.spellings[0]), opened.spellings[0])
    width = sum(len(field.roles) for field in opened.fields)
    first = np.arange(0, len(table.file), width)
    groups: dict[str, Group] = {}
    for field in opened.fields:
        groups[field.name] = _group(field, table, first, mapped, checks.get(field.name))
        first = first + len(field.roles)
    for name in (*(fields or ()), *(casts or ())):
        if name not in groups:
            raise FieldError(name, list(groups), opened.spellings[0])
    for name, kind in (casts or {}).items():
        groups[name] = _cast(groups[name], kind)
    chosen = tuple(groups[name] for name in fields or groups)
    made: Made = open_packed_dataset, (opened, fields, mapped, verify, casts)
    return Dataset(chosen, made, why="packed dataset", identity=table.digest[:16])


def _cast(group: Group, kind: str) -> Group:
    """Return the group with its one field read as another dtype."""
    (column,) = group.columns
    check_possible(column.field.name, column.field.type, kind)
    return replace(group, columns=(with_type(column, plain(kind)),))


def describe_packed(field: manifest.Field) -> Field:
    """Describe a stored field as readers get it."""
    kind = plain(field.dtype)
    return Field(field.name, delivered(kind), field.shape, kind)


def _group(
    field: manifest.Field, table: Table, first: Ints, mapped: bool, checks: Checks | None
) -> Group:
    """Make the group of one field, whose first column in every part is at ``first``."""
    places = dict(zip(field.roles, (first + i for i in range(len(field.roles))), strict=True))
    offsets, extents = places.get("offsets"), places.get("shapes")
    column = Column(
        describe_packed(field), table, first, np.zeros(len(first), bool), offsets, extents
    )
    counts = lengths(table, first) if offsets is None else lengths(table, offsets) - 1
    return Group(np.concatenate([[0], np.cumsum(counts)]), (column,), mapped, checks)
