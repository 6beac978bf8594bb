"""``ndfeed.jax.loader`` and ``ndfeed.jax.source``: batches as JAX arrays, samples for Grain.

The batches, their order and their states are those of ``ndfeed.loader``, and so is the loader
itself. What is added: arrays on devices and meshes, checked casts, and the processes of
``jax.distributed``.

Processes take their parts of one order. If one of them had another seed, or another batch size,
some samples would be read twice and others never, and a global array would be made of parts that
do not belong together. So what has to be the same is compared when a pass starts: one small
collective, in which every process takes part.

Grain asks for a length and for samples by number, one at a time or, where a transformation takes
many, through ``_getitems``, which is one read. That method is no documented part of Grain (tried
with 0.2.18): a Grain without it asks for one sample at a time. Samples are NumPy arrays, as Grain
expects them.
"""

import json
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, SupportsIndex, TypeAlias

import jax
import numpy as np
from jax.experimental import multihost_utils

from ndfeed.dataset.dataset import Dataset
from ndfeed.jax.adapter import ToDevices, device_of
from ndfeed.jax.batch_format import BatchFormat, Casts
from ndfeed.jax.shardings import Placement, Shardings, check_names, on_the_mesh
from ndfeed.loading.argument_hints import with_hints
from ndfeed.loading.flips import Flip, make_flips
from ndfeed.loading.loader import Loader
from ndfeed.loading.options import (
    Fields,
    OnError,
    Shuffle,
    Structure,
    as_shard,
    check_dataset,
    known_fields,
    make_structure,
    settle,
    side_by_side,
)
from ndfeed.loading.ragged import PadTo, PadValue, Ragged
from ndfeed.loading.state import check_alike
from ndfeed.order.epoch import Share

PATIENCE = 10.0  # seconds after which a process says that it is waiting
_ROOM = 4096  # bytes of JSON; what is compared takes a few hundred
Sample: TypeAlias = Any  # arrays in the structure that ``fields=`` has


def ranks() -> tuple[int, int]:
    """Return the index of this process and the number of processes, as JAX has them."""
    return jax.process_index(), jax.process_count()


def agree(facts: Mapping[str, Any]) -> None:
    """Raise, in every process, where processes have different ``facts``."""
    if jax.process_count() == 1:
        return
    text = json.dumps(facts).encode().ljust(_ROOM)
    with _warn_if_it_waits():
        gathered = multihost_utils.process_allgather(np.frombuffer(text, np.uint8))
    found = [json.loads(bytes(np.asarray(one, np.uint8))) for one in gathered]
    check_alike(
        found,
        "processes",
        "in process",
        "give each of them the same, or shard=(0, 1) to a loader that is one process's own",
    )


@contextmanager
def _warn_if_it_waits() -> Iterator[None]:
    """Warn, from another thread, if the block takes long; the block continues."""
    timer = threading.Timer(PATIENCE, _warn, [jax.process_index()])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _warn(process: int) -> None:
    warnings.warn(
        f"process {process} has waited {PATIENCE:.0f} s for the other processes to begin a pass: "
        "all processes iterate over a loader together; give shard=(0, 1) to a loader that process "
        f"{process} alone iterates over, such as one for validation",
        RuntimeWarning,
        stacklevel=2,
    )


@with_hints(
    dtype='write cast="float32", or cast={name: "float32"}',
    convert='write cast="float32", or cast={name: "float32"}',
    mesh="write sharding=NamedSharding(mesh, PartitionSpec(axis))",
)
def loader(  # noqa: PLR0913 - the arguments that every loader shares, and a mesh's
    ds: Dataset,
    batch_size: int | None = None,
    *,
    shuffle: Shuffle = False,
    tokens: int | None = None,
    seed: int = 0,
    drop_last: bool = False,
    fields: Fields | None = None,
    shard: Sequence[int] | None = None,
    memory: int | str | None = None,
    threads: int | None = None,
    processes: int | None = None,
    ragged: Ragged = "pad",
    pad_to: PadTo | None = None,
    pad_value: PadValue | None = None,
    on_error: OnError = "raise",
    sharding: Shardings | None = None,
    cast: Casts = None,
    flip: Flip | None = None,
    device: jax.Device | str | None = None,
    resident: bool = False,
) -> Loader:
    """Batches of a dataset as JAX arrays, prefetched to the devices that use them.

    Takes all arguments of ``ndfeed.loader``, with the same meaning (``fields``, ``pad_to`` and
    ``pad_value`` among them), and the same seed gives the same batches. ``batch_size`` is the
    length of the arrays that come out.

    - ``shard=(rank, world)``: by default process and number of processes of JAX; then all
      processes start a pass together, and it is an error if they would read other orders.
    - ``ragged``: samples of different shapes are ``"pad"``-ded by default.
    - ``device``: one of ``jax.local_devices()``, or a platform such as ``"cpu"``, that arrays are
      committed to. By default they are not, and follow what they are used with.
    - ``sharding``: where arrays lie, or a dict of field name to that; a ``PartitionSpec`` is for
      the mesh of ``jax.set_mesh``. With devices of several processes batches are global arrays,
      and each process reads the rows of its own devices. Axes that an array does not have are
      left out of a ``NamedSharding``.
    - ``cast``: a dict of field name to dtype; or one dtype for all fields of its kind, such as
      ``"float32"`` for all floating-point fields. 64-bit integers become 32-bit ones without
      being asked, unless ``jax_enable_x64`` is on; float64 needs a cast. Every value is checked:
      ``CastError`` for one that does not fit.
    - ``flip``: a dict of field name to an axis of a sample, or to several. Each is reversed for
      half of the samples, drawn anew in every epoch, and the same ones in every field:
      ``flip={"image": 1, "mask": 1}``.
    - ``resident=True``: hold the whole dataset in the memory of the GPU.
    """
    every = ds
    request = settle(
        ds, batch_size, tokens=tokens, shard=(0, 1), drop_last=drop_last, seed=seed, fields=fields,
        memory=memory, threads=threads, processes=processes, ragged=ragged, on_error=on_error,
        pad_to=pad_to, pad_value=pad_value, shuffle=shuffle,
    )  # fmt: skip
    ds, whole, options = request.ds, request.share, request.options
    if device is not None and sharding is not None:
        raise ValueError("device and sharding both say where arrays go; leave out one of them")
    where = device_of(device)
    if sharding is not None:
        check_names(sharding, known_fields(every))
    form = BatchFormat(ds, options.structure, cast, options.pads, make_flips(flip))
    layout = None
    if sharding is not None:
        if on_error == "skip":
            raise ValueError(
                'on_error="skip" makes batches shorter, which a sharding cannot divide; leave out '
                "one of them"
            )
        if ds.steps and len(ds):
            _ = ds.fields  # a sharding needs shapes; raises what the map raises
        layout = Placement(
            on_the_mesh(sharding), form.fields, options.structure.names, whole.batch_size
        )
    share = _share(whole, layout, shard)
    asks = shard is None and (layout is None or layout.is_everybody_s)
    check = partial(_check_pass, layout, asks)
    alone = layout is None or layout.only is not None
    joint = alone and side_by_side(ds, on_error) and not options.pads
    room = options.memory if joint else 0
    adapt = ToDevices(ds, form, layout, share.size, room, where, resident)
    made = Loader(replace(request, share=share), adapt, check)
    _check_last(layout, made, 0)
    return made


def _share(whole: Share, layout: Placement | None, shard: Sequence[int] | None) -> Share:
    """Return which samples this process reads."""
    if layout is None or not layout.spans_processes:
        rank, world = ranks() if shard is None else as_shard(shard)
        return replace(whole, rank=rank, world=world)
    if shard is not None:
        raise ValueError(
            "shard and a sharding with devices of several processes both say what a process reads; "
            "leave out one of them"
        )
    (rank, *others), world = layout.ranks, layout.world
    size = whole.batch_size // world
    return replace(whole, batch_size=size, rank=rank, world=world, others=tuple(others))


def _check_last(layout: Placement | None, loader: Loader, start: int) -> None:
    """Refuse a short last batch that a sharding does not divide."""
    cut, share = loader.cuts(loader.epoch), loader.share
    if layout is None or loader.cuts.are_full(start, loader.epoch):
        return
    if not cut.even:
        raise ValueError(
            f"{loader.order} makes batches of different sizes, which a sharding cannot divide; "
            "leave out one of them"
        )
    left = (cut.n - start) % share.together
    lengths = {left}
    if not layout.spans_processes:  # each process has an array of its own
        lengths = {left // share.world, -(-left // share.world)}
    for length in lengths:
        layout.check(length, "the last batch", "drop_last=True leaves it out")


def _check_pass(layout: Placement | None, asks: bool, loader: Loader) -> None:
    """Check, before a pass, that all processes agree and that all batches can be sharded."""
    state, share = loader.state_dict(), loader.share
    if asks:
        agree(replace(share, batch_size=share.together).as_facts() | state)
    _check_last(layout, loader, state["samples"])


class Source:
    """The samples of a dataset; made by ``ndfeed.jax.source``.

    It holds no data and no open file: it pickles in a few kilobytes, and each process reads for
    itself. Its ``repr`` identifies the samples; Grain compares it when a run resumes.
    """

    def __init__(self, ds: Dataset, structure: Structure) -> None:
        self.ds = ds
        self._structure = structure

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, row: SupportsIndex) -> Sample:
        """Return one sample: a dict of arrays, or the structure of ``fields=``."""
        return self._structure.build(self.ds[row])

    def _getitems(self, rows: Sequence[int]) -> list[Sample]:
        """Return the samples ``rows``, in one read."""
        batch = self.ds.read(rows)
        # The ellipsis makes an array even of a sample that is a single number.
        columns = {
            name: values if isinstance(values, list) else [values[i, ...] for i in range(len(rows))]
            for name, values in batch.items()
        }
        build = self._structure.build
        return [build({n: v[at] for n, v in columns.items()}) for at in range(len(rows))]

    def __repr__(self) -> str:
        nest = self._structure.nest
        names = "" if nest is None else f", fields={nest}"
        return f"ndfeed.jax.Source({self.ds.fingerprint}, {len(self)} samples{names})"


@with_hints()
def source(ds: Dataset, fields: Fields | None = None) -> Source:
    """Make a data source for ``grain.MapDataset.source`` and ``grain.DataLoader``.

    Samples are dicts of arrays, or have the structure of ``fields``: a name, or any nest of names
    in tuples, lists and dicts, as for ``ndfeed.loader``. Any number of threads and of worker
    processes may read from it. A random function given to ``map`` draws the same for a sample in
    every epoch: use transformations of Grain for random ones.
    """
    check_dataset(ds)
    structure = make_structure(ds, fields, "list")
    return Source(ds if structure.names is None else ds.select(*structure.names), structure)
