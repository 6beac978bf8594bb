"""Describe many files in one table, and list every bad one at once.

Warm files are described one after another in the calling thread: a header takes a few
microseconds, less than passing the GIL to another thread (16 threads take ten times as long). If
the rest would take long, processes share it. If describing waits for the disk or the network
instead, threads do, until as many processes have started. The first files decide, by how long they
took and by how often the kernel put the thread to sleep. The table is the same in each case.

For a packed dataset the manifest is read, and the size and header of every column are compared.
The data itself is not checked; ``packing.verify`` does that. Nothing is cached between runs: the
manifest is the cache. Names in a manifest cannot lead out of the dataset's own folder: a symbolic
link below it is refused, even one that stays inside.
"""

import os
import struct
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ndfeed.errors import (
    BadFilesError,
    ChecksumError,
    DeniedError,
    Error,
    FormatError,
    ManifestError,
    MissingError,
    SourceError,
    TruncatedError,
    UnsupportedError,
    shown,
)
from ndfeed.files import listing, platform_calls
from ndfeed.files.file import File, Identity
from ndfeed.files.listing import common_folder
from ndfeed.files.processes import WORTH_IT, map_in_processes, useful_processes
from ndfeed.files.threads import map_in_threads
from ndfeed.formats import detect, npy, raw
from ndfeed.formats.description import FORMATS, MOST_DIMENSIONS, Array, Description, Wanted
from ndfeed.formats.inflate import crc32
from ndfeed.formats.manifest import MOST_MANIFEST, NAME, Column, Field, Manifest, parse
from ndfeed.index.source import Files
from ndfeed.index.table import NOTES_KEPT, Assembly, Part, Table, joined_paths
from ndfeed.progress import Bar

_FIRST, _SECOND, _CHUNK = 128, 256, 1024
_THREADS = 16
_WAITS_PER_FILE = 0.25  # above this, the disk is the bottleneck
RAW = FORMATS.index("raw")
_USUAL = FORMATS.index("memory")  # tables have at least these, as they always had


class Chunk:
    """Facts about some files, in lists, and what is wrong with others."""

    def __init__(self) -> None:
        self.paths: list[bytes] = []
        self.identity: list[Identity] = []
        self.format: list[int] = []
        self.arrays: list[tuple[int, ...]] = []
        self.names: dict[str, int] = {}
        self.dtypes: dict[str, int] = {}
        self.dims: dict[bytes, int] = {}
        self.notes: list[tuple[int, str]] = []
        self.narrowed = False
        self.ignored: list[bytes] = []
        self.problems: list[Error] = []

    def add(self, file: File, found: Description) -> None:
        """Add one more file and its arrays."""
        status = file.status
        number = len(self.paths)
        self.paths.append(file.path)
        self.identity.append(Identity.of(status))
        self.format.append(FORMATS.index(found.format))
        for array in found.arrays:
            self.arrays.append(self._row(number, array))
        for note in found.notes:
            self.notes.append((number, note))
        self.narrowed |= found.narrowed

    def _row(self, number: int, array: Array) -> tuple[int, ...]:
        own = array.strides
        return (
            number,
            self.names.setdefault(array.name, len(self.names)),
            self.dtypes.setdefault(array.dtype, len(self.dtypes)),
            self.dims.setdefault(_PACK[len(array.shape)](*array.shape), len(self.dims)),
            -1 if own is None else self.dims.setdefault(_PACK[len(own)](*own), len(self.dims)),
            array.offset,
            array.length,
            array.skip,
            array.decoded,
            array.crc,
            array.coding,
        )

    def part(self, base: bytes) -> Part:
        """Return these files as part of a table."""
        width = 8 + max(map(len, self.dims), default=0)
        rows = b"".join(
            (len(packed) // 8).to_bytes(8, sys.byteorder) + packed.ljust(width - 8, b"\0")
            for packed in self.dims
        )
        dims = np.frombuffer(rows, np.int64).reshape(-1, width // 8)
        path_bytes, path_ends = joined_paths(base, self.paths)
        arrays = np.array(self.arrays, np.int64).reshape(-1, 11)
        return {
            "path_bytes": path_bytes,
            "path_ends": path_ends,
            "identity": np.array(self.identity, np.int64).reshape(-1, 5),
            "format": np.array(self.format, np.uint8),
            "formats": FORMATS[: max(_USUAL, *self.format, 0) + 1],
            "file": arrays[:, 0].astype(np.int32),
            "name": arrays[:, 1].astype(np.int32),
            "dtype": arrays[:, 2].astype(np.int32),
            "shape": arrays[:, 3].astype(np.int32),
            "strides": arrays[:, 4].astype(np.int32),
            "offset": arrays[:, 5].copy(),
            "length": arrays[:, 6].copy(),
            "skip": arrays[:, 7].copy(),
            "decoded": arrays[:, 8].copy(),
            "crc": arrays[:, 9].copy(),
            "coding": arrays[:, 10].astype(np.uint8),
            "names": tuple(self.names),
            "dtypes": tuple(self.dtypes),
            "dims": dims,
            "notes": self.notes[:NOTES_KEPT],
            "remarked": len(self.notes),
            "ignored": [shown(path) for path in self.ignored[:NOTES_KEPT]],
            "passed_over": len(self.ignored),
        }


# Shapes are looked up by their bytes. Tuples of numbers have the same hash in every process, so a
# file could choose thousands that collide; the hash of bytes is different in each.
_PACK = [struct.Struct(f"={rank}q").pack for rank in range(MOST_DIMENSIONS + 2)]


class Demand(NamedTuple):
    """What a caller requires: which fields, and whether bad files may be skipped.

    ``layout`` is that of raw files. ``wanted`` are the requested fields, ``None`` for all.
    """

    layout: raw.Layout | None = None
    wanted: Wanted | None = None
    skip: bool = False


def build(files: Files, demand: Demand, *, of: int | None = None) -> Table:
    """Describe every file; raise for all bad ones together, or skip and list them.

    ``of`` is how many files were checked in total, if some need not be described again.
    """
    base = common_folder(files.paths)
    made = Assembly(base)
    problems: list[Error] = []
    narrowed = False
    with (
        Bar("reading headers", len(files.paths)) as bar,
        closing(_describe_all(files, _Job(demand, base))) as every,
    ):
        for found in every:
            made.add(found.part)
            problems += found.problems
            narrowed |= found.narrowed
            bar.advance(found.files)
    if not demand.skip:
        refuse(problems, len(files.paths) if of is None else of)
    table = made.table()
    if problems or narrowed:
        return replace(table, skipped=tuple(problems), narrowed=narrowed)
    return table


def refuse(problems: Sequence[Error], of: int) -> None:
    """Raise an error for the bad ones among ``of`` files, if there are any."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise BadFilesError(problems, of)


def make_table(file: File, found: Description) -> Table:
    """Return the table of one file that has been described."""
    chunk = Chunk()
    chunk.add(file, found)
    made = Assembly(b"")
    made.add(chunk.part(b""))
    return made.table()


class _Job(NamedTuple):
    """How files are described: as demanded, with their paths relative to ``base``."""

    demand: Demand
    base: bytes


class _Pieces(Sequence[Files]):
    """Files, many at a time; each piece is cut when it is needed."""

    def __init__(self, files: Files, start: int) -> None:
        self._files = files
        self._starts = range(start, len(files.paths), _CHUNK)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, at: int) -> Files:  # type: ignore[override]
        start = self._starts[at]
        return self._files.cut(start, min(start + _CHUNK, len(self._files.paths)))


class _Described(NamedTuple):
    """What was found in so many ``files``: part of a table, and what is wrong with some of them."""

    part: Part
    problems: list[Error]
    narrowed: bool
    files: int


def _describe_all(files: Files, job: _Job) -> Generator[_Described, None, None]:
    """Yield descriptions of every file, in order, many files at a time."""
    done, before = min(_FIRST, len(files.paths)), platform_calls.waits()
    found, each = _time(job, files.cut(0, done))
    waits = platform_calls.waits() - before > _WAITS_PER_FILE * done
    yield found
    left = len(files.paths) - done
    if left and not waits:  # measured again, without what the first ones needed once
        start, done = done, done + min(left, _SECOND)
        found, each = _time(job, files.cut(start, done))
        yield found
    rest = _Pieces(files, done)
    useful = useful_processes() if each * left > WORTH_IT else 0
    if useful:
        # Perhaps it was another thread's GIL that this one waited for: processes help there, too.
        count, here = (max(useful, _THREADS), _THREADS) if waits else (useful, 1)
        yield from map_in_processes(_describe, job, rest, count, here=here)
    elif waits:
        yield from map_in_threads(partial(_describe, job), rest, _THREADS)
    else:
        yield from map(partial(_describe, job), rest)


def _time(job: _Job, files: Files) -> tuple[_Described, float]:
    """Describe some files, and return the seconds that each took."""
    began, found = time.perf_counter(), _describe(job, files)
    return found, (time.perf_counter() - began) / max(len(files.paths), 1)


def _describe(job: _Job, files: Files) -> _Described:
    """Describe some files."""
    chunk = Chunk()
    layout, wanted, _ = job.demand
    for path, ignorable in zip(files.paths, files.picky.tolist(), strict=True):
        try:
            with File(path) as file:
                if ignorable and not _may_have_arrays(file, layout):
                    chunk.ignored.append(path)
                    continue
                try:
                    chunk.add(file, _check_not_empty(file, detect.describe(file, layout, wanted)))
                except FormatError:
                    if not ignorable or _must_have_arrays(file, layout):
                        raise
                    chunk.ignored.append(path)
        except Error as error:
            if ignorable and _no_array_file(path, error, layout):
                chunk.ignored.append(path)
            else:
                chunk.problems.append(error.with_traceback(None))
    return _Described(chunk.part(job.base), chunk.problems, chunk.narrowed, len(files.paths))


def _check_not_empty(file: File, found: Description) -> Description:
    """Return the description of a file; refuse a file without arrays, which has no samples."""
    if not found.arrays:
        problem = f"a valid .{found.format} file without any arrays"
        raise UnsupportedError(file.path, problem, remedy="exclude it, or save arrays in it")
    return found


def _no_array_file(path: bytes, error: Error, layout: raw.Layout | None) -> bool:
    """Return whether this is a pipe, socket or dangling link that is not named as an array file."""
    odd = isinstance(error, SourceError) and not isinstance(error, DeniedError)
    return odd and not _is_array_name(path, layout)


def _may_have_arrays(file: File, layout: raw.Layout | None) -> bool:
    """Return whether this file of a folder may contain arrays."""
    return _is_array_name(file.path, layout) or (file.size > 0 and detect.is_recognised(file))


def _must_have_arrays(file: File, layout: raw.Layout | None) -> bool:
    """Return whether it must contain arrays: it may also be another archive, such as a .docx."""
    return _is_array_name(file.path, layout) or file.read(0, min(6, file.size)) == npy.MAGIC


def _is_array_name(path: bytes, layout: raw.Layout | None) -> bool:
    name = path.lower()
    if name.endswith(detect.SUFFIXES):
        return True
    return name.endswith(raw.SUFFIXES) and (layout is not None or raw.beside(path) is not None)


REMEDY = "restore it with ndfeed pack --repair"


def folder_of(spelling: bytes) -> bytes | None:
    """Return the folder of the packed dataset that an absolute path names, if any."""
    folder = os.path.dirname(spelling) if os.path.basename(spelling) == NAME else spelling
    return folder if listing.exists(os.path.join(folder, NAME)) else None


def read_manifest(folder: bytes) -> Manifest:
    """Read the manifest of the packed dataset in ``folder``."""
    path = os.path.join(folder, NAME)
    _check_plain(path)
    with File(path) as file:
        if file.size > MOST_MANIFEST:
            raise ManifestError(path, f"expected at most {MOST_MANIFEST} bytes, found {file.size}")
        return parse(file.read(0, file.size), path)


def make_packed_table(folder: bytes, manifest: Manifest) -> Table:
    """Describe every column of every part, in the manifest's order; raise for all bad ones."""
    fields = {field.name: field for field in manifest.fields}
    chunk = Chunk()
    for part in manifest.parts:
        for column in part.columns:
            path = os.path.join(folder, part.folder.encode(), column.file.encode())
            try:
                with open_column(path) as file:
                    found = check_header(file, column, fields[column.field])
                    chunk.add(file, Description("npy", (found,)))
            except Error as error:
                chunk.problems.append(error.with_traceback(None))
    if len(chunk.problems) == 1:
        raise chunk.problems[0]
    if chunk.problems:
        raise BadFilesError(chunk.problems, len(chunk.paths) + len(chunk.problems))
    base = os.path.join(folder, b"")
    made = Assembly(base)
    made.add(chunk.part(base))
    return replace(made.table(), digest=manifest.digest)


def open_column(path: bytes) -> File:
    """Open a column's file, which must be a plain file in a plain folder."""
    _check_plain(os.path.dirname(path))
    _check_plain(path)
    try:
        return File(path)
    except MissingError:
        raise MissingError(path, "a column of the dataset is missing", remedy=REMEDY) from None


def _check_plain(path: bytes) -> None:
    if listing.is_link(path):
        raise SourceError(
            path,
            "a symbolic link, which is not followed inside a packed dataset",
            remedy="copy the dataset with what its links lead to (cp -rL)",
        )


def check_header(file: File, column: Column, field: Field) -> Array:
    """Compare size and header of an open column with the manifest; return its description."""
    if file.size != column.nbytes:
        kind = TruncatedError if file.size < column.nbytes else FormatError
        raise kind(file.path, f"expected {column.nbytes} bytes, found {file.size}", remedy=REMEDY)
    head = file.head()
    head = head[: column.header] if column.header <= len(head) else file.read(0, column.header)
    if crc32(head) != int(column.crc32[:8], 16):
        raise ChecksumError(
            file.path, f"expected a header with CRC-32 {column.crc32[:8]}, found {crc32(head):08x}"
            f""
        , remedy=REMEDY)  # fmt: skip
    dtype, row = field.stored(column.role)
    found = npy.describe(file).arrays
    wanted = dtype, (column.rows, *row), None, column.header
    if [(one.dtype, one.shape, one.strides, one.skip) for one in found] != [wanted]:
        raise FormatError(
            file.path,
            f"expected {dtype} {wanted[1]} in C order as in the manifest, found {found[0].dtype} "
            f"{found[0].shape}",
            remedy=REMEDY,
        )
    true = field.dtype if column.role in ("rows", "values") else dtype
    return found[0]._replace(name=field.name, dtype=true)
