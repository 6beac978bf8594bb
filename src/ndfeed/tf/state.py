"""Where the consumer of a ``tf.data.Dataset`` stands.

TensorFlow asks for batches ahead of use, and does not say which of them were used. So whoever
uses them counts: ``advance()`` behind every batch, or ``ndfeed.keras.Resume`` in ``fit``.
"""

import json
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from ndfeed.dataset.arguments import as_count
from ndfeed.errors import ResumeError
from ndfeed.loader.loader import Loader
from ndfeed.loader.state import State as Place


class State(tf.train.experimental.PythonState):  # type: ignore[misc]
    """How far training has come; given to ``ndfeed.tf.dataset`` and saved with the model.

        state = ndfeed.tf.State()
        checkpoint = tf.train.Checkpoint(model=model, data=state)
        checkpoint.restore(path)  # before the dataset is used
        data = ndfeed.tf.dataset(ds, 256, shuffle=True, state=state)

    The next pass over the dataset begins where it stands. A pass of which no batch was counted
    is as if it had not been.
    """

    def __init__(self) -> None:
        self._loader: Loader | None = None
        self._epochs: int | None = 1
        self._restored: Place | None = None
        self._epoch = 0
        self._start = 0  # samples of the epoch that were used before it was gone on with
        self._batches = 0  # counted since

    def bind(self, loader: Loader, epochs: int | None) -> None:
        """Be the state of a dataset; called by it."""
        if self._loader is not None:
            raise ValueError("a State belongs to one dataset; make another for another")
        self._loader, self._epochs = loader, epochs
        if self._restored is not None:
            self._go_to(self._restored)

    @property
    def epoch(self) -> int:
        """The epoch in progress."""
        return self._epoch

    @property
    def samples(self) -> int:
        """Samples of the epoch that were used, by all ranks together."""
        if self._loader is None:
            return self._start
        return self._loader.share.consumed(self._batches, self._start)

    @property
    def left(self) -> int | None:
        """Batches until the pass over the dataset ends; nothing where it never does."""
        if self._epochs is None:
            return None
        share = self._bound().share
        more = self._epochs - self._epoch % self._epochs - 1
        return share.batches(self._start) - self._batches + more * share.batches()

    def advance(self, batches: int = 1) -> None:
        """Count batches that were used."""
        share = self._bound().share
        self._batches += as_count("batches", batches, 0, 1 << 62)
        while self._batches >= (count := share.batches(self._start)) > 0:
            self._batches -= count
            self._epoch, self._start = self._epoch + 1, 0

    def begin(self) -> tuple[int, int]:
        """The epoch and the samples of it that a pass begins with; called by the dataset."""
        if self._batches:  # it was left early, and counts as begun
            self._epoch, self._start, self._batches = self._epoch + 1, 0, 0
        return self._epoch, self._start

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer stands, as JSON of a few hundred bytes."""
        return self._place(self._bound()).as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of this or of any other kind of loader."""
        self._restored = Place.of(state)
        if self._loader is not None:
            self._go_to(self._restored)
        else:
            self._epoch, self._start = self._restored.epoch, self._restored.samples

    def _go_to(self, place: Place) -> None:
        loader = self._bound()
        loader.load_state_dict(place.as_dict())  # refuses one of other data
        self._epoch, self._start, self._batches = place.epoch, place.samples, 0
        self.advance(0)  # an epoch of which nothing is left is over

    def _place(self, loader: Loader) -> Place:
        known = Place.of(loader.state_dict())
        return Place(known.seed, self._epoch, self.samples, known.order, known.rows, known.data)

    def _bound(self) -> Loader:
        if self._loader is None:
            raise RuntimeError("give the State to ndfeed.tf.dataset(..., state=state) first")
        return self._loader

    def serialize(self) -> str:
        """For ``tf.train.Checkpoint``."""
        return json.dumps(self.state_dict())

    def deserialize(self, string_value: str) -> None:
        """For ``tf.train.Checkpoint``."""
        try:
            found = json.loads(string_value)
        except (ValueError, RecursionError):
            raise ResumeError("the state in the checkpoint is damaged: it is no JSON") from None
        self.load_state_dict(found)
