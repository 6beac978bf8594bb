"""The table of arrays: columns over files and over arrays, never an object per file.

Per file: the path, the identity, the format. Per array: its file, and every fact of
``formats.Array`` as a number, with names, types and shapes kept once each in lists. About
160 bytes for a file of one array, paths included.

Arrays stand in the order of their files. A table is never changed once it is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from ndfeed.files.file import Identity

Ints = NDArray[np.int64]

NOTES_KEPT = 100


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Table:
    """Files and the arrays in them."""

    base: bytes  # what every path begins with
    path_bytes: NDArray[np.uint8]  # the rest of every path, end to end
    path_ends: Ints  # and where each ends; one more than there are files, from 0
    identity: Ints  # per file: device, inode, size, mtime, ctime
    format: NDArray[np.uint8]  # per file: place in formats
    formats: tuple[str, ...]

    file: NDArray[np.int32]  # per array from here on
    name: NDArray[np.int32]
    dtype: NDArray[np.int16]
    shape: NDArray[np.int32]  # place in dims
    strides: NDArray[np.int32]  # place in dims, -1 for C order
    offset: Ints
    length: Ints
    skip: Ints
    decoded: Ints
    crc: Ints
    coding: NDArray[np.uint8]

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    dims: Ints  # rows of a rank and as many lengths, padded with zeros
    notes: tuple[tuple[int, str], ...] = ()  # the first NOTES_KEPT remarks: file, text
    remarked: int = 0  # how many there were
    ignored: tuple[str, ...] = ()  # files of a folder that hold no arrays
    owner: object = field(default=None, repr=False)  # keeps the memory behind the paths alive
    sealed: bool = False  # the files are memory of our own that cannot change

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self.identity)

    def path(self, file: int) -> bytes:
        """The path of a file."""
        start, end = self.path_ends[file], self.path_ends[file + 1]
        return self.base + self.path_bytes[start:end].tobytes()

    def paths(self, start: int, stop: int) -> list[bytes]:
        """The paths of ``stop - start`` files; faster than one by one."""
        ends = self.path_ends[start : stop + 1].tolist()
        text = self.path_bytes[ends[0] : ends[-1]].tobytes() if ends else b""
        first = ends[0] if ends else 0
        return [
            self.base + text[a - first : b - first] for a, b in zip(ends, ends[1:], strict=False)
        ]

    def expected(self, file: int) -> Identity:
        """The identity a file had when it was described."""
        device, inode, size, mtime = self.identity[file, :4].tolist()
        return Identity(device, inode, size, mtime)

    def dimensions(self, place: int) -> tuple[int, ...]:
        """The shape or the strides kept at ``place`` of ``dims``."""
        row = self.dims[place].tolist()
        return tuple(row[1 : 1 + row[0]])

    @property
    def nbytes(self) -> int:
        """Memory this table takes."""
        columns = (getattr(self, column.name) for column in fields(self))
        return sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


_PER_FILE = ("identity", "format")
_PER_ARRAY = (
    "file", "name", "dtype", "shape", "strides", "offset", "length", "skip", "decoded", "crc",
    "coding",
)  # fmt: skip


def common_folder(paths: Sequence[bytes]) -> bytes:
    """The deepest folder that holds all ``paths``, with its slash; nothing if there is none."""
    low, high = (min(paths), max(paths)) if paths else (b"", b"")
    pairs = enumerate(zip(low, high, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(low), len(high)))
    return low[: low.rfind(b"/", 0, same) + 1]


def joined_paths(base: bytes, paths: Sequence[bytes]) -> tuple[NDArray[np.uint8], Ints]:
    """``path_bytes`` and ``path_ends`` of paths that all begin with ``base``."""
    cut = len(base)
    ends = np.zeros(len(paths) + 1, np.int64)
    np.cumsum([len(path) - cut for path in paths], out=ends[1:])
    return np.frombuffer(b"".join([path[cut:] for path in paths]), np.uint8), ends


def concat(tables: Sequence[Table]) -> Table:
    """The files of all tables, in turn. Names, types and shapes are numbered anew."""
    if len(tables) == 1:
        return tables[0]
    base = common_folder(sorted({table.base for table in tables}))
    rest = [_rebased(table, base) for table in tables]
    names: dict[str, int] = {}
    dtypes: dict[str, int] = {}
    formats: dict[str, int] = {}
    dims, places = _joined_dims([table.dims for table in tables])
    columns: dict[str, list[NDArray[np.generic]]] = {
        column: [getattr(table, column) for table in tables] for column in (*_PER_FILE, *_PER_ARRAY)
    }
    firsts = np.cumsum([0] + [table.files for table in tables])
    for i, (table, place) in enumerate(zip(tables, places, strict=True)):
        columns["file"][i] = table.file + firsts[i].astype(np.int32)
        columns["name"][i] = _renumbered(table.names, names)[table.name]
        columns["dtype"][i] = _renumbered(table.dtypes, dtypes)[table.dtype]
        columns["format"][i] = _renumbered(table.formats, formats)[table.format]
        columns["shape"][i] = place[table.shape]
        columns["strides"][i] = np.where(table.strides < 0, -1, place[table.strides])
    like = {column: getattr(tables[0], column).dtype for column in columns}
    notes = [
        (int(first) + file, text)
        for first, table in zip(firsts, tables, strict=False)
        for file, text in table.notes
    ]
    return Table(
        base=base,
        path_bytes=np.concatenate([text for text, _ in rest]),
        path_ends=_joined_ends([ends for _, ends in rest]),
        **{
            column: np.concatenate(parts).astype(like[column], copy=False)
            for column, parts in columns.items()
        },
        formats=tuple(formats),
        names=tuple(names),
        dtypes=tuple(dtypes),
        dims=dims,
        notes=tuple(notes[:NOTES_KEPT]),
        remarked=sum(table.remarked for table in tables),
        ignored=tuple(text for table in tables for text in table.ignored),
        sealed=all(table.sealed for table in tables),
        owner=tuple(table.owner for table in tables if table.owner is not None) or None,
    )


def subset(table: Table, files: Ints) -> Table:
    """A table of some files of ``table``, in the order given."""
    first = np.searchsorted(table.file, files)
    counts = np.searchsorted(table.file, files, side="right") - first
    before = np.cumsum(counts) - counts
    rows = np.repeat(first - before, counts) + np.arange(int(counts.sum()))
    starts, lengths = table.path_ends[files], table.path_ends[files + 1] - table.path_ends[files]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    letters = np.repeat(starts - ends[:-1], lengths) + np.arange(int(ends[-1]))
    place = {int(file): i for i, file in enumerate(files)} if table.notes else {}
    notes = tuple((place[file], text) for file, text in table.notes if file in place)
    return replace(
        table,
        path_bytes=table.path_bytes[letters],
        path_ends=ends,
        **{column: getattr(table, column)[files] for column in _PER_FILE},
        **{column: getattr(table, column)[rows] for column in _PER_ARRAY if column != "file"},
        file=np.repeat(np.arange(len(files), dtype=np.int32), counts),
        notes=notes,
        remarked=len(notes),
    )


def _rebased(table: Table, base: bytes) -> tuple[NDArray[np.uint8], Ints]:
    if table.base == base:
        return table.path_bytes, table.path_ends
    return joined_paths(base, table.paths(0, table.files))


def _joined_ends(parts: list[Ints]) -> Ints:
    lengths = np.concatenate([np.diff(ends) for ends in parts])
    return np.concatenate([[0], np.cumsum(lengths)])


def _renumbered(own: tuple[str, ...], shared: dict[str, int]) -> Ints:
    return np.array([shared.setdefault(text, len(shared)) for text in own] or [0], np.int64)


def _joined_dims(pools: list[Ints]) -> tuple[Ints, list[Ints]]:
    """All rows of the pools, each once, and for each pool where its rows went."""
    width = max(pool.shape[1] for pool in pools)
    padded = [np.pad(pool, ((0, 0), (0, width - pool.shape[1]))) for pool in pools]
    dims, inverse = np.unique(np.concatenate(padded), axis=0, return_inverse=True)
    ends = np.cumsum([len(pool) for pool in pools])[:-1]
    return dims, np.split(inverse.reshape(-1), ends)
