"""Assemble a dataset from opened sources, now or again from other files."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ndfeed.dataset import samples
from ndfeed.dataset.column import Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.layout import Layout, all_raw, layout
from ndfeed.dataset.origins import Origin, make_origins, sort_origins
from ndfeed.dataset.remake import Change, remade_by, remake
from ndfeed.dataset.samples import Reading
from ndfeed.dataset.stored import fingerprint_groups
from ndfeed.errors import SchemaError
from ndfeed.index.open import Opened
from ndfeed.index.refresh import pair


class Part(NamedTuple):
    """One source of a dataset, with every way it may be read."""

    opened: Opened
    prefix: str | None
    fields: tuple[str, ...] | None
    dtype: object
    mapped: bool
    layout: Layout
    readings: list[Reading]

    @property
    def uses_dtype(self) -> bool:
        """Was there anything to which the caller's dtype applies?"""
        return self.layout.typed or all_raw(self.layout.table)


def put_together(parts: "list[Part | Dataset]", why: str | None = None) -> Dataset:
    """Combine sources: each is read in the way that gives as many samples as the others."""
    if not parts:
        raise ValueError("a dict of sources needs at least one")
    counts = [
        [len(part)] if isinstance(part, Dataset) else [way.samples for way in part.readings]
        for part in parts
    ]
    common = set(counts[0]).intersection(*counts[1:])
    if not common:
        listed = ", ".join(
            f"{_label(p)} has {' or '.join(f'{n:,}' for n in c)}"
            for p, c in zip(parts, counts, strict=True)
        )
        raise SchemaError(
            _path(parts[0]),
            f"the sources differ in their number of samples: {listed}",
            remedy="take() the same number from each, or open sources that belong together",
        )
    settled = []
    for part, own in zip(parts, counts, strict=True):
        fit = [i for i, n in enumerate(own) if n in common]
        if len(common) > 1 or len(fit) > 1:
            unclear = next(p for p in parts if isinstance(p, Part) and len(p.readings) > 1)
            raise samples.refuse(_path(unclear), unclear.layout)
        settled.append(
            part if isinstance(part, Dataset) else part._replace(readings=[part.readings[fit[0]]])
        )
    return make_dataset(tuple(settled), why)


def _label(part: "Part | Dataset") -> str:
    names = list(part.fields) if isinstance(part, Dataset) else list(part.layout.names)
    return repr(names[0])


def _path(part: "Part | Dataset") -> str:
    return part.first_file if isinstance(part, Dataset) else os.fsdecode(part.opened.spellings[0])


def make_dataset(parts: "tuple[Part | Dataset, ...]", why: str | None) -> Dataset:
    """Return the dataset of sources that each have one reading.

    ``why`` says why samples were interpreted so, if that is known from before.
    """
    reasons: list[str] = []
    recipe: list[Any] = []
    names: list[str] = []
    own: list[tuple[Group, ...]] = []  # of each part
    whole = [part for part in parts if isinstance(part, Dataset)]
    for part in parts:
        if isinstance(part, Dataset):
            names += part.names
            own.append(part.groups)
            reasons.append(part.why)
            recipe.append(part)
            continue
        way = part.readings[0]
        made = samples.group(part.layout, way.sample, mapped=part.mapped)
        if why is None:
            samples.warn_of_scattered_rows(made)
        names += part.layout.names
        own.append((made,))
        reasons.append(way.why)
        # What was decided with a warning stays decided: a worker process need not warn again.
        dtype = _decided_dtype(part)
        recipe.append((part.opened, part.prefix, part.fields, dtype, part.mapped, way))
    groups = [group for some in own for group in some]
    _check_names(groups)
    reason = why or "; ".join(dict.fromkeys(reasons))
    identity = ""
    if any(part._identity for part in whole):  # groups cannot tell all
        prints = " ".join(map(_identify, parts, own))
        identity = hashlib.sha256(prints.encode()).hexdigest()[:16]
    origins: tuple[Origin, ...] = ()
    if any(part._origins for part in whole):  # windows, for example, which groups cannot locate
        inside = {id(group) for part in whole for group in part.groups}
        rest = [group for group in groups if id(group) not in inside]
        every = [one for part in whole for one in part.all_origins()]
        origins = sort_origins([*every, *(make_origins(rest) if rest else ())])
    return Dataset(
        tuple(groups),
        (_rebuild, (recipe, reason)),
        origins=origins,
        steps=tuple(step for part in whole for step in part.steps),
        names=tuple(names),
        identity=identity,
        why=reason,
        skipped=tuple(error for part in whole for error in part._skipped),
        classes={field: own for part in whole for field, own in part.classes.items()},
    )


def _check_names(groups: Sequence[Group]) -> None:
    named: set[str] = set()
    for group in groups:
        for column in group.columns:
            if column.field.name in named:
                problem = f"field {column.field.name!r} comes from two sources"
                raise SchemaError(group.table.path(0), problem, remedy="rename one")
            named.add(column.field.name)


def _identify(part: "Part | Dataset", groups: Sequence[Group]) -> str:
    """Return the fingerprint of a source with these groups; arrays in memory do not count."""
    if isinstance(part, Dataset) and part._identity:
        return part.fingerprint
    in_files = [group for group in groups if not group.table.sealed]
    return fingerprint_groups(in_files) if in_files else ""


def _decided_dtype(part: Part) -> object:
    if not part.layout.typed:
        return part.dtype
    if not isinstance(part.dtype, dict):
        return "bfloat16" if part.dtype is None else part.dtype
    types = zip(part.layout.names, part.layout.types, strict=True)
    return part.dtype | {name: kind for name, kind in types if kind == "bfloat16"}


def _make_again(change: Change, recipe: list[Any], why: str) -> Dataset:
    """Make the dataset with other files: samples are interpreted as before."""
    before = [one[0] for one in recipe if not isinstance(one, Dataset)]
    now = iter(pair(before, [change(opened) for opened in before]))
    parts: list[Part | Dataset] = []
    for one in recipe:
        if isinstance(one, Dataset):
            parts.append(remake(one, change))
            continue
        _, prefix, fields, dtype, mapped, way = one
        opened = next(now)
        found = layout(opened.table, fields, dtype, prefix, way.sample)
        (reading,) = samples.readings(found, way.sample)
        parts.append(Part(opened, prefix, fields, dtype, mapped, found, [reading]))
    return put_together(parts, why)


@remade_by(_make_again)
def _rebuild(recipe: list[Any], why: str) -> Dataset:
    """Recreate the dataset that pickled as ``recipe``."""
    parts: list[Part | Dataset] = []
    for one in recipe:
        if isinstance(one, Dataset):
            parts.append(one)
            continue
        opened, prefix, fields, dtype, mapped, way = one
        found = layout(opened.table, fields, dtype, prefix, way.sample)
        parts.append(Part(opened, prefix, fields, dtype, mapped, found, [way]))
    return make_dataset(tuple(parts), why)
