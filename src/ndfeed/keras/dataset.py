"""``ndfeed.keras.dataset``: batches by number, as Keras asks for them.

Keras tells when an epoch begins and ends; behind each one comes the next of ours. It also looks
at batches to build a model with, and says that an epoch ended before any was begun: neither
counts.
"""

import sys
from collections.abc import Sequence
from typing import Any

import keras

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.field import Field
from ndfeed.loader.at import At
from ndfeed.loader.options import OnError, Options, Shuffle, as_shard, only, unheld
from ndfeed.order.orders import Order
from ndfeed.order.share import Share

_NUMBERS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("complex64", "complex128"),
)


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of an epoch, each made when it is asked for; made by ``ndfeed.keras.dataset``.

    ``data[i]`` is batch ``i`` of the epoch in progress, and ``len(data)`` how many there are.
    """

    def __init__(
        self, at: At, *, workers: int, use_multiprocessing: bool, max_queue_size: int
    ) -> None:
        super().__init__(
            workers=workers, use_multiprocessing=use_multiprocessing, max_queue_size=max_queue_size
        )
        self._at = at
        self._epoch = 0
        self._within = False

    def __len__(self) -> int:
        return self._at.share.batches()

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        return self._at.batch(self._epoch, index)

    @property
    def order(self) -> Order:
        """How samples are ordered within an epoch."""
        return self._at.order

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the next if none is; it can be set between two."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = as_count("epoch", epoch, 0, 1 << 62)

    def on_epoch_begin(self) -> None:
        """Called by Keras."""
        self._within = not _building()

    def on_epoch_end(self) -> None:
        """Called by Keras; the next epoch is another."""
        if self._within:
            self._within = False
            self._epoch += 1


def _building() -> bool:
    """Does Keras only want a batch to build a model with?

    It says that an epoch begins, takes a batch, and says that it ended, as with a real one; who
    asks is all that tells.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name.endswith("_symbolic_build"):
            return True
    return False


def dataset(  # noqa: PLR0913 - the words that every loader shares, and Keras's
    ds: Dataset,
    batch_size: int,
    *,
    shuffle: Shuffle = False,
    seed: int = 0,
    drop_last: bool = False,
    fields: Sequence[str] | None = None,
    shard: Sequence[int] | None = None,
    memory: int | str | None = None,
    on_error: OnError = "raise",
    workers: int = 1,
    use_multiprocessing: bool = False,
    max_queue_size: int = 10,
) -> Batches:
    """Batches of a dataset for ``fit``, ``evaluate`` and ``predict``, with any backend.

    The words of ``ndfeed.loader`` mean the same here, and the same seed gives the same batches:
    pass ``shuffle=False`` to ``fit``, or Keras shuffles the order of batches once more. Samples
    of different shapes are padded.

    - ``workers``, ``use_multiprocessing``, ``max_queue_size``: those of ``PyDataset``. With more
      than one worker and PyTorch or JAX, have the model built before ``fit``, such as by
      ``model.test_on_batch(*data[0])``: else Keras takes batches to build it with, and hands
      those that it fetched meanwhile out once more.
    """
    options = Options.of(
        ds,
        seed=seed,
        fields=fields,
        memory=memory,
        threads=None,
        processes=0,
        ragged="pad",
        on_error=on_error,
    )
    rank, world = as_shard(shard)
    share = Share(len(ds), batch_size, rank, world, bool(drop_last))
    ds = only(ds, options.fields, "pad")
    for name, field in ds.fields.items():
        if options.fields is None or name in options.fields:
            _check(ds, field)
    return Batches(
        At(ds, share, shuffle, options),
        workers=as_count("workers", workers, 0, 1 << 16),
        use_multiprocessing=bool(use_multiprocessing),
        max_queue_size=as_count("max_queue_size", max_queue_size, 1, 1 << 30),
    )


def _check(ds: Dataset, field: Field) -> None:
    """Refuse what is no number; text, too, where the backend has none."""
    backend = keras.backend.backend()
    text = field.dtype.kind in "SU" and backend == "tensorflow"
    if not text and field.dtype.name not in _NUMBERS:
        raise unheld(ds, field, f"Keras with {backend}")
