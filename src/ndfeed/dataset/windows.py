"""Windows: consecutive rows, or rows a fixed distance apart, as samples.

Rows form sequences, which no window leaves: a file is one, unless ``bounds`` or ``by`` divide it.
The number of windows follows from the lengths of the sequences, so nothing is listed but these.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndfeed.dataset.block_checks import WindowChecks
from ndfeed.dataset.choosing import check_unmixed, check_unnumbered
from ndfeed.dataset.column import Column, Field, Group, Place, columns_of, has_crops
from ndfeed.dataset.map_steps import Batch
from ndfeed.dataset.origins import Origin
from ndfeed.dataset.overlapping import Overlap, axes_of, cuts_of, overlay, row_step
from ndfeed.dataset.remake import Change, not_growing, remade_by, remake
from ndfeed.dataset.row_selection import Rows, Travelling
from ndfeed.dataset.window_options import Shape, View
from ndfeed.errors import FieldError, SchemaError
from ndfeed.formats.description import INLINE
from ndfeed.index.table import Ints

if TYPE_CHECKING:
    from ndfeed.dataset.dataset import Dataset

_AT_ONCE = 1 << 20  # rows whose field is compared at a time


class Sequences(NamedTuple):
    """Stretches of samples of the groups, which no window leaves."""

    starts: Ints
    ends: Ints


def find_sequences(ds: "Dataset", by: str | None, bounds: Ints | None) -> Sequences:
    """Divide the rows of a dataset where files end, where ``by`` changes, and at ``bounds``."""
    first, end = _as_stretch(ds)
    _check_repeated(ds)
    cuts = [cuts_of(group) for group in ds.groups]
    cuts += [origin.find_breaks() for origin in ds.all_origins()]
    if bounds is not None:
        cuts.append(bounds + first)
    if by is not None:
        cuts.append(_changes(ds, by) + first)
    every = np.unique(np.concatenate([[first, end], *cuts]))
    every = every[(every >= first) & (every <= end)]
    return Sequences(every[:-1], every[1:])


def _as_stretch(ds: "Dataset") -> tuple[int, int]:
    """Return the samples that a dataset has, which must be consecutive."""
    rows: Rows = ds.rows if len(ds) else range(0)
    if rows is None:
        return 0, len(ds.groups[0])
    if isinstance(rows, np.ndarray) and len(rows) and (np.diff(rows) == 1).all():
        rows = range(int(rows[0]), int(rows[-1]) + 1)
    if isinstance(rows, range) and (rows.step == 1 or len(rows) < 2):
        return rows.start, rows.start + len(rows)
    raise ValueError(
        "windows() needs consecutive rows, and some were left out or reordered; call windows() "
        "first, then take(), split() or where()"
    )


def _check_repeated(ds: "Dataset") -> None:
    """Refuse rows that stand for several samples: windows of these would be left out."""
    for group in ds.groups:
        if isinstance(group.rows, np.ndarray) and (np.diff(group.rows) == 0).any():
            names = ", ".join(repr(column.field.name) for column in group.columns)
            raise ValueError(
                f"windows() needs consecutive rows, and {names} has the same row for several "
                "samples; call windows() first, then take() or with_labels()"
            )


def as_bounds(bounds: ArrayLike, count: int) -> Ints:
    """Return ``bounds`` as row numbers in [0, count], which ascend."""
    found = np.asarray(bounds)
    if found.shape == (0,):
        return np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise TypeError(
            f"bounds= takes row numbers in one dimension, got {found.dtype} {found.shape}"
        )
    back = np.flatnonzero(found[1:] < found[:-1])
    if len(back):
        at = int(back[0])
        raise ValueError(
            f"bounds= must ascend, got {found[at]} before {found[at + 1]}; pass the first row of "
            "each sequence"
        )
    if not 0 <= int(found[0]) <= int(found[-1]) <= count:
        raise ValueError(f"bounds= must be in [0, {count}], got {found[0]} to {found[-1]}")
    return found.astype(np.int64)


def _changes(ds: "Dataset", by: str) -> Ints:
    """Return the rows at which the value of a field is another one than before."""
    given: object = by
    if not isinstance(given, str):
        raise TypeError("by= takes the name of a field; bounds= takes first rows of sequences")
    if by not in ds.names:
        raise FieldError(by, ds.names, ds.first_file)
    alone = ds.select(by)
    if alone.fields[by].ragged:
        raise ValueError(f"by={by!r}: its samples differ in shape; use bounds=")
    found: list[Ints] = []
    last: NDArray[Any] | None = None
    for at in range(0, len(ds), _AT_ONCE):
        rows = np.arange(at, min(at + _AT_ONCE, len(ds)))
        values = alone.read(rows)[by].reshape(len(rows), -1)
        if last is not None and _differ(values[:1], last).any():
            found.append(np.array([at]))
        found.append(np.flatnonzero(_differ(values[1:], values[:-1])) + 1 + at)
        last = values[-1:]
    return np.concatenate([np.zeros(0, np.int64), *found])


def _differ(some: NDArray[Any], others: NDArray[Any]) -> NDArray[np.bool_]:
    """Say which rows differ from the others; NaN is the same as NaN, as for ``split``."""
    missing = (some != some) & (others != others)
    found: NDArray[np.bool_] = ((some != others) & ~missing).any(axis=1)
    return found


def _make_again(
    change: Change, ds: "Dataset", shape: Shape, by: str | None, bounds: Travelling | None
) -> "Dataset":
    if bounds is not None:
        raise not_growing("windows(bounds=…)")
    return make_windows(remake(ds, change), shape, by)


@remade_by(_make_again)
def make_windows(
    ds: "Dataset", shape: Shape, by: str | None = None, bounds: Travelling | None = None
) -> "Dataset":
    """Return the windows of a dataset's rows."""
    given = shape
    _check_rows(ds)
    shape = _for_all_fields(ds, shape)
    every = find_sequences(ds, by, None if bounds is None else np.asarray(bounds.rows))
    lengths = every.ends - every.starts
    counts = np.maximum((lengths - shape.span) // shape.stride + 1, 0)
    kept = np.flatnonzero(counts)
    if not len(kept):
        _refuse_short(ds, shape, lengths, by)
    starts = np.concatenate([[0], np.cumsum(counts[kept])])
    cut = _Cut(every.starts[kept], counts[kept], starts, shape)
    names = _field_names(ds, shape)
    reason = f"{shape.text}, in {len(kept):,} sequence{'s' * (len(kept) != 1)}"
    return ds.view(
        make_windows,
        given,
        by,
        bounds,
        groups=tuple(_make_groups(ds.groups, cut, names)),
        rows=None,
        why=f"{reason}; {ds.why}",
        names=tuple(names.values()),
        steps=(Stack.of(ds.names, names),) if any(one.stacked for one in shape.views) else (),
        identity=_identify(ds, cut),
        origins=tuple(_origin(origin, cut) for origin in ds.all_origins()),
    )


def _refuse_short(ds: "Dataset", shape: Shape, lengths: Ints, by: str | None) -> NoReturn:
    if not len(lengths):
        raise SchemaError(
            ds.first_file,
            "there are no rows to make windows of",
            remedy="open files that have some",
        )
    raise SchemaError(
        ds.first_file,
        f"windows of {shape.span:,} rows do not fit: the longest of {len(lengths):,} "
        f"sequence{'s' * (len(lengths) != 1)} has {int(lengths.max()):,}",
        remedy="use a smaller length or offsets" + f", or another field than {by!r}" * bool(by),
    )


def _for_all_fields(ds: "Dataset", shape: Shape) -> Shape:
    """Add the row at offset 0 for fields that no view is of, if views are of single fields."""
    named = [view.field for view in shape.views if view.field]
    unknown = [name for name in named if name not in ds.names]
    if unknown:
        raise FieldError(unknown[0], ds.names, ds.first_file)
    others = [name for name in ds.names if name not in named] if named else []
    return shape._replace(views=(*shape.views, *(View("", 0, None, 1, name) for name in others)))


def _identify(ds: "Dataset", cut: "_Cut") -> str:
    """Return the fingerprint of windows: of the rows, and of where they are cut."""
    digest = hashlib.sha256(f"{ds.fingerprint} {cut.shape}".encode())
    first = cut.first if ds.rows is None else cut.first - int(cut.first[0])
    digest.update(np.stack([first, cut.counts]).tobytes())
    return digest.hexdigest()[:16]


def _origin(origin: Origin, cut: "_Cut") -> Origin:
    place = origin.locate(cut.first)
    stride = cut.shape.stride * origin.steps_of(place.part)
    apart = np.stack([place.row, stride, np.ones_like(stride)], axis=1)
    return Origin(origin.table, cut.starts, origin.files[place.part], False, None, apart)


@dataclass(frozen=True, slots=True)
class Stack:
    """A step that joins fields of the same shape into one: pairs of its name and theirs.

    A field without parts is kept.
    """

    fields: tuple[tuple[str, tuple[str, ...]], ...]
    random: bool = False

    @classmethod
    def of(cls, fields: Sequence[str], names: Mapping[tuple[View, str], str]) -> "Stack":
        """Make the step for the views of some fields."""
        stacked: dict[str, list[str]] = {own: [] for own in fields}
        for (view, own), name in names.items():
            if view.stacked:
                stacked[own].append(name)
        return cls(tuple((own, tuple(parts)) for own, parts in stacked.items()))

    def __call__(self, batch: Batch, draws: object, number: int) -> Batch:
        """Join the fields of a batch."""
        return {
            name: np.stack([batch[one] for one in parts], axis=1) if parts else batch[name]
            for name, parts in self.fields
        }


def _check_rows(ds: "Dataset") -> None:
    check_unmixed(ds, "windows()")
    check_unnumbered(ds, "windows()")
    if ds.steps:
        raise ValueError("windows() comes before map(): a map then gets batches of windows")
    if any(map(has_crops, columns_of(ds.groups))):
        raise ValueError("windows() of crops: call windows() first, then crops()")
    for column in columns_of(ds.groups):
        inline = column.coding == INLINE
        if column.field.ragged or column.offsets is not None or column.whole.any() or inline.any():
            remedy = 'open it with sample="row", or leave it out with select()'
            if column.offsets is not None:
                remedy = "open the values without offsets=, and call windows(…, bounds=offsets)"
            raise SchemaError(
                ds.first_file,
                f"field {column.field.name!r} has no rows of one shape to make windows of",
                remedy=remedy,
            )


class _Cut(NamedTuple):
    """Sequences that have windows: their first samples, how many windows, and which these are."""

    first: Ints
    counts: Ints
    starts: Ints
    shape: Shape


def _field_names(ds: "Dataset", shape: Shape) -> dict[tuple[View, str], str]:
    """Name the fields: as they are, or below the names of the views."""
    alone = len(ds.names) == 1

    def name_of(view: View, own: str) -> str:
        if not view.name:
            return own
        return view.name if alone and not view.stacked else f"{view.name}/{own}"

    names = {
        (view, own): name_of(view, own)
        for view in shape.views
        for own in ds.names
        if view.field in ("", own)
    }
    every = list(names.values())
    doubled = [name for at, name in enumerate(every) if name in every[:at]]
    if doubled:
        raise ValueError(
            f"windows() would make two fields {doubled[0]!r}; rename() one of the dataset's fields "
            "first"
        )
    return names


def _make_groups(
    groups: Sequence[Group], cut: _Cut, names: Mapping[tuple[View, str], str]
) -> Iterator[Group]:
    todo: list[tuple[Group, Place, list[tuple[Field, Overlap]]]] = []
    for group in groups:
        place = group.locate(cut.first)
        each = row_step(group)
        made = [
            (_field(column.field, view, names), _overlap(column, view, cut, place, each))
            for view in cut.shape.views
            for column in group.columns
            if view.field in ("", column.field.name)
        ]
        todo.append((group, place, made))
    arrays = iter(overlay([overlap for _, _, made in todo for _, overlap in made]))
    for group, place, made in todo:
        columns = []
        for (field, _), (table, places) in zip(made, arrays, strict=False):
            columns.append(Column(field, table, places, np.zeros(len(places), bool)))
        checks = group.checks and WindowChecks(
            group, place.part, place.row, cut.shape.stride, cut.shape.span
        )
        yield Group(cut.starts, tuple(columns), group.mapped, checks, "window")


def _field(field: Field, view: View, names: Mapping[tuple[View, str], str]) -> Field:
    lengths = () if view.length is None else (view.length,)
    return replace(field, name=names[view, field.name], shape=(*lengths, *(field.shape or ())))


def _overlap(column: Column, view: View, cut: _Cut, place: Place, rows: int) -> Overlap:
    part = place.part
    lengths, steps = axes_of(column, part)
    each = steps[:, :1] * rows
    own = [cut.counts[:, None]], [each * cut.shape.stride]
    if view.length is not None:
        own[0].append(np.full_like(each, view.length))
        own[1].append(each * view.step)
    start = place.row * steps[:, 0] + (view.first - cut.shape.low) * each[:, 0]
    return Overlap(
        column,
        part,
        start,
        np.concatenate([*own[0], lengths[:, 1:]], axis=1),
        np.concatenate([*own[1], steps[:, 1:]], axis=1),
    )
