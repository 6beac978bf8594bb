"""``ndfeed.keras.dataset`` and ``Resume``: batches for ``fit``, and exact resume.

Keras gets its batches from passes over a loader (``feed``). Code that asks for a batch by number
gets that one, made when it is asked for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import keras

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.sampling import SETTLE, Missing
from ndfeed.keras.feed import Batch, Passes
from ndfeed.keras.framework_hacks import adopt_adapter
from ndfeed.loading.adapter import Arrays, Encoded
from ndfeed.loading.argument_hints import with_hints
from ndfeed.loading.budget import estimate_batch_bytes
from ndfeed.loading.consumed import Consumed
from ndfeed.loading.loader import Loader
from ndfeed.loading.options import (
    Fields,
    OnError,
    Options,
    Shuffle,
    Structure,
    as_shard,
    refuse_dtype,
    settle,
)
from ndfeed.loading.ragged import PadTo, PadValue
from ndfeed.loading.report import Report
from ndfeed.loading.runtime import BatchesByNumber
from ndfeed.order.protocol import OrderInUse

_TOGETHER = 32 << 20  # bytes of small batches that are made at a time
_AHEAD, _MOST_AHEAD = 16 << 20, 4  # bytes and batches that TensorFlow prefetches
_NUMBERS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("complex64", "complex128"),
)


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of an epoch for Keras; made by ``ndfeed.keras.dataset``.

    ``data[i]`` is batch ``i`` of the epoch in progress, and ``len(data)`` how many there are.
    ``fit`` takes epoch after epoch, prefetched. ``evaluate``, ``predict`` and loops over it read
    the epoch in progress and do not advance it.
    """

    def __init__(
        self, loader: Loader, at: BatchesByNumber, options: Options, ahead: int = 1
    ) -> None:
        super().__init__()
        self._at = at
        self._counter = Consumed()
        self._counter.bind(loader, 1)
        self._within = False
        self.passes = Passes(self._counter, options, ahead)

    @property
    def _loader(self) -> Loader:
        return self._counter.loaders.newest

    @property
    def workers(self) -> int:
        """How many workers Keras uses: one, which starts none, since batches are prefetched."""
        adopt_adapter()
        return 1

    def __len__(self) -> int:
        return self._counter.loaders.of(self.epoch).cuts(self.epoch).batches()

    def __getitem__(self, index: int) -> Batch:
        self._at.follow(self._counter.loaders.of(self.epoch).request)
        return self._at.batch(self.epoch, index)

    def __iter__(self) -> Iterator[Batch]:
        return self.passes.look()

    @property
    def order(self) -> OrderInUse:
        """How samples are ordered within an epoch."""
        return self._loader.order

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the next one; it can be set between two epochs."""
        return self._counter.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._counter.go_to(as_count("epoch", epoch, 0, 1 << 62))

    def refresh(self, *, missing: Missing = "raise", settle: float = SETTLE) -> int:
        """Look for files that came, and return how many samples are new.

        The next epoch has the samples of the files there are then, also the next one of ``fit`` if
        a callback calls this; an epoch in progress ends as it began. Files that are gone or have
        changed, or may still be written, are treated as by ``Dataset.refresh``.
        """
        return self._counter.loaders.look_anew(missing, settle)

    def report(self) -> Report:
        """Report how fast the last pass is, where its time goes, and the bottleneck."""
        return self._loader.report()

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples skipped by ``on_error="skip"``: row and error of the first 1,000."""
        return tuple((dict(self._loader.skipped) | dict(self._at.skipped)).items())

    @property
    def state(self) -> Consumed:
        """The position of training, from which another run resumes; for ``ndfeed.keras.Resume``."""
        return self._counter

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training as JSON of a few hundred bytes.

        With ``ndfeed.keras.Resume`` it counts what ``fit`` has used; without, what Keras was
        given, which may be some batches more.
        """
        return self._counter.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, grown: bool | Dataset = False) -> None:
        """Resume from a state: the next ``fit`` starts with the rest of its epoch.

        Refuses a state of other data or of another order. With ``grown=True`` there may be more
        files than there were: the rest of the epoch has what was not delivered, and what is new.
        """
        self._counter.grown = grown
        self._counter.load_state_dict(state)

    def on_epoch_begin(self) -> None:
        """Start an epoch; called by code that takes batches by number."""
        self._within = True
        self._counter.loaders.begin(self.epoch, 0, self.epoch)

    def on_epoch_end(self) -> None:
        """End the epoch; called by the same code. The next one has another order."""
        if self._within:
            self._within = False
            self._counter.go_to(self.epoch + 1)


@with_hints(
    ragged="samples of different shapes are always padded; pad_to= and pad_value= say how",
    epochs="give epochs= to fit",
    state="the state is part of what this returns: ndfeed.keras.Resume counts and saves it",
)
def dataset(  # noqa: PLR0913 - the arguments that every loader shares, and Keras's
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
    pad_to: PadTo | None = None,
    pad_value: PadValue | None = None,
    on_error: OnError = "raise",
    workers: int = 1,
    use_multiprocessing: bool = False,
    max_queue_size: int = 10,
) -> Batches:
    """Batches of a dataset for ``fit``, ``evaluate`` and ``predict``, with any backend.

    Takes the arguments of ``ndfeed.loader``, with the same meaning, and the same seed gives the
    same batches, in this order whatever ``shuffle`` of ``fit`` says. Samples of different shapes
    are padded.

    - ``fields``: a name, or any nest of names in tuples, lists and dicts. ``fit`` takes
      ``("x", "y")``; ``("x", "y", "weight")`` with the weight of each sample; and for models with
      several inputs or outputs ``({"a": "x", "b": "z"}, "y")`` with the names of the layers. With
      the TensorFlow backend lists come out as tuples.
    - ``workers``, ``use_multiprocessing``: for code that has them already; more than one worker
      means as many ``threads``, or ``processes``. Keras starts none of its own.
    - ``max_queue_size``: accepted and ignored; ``memory`` limits how much is prefetched.
    """
    workers = as_count("workers", workers, 0, 1 << 16)
    as_count("max_queue_size", max_queue_size, 1, 1 << 30)
    if use_multiprocessing and not processes:
        processes = max(workers, 1)
    elif workers > 1 and threads is None:
        threads = workers
    request = settle(
        ds, batch_size, tokens=tokens, shard=as_shard(shard), drop_last=drop_last, seed=seed,
        fields=fields, memory=memory, threads=threads, processes=processes, ragged="pad",
        on_error=on_error, pad_to=pad_to, pad_value=pad_value, shuffle=shuffle,
    )  # fmt: skip
    ds, options = request.ds, request.options
    adapt: Callable[[], Arrays] = partial(_KerasArrays, options.structure)
    ahead = 1
    if keras.backend.backend() == "tensorflow":  # which takes a list for a tensor
        options = replace(options, structure=options.structure.with_tuples())
        size = estimate_batch_bytes(ds, request.largest_batch, options.memory)
        ahead = max(min(_AHEAD // max(size, 1), _MOST_AHEAD), 1)
        adapt = partial(_TfArrays, options.structure, (ahead + 1) * size)
    names = options.structure.names
    for name, field in ds.fields.items():
        if names is None or name in names:
            _check_dtype(ds, field)
    loader = Loader(replace(request, options=options), adapt)
    alone = replace(request, options=replace(options, processes=0))
    return Batches(loader, BatchesByNumber(alone, adapt()), options, ahead)


class _KerasArrays(Arrays):
    """Makes more small batches at a time than others do.

    Whenever a thread of the loader has waited for the GIL, the thread of ``fit`` waits for it.
    """

    together = _TOGETHER


class _TfArrays(Encoded):
    """The same, with text as bytes, and ``held`` bytes of batches that TensorFlow prefetches."""

    together = _TOGETHER

    def __init__(self, structure: Structure, held: int) -> None:
        super().__init__(structure)
        self.held = held


def _check_dtype(ds: Dataset, field: Field) -> None:
    """Refuse dtypes that are no numbers; text, too, where the backend has none."""
    backend = keras.backend.backend()
    text = field.dtype.kind in "SU" and backend == "tensorflow"
    if not text and field.dtype.name not in _NUMBERS:
        raise refuse_dtype(ds, field, f"Keras with {backend}")


class Resume(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the batches that ``fit`` has used, and saves the position regularly.

        resume = ndfeed.keras.Resume(data, save, every=100)
        model.fit(data, initial_epoch=data.epoch, epochs=10, callbacks=[resume, ...])

    ``data`` is what ``ndfeed.keras.dataset`` returned, or the ``ndfeed.tf.State`` of a
    ``tf.data.Dataset``. ``save`` is called after every ``every`` batches, and at the end of each
    epoch. Where a run resumes in the middle of an epoch, the first epoch of ``fit`` is the rest of
    it, and the next ones are whole. This callback ends that first epoch, so it should come before
    others that may stop the training.
    """

    def __init__(
        self,
        state: Consumed | Batches,
        save: Callable[[], Any] | None = None,
        every: int | None = None,
    ) -> None:
        super().__init__()
        self._state: Consumed = state.state if isinstance(state, Batches) else state
        self._save = save
        self._every = None if every is None else as_count("every", every, 1, 1 << 62)
        self._seen = 0  # batches of this epoch of fit
        self._unsaved = 0
        self._left: int | None = None  # batches until the pass over the dataset ends
        self._ended = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Resume an epoch that was interrupted; called by Keras."""
        self._unsaved = 0
        self._ended = False
        self._state.settle()
        self._state.in_fit = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count from zero; called by Keras."""
        self._seen = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the batches up to number ``batch``; called by Keras.

        With ``steps_per_execution`` its number may be higher than there were batches.
        """
        if not self._seen:
            self._left = self._state.left
        last = batch + 1 if self._left is None else min(batch + 1, self._left)
        new = last - self._seen
        self._seen = last
        self._unsaved += new
        self._state.count(new)
        steps = self.params.get("steps")
        short = steps is None or self._seen < steps
        if self._seen == self._left and short and not self.model.stop_training:
            # Nothing is left of the epoch: Keras would ask for more, and warn.
            self._ended = self.model.stop_training = True
        if self._every is not None and self._unsaved >= self._every:
            self._save_now()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Save, and let the next epoch run; called by Keras."""
        if self._ended:
            self._ended = self.model.stop_training = False
        if self._unsaved:
            self._save_now()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop counting; called by Keras."""
        self._state.in_fit = False

    def _save_now(self) -> None:
        self._unsaved = 0
        if self._save is not None:
            self._save()
