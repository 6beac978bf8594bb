"""The arguments shared by all loaders, and the structure of their batches.

Each framework's entry function passes what the caller wrote to ``settle``, which checks all of it
before anything is started. The structure of a batch is a nest of tuples, lists and dicts:

    fields=None                             {"x": x, "y": y, ...}: a dict of all fields
    fields="x"                              x
    fields=("x", "y")                       (x, y)
    fields=({"a": "x", "b": "z"}, "y")      ({"a": x, "b": z}, y)

Everything below the adapters handles dicts of field name to array. An adapter picks the fields
that are needed, converts them, and builds what the consumer gets: only there do tuples exist.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AnySet
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from ndfeed.dataset.arguments import as_bytes, as_count
from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import FieldError, SchemaError
from ndfeed.loading.facts import Facts
from ndfeed.loading.ragged import (
    RAGGED,
    Pads,
    PadTo,
    PadValue,
    Ragged,
    added_names,
    check,
    make_pads,
    owner,
)
from ndfeed.loading.state import LARGEST_SEED
from ndfeed.loading.token_budget import as_batch_size, order_by_length
from ndfeed.order.epoch import Share
from ndfeed.order.own import OwnOrder
from ndfeed.order.protocol import Order, is_order

# Names of fields in tuples, lists and dicts, or the values of those fields in the same structure.
Nest: TypeAlias = Any

Fields = str | Sequence["Fields"] | Mapping[str, "Fields"]

_EXPECTED = (
    "fields must be a tuple of names, or a name, a list or a dict of them, nested in any way "
    'such as ({"a": "x", "b": "z"}, "y")'
)


@dataclass(frozen=True, slots=True)
class Structure:
    """A checked nest of field names; by default all fields as a dict.

    ``names`` are its fields, each once, in the order of the nest; ``None`` means all. ``flat`` is
    the nest itself where it is a plain tuple of names.
    """

    nest: Nest = None
    names: tuple[str, ...] | None = field(init=False)
    flat: tuple[str, ...] | None = field(init=False)
    _build: Callable[[Any], Nest] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        nest = None if self.nest is None else _check_nest(self.nest, self.nest)
        names = None if nest is None else tuple(dict.fromkeys(_list_names(nest)))
        if names == ():
            raise ValueError("fields must name at least one field")
        flat = nest if type(nest) is tuple and all(isinstance(n, str) for n in nest) else None
        for name, value in {"nest": nest, "names": names, "flat": flat}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_build", None if nest is None else builder(nest))

    def pick(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a batch that are in the nest, in its order."""
        if self.names is None:
            return batch
        try:
            return {name: batch[name] for name in self.names}
        except KeyError as error:  # a map may return other fields for some samples
            raise FieldError(error.args[0], list(batch)) from None

    def build(self, batch: dict[str, Any]) -> Nest:
        """Return the nest with each name replaced by that field of the batch."""
        build = self._build
        if build is None:
            return batch
        try:
            return build(batch)
        except KeyError as error:
            raise FieldError(error.args[0], list(batch)) from None

    def with_tuples(self) -> "Structure":
        """Return it with tuples for lists, for frameworks that treat a list as an array."""
        return Structure(_without_lists(self.nest))


def builder(nest: Nest) -> Callable[[Any], Nest]:
    """Return a function that rebuilds a nest of keys with the values under each key."""
    if not isinstance(nest, tuple | list | dict):
        return itemgetter(nest)
    plain = not any(isinstance(one, tuple | list | dict) for one in nest)
    if type(nest) is tuple and plain and len(nest) > 1:
        return itemgetter(*nest)  # the common case: a tuple, made entirely in C
    return partial(_rebuild, nest)


def _rebuild(nest: Nest, parts: Mapping[Any, Any]) -> Nest:
    if isinstance(nest, dict):
        return {key: _rebuild(one, parts) for key, one in nest.items()}
    if isinstance(nest, tuple | list):
        return _rebuild_as(nest, [_rebuild(one, parts) for one in nest])
    return parts[nest]


def _rebuild_as(nest: tuple[Any, ...] | list[Any], items: list[Nest]) -> Nest:
    """The items in a tuple, named tuple or list as ``nest`` is."""
    if isinstance(nest, list):
        return items
    return type(nest)(*items) if hasattr(nest, "_fields") else tuple(items)


def _without_lists(nest: Nest) -> Nest:
    if isinstance(nest, dict):
        return {key: _without_lists(one) for key, one in nest.items()}
    if isinstance(nest, tuple | list):
        items = [_without_lists(one) for one in nest]
        return tuple(items) if isinstance(nest, list) else _rebuild_as(nest, items)
    return nest


def _check_nest(nest: object, fields: object) -> Nest:
    """Check what a caller wrote, ``fields``, and return it as a nest of plain containers."""
    if isinstance(nest, str):
        return nest
    if isinstance(nest, AnySet):
        names = sorted(map(str, nest))
        written = repr(tuple(names)) if names else '("x", "y")'
        raise TypeError(f"fields must have an order, which a set does not have; write {written}")
    if isinstance(nest, Mapping):
        if not all(isinstance(key, str) for key in nest):
            raise TypeError(f"{_EXPECTED}; a dict's keys are text, got {fields!r}")
        return {str(key): _check_nest(one, fields) for key, one in nest.items()}
    if isinstance(nest, Sequence) and not isinstance(nest, bytes | bytearray | memoryview | range):
        items = [_check_nest(one, fields) for one in nest]
        return _rebuild_as(nest, items) if isinstance(nest, tuple) else items
    raise TypeError(f"{_EXPECTED}, got {fields!r}")


def _list_names(nest: Nest) -> list[str]:
    if isinstance(nest, str):
        return [nest]
    parts = nest.values() if isinstance(nest, dict) else nest
    return [name for one in parts for name in _list_names(one)]


OnError = Literal["raise", "skip"]
# A dict is for the sources of a mixture.
Shuffle = bool | Order | OwnOrder | Mapping[str, bool | Order | OwnOrder]

_MOST_THREADS = 256


@dataclass(frozen=True, slots=True)
class Options:
    """How batches are made; not what they hold, nor their order."""

    seed: int = 0
    structure: Structure = field(default_factory=Structure)
    memory: int = 0
    threads: int | None = None
    processes: int | None = None
    ragged: Ragged = "list"
    on_error: OnError = "raise"
    pads: Pads = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What a loader is to deliver: from which samples, which of them, in which order, and how.

    ``ds`` has only the stored fields that batches are made of; ``facts`` are about all of them.
    """

    ds: Dataset
    share: Share
    shuffle: Shuffle
    options: Options
    facts: Facts

    @property
    def largest_batch(self) -> int:
        """How many samples of average size the largest batch here is worth."""
        if not is_order(self.shuffle):
            return self.share.size
        own = self.shuffle.largest_batch(self.facts.for_share(self.share))
        return own * len(self.share.ranks)


def settle(  # noqa: PLR0913 - the arguments that every loader shares
    ds: Dataset,
    batch_size: int | None,
    *,
    tokens: int | None = None,
    shuffle: Shuffle,
    shard: tuple[int, int],
    drop_last: bool,
    seed: int,
    fields: Fields | None,
    memory: int | str | None,
    threads: int | None,
    processes: int | None,
    ragged: Ragged,
    on_error: OnError,
    pad_to: PadTo | None = None,
    pad_value: PadValue | None = None,
) -> Request:
    """Check what a caller wrote or a framework filled in."""
    check_dataset(ds)
    size, budget = as_batch_size(batch_size, tokens)
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error must be "raise" or "skip", got {on_error!r}')
    structure = make_structure(ds, fields, ragged, on_error)
    pads: Pads = {}
    if pad_to is not None or pad_value is not None:
        pads = make_pads(ds, known_fields(ds), structure.names, ragged, pad_to, pad_value)
    options = Options(
        as_count("seed", seed, -LARGEST_SEED, LARGEST_SEED),
        structure,
        as_bytes(memory),
        as_threads(threads),
        None if processes is None else as_count("processes", processes, 0, _MOST_THREADS),
        ragged,
        on_error,
        pads,
    )
    share = Share(len(ds), size, *shard, bool(drop_last), tokens=budget)
    used = select_fields(ds, options.structure.names, ragged)
    if budget:
        shuffle = order_by_length(
            shuffle, stored_fields(used), pads, mixed=used.mixture is not None
        )
    return Request(used, share, shuffle, options, Facts(ds))


def check_dataset(ds: object) -> None:
    """Refuse a path, or another library's dataset."""
    if not isinstance(ds, Dataset):
        raise TypeError(f"expected a Dataset, got {type(ds).__name__}; call ndfeed.open first")


def as_threads(threads: int | None) -> int | None:
    """Check the number of threads; ``None`` where it is to be found out."""
    return None if threads is None else as_count("threads", threads, 1, _MOST_THREADS)


def as_shard(shard: Sequence[int] | None) -> tuple[int, int]:
    """Check and return rank and world size."""
    if shard is None:
        return 0, 1
    try:
        rank, world = shard
    except (TypeError, ValueError):
        raise TypeError(f"shard must be (rank, world), got {shard!r}") from None
    return rank, world


def select_fields(ds: Dataset, fields: Sequence[str] | None, ragged: Ragged) -> Dataset:
    """Return the dataset with only what ``fields``, which are known, are made of."""
    if fields is None or ds.steps:
        return ds
    needed = (name if name in ds.names else owner(name, ds.names, ragged) for name in fields)
    return ds.select(*dict.fromkeys(name for name in needed if name))


def refuse_dtype(ds: Dataset, field: Field, framework: str) -> SchemaError:
    """Make the error for a field whose dtype a framework does not have."""
    return SchemaError(
        ds.first_file,
        f"field {field.name!r} has dtype {field.dtype_text}, which {framework} cannot hold",
        remedy="leave it out with select() or fields=, or make numbers of it with map()",
    )


def stored_fields(ds: Dataset) -> list[Field]:
    """Return the fields as they are stored, before any map."""
    return [column.field for group in ds.groups for column in group.columns]


def known_fields(ds: Dataset) -> Mapping[str, Field] | None:
    """Return the fields of a batch; ``None`` where a map cannot be tried on the first sample."""
    if ds.steps and not len(ds):
        return None
    try:
        return ds.fields
    except Exception:  # noqa: BLE001 - a map may raise anything; it is raised in its batch
        return None


def side_by_side(ds: Dataset, on_error: OnError) -> bool:
    """Can batches be placed side by side in one array, each at its number?

    Not where samples differ in shape, nor where some may be skipped after a map.
    """
    known = known_fields(ds)
    even = known is not None and not any(f.ragged for f in (*stored_fields(ds), *known.values()))
    return even and not (ds.steps and on_error == "skip")


def make_structure(
    ds: Dataset, fields: Fields | None, ragged: Ragged, on_error: OnError = "raise"
) -> Structure:
    """Make the structure of batches, of fields that are all known."""
    if ragged not in RAGGED:
        raise ValueError(f"ragged must be one of {', '.join(map(repr, RAGGED))}, got {ragged!r}")
    uneven = [field for field in stored_fields(ds) if field.ragged and field.name in ds.names]
    for one in uneven if not ds.steps else ():
        check(one, ragged, ds.names)
    structure = Structure(fields)
    if structure.names is None:
        return structure
    # After a map the fields are what it makes of the first sample, which may be one to skip.
    unknown = known_fields(ds) is None if on_error == "skip" else ds.steps and not len(ds)
    known = list(structure.names) if unknown else list(ds.fields)
    added = [name for field in uneven for name in added_names(field, ragged)]
    for name in structure.names:
        made = ds.steps and owner(name, known, ragged)
        if name not in known and name not in added and not made:
            raise FieldError(name, known, ds.first_file if len(ds) else None)
    return structure
