"""A callback that counts what ``fit`` has used, so that it can be saved and gone on from."""

from collections.abc import Callable
from typing import Any

import keras

from ndfeed.dataset.arguments import as_count
from ndfeed.keras.dataset import Batches
from ndfeed.loader.counter import Counter


class Resume(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the batches that ``fit`` used, and saves now and then.

        resume = ndfeed.keras.Resume(data, save, every=100)
        model.fit(data, initial_epoch=data.epoch, epochs=10, callbacks=[resume, ...])

    ``data`` is what ``ndfeed.keras.dataset`` returned, or the ``ndfeed.tf.State`` of a
    ``tf.data.Dataset``. ``save`` is called behind every ``every`` batches, and at the end of each
    epoch. Where a run goes on in the middle of an epoch, the first epoch of ``fit`` is what is
    left of it, and the next are whole. For that this callback ends it, so it should come before
    others that may stop the training.
    """

    def __init__(
        self,
        state: Counter | Batches,
        save: Callable[[], Any] | None = None,
        every: int | None = None,
    ) -> None:
        super().__init__()
        self._state: Counter = state.state if isinstance(state, Batches) else state
        self._save = save
        self._every = None if every is None else as_count("every", every, 1, 1 << 62)
        self._seen = 0  # batches of this epoch of fit
        self._unsaved = 0
        self._left: int | None = None  # batches until the pass over the dataset ends
        self._ended = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; an epoch that was interrupted is gone on with."""
        self._unsaved = 0
        self._ended = False
        self._state.settle()
        self._state.in_fit = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        self._seen = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; ``batch`` is the last of those that were used since.

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
            # Nothing is left of the epoch: to ask for more would be a warning.
            self._ended = self.model.stop_training = True
        if self._every is not None and self._unsaved >= self._every:
            self._saved()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if self._ended:
            self._ended = self.model.stop_training = False
        if self._unsaved:
            self._saved()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        self._state.in_fit = False

    def _saved(self) -> None:
        self._unsaved = 0
        if self._save is not None:
            self._save()
