"""Describes a dataset as plain dicts, for tables and for JSON, and advises how to read it faster.

Uses only headers; no sample is read. The keys are public: ``ndfeed inspect --json`` prints these
dicts, and scripts rely on them.
"""

import os
from collections.abc import Iterator, Sequence
from typing import TypedDict

import numpy as np

from ndfeed.dataset import samples
from ndfeed.dataset.column import Column, columns_of, total_bytes
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.origins import is_memory
from ndfeed.dataset.reader import reader_of
from ndfeed.errors import shown_size
from ndfeed.formats.description import CODINGS, DEFLATE, GZIP, LATIN1, RAW
from ndfeed.formats.dtypes import itemsize
from ndfeed.index.table import Table

_LISTED = 10
_NAMED = 4
# Files below the first size take longer to open than to read; a few of them do not matter.
_TINY, _MANY = 64_000, 1000
_SPARE = 64_000


class FieldFacts(TypedDict):
    """One field. ``shape`` has ``null`` for lengths that differ, and is ``null`` if ranks do."""

    name: str
    dtype: str
    shape: list[int | None] | None
    bytes_per_sample: int  # the mean where samples differ
    stored: list[str]


class Reading(TypedDict):
    """One way to read the samples."""

    sample: str
    samples: int
    bytes: int
    fields: list[FieldFacts]


class Remark(TypedDict):
    """A remark about a file."""

    file: str
    text: str


class Advice(TypedDict):
    """A suggestion that would make reading faster."""

    kind: str
    text: str


class Facts(TypedDict):
    """All about one source. With two ``readings``, what depends on them is ``null``."""

    path: str
    sample: str | None
    samples: int | None
    why: str | None
    bytes: int | None
    fields: list[FieldFacts] | None
    readings: list[Reading]
    files: int
    formats: dict[str, int]
    bytes_on_disk: int
    remarks: list[Remark]
    remarks_total: int
    ignored: list[str]
    ignored_total: int
    warnings: list[str]
    advice: list[Advice]
    classes: dict[str, list[str]]  # of labels that are text


def describe_source(path: str, ds: Dataset) -> Facts:
    """Describe the dataset that was opened from ``path``."""
    return _describe(path, ds, _describe_reading(ds), ds.why, [], _find_advice(ds))


def describe_undecided(path: str, as_files: Dataset, as_rows: Dataset) -> Facts:
    """Describe a source that could be read two ways, and both of them."""
    either = [_describe_reading(as_files), _describe_reading(as_rows)]
    for_rows = _find_advice(as_rows)
    for_both = [one for one in _find_advice(as_files) if one in for_rows]
    return _describe(path, as_files, None, None, either, for_both)


def _describe(
    path: str,
    ds: Dataset,
    reading: Reading | None,
    why: str | None,
    readings: list[Reading],
    tips: list[Advice],
) -> Facts:
    tables = _tables(ds)
    remarks = [
        Remark(file=os.fsdecode(table.path(file)), text=text)
        for table in tables
        for file, text in table.notes
    ]
    ignored = [name for table in tables for name in table.ignored]
    return Facts(
        path=path,
        sample=reading["sample"] if reading else None,
        samples=reading["samples"] if reading else None,
        why=why,
        bytes=reading["bytes"] if reading else None,
        fields=reading["fields"] if reading else None,
        readings=readings,
        files=sum(int((~is_memory(table)).sum()) for table in tables),
        formats=_count_formats(tables),
        bytes_on_disk=sum(int(table.identity[~is_memory(table), 2].sum()) for table in tables),
        remarks=remarks,
        remarks_total=sum(table.remarked for table in tables),
        ignored=ignored[:_LISTED],
        ignored_total=sum(table.passed_over for table in tables),
        warnings=[],  # filled in by the caller, who opened the dataset
        advice=tips,
        classes={name: list(own) for name, own in ds.classes.items()},
    )


def _tables(ds: Dataset) -> list[Table]:
    # What was decoded into memory when it was opened is described by its files.
    groups = [group for group in ds.groups if not all(c.computed for c in group.columns)]
    every = [ds.origin.table if group.table.sealed else group.table for group in groups]
    # Windows and crops have other arrays, but the same files.
    return list({id(table.identity): table for table in reversed(every)}.values())[::-1]


def _count_formats(tables: Sequence[Table]) -> dict[str, int]:
    """Count the files of each format; arrays in memory are no files."""
    found: dict[str, int] = {}
    for table in tables:
        for name, count in zip(
            table.formats, np.bincount(table.format, minlength=len(table.formats)), strict=True
        ):
            found[name] = found.get(name, 0) + int(count)
    return {name: count for name, count in found.items() if count and name != "memory"}


def _describe_reading(ds: Dataset) -> Reading:
    return Reading(
        sample=samples.sample_kind(ds),
        samples=len(ds),
        bytes=ds.nbytes,
        fields=list(_describe_fields(ds)),
    )


def _describe_fields(ds: Dataset) -> Iterator[FieldFacts]:
    for group in ds.groups:
        for column in group.columns:
            field = column.field
            yield FieldFacts(
                name=field.name,
                dtype=field.dtype_text,
                shape=None if field.shape is None else list(field.shape),
                bytes_per_sample=total_bytes(column, group.starts) // max(int(group.starts[-1]), 1),
                stored=[CODINGS[coding] for coding in np.unique(column.coding).tolist()],
            )


def _find_advice(ds: Dataset) -> list[Advice]:
    """Find what costs time at every read, and suggest what to do about it."""
    columns = columns_of(ds.groups)
    rows = columns_of(group for group in ds.groups if not group.kind)  # windows and crops overlap
    tables = _tables(ds)
    found = [
        ("compressed-rows", _find_compressed(columns, samples.sample_kind(ds))),
        ("scattered-rows", _find_strided(rows, scattered=True)),
        ("interleaved-rows", _find_strided(rows, scattered=False)),
        ("kept-as-text", _find_text(columns)),
        ("byte-order", _find_swapped(columns)),
        ("tiny-files", _find_tiny(tables)),
        ("unmapped-files", _find_unmapped(ds)),
        ("unused-storage", _find_unused(tables)),
    ]
    return [Advice(kind=kind, text=text) for kind, text in found if text]


def _list_names(columns: Sequence[Column]) -> str:
    names = [repr(column.field.name) for column in columns]
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more:,} more fields" if more > 0 else "")


def _find_compressed(columns: Sequence[Column], kind: str) -> str:
    """Find rows that can only be read by decoding their whole member."""
    packed = {column: np.isin(column.coding, (DEFLATE, GZIP)) & ~column.whole for column in columns}
    used = [column for column, which in packed.items() if which.any()]
    if not used:
        return ""
    most = max(int(c.table.decoded[c.arrays[packed[c]]].max()) for c in used)
    what = kind if kind in ("window", "crop") else "row"
    return (
        f"{what}s of {_list_names(used)} lie inside compressed members of up to "
        f"{shown_size(most)}: reading one {what} decodes its whole member; run ndfeed pack once, "
        f"or save with np.savez or np.save, which do not compress"
    )


def _find_strided(columns: Sequence[Column], *, scattered: bool) -> str:
    """Find rows that are not contiguous: scattered over an array, or among other fields."""
    used = [
        column
        for column in columns
        if (which := column.strided & ~column.whole).any()
        and _is_scattered(column, int(which.argmax())) == scattered
    ]
    if not used:
        return ""
    if scattered:
        return (
            f"rows of {_list_names(used)} are scattered over their arrays (Fortran order): reading "
            f"one row touches the whole array; save np.ascontiguousarray(array) instead"
        )
    return (
        f"{_list_names(used)} are interleaved with other fields (a structured or strided array): "
        f"reading one field also touches the others; save one array per field"
    )


def _is_scattered(column: Column, part: int) -> bool:
    """Is the stride between rows smaller than one within a row?"""
    table, array = column.table, int(column.arrays[part])
    shape = table.dimensions(int(table.shape[array]))
    strides = table.dimensions(int(table.strides[array]))
    steps = [step for n, step in zip(shape, strides, strict=True) if n > 1]
    return bool(steps) and steps[0] < max(steps)


def _find_text(columns: Sequence[Column]) -> str:
    """Find NumPy arrays that torch.save pickled."""
    used = [column for column in columns if (column.coding == LATIN1).any()]
    if not used:
        return ""
    return (
        f"{_list_names(used)} are NumPy arrays, which .pt files store as text: every read decodes "
        f"the whole array; convert them with torch.from_numpy before torch.save"
    )


def _find_swapped(columns: Sequence[Column]) -> str:
    used = [column for column in columns if column.any_swapped]
    if not used:
        return ""
    return (
        f"{_list_names(used)} have another byte order than this machine, so every read swaps their "
        f'bytes; save array.astype(array.dtype.newbyteorder("=")) instead'
    )


def _find_tiny(tables: Sequence[Table]) -> str:
    files = sum(table.files for table in tables)
    mean = sum(int(table.identity[:, 2].sum()) for table in tables) / max(files, 1)
    if files <= _MANY or mean >= _TINY:
        return ""
    return (
        f"{files:,} files of {shown_size(mean)} on average take longer to open than to read; "
        f"run ndfeed pack once: it stores all samples of a field in one .npy file"
    )


def _find_unmapped(ds: Dataset) -> str:
    """Find files that could be memory-mapped if there were fewer."""
    for group in ds.groups:
        rows = any(((c.coding == RAW) & ~c.whole).any() for c in group.columns)
        if rows and group.mapped and not group.by_file and reader_of(group).maps is None:
            return (
                f"{group.table.files:,} files are more than this process may memory-map at once, "
                f"so their rows are read one by one; raise the limit of open files (ulimit -n), "
                f"or use fewer and larger files"
            )
    return ""


def _find_unused(tables: Sequence[Table]) -> str:
    """Find storages in .pt files of which tensors use only a small part."""
    held = used = 0
    for table in tables:
        kinds = [i for i, name in enumerate(table.formats) if name in ("pt", "pt list")]
        torch = np.isin(table.format[table.file], kinds)
        if not torch.any():
            continue
        arrays = np.flatnonzero(torch & (table.coding == RAW))
        places = np.stack([table.file[arrays], table.offset[arrays]])
        _, first, storage = np.unique(places, axis=1, return_index=True, return_inverse=True)
        length = table.length[arrays][first]
        shown = np.bincount(storage.reshape(-1), _array_bytes(table)[arrays], minlength=len(length))
        held += int(length.sum())
        used += int(np.minimum(shown, length).sum())
    if held <= 2 * used + _SPARE:
        return ""
    return (
        f"tensors use {shown_size(used)} of the {shown_size(held)} in their .pt files, being "
        f"views of larger tensors; call clone() before torch.save to store only what is used"
    )


def _array_bytes(table: Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the bytes of all elements, for each array."""
    inside = np.arange(table.dims.shape[1] - 1) < table.dims[:, :1]
    elements = np.where(inside, table.dims[:, 1:], 1).prod(axis=1)
    widths = np.array([itemsize(name) for name in table.dtypes], np.int64)
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]] = elements[table.shape] * widths[table.dtype]
    return sizes
