"""Labels for the samples of a dataset: from the names of their files, a table, or an array.

They are one more field, whose group is in memory. Text labels have the classes of the whole table
or mapping: datasets that share it, such as those for training and testing, have the same codes.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from ndfeed.dataset.arrays import Array, as_array, hold_array, is_array, without_index
from ndfeed.dataset.choosing import Choosing, check_fixed
from ndfeed.dataset.column import Field
from ndfeed.dataset.in_memory import Held, Room, hold
from ndfeed.dataset.label_names import (
    REMEDY,
    describe_missing,
    find_doubled,
    list_names,
    match_names,
)
from ndfeed.dataset.label_tables import choose_columns, open_label_table
from ndfeed.dataset.map_steps import Beside, Step
from ndfeed.dataset.remake import Change, Given, not_growing, remade_by, remake
from ndfeed.dataset.row_selection import PartNumbers, find_used, select_rows
from ndfeed.errors import SchemaError
from ndfeed.formats.dtypes import EXTENDED
from ndfeed.index.table import Ints

Classes = Mapping[str, tuple[str, ...]]

_EXACT = 1 << 53  # integers up to here are exact as float64


L = TypeVar("L", bound="Labelled")


def folder_name(path: str) -> str:
    """Return the name of the folder that a file lies in.

    ``ds.with_labels(ndfeed.folder_name)`` labels the files of ``train/cat`` and ``train/dog``.
    """
    return os.path.basename(os.path.dirname(path))


class Labelled(Choosing):
    """What adds labels to a dataset."""

    names: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    _classes: Classes = MappingProxyType({})

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        """The names of the classes of each field whose labels were text; its codes count them."""
        return dict(self._classes)

    def _known_fields(self) -> Mapping[str, Field]:
        raise NotImplementedError

    def with_labels(
        self,
        source: object,
        *,
        field: str = "label",
        column: str | None = None,
        key: str | None = None,
        match: Callable[[str], str] | None = None,
        classes: Sequence[str] | None = None,
    ) -> Self:
        """Return the dataset with one more field: a label for every sample.

        ``source`` is one of these:

        - a function that gets the path of a file and returns the label of its samples: text, a
          number, or an array of numbers. ``ndfeed.folder_name`` is such a function.
        - a mapping of file names to labels. Names may be paths, paths within a folder, or file
          names, also without their suffix, but all of one kind.
        - the path of a .csv, .tsv or .parquet file: ``column`` has the labels and ``key`` the names
          of the files. Either may be left out if there is only one candidate. ``match`` is a
          function of the path that returns the name to look up instead, such as the patient's.
        - an array or a sequence with one label for each sample.

        Every file needs a label; labels of other files are ignored. Text becomes int64 codes, and
        ``ds.classes[field]`` has the names that they stand for: sorted, or in the order of
        ``classes``. Numbers keep their dtype. An earlier ``map`` does not see the field. Labels are
        kept in memory that all processes share.
        """
        if field in self._known_fields() or field in self.names:
            raise ValueError(f"field {field!r} exists; choose another name with field=")
        wanted = _check_classes(classes)
        table = isinstance(source, str | os.PathLike)
        if not table and (column is not None or key is not None):
            raise ValueError("column= and key= are for labels in a .csv, .tsv or .parquet file")
        if match is not None and not (table or isinstance(source, Mapping)):
            raise ValueError("match= is for labels in a table or a mapping, which have names")
        if table or callable(source) or isinstance(source, Mapping):
            how = _How(column, key, match, wanted)
            labels, places = _label_files(self, source, how)
            held = _hold_by_file(self, field, labels.array, places)
            given = Given((source, column, key, match))
            return _add_labels(self, held, field, labels.names, places.by_part, given)
        labels = _label_samples(self, source, wanted)
        return _add_labels(self, _hold(self, field, labels.array), field, labels.names, False)


def _label_again(change: Change, ds: L, *made: Any) -> L:
    """Add the labels of other files; classes keep their codes."""
    _, field, names, _, given = made
    if given is None or given.values is None:
        raise not_growing("with_labels() of given labels")
    source, column, key, match = given.values
    return remake(ds, change).with_labels(
        source, field=field, column=column, key=key, match=match, classes=names
    )


@remade_by(_label_again)
def _add_labels(
    ds: L,
    held: Held,
    field: str,
    names: tuple[str, ...] | None,
    by_part: bool,
    given: Given | None = None,
) -> L:
    """Add a field that is kept in memory: one label for each sample, or for each part of files."""
    own = {} if names is None else {field: names}
    groups = held.groups()
    starts = ds.all_origins()[0].starts if by_part else _chosen_crops(ds)
    if starts is not None:
        groups = tuple(replace(group, rows=PartNumbers(starts)) for group in groups)
    # Labels do not count in a fingerprint; where nothing is in files it would include them.
    in_files = not all(group.table.sealed for group in ds.groups)
    return ds.view(
        _add_labels,
        held,
        field,
        names,
        by_part,
        given,
        groups=(*ds.groups, *groups),
        names=(*ds.names, field),
        steps=(Beside((field,), ds.steps),) if ds.steps else (),
        classes={**ds.classes, **own},
        identity=ds._identity if in_files else ds._fingerprint_all(),
    )


def _hold_by_file(ds: Labelled, name: str, array: Array, places: "_Places") -> Held:
    """Keep the labels of samples, or of parts of files, given those of the files."""
    values = array.values
    # Without any file there are parts without samples at most.
    own = values[places.number] if len(values) else np.zeros(len(places.number), values.dtype)
    if not places.by_part:
        return _hold(ds, name, array._replace(values=own))
    return hold_array(array._replace(values=own), name)


def _hold(ds: Labelled, name: str, array: Array) -> Held:
    """Keep a label for each sample. Groups may have more samples than a view of them."""
    check_fixed(ds, "with_labels() with a label for each sample")
    field = Field(name, array.values.dtype, array.values.shape[1:], array.type)
    chosen = _chosen_crops(ds)

    def fill(room: Room) -> None:
        rows: Any = slice(None) if ds.rows is None else select_rows(ds.rows, np.arange(len(ds)))
        rows = rows if chosen is None else np.searchsorted(chosen, rows)
        made = np.asarray(room[name])
        made[rows] = array.values
        if isinstance(ds.rows, np.ndarray) and made[rows].tobytes() != array.values.tobytes():
            problem = "samples that were taken twice have two different labels"
            raise ValueError(f"{problem}; call with_labels() first, then take()")

    return hold([field], len(ds.groups[0]) if chosen is None else len(chosen) - 1, {}, fill)


def _chosen_crops(ds: Labelled) -> Ints | None:
    """Return the numbers of chosen crops, and the end: few of those that are possible."""
    if ds.groups[0].kind != "crop" or not isinstance(ds.rows, np.ndarray):
        return None
    return np.append(np.unique(ds.rows), len(ds.groups[0]))


class _Labels(NamedTuple):
    """Labels as numbers, and the names of their classes if they have any."""

    array: Array
    names: tuple[str, ...] | None


def _check_classes(classes: Sequence[str] | None) -> tuple[str, ...] | None:
    if classes is None:
        return None
    found: tuple[Any, ...] = (classes,) if isinstance(classes, str) else tuple(classes)
    if not found or not all(isinstance(name, str) for name in found):
        raise TypeError(f"classes must be names such as ['cat', 'dog'], got {classes!r}")
    if len(set(found)) < len(found):
        raise ValueError(f"classes must differ, got {list_names(find_doubled(found))} twice")
    return tuple(map(str, found))


# One label for each sample


def _label_samples(ds: Labelled, source: object, classes: tuple[str, ...] | None) -> _Labels:
    source = without_index(source)
    if isinstance(source, set | frozenset):
        raise TypeError("labels must be in the order of the samples, got a set, which has none")
    if isinstance(source, Iterable) and not is_array(source):
        # Also an array of text, which is a list of names elsewhere.
        values = source.tolist() if isinstance(source, np.ndarray) else list(source)
        _check_count(ds, len(values))
        return _encode(values, classes, ds.first_file)
    if not is_array(source):
        raise TypeError(
            "labels must be a function of the path, a mapping of file names, a .csv, .tsv or "
            f".parquet file, or one value for each sample, got {type(source).__name__}"
        )
    array = as_array(source, "labels")
    _check_count(ds, len(array.values) if array.values.ndim else 1)
    return _name_codes(array, classes)


def _check_count(ds: Labelled, count: int) -> None:
    if count != len(ds):
        raise ValueError(
            f"expected a label for each of {len(ds):,} samples, got {count:,}; pass them in the "
            "order of the samples, or a dict of file names to labels"
        )


# Labels by file


class _Places(NamedTuple):
    """The files that samples lie in, and for each sample, or part of a file, which one it is."""

    paths: list[str]
    number: Ints
    by_part: bool


def _find_places(ds: Labelled) -> _Places:
    origin = ds.all_origins()[0]
    by_part = not origin.each and origin.rows is None
    if by_part:
        # All samples of a part share their label: one for each part takes hardly any memory.
        used = find_used(ds.rows, origin.starts)
        file = origin.files[used, 0]
    else:
        file = origin.files_of(select_rows(ds.rows, np.arange(len(ds))))
    different, which = np.unique(file, return_inverse=True)
    known: dict[str, int] = {}  # a file may have several numbers
    paths = map(os.fsdecode, origin.table.paths_of(different))
    place = np.array([known.setdefault(path, len(known)) for path in paths], np.int64)
    number = place[which.reshape(-1)]
    if by_part:
        number, own = np.zeros(len(origin.files), np.int64), number
        number[used] = own
    return _Places(list(known), number, by_part)


class _How(NamedTuple):
    """How labels of files are found."""

    column: str | None
    key: str | None
    match: Callable[[str], str] | None
    classes: tuple[str, ...] | None


def _label_files(ds: Labelled, source: object, how: _How) -> tuple[_Labels, "_Places"]:
    """Return a label for each file, and which file each sample lies in."""
    column, key, match, classes = how
    if ds.all_origins()[0].table.sealed:
        raise ValueError("samples in memory have no files; give one label for each sample")
    places = _find_places(ds)
    paths = places.paths
    every: Sequence[Any]  # all labels that there are, which decide on the classes
    if callable(source):
        path = paths[0] if paths else ds.first_file
        found = every = [source(one) for one in paths]
        missing = [one for one, label in zip(paths, found, strict=True) if label is None]
        if missing:
            problem = describe_missing(missing, len(paths))[0]
            raise SchemaError(path, problem, remedy=REMEDY)
    else:
        names = paths if match is None else [_as_key(match(one)) for one in paths]
        if isinstance(source, Mapping):
            path = paths[0] if paths else ds.first_file
            keys, values = [_as_key(one) for one in source], list(source.values())
        else:
            table = open_label_table(source, as_text=classes is not None)  # type: ignore[arg-type]
            path = table.path
            keys, values = choose_columns(table, names, column, key)
        once = list(dict.fromkeys(names))
        by_name = dict(zip(once, match_names(path, once, keys, values), strict=True))
        found = [by_name[name] for name in names]
        every = [one for one in values if one is not None]
    if classes is None and every and all(isinstance(one, str) for one in every):
        classes = tuple(sorted({str(one) for one in every}))
    return _encode(found, classes, path), places


def _as_key(name: object) -> str:
    if isinstance(name, str | os.PathLike):
        return os.fsdecode(name)
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return str(name)
    raise TypeError(f"names of files, which match= may return, must be text, got {name!r}")


# Values


def _encode(values: Sequence[Any], classes: tuple[str, ...] | None, path: str) -> _Labels:
    """Return labels as an array: codes for text, and numbers as they are."""
    text = [isinstance(one, str) for one in values]
    if all(text) and (values or classes):
        names = tuple(sorted({str(one) for one in values})) if classes is None else classes
        code = {name: at for at, name in enumerate(names)}
        unknown = list(dict.fromkeys(one for one in values if one not in code))
        if unknown:
            raise SchemaError(
                path,
                f"labels that are not in classes=: {list_names(unknown)}",
                remedy=f"classes are {list_names(names)}",
            )
        codes = np.fromiter((code[one] for one in values), np.int64, len(values))
        return _Labels(as_array(codes, "labels"), names)
    if any(text):
        found = f"{values[text.index(True)]!r} and {values[text.index(False)]!r}"
        raise TypeError(f"labels must all be text or all be numbers, got {found}")
    return _name_codes(_stack(values), classes)


def _stack(values: Sequence[Any]) -> Array:
    """Return numbers, or arrays of numbers, as one array."""
    if all(type(one) is int for one in values):
        try:
            return as_array(np.array(values, np.int64), "labels")
        except OverflowError:
            raise ValueError("labels must be below 2**63") from None
    arrays = [as_array(np.asarray(v) if np.isscalar(v) else v, "a label") for v in values]
    first = arrays[0].values
    for one, kind in arrays:
        if one.shape != first.shape:
            raise ValueError(f"labels must have one shape, got {first.shape} and {one.shape}")
        if one.dtype.kind not in "biufc" and kind not in EXTENDED:
            raise TypeError(f"labels must be text or numbers, got {one.dtype}")
    made = np.stack([one for one, _ in arrays])
    whole = [one for one, _ in arrays if one.dtype.kind in "iu" and one.size]
    if made.dtype.kind in "fc" and any(int(abs(one).max()) > _EXACT for one in whole):
        raise ValueError(f"labels of several dtypes do not fit {made.dtype}; convert them")
    kinds = {kind for _, kind in arrays}
    return Array(made, kinds.pop()) if len(kinds) == 1 else as_array(made, "labels")


def _name_codes(array: Array, classes: tuple[str, ...] | None) -> _Labels:
    """Return numbers, which are codes if the caller names their classes."""
    values = array.values
    if classes is not None and values.size:
        if values.dtype.kind not in "iu" or values.ndim != 1:
            raise TypeError(f"classes= is for labels that are text or codes, got {values.dtype}")
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= len(classes):
            raise ValueError(f"codes must be in [0, {len(classes)}), got {low} to {high}")
    return _Labels(array, classes)


def rename_classes(classes: Classes, names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the classes of fields that have other names now; those of no name are left out."""
    return {names[field]: own for field, own in classes.items() if field in names}


def join_classes(first: Labelled, second: Labelled) -> Classes:
    """Return the classes of two datasets that are added, which must agree."""
    one, other = first.classes, second.classes
    if not len(first) or not len(second):  # there is no code that could mean something else
        return one if len(first) else other
    for field in {**one, **other}:
        if one.get(field) != other.get(field):
            mine, theirs = (repr(list(c[field])) if field in c else "none" for c in (one, other))
            raise SchemaError(
                second.first_file,
                f"classes of {field!r}: expected {mine} as in the first dataset, found {theirs}",
                remedy="pass the same classes= to with_labels() for both",
            )
    return one
