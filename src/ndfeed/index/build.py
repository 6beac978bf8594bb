"""Describe many files into one table, and list every bad one at once.

Warm files are described one after the other in the calling thread: a header costs a few
microseconds, less than handing the interpreter lock to another thread (16 threads take ten
times as long). Where describing waits for the disk or the network instead, threads share the
rest. The first files tell, by how often the kernel put the thread to sleep.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ndfeed.errors import BadFilesError, Error, shown
from ndfeed.files import system
from ndfeed.files.file import File, Identity
from ndfeed.formats import detect, raw
from ndfeed.formats.array import Array, Description
from ndfeed.index.table import NOTES_KEPT, Table, common_folder, concat, joined_paths
from ndfeed.progress import Bar

_FIRST = 128
_CHUNK = 1024
_THREADS = 16
_FORMATS = ("npy", "npz", "npy.gz", "pt", "safetensors", "raw", "memory")


class Rules(NamedTuple):
    """How files are to be taken. ``picky`` leaves out those of a folder that hold no arrays."""

    layout: raw.Layout | None = None
    picky: bool = False


class _Chunk:
    """Columns of some files, in lists."""

    def __init__(self) -> None:
        self.paths: list[bytes] = []
        self.identity: list[tuple[int, int, int, int, int]] = []
        self.format: list[int] = []
        self.arrays: list[tuple[int, ...]] = []
        self.names: dict[str, int] = {}
        self.dtypes: dict[str, int] = {}
        self.dims: dict[tuple[int, ...], int] = {}
        self.notes: list[tuple[int, str]] = []
        self.ignored: list[str] = []

    def add(self, file: File, found: Description) -> None:
        status = file.status
        number = len(self.paths)
        self.paths.append(file.path)
        self.identity.append((*Identity.of(status), status.st_ctime_ns))
        self.format.append(_FORMATS.index(found.format))
        for array in found.arrays:
            self.arrays.append(self._row(number, array))
        for note in found.notes:
            self.notes.append((number, note))

    def _row(self, number: int, array: Array) -> tuple[int, ...]:
        dims = self.dims
        shape = dims.setdefault(array.shape, len(dims))
        strides = -1 if array.strides is None else dims.setdefault(array.strides, len(dims))
        return (
            number,
            self.names.setdefault(array.name, len(self.names)),
            self.dtypes.setdefault(array.dtype, len(self.dtypes)),
            shape,
            strides,
            array.offset,
            array.length,
            array.skip,
            array.decoded,
            array.crc,
            array.coding,
        )

    def table(self, base: bytes) -> Table:
        """These files as a table of their own."""
        width = 1 + max(map(len, self.dims), default=0)
        dims = np.zeros((len(self.dims), width), np.int64)
        for row, lengths in zip(dims, self.dims, strict=True):
            row[0] = len(lengths)
            row[1 : 1 + len(lengths)] = lengths
        path_bytes, path_ends = joined_paths(base, self.paths)
        arrays = np.array(self.arrays, np.int64).reshape(-1, 11)
        return Table(
            base=base,
            path_bytes=path_bytes,
            path_ends=path_ends,
            identity=np.array(self.identity, np.int64).reshape(-1, 5),
            format=np.array(self.format, np.uint8),
            formats=_FORMATS,
            file=arrays[:, 0].astype(np.int32),
            name=arrays[:, 1].astype(np.int32),
            dtype=arrays[:, 2].astype(np.int16),
            shape=arrays[:, 3].astype(np.int32),
            strides=arrays[:, 4].astype(np.int32),
            offset=arrays[:, 5].copy(),
            length=arrays[:, 6].copy(),
            skip=arrays[:, 7].copy(),
            decoded=arrays[:, 8].copy(),
            crc=arrays[:, 9].copy(),
            coding=arrays[:, 10].astype(np.uint8),
            names=tuple(self.names),
            dtypes=tuple(self.dtypes),
            dims=dims,
            notes=tuple(self.notes[:NOTES_KEPT]),
            remarked=len(self.notes),
            ignored=tuple(self.ignored),
        )


def build(paths: Sequence[bytes], rules: Rules) -> Table:
    """Describe every file; raise for all bad ones together."""
    base = common_folder(paths)
    tables: list[Table] = []
    problems: list[Error] = []
    with Bar("reading headers", len(paths)) as bar:
        for table, bad in _described(paths, rules, base):
            bar.advance(table.files + len(bad) + len(table.ignored))
            tables.append(table)
            problems += bad
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise BadFilesError(problems, len(paths))
    return concat(tables)


def table_of(file: File, found: Description) -> Table:
    """The table of one file that is described already."""
    chunk = _Chunk()
    chunk.add(file, found)
    return chunk.table(b"")


def _described(
    paths: Sequence[bytes], rules: Rules, base: bytes
) -> Iterator[tuple[Table, list[Error]]]:
    """Every chunk of files as a table and its problems, in order."""
    first = paths[:_FIRST]
    before = system.waits()
    yield _chunk(first, rules, base)
    waiting = system.waits() - before > len(first) // 4
    chunks = [paths[start : start + _CHUNK] for start in range(len(first), len(paths), _CHUNK)]
    if not waiting:
        for chunk in chunks:
            yield _chunk(chunk, rules, base)
        return
    with ThreadPoolExecutor(_THREADS, "ndfeed-index") as pool:
        yield from pool.map(lambda chunk: _chunk(chunk, rules, base), chunks)


def _chunk(paths: Sequence[bytes], rules: Rules, base: bytes) -> tuple[Table, list[Error]]:
    chunk = _Chunk()
    problems: list[Error] = []
    for path in paths:
        try:
            with File(path) as file:
                if rules.picky and not _holds_arrays(file, rules):
                    chunk.ignored.append(shown(path))
                else:
                    chunk.add(file, detect.describe(file, rules.layout))
        except Error as error:
            problems.append(error)
    return chunk.table(base), problems


def _holds_arrays(file: File, rules: Rules) -> bool:
    """Is this file of a folder meant? By its name, or else by its first bytes."""
    path = file.path.lower()
    if path.endswith(detect.SUFFIXES):
        return True
    if path.endswith(raw.SUFFIXES) and (rules.layout or raw.beside(file.path)):
        return True
    return file.size > 0 and detect.recognised(file)
