"""The generator behind a ``tf.data.Dataset``, and the state of its consumer.

Where the consumer of a ``tf.data.Dataset`` stands.

TensorFlow asks for batches ahead of use, and does not say which of them were used. So whoever
uses them counts: ``advance()`` behind every batch, or ``ndfeed.keras.Resume`` in ``fit``.

Passes over a dataset, as TensorFlow asks for them.

TensorFlow keeps every function that it was ever given. So the one that it asks for a pass holds no
loader. A tensor does, which goes where the dataset goes, also into graphs that outlive it; and
where nothing but graphs is left of a dataset, its threads and memory end with every pass.
"""

import json
import secrets
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ndfeed.dataset.arguments import as_count
from ndfeed.errors import ResumeError
from ndfeed.loading.consumed import Consumed
from ndfeed.loading.engine import count_batches
from ndfeed.loading.loader import Loader
from ndfeed.tf.batch_format import BatchFormat


class State(Consumed, tf.train.experimental.PythonState):  # type: ignore[misc]
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


_NO_CONSTANT = 256  # elements; of few a graph would make a copy of its own
_MANY = 256  # batches; fewer may have been asked for ahead, by somebody who used only one


class GeneratorSource:
    """What TensorFlow calls for a pass, with the contents of the passes' owner if there is one.

    TensorFlow numbers Python functions in every process from 0. A graph that is sent to another
    process may find a function of another dataset there, under the number of ours.
    """

    def __init__(self, passes: "Generator") -> None:
        self._passes = weakref.ref(passes)
        self._mark = passes.mark

    def __call__(self, *owner: NDArray[np.uint8]) -> Iterator[Any]:
        """What the batches of a pass are made of."""
        if owner and owner[0].tobytes() != self._mark:
            raise RuntimeError(
                "this dataset was made in another process, and only that one can make its "
                "batches; call ndfeed.tf.dataset in the process that reads, with shard="
            )
        passes = self._passes()
        if passes is None:
            raise RuntimeError("the dataset is gone: keep what ndfeed.tf.dataset returned")
        return passes.arrays()


class _Owner(np.ndarray[Any, np.dtype[np.uint8]]):
    """Memory of a tensor, and what lives as long."""

    passes: "Generator"


def owner(passes: "Generator") -> tuple[tf.Tensor, ...]:
    """A tensor that keeps the passes alive; nothing where tensors are only symbols."""
    made = np.frombuffer(bytearray(passes.mark), np.uint8).view(_Owner)
    made.passes = passes
    with tf.init_scope():
        if not tf.executing_eagerly():
            return ()
        return (tf.experimental.dlpack.from_dlpack(made.__dlpack__()),)


class Generator:
    """The passes over a dataset. One that goes on in the middle of an epoch is shorter.

    TensorFlow asks for several at a time, each from a thread of its own.
    """

    def __init__(
        self, loader: Loader, form: BatchFormat, epochs: int | None, state: State | None
    ) -> None:
        self.loader = loader
        self.mark = secrets.token_bytes(_NO_CONSTANT)  # tells these passes from all others
        self._form = form
        self._epochs = epochs
        self._state = state
        self._next = 0  # the epoch that the next pass begins with, where no state says it
        self._last = 0  # the epoch that was asked for last
        self._begun: tuple[int, int] | None = None  # where the last pass began, with a state
        self._whole = False  # was all of its first epoch handed over?
        self._under_way = 0  # passes
        self._in_graphs = False  # is that all that is left of the dataset?
        self._lock = threading.Lock()

    @property
    def epoch(self) -> int:
        """The epoch in progress, as far as anybody can tell."""
        if self._state is not None:
            return self._state.epoch
        return self._last if self._under_way else self._next

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        number = as_count("epoch", epoch, 0, 1 << 62)
        if self._state is not None:
            self._state.go_to(number)
        self._next = number

    def arrays(self) -> Iterator[Any]:
        """What the batches of the next pass are made of."""
        with self._lock:
            epoch, start = self._begin()
            self._under_way += 1
        chain = self._epochs
        stop = None if chain is None else epoch - epoch % chain + chain
        try:
            while (stop is None or epoch < stop) and len(self.loader):
                self._last = epoch
                yield from self._epoch(epoch, start)
                epoch, start = epoch + 1, 0
        finally:
            with self._lock:
                self._under_way -= 1
            if self._in_graphs:
                self.leave()

    def leave(self) -> None:
        """Nobody but graphs may ask for passes from now on."""
        self._in_graphs = True
        if not self._under_way:
            self.loader.close()

    def _begin(self) -> tuple[int, int]:
        if self._state is not None:
            begun, place = self._begun, self._state.begin()
            forgotten = begun == place and self._whole and not self._state.in_fit
            if forgotten and len(self.loader) > _MANY:
                raise RuntimeError(
                    "a pass was used and no batch of it counted; call state.advance() behind "
                    "each, or give fit the callback ndfeed.keras.Resume(state)"
                )
            self._begun, self._whole = place, False
            return place
        epoch = self._next
        chain = self._epochs or 1
        self._next = epoch - epoch % chain + chain
        return epoch, 0

    def _epoch(self, epoch: int, start: int) -> Iterator[Any]:
        loader = self.loader
        share = loader.share
        if self._form.full and not share.drop_last and (share.n - start) % share.together:
            raise ResumeError(
                f"batches of {share.batch_size} do not come out after {start} samples",
                "restore the state before the dataset is made, or use drop_last=True",
            )
        batches = loader.at(epoch, start)
        left = share.batches(start)
        while left:
            found = next(batches)
            left -= count_batches(found)
            if not left:
                self._whole = True
                next(batches, None)  # the epoch is over: threads may go on with the next
            parts = self._form.arrays(found)
            del found  # not to be kept here while the next is made: its memory is still in cache
            while parts:
                yield parts.pop(0)
