"""The table of arrays: columns over files and over arrays, never an object per file.

Per file: the path, the identity, the format. Per array: its file, and every fact of
``formats.Array`` as a number, with each name, type and shape stored once. A file of one array
takes about 130 bytes, including its path.

Arrays are in the order of their files. Names and types are numbered in the order of their
first use, shapes in order of size; none is unused, and ``base`` is as long as possible. So the
same files give the same table, however it was made. A table is never changed once it is built.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import Error
from ndfeed.files.file import Identity
from ndfeed.files.listing import Paths, common_folder

Ints = NDArray[np.int64]

NOTES_KEPT = 100
_AT_ONCE = 1 << 14
_FEW = 64  # up to this many paths are faster to slice one by one
_SPREAD = 16  # copying everything between paths pays if it is at most this many times larger


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Table:
    """Files and the arrays in them."""

    base: bytes  # the common start of all paths
    path_bytes: NDArray[np.uint8]  # the rest of every path, end to end
    path_ends: Ints  # where each path ends, preceded by 0
    identity: Ints  # per file: device, inode, size, mtime, ctime
    format: NDArray[np.uint8]  # per file: index into formats
    formats: tuple[str, ...]

    file: NDArray[np.int32]  # per array from here on
    name: NDArray[np.int32]
    dtype: NDArray[np.int32]
    shape: NDArray[np.int32]  # index into dims
    strides: NDArray[np.int32]  # index into dims, -1 for C order
    offset: Ints
    length: Ints
    skip: Ints
    decoded: Ints
    crc: Ints
    coding: NDArray[np.uint8]

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    dims: Ints  # per row: the rank, then as many lengths, padded with zeros
    notes: tuple[tuple[int, str], ...] = ()  # the first NOTES_KEPT remarks: file, text
    remarked: int = 0  # how many there were
    ignored: tuple[str, ...] = ()  # the first NOTES_KEPT files of a folder without arrays
    passed_over: int = 0  # how many there were
    owner: object = field(default=None, repr=False)  # keeps the memory of the paths alive
    sealed: bool = False  # the files are our own memory, which cannot change
    caches: tuple[bytes, ...] = ()  # where this table is cached
    skipped: tuple[Error, ...] = ()  # what is wrong with files that were skipped, if any
    narrowed: bool = False  # were unreadable arrays left out that were not requested?
    digest: str = ""  # of a packed dataset's manifest, which identifies the data

    @property
    def files(self) -> int:
        """The number of files."""
        return len(self.identity)

    def path(self, file: int) -> bytes:
        """Return the path of a file."""
        start, end = self.path_ends[file], self.path_ends[file + 1]
        return self.base + self.path_bytes[start:end].tobytes()

    def paths(self) -> Iterator[bytes]:
        """Yield the paths of all files."""
        if self.files > _FEW:
            yield from self.paths_of(np.arange(self.files))
            return
        text, base = self.path_bytes.tobytes(), self.base
        yield from [base + text[a:b] for a, b in pairwise(self.path_ends.tolist())]

    def paths_of(self, files: Ints) -> Iterator[bytes]:
        """Yield the paths of some files."""
        for start in range(0, len(files), _AT_ONCE):
            some = files[start : start + _AT_ONCE]
            starts, ends = self.path_ends[some], self.path_ends[some + 1]
            text: bytes | memoryview = self.path_bytes.data
            if len(some) > _FEW:
                first, last = int(starts.min()), int(ends.max())
                text = text[first:last]
                if len(text) < _SPREAD * int((ends - starts).sum()):
                    text = bytes(text)  # slices of bytes are cheaper
                starts, ends = starts - first, ends - first
            pairs = zip(starts.tolist(), ends.tolist(), strict=True)
            yield from (self.base + text[a:b] for a, b in pairs)

    def expected(self, file: int) -> Identity:
        """Return the identity a file had when it was described."""
        device, inode, size, mtime, ctime = self.identity[file].tolist()
        return Identity(device, inode, size, mtime, ctime)

    def dimensions(self, place: int) -> tuple[int, ...]:
        """Return the shape or the strides at ``place`` of ``dims``."""
        row = self.dims[place].tolist()
        return tuple(row[1 : 1 + row[0]])

    @property
    def nbytes(self) -> int:
        """The memory that this table takes, in bytes."""
        columns = (getattr(self, column.name) for column in fields(self))
        return sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


_PER_FILE = {"identity": np.int64, "format": np.uint8}
_PER_ARRAY = {
    "file": np.int32, "name": np.int32, "dtype": np.int32, "shape": np.int32, "strides": np.int32,
    "offset": np.int64, "length": np.int64, "skip": np.int64, "decoded": np.int64,
    "crc": np.int64, "coding": np.uint8,
}  # fmt: skip

Part = dict[str, Any]


def joined_paths(base: bytes, paths: Iterable[bytes]) -> tuple[NDArray[np.uint8], Ints]:
    """Return ``path_bytes`` and ``path_ends`` of paths that all begin with ``base``."""
    text, ends = Paths(paths, base).text()
    return np.frombuffer(text, np.uint8), np.frombuffer(ends, np.int64)


class Assembly:
    """Tables joined one after another, in memory that grows in place.

    A column is a bytearray: the system moves its pages if necessary, so a large table never
    exists twice, as it would if its parts were kept and joined at the end.
    """

    def __init__(self, base: bytes) -> None:
        self.base = base
        self._text = bytearray()
        self._lengths = bytearray()
        self._columns = {column: bytearray() for column in (*_PER_FILE, *_PER_ARRAY)}
        self._pools: dict[str, dict[str, int]] = {"names": {}, "dtypes": {}, "formats": {}}
        self._dims: list[Ints] = []
        self._rows = self._files = self._remarked = self._passed_over = 0
        self._notes: list[tuple[int, str]] = []
        self._ignored: list[str] = []

    def add(self, part: Part) -> None:
        """Append a table given by its fields; its paths must be relative to the base."""
        columns = {column: part[column] for column in self._columns}
        columns["file"] = columns["file"] + self._files
        for column, pool in (("name", "names"), ("dtype", "dtypes"), ("format", "formats")):
            columns[column] = self._pool(pool, part[pool])[columns[column]]
        columns["shape"] = columns["shape"] + self._rows
        columns["strides"] = np.where(columns["strides"] < 0, -1, columns["strides"] + self._rows)
        for column, kind in {**_PER_FILE, **_PER_ARRAY}.items():
            self._columns[column] += columns[column].astype(kind).tobytes()
        self._text += part["path_bytes"].data
        self._lengths += np.diff(part["path_ends"]).tobytes()
        self._dims.append(part["dims"])
        if len(self._notes) < NOTES_KEPT:
            self._notes += [(file + self._files, text) for file, text in part["notes"]]
        self._ignored += part["ignored"][: NOTES_KEPT - len(self._ignored)]
        self._rows += len(part["dims"])
        self._files += len(part["identity"])
        self._remarked += part["remarked"]
        self._passed_over += part["passed_over"]

    def _pool(self, pool: str, own: Sequence[str]) -> Ints:
        shared = self._pools[pool]
        return np.array([shared.setdefault(text, len(shared)) for text in own] or [0], np.int64)

    def table(self) -> Table:
        """Return everything as one table. Nothing may be added afterwards."""
        kinds: dict[str, Any] = {**_PER_FILE, **_PER_ARRAY}
        columns: dict[str, Any] = {
            name: np.frombuffer(self._columns[name], kind) for name, kind in kinds.items()
        }
        dims, place = _join_dims(self._dims)
        for name in ("shape", "strides"):
            columns[name] = np.where(columns[name] < 0, -1, place[columns[name]]).astype(np.int32)
        ends = np.zeros(self._files + 1, np.int64)
        np.cumsum(np.frombuffer(self._lengths, np.int64), out=ends[1:])
        made = Table(
            base=self.base,
            path_bytes=np.frombuffer(self._text, np.uint8),
            path_ends=ends,
            identity=columns.pop("identity").reshape(-1, 5),
            **columns,
            names=tuple(self._pools["names"]),
            dtypes=tuple(self._pools["dtypes"]),
            formats=tuple(self._pools["formats"]),
            dims=dims,
            notes=tuple(self._notes[:NOTES_KEPT]),
            remarked=self._remarked,
            ignored=tuple(self._ignored),
            passed_over=self._passed_over,
        )
        if b"/" not in self._text[: int(ends[:2][-1])]:
            return made  # the first file is directly in the base, which cannot be longer
        base = common_folder((made.path(0), made.path(made.files - 1)))
        if base != self.base:
            base = common_folder(made.paths())
        return made if base == self.base else replace(made, base=base, **_paths(base, made.paths()))


def concat(tables: Sequence[Table]) -> Table:
    """Return the files of all tables, one table after another."""
    if len(tables) == 1:
        return tables[0]
    made = Assembly(common_folder(table.base for table in tables))
    for table in tables:
        part = _fields(table)
        if table.base != made.base:
            part |= _paths(made.base, table.paths())
        made.add(part)
    return replace(made.table(), **_inherit(tables))


def subset(tables: Sequence[Table], files: Ints) -> Table:
    """Return some files of several tables, numbered across all of them, in the given order."""
    ends = np.cumsum([table.files for table in tables])
    made = Assembly(common_folder(table.base for table in tables))
    for start in range(0, max(len(files), 1), _AT_ONCE):
        made.add(_mix_files(tables, ends, files[start : start + _AT_ONCE], made.base))
    notes = []
    for table, end in zip(tables, ends.tolist(), strict=True):
        for file, text in table.notes:
            notes += [(int(at), text) for at in np.flatnonzero(files == file + end - table.files)]
    kept, known = len(notes), sum(len(table.notes) for table in tables)
    return replace(
        made.table(),
        notes=tuple(sorted(notes, key=lambda note: note[0])[:NOTES_KEPT]),
        # It is not known to which files the remarks belong that were not kept.
        remarked=sum(table.remarked for table in tables) - known + kept,
        **_inherit(tables),
    )


def _inherit(tables: Sequence[Table]) -> dict[str, Any]:
    """Return what a table made of ``tables`` inherits besides files."""
    return {
        "sealed": all(table.sealed for table in tables),
        "owner": tuple(table.owner for table in tables if table.owner is not None) or None,
        "caches": tuple(dict.fromkeys(cache for table in tables for cache in table.caches)),
        "skipped": tuple(error for table in tables for error in table.skipped),
        "narrowed": any(table.narrowed for table in tables),
    }


def _mix_files(tables: Sequence[Table], ends: Ints, files: Ints, base: bytes) -> Part:
    """Return a few files of several tables, numbered across all of them."""
    which = np.searchsorted(ends, files, side="right")
    made = Assembly(base)
    for i in np.unique(which).tolist() or [0]:
        first = int(ends[i]) - tables[i].files
        part = _select_files(tables[i], files[which == i] - first, base)
        if (which == i).all():
            return part
        made.add(part)
    place = np.empty(len(files), np.int64)
    place[np.argsort(which, kind="stable")] = np.arange(len(files))
    return _select_files(made.table(), place, base)


def _fields(table: Table) -> Part:
    return {column.name: getattr(table, column.name) for column in fields(Table)}


def _select_files(table: Table, files: Ints, base: bytes) -> Part:
    """Return some files of a table, with only the names, types and shapes that they use."""
    first = np.searchsorted(table.file, files)
    counts = np.searchsorted(table.file, files, side="right") - first
    rows = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
    part = _fields(table) | _some_paths(table, files, base)
    part |= {column: part[column][files] for column in _PER_FILE}
    part |= {column: part[column][rows] for column in _PER_ARRAY}
    part["file"] = np.repeat(np.arange(len(files)), counts)
    for column, pool in (("name", "names"), ("dtype", "dtypes")):
        used, part[column] = _by_first_use(part[column])
        part[pool] = [part[pool][i] for i in used.tolist()]
    part["dims"], part["shape"], part["strides"] = _used_dims(part)
    return part | {"notes": [], "remarked": 0, "ignored": [], "passed_over": 0}


def _some_paths(table: Table, files: Ints, base: bytes) -> Part:
    """Return the paths of some files, relative to ``base``."""
    if base != table.base or not len(files) or np.count_nonzero(np.diff(files) != 1):
        return _paths(base, table.paths_of(files))
    ends = table.path_ends[files[0] : files[-1] + 2]
    return {"path_bytes": table.path_bytes[ends[0] : ends[-1]], "path_ends": ends - ends[0]}


def places(table: Table, paths: Paths, among: Ints | None = None) -> Ints:
    """Return for each of ``paths`` its first file in ``table``, or ``among`` some of it; or -1."""
    files = np.arange(table.files) if among is None else among
    if not len(files):
        return np.full(len(paths), -1)
    # By hash, not in a dict, which would take more memory than the table itself.
    own = np.fromiter(map(hash, table.paths_of(files)), np.int64, len(files))
    order = np.argsort(own, kind="stable")
    theirs = np.fromiter(map(hash, paths), np.int64, len(paths))
    found = files[order[np.minimum(np.searchsorted(own[order], theirs), len(own) - 1)]]
    pairs = zip(paths, table.paths_of(found), strict=True)
    same = np.fromiter((mine == yours for mine, yours in pairs), bool, len(paths))
    return np.where(same, found, -1)


def match_paths(table: Table, paths: Paths) -> Ints:
    """Return for each of ``paths`` a file of ``table`` that has it, or -1 if none was found.

    Paths that both begin or end with are compared as text: mostly, few are new or gone. Those in
    between are looked for there, so one that has moved elsewhere is not found.
    """
    if paths.base != table.base:
        return places(table, paths)
    text, ends = (np.frombuffer(part, kind) for part, kind in zip(paths.text(), "Bq", strict=True))
    own, theirs = np.diff(table.path_ends), np.diff(ends)
    first = _count_equal(table.path_bytes, text, own, theirs)
    last = _count_equal(table.path_bytes[::-1], text[::-1], own[::-1], theirs[::-1])
    last = min(last, len(own) - first, len(theirs) - first)
    between = paths.cut(first, len(paths) - last)
    found = places(table, between, np.arange(first, table.files - last))
    return np.concatenate([np.arange(first), found, np.arange(table.files - last, table.files)])


def _count_equal(
    text: NDArray[np.uint8], other: NDArray[np.uint8], lengths: Ints, others: Ints
) -> int:
    """Return how many paths, given as text and lengths, two lists begin with alike."""
    alike = _leading(text, other)
    return min(_leading(lengths, others), int(np.searchsorted(np.cumsum(lengths), alike, "right")))


def _leading(a: NDArray[np.integer], b: NDArray[np.integer]) -> int:
    """Return how many numbers are the same at the start of both."""
    count = min(len(a), len(b))
    differ = a[:count] != b[:count]
    return int(differ.argmax()) if differ.any() else count


def _paths(base: bytes, paths: Iterable[bytes]) -> Part:
    path_bytes, path_ends = joined_paths(base, paths)
    return {"path_bytes": path_bytes, "path_ends": path_ends}


def _by_first_use(numbers: NDArray[np.int32]) -> tuple[Ints, Ints]:
    """Return the distinct numbers in order of first use, and each number's index among them."""
    used, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(used), np.int64)
    place[order] = np.arange(len(used))
    return used[order].astype(np.int64), place[inverse.reshape(-1)]


def _used_dims(part: Part) -> tuple[Ints, Ints, Ints]:
    """Return the shapes and strides that occur, and the arrays' indices into them."""
    shape: NDArray[np.int32] = part["shape"]
    strides: NDArray[np.int32] = part["strides"]
    used = np.union1d(shape, strides[strides >= 0])
    dims: Ints = part["dims"][used]
    width = 1 + int(dims[:, 0].max(initial=0))
    at, steps = (
        np.asarray(np.searchsorted(used, numbers), np.int64) for numbers in (shape, strides)
    )
    return dims[:, :width], at, np.where(strides < 0, -1, steps)


def _join_dims(pools: list[Ints]) -> tuple[Ints, Ints]:
    """Return all distinct rows of the pools, in order, and where each row of each pool went."""
    width = max(pool.shape[1] for pool in pools)
    padded = [np.pad(pool, ((0, 0), (0, width - pool.shape[1]))) for pool in pools]
    dims, inverse = np.unique(np.concatenate(padded), axis=0, return_inverse=True)
    return dims, inverse.reshape(-1)
