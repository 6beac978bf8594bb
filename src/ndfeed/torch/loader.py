"""``ndfeed.torch.loader``: epochs of batches as tensors.

The batches, their order and their states are those of ``ndfeed.loader``. What is added: tensors
instead of arrays, on a device if asked; rank and world of ``torch.distributed``; and epochs that
begin with the first batch asked for, since frameworks call ``iter()`` to look at a loader.
"""

import copy
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch.utils.data import SequentialSampler

from ndfeed.dataset.dataset import Dataset
from ndfeed.loader import loader as arrays
from ndfeed.loader.foreign import with_hints
from ndfeed.loader.options import OnError, Shuffle, as_shard, settle
from ndfeed.loader.padding import PadTo, PadValue
from ndfeed.loader.report import Report
from ndfeed.loader.structure import Fields
from ndfeed.order.orders import Order, Sequential
from ndfeed.torch.adapt import adapter_for, device_of
from ndfeed.torch.convert import Convert
from ndfeed.torch.distributed import agree, ranks
from ndfeed.torch.form import RAGGED, Form, Ragged


class Batches(Iterator[Any]):
    """One pass over a loader, begun by the first ``next()``."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader
        self._source: Iterator[Any] | None = None

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Any:  # noqa: ANN401
        if self._source is None:
            self._source = self._loader._begin()
        return next(self._source)


class Epochs:
    """How Lightning tells a loader which epoch comes: ``loader.batch_sampler.sampler``."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader

    @property
    def sampler(self) -> "Epochs":
        """This."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """The same as setting ``loader.epoch``."""
        self._loader.epoch = epoch


class Loader:
    """Epochs of batches of tensors; made by ``ndfeed.torch.loader``.

    ``for batch in loader`` is one epoch, and each such loop the next one. An epoch counts as
    begun with the first batch that is asked for: ``iter()`` alone begins nothing.
    """

    def __init__(self, made: arrays.Loader, *, told: bool) -> None:
        self._arrays = made
        self._told = told  # was the rank said, or is it that of torch.distributed?

    @property
    def dataset(self) -> Dataset:
        """What is loaded."""
        return self._arrays.dataset

    @property
    def batch_size(self) -> int:
        """Samples of a batch, on this rank."""
        return self._arrays.share.batch_size

    def __len__(self) -> int:
        self._settle()
        return len(self._arrays)

    @property
    def order(self) -> Order:
        """How samples are ordered within an epoch."""
        return self._arrays.order

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the one that comes next.

        One that was left early counts as begun, and the next loop goes on with the next. Setting
        it says which one comes next.
        """
        return self._arrays.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._arrays.epoch = epoch

    @property
    def batch_sampler(self) -> Epochs:
        """Where Lightning looks for somebody to tell the number of the epoch."""
        return Epochs(self)

    @property
    def sampler(self) -> "SequentialSampler":
        """Not here: a loader orders samples itself, as ``shuffle=`` and ``loader.order`` say.

        Lightning looks for a sampler before it overfits, to turn shuffling off; then this does so.
        """
        if _asked_by("_resolve_overfit_batches"):
            self._stop_shuffling()
            return SequentialSampler(self.dataset)
        raise AttributeError(
            "a loader of ndfeed has no sampler, it orders samples itself; to skip batches, as "
            "accelerate.skip_first_batches does, give the loader an earlier state_dict() with "
            "load_state_dict()"
        )

    def _stop_shuffling(self) -> None:
        """Deliver samples as they are stored, as Lightning has a DataLoader do when it overfits."""
        if isinstance(self.order, Sequential):
            return
        warnings.warn(
            "overfit_batches needs the same batches in every epoch, so this loader no longer "
            "shuffles; make another one to train on all batches",
            stacklevel=4,
        )
        was = self._arrays
        was.close()
        self._arrays = arrays.Loader(was.dataset, was.share, False, was._options, was._adapt)

    def __iter__(self) -> Batches:
        return Batches(self)

    def _begin(self) -> Iterator[Any]:
        """The batches of a pass, if all ranks are about to begin the same."""
        self._settle()
        source = iter(self._arrays)
        if not self._told:
            share = self._arrays.share
            agree(
                {"batch_size": share.batch_size, "drop_last": share.drop_last} | self.state_dict()
            )
        return source

    def _settle(self) -> None:
        """Be the rank that torch.distributed says, also where it began after the loader."""
        if not self._told:
            rank, world = ranks()
            self._arrays.share = replace(self._arrays.share, rank=rank, world=world)

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer stands, as JSON of a few hundred bytes; the same on every rank.

        It counts what was delivered, not what was made ahead.
        """
        return self._arrays.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next loop delivers what is left of its epoch.

        Batch size, ranks, device and memory may be others than they were. Refuses a state of
        other data or of another order.
        """
        self._arrays.load_state_dict(state)

    def report(self) -> Report:
        """How fast the current or the last pass is, where its time goes, and what limits it."""
        return self._arrays.report()

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples left out by ``on_error="skip"``: the row and what was wrong, the first 1,000."""
        return self._arrays.skipped

    def close(self) -> None:
        """End threads and processes and let go of memory. Iterating begins anew."""
        self._arrays.close()

    def __copy__(self) -> "Loader":
        return Loader(copy.copy(self._arrays), told=self._told)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{self.report()}"


def _asked_by(function: str) -> bool:
    """Is the property that calls this read by ``function``, or by an expression in it?"""
    asking = sys._getframe(2)
    outer = asking.f_back
    return function in (asking.f_code.co_name, outer.f_code.co_name if outer else "")


@with_hints(
    pin_memory="device='cuda' gives batches in the memory of the device",
    pin_memory_device="device='cuda' gives batches in the memory of the device",
    dtype="write convert={name: ndfeed.torch.Convert(torch.float32)}",
    cast="write convert={name: ndfeed.torch.Convert(torch.float32)}",
)
def loader(  # noqa: PLR0913 - the arguments that every loader shares, and a device's
    ds: Dataset,
    batch_size: int,
    *,
    shuffle: Shuffle = False,
    seed: int = 0,
    drop_last: bool = False,
    fields: Fields | None = None,
    shard: Sequence[int] | None = None,
    memory: int | str | None = None,
    threads: int | None = None,
    processes: int = 0,
    ragged: Ragged = "list",
    pad_to: PadTo | None = None,
    pad_value: PadValue | None = None,
    on_error: OnError = "raise",
    device: torch.device | str | int | None = None,
    convert: Mapping[str, Convert] | None = None,
    resident: bool = False,
) -> Loader:
    """Batches of a dataset as tensors, made ahead of use, epoch after epoch.

    Takes all arguments of ``ndfeed.loader``, with the same meaning (``fields``, ``pad_to`` and
    ``pad_value`` among them), and the same seed gives the same batches.

    - ``shard=(rank, world)``: by default those of ``torch.distributed`` where it is initialised;
      then all ranks begin a pass together, and it is an error if they would read other orders.
    - ``ragged="nested"``: samples of different lengths as a jagged ``torch.nested`` tensor.
    - ``device``: ``None`` or ``"cpu"`` for tensors that share the batch's memory; a CUDA device
      for tensors there.
    - ``convert``: a dict of field name to ``Convert``: another type, a scale, channels last. It
      is done on the device.
    - ``resident=True``: hold the whole set in the memory of the CUDA device.
    """
    if ragged not in RAGGED:
        raise ValueError(f"ragged must be one of {', '.join(map(repr, RAGGED))}, got {ragged!r}")
    packed = "packed" if ragged == "nested" else ragged
    ds, share, options = settle(
        ds, batch_size, shard=ranks() if shard is None else as_shard(shard), drop_last=drop_last,
        seed=seed, fields=fields, memory=memory, threads=threads, processes=processes,
        ragged=packed, on_error=on_error, pad_to=pad_to, pad_value=pad_value,
    )  # fmt: skip
    where = device_of(device, resident)
    form = Form(ds, options.structure, convert, ragged)
    adapt = adapter_for(ds, form, where, resident=resident)
    made = arrays.Loader(ds, share, shuffle, options, adapt)
    return Loader(made, told=shard is not None)
