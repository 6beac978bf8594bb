"""The plan: what is written where, divided into tasks that can run in any order.

A plan is JSON, and all that is needed to run any of its tasks, except for the dataset itself. Its
digest covers what it says and what it is made from: the files by name, size and time, the fields,
the functions given to ``map``. So a plan of the same digest makes the same bytes. The manifest has
another digest, which ignores how the work is divided: it shows a later run that everything is done
already.

The work is cut into *pieces*, stretches of rows for one task each. Where the source is compressed,
pieces follow it and are cut between its arrays, so that each is decoded once. Rows whose place in
the target follows another order (``shuffle``, or rows taken in some order) are then *scattered*:
the work goes through the source, and a file beside the plan has the place of every row. Everywhere
else the work goes through the target. The size of a piece depends on the data alone, unless there
is little memory.
"""

import bisect
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from types import CodeType
from typing import Any

import numpy as np

from ndfeed.dataset.column import Group
from ndfeed.dataset.combine import SourceSteps
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.in_memory import memories_of
from ndfeed.dataset.map_steps import Beside, Map, Routed, Select, Step, all_maps
from ndfeed.formats.manifest import Field
from ndfeed.index.table import Ints
from ndfeed.order.permutation import key_of, permuted
from ndfeed.packing.columns import Columns
from ndfeed.packing.request import Pack, Request
from ndfeed.packing.source_rows import NAMES, SourceRows
from ndfeed.packing.stored_fields import count_values

VERSION = 1
_PIECE, _LEAST_PIECE, _PIECES = 64 << 20, 4 << 20, 64
_BATCH = 8 << 20
_IN_FLIGHT = 6  # copies of a batch that may exist at once: read, mapped, cast, end to end
_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class RowsTask:
    """Read the rows of a piece, and write them to their places."""

    number: int


@dataclass(frozen=True, slots=True)
class OffsetsTask:
    """Write where the samples of a ragged field start in a part.

    ``number`` counts through the fields of the first part, then through those of the second.
    """

    number: int


@dataclass(frozen=True, slots=True)
class PlaceTask:
    """Write the ragged values that maps made of a piece, their places being known by now."""

    number: int


@dataclass(frozen=True, slots=True)
class SumsTask:
    """Read blocks that were written in no order, for their checksums."""

    number: int


Task = RowsTask | OffsetsTask | PlaceTask | SumsTask


@dataclass(frozen=True)
class Plan:
    """What is to be done. ``pieces`` divide the work, ``parts`` the target's rows."""

    fields: tuple[Field, ...]
    parts: tuple[int, ...]
    pieces: tuple[int, ...]
    batch: int  # bytes to work on at a time
    large: int  # bytes of a row that is too large to be in memory whole
    made: int  # approximate bytes of a row after the maps
    scattered: bool
    spooled: tuple[int, ...]  # ragged fields whose lengths are known only after the maps
    values: tuple[tuple[int | None, ...], ...]  # per part and field: values, as far as known
    pack: Pack  # for the manifest
    digest: str = ""

    def contents(self) -> dict[str, Any]:
        """Return what the plan's file holds. Interrupted packs are found by a digest of it."""
        found = asdict(self)
        del found["pack"]
        repeated = {
            name: getattr(self.pack, name) for name in ("first", "names", "rows", "shuffle")
        }
        return {"version": VERSION, **found, **repeated, "source": self.pack._asdict()}

    def encode(self) -> bytes:
        """Return the plan as the content of a file."""
        return json.dumps(self.contents(), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Plan":
        """Parse the plan in a file that we wrote."""
        found = json.loads(data)
        if found.pop("version") != VERSION:
            raise ValueError("a plan of another version")
        fields = (Field(one["name"], one["dtype"], tuple(one["shape"])) for one in found["fields"])
        return cls(
            tuple(fields),
            tuple(found["parts"]),
            tuple(found["pieces"]),
            found["batch"],
            found["large"],
            found["made"],
            found["scattered"],
            tuple(found["spooled"]),
            tuple(map(tuple, found["values"])),
            Pack(**found["source"]),
            found["digest"],
        )

    @property
    def rows(self) -> int:
        """Rows to pack."""
        return self.pack.rows

    @property
    def in_order(self) -> bool:
        """Are rows read and written in the order of the dataset?"""
        return self.pack.shuffle is None and not self.scattered

    @property
    def columns(self) -> Columns:
        """The files to write, as far as their sizes are known."""
        return self.columns_with(self.values)

    def columns_with(self, values: tuple[tuple[int | None, ...], ...]) -> Columns:
        """Return the files to write, with these numbers of values."""
        rows = tuple(b - a for a, b in pairwise(self.parts))
        return Columns(self.fields, self.pack.first, rows, values)

    def rows_of(self, targets: Ints) -> Ints:
        """Return the rows of the dataset that go to some rows of the target."""
        return shuffle_rows(targets, self.rows, self.pack.shuffle)

    def rows_tasks(self) -> list[Task]:
        """Return the tasks that read the rows of every piece."""
        return [RowsTask(n) for n in range(len(self.pieces) - 1)]

    def offsets_tasks(self) -> list[Task]:
        """Return the tasks that write the offsets of every ragged field."""
        count = len(self.fields)
        ragged = [i for i, field in enumerate(self.fields) if "values" in field.roles]
        return [OffsetsTask(part * count + i) for part in range(len(self.values)) for i in ragged]

    def place_tasks(self) -> list[Task]:
        """Return the tasks that write spooled values to their places."""
        return [PlaceTask(n) for n in range(len(self.pieces) - 1)] if self.spooled else []

    def sums_tasks(self, columns: Columns) -> list[Task]:
        """Return the tasks that read what was written in no order."""
        return [SumsTask(n) for n in range(len(columns.sum_ranges()))] if self.scattered else []


def shuffle_rows(targets: Ints, count: int, shuffle: int | None) -> Ints:
    """Return the rows of a dataset of ``count`` rows that a shuffle moves to rows of the target."""
    if shuffle is None or not len(targets):
        return targets
    return permuted(targets, count, key_of("exact", shuffle, 0))


def make_plan(
    request: Request, fields: tuple[Field, ...], row_bytes: int, first: int = 0, base: str = ""
) -> tuple[Plan, Ints | None]:
    """Make the plan, and the place of every row in the order of work if rows are scattered.

    ``row_bytes`` is the approximate size of a sample after the maps, ``first`` the number of the
    first part, and ``base`` the digest of the manifest that is appended to.
    """
    source, memory = request.source, request.memory
    count = len(source)
    per_part = request.rows_per_part or max(count, 1)
    parts = (*range(0, count, per_part), count) if count else (0, 0)
    work = _Work(source, request.shuffle)
    if source.decoded_group is not None and not work.is_ascending():
        work.order = np.argsort(work.all(), kind="stable")
    scattered = work.order is not None
    spooled = tuple(
        i
        for i, field in enumerate(fields)
        if "values" in field.roles and source.ds.steps and field.name != NAMES
    )
    cuts = _cut_work(source, work, max(row_bytes, 1), memory)
    pieces = sorted({0, count, *cuts, *(() if scattered else parts)}) if count else [0]
    pack = Pack(
        base=base,
        fingerprint=source.ds.fingerprint,
        first=first,
        maps=map_names(source.ds),
        names=source.names,
        plan="",
        rows=count,
        shuffle=request.shuffle,
    )
    plan = Plan(
        fields=fields,
        parts=parts,
        pieces=tuple(pieces),
        batch=max(min(_BATCH, memory // _IN_FLIGHT), 1),
        large=memory // _IN_FLIGHT,
        made=row_bytes,
        scattered=scattered,
        spooled=spooled,
        values=tuple(
            tuple(
                None if i in spooled else _count_part(source, work, field, a, b)
                for i, field in enumerate(fields)
            )
            for a, b in pairwise(parts)
        ),
        pack=pack,
    )
    return _add_digests(plan, source.ds), work.order


class _Work:
    """The sample at each place of the work."""

    def __init__(self, source: SourceRows, shuffle: int | None) -> None:
        self._source = source
        self._shuffle = shuffle
        self.order: Ints | None = None

    def rows(self, at: Ints) -> Ints:
        """Return the rows of the dataset for rows of the target."""
        return shuffle_rows(at, len(self), self._shuffle)

    def __getitem__(self, at: int) -> int:
        where = at if self.order is None else int(self.order[at])
        return int(self._source.samples(self.rows(np.array([where])))[0])

    def __len__(self) -> int:
        return len(self._source)

    def chunks(self) -> Iterator[Ints]:
        """Yield rows of the dataset in the order of the work, some at a time."""
        for start in range(0, len(self), _AT_ONCE):
            at = np.arange(start, min(start + _AT_ONCE, len(self)))
            yield self.rows(at if self.order is None else self.order[at])

    def all(self) -> Ints:
        """Return all samples in the order of the target."""
        return np.concatenate([self._source.samples(rows) for rows in self.chunks()])

    def is_ascending(self) -> bool:
        """Are samples in ascending order?"""
        return (self._shuffle is None or len(self) < 2) and self._source.is_ascending


def _cut_work(source: SourceRows, work: _Work, row_bytes: int, memory: int) -> list[int]:
    """Return where pieces end: about evenly by bytes, between arrays that are decoded whole."""
    if source.row_bytes is not None:
        each = max(source.row_bytes, row_bytes)
        piece = _piece_bytes(each * len(work), memory)
        cuts = list(range(0, len(work), max(piece // each, 1)))
    else:
        total = sum(int(_weights(source, rows, row_bytes).sum()) for rows in work.chunks())
        piece = _piece_bytes(total, memory)
        cuts, at, filled = [], 0, 0
        for rows in work.chunks():
            ends = np.cumsum(_weights(source, rows, row_bytes)) + filled
            marks = np.flatnonzero(np.diff(ends // piece, prepend=filled // piece))
            cuts += (at + marks).tolist()
            at, filled = at + len(rows), int(ends[-1])
    group = source.decoded_group
    return cuts if group is None else [_move_cut(work, group, cut) for cut in cuts]


def _weights(source: SourceRows, rows: Ints, least: int) -> Ints:
    return np.maximum(source.sizes(rows), least)


def _piece_bytes(total: int, memory: int) -> int:
    return max(min(max(total // _PIECES, _LEAST_PIECE), _PIECE, memory), 1)


def _move_cut(work: _Work, group: Group, cut: int) -> int:
    """Return the first place from ``cut`` on at which another part of the group starts."""
    if not 0 < cut < len(work):
        return cut
    part = int(group.locate(np.array([work[cut]])).part[0])
    if work[cut - 1] < group.starts[part]:
        return cut
    return bisect.bisect_left(work, int(group.starts[part + 1]), lo=cut)


def _count_part(source: SourceRows, work: _Work, field: Field, start: int, stop: int) -> int | None:
    """Count the values of a stored ragged field in rows of the target."""
    if "values" not in field.roles:
        return None
    total = 0
    for at in range(start, stop, _AT_ONCE):
        rows = work.rows(np.arange(at, min(at + _AT_ONCE, stop)))
        total += int(count_values(field, source.shapes(field.name, rows)).sum())
    return total


def _add_digests(plan: Plan, ds: Dataset) -> Plan:
    """Return the plan with the digest of what it makes, and with its own."""
    # How the work is divided changes no byte, unless a map sees a batch.
    ignored = {"pieces": (), "large": 0, "source": {}} | ({} if ds.steps else {"batch": 0})
    digest = hashlib.sha256(json.dumps(plan.contents() | ignored, sort_keys=True).encode())
    digest.update(f"{ds.fingerprint} {plan.pack.base}".encode())
    for table in {id(group.table): group.table for group in ds.groups}.values():
        # Memory has no time that another run would find again, but it can be read at once.
        memories = memories_of(table)
        for memory in memories:
            digest.update(memory.view().data)
        if not memories:
            digest.update(np.ascontiguousarray(table.identity[:, 2:4]).data)
    for step in ds.steps:
        digest.update(describe_step(step).encode())
    name = digest.hexdigest()[:32]
    own = hashlib.sha256(f"{name} {plan.pieces} {plan.batch}".encode()).hexdigest()[:32]
    return replace(plan, pack=plan.pack._replace(plan=name), digest=own)


def map_names(ds: Dataset) -> list[str]:
    """List the functions given to ``map``, by name."""
    return [_name_function(step.function) for step in all_maps(ds.steps)]


def describe_step(step: Step) -> str:
    """Describe a step by what it does, and by the steps it is made of."""
    if isinstance(step, Map):
        return _describe_function(step.function)
    if isinstance(step, Beside):
        return f"beside {step.names} {[describe_step(one) for one in step.steps]}"
    if isinstance(step, SourceSteps):
        return f"source {step.fields} {[describe_step(one) for one in step.steps]}"
    if isinstance(step, Routed):
        return f"routed {[(way.fields, [*map(describe_step, way.steps)]) for way in step.routes]}"
    if isinstance(step, Select):
        return repr(step.names)
    return repr(step)


def _name_function(function: object) -> str:
    inner = getattr(function, "func", function)  # of a functools.partial
    module = getattr(inner, "__module__", None) or type(inner).__module__
    return f"{module}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"


def _describe_function(thing: object) -> str:
    """Describe a function by what it does, as far as possible: its name and its code."""
    code = getattr(getattr(thing, "func", thing), "__code__", None)
    if not callable(thing):
        return repr(thing)
    return (
        f"{_name_function(thing)} {_describe_code(code)}"
        if code is not None
        else _name_function(thing)
    )


def _describe_code(code: CodeType) -> str:
    constants = [_describe_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"
