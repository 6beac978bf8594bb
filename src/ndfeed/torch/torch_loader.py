"""``ndfeed.torch.loader``: epochs of batches as tensors.

What a loader of arrays is told, so that its batches become tensors where they are wanted.

``ndfeed.torch.loader``: epochs of batches as tensors.

The batches, their order and their states are those of ``ndfeed.loader``. What is added: tensors
instead of arrays, on a device if asked; rank and world of ``torch.distributed``; and epochs that
begin with the first batch asked for, since frameworks call ``iter()`` to look at a loader.
"""

import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch.utils.data import SequentialSampler

from ndfeed.dataset.dataset import Dataset
from ndfeed.loading import loader as arrays
from ndfeed.loading.adapter import Adapter
from ndfeed.loading.argument_hints import with_hints
from ndfeed.loading.options import Fields, OnError, Shuffle, as_shard, settle
from ndfeed.loading.ragged import PadTo, PadValue
from ndfeed.loading.report import Report
from ndfeed.order.orders import Order
from ndfeed.torch.batch_format import RAGGED, Batch, BatchFormat, Ragged
from ndfeed.torch.convert import Convert
from ndfeed.torch.cuda.feed import Feed, check_fits
from ndfeed.torch.distributed import agree, ranks


class OnHost(Adapter):
    """Tensors on the CPU, in the memory of the arrays; made in the thread that read them."""

    def __init__(self, form: BatchFormat) -> None:
        super().__init__(form.structure)
        self._form = form
        self.growth = form.growth

    def finish(self, made: dict[str, Any]) -> Batch:
        """The batch of tensors."""
        form = self._form
        needed = form.picked(made)
        return form.arranged({n: form.converted(n, form.tensor(n, a)) for n, a in needed.items()})


def device_of(device: torch.device | str | int | None, resident: bool) -> torch.device:
    """The device that was asked for, if there is one and batches can be fed to it."""
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ValueError(f"device must be such as 'cpu' or 'cuda:0', got {device!r}") from error
    if found.type not in ("cpu", "cuda"):
        raise ValueError(
            f"device must be 'cpu' or a CUDA device, got {device!r}; "
            "device=None gives CPU tensors, which .to() moves"
        )
    if found.type == "cpu" and resident:
        raise ValueError(
            "resident=True holds the data in a GPU's memory and needs device='cuda'; "
            "ds.in_memory() holds it in RAM"
        )
    if found.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("torch.cuda is not available: device=None gives CPU tensors")
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())  # "cuda" is whichever is current
    return found


def adapter_for(
    ds: Dataset, form: BatchFormat, device: torch.device, *, resident: bool
) -> Callable[[], Adapter]:
    """What makes an adapter, in the process that it is to be used in."""
    if device.type == "cpu":
        return partial(OnHost, form)
    if form.text:
        raise ValueError(
            f"field {form.text[0]!r} is text, which no GPU holds; leave it out with fields=, or "
            "use device=None and move the tensors with .to()"
        )
    if resident:
        if ds.steps or form.ragged:
            raise ValueError(
                "resident=True holds samples as they are stored, all of one shape; leave out "
                "map() and ragged fields, or resident"
            )
        check_fits(ds, device)
    return partial(Feed, ds, device, form, resident=resident)


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
        if not self.order.shuffled:
            return
        warnings.warn(
            "overfit_batches needs the same batches in every epoch, so this loader no longer "
            "shuffles; make another one to train on all batches",
            stacklevel=4,
        )
        self._arrays.close()
        self._arrays = arrays.reorder(self._arrays, False)

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
    pin_memory="device='cuda' puts batches in device memory",
    pin_memory_device="device='cuda' puts batches in device memory",
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
    request = settle(
        ds, batch_size, shard=ranks() if shard is None else as_shard(shard), drop_last=drop_last,
        seed=seed, fields=fields, memory=memory, threads=threads, processes=processes,
        ragged=packed, on_error=on_error, pad_to=pad_to, pad_value=pad_value, shuffle=shuffle,
    )  # fmt: skip
    where = device_of(device, resident)
    form = BatchFormat(request.ds, request.options.structure, convert, ragged)
    adapt = adapter_for(request.ds, form, where, resident=resident)
    return Loader(arrays.Loader(request, adapt), told=shard is not None)
