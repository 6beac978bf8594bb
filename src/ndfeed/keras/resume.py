"""A callback that counts what ``fit`` has used, so that it can be saved and gone on from."""

from collections.abc import Callable
from typing import Any, Protocol

import keras

from ndfeed.dataset.arguments import as_count


class Counter(Protocol):
    """Somebody who is told how many batches were used, such as ``ndfeed.tf.State``."""

    @property
    def left(self) -> int | None:
        """Batches until the pass over the dataset ends; nothing where it never does."""
        ...

    def advance(self, batches: int = 1) -> None:
        """Count batches that were used."""
        ...


class Resume(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the batches that ``fit`` used, and saves now and then.

        manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
        resume = ndfeed.keras.Resume(state, manager.save, every=100)
        model.fit(data, initial_epoch=state.epoch, epochs=10, callbacks=[resume, ...])

    ``save`` is called behind every ``every`` batches, and at the end of each epoch. Where a run
    goes on in the middle of an epoch, the first epoch of ``fit`` is what is left of it. For that
    this callback ends it, so it should come before others that may stop the training.
    """

    def __init__(
        self, state: Counter, save: Callable[[], Any] | None = None, every: int | None = None
    ) -> None:
        super().__init__()
        self._state = state
        self._save = save
        self._every = None if every is None else as_count("every", every, 1, 1 << 62)
        self._seen = 0  # batches of this epoch of fit
        self._unsaved = 0
        self._left: int | None = None  # batches until the pass over the dataset ends
        self._ended = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        self._seen, self._left = 0, self._state.left

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; ``batch`` is the last of those that were used since.

        With ``steps_per_execution`` its number may be higher than there were batches.
        """
        last = batch + 1 if self._left is None else min(batch + 1, self._left)
        new = last - self._seen
        self._seen = last
        self._unsaved += new
        self._state.advance(new)
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

    def _saved(self) -> None:
        self._unsaved = 0
        if self._save is not None:
            self._save()
