"""``ndfeed.torch.loader``: epochs of batches as tensors.

The batches, their order and their states are those of ``ndfeed.loader``. What is added: tensors
instead of arrays, on a device if asked; rank and world size of ``torch.distributed``; and epochs
that start with the first batch, since frameworks call ``iter()`` only to look at a loader.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch.utils.data import SequentialSampler

from ndfeed.cuda.feed import check_resident
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.sampling import SETTLE, Missing
from ndfeed.loading import loader as arrays
from ndfeed.loading.adapter import Adapter
from ndfeed.loading.argument_hints import with_hints
from ndfeed.loading.flips import Flip, keep_drawn, make_flips
from ndfeed.loading.options import Fields, OnError, Shuffle, as_shard, settle
from ndfeed.loading.ragged import PadTo, PadValue
from ndfeed.loading.report import Report
from ndfeed.order.protocol import OrderInUse
from ndfeed.torch.batch_format import RAGGED, Batch, BatchFormat, Ragged
from ndfeed.torch.convert import Convert
from ndfeed.torch.cuda_feed import Feed, check_fits
from ndfeed.torch.distributed import agree, ranks, share_first
from ndfeed.torch.framework_hacks import is_read_to_overfit


class OnHost(Adapter):
    """Tensors on the CPU that share the memory of arrays; made in the thread that read them."""

    def __init__(self, form: BatchFormat) -> None:
        super().__init__(form.structure)
        self._form = form
        self.growth = form.growth
        self.draws = bool(form.flips)

    def finish(self, made: dict[str, Any]) -> Batch:
        """Make the batch of tensors."""
        form = self._form
        needed = keep_drawn(form.pick(made), made)
        return form.build(form.convert_all({n: form.tensor(n, a) for n, a in needed.items()}))


def _device_of(device: torch.device | str | int | None, resident: bool) -> torch.device:
    """Return the device that was asked for, if it exists and batches can be put there."""
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
        return torch.device("cuda", torch.cuda.current_device())  # what "cuda" means now
    return found


def adapter_for(
    ds: Dataset, form: BatchFormat, device: torch.device, *, resident: bool
) -> Callable[[], Adapter]:
    """Return a function that makes the adapter, in the process that uses it."""
    if device.type == "cpu":
        return partial(OnHost, form)
    if form.text:
        raise ValueError(
            f"field {form.text[0]!r} is text, which no GPU holds; leave it out with fields=, or "
            "use device=None and move the tensors with .to()"
        )
    if resident:
        check_resident(ds, ragged=form.ragged)
        check_fits(ds, device)
    return OnDevice(ds, device, form, resident)


@dataclass(frozen=True)
class OnDevice:
    """Makes the adapter of a CUDA device, which reads files by itself where it can."""

    ds: Dataset
    device: torch.device
    form: BatchFormat
    resident: bool

    def __call__(self) -> Feed:
        """Make the adapter, in the process that uses it."""
        return Feed(self.ds, self.device, self.form, resident=self.resident)

    def for_dataset(self, ds: Dataset) -> "OnDevice":
        """Return the same for a dataset that has more files."""
        if self.resident:
            check_fits(ds, self.device)
        return replace(self, ds=ds)


class Batches(Iterator[Batch]):
    """One pass over a loader, which starts with the first ``next()``."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader
        self._source: Iterator[Batch] | None = None

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Batch:
        if self._source is None:
            self._source = self._loader._start()
        return next(self._source)


class Epochs:
    """Where Lightning tells a loader which epoch comes: ``loader.batch_sampler.sampler``."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader

    @property
    def sampler(self) -> "Epochs":
        """This object: Lightning looks for a sampler of the batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set ``loader.epoch``."""
        self._loader.epoch = epoch


class Loader:
    """Epochs of batches of tensors; made by ``ndfeed.torch.loader``.

    Each ``for batch in loader`` is one epoch, and the next loop is the next epoch. An epoch starts
    with its first batch: ``iter()`` alone starts nothing.
    """

    def __init__(self, made: arrays.Loader, *, shard_given: bool) -> None:
        self._arrays = made
        self._shard_given = shard_given  # or are rank and world size those of torch.distributed?

    @property
    def dataset(self) -> Dataset:
        """The dataset that is loaded."""
        return self._arrays.dataset

    @property
    def batch_size(self) -> int | None:
        """Number of samples of a batch, on this rank; ``None`` with a budget of tokens."""
        share = self._arrays.share
        return None if share.tokens else share.batch_size

    def __len__(self) -> int:
        self._update_rank()
        return len(self._arrays)

    @property
    def order(self) -> OrderInUse:
        """How samples are ordered within an epoch."""
        return self._arrays.order

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the one that comes next.

        An epoch that was abandoned counts as started: the next loop is the next epoch. Set it to
        choose the epoch that comes next.
        """
        return self._arrays.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._arrays.epoch = epoch

    @property
    def batch_sampler(self) -> Epochs:
        """Where Lightning looks for a ``set_epoch``."""
        return Epochs(self)

    @property
    def sampler(self) -> "SequentialSampler":
        """Not available: the loader orders samples itself (``shuffle=``, ``loader.order``).

        Lightning looks for a sampler before it overfits, to turn shuffling off. Then this does so.
        """
        if is_read_to_overfit():
            self._stop_shuffling()
            return SequentialSampler(self.dataset)
        raise AttributeError(
            "a loader of ndfeed has no sampler: it orders samples itself; to skip batches, as "
            "accelerate.skip_first_batches does, give the loader an earlier state_dict() with "
            "load_state_dict()"
        )

    def _stop_shuffling(self) -> None:
        """Deliver samples in stored order, as Lightning lets a DataLoader do when it overfits."""
        if not self.order.traits.shuffled:
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

    def _start(self) -> Iterator[Batch]:
        """Start a pass, if all ranks are about to start the same one."""
        self._update_rank()
        return iter(self._arrays)

    def _update_rank(self) -> None:
        """Use the rank of torch.distributed, also if it was initialised after the loader."""
        if not self._shard_given:
            rank, world = ranks()
            self._arrays.share = replace(self._arrays.share, rank=rank, world=world)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON of a few hundred bytes; the same on every rank.

        It counts what was delivered, not what was prefetched.
        """
        return self._arrays.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, grown: bool | Dataset = False) -> None:
        """Resume from a state: the next loop delivers the rest of its epoch.

        Batch size, ranks, device and memory may differ. Refuses a state of other data or of
        another order. With ``grown=True`` there may be more files than there were: the rest of the
        epoch has what was not delivered, and what is new. Which files are new is told from their
        names and times; where that is impossible, pass the dataset of the old ones.
        """
        self._arrays.load_state_dict(state, grown=grown)

    def refresh(self, *, missing: Missing = "raise", settle: float = SETTLE) -> int:
        """Look for files that came, and return how many samples are new.

        The next epoch has the samples of the files there are then; an epoch in progress ends as it
        began. Files that are gone or have changed, or may still be written, are treated as by
        ``Dataset.refresh``. All ranks call this together: they take the files that rank 0 finds.
        """
        if self._shard_given or ranks()[1] == 1:
            return self._arrays.refresh(missing=missing, settle=settle)
        look = partial(arrays.look_again, self._arrays, missing, settle)

        def decide() -> tuple[int, list[str]]:
            new, list_files = look()
            return new, list_files()

        new, files = share_first(decide)
        return int(new) if ranks()[0] == 0 else look(files)[0]

    def report(self) -> Report:
        """Report how fast the current or last pass is, where its time goes, and the bottleneck."""
        return self._arrays.report()

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples skipped by ``on_error="skip"``: row and error of the first 1,000."""
        return self._arrays.skipped

    def close(self) -> None:
        """End threads and processes and release memory. Iterating again starts them anew."""
        self._arrays.close()

    def __copy__(self) -> "Loader":
        return Loader(copy.copy(self._arrays), shard_given=self._shard_given)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{self.report()}"


@with_hints(
    pin_memory="device='cuda' puts batches in device memory",
    pin_memory_device="device='cuda' puts batches in device memory",
    dtype="write convert={name: ndfeed.torch.Convert(torch.float32)}",
    cast="write convert={name: ndfeed.torch.Convert(torch.float32)}",
)
def loader(  # noqa: PLR0913 - the arguments that every loader shares, and a device's
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
    ragged: Ragged = "list",
    pad_to: PadTo | None = None,
    pad_value: PadValue | None = None,
    on_error: OnError = "raise",
    device: torch.device | str | int | None = None,
    convert: Mapping[str, Convert] | None = None,
    flip: Flip | None = None,
    resident: bool = False,
) -> Loader:
    """Batches of a dataset as tensors, prefetched, epoch after epoch.

    Takes all arguments of ``ndfeed.loader``, with the same meaning (``fields``, ``pad_to`` and
    ``pad_value`` among them), and the same seed gives the same batches.

    - ``shard=(rank, world)``: by default those of ``torch.distributed`` where it is initialised;
      then all ranks start a pass together, and it is an error if they would read other orders.
    - ``ragged="nested"``: samples of different lengths as a jagged ``torch.nested`` tensor.
    - ``device``: ``None`` or ``"cpu"`` for tensors that share the batch's memory; a CUDA device
      for tensors there.
    - ``convert``: a dict of field name to ``Convert``: another dtype, a scale, channels last. It
      runs on the device.
    - ``flip``: a dict of field name to an axis of a sample, as it is stored, or to several. Each
      is reversed for half of the samples, drawn anew in every epoch, and the same ones in every
      field: ``flip={"image": 1, "mask": 1}``. It runs on the device, before ``convert``.
    - ``resident=True``: hold the whole dataset in the memory of the CUDA device.
    """
    if ragged not in RAGGED:
        raise ValueError(f"ragged must be one of {', '.join(map(repr, RAGGED))}, got {ragged!r}")
    packed = "packed" if ragged == "nested" else ragged
    request = settle(
        ds, batch_size, tokens=tokens, shard=ranks() if shard is None else as_shard(shard),
        drop_last=drop_last, seed=seed, fields=fields, memory=memory, threads=threads,
        processes=processes, ragged=packed, on_error=on_error, pad_to=pad_to,
        pad_value=pad_value, shuffle=shuffle,
    )  # fmt: skip
    where = _device_of(device, resident)
    form = BatchFormat(request.ds, request.options.structure, convert, ragged, make_flips(flip))
    adapt = adapter_for(request.ds, form, where, resident=resident)
    check = _check_ranks if shard is None else None
    return Loader(arrays.Loader(request, adapt, check), shard_given=shard is not None)


def _check_ranks(loader: arrays.Loader) -> None:
    """Check, before a pass, that all ranks are about to read the same batches."""
    share = loader.share
    agree(share.as_facts() | loader.state_dict())
