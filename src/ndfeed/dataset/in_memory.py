"""Samples decoded once into shared memory, as one file that nobody can change.

Samples of one shape lie row by row; ragged ones end to end, each from a multiple of 64 bytes. A
table describes the memory like any file, so it is read as files are, only without guarding.

Opening and decoding many files holds the GIL. If the first samples show that the others will take
long, processes read them into the same memory.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, Field, Group
from ndfeed.dataset.decoding import Decoded, kept_by_default, verify
from ndfeed.dataset.large_members import first_of_streams, make_cache
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.row_selection import select_rows
from ndfeed.files import platform_calls, processes
from ndfeed.files.file import File
from ndfeed.files.processes import map_in_processes, useful_processes
from ndfeed.files.shared_memory import Handle, Shared, attach
from ndfeed.formats.description import INLINE, Array, Description
from ndfeed.index import codec
from ndfeed.index.build import make_table
from ndfeed.index.table import Ints, Table, joined_paths
from ndfeed.progress import Bar

if TYPE_CHECKING:
    from ndfeed.dataset.dataset import Dataset

_ALIGNED = 64
_LOADED_AT_ONCE = 64 << 20
_PIECE_BYTES, _PIECE_SAMPLES = 4 << 20, 1024  # that a process loads at a time
_ZEROS = 1 << 16


class Held:
    """Samples in shared memory: what they are, how many, and the table of where they lie."""

    def __init__(self, fields: tuple[Field, ...], count: int, table: Table, memory: Shared) -> None:
        self.fields = fields
        self.count = count
        self.memory = memory
        self.table = with_memory(table, memory)
        self._encoded: Shared | None = None

    def groups(self) -> tuple[Group, ...]:
        """The samples as groups: one for all fields of one shape, one for each ragged one."""
        rows: list[Column] = []
        groups: list[Group] = []
        at = 0
        for field in self.fields:
            if field.ragged:
                arrays = np.arange(at, at + self.count)
                column = Column(field, self.table, arrays, np.ones(self.count, bool))
                groups.append(Group(np.arange(self.count + 1), (column,)))
                at += self.count
            else:
                rows.append(Column(field, self.table, np.array([at]), np.zeros(1, bool)))
                at += 1
        if rows:
            groups.insert(0, Group(np.array([0, self.count]), tuple(rows)))
        return tuple(groups)

    def __reduce__(self) -> tuple[Callable[..., "Held"], tuple[Any, ...]]:
        if self._encoded is None:
            self._encoded = Shared.of(codec.encode(self.table))
        return _unpickle, (self.fields, self.count, self._encoded, self.memory)


def _unpickle(fields: tuple[Field, ...], count: int, table: Shared, memory: Shared) -> Held:
    return Held(fields, count, codec.decode(table.view().data, checked=False)[0], memory)


def with_memory(table: Table, *memories: Shared) -> Table:
    """Return the table with ``memories`` as its files."""
    path_bytes, path_ends = joined_paths(b"", [memory.path for memory in memories])
    owner = memories[0] if len(memories) == 1 else memories
    return replace(
        table, base=b"", path_bytes=path_bytes, path_ends=path_ends, owner=owner, sealed=True
    )


def memories_of(table: Table) -> list[Shared]:
    """Return the memory of each file of a table that is in memory alone; empty for any other."""
    todo, found = [table.owner] if table.sealed else [], list[Shared]()
    while todo:
        one = todo.pop(0)
        if isinstance(one, tuple):  # of tables that were joined
            todo[:0] = one
        elif isinstance(one, Shared):
            found.append(one)
    return found if len(found) == table.files else []


Shapes = dict[str, list[tuple[int, ...]]]
Room = dict[str, list[NDArray[Any]] | NDArray[Any]]


def hold(fields: Sequence[Field], count: int, shapes: Shapes, fill: Callable[[Room], None]) -> Held:
    """Allocate ``count`` samples and ``fill`` them; ``shapes`` has those of ragged fields."""
    arrays = _lay_out(fields, count, shapes)
    return _hold(fields, count, arrays, lambda _, data: fill(_views(fields, arrays, data)))


def _lay_out(fields: Sequence[Field], count: int, shapes: Shapes) -> list[Array]:
    """Lay out ``count`` samples, field by field."""
    arrays: list[Array] = []
    end = 0
    for field in fields:
        for shape in shapes[field.name] if field.ragged else [(count, *field.lengths)]:
            size = math.prod(shape) * field.dtype.itemsize
            arrays.append(Array(field.name, field.type, shape, end, size))
            end += -(-size // _ALIGNED) * _ALIGNED
    return arrays


def _hold(
    fields: Sequence[Field],
    count: int,
    arrays: Sequence[Array],
    fill: Callable[[Shared, NDArray[np.uint8]], None],
) -> Held:
    """Allocate memory for ``arrays`` and ``fill`` it."""
    end = arrays[-1].offset + arrays[-1].length if arrays else 0
    memory = Shared(-(-end // _ALIGNED) * _ALIGNED)
    memory.fill(lambda data: fill(memory, data))
    with File(memory.path) as file:
        table = make_table(file, Description("memory", tuple(arrays)))
    return Held(tuple(fields), count, table, memory)


def _views(fields: Sequence[Field], arrays: Sequence[Array], data: NDArray[np.uint8]) -> Room:
    """Return the memory as arrays to fill, by field: one, or one for each ragged sample."""
    found: dict[str, list[NDArray[Any]]] = {field.name: [] for field in fields}
    dtypes = {field.name: field.dtype for field in fields}
    for array in arrays:
        part = data[array.offset : array.offset + array.length]
        found[array.name].append(part.view(dtypes[array.name]).reshape(array.shape))
    return {f.name: found[f.name] if f.ragged else found[f.name][0] for f in fields}


def load_in_memory(ds: "Dataset") -> Held:
    """Load every sample of ``ds`` into shared memory."""
    for group in ds.groups:
        if not group.by_file:  # whole files are compared as they are read
            verify(group.columns)
    fields = list(ds.fields.values())
    every = select_rows(ds.rows, np.arange(len(ds)))
    shapes = {
        column.field.name: [tuple(s) for s in reader_of(group).shapes(group, column, every)]
        for group in ds.groups
        for column in group.columns
        if column.field.ragged
    }
    arrays = _lay_out(fields, len(ds), shapes)
    starts: dict[str, list[int]] = {field.name: [] for field in fields}
    for array in arrays:
        starts[array.name].append(array.offset)
    own = {name: np.array(offsets, np.int64) for name, offsets in starts.items()}
    at_once = max(1, _LOADED_AT_ONCE * len(ds) // max(ds.nbytes, 1))
    cuts = _cut_rows(ds.groups, every, ds.nbytes)

    def fill(memory: Shared, data: NDArray[np.uint8]) -> None:
        loading = _Loading(ds.groups, own, at_once, memory.handle())
        loading.data = data
        with Bar("loading", len(ds)) as bar, closing(_load_all(loading, every, cuts)) as done:
            for count in done:
                bar.advance(count)
        loading.data = None  # a view prevents sealing

    return _hold(fields, len(ds), arrays, fill)


class _Rows(NamedTuple):
    """Samples to load: the row of the first of them in memory, and their numbers in the groups."""

    first: int
    samples: Ints


class _Loading:
    """Loads samples into memory, ``at_once`` at a time, here or in another process.

    ``starts`` has the first byte of each field in memory, or of each sample of a ragged field. All
    processes together keep as many bytes of decoded streams as one that reads: ``share`` of them.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        starts: dict[str, Ints],
        at_once: int,
        handle: Handle,
        share: int = 1,
    ) -> None:
        self._groups = groups
        self._starts = starts
        self._at_once = at_once
        self._handle = handle
        self.share = share
        self.data: NDArray[np.uint8] | None = None
        self._caches: dict[int, Decoded] = {}

    def __reduce__(self) -> "tuple[type[_Loading], tuple[Any, ...]]":
        # Without what this process has open.
        groups = tuple(
            replace(group, columns=tuple(map(replace, group.columns))) for group in self._groups
        )
        return _Loading, (groups, self._starts, self._at_once, self._handle, self.share)

    def load(self, rows: _Rows) -> Iterator[int]:
        """Load some samples; yield how many are done, from time to time."""
        data = attach(self._handle) if self.data is None else self.data
        self.data = data
        for at in range(0, len(rows.samples), self._at_once):
            some = rows.samples[at : at + self._at_once]
            try:
                self._load(data, rows.first + at, some)
            except MemoryError as error:
                path, what = self._groups[0].table.path(0), f"{len(some):,} samples"
                raise platform_calls.translate_os_error(error, path, what) from None
            yield len(some)

    def _load(self, data: NDArray[np.uint8], first: int, samples: Ints) -> None:
        for number, group in enumerate(self._groups):
            if number not in self._caches:
                self._caches[number] = make_cache(group, kept_by_default() // self.share)
            fields = [column.field for column in group.columns]
            even = [field for field in fields if not field.ragged]
            room = {f.name: self._room(data, f, first, len(samples)) for f in even}
            decoded = self._caches[number]
            for target in reader_of(group).fill(group, samples, room, decoded):
                field = target.column.field
                if field.ragged:
                    starts = self._starts[field.name][first : first + len(samples)].tolist()
                    for start, value in zip(starts, target.ragged, strict=True):
                        place = data[start : start + value.nbytes].view(field.dtype)
                        place.reshape(value.shape)[...] = value

    def _room(self, data: NDArray[np.uint8], field: Field, first: int, count: int) -> NDArray[Any]:
        """Return the memory of some samples of one shape."""
        size = math.prod(field.lengths) * field.dtype.itemsize
        start = int(self._starts[field.name][0]) + first * size
        part = data[start : start + count * size].view(field.dtype)
        return part.reshape(count, *field.lengths)


def _load_rows(loading: _Loading, rows: _Rows) -> int:
    return sum(loading.load(rows))


def _load_all(loading: _Loading, samples: Ints, cuts: Sequence[int]) -> Generator[int, None, None]:
    """Load all samples; yield how many are done, from time to time."""
    pieces = [_Rows(a, samples[a:b]) for a, b in pairwise(cuts)]
    for number, rows in enumerate(pieces, 1):
        began = time.perf_counter()
        yield from loading.load(rows)
        each = (time.perf_counter() - began) / len(rows.samples)
        left = each * (len(samples) - rows.first - len(rows.samples))
        # The first piece takes longer: what it needs is imported and allocated.
        if number > 1 and left > processes.WORTH_IT and (useful := useful_processes()):
            loading.share = useful
            yield from map_in_processes(_load_rows, loading, pieces[number:], useful)
            return


def _cut_rows(groups: Sequence[Group], samples: Ints, nbytes: int) -> list[int]:
    """Divide the samples into pieces that processes can load: return where each starts, and ends.

    A compressed stream is never divided: each process would decode it from its start.
    """
    count = len(samples)
    if not count or not _holds_gil(groups):
        return [0, count] if count else [0]
    each = max(nbytes // count, 1)
    size = min(max(_PIECE_BYTES // each, 1), _PIECE_SAMPLES)
    allowed = np.ones(count + 1, bool)
    for group in groups:
        if not group.by_file and any(column.coding.any() for column in group.columns):
            part = np.cumsum(first_of_streams(group))[group.locate(samples).part]
            if (part[1:] < part[:-1]).any():
                return [0, count]  # several pieces would need the same stream
            allowed[1:-1] &= part[1:] != part[:-1]
    cuts = [0]
    for at in np.flatnonzero(allowed).tolist():
        if at - cuts[-1] >= size or at == count:
            cuts.append(at)
    return cuts


def _holds_gil(groups: Sequence[Group]) -> bool:
    """Does loading hold the GIL for long, and can other processes open the same files?"""
    slow = any(g.by_file or any(c.coding.any() for c in g.columns) for g in groups)
    return slow and all(group.table.owner is None for group in groups)


_memory_of_zeros: list[Shared] = []  # one for all that need no more


def make_constant(fields: Sequence[Field], count: int, number: int | None = None) -> Group:
    """Make ``count`` samples that take no memory: zeros, or ``number`` in integer fields.

    Ragged samples have no elements.
    """
    arrays: list[Array] = []
    for field in fields:
        shape = (count, *((0,) if field.shape is None else field.lengths))
        size = field.dtype.itemsize
        if number is None:
            strides = (0,) * len(shape)
            arrays.append(Array(field.name, field.type, shape, 0, size, strides=strides))
        else:
            arrays.append(Array(field.name, field.type, shape, number, 0, coding=INLINE))
    memory = _zeros(max(field.dtype.itemsize for field in fields))
    with File(memory.path) as file:
        table = with_memory(make_table(file, Description("memory", tuple(arrays))), memory)
    columns = tuple(
        Column(replace(field, shape=array.shape[1:]), table, np.array([at]), np.zeros(1, bool))
        for at, (field, array) in enumerate(zip(fields, arrays, strict=True))
    )
    return Group(np.array([0, count]), columns)


def _zeros(size: int) -> Shared:
    """Return memory of at least ``size`` zeros."""
    if _memory_of_zeros and size <= _ZEROS:
        return _memory_of_zeros[0]
    made = Shared(max(size, _ZEROS))
    made.fill(lambda data: None)
    if size <= _ZEROS:
        _memory_of_zeros.append(made)
    return made
