"""Where the consumer of a ``tf.data.Dataset`` stands.

TensorFlow asks for batches ahead of use, and does not say which of them were used. So whoever
uses them counts: ``advance()`` behind every batch, or ``ndfeed.keras.Resume`` in ``fit``.
"""

import json

import tensorflow as tf

from ndfeed.errors import ResumeError
from ndfeed.loader.counter import Counter
from ndfeed.loader.loader import Loader


class State(Counter, tf.train.experimental.PythonState):  # type: ignore[misc]
    """How far training has come; given to ``ndfeed.tf.dataset`` and saved with the model.

        state = ndfeed.tf.State()
        checkpoint = tf.train.Checkpoint(model=model, data=state)
        checkpoint.restore(path)  # before the dataset is used
        data = ndfeed.tf.dataset(ds, 256, shuffle=True, state=state)

    The next pass over the dataset begins where it stands. A pass of which no batch was counted
    is as if it had not been.
    """

    def bind(self, loader: Loader, epochs: int | None) -> None:
        """Be the state of a dataset; called by it."""
        if self._loader is not None:
            raise ValueError("a State belongs to one dataset; make another for another")
        super().bind(loader, epochs)

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
