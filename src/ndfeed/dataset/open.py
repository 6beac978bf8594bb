"""``ndfeed.open``: make a dataset from any source, reading only headers."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np

from ndfeed.dataset import packed_columns, samples
from ndfeed.dataset.arguments import as_casts, as_names, check_arguments
from ndfeed.dataset.column import Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.layout import Layout, Sample, all_raw, layout
from ndfeed.dataset.samples import Reading
from ndfeed.errors import FieldError, SchemaError, UnsupportedError, shown, shown_size
from ndfeed.formats import raw
from ndfeed.formats.description import Wanted
from ndfeed.index.build import Demand
from ndfeed.index.open import Opened, open_packed, open_table
from ndfeed.index.source import Source, spell_source
from ndfeed.index.table import Table

_SAMPLES = ("auto", "row", "file")


def open(  # noqa: PLR0913 - each is a word of its own
    source: "Source | Dataset | Mapping[str, Source | Dataset]",
    *,
    fields: str | Sequence[str] | None = None,
    sample: "Sample | Mapping[str, Sample]" = "auto",
    dtype: object = None,
    shape: int | Sequence[int] | None = None,
    mapped: bool = True,
    cache: bool = True,
    verify: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
) -> Dataset:
    """Open array files in place; only their headers are read.

    ``source`` is a file, a folder (with all below it), a pattern such as ``"train/*.npz"``, a
    list of these, or a dict of field name to source whose samples belong together. Formats are
    recognized by the files' first bytes: .npy, .npz, .npy.gz, .pt, .safetensors, or raw. A folder
    with an ``ndfeed.json`` is a packed dataset, and a list of such folders their samples in turn.

    - ``sample``: what one sample is: ``"row"`` of the first axis, a whole ``"file"``, or
      ``"auto"``, which refuses to guess where both make sense. In a dict of sources, a dict too.
    - ``fields``: the fields to open; all by default.
    - ``dtype``, ``shape``: for raw files, the element type and the shape of one sample; each
      field of a structured dtype becomes a field. ``dtype`` also names the type of opaque
      elements in .npy files (bfloat16, float8). A dict of field to dtype converts fields as they
      are read, and unifies files that differ; a value that does not fit is a ``CastError``.
    - ``mapped=False``: read by position only and never map a file.
    - ``verify=True``: for packed datasets, compare every block with its checksum when it is first
      read. Damage then raises a ``ChecksumError`` for the batch that contains it.
    - ``on_error="skip"``: skip files that cannot be read, with a warning; ``ds.skipped`` lists
      what was wrong with each.
    - ``cache=False``: neither use nor store the cached index of an earlier run. Above 10,000
      files a cached index is checked by a sample of them, the rest when read.
    """
    check_arguments(source, on_error, mapped=mapped, cache=cache, verify=verify)
    if shape is not None and dtype is None:
        raise ValueError("shape= is for raw files and also needs dtype=")
    chosen = as_names(fields)
    dtype = as_casts(dtype)
    wanted = None if chosen is None else frozenset(chosen)
    how = _How(_raw_layout(dtype, shape), dtype, wanted, mapped, cache, bool(verify), on_error)
    if isinstance(source, Mapping):
        return _together(_parts(source, sample, how, chosen), chosen)
    if isinstance(sample, Mapping):
        raise TypeError("sample= may be a dict only where the source is one")
    if isinstance(source, Dataset):
        made = _reopen(source, how)
        return made if chosen is None else made.select(*chosen)
    spelled = spell_source(source)
    ready = _open_packed(spelled, how, sample, chosen)
    if ready is not None:
        return ready
    part = _part(spelled, how, sample, fields=chosen)
    if not (dtype is None or isinstance(dtype, dict) or part.uses_dtype):
        table, name = part.layout.table, part.layout.names[0]
        raise SchemaError(
            table.path(0),
            f"already has dtype {table.dtypes[0]}",
            remedy=f"remove dtype=, which is for raw files and "
            f"opaque elements, or convert fields with dtype={{{shown(name)!r}: {dtype!r}}}",
        )
    if len(part.readings) > 1:
        raise samples.refuse(os.fsdecode(part.opened.spellings[0]), part.layout)
    return _dataset((part,), None)


def _raw_layout(dtype: object, shape: object) -> raw.Layout | None:
    """Return what raw files hold, if the caller says so for all of them."""
    if dtype is None or isinstance(dtype, dict):
        if shape is not None and dtype is not None:
            raise ValueError("shape= is for raw files, whose dtype= is one type, not a dict")
        return None
    return raw.layout(dtype, () if shape is None else shape)


def _reopen(ds: Dataset, how: "_How") -> Dataset:
    """Return a dataset that was given as a source."""
    for name, given in (("verify", how.verify), ("dtype", isinstance(how.dtype, dict))):
        if given:
            raise ValueError(
                f"{name}= is for files; pass it to the ndfeed.open that opened the dataset"
            )
    return ds


def _open_packed(
    source: Source,
    how: "_How",
    sample: Sample,
    fields: tuple[str, ...] | None = None,
    prefix: str = "",
) -> Dataset | None:
    """Open the packed datasets that a source names, in turn; ``None`` if it names none."""
    _check_sample(sample)
    found = open_packed(source)
    if found is None:
        return None
    path = found[0].spellings[0]
    if sample == "file":
        raise SchemaError(path, "the samples of a packed dataset are rows", remedy="remove sample=")
    if how.dtype is not None and not isinstance(how.dtype, dict):
        name = shown(found[0].fields[0].name)
        raise SchemaError(
            path,
            "a packed dataset already has dtypes",
            remedy=f"remove dtype=, or convert fields with dtype={{{name!r}: {how.dtype!r}}}",
        )
    casts = _within(how.dtype, prefix, [field.name for field in found[0].fields])
    made = [
        packed_columns.open_packed_dataset(one, fields, how.mapped, how.verify, casts)
        for one in found
    ]
    return reduce(Dataset.__add__, made)


def _within(casts: dict[str, str] | None, prefix: str, names: list[str]) -> dict[str, str] | None:
    """Return the caller's dtypes for a packed dataset, by the names that fields have in it."""
    if casts is None or not prefix:
        return casts
    alone = {prefix: names[0]} if len(names) == 1 else {}
    return {alone.get(n, n.removeprefix(f"{prefix}/")): kind for n, kind in casts.items()}


def _check_sample(sample: Sample) -> None:
    if sample not in _SAMPLES:
        raise ValueError(f"sample must be one of {', '.join(map(repr, _SAMPLES))}, got {sample!r}")


class _How(NamedTuple):
    """What applies to every source of a call."""

    layout: raw.Layout | None
    dtype: object  # a dict where fields are to be converted
    wanted: Wanted | None  # the fields requested; others need not be readable
    mapped: bool
    cached: bool
    verify: bool
    on_error: Literal["raise", "skip"]

    def below(self, name: str) -> "_How":
        """Return the same for the source ``name`` of a dict."""
        wanted = self.wanted
        if wanted is not None:
            inside = f"{name}/"
            wanted = frozenset(w.removeprefix(inside) for w in wanted if w.startswith(inside))
        if not isinstance(self.dtype, dict):
            return self._replace(wanted=wanted)
        own = {n: t for n, t in self.dtype.items() if n == name or n.startswith(f"{name}/")}
        given = raw.layout(own[name]) if name in own else None  # the source may be a raw file
        return self._replace(layout=given, dtype=own or None, wanted=wanted)


class _Part(NamedTuple):
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


def _part(
    source: Source,
    how: _How,
    sample: Sample,
    *,
    prefix: str | None = None,
    fields: tuple[str, ...] | None = None,
) -> _Part:
    _check_sample(sample)
    skip = how.on_error == "skip"
    opened = open_table(source, Demand(how.layout, how.wanted, skip), cached=how.cached)
    _warn_of_skipped(opened.table)
    if how.verify:
        raise UnsupportedError(
            opened.table.path(0),
            "has no row checksums for verify=True to check",
            remedy="remove verify=, or make a copy that has them with ndfeed pack",
        )
    found = layout(opened.table, fields, how.dtype, prefix, sample)
    readings = samples.readings(found, sample)
    return _Part(opened, prefix, fields, how.dtype, how.mapped, found, readings)


def _parts(
    source: "Mapping[str, Source | Dataset]",
    sample: "Sample | Mapping[str, Sample]",
    how: _How,
    chosen: tuple[str, ...] | None,
) -> "list[_Part | Dataset]":
    """Open the sources of a dict."""
    ways = dict(sample) if isinstance(sample, Mapping) else dict.fromkeys(source, sample)
    if set(ways) - set(source):
        raise ValueError(f"sample= names {sorted(set(ways) - set(source))}, not in the source")
    for field in how.dtype if isinstance(how.dtype, dict) else ():
        if not any(field == name or field.startswith(f"{name}/") for name in source):
            raise FieldError(field, list(source))
    parts: list[_Part | Dataset] = []
    for name, one in source.items():
        way, own = ways.get(name, "auto"), how.below(name)
        if isinstance(one, Dataset):
            parts.append(_prefix_fields(_reopen(one, own), name))
            continue
        made = _open_packed(one, own, way, prefix=name)
        if made is None:
            inside = [f for f in chosen or () if f == name or f.startswith(f"{name}/")]
            fields = tuple(inside) or None
            parts.append(_part(one, own, way, prefix=name, fields=fields))
        else:
            parts.append(_prefix_fields(made, name))
    return parts


def _together(parts: "list[_Part | Dataset]", fields: tuple[str, ...] | None) -> Dataset:
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
            unclear = next(p for p in parts if isinstance(p, _Part) and len(p.readings) > 1)
            raise samples.refuse(_path(unclear), unclear.layout)
        settled.append(
            part if isinstance(part, Dataset) else part._replace(readings=[part.readings[fit[0]]])
        )
    made = _dataset(tuple(settled), None)
    return made if fields is None else made.select(*fields)


def _label(part: "_Part | Dataset") -> str:
    names = list(part.fields) if isinstance(part, Dataset) else list(part.layout.names)
    return repr(names[0])


def _path(part: "_Part | Dataset") -> str:
    return part.first_file if isinstance(part, Dataset) else os.fsdecode(part.opened.spellings[0])


def _prefix_fields(ds: Dataset, prefix: str) -> Dataset:
    """Return a dataset as one source of several: its fields below ``prefix``."""
    if ds.rows is not None or ds.steps:
        raise ValueError(f"{prefix!r}: put datasets together first, then take, split or map")
    alone = len(ds.fields) == 1
    groups = tuple(
        replace(
            group,
            columns=tuple(
                replace(
                    c, field=replace(c.field, name=prefix if alone else f"{prefix}/{c.field.name}")
                )
                for c in group.columns
            ),
        )
        for group in ds.groups
    )
    return Dataset(groups, (_prefix_fields, (ds, prefix)), why=ds.why, skipped=ds._skipped)


def _dataset(parts: "tuple[_Part | Dataset, ...]", why: str | None) -> Dataset:
    groups: list[Group] = []
    reasons: list[str] = []
    recipe: list[Any] = []
    for part in parts:
        if isinstance(part, Dataset):
            groups += part.groups
            reasons.append(part.why)
            recipe.append(part)
            continue
        way = part.readings[0]
        made = samples.group(part.layout, way.sample, mapped=part.mapped)
        if why is None:
            warn_of_scattered_rows(made)
        groups.append(made)
        reasons.append(way.why)
        # What was decided with a warning stays decided: a worker process need not warn again.
        dtype = _decided_dtype(part)
        recipe.append((part.opened, part.prefix, part.fields, dtype, part.mapped, way))
    named: dict[str, Group] = {}
    for group in groups:
        for column in group.columns:
            if column.field.name in named:
                problem = f"field {column.field.name!r} comes from two sources"
                raise SchemaError(group.table.path(0), problem, remedy="rename one")
            named[column.field.name] = group
    reason = why or "; ".join(dict.fromkeys(reasons))
    skipped = tuple(e for part in parts if isinstance(part, Dataset) for e in part._skipped)
    return Dataset(tuple(groups), (_rebuild, (recipe, reason)), why=reason, skipped=skipped)


def _decided_dtype(part: _Part) -> object:
    if not part.layout.typed:
        return part.dtype
    if not isinstance(part.dtype, dict):
        return "bfloat16" if part.dtype is None else part.dtype
    types = zip(part.layout.names, part.layout.types, strict=True)
    return part.dtype | {name: kind for name, kind in types if kind == "bfloat16"}


def _rebuild(recipe: list[Any], why: str) -> Dataset:
    """Recreate the dataset that pickled as ``recipe``."""
    parts: list[_Part | Dataset] = []
    for one in recipe:
        if isinstance(one, Dataset):
            parts.append(one)
            continue
        opened, prefix, fields, dtype, mapped, way = one
        found = layout(opened.table, fields, dtype, prefix, way.sample)
        parts.append(_Part(opened, prefix, fields, dtype, mapped, found, [way]))
    return _dataset(tuple(parts), why)


def _warn_of_skipped(table: Table) -> None:
    """Warn how many files were skipped, and what was wrong with the first."""
    if table.skipped:
        warnings.warn(
            f"{len(table.skipped):,} of {len(table.skipped) + table.files:,} files cannot be read "
            f"and are skipped (ds.skipped lists them), the first: {table.skipped[0]}",
            UserWarning,
            stacklevel=4,
        )


def warn_of_scattered_rows(group: Group) -> None:
    """Warn once about the cost of rows of Fortran-ordered arrays."""
    if not np.count_nonzero(group.table.strides >= 0):
        return
    for column in group.columns:
        for part in np.flatnonzero(column.strided & ~column.whole)[:1].tolist():
            array = int(column.arrays[part])
            table = column.table
            strides = table.dimensions(int(table.strides[array]))
            if len(strides) > 1 and strides[0] < max(strides[1:]) and column.nbytes[part] > 0:
                warnings.warn(
                    f"{shown(table.path(int(column.file[part])))}: Fortran order: a row of "
                    f"{shown_size(int(column.nbytes[part]))} is scattered over "
                    f"{shown_size(int(table.length[array]))}; save "
                    "np.ascontiguousarray(array) to read rows at full speed",
                    UserWarning,
                    stacklevel=4,
                )
                return
