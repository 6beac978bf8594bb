"""``ndfeed.open``: make a dataset from any source, reading only headers."""

import os
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple, cast

from ndfeed.dataset import packed_columns, ragged_files, ragged_formats, samples
from ndfeed.dataset.arguments import as_casts, as_names, check_arguments
from ndfeed.dataset.arrays import InMemory, is_array
from ndfeed.dataset.assemble import Part, make_dataset, put_together
from ndfeed.dataset.combine import ALONE, open_array, prefix_fields
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.layout import Sample, layout
from ndfeed.errors import FieldError, SchemaError, UnsupportedError, shown
from ndfeed.formats import raw
from ndfeed.formats.description import Wanted
from ndfeed.index.build import Demand
from ndfeed.index.open import open_packed, open_table
from ndfeed.index.source import Source, spell_source

_SAMPLES = ("auto", "row", "file")


def open(  # noqa: PLR0913 - each is a word of its own
    source: "Source | Dataset | InMemory | Mapping[str, Source | Dataset | InMemory]",
    *,
    fields: str | Sequence[str] | None = None,
    sample: "Sample | Mapping[str, Sample]" = "auto",
    dtype: object = None,
    shape: int | Sequence[int] | None = None,
    tail: Literal["error", "drop"] = "error",
    offsets: object = None,
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
    Arrays and tensors in memory are sources, too: rows of the first axis are samples, copied once
    into memory that processes share. So are datasets, with the rows and maps that they have.

    - ``sample``: what one sample is: ``"row"`` of the first axis, a whole ``"file"``, or
      ``"auto"``, which refuses to guess where both make sense. In a dict of sources, a dict too.
    - ``fields``: the fields to open; all by default.
    - ``dtype``, ``shape``: for raw files, the element type and the shape of one sample; each
      field of a structured dtype becomes a field. ``dtype`` also names the type of opaque
      elements in .npy files (bfloat16, float8). A dict of field to dtype converts fields as they
      are read, and unifies files that differ; a value that does not fit is a ``CastError``.
    - ``tail="drop"``: a raw file may end within a sample, which is left out.
    - ``offsets``: where samples of different lengths lie end to end in the first axis: n + 1
      ascending integers, in a file or an array; sample i is rows ``offsets[i]:offsets[i + 1]``.
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
    if offsets is not None:
        if sample != "auto" or on_error != "raise":
            raise ValueError("offsets= cannot be combined with sample= or on_error=")
        options: dict[str, Any] = {"sample": "row", "mapped": mapped, "cache": cache}
        raw_layout: dict[str, Any] = {"dtype": dtype, "shape": shape, "tail": tail}
        rows = open(source, fields=fields, verify=verify, **raw_layout, **options)
        ends = ragged_files.as_ends(offsets, lambda files: open(files, **options))
        return ragged_files.locate(rows, ends)
    chosen = as_names(fields)
    dtype = as_casts(dtype)
    wanted = None if chosen is None else frozenset(chosen)
    given = _raw_layout(dtype, shape, tail)
    how = _How(given, dtype, wanted, mapped, cache, bool(verify), on_error)
    if isinstance(source, Mapping):
        made = put_together(_parts(source, sample, how, chosen))
        return made if chosen is None else made.select(*chosen)
    if isinstance(sample, Mapping):
        raise TypeError("sample= may be a dict only where the source is one")
    if isinstance(source, Dataset) or is_array(source):
        made = _reopen(source, how, sample)
        return made if chosen is None else made.select(*chosen)
    spelled = spell_source(cast("Source", source))
    ready = _open_packed(spelled, how, sample, chosen)
    if ready is not None:
        return ready
    part = _part(spelled, how, sample, fields=chosen)
    return part if isinstance(part, Dataset) else _alone(part)


def _alone(part: "Part") -> Dataset:
    """Return the dataset of the only source."""
    dtype = part.dtype
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
    return make_dataset((part,), None)


def _raw_layout(dtype: object, shape: object, tail: str) -> raw.Layout | None:
    """Return what raw files hold, if the caller says so for all of them."""
    if tail not in ("error", "drop"):
        raise ValueError(f'tail must be "error" or "drop", got {tail!r}')
    if dtype is None or isinstance(dtype, dict):
        if shape is not None and dtype is not None:
            raise ValueError("shape= is for raw files, whose dtype= is one type, not a dict")
        return None
    found = raw.layout(dtype, () if shape is None else shape)
    return found._replace(drops_tail=tail == "drop")


def _reopen(source: object, how: "_How", sample: Sample, name: str = "") -> Dataset:
    """Return a dataset, or an array in memory, that was given as a source."""
    opened = isinstance(source, Dataset)
    away = "pass it to the ndfeed.open that opened the dataset" if opened else "convert the array"
    cast = isinstance(how.dtype, dict) or (not (name or opened) and how.dtype is not None)
    for word, given in (("verify", how.verify), ("dtype", cast)):
        if given:
            raise ValueError(f"{word}= is for files; {away}")
    if isinstance(source, Dataset):
        return source
    if sample == "file":
        raise ValueError("the samples of an array are its rows; remove sample=")
    return open_array(source, name or ALONE)


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


def _part(
    source: Source,
    how: _How,
    sample: Sample,
    *,
    prefix: str | None = None,
    fields: tuple[str, ...] | None = None,
) -> Part | Dataset:
    """Open one source; what has offsets of its own is a dataset already."""
    _check_sample(sample)
    skip = how.on_error == "skip"
    source = ragged_formats.replace_values(spell_source(source), typed=how.layout is not None)
    opened = open_table(source, Demand(how.layout, how.wanted, skip), cached=how.cached)
    samples.warn_of_skipped(opened.table)
    if how.verify:
        raise UnsupportedError(
            opened.table.path(0),
            "has no row checksums for verify=True to check",
            remedy="remove verify=, or make a copy that has them with ndfeed pack",
        )
    casts = how.dtype if prefix is None else _within(how.dtype, prefix, ["data"])  # type: ignore[arg-type]
    own = fields if prefix is None else None
    wish = ragged_formats.Wish(own, casts, how.mapped, sample)
    ragged = ragged_formats.open_ragged(opened, wish)
    if ragged is not None:
        return ragged if prefix is None else prefix_fields(ragged, prefix)
    found = layout(opened.table, fields, how.dtype, prefix, sample)
    readings = samples.readings(found, sample)
    return Part(opened, prefix, fields, how.dtype, how.mapped, found, readings)


def _parts(
    source: "Mapping[str, Source | Dataset | InMemory]",
    sample: "Sample | Mapping[str, Sample]",
    how: _How,
    chosen: tuple[str, ...] | None,
) -> "list[Part | Dataset]":
    """Open the sources of a dict."""
    ways = dict(sample) if isinstance(sample, Mapping) else dict.fromkeys(source, sample)
    if set(ways) - set(source):
        raise ValueError(f"sample= names {sorted(set(ways) - set(source))}, not in the source")
    for field in how.dtype if isinstance(how.dtype, dict) else ():
        if not any(field == name or field.startswith(f"{name}/") for name in source):
            raise FieldError(field, list(source))
    parts: list[Part | Dataset] = []
    for name, one in source.items():
        way, own = ways.get(name, "auto"), how.below(name)
        if isinstance(one, Dataset) or is_array(one):
            parts.append(prefix_fields(_reopen(one, own, way, name), name))
            continue
        paths = cast("Source", one)
        made = _open_packed(paths, own, way, prefix=name)
        if made is None:
            inside = [f for f in chosen or () if f == name or f.startswith(f"{name}/")]
            fields = tuple(inside) or None
            parts.append(_part(paths, own, way, prefix=name, fields=fields))
        else:
            parts.append(prefix_fields(made, name))
    return parts
