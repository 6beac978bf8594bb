"""A dataset: samples of several fields, read in any order.

It is a value: groups of columns, a choice of rows, steps to take on every batch. Views
(``select``, ``take``, ``split``, ``map``, ``+``) are new values over the same files. It pickles
as the way it was made, in a few kilobytes, and opens its files when it first reads.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndfeed.dataset import fingerprint, show
from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.field import Field
from ndfeed.dataset.join import joined
from ndfeed.dataset.members import verify
from ndfeed.dataset.memory import Held, Room, hold
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.rowset import Rows, Travelling, as_rows, chosen, composed, one_row
from ndfeed.dataset.step import Batch, Given, Map, Select, Step, fields_of, stepped
from ndfeed.dataset.target import check_fits
from ndfeed.errors import Error, FieldError, SchemaError
from ndfeed.files import system
from ndfeed.index.table import Ints
from ndfeed.progress import Bar

Made = tuple[Callable[..., "Dataset"], tuple[Any, ...]]

_LOADED_AT_ONCE = 64 << 20


class Files(Sequence[str]):
    """The files of a dataset, in order, as text made when asked for."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._tables = list({id(group.table): group.table for group in groups}.values())
        self._ends = np.cumsum([table.files for table in self._tables]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        which = int(np.searchsorted(self._ends, at, side="right"))
        table = self._tables[which]
        return os.fsdecode(table.path(at - (self._ends[which] - table.files)))

    def __repr__(self) -> str:
        return f"<{len(self):,} files, first {self[0]!r}>"


class Dataset:
    """Samples of several fields in files, read in any order; made by ``ndfeed.open``.

    ``ds[7]`` is one sample, ``ds[10:20]``, ``ds[[3, 1, 4]]`` and ``ds[mask]`` are batches: dicts
    of arrays that are the caller's own, writable, in C order and native byte order. A field
    whose samples differ in shape comes as a list of arrays in a batch.

    ``groups``, ``rows``, ``steps`` and ``names``, those of the stored fields, are what a loader
    works with; ``why`` says why samples were understood as they were.
    """

    def __init__(
        self,
        groups: tuple[Group, ...],
        made: Made,
        *,
        rows: Rows = None,
        steps: tuple[Step, ...] = (),
        why: str = "",
        names: tuple[str, ...] = (),
        origin: str = "",
    ) -> None:
        self.groups = groups
        self.rows = rows
        self.steps = steps
        self.why = why
        self._made = made
        self._origin = origin  # fingerprint of all the groups' samples, where they cannot tell
        self.names = names or tuple(c.field.name for group in groups for c in group.columns)
        self._count = len(groups[0]) if rows is None else len(rows)
        self._empty: Batch = dict.fromkeys(self.names)
        self._fields: dict[str, Field] | None = None
        self._fingerprint: str | None = None
        self._parts: dict[tuple[str, ...], Dataset] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields by name. Behind a ``map`` they are learned by running it on one sample."""
        if self._fields is None:
            stored = {column.field.name: column.field for column in self._columns()}
            mapped = self.steps and len(self)
            self._fields = (
                fields_of(self.read([0])) if mapped else {name: stored[name] for name in self.names}
            )
        return dict(self._fields)

    @property
    def nbytes(self) -> int:
        """Bytes of all samples as read, before any ``map``."""
        return sum(self._bytes_of(c, group) for group in self.groups for c in group.columns)

    def _bytes_of(self, column: Column, group: Group) -> int:
        if column.even:
            return int(column.nbytes[0]) * len(self)
        if self.rows is None:
            return column.total(group.starts)
        samples = chosen(self.rows, np.arange(len(self)))
        if column.offsets is None:
            return int(column.nbytes[group.locate(samples).part].sum())
        shapes = reader_of(group).shapes(group, column, samples)
        return sum(math.prod(shape) for shape in shapes) * column.field.dtype.itemsize

    @property
    def files(self) -> Sequence[str]:
        """The files that hold the samples."""
        return Files(self.groups)

    @property
    def skipped(self) -> list[Error]:
        """What was wrong with the files that ``ndfeed.open(..., on_error="skip")`` left out."""
        return [e for t in dict.fromkeys(g.table for g in self.groups) for e in t.skipped]

    @property
    def fingerprint(self) -> str:
        """Short text that says which samples these are, and in which order.

        A copy of the files elsewhere has the same, and so has ``in_memory()``.
        """
        if self._fingerprint is None:
            all_of_them = self._origin or fingerprint.of_groups(self.groups)
            self._fingerprint = fingerprint.of_rows(all_of_them, self.rows)
        return self._fingerprint

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: SupportsIndex | slice | ArrayLike) -> Batch:
        if isinstance(index, slice):
            return self.read(np.arange(*index.indices(len(self))))
        at = one_row(index, len(self))
        if at is None:
            return self.read(as_rows(index, len(self), from_end=True))  # type: ignore[arg-type]
        batch = self.read([at])
        # With the dots an array of its own even where a sample is one number.
        return {k: v[0, ...] if isinstance(v, np.ndarray) else v[0] for k, v in batch.items()}

    def read(self, rows: ArrayLike, *, rng: np.random.Generator | None = None) -> Batch:
        """The samples ``rows``, in that order, in memory of the caller's own.

        Rows must be in [0, len(self)). A function given to ``map`` that takes ``rng`` gets this
        one, or one fixed by the rows: the same read gives the same batch.
        """
        wanted = as_rows(rows, self._count)
        samples = wanted if self.rows is None else chosen(self.rows, wanted)
        batch: Batch = self._empty.copy()  # has the names in their order
        try:
            for group in self.groups:
                reader_of(group).read(group, samples, batch)
        except MemoryError as error:
            what = f"{len(wanted):,} samples"
            raise system.as_ours(error, self.groups[0].table.path(0), what) from None
        return self._stepped(batch, wanted, rng) if self.steps else batch

    def _stepped(self, batch: Batch, rows: Ints, rng: np.random.Generator | None) -> Batch:
        if rng is None and any(step.random for step in self.steps):
            digest = hashlib.sha256(rows.tobytes()).digest()
            rng = np.random.default_rng(int.from_bytes(digest, "little"))
        return stepped(batch, self.steps, None if rng is None else Given(rng))

    def read_into(
        self,
        rows: ArrayLike,
        out: Mapping[str, NDArray[Any]],
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        """Copy sample ``rows[i]`` of every field in ``out`` to ``out[name][i]``.

        The arrays must be writable, in C order, of the fields' dtypes, one sample long for each
        row. After any error their contents are unspecified. Behind a ``map`` the result is
        copied; without one the samples are read straight into ``out``.
        """
        wanted = as_rows(rows, len(self))
        if self.steps:
            made = Select(tuple(out))(self.read(wanted, rng=rng))
            for name, field in fields_of(made).items():
                check_fits(field, out[name], len(wanted))
                out[name][...] = made[name]
            return
        if set(out) != set(self.names):
            names = tuple(out)
            if names not in self._parts:
                self._parts[names] = self.select(*names)
            self._parts[names].read_into(wanted, out)
            return
        samples = chosen(self.rows, wanted)
        for column in self._columns():
            check_fits(column.field, out[column.field.name], len(wanted))
        for group in self.groups:
            reader_of(group).fill(group, samples, out)

    def select(self, *names: str) -> "Dataset":
        """The same samples with these fields only, in this order."""
        if not names:
            raise ValueError("select at least one field")
        if self.steps:
            return self._like(Dataset.select, *names, steps=(*self.steps, Select(names)))
        for name in names:
            if name not in self.names:
                raise FieldError(name, self.names, self.files[0])
        kept = [
            replace(group, columns=tuple(c for c in group.columns if c.field.name in names))
            for group in self.groups
        ]
        groups = tuple(group for group in kept if group.columns)
        return self._like(Dataset.select, *names, groups=groups, names=names)

    def take(self, rows: ArrayLike | slice) -> "Dataset":
        """The samples ``rows`` as a dataset: a slice, row numbers, or a mask."""
        taken: range | Ints
        if isinstance(rows, Travelling):
            taken = rows.rows
        elif isinstance(rows, slice):
            taken = range(len(self))[rows]
        else:
            taken = as_rows(rows, len(self), from_end=True)
        return self._like(Dataset.take, Travelling(taken), rows=composed(self.rows, taken))

    def split(self, fraction: float, *, seed: int = 0) -> "tuple[Dataset, Dataset]":
        """Two datasets: a random ``fraction`` of the samples, and the others.

        Fixed by the seed. Within each the samples keep their order.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be in [0, 1], got {fraction}")
        return _split(self, fraction, seed, 0), _split(self, fraction, seed, 1)

    def map(self, function: Callable[..., Mapping[str, Any]], *, batched: bool = True) -> "Dataset":
        """The dataset with ``function`` applied to every batch that is read.

        It gets a dict of arrays and returns one. With ``batched=False`` it gets single samples.
        If it has a parameter ``rng`` it is given a random generator fixed by what is read.
        """
        if not callable(function):
            raise TypeError(f"map takes a function, got {type(function).__name__}")
        return self._like(_map, function, batched, steps=(*self.steps, Map.of(function, batched)))

    def __add__(self, other: "Dataset") -> "Dataset":
        if not isinstance(other, Dataset):
            return NotImplemented
        if self.steps != other.steps:
            raise SchemaError(self.files[0], "behind another map; add datasets first, then map")
        rows: Rows = None
        origin = ""
        if self._origin or other._origin:
            origin = fingerprint.of_both(self.fingerprint, other.fingerprint)
        if self.rows is not None or other.rows is not None:
            mine, theirs = (chosen(d.rows, np.arange(len(d))) for d in (self, other))
            rows = np.concatenate([mine, theirs + len(self.groups[0])])
        return self._like(
            Dataset.__add__,
            other,
            groups=joined(self.groups, other.groups),
            rows=rows,
            origin=origin,
            why=self.why if self.why == other.why else f"{self.why}; {other.why}",
        )

    def in_memory(self) -> "Dataset":
        """The same samples, decoded once into shared memory: one copy for all processes.

        Forked and spawned processes map the same pages. A ``map`` still runs at every read.
        """
        stored = Dataset(self.groups, self._made, rows=self.rows, names=self.names)
        return _in_memory(_loaded(stored), self.steps, self.why, self.fingerprint)

    def __reduce__(self) -> Made:
        return self._made

    def __repr__(self) -> str:
        return show.table(self)

    def _columns(self) -> list[Column]:
        return [column for group in self.groups for column in group.columns]

    def _like(self, made: Callable[..., "Dataset"], *args: object, **changes: Any) -> "Dataset":  # noqa: ANN401
        """A view: this dataset with something changed, by ``made(self, *args)``."""
        own: dict[str, Any] = {
            "groups": self.groups,
            "rows": self.rows,
            "steps": self.steps,
            "why": self.why,
            "names": self.names,
            "origin": self._origin,
        }
        own |= changes
        return Dataset(own.pop("groups"), (made, (self, *args)), **own)


def _map(ds: Dataset, function: Callable[..., Mapping[str, Any]], batched: bool) -> Dataset:
    return ds.map(function, batched=batched)


def _split(ds: Dataset, fraction: float, seed: int, which: int) -> Dataset:
    """One of the two parts of a split."""
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, len(ds)])))
    order = rng.permutation(len(ds))
    cut = round(fraction * len(ds))
    rows: Ints = np.sort(order[:cut] if which == 0 else order[cut:])
    return ds._like(_split, fraction, seed, which, rows=composed(ds.rows, rows))


def _in_memory(held: Held, steps: tuple[Step, ...], why: str, origin: str) -> Dataset:
    names = tuple(field.name for field in held.fields)
    made: Made = _in_memory, (held, steps, why, origin)
    return Dataset(held.groups(), made, steps=steps, why=why, names=names, origin=origin)


def _loaded(ds: Dataset) -> Held:
    """Every sample of ``ds`` in shared memory."""
    for group in ds.groups:
        if not group.by_file:  # whole files are compared as they are read
            verify(group.columns)
    fields = list(ds.fields.values())
    every = chosen(ds.rows, np.arange(len(ds)))
    shapes = {
        column.field.name: [tuple(s) for s in reader_of(group).shapes(group, column, every)]
        for group in ds.groups
        for column in group.columns
        if column.field.ragged
    }
    at_once = max(1, _LOADED_AT_ONCE * len(ds) // max(ds.nbytes, 1))

    def fill(room: Room) -> None:
        even = [field.name for field in fields if not field.ragged]
        uneven = ds.select(*shapes) if shapes else None
        with Bar("loading", len(ds)) as bar:
            for start in range(0, len(ds), at_once):
                rows = np.arange(start, min(start + at_once, len(ds)))
                if even:
                    ds.read_into(rows, {name: room[name][start : rows[-1] + 1] for name in even})  # type: ignore[misc]
                for name, values in uneven.read(rows).items() if uneven is not None else ():
                    for row, value in zip(rows.tolist(), values, strict=True):
                        room[name][row][...] = value
                bar.advance(len(rows))

    return hold(fields, len(ds), shapes, fill)
