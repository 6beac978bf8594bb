"""Crops: boxes out of samples, anywhere in them, as samples of their own.

All boxes of an array are an array of more axes: those that count where a box starts, then those of
the box, with the same strides. So a crop is a sample like any other, with a number: which of the
boxes of which case it is. Random crops have their numbers drawn when they are read; those of a
grid, and chosen ones, are a selection of these numbers.

Cases are taken together in *runs*: consecutive ones in the same arrays, with boxes in as many
places.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ndfeed.dataset.choosing import check_unmixed, check_unnumbered
from ndfeed.dataset.column import Column, Field, Group, Place, columns_of, has_crops
from ndfeed.dataset.crop_options import Spec
from ndfeed.dataset.crop_places import CASE, CORNER, make_places
from ndfeed.dataset.origins import Origin
from ndfeed.dataset.overlapping import Overlap, cuts_of, overlay, row_step, sample_axes_of
from ndfeed.dataset.remake import Change, not_growing, remade_by, remake, repeatable
from ndfeed.dataset.row_selection import (
    Draw,
    Drawn,
    Listed,
    Rows,
    Runs,
    compose,
    find_used,
    freeze,
    select_rows,
)
from ndfeed.dataset.windows import Stack
from ndfeed.errors import FieldError, SchemaError
from ndfeed.formats.description import INLINE
from ndfeed.formats.dtypes import EXTENDED, can_hold
from ndfeed.index.table import Ints

if TYPE_CHECKING:
    from ndfeed.dataset.dataset import Dataset


def _make_again(change: Change, ds: "Dataset", spec: Spec) -> "Dataset":
    if spec.at is not None:
        raise not_growing("crops(at=…)")
    return make_crops(remake(ds, change), spec)


@remade_by(_make_again)
def make_crops(ds: "Dataset", spec: Spec) -> "Dataset":
    """Return crops of the samples of a dataset."""
    _check_stored(ds, spec)
    twice = isinstance(ds.rows, np.ndarray) and len(np.unique(ds.rows)) < len(ds)
    if twice or spec.at is not None:  # their files are listed in another order
        check_unnumbered(ds, "crops(at=…)" if spec.at else "crops() of samples taken twice")
    if twice and spec.place:
        ds = _number_apart(ds)
    runs = _find_runs(ds, spec)
    groups = _make_groups(ds.groups, spec, runs)
    names = ds.names
    if spec.place:
        groups.append(make_places(runs, ds.rows, spec.axes))
        names = (*names, CASE, CORNER)
    rows = _select(ds, spec, runs)
    identity = hashlib.sha256(f"{ds.fingerprint} {spec._replace(at=None)}".encode())
    if spec.at is not None:
        identity.update(np.asarray(spec.at.rows, np.int64).tobytes())
    return ds.view(
        make_crops,
        spec,
        groups=tuple(groups),
        rows=rows,
        why=f"{spec.text}; {ds.why}",
        names=names,
        identity=identity.hexdigest()[:16],
        origins=tuple(_origin(origin, runs) for origin in ds.all_origins()),
    )


@repeatable
def _number_apart(ds: "Dataset") -> "Dataset":
    """Return the same samples, in which those that were taken twice have two numbers."""
    rows: Ints = np.asarray(ds.rows)
    return ds.view(
        _number_apart,
        groups=tuple(replace(group, rows=compose(group.rows, rows)) for group in ds.groups),
        rows=None,
        identity=ds.fingerprint,
        origins=tuple(origin.choose(rows) for origin in ds.all_origins()),
    )


def _check_stored(ds: "Dataset", spec: Spec) -> None:
    check_unmixed(ds, "crops()")
    if any(isinstance(step, Stack) for step in ds.steps):
        raise ValueError(
            "crops() of windows whose offsets are not even: give offsets= evenly spaced, such as "
            "range(-6, 1, 2), or cut the crops in a map"
        )
    if ds.steps:
        raise ValueError("crops() comes before map(): a map then gets batches of crops")
    if isinstance(ds.rows, Drawn):
        raise ValueError("crops() of random crops: take the smaller size at once")
    if any(map(has_crops, columns_of(ds.groups))):
        raise ValueError("crops() of crops: take the smaller size at once, or in_memory() first")
    _check_fields(ds, spec)
    if any(group.checks is not None for group in ds.groups):
        raise ValueError("crops() of a dataset opened with verify=True; open it without")
    for column in columns_of(ds.groups):
        if column.offsets is not None:
            raise SchemaError(
                ds.first_file,
                f"field {column.field.name!r} has its samples end to end, which has no crops",
                remedy="open files of one sample each, or leave it out with select()",
            )


def _check_fields(ds: "Dataset", spec: Spec) -> None:
    unknown = [name for name, _ in spec.sizes if name not in ds.names]
    if unknown:
        raise FieldError(unknown[0], ds.names, ds.first_file)
    taken = [name for name in (CASE, CORNER) if spec.place and name in ds.names]
    if taken:
        raise ValueError(f"field {taken[0]!r} exists; rename() it, or pass place=False")
    pads = dict(spec.pad)
    for column in columns_of(ds.groups):
        if column.field.name in pads:
            _check_pad(column.field, pads[column.field.name])


def _check_pad(field: Field, pad: float) -> None:
    bits = field.type in EXTENDED and field.dtype.isbuiltin == 1  # no type of NumPy
    if not can_hold(field.dtype, pad) or (bits and pad):
        raise ValueError(
            f"pad={pad!r} does not fit field {field.name!r}, which has dtype {field.dtype_text}; "
            "give a dict of field name to value"
        )


def _find_runs(ds: "Dataset", spec: Spec) -> Runs:
    """Divide the cases into runs; refuses fields whose crops would lie in other places."""
    count = len(ds.groups[0])
    if not len(ds):
        raise ValueError("crops() of a dataset without samples")
    cuts = [cuts_of(group)[:-1] for group in ds.groups]
    cuts += [origin.find_breaks() for origin in ds.all_origins()]
    starts = np.unique(np.append(np.concatenate(cuts), count))
    starts = starts[starts <= count]
    used = find_used(ds.rows, starts)  # cases that were left out may be too small
    first = starts[used]
    shapes: dict[str, Ints] = {}
    places = None
    boxes = dict(spec.sizes)
    for group in ds.groups:
        part = group.locate(first).part
        for column in group.columns:
            name = column.field.name
            if name in boxes:
                shapes[name] = _case_shapes(ds, column, part, boxes[name])
                own = _count_places(column, part, shapes[name], boxes[name], pads=bool(spec.pad))
                if places is not None and (places != own).any():
                    _refuse_sizes(ds, spec, shapes, int(np.flatnonzero((places != own).any(1))[0]))
                places = own
    if places is None:
        raise FieldError(spec.sizes[0][0], ds.names, ds.first_file)
    return Runs.of(first, starts[used + 1] - first, places)


def _case_shapes(ds: "Dataset", column: Column, part: Ints, box: Sequence[int | None]) -> Ints:
    """Return the shapes of the cases of some parts, one in each row."""
    shapes = column.shapes(part)
    ranks = {len(shape) for shape in shapes}
    if len(ranks) != 1 or ranks.pop() < len(box) or (column.coding[part] == INLINE).any():
        low = min(shapes, key=len)
        raise SchemaError(
            ds.first_file,
            f"field {column.field.name!r} has samples of shape {low}, which has fewer axes than "
            f"crops of {box}",
            remedy="give a size for axes that there are",
        )
    return np.array(shapes, np.int64).reshape(len(shapes), -1)


def _count_places(
    column: Column, part: Ints, shapes: Ints, box: Sequence[int | None], *, pads: bool
) -> Ints:
    """Return in how many places boxes may start, by axis."""
    axes = [i for i, n in enumerate(box) if n is not None]
    sizes = np.array([n for n in box if n is not None])
    room = shapes[:, axes] - sizes
    if not pads and (room < 0).any():
        at = int(np.flatnonzero((room < 0).any(axis=1))[0])
        shifted = shapes[at, 1 : 1 + len(box)]
        channels = len(shifted) == len(box) and (shifted >= [n or 0 for n in box]).all()
        first = f"for channels that come first, give None: {(None, *box)}; or "
        raise SchemaError(
            column.table.path(int(column.file[part[at]])),
            f"field {column.field.name!r} is {tuple(shapes[at].tolist())}, smaller than crops of "
            f"{tuple(box)}",
            remedy=f"{first * bool(channels)}use smaller crops, fill up with pad=0, or exclude it "
            "with take()",
        )
    places: Ints = np.maximum(room, 0) + 1
    return places


def _refuse_sizes(ds: "Dataset", spec: Spec, shapes: Mapping[str, Ints], at: int) -> None:
    (one, _), (other, _) = spec.sizes[0], [s for s in spec.sizes if s[0] in shapes][-1]
    if np.array_equal(shapes[one][at], shapes[other][at]):
        boxes = dict(spec.sizes)
        raise ValueError(
            f"crops of {boxes[one]} and {boxes[other]} cannot all start at the same places; give "
            f"{one!r} and {other!r} one size, or crop them in two datasets"
        )
    raise SchemaError(
        ds.first_file,
        f"fields {one!r} and {other!r} differ in size where crops are taken: "
        f"{tuple(shapes[one][at].tolist())} and {tuple(shapes[other][at].tolist())}",
        remedy="crop them in two datasets, or resize one of them first",
    )


def _make_groups(groups: Sequence[Group], spec: Spec, runs: Runs) -> list[Group]:
    boxes = dict(spec.sizes)
    overlaps: list[Overlap] = []
    for group in groups:
        place = group.locate(runs.first)
        for column in group.columns:
            box = boxes.get(column.field.name)
            overlaps.append(_overlap(column, place, runs, box, row_step(group)))
    arrays = iter(overlay(overlaps))
    made = []
    for group in groups:
        columns = []
        for column in group.columns:
            table, places = next(arrays)
            box = boxes.get(column.field.name)
            lead = 2 if box is None else 1 + spec.axes
            whole, field = np.zeros(len(places), bool), column.field
            if box is not None:
                field = _crop_field(field, box)
            pad = dict(spec.pad).get(field.name)
            cut = box is not None
            columns.append(Column(field, table, places, whole, lead=lead, pad=pad, cut=cut))
        made.append(Group(runs.starts, tuple(columns), group.mapped, None, "crop"))
    return made


def _crop_field(field: Field, box: Sequence[int | None]) -> Field:
    known = field.shape or (None,) * len(box)
    rest = (*box, *(None,) * (len(known) - len(box)))
    return replace(
        field, shape=tuple(own if n is None else n for n, own in zip(rest, known, strict=True))
    )


def _overlap(
    column: Column, place: Place, runs: Runs, box: Sequence[int | None] | None, rows: int
) -> Overlap:
    """Make an axis for the cases of a run, those that count places, and those of the box."""
    part = place.part
    rank = len(column.field.shape) if column.field.shape is not None else None
    if rank is None:
        raise SchemaError(
            column.table.path(0),
            f"field {column.field.name!r} has samples that differ in their number of axes",
            remedy="leave it out with select()",
        )
    lengths, steps, row = sample_axes_of(column, part, rank)
    start = place.row * row
    row = row * rows
    cases = runs.cases[:, None]
    if box is None:
        counts = runs.places.prod(axis=1, keepdims=True)
        lead = cases, counts
        gaps = row[:, None], np.zeros_like(counts)
        return Overlap(
            column, part, start, np.concatenate([*lead, lengths], axis=1),
            np.concatenate([*gaps, steps], axis=1),
        )  # fmt: skip
    axes = [i for i, n in enumerate(box) if n is not None]
    cut = lengths.copy()
    cut[:, axes] = np.minimum(lengths[:, axes], [n for n in box if n is not None])
    return Overlap(
        column, part, start, np.concatenate([cases, runs.places, cut], axis=1),
        np.concatenate([row[:, None], steps[:, axes], steps], axis=1),
    )  # fmt: skip


def _select(ds: "Dataset", spec: Spec, runs: Runs) -> Rows:
    """Return which of all crops there are."""
    rows = freeze(ds.rows)
    cases = range(len(ds.groups[0])) if rows is None else rows
    if spec.at is not None:
        given = np.asarray(spec.at.rows).reshape(-1, 1 + spec.axes)
        return _chosen(ds, given, runs)
    if spec.overlap is not None:
        return _grid(cases, spec, runs)
    return Drawn([Draw(runs, cases, spec.each)], range(len(cases) * spec.each))


def _chosen(ds: "Dataset", given: Ints, runs: Runs) -> Ints:
    case = given[:, 0]
    if len(case) and not 0 <= case.min() <= case.max() < len(ds):
        raise IndexError(
            f"at= has cases from {case.min()} to {case.max()}; they must be in [0, {len(ds)})"
        )
    samples = select_rows(ds.rows, case)
    places = runs.places[runs.find(samples)]
    bad = ((given[:, 1:] < 0) | (given[:, 1:] >= places)).any(axis=1)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise IndexError(
            f"at= has corner {given[at, 1:].tolist()} in case {case[at]}, where corners must be "
            f"at least 0 and below {places[at].tolist()}"
        )
    code = np.zeros(len(case), np.int64)
    for axis in range(places.shape[1]):
        code = code * places[:, axis] + given[:, 1 + axis]
    return runs.number(samples, code)


def _grid(cases: Listed, spec: Spec, runs: Runs) -> Ints:
    """Return the crops that cover every case, neighbours overlapping as wanted."""
    box = [n for n in spec.sizes[0][1] if n is not None]
    steps = [n - own for n, own in zip(box, spec.overlap or (), strict=True)]
    samples = np.asarray(cases, np.int64)
    kinds, which = np.unique(runs.places[runs.find(samples)], axis=0, return_inverse=True)
    codes = []
    for places in kinds.tolist():
        # The last one is moved back so that it ends where the case does.
        axes = [
            sorted({*range(0, n - 1, step), n - 1}) for n, step in zip(places, steps, strict=True)
        ]
        corners = np.meshgrid(*map(np.array, axes), indexing="ij")
        codes.append(np.ravel_multi_index([one.reshape(-1) for one in corners], places))
    every = [codes[kind] for kind in which.reshape(-1).tolist()]
    lengths = [len(one) for one in every]
    return runs.number(np.repeat(samples, lengths), np.concatenate(every))


def _origin(origin: Origin, runs: Runs) -> Origin:
    place = origin.locate(runs.first)
    apart = np.stack([place.row, origin.steps_of(place.part), runs.counts], axis=1)
    return Origin(origin.table, runs.starts, origin.files[place.part], False, None, apart)
