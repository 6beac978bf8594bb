"""``ndfeed.mix``: several datasets as one, whose samples come in given proportions.

A mixture is the sum of its sources, which lie one after the other in it, and a note of the
proportions. The note is for loaders, which interleave the sources; nothing else changes.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ndfeed.dataset.choosing import check_unnumbered
from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.in_memory import make_constant
from ndfeed.dataset.map_steps import Beside
from ndfeed.dataset.proportions import ENDS, End, Proportions, Stages, make_stages
from ndfeed.dataset.remake import Change, not_growing, remade_by, remake
from ndfeed.errors import SchemaError
from ndfeed.index.open import Opened

_MOST_SOURCES = 256
_MOST_NAME = 200

_Own = Sequence[float] | Mapping[str, float]
Weights = _Own | Mapping[int, _Own] | Mapping[int | tuple[int, int], _Own]


def mix(
    sources: Mapping[str, Dataset],
    *,
    weights: Weights | None = None,
    end: End = "first",
    source: str | None = None,
) -> Dataset:
    """Return a dataset whose samples come from several others, in exact proportions.

    ``mix({"web": a, "code": b}, weights=[3, 1])`` gives three samples of ``a`` for each of ``b``.
    Sources may have different files and maps, and are each shuffled for themselves, but must have
    the same fields. Give the mixture to any loader, which interleaves them: of every source, the
    first ``p`` samples of an epoch have its share of ``p``, up to less than one sample. No sample
    of a source comes again before all of them came, over epochs as well.

    - ``weights``: a list, a dict by name, or a dict that says from when on which of these hold:
      from epoch 5 on the second ones of ``{0: [3, 1], 5: [1, 1]}``, and those of a pair such as
      ``(0, 100_000)`` from sample 100,000 of epoch 0 on, all ranks together. By default in
      proportion to the sources' samples. They become whole numbers, which ``ds.mixture`` shows. If
      these would add up to more than 65,536, they are rounded to that sum (up to 2**20, if the
      smallest needs it).
    - ``end``: how long an epoch is. ``"first"``: until one of the sources has delivered as many
      samples as it has. ``"last"``: until each of them has, while others begin again.
      ``"cycle"``: as many samples as all sources have together. ``len()`` of the mixture is that
      number, too, whatever ``end`` is.
    - ``source``: the name of a field to add, which says for each sample the number of its source;
      ``ds.classes`` has the names.

    ``shuffle=`` of a loader may be a dict with an order for each source. ``refresh()`` refreshes
    the sources and mixes them with the same arguments.
    """
    if not isinstance(sources, Mapping):
        raise TypeError(
            'mix takes a dict of names and datasets such as {"web": a, "code": b}, got '
            f"{type(sources).__name__}"
        )
    if end not in ENDS:
        raise ValueError(f'end must be "first", "last" or "cycle", got {end!r}')
    _check_sources(sources)
    _check_agreement(sources)
    names = tuple(sources)
    stages = make_stages(weights, names, tuple(map(len, sources.values())))
    return _mix(sources, stages, end, _Made(weights is None, source))


class _Made(NamedTuple):
    """Of the arguments of a mixture, those that it does not show: are weights those of the rows?"""

    by_rows: bool
    source: str | None


def _mix(sources: Mapping[str, Dataset], stages: Stages, end: End, made: _Made) -> Dataset:
    """Mix sources that were checked."""
    every = tuple(sources.values())
    prints = tuple(ds.fingerprint for ds in every)
    proportions = Proportions(tuple(sources), tuple(map(len, every)), stages, end, prints)
    numbered: Iterable[Dataset] = every
    if made.source is not None:
        _check_field(made.source, sources)
        numbered = [_number(ds, made.source, at) for at, ds in enumerate(every)]
    return _mixed(reduce(operator.add, numbered), proportions, made, every)


def _mix_again(
    change: Change, _: Dataset, known: Proportions, made: _Made, sources: tuple[Dataset, ...]
) -> Dataset:
    """Mix sources whose files have changed, or others in their place."""
    if isinstance(change, _Instead):
        return _remix(known, made, change.sources)
    return _remix(known, made, [remake(ds, change) for ds in sources])


@remade_by(_mix_again)
def _mixed(
    ds: Dataset, proportions: Proportions, made: _Made, sources: tuple[Dataset, ...]
) -> Dataset:
    """Return a sum of datasets as a mixture of them."""
    name = made.source
    classes = ds.classes if name is None else {**ds.classes, name: proportions.names}
    return ds.view(_mixed, proportions, made, sources, mixture=proportions, classes=classes)


def _remix(known: Proportions, made: _Made, sources: Sequence[Dataset]) -> Dataset:
    """Return a mixture of other sources with the same names and arguments."""
    named = dict(zip(known.names, sources, strict=True))
    _check_sources(named)
    _check_agreement(named)
    rows = tuple(map(len, sources))
    stages = make_stages(None, known.names, rows) if made.by_rows else known.stages
    return _mix(named, stages, known.end, made)


class _Instead:
    """A change of the sources of a mixture: others in their place."""

    def __init__(self, sources: Sequence[Dataset]) -> None:
        self.sources = sources

    def __call__(self, opened: Opened) -> Opened:
        return opened


def mix_others(ds: Dataset, sources: Sequence[Dataset]) -> Dataset:
    """Return a mixture, or a view of one, with other sources of the same names."""
    return remake(ds, _Instead(sources))


def list_sources(ds: Dataset) -> tuple[Dataset, ...]:
    """Return the sources of a mixture, or of a view of one."""
    function, args = ds._made
    while function is not _mixed:
        below = [one for one in args if isinstance(one, Dataset)]
        if not below:
            raise not_growing("in_memory()")
        function, args = below[0]._made
    sources: tuple[Dataset, ...] = args[-1]
    return sources


def _check_sources(sources: Mapping[Any, object]) -> None:
    """Refuse what cannot be mixed, before anything is added."""
    if not 2 <= len(sources) <= _MOST_SOURCES:
        raise ValueError(
            f"mix takes from 2 to {_MOST_SOURCES} sources, got {len(sources)}; give one dataset to "
            "the loader as it is, and add datasets that need no weight of their own"
        )
    seen: dict[int, str] = {}
    for name, ds in sources.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"names of sources must be text, got {name!r}")
        if len(name) > _MOST_NAME:
            raise ValueError(
                f"names of sources must have at most {_MOST_NAME} characters, got {len(name):,}; "
                "states list them, so choose shorter ones"
            )
        if not isinstance(ds, Dataset):
            raise TypeError(
                f"source {name!r}: expected a Dataset, got {type(ds).__name__}; call ndfeed.open "
                "first"
            )
        if id(ds) in seen:
            raise ValueError(
                f"sources {seen[id(ds)]!r} and {name!r} are the same dataset; give it one name and "
                "a larger weight"
            )
        seen[id(ds)] = name
        _check_source(name, ds)


def _check_source(name: str, ds: Dataset) -> None:
    check_unnumbered(ds, f"mix() of source {name!r}")
    if not len(ds):
        raise ValueError(
            f"source {name!r} is empty; leave it out, or check what it was opened from"
        )
    if ds.mixture is not None:
        raise ValueError(
            f"source {name!r} is a mixture itself; mix all sources at once, with weights that are "
            "the products"
        )


def _check_agreement(sources: Mapping[str, Dataset]) -> None:
    """Refuse sources whose fields are not those of the first one."""
    fields = {name: _find_fields(ds) for name, ds in sources.items()}
    first = next(iter(sources))
    for name, found in fields.items():
        if not found or not fields[first]:
            continue  # not known before the maps run
        if found.keys() != fields[first].keys():
            raise SchemaError(
                sources[name].first_file,
                f"source {name!r}: expected fields {sorted(fields[first])} as in source {first!r}, "
                f"found {sorted(found)}",
                remedy="select(), rename() or map() them to agree before mixing",
            )
        for field in found.values():
            known = fields[first][field.name]
            if field.dtype != known.dtype and not _are_texts(field, known):
                raise SchemaError(
                    sources[name].first_file,
                    f"source {name!r}: field {field.name!r}: expected {known.dtype_text} as in "
                    f"source {first!r}, found {field.dtype_text}",
                    remedy="convert one of them with map() before mixing",
                )
    for one in fields[first]:
        own = {name: found[one] for name, found in fields.items() if found}
        _check_shapes(one, own, sources)


def _check_shapes(name: str, fields: Mapping[str, Field], sources: Mapping[str, Dataset]) -> None:
    """Refuse a field that has one shape in each source, but not the same: batches would be lists.

    Where a source is ragged itself, they are lists anyway.
    """
    if any(field.ragged for field in fields.values()):
        return
    (first, known), *others = fields.items()
    for source, field in others:
        if field.shape != known.shape:
            raise SchemaError(
                sources[source].first_file,
                f"source {source!r}: field {name!r}: expected shape {known.shape_text} as in "
                f"source {first!r}, found {field.shape_text}",
                remedy="give them one shape with windows(), crops() or map() before mixing",
            )


def _find_fields(ds: Dataset) -> Mapping[str, Field]:
    """Return the fields of a source; none if a map cannot be tried."""
    try:
        return ds.fields
    except Exception:  # noqa: BLE001 - a map may raise anything; it does so again in its batch
        return {}


def _are_texts(one: Field, other: Field) -> bool:
    """Are both texts, which may differ in length?"""
    return one.dtype.kind == other.dtype.kind and one.dtype.kind in "US"


def _check_field(source: object, sources: Mapping[str, Dataset]) -> None:
    if not isinstance(source, str) or not source:
        raise TypeError(f"source must be the name of a field, got {source!r}")
    for name, ds in sources.items():
        if source in ds.fields or source in ds.names:
            raise ValueError(
                f"source={source!r} is a field of {name!r} already; choose another name"
            )


def _number(ds: Dataset, field: str, number: int) -> Dataset:
    """Add a field with the same number in every sample, which takes no memory."""
    made = make_constant([Field(field, np.dtype(np.int64), (), "<i8")], len(ds.groups[0]), number)
    return ds.view(
        _number,
        field,
        number,
        groups=(*ds.groups, made),
        names=(*ds.names, field),
        steps=(Beside((field,), ds.steps),) if ds.steps else (),
    )
