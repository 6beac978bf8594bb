"""The plan: what is written where, divided into tasks that can run in any order.

A plan is JSON, and all that is needed to run any of its tasks, except for the dataset itself. Its
digest covers what it says and what it is made from: the files by name, size and time, the fields,
the functions given to ``map``. So a plan of the same digest makes the same bytes. The manifest has
another digest, which ignores how the work is divided: it shows a later run that everything is done
already.

Tasks follow the source where it is compressed, and are divided between its arrays, so that each is
decoded once. Rows whose place in the target follows another order (``shuffle``, or rows taken in
some order) are then *scattered*: the work goes through the source, and a file beside the plan has
the place of every row. Everywhere else the work goes through the target. The size of a task depends
on the data alone, unless there is little memory.
"""

import bisect
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ndfeed.dataset.column import Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Beside, Map, Routed, Select, Step, all_maps
from ndfeed.formats.manifest import Field
from ndfeed.index.table import Ints
from ndfeed.order.permutation import key_of, permuted
from ndfeed.packing.columns import Columns
from ndfeed.packing.source_rows import Rows
from ndfeed.packing.stored_fields import NAMES

VERSION = 1
_PIECE, _LEAST_PIECE, _PIECES = 64 << 20, 4 << 20, 64
_BATCH = 8 << 20
_IN_FLIGHT = 6  # copies of a batch that may exist at once: read, mapped, cast, end to end
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Plan:
    """What is to be done. ``pieces`` divide the work, ``parts`` the target's rows."""

    fields: tuple[Field, ...]
    rows: int
    first: int  # number of the first part's folder
    parts: tuple[int, ...]
    pieces: tuple[int, ...]
    batch: int  # bytes to work on at a time
    large: int  # bytes of a row that is too large to be in memory whole
    made: int  # approximate bytes of a row after the maps
    scattered: bool
    shuffle: int | None
    names: bool
    spooled: tuple[int, ...]  # ragged fields whose lengths are known only after the maps
    values: tuple[tuple[int | None, ...], ...]  # per part and field: values, as far as known
    source: Mapping[str, Any]  # for the manifest
    digest: str = ""

    def encoded(self) -> bytes:
        """Return the plan as the content of a file."""
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True).encode()

    @classmethod
    def decoded(cls, data: bytes) -> "Plan":
        """Parse the plan in a file that we wrote."""
        found = json.loads(data)
        if found.pop("version") != VERSION:
            raise ValueError("a plan of another version")
        found["fields"] = tuple(
            Field(one["name"], one["dtype"], tuple(one["shape"])) for one in found["fields"]
        )
        for name in ("parts", "pieces", "spooled"):
            found[name] = tuple(found[name])
        found["values"] = tuple(map(tuple, found["values"]))
        return cls(**found)

    @property
    def columns(self) -> Columns:
        """Return the files to write, as far as their sizes are known."""
        return self.columns_with(self.values)

    def columns_with(self, values: tuple[tuple[int | None, ...], ...]) -> Columns:
        """Return the files to write, with these numbers of values."""
        rows = tuple(b - a for a, b in pairwise(self.parts))
        return Columns(self.fields, self.first, rows, values)

    def rows_of(self, targets: Ints) -> Ints:
        """Return the rows of the dataset that go to some rows of the target."""
        if self.shuffle is None or not len(targets):
            return targets
        return permuted(targets, self.rows, key_of("exact", self.shuffle, 0))


@dataclass(frozen=True)
class Wanted:
    """What the caller wants, besides the dataset and its fields."""

    shuffle: int | None = None
    rows_per_part: int | None = None
    names: bool = False
    first: int = 0
    base: str = ""  # the manifest that is appended to
    memory: int = 1 << 30  # for one worker
    row_bytes: int = 0  # approximate size of a sample after the maps


def make_plan(source: Rows, fields: tuple[Field, ...], wanted: Wanted) -> tuple[Plan, Ints | None]:
    """Make the plan, and the place of every row in the order of work if rows are scattered."""
    count = len(source)
    per_part = wanted.rows_per_part or max(count, 1)
    parts = (*range(0, count, per_part), count) if count else (0, 0)
    samples = _Samples(source, wanted.shuffle, count)
    order = None
    if source.cut_by is not None and not samples.rising():
        order = np.argsort(samples.all(), kind="stable")
        samples.order = order
    spooled = tuple(
        i
        for i, field in enumerate(fields)
        if "values" in field.roles and source.ds.steps and field.name != NAMES
    )
    batch = max(min(_BATCH, wanted.memory // _IN_FLIGHT), 1)
    cuts = _cut(source, samples, max(wanted.row_bytes, 1), wanted.memory)
    pieces = sorted({0, count, *cuts, *(() if order is not None else parts)}) if count else [0]
    plan = Plan(
        fields=fields,
        rows=count,
        first=wanted.first,
        parts=parts,
        pieces=tuple(pieces),
        batch=batch,
        large=wanted.memory // _IN_FLIGHT,
        made=wanted.row_bytes,
        scattered=order is not None,
        shuffle=wanted.shuffle,
        names=wanted.names,
        spooled=spooled,
        values=tuple(
            tuple(
                None if i in spooled else _values(source, samples, field, a, b)
                for i, field in enumerate(fields)
            )
            for a, b in pairwise(parts)
        ),
        source={},
    )
    return _signed(plan, source.ds, wanted.base), order


class _Samples:
    """The sample at each place of the work."""

    def __init__(self, source: Rows, shuffle: int | None, count: int) -> None:
        self._source = source
        self._key = None if shuffle is None else key_of("exact", shuffle, 0)
        self.count = count
        self.order: Ints | None = None

    def rows(self, at: Ints) -> Ints:
        """Return the rows of the dataset for rows of the target."""
        if self._key is None or not len(at):
            return at
        return permuted(at, self.count, self._key)

    def __getitem__(self, at: int) -> int:
        where = at if self.order is None else int(self.order[at])
        return int(self._source.samples(self.rows(np.array([where])))[0])

    def __len__(self) -> int:
        return self.count

    def chunks(self) -> Iterator[Ints]:
        """Yield rows of the dataset in the order of the work, some at a time."""
        for start in range(0, self.count, _AT_ONCE):
            at = np.arange(start, min(start + _AT_ONCE, self.count))
            yield self.rows(at if self.order is None else self.order[at])

    def all(self) -> Ints:
        return np.concatenate([self._source.samples(rows) for rows in self.chunks()])

    def rising(self) -> bool:
        """Are samples in ascending order?"""
        return (self._key is None or self.count < 2) and self._source.rising


def _cut(source: Rows, samples: _Samples, row_bytes: int, memory: int) -> list[int]:
    """Return where tasks end: about evenly by bytes, between arrays that are decoded whole."""
    if source.row_bytes is not None:
        each = max(source.row_bytes, row_bytes)
        piece = _piece_bytes(each * len(samples), memory)
        cuts = list(range(0, len(samples), max(piece // each, 1)))
    else:
        total = sum(int(_weights(source, rows, row_bytes).sum()) for rows in samples.chunks())
        piece = _piece_bytes(total, memory)
        cuts, at, filled = [], 0, 0
        for rows in samples.chunks():
            ends = np.cumsum(_weights(source, rows, row_bytes)) + filled
            marks = np.flatnonzero(np.diff(ends // piece, prepend=filled // piece))
            cuts += (at + marks).tolist()
            at, filled = at + len(rows), int(ends[-1])
    group = source.cut_by
    return cuts if group is None else [_between(samples, group, cut) for cut in cuts]


def _weights(source: Rows, rows: Ints, least: int) -> Ints:
    return np.maximum(source.sizes(rows), least)


def _piece_bytes(total: int, memory: int) -> int:
    return max(min(max(total // _PIECES, _LEAST_PIECE), _PIECE, memory), 1)


def _between(samples: _Samples, group: Group, cut: int) -> int:
    """Return the first place from ``cut`` on at which another part of the group starts."""
    if not 0 < cut < len(samples):
        return cut
    part = int(group.locate(np.array([samples[cut]])).part[0])
    if samples[cut - 1] < group.starts[part]:
        return cut
    return bisect.bisect_left(samples, int(group.starts[part + 1]), lo=cut)


def _values(source: Rows, samples: _Samples, field: Field, start: int, stop: int) -> int | None:
    """Count the values of a stored ragged field in rows of the target."""
    if "values" not in field.roles:
        return None
    total = 0
    for at in range(start, stop, _AT_ONCE):
        rows = samples.rows(np.arange(at, min(at + _AT_ONCE, stop)))
        total += int(lengths(field, source.shapes(field.name, rows)).sum())
    return total


def lengths(field: Field, shapes: Ints) -> Ints:
    """Count the values of samples of some shapes."""
    found: Ints = shapes.prod(axis=1) if "shapes" in field.roles else shapes[:, 0]
    return found


def _signed(plan: Plan, ds: Dataset, base: str) -> Plan:
    """Return the plan with its digest, and with the manifest's entry about the source."""
    # How the work is divided changes no byte, unless a map sees a batch.
    alike = replace(plan, pieces=(), large=0, batch=plan.batch if ds.steps else 0)
    digest = hashlib.sha256(alike.encoded())
    digest.update(f"{ds.fingerprint} {base}".encode())
    for table in {id(group.table): group.table for group in ds.groups}.values():
        digest.update(np.ascontiguousarray(table.identity[:, 2:4]).data)
    for step in ds.steps:
        digest.update(_step(step).encode())
    name = digest.hexdigest()[:32]
    cut = hashlib.sha256(f"{name} {plan.pieces} {plan.batch}".encode())
    source = {
        "base": base,
        "fingerprint": ds.fingerprint,
        "first": plan.first,
        "maps": map_names(ds),
        "names": plan.names,
        "plan": name,
        "rows": plan.rows,
        "shuffle": plan.shuffle,
    }
    return replace(plan, source=source, digest=cut.hexdigest()[:32])


def map_names(ds: Dataset) -> list[str]:
    """List the functions given to ``map``, by name."""
    return [_name(step.function) for step in all_maps(ds.steps)]


def _step(step: Step) -> str:
    """Describe a step by what it does, and by the steps it is made of."""
    if isinstance(step, Map):
        return _described(step.function)
    if isinstance(step, Beside):
        return f"beside {step.names} {[_step(one) for one in step.steps]}"
    if isinstance(step, Routed):
        return f"routed {[(way.fields, [*map(_step, way.steps)]) for way in step.routes]}"
    if isinstance(step, Select):
        return repr(step.names)
    return repr(step)


def _name(function: object) -> str:
    inner = getattr(function, "func", function)  # of a functools.partial
    module = getattr(inner, "__module__", None) or type(inner).__module__
    return f"{module}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"


def _described(thing: object) -> str:
    """Describe a function by what it does, as far as possible: its name and its code."""
    code = getattr(getattr(thing, "func", thing), "__code__", None)
    if not callable(thing):
        return repr(thing)
    return f"{_name(thing)} {_code(code)}" if code is not None else _name(thing)


def _code(code: Any) -> str:  # noqa: ANN401 - a code object
    constants = [_code(c) if hasattr(c, "co_code") else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"
