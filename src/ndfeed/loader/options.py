"""The arguments that all loaders share, checked before anything is begun.

``settle`` is the one way in: each framework's entry function hands it what the caller wrote.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from ndfeed.dataset.arguments import as_bytes, as_count
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.field import Field
from ndfeed.errors import FieldError, SchemaError
from ndfeed.loader.padding import Pads, PadTo, PadValue, make_pads
from ndfeed.loader.ragged import RAGGED, Ragged, added_names, check, owner
from ndfeed.loader.state import LARGEST_SEED
from ndfeed.loader.structure import Fields, Structure
from ndfeed.order.orders import Blocks, Exact, Sequential, Windows
from ndfeed.order.share import Share

OnError = Literal["raise", "skip"]
Shuffle = bool | Sequential | Exact | Blocks | Windows

_MOST_THREADS = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How batches are made; what they hold and in which order is said elsewhere."""

    seed: int = 0
    structure: Structure = dataclasses.field(default_factory=Structure)
    memory: int = 0
    threads: int | None = None
    processes: int = 0
    ragged: Ragged = "list"
    on_error: OnError = "raise"
    pads: Pads = dataclasses.field(default_factory=dict)

    @classmethod
    def of(  # noqa: PLR0913 - the arguments that every loader shares
        cls,
        ds: Dataset,
        *,
        seed: int,
        fields: Fields | None,
        memory: int | str | None,
        threads: int | None,
        processes: int,
        ragged: Ragged,
        on_error: OnError,
        pad_to: PadTo | None = None,
        pad_value: PadValue | None = None,
    ) -> "Options":
        """What a caller wrote, checked."""
        check_dataset(ds)
        if on_error not in ("raise", "skip"):
            raise ValueError(f'on_error must be "raise" or "skip", got {on_error!r}')
        structure = make_structure(ds, fields, ragged)
        pads: Pads = {}
        if pad_to is not None or pad_value is not None:
            pads = make_pads(ds, known_fields(ds), structure.names, ragged, pad_to, pad_value)
        return cls(
            as_count("seed", seed, -LARGEST_SEED, LARGEST_SEED),
            structure,
            as_bytes(memory),
            as_threads(threads),
            as_count("processes", processes, 0, _MOST_THREADS),
            ragged,
            on_error,
            pads,
        )


class Request(NamedTuple):
    """What a loader is to deliver, all of it checked.

    ``ds`` has no stored fields but those that batches are made of.
    """

    ds: Dataset
    share: Share
    options: Options


def settle(  # noqa: PLR0913 - the arguments that every loader shares
    ds: Dataset,
    batch_size: int,
    *,
    shard: tuple[int, int],
    drop_last: bool,
    seed: int,
    fields: Fields | None,
    memory: int | str | None,
    threads: int | None,
    processes: int,
    ragged: Ragged,
    on_error: OnError,
    pad_to: PadTo | None,
    pad_value: PadValue | None,
) -> Request:
    """What a caller wrote, or a framework filled in, checked."""
    options = Options.of(
        ds,
        seed=seed,
        fields=fields,
        memory=memory,
        threads=threads,
        processes=processes,
        ragged=ragged,
        on_error=on_error,
        pad_to=pad_to,
        pad_value=pad_value,
    )
    share = Share(len(ds), batch_size, *shard, bool(drop_last))
    return Request(only(ds, options.structure.names, ragged), share, options)


def check_dataset(ds: object) -> None:
    """Refuse a path, or another library's dataset."""
    if not isinstance(ds, Dataset):
        raise TypeError(f"a Dataset is needed, got {type(ds).__name__}; ndfeed.open makes one")


def as_threads(threads: int | None) -> int | None:
    """How many threads, or nothing where that is to be found out."""
    return None if threads is None else as_count("threads", threads, 1, _MOST_THREADS)


def as_shard(shard: Sequence[int] | None) -> tuple[int, int]:
    """Rank and world."""
    if shard is None:
        return 0, 1
    try:
        rank, world = shard
    except (TypeError, ValueError):
        raise TypeError(f"shard must be (rank, world), got {shard!r}") from None
    return rank, world


def only(ds: Dataset, fields: Sequence[str] | None, ragged: Ragged) -> Dataset:
    """The dataset with nothing but what ``fields``, which are known, are made of."""
    if fields is None or ds.steps:
        return ds
    needed = (name if name in ds.names else owner(name, ds.names, ragged) for name in fields)
    return ds.select(*dict.fromkeys(name for name in needed if name))


def unheld(ds: Dataset, field: Field, framework: str) -> SchemaError:
    """What to raise for a field whose type a framework does not have."""
    return SchemaError(
        ds.first_file,
        f"field {field.name!r} has dtype {field.dtype_text}, which {framework} cannot hold; leave "
        "it out with select() or fields=, or make numbers of it with map()",
    )


def known_fields(ds: Dataset) -> Mapping[str, Field] | None:
    """The fields of a batch; unknown where a map cannot be tried on the first sample."""
    if ds.steps and not len(ds):
        return None
    try:
        return ds.fields
    except Exception:  # noqa: BLE001 - a map may raise anything; it is raised in its batch
        return None


def side_by_side(ds: Dataset, on_error: OnError) -> bool:
    """Can batches lie side by side in one piece, each where its number says?

    Not where samples differ in shape, nor where some may be left out behind a map.
    """
    stored = [column.field for group in ds.groups for column in group.columns]
    known = known_fields(ds)
    even = known is not None and not any(f.ragged for f in (*stored, *known.values()))
    return even and not (ds.steps and on_error == "skip")


def make_structure(ds: Dataset, fields: Fields | None, ragged: str) -> Structure:
    """The structure of batches, of fields that are all known."""
    if ragged not in RAGGED:
        raise ValueError(f"ragged must be one of {', '.join(map(repr, RAGGED))}, got {ragged!r}")
    stored = [column.field for group in ds.groups for column in group.columns]
    uneven = [field for field in stored if field.ragged and field.name in ds.names]
    for field in uneven if not ds.steps else ():
        check(field, ragged, ds.names)  # type: ignore[arg-type]
    structure = Structure(fields)
    if structure.names is None:
        return structure
    # Behind a map the fields are what it makes of the first sample.
    known = list(ds.fields) if len(ds) or not ds.steps else list(structure.names)
    added = [name for field in uneven for name in added_names(field, ragged)]  # type: ignore[arg-type]
    for name in structure.names:
        made = ds.steps and owner(name, known, ragged)  # type: ignore[arg-type]
        if name not in known and name not in added and not made:
            raise FieldError(name, known, ds.first_file if len(ds) else None)
    return structure
