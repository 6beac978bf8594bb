"""A dataset: samples of several fields, read in any order.

It is an immutable value: groups of columns, a selection of rows, steps that run on every batch.
Views (``select``, ``take``, ``split``, ``map``, ``+``) are new values over the same files. It
pickles as the way it was made, in a few kilobytes, and opens its files when it first reads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndfeed.dataset import samples
from ndfeed.dataset.choosing import check_addable, check_fixed, check_unnumbered
from ndfeed.dataset.column import Field, Group, columns_of
from ndfeed.dataset.destination import check_fits
from ndfeed.dataset.in_memory import Held, Room, hold, load_in_memory
from ndfeed.dataset.join import agreed_names, join_groups, rename_fields, renamed_names, route_steps
from ndfeed.dataset.labels import Classes, join_classes, rename_classes
from ndfeed.dataset.map_fields import (
    differing_fields,
    guess_fields,
    learn_fields,
    with_lists,
)
from ndfeed.dataset.map_steps import (
    Batch,
    Beside,
    Map,
    Rename,
    Select,
    Step,
    apply_steps_alone,
    fields_of,
)
from ndfeed.dataset.origins import Origin, is_memory, join_origins
from ndfeed.dataset.proportions import Proportions
from ndfeed.dataset.reader import reader_of
from ndfeed.dataset.remake import fixed, repeatable
from ndfeed.dataset.row_selection import (
    Drawn,
    Rows,
    as_rows,
    draw_rows,
    join_rows,
    one_row,
    select_rows,
)
from ndfeed.dataset.sampling import Sampling
from ndfeed.dataset.stored import join_fingerprints
from ndfeed.errors import Error, FieldError
from ndfeed.files import platform_calls
from ndfeed.index.table import Ints

Made = tuple[Callable[..., "Dataset"], tuple[Any, ...]]


class Dataset(Sampling):
    """Samples of several fields in files, read in any order; made by ``ndfeed.open``.

    ``ds[7]`` is one sample, ``ds[10:20]``, ``ds[[3, 1, 4]]`` and ``ds[mask]`` are batches: dicts
    of arrays that belong to the caller, writable, in C order and native byte order. A field
    whose samples differ in shape comes as a list of arrays in a batch.

    ``groups``, ``rows``, ``steps`` and ``names``, those of the stored fields, are what a loader
    works with; ``why`` says why samples were interpreted as they were.
    """

    def __init__(  # noqa: PLR0913 - a view changes any of them
        self,
        groups: tuple[Group, ...],
        made: Made,
        *,
        rows: Rows = None,
        steps: tuple[Step, ...] = (),
        why: str = "",
        names: tuple[str, ...] = (),
        identity: str = "",
        origins: tuple[Origin, ...] = (),
        numbered: bool = False,
        skipped: tuple[Error, ...] = (),
        classes: Classes | None = None,
        mixture: Proportions | None = None,
    ) -> None:
        super().__init__(groups, rows, identity, origins, skipped)
        self._classes = classes or {}
        self.numbered = numbered  # are there fields that number the files of these samples?
        self.mixture = mixture  # in which proportions a loader interleaves its sources
        self.steps = steps
        self.why = why
        self.names = names or tuple(c.field.name for c in columns_of(groups))
        self._made = made
        self._empty: Batch = dict.fromkeys(self.names)
        self._fields: dict[str, Field] | None = None
        self._differing: Mapping[str, Field] | None = None
        self._parts: dict[tuple[str, ...], Dataset] = {}

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields by name. After a ``map`` they are learned by running it on a few samples."""
        if self._fields is None and self.steps and len(self):
            self._fields = learn_fields(self, self._read_and_map)
        elif self._fields is None and self.steps:
            self._fields = guess_fields(self, self._read_and_map)
        elif self._fields is None:
            stored = {column.field.name: column.field for column in columns_of(self.groups)}
            self._fields = {name: stored[name] for name in self.names}
        return dict(self._fields)

    def _known_fields(self) -> Mapping[str, Field]:
        """The fields, as far as they are known without reading a sample."""
        return self.fields if len(self) or not self.steps else {}

    def _without_maps(self) -> "Dataset":
        return Dataset(self.groups, self._made, rows=self.rows, names=self.names)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: SupportsIndex | slice | ArrayLike) -> Batch:
        if isinstance(index, slice):
            return self.read(np.arange(*index.indices(len(self))))
        at = one_row(index, len(self))
        if at is None:
            return self.read(as_rows(index, len(self), from_end=True))
        batch = self._read_and_map(np.array([at]))
        # The ellipsis keeps it an array even where a sample is one number.
        return {k: v[0, ...] if isinstance(v, np.ndarray) else v[0] for k, v in batch.items()}

    def read(self, rows: ArrayLike, *, rng: np.random.Generator | None = None) -> Batch:
        """Read the samples ``rows``, in that order, into new arrays.

        Rows must be in [0, len(self)). A function given to ``map`` that takes ``rng`` gets this
        one, or one fixed by the rows: the same read gives the same batch. A field that a map makes
        ragged is a list, as in a loader's batches.
        """
        wanted = as_rows(rows, self._count)
        batch = self._read_and_map(wanted, rng)
        return with_lists(batch, self._find_differing()) if self.steps else batch

    def _read_and_map(self, wanted: Ints, rng: np.random.Generator | None = None) -> Batch:
        """Read rows that are in range, and apply the steps."""
        drawn = wanted if rng is None else draw_rows(self.rows, wanted, rng)
        samples = drawn if self.rows is None else select_rows(self.rows, drawn)
        batch: Batch = self._empty.copy()  # has the names in their order
        try:
            for group in self.groups:
                reader_of(group).read(group, samples, batch)
        except MemoryError as error:
            raise _translate(error, self.groups[0], len(wanted)) from None
        return apply_steps_alone(batch, self.steps, wanted, rng) if self.steps else batch

    def _find_differing(self) -> Mapping[str, Field]:
        if self._differing is None:
            self._differing = differing_fields(self, self._known_fields)
        return self._differing

    def read_into(
        self,
        rows: ArrayLike,
        out: Mapping[str, NDArray[Any]],
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        """Copy sample ``rows[i]`` of every field in ``out`` to ``out[name][i]``.

        The arrays must be writable, in C order, of the fields' dtypes, one sample long for each
        row. After any error their contents are unspecified. After a ``map`` the result is copied;
        without one the samples are read straight into ``out``.
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
        samples = select_rows(self.rows, wanted)
        for column in columns_of(self.groups):
            check_fits(column.field, out[column.field.name], len(wanted))
        for group in self.groups:
            reader_of(group).fill(group, samples, out)

    def select(self, *names: str) -> "Dataset":
        """Return the same samples with these fields only, in this order."""
        if not names:
            raise ValueError("select at least one field")
        given: list[object] = list(names)
        if not all(isinstance(name, str) for name in given):
            raise TypeError(f'select takes names: select("image", "label"), got {names!r:.80}')
        own = rename_classes(self._classes, {name: name for name in names})
        if self.steps:
            steps = (*self.steps, Select(names))
            return self.view(Dataset.select, *names, steps=steps, classes=own)
        for name in names:
            if name not in self.names:
                raise FieldError(name, self.names, self.first_file)
        kept = [
            replace(group, columns=tuple(c for c in group.columns if c.field.name in names))
            for group in self.groups
        ]
        groups = tuple(group for group in kept if group.columns)
        return self.view(Dataset.select, *names, groups=groups, names=names, classes=own)

    def rename(self, names: Mapping[str, str]) -> "Dataset":
        """Return the same samples with other names for some fields: ``{"data": "image"}``."""
        if not isinstance(names, Mapping):
            raise TypeError(f'rename takes a dict such as {{"data": "image"}}, got {names!r}')
        new: list[object] = list(names.values())
        if not all(isinstance(name, str) and name for name in new):
            raise TypeError(f"names of fields must be text, got {new!r}")
        made = renamed_names(list(self._known_fields()), names, self.first_file)
        own = rename_classes(self._classes, {n: n for n in self._classes} | dict(names))
        if self.steps:
            steps = (*self.steps, Rename(tuple(names.items())))
            return self.view(Dataset.rename, dict(names), steps=steps, classes=own)
        groups = rename_fields(self.groups, names)
        return self.view(Dataset.rename, dict(names), groups=groups, names=made, classes=own)

    def map(self, function: Callable[..., Mapping[str, Any]], *, batched: bool = True) -> "Dataset":
        """Return the dataset with ``function`` applied to every batch that is read.

        It gets a dict of arrays and returns one. With ``batched=False`` it gets single samples. If
        it has a parameter ``rng``, it gets a random generator that is fixed by what is read.
        """
        if not callable(function):
            raise TypeError(f"map takes a function, got {type(function).__name__}")
        return self.view(_map, function, batched, steps=(*self.steps, Map.of(function, batched)))

    def __add__(self, other: "Dataset") -> "Dataset":
        if not isinstance(other, Dataset):
            return NotImplemented
        for ds in (self, other):
            check_addable(ds)
        if self.steps != other.steps:
            names = agreed_names(self._known_fields(), other._known_fields(), other.first_file)
            return _add_mapped(self, other, names)
        groups = join_groups(self.groups, other.groups)
        beside = _sum(self, other, groups, alike=True)
        return self.view(Dataset.__add__, other, groups=groups, **beside)

    def with_origin(self, *, file: str = "file", row: str = "row") -> "Dataset":
        """Return the dataset with two more fields: the file of each sample, and its row there.

        They are integers, as ``locate`` returns them: ``ds.files[batch["file"][0]]`` is the file of
        a batch's first sample. An earlier ``map`` does not see them. Take, split and add first: the
        numbers are those of this dataset's files. Takes 16 bytes for each sample of the files.
        """
        check_unnumbered(self, "with_origin()")
        check_fixed(self, "with_origin()")
        for name in (file, row):
            if name in self._known_fields() or name in self.names or file == row:
                raise ValueError(f"field {name!r} exists; choose other names with file= and row=")
        return _with_origin(self, file, row)

    def in_memory(self) -> "Dataset":
        """Return the same samples, decoded once into shared memory: one copy for all processes.

        Forked and spawned processes map the same pages. A ``map`` still runs at every read.
        """
        origins = tuple(one.choose(self.rows) for one in self.all_origins())
        beside = self.numbered, tuple(self.skipped), self._classes, self.mixture
        identity = self.fingerprint
        if isinstance(self.rows, Drawn):  # they are drawn once and for all
            identity = join_fingerprints(identity, "in memory")
        kept = _Kept(self.steps, self.why, identity, origins, *beside)
        return _in_memory(load_in_memory(self._without_maps()), kept)

    def __reduce__(self) -> Made:
        return self._made

    def __repr__(self) -> str:
        return samples.table(self)

    def view(self, made: Callable[..., "Dataset"], *args: object, **changes: Any) -> "Dataset":
        """Return this dataset with something changed; it pickles as ``made(self, *args)``."""
        own: dict[str, Any] = {
            "groups": self.groups,
            "rows": self.rows,
            "steps": self.steps,
            "why": self.why,
            "names": self.names,
            "identity": self._identity,
            "origins": self._origins,
            "numbered": self.numbered,
            "skipped": self._skipped,
            "classes": self._classes,
            "mixture": self.mixture,
        }
        own |= changes
        return Dataset(own.pop("groups"), (made, (self, *args)), **own)


def _translate(error: MemoryError, group: Group, count: int) -> Error:
    """Return the error for samples that memory does not hold."""
    return platform_calls.translate_os_error(error, group.table.path(0), f"{count:,} samples")


for _view in (Dataset.select, Dataset.rename, Dataset.__add__):
    repeatable(_view)


@repeatable
def _map(ds: Dataset, function: Callable[..., Mapping[str, Any]], batched: bool) -> Dataset:
    return ds.map(function, batched=batched)


@repeatable
def _with_origin(ds: Dataset, file: str, row: str) -> Dataset:
    """Add two fields that say where each sample lies."""
    fields = [Field(name, np.dtype(np.int64), (), "<i8") for name in (file, row)]

    def fill(room: Room) -> None:
        rows = np.arange(len(ds))
        for name, values in zip((file, row), ds.locate(rows), strict=True):
            room[name][select_rows(ds.rows, rows)] = values

    held = hold(fields, len(ds.groups[0]), {}, fill)
    return ds.view(
        _with_origin,
        file,
        row,
        groups=(*ds.groups, *held.groups()),
        names=(*ds.names, file, row),
        steps=(Beside((file, row), ds.steps),) if ds.steps else (),
        numbered=True,
    )


def _sum(
    first: Dataset, second: Dataset, groups: Sequence[Group], *, alike: bool
) -> dict[str, Any]:
    """Return what a sum has besides groups, names and steps.

    Fingerprint and origins follow from its groups if these are ``alike``, and nothing is noted.
    """
    rows = join_rows(first.rows, len(first), second.rows, len(second), len(first.groups[0]))
    identity = ""
    origins: tuple[Origin, ...] = ()
    # Memory has another name in every process: files beside it cannot tell what is in it.
    named = all(group.table.sealed or not is_memory(group.table).any() for group in groups)
    if first._identity or second._identity or not (alike and named):
        identity = join_fingerprints(first.fingerprint, second.fingerprint)
    if first._origins or second._origins or not alike:
        origins = join_origins(first.all_origins(), second.all_origins())
    why = first.why if first.why == second.why else f"{first.why}; {second.why}"
    more = {"skipped": (*first._skipped, *second._skipped), "classes": join_classes(first, second)}
    return {"rows": rows, "identity": identity, "origins": origins, "why": why, **more}


@repeatable
def _add_mapped(first: Dataset, second: Dataset, names: tuple[str, ...] | None) -> Dataset:
    """Add datasets whose batches go through different steps."""
    sides = (first.groups, first.steps), (second.groups, second.steps)
    groups, step, alike = route_steps(*sides, names)
    beside = _sum(first, second, groups, alike=alike)
    return Dataset(groups, (_add_mapped, (first, second, names)), steps=(step,), **beside)


class _Kept(NamedTuple):
    """What a dataset in memory keeps of the one that was loaded."""

    steps: tuple[Step, ...]
    why: str
    identity: str
    origins: tuple[Origin, ...]
    numbered: bool
    skipped: tuple[Error, ...]
    classes: Classes
    mixture: Proportions | None


@fixed("in_memory()")
def _in_memory(held: Held, kept: _Kept) -> Dataset:
    names = tuple(field.name for field in held.fields)
    return Dataset(held.groups(), (_in_memory, (held, kept)), names=names, **kept._asdict())
