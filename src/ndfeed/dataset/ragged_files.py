"""Opens ragged samples that lie end to end in one array, with an array of offsets beside it.

They become columns with ``offsets``, which are read in place like the ragged fields of packed
datasets. ``ragged_formats`` opens formats of files that have offsets of their own.

Compressed values are decoded when samples of them are first read, like the rows of any compressed
array; their offsets are in shared memory. Values in another order are decoded when they are opened.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Field, Group, columns_of, lengths
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.in_memory import Held, Room, hold, with_memory
from ndfeed.dataset.origins import Origin
from ndfeed.dataset.remake import Change, fixed, remade_by, remake
from ndfeed.errors import FormatError, ResourceError, SchemaError, shown, shown_size
from ndfeed.files.file import File
from ndfeed.files.shared_memory import Shared
from ndfeed.formats.description import DEFLATE, GZIP, RAW, Array, Description
from ndfeed.index.build import make_table
from ndfeed.index.table import Ints, Table, concat

_AT_ONCE = 1 << 20


class Ends(NamedTuple):
    """Offsets: the rows of a dataset, in parts of so many numbers each.

    ``label`` says whose they are in messages about arrays that no file holds.
    """

    rows: Dataset
    counts: tuple[int, ...]
    label: str = ""

    @property
    def starts(self) -> Ints:
        """The first row of each part, and the end."""
        return np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])


def as_ends(offsets: object, open_source: Callable[[Any], Dataset]) -> Ends:
    """Return what a caller gave as ``offsets``: files, a dataset, or arrays in memory."""
    arrays = _as_arrays(offsets)
    if arrays is not None:
        return _hold_arrays(arrays)
    try:
        rows = open_source(offsets)
    except FormatError as error:
        if "if it is a raw file" not in (error.remedy or ""):
            raise
        name = shown(os.path.basename(error.path or ""))
        raise FormatError(
            error.path or "",
            error.problem,
            error.offset,
            f'describe raw offsets: offsets=ndfeed.open("{name}", dtype="int64")',
        ) from None
    except SchemaError as error:
        remedy = f"{error.remedy}, in offsets=ndfeed.open(…)"
        raise SchemaError(error.path or "", error.problem, remedy=remedy) from None
    path = rows.first_file
    if rows.rows is not None or rows.steps:
        raise ValueError("offsets= must be a dataset of files, without take(), split() or map()")
    columns = columns_of(rows.groups)
    if len(columns) != 1:
        names = ", ".join(repr(name) for name in rows.names[:8])
        raise SchemaError(
            path,
            f"expected one array of offsets, found {names}",
            remedy='choose one: offsets=ndfeed.open(path, fields="name")',
        )
    field, column = columns[0].field, columns[0]
    if field.shape != () or field.dtype.kind not in "iu" or column.whole.any():
        rows_of = "" if field.shape == () else f" with rows of shape {field.shape_text}"
        raise SchemaError(
            path,
            f"offsets must be a one-dimensional array of integers, found {field.dtype_text}"
            f"{rows_of}",
            remedy="save offsets.reshape(-1).astype(np.int64)",
        )
    return Ends(rows, tuple(lengths(column.table, column.arrays).tolist()))


def _as_arrays(offsets: object) -> list[NDArray[Any]] | None:
    """Return arrays of offsets that are in memory: one, or a list of them; else ``None``."""
    if isinstance(offsets, str | bytes | os.PathLike | Dataset):
        return None
    if isinstance(offsets, Sequence) and len(offsets) and np.ndim(offsets[0]):
        return [_check_array(np.asarray(one)) for one in offsets]
    made = np.asarray(offsets)
    return None if made.dtype.kind in "USO" else [_check_array(made)]


def _check_array(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            "offsets= must be a one-dimensional array of integers, got "
            f"{array.dtype} of shape {array.shape}"
        )
    return array


def _hold_arrays(arrays: Sequence[NDArray[Any]]) -> Ends:
    """Copy arrays into shared memory."""
    field = Field("offsets", np.dtype(np.int64), (), "<i8")
    whole = np.concatenate([array.astype(np.int64) for array in arrays])

    def fill(room: Room) -> None:
        np.asarray(room["offsets"])[...] = whole

    held = hold([field], len(whole), {}, fill)
    digest = hashlib.sha256(whole.tobytes()).hexdigest()[:16]
    return Ends(_from_held(held, digest), tuple(map(len, arrays)), "offsets=")


@fixed("offsets in memory")
def _from_held(held: Held, identity: str) -> Dataset:
    return Dataset(held.groups(), (_from_held, (held, identity)), identity=identity)


def locate(values: Dataset, ends: Ends, *, why: str = "", spare: bool = False) -> Dataset:
    """Return samples that are ranges of the rows of ``values``, which ``ends`` delimit.

    If ``spare``, rows may follow the last sample.
    """
    if values.rows is not None or values.steps:
        raise ValueError("offsets= needs the rows of files: take, split or map the result")
    counts = _check_values(values, ends)
    in_place = all(map(_is_raw, columns_of(values.groups)))
    if not in_place or not _is_raw(ends.rows.groups[0].columns[0]):
        ends = ends._replace(rows=ends.rows.in_memory())
    _check_ends(values, ends, counts, spare)
    why = why or _reason(ends)
    if not all(map(_is_in_order, columns_of(values.groups))):
        values, why = _decode(values), f"{why}; values decoded into memory"
    return _locate(values, counts, ends, why, spare)


def _reason(ends: Ends) -> str:
    if ends.label:
        return "offsets in memory"
    return f"offsets in {os.path.basename(ends.rows.first_file)}"


def _is_raw(column: Column) -> bool:
    return not column.coding.any() and not column.strided.any()


def _is_in_order(column: Column) -> bool:
    """Do the rows of every part follow each other in its file, or in a stream to be decoded?"""
    known = np.isin(column.coding, (RAW, DEFLATE, GZIP))
    return bool(known.all() and not column.strided.any())


def _check_values(values: Dataset, ends: Ends) -> tuple[int, ...]:
    """Return the number of rows of each part, if there are offsets for each."""
    for group in values.groups:
        column = group.columns[0]
        path = column.table.path(int(column.file[0]))
        if any(c.whole.any() or c.field.shape is None for c in group.columns):
            raise SchemaError(
                path,
                "offsets= needs rows of the same number of axes in all files",
                remedy="open each file with its own offsets",
            )
        if any(c.offsets is not None for c in group.columns):
            problem = "has offsets of its own, so its samples are no rows of an array"
            raise SchemaError(path, problem, remedy="remove offsets=")
        parts = len(group.starts) - 1
        if parts != len(ends.counts):
            raise SchemaError(
                path,
                f"{parts:,} file{'s' * (parts != 1)} of values, but {len(ends.counts):,} of "
                f"offsets ({ends.label or ends.rows.first_file})",
                remedy="give one file of offsets for each file of values, in the same order",
            )
    counts = [tuple(np.diff(group.starts).tolist()) for group in values.groups]
    if len(set(counts)) > 1:
        raise SchemaError(values.first_file, "the sources differ in their number of rows")
    return counts[0]


def _check_ends(values: Dataset, ends: Ends, counts: tuple[int, ...], spare: bool) -> None:
    """Check the first and the last offset of every part; all of them if they are in memory."""
    starts = ends.starts
    for part, count in enumerate(ends.counts):
        if not count:
            _refuse_ends(values, ends, part, "there are no numbers; n samples need n + 1 offsets")
    rows = np.stack([starts[:-1], starts[1:] - 1], axis=1).reshape(-1)
    (name,) = ends.rows.names
    found = np.asarray(ends.rows.read(rows)[name]).reshape(-1, 2).tolist()
    for part, ((first, last), rows_here) in enumerate(zip(found, counts, strict=True)):
        if first == 0 and (last == rows_here or (spare and 0 <= last < rows_here)):
            continue
        _refuse_ends(values, ends, part, *_explain(values, ends, part, (first, last, rows_here)))
    if ends.rows.groups[0].table.sealed:
        for part in range(len(ends.counts)):
            _check_ascending(values, ends, part)


def _explain(
    values: Dataset, ends: Ends, part: int, found: tuple[int, int, int]
) -> tuple[str, str]:
    """Say what is wrong with the first or the last offset, and which line would mend it."""
    first, last, rows = found
    count = ends.counts[part]
    path = shown(_path_of(values, part))
    problem = f"expected offsets from 0 to {rows}, the number of rows in {path}, found {first} to "
    problem += f"{last}"
    if count <= _AT_ONCE and _are_lengths(ends, part, rows):
        return problem, "these are lengths: save np.insert(np.cumsum(lengths), 0, 0)"
    if first == 0 and 0 <= last < rows:
        return problem, (
            "n samples need n + 1 offsets: add the end with "
            f"np.insert(offsets, {count}, {rows}), or cut off the rows that no sample has"
        )
    if first > 0 and last == rows:
        return problem, "n samples need n + 1 offsets: add the start with np.insert(offsets, 0, 0)"
    return problem, "these offsets belong to another array, or are damaged"


def _are_lengths(ends: Ends, part: int, rows: int) -> bool:
    """Do these numbers look like lengths of samples that have so many rows together?"""
    (name,) = ends.rows.names
    start, stop = ends.starts[part : part + 2].tolist()
    numbers = np.asarray(ends.rows.read(np.arange(start, stop))[name])
    rising = numbers[0] == 0 and not (numbers[1:] < numbers[:-1]).any()
    return not rising and sum(numbers.tolist()) == rows


def _check_ascending(values: Dataset, ends: Ends, part: int) -> None:
    (name,) = ends.rows.names
    start, stop = ends.starts[part : part + 2].tolist()
    for at in range(start, stop - 1, _AT_ONCE):
        numbers = np.asarray(ends.rows.read(np.arange(at, min(at + _AT_ONCE + 1, stop)))[name])
        back = np.flatnonzero(numbers[1:] < numbers[:-1])
        if len(back):
            row = int(back[0])
            _refuse_ends(
                values,
                ends,
                part,
                f"the offsets go back after sample {at - start + row}: from {numbers[row]} to "
                f"{numbers[row + 1]}",
                "offsets must ascend; compute them again",
            )


def _refuse_ends(
    values: Dataset, ends: Ends, part: int, problem: str, remedy: str | None = None
) -> None:
    if ends.label:
        raise SchemaError(_path_of(values, part), f"in {ends.label}, {problem}", remedy=remedy)
    raise FormatError(_path_of(ends.rows, part), problem, remedy=remedy)


def _path_of(rows: Dataset, part: int) -> bytes:
    """Return the file of a part, also of one that was loaded into memory."""
    origin = rows.origin
    return origin.table.path(int(origin.files[part, 0]))


def _decode(values: Dataset) -> Dataset:
    """Return the same rows, decoded into shared memory."""
    ragged = [c.field.name for c in columns_of(values.groups) if c.field.ragged]
    if ragged:
        raise SchemaError(
            values.first_file,
            f"the rows of {ragged[0]!r} differ in shape and are compressed, so offsets cannot be "
            "used",
            remedy="save them uncompressed, with np.save",
        )
    try:
        return values.in_memory()
    except ResourceError as error:
        raise ResourceError(
            values.first_file,
            f"compressed values take {shown_size(values.nbytes)} of memory when they are read by "
            f"offsets: {error.problem}",
            remedy="save them uncompressed (np.save, np.savez), and they are read in place",
        ) from None


def _locate_again(
    change: Change, values: Dataset, _: tuple[int, ...], ends: Ends, why: str, spare: bool
) -> Dataset:
    again = as_ends(remake(ends.rows, change), lambda ds: ds)
    return locate(remake(values, change), again, why=why, spare=spare)


@remade_by(_locate_again)
def _locate(values: Dataset, counts: tuple[int, ...], ends: Ends, why: str, spare: bool) -> Dataset:
    """Make the dataset of checked offsets."""
    own = _Parts.of(ends.rows.groups[0], ends.counts)
    facts = f"{values.fingerprint} {ends.rows.fingerprint} {ends.counts}"
    identity = hashlib.sha256(facts.encode()).hexdigest()[:16]
    groups = []
    for group in values.groups:
        parts = _Parts.of(group, counts)
        table, shift = join_tables(parts.table, own.table)
        table = replace(table, digest=identity)  # the names of memory differ from run to run
        starts = np.concatenate([[0], np.cumsum(np.array(ends.counts) - 1)])
        mapped = group.mapped and ends.rows.groups[0].mapped
        rows, places = np.zeros(len(counts), bool), own.arrays[0] + shift
        columns = tuple(
            Column(_ragged(c.field), table, arrays, rows, places)
            for c, arrays in zip(group.columns, parts.arrays, strict=True)
        )
        groups.append(Group(starts, columns, mapped))
    origin = values.origin
    return Dataset(
        tuple(groups),
        (_locate, (values, counts, ends, why, spare)),
        why=why,
        names=values.names,
        identity=identity,
        origins=(Origin(origin.table, groups[0].starts, origin.files, each=False),),
        skipped=values._skipped,
    )


def _ragged(field: Field) -> Field:
    return replace(field, shape=(None, *(field.shape or ())))


def join_tables(values: Table, offsets: Table) -> tuple[Table, int]:
    """Return a table of both, and how far the places of the second are moved in it."""
    if values is offsets:
        return values, 0
    return concat([values, offsets]), len(values.file)


class _Parts(NamedTuple):
    """A table, and the places in it of every column's parts."""

    table: Table
    arrays: list[Ints]

    @classmethod
    def of(cls, group: Group, counts: tuple[int, ...]) -> "_Parts":
        """Return the parts of a group; rows in memory, which are one part, are cut into these."""
        if len(group.starts) - 1 == len(counts):
            return cls(group.table, [column.arrays for column in group.columns])
        memory = group.table.owner
        if not isinstance(memory, Shared):
            raise TypeError("only rows in memory are one part")
        arrays: list[Array] = []
        for column in group.columns:
            at = int(column.first[0])
            for count in counts:
                size = count * int(column.nbytes[0])
                shape = (count, *column.field.lengths)
                arrays.append(Array(column.field.name, column.field.type, shape, at, size))
                at += size
        with File(group.table.path(0)) as file:
            table = with_memory(make_table(file, Description("memory", tuple(arrays))), memory)
        places = np.arange(len(arrays)).reshape(len(group.columns), -1)
        return cls(table, list(places))
