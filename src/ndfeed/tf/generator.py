"""The generator behind a ``tf.data.Dataset``, and the state of its consumer.

TensorFlow prefetches batches and does not say which of them were used. So the code that uses them
counts: it calls ``advance()`` after every batch, or gives ``fit`` the callback
``ndfeed.keras.Resume``.

TensorFlow keeps every function that it was ever given. So the function that starts a pass refers to
no loader. A tensor does, which goes where the dataset goes, also into graphs that outlive it. Where
only graphs are left of a dataset, its threads and memory end with every pass.

Where data has grown, ``refresh`` makes the dataset anew. Graphs, and datasets that were derived
before, keep what TensorFlow was told of the old one: how many batches there are, and their shapes.
So each has a source of its own, which knows that, and refuses passes that would not fit.
"""

import json
import secrets
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.sampling import Missing
from ndfeed.errors import ResumeError
from ndfeed.loading.consumed import Consumed, Loaders
from ndfeed.loading.engine import count_batches
from ndfeed.loading.loader import Loader
from ndfeed.order.epoch import Share
from ndfeed.tf.batch_format import BatchFormat
from ndfeed.tf.framework_hacks import Element


class State(Consumed, tf.train.experimental.PythonState):  # type: ignore[misc]
    """The position of a training run; given to ``ndfeed.tf.dataset`` and saved with the model.

        state = ndfeed.tf.State()
        checkpoint = tf.train.Checkpoint(model=model, data=state)
        checkpoint.restore(path)  # before the dataset is used
        data = ndfeed.tf.dataset(ds, 256, shuffle=True, state=state)

    The next pass over the dataset starts at this position. A pass of which no batch was counted
    does not move it. ``State(grown=True)`` also continues where there are more files than before:
    the rest of the epoch has what was not used, and what is new.
    """

    def bind(self, loader: Loader, epochs: int | None) -> None:
        """Become the state of a dataset; called by ``ndfeed.tf.dataset``."""
        if self._loaders is not None:
            raise ValueError("a State belongs to one dataset; make one for each dataset")
        super().bind(loader, epochs)

    def _bound(self) -> Loaders:
        if self._loaders is None:
            raise RuntimeError("give the State to ndfeed.tf.dataset(..., state=state) first")
        return self._loaders

    def serialize(self) -> str:
        """Return the position as JSON, for ``tf.train.Checkpoint``."""
        return json.dumps(self.state_dict())

    def deserialize(self, string_value: str) -> None:
        """Restore the position from JSON, for ``tf.train.Checkpoint``."""
        try:
            found = json.loads(string_value)
        except (ValueError, RecursionError):
            raise ResumeError("the state in the checkpoint is damaged: it is no JSON") from None
        self.load_state_dict(found)


_NO_CONSTANT = 256  # elements; TensorFlow copies smaller tensors into a graph
_MANY = 256  # batches; fewer may all have been prefetched by a consumer that used only one


class GeneratorSource:
    """The function that TensorFlow calls to start a pass, with the content of the keeping tensor.

    TensorFlow was told that batches have a ``form``, and that a pass has ``most`` of them at most.

    TensorFlow numbers Python functions in every process from 0. A graph that is sent to another
    process may find a function of another dataset there, under the number of ours.
    """

    def __init__(self, passes: "Generator", form: BatchFormat, most: int | None = None) -> None:
        self._passes = weakref.ref(passes)
        self._mark = passes.mark
        self._told = form, most

    def __call__(self, *mark: NDArray[np.uint8]) -> Iterator[Element]:
        """Yield the arrays of a pass."""
        if mark and mark[0].tobytes() != self._mark:
            raise RuntimeError(
                "this dataset was made in another process, and only that one can make its "
                "batches; call ndfeed.tf.dataset in the process that reads, with shard="
            )
        passes = self._passes()
        if passes is None:
            raise RuntimeError("the dataset is gone: keep what ndfeed.tf.dataset returned")
        return passes.arrays(*self._told)


class Generator:
    """The passes over a dataset. One that resumes in the middle of an epoch is shorter.

    TensorFlow may run several at a time, each in a thread of its own.
    """

    def __init__(self, loader: Loader, epochs: int | None, state: State | None) -> None:
        self.mark = secrets.token_bytes(_NO_CONSTANT)  # tells these passes from all others
        self.most: int | None = None  # batches of a pass that the newest dataset has
        self._epochs = epochs
        self.state = state
        if state is not None:
            state.bind(loader, epochs)
        self._loaders = Loaders(loader) if state is None else state.loaders
        self._next = 0  # the epoch of the next pass, without a state
        self._last = 0  # the epoch that was requested last
        self._begun: tuple[int, int] | None = None  # where the last pass started, with a state
        self._whole = False  # was all of its first epoch delivered?
        self._in_progress = 0  # passes
        self._in_graphs = False  # are only graphs left of the dataset?
        self._lock = threading.RLock()  # a pass may be collected while this thread has it

    @property
    def loader(self) -> Loader:
        """The loader of the epochs that come."""
        return self._loaders.newest

    @property
    def endless(self) -> bool:
        """Does a pass never end?"""
        return self._epochs is None

    @property
    def in_fit(self) -> bool:
        """Does ``fit`` take batches, as far as anybody can tell?"""
        return self.state is not None and self.state.in_fit

    def count(self) -> int | None:
        """Return how many batches a pass has at most; ``None`` if it is endless or not known."""
        if self._epochs is None or not self.loader.order.traits.steady:
            return None
        count = self.loader.cuts.count_batches(range(self._epochs))
        # An epoch that was begun with smaller batches may have more of them.
        return count if self.state is None else max(count, self.state.left or 0)

    def are_full(self) -> bool:
        """Are all batches full, those of the epoch in progress and of the next ones?"""
        state = self.state
        if state is not None:
            cuts = self._loaders.of(state.epoch).cuts
            if not cuts.are_full(state.samples, state.epoch):
                return False
        return self.loader.cuts.are_always_full

    def refresh(self, missing: Missing, settle: float) -> int:
        """Let the epochs that come have the files there are now; return how many are new."""
        return self._loaders.look_anew(missing, settle)

    @property
    def epoch(self) -> int:
        """The epoch in progress, as far as anybody can tell."""
        if self.state is not None:
            return self.state.epoch
        return self._last if self._in_progress else self._next

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        number = as_count("epoch", epoch, 0, 1 << 62)
        if self.state is not None:
            self.state.go_to(number)
        self._next = number

    def arrays(self, form: BatchFormat, most: int | None = None) -> Iterator[Element]:
        """Yield the arrays of the next pass, if it has not more batches than TensorFlow takes."""
        with self._lock:
            epoch, start = self._begin()
            self._in_progress += 1
        chain = self._epochs
        stop = None if chain is None else epoch - epoch % chain + chain
        given = 0
        try:
            while (stop is None or epoch < stop) and len(self.loader):
                self._last = epoch
                current = epoch if self.state is None else self.state.epoch
                loader = self._loaders.begin(epoch, start, current)
                if most is not None and stop is not None:
                    self._check_room(most - given, self._loaders.count_batches(epoch, start, stop))
                given += loader.cuts(epoch).batches(start)
                yield from self._epoch(loader, epoch, start, form)
                epoch, start = epoch + 1, 0
        finally:
            with self._lock:
                self._in_progress -= 1
            if self._in_graphs:
                self.leave()

    @staticmethod
    def _check_room(room: int, left: int) -> None:
        """Refuse files that came after the number of batches was told to TensorFlow."""
        if left > room:
            raise RuntimeError(
                f"after refresh(), {left} batches are left of the pass, and this dataset was made "
                f"for {room}; call map() and the like again on what ndfeed.tf.dataset returned"
            )

    def leave(self) -> None:
        """Only graphs are left of the dataset: end threads and memory with every pass."""
        self._in_graphs = True
        if not self._in_progress:
            self.loader.close()

    def _begin(self) -> tuple[int, int]:
        if self.state is not None:
            return self._begin_at(self.state)
        epoch = self._next
        chain = self._epochs or 1
        self._next = epoch - epoch % chain + chain
        return epoch, 0

    def _begin_at(self, state: State) -> tuple[int, int]:
        """Begin a pass where a state says, unless it has more batches than TensorFlow takes."""
        begun, place = self._begun, state.begin()
        forgotten = begun == place and self._whole and not state.in_fit
        if forgotten and len(self.loader) > _MANY:
            raise RuntimeError(
                "a pass was used and no batch of it was counted; call state.advance() after "
                "each batch, or give fit the callback ndfeed.keras.Resume(state)"
            )
        self._begun, self._whole = place, False
        left = state.left
        if self.most is not None and left is not None and left > self.most:
            raise ResumeError(
                f"the pass has {left} batches, more than the {self.most} that the dataset was "
                "made for, since its epoch was begun with smaller batches",
                "restore the state before the dataset is made",
            )
        return place

    def _epoch(
        self, loader: Loader, epoch: int, start: int, form: BatchFormat
    ) -> Iterator[Element]:
        if form.full and not loader.cuts.are_full(start, epoch):
            raise _make_short_error(loader.share, start)
        batches = loader.at(epoch, start)
        left = loader.cuts(epoch).batches(start)
        while left:
            found = next(batches)
            left -= count_batches(found)
            if not left:
                self._whole = True
                next(batches, None)  # the epoch is over: threads may start the next one
            parts = form.arrays(found)
            del found  # its memory, still in the processor's cache, is for the next batch
            while parts:
                yield parts.pop(0)


def _make_short_error(share: Share, start: int) -> Exception:
    """Return the error for an epoch whose last batch is short, where all were to be full."""
    if not start:
        return RuntimeError(
            f"after refresh(), {share.n} samples are not a multiple of batch_size "
            f"{share.batch_size}, and this dataset was made for full batches; use drop_last=True, "
            "or call map() and the like again on what ndfeed.tf.dataset returned"
        )
    ranks = f" times {share.world} ranks" if share.world > 1 else ""
    return ResumeError(
        f"the samples left after {start} are not a multiple of batch_size "
        f"{share.batch_size}{ranks}",
        "restore the state before the dataset is made, or use drop_last=True",
    )
