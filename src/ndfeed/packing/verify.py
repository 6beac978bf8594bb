"""Reads a whole packed dataset in parallel, and reports what is damaged.

Every byte is compared with the manifest's checksums: headers, rows, values; offsets must also
rise from 0 to the number of values. The manifest itself is covered by its own digest. Takes half
a mebibyte of memory for each thread, whatever the size of the data.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from ndfeed.errors import ChecksumError, Error, MissingError, shown
from ndfeed.files import platform_calls, write
from ndfeed.files.folder import Folder, read_contents
from ndfeed.files.threads import map_in_threads
from ndfeed.formats.checksums import block_rows, block_span, find_damaged
from ndfeed.formats.manifest import Column, Field, Manifest, Part
from ndfeed.index.build import REMEDY, check_header, folder_of, open_column, read_manifest
from ndfeed.index.source import Name, spell_source
from ndfeed.packing.journal import MOST_JOURNAL, parse_journal
from ndfeed.packing.staging_folder import JOURNAL, find_unfinished
from ndfeed.packing.stored_fields import Offsets, OffsetsCheck
from ndfeed.progress import Bar

_LEAST_AT_ONCE, _MOST_AT_ONCE = 4 << 20, 64 << 20
_TURNS = 8  # tasks for each thread, so that none works alone at the end
_MOST_THREADS = 16
_DAMAGED = "does not match the checksum from when it was written"


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged range: the column's file, and the samples [first, last) that it affects."""

    file: str
    field: str
    rows: tuple[int, int]
    problem: str

    def __str__(self) -> str:
        first, last = self.rows
        return f"{shown(self.file)}: field {self.field!r}, rows [{first}, {last}): {self.problem}"


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``ndfeed.verify`` found: how much was read, and what is damaged."""

    path: str
    rows: int
    columns: int
    nbytes: int
    seconds: float
    damaged: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        """Is every byte what was written?"""
        return not self.damaged

    def __str__(self) -> str:
        what = f"{self.rows:,} rows in {self.columns:,} columns"
        if self.ok:
            return f"{shown(self.path)}: {what}, no damage found"
        more = f" and {len(self.damaged) - 1:,} more" if len(self.damaged) > 1 else ""
        return f"{shown(self.path)}: {what}, damaged: {self.damaged[0]}{more}; {REMEDY}"


class _DamagedBlock(NamedTuple):
    """A damaged block; ``problem`` says what is wrong with it, or with its whole column."""

    at: int  # the column's place among all
    block: int
    problem: str


class _ColumnCheck(NamedTuple):
    """A column of a part that starts with sample ``start`` of the dataset."""

    at: int
    part: Part
    start: int
    column: Column
    field: Field
    path: bytes
    offsets: OffsetsCheck | None


def verify(path: Name, *, threads: int | None = None, progress: bool = True) -> Verified:
    """Read the whole packed dataset at ``path`` and compare it with its checksums.

    Damaged data is listed in the result, with the columns and the rows it affects; a damaged
    manifest is ``ManifestError``, since nothing can be compared then. For an unfinished pack the
    journal is checked: ``ChecksumError`` where it is damaged, or else ``MissingError`` that says
    how far it is. ``threads`` is how many read at once; a progress bar is shown if it takes more
    than a second, unless ``progress=False``.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be a number from 1 up, got {threads!r}")
    (spelling,) = spell_source(path)
    folder = folder_of(spelling)
    if folder is None:
        _refuse_unfinished(spelling)
        if not write.present(spelling):
            raise MissingError(spelling, "no such folder", remedy="check the path")
        raise MissingError(
            spelling,
            "no packed dataset: there is no ndfeed.json in it",
            remedy="ndfeed pack makes one",
        )
    began = time.perf_counter()
    manifest = read_manifest(folder)
    work = list(_list_columns(folder, manifest))
    nbytes = sum(one.column.nbytes for one in work)
    count = threads or min(max(platform_calls.cores(), 4), _MOST_THREADS)
    at_once = min(max(nbytes // (count * _TURNS), _LEAST_AT_ONCE), _MOST_AT_ONCE)
    with Bar("verifying", nbytes, wanted=progress) as bar:
        found = _check_columns(work, count, at_once, bar.advance)
    return Verified(
        os.fsdecode(folder),
        manifest.rows,
        len(work),
        nbytes,
        time.perf_counter() - began,
        tuple(_describe_damage(work, found)),
    )


def _refuse_unfinished(path: bytes) -> None:
    """Raise an error for an unfinished pack: how far it is, and whether its journal is intact."""
    found = find_unfinished(path)
    if found is None:
        return
    place, seal = found
    if seal is None:
        raise MissingError(
            place,
            "looks like an unfinished pack that was not made here by this user",
            remedy="run the pack again, and remove this folder if you know what it is",
        )
    with Folder(place) as folder:
        data = read_contents(folder, JOURNAL, MOST_JOURNAL) or b""
    records, end = parse_journal(data, seal)
    if end < len(data):
        raise ChecksumError(
            os.path.join(place, JOURNAL),
            f"the journal of an unfinished pack is damaged from line {len(records) + 1} on",
            end,
            remedy="rerun the same pack: only work from that line on is repeated",
        )
    steps = f"{len(records):,} step{'s' * (len(records) != 1)} done"
    raise MissingError(
        place,
        f"an unfinished pack, its journal intact with {steps}",
        remedy="rerun the same pack to resume",
    )


def _list_columns(folder: bytes, manifest: Manifest) -> Iterator[_ColumnCheck]:
    """Yield every column of every part."""
    fields = {field.name: field for field in manifest.fields}
    at = start = 0
    for part in manifest.parts:
        for column in part.columns:
            if column.role == "values":
                values = column.rows
            check = OffsetsCheck(column, values) if column.role == "offsets" else None
            path = os.path.join(folder, part.folder.encode(), column.file.encode())
            yield _ColumnCheck(at, part, start, column, fields[column.field], path, check)
            at += 1
        start += part.rows


def _check_columns(
    work: list[_ColumnCheck], threads: int, at_once: int, advance: Callable[[int], None]
) -> list[_DamagedBlock]:
    """Find every damaged block of every column, in several threads."""
    found: list[_DamagedBlock] = []
    pieces = [piece for one in work for piece in _cut_column(one, at_once)]
    # Closed, so that Ctrl-C waits for one task per thread at most.
    with closing(map_in_threads(_check_blocks, pieces, threads)) as checked:
        for damaged, nbytes in checked:
            found += damaged
            advance(nbytes)
    broken = {one.at for one in found}
    for one in work:
        if one.offsets is not None and one.at not in broken:
            problem = "offsets do not rise from 0 to the number of values"
            found += [
                _DamagedBlock(one.at, block, problem) for block in one.offsets.damaged_blocks()
            ]
    return sorted(found)


class _BlockRange(NamedTuple):
    """Some blocks of a column."""

    work: _ColumnCheck
    blocks: range


def _cut_column(one: _ColumnCheck, at_once: int) -> list[_BlockRange]:
    size = one.column.rows_per_block * one.field.row_bytes(one.column.role)
    step = max(at_once // max(size, 1), 1)
    last = one.column.blocks + 1
    return [_BlockRange(one, range(a, min(a + step, last))) for a in range(0, last, step)]


def _check_blocks(piece: _BlockRange) -> tuple[list[_DamagedBlock], int]:
    """Return the damaged ones of some blocks, and the bytes they have."""
    one, chosen = piece
    column, size = one.column, one.field.row_bytes(one.column.role)
    look = None if one.offsets is None else one.offsets.add
    nbytes = block_span(column, size, chosen[-1])[1] - block_span(column, size, chosen[0])[0]
    try:
        with open_column(one.path) as file:
            damaged = find_damaged(file, column, size, chosen, look)
            if chosen[0] == 0 and file.size != column.nbytes:
                check_header(file, column, one.field)
    except Error as error:
        return [_DamagedBlock(one.at, 0, error.problem or str(error))], nbytes
    return [_DamagedBlock(one.at, block, _DAMAGED) for block in damaged], nbytes


def _describe_damage(work: list[_ColumnCheck], found: list[_DamagedBlock]) -> Iterator[Damage]:
    """Yield damaged blocks as samples, neighbours merged; a header stands for its whole column."""
    for at, group in groupby(found, key=lambda one: one.at):
        one, own = work[at], list(group)
        file = os.fsdecode(one.path)
        if own[0].block == 0:
            whole = one.start, one.start + one.part.rows
            yield Damage(file, one.field.name, whole, own[0].problem)
            continue
        runs: list[list[_DamagedBlock]] = []
        for this in own:
            if (
                runs
                and this.block == runs[-1][-1].block + 1
                and this.problem == runs[-1][0].problem
            ):
                runs[-1].append(this)
            else:
                runs.append([this])
        broken = {work[other.at].path for other in found}
        for run in runs:
            first = block_rows(one.column, run[0].block)[0]
            last = block_rows(one.column, run[-1].block)[1]
            a, b = _affected_samples(one, work, (first, last), broken)
            yield Damage(file, one.field.name, (one.start + a, one.start + b), run[0].problem)


def _affected_samples(
    one: _ColumnCheck, work: list[_ColumnCheck], span: tuple[int, int], broken: set[bytes]
) -> tuple[int, int]:
    """Return the samples of its part that rows of a column affect."""
    first, last = span
    if one.column.role == "offsets":  # one offset ends a sample and starts the next
        return max(first - 1, 0), min(last, one.part.rows)
    if one.column.role != "values":
        return span
    beside = work[one.at + 1]
    if beside.path in broken:
        return 0, one.part.rows
    with open_column(beside.path) as file:
        return Offsets(file, beside.column).samples_of(first, last)
