"""Counts the batches that a prefetching consumer has really used.

TensorFlow and Keras prefetch batches and do not say which of them were used. So the code that
uses them counts, and that count is the consumer's position.

Where data grows, an epoch may have been begun by those who prefetch, with the data there was, and
still be to come for those who count. So each epoch that was begun keeps its loader, and the epochs
after it have the loader of the files there are now.
"""

from collections.abc import Mapping
from typing import Any

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.sampling import Missing
from ndfeed.loading.loader import Loader, look_anew
from ndfeed.loading.state import State


class Loaders:
    """The loaders of the epochs: ``newest``, and those that epochs in progress were begun with."""

    def __init__(self, newest: Loader) -> None:
        self.newest = newest
        self._begun: dict[int, Loader] = {}  # by epoch: what passes of training began it with

    def of(self, epoch: int) -> Loader:
        """Return the loader of an epoch: the one it was begun with, if it was."""
        return self._begun.get(epoch, self.newest)

    def begin(self, epoch: int, samples: int, current: int) -> Loader:
        """Return the loader of an epoch that a pass of training begins, or resumes.

        Epochs before the ``current`` one are over.
        """
        loader = self.of(epoch) if samples else self.newest
        others = {at: one for at, one in self._begun.items() if at >= current}
        self._begun = others | {epoch: loader}
        return loader

    def move(self, epoch: int, samples: int) -> None:
        """Note that a position in an epoch was chosen: samples of it are those of ``newest``."""
        others = {at: one for at, one in self._begun.items() if at != epoch}
        self._begun = others | ({epoch: self.newest} if samples else {})

    def forget_all(self) -> None:
        """Let all epochs be begun anew."""
        self._begun = {}

    def look_anew(self, missing: Missing, settle: float) -> int:
        """Let the epochs that come have the files there are now; return how many are new."""
        self.newest, new = look_anew(self.newest, missing, settle)
        return new

    def count_batches(self, epoch: int, start: int, end: int) -> int:
        """Return how many batches come from a sample of an epoch until before epoch ``end``."""
        count = self.of(epoch).cuts(epoch).batches(start)
        begun = range(epoch + 1, min(max(self._begun, default=0) + 1, end))
        count += sum(self.of(one).cuts(one).batches() for one in begun)
        return count + self.newest.cuts.count_batches(range(max(begun.stop, epoch + 1), end))


class Consumed:
    """Counts the batches used, over all passes over a loader.

    A pass has ``epochs`` epochs, or never ends. It starts at the counter's position; one that was
    abandoned counts as started, so that the next pass starts with the next epoch. During ``fit``
    only ``fit`` advances the counter: other passes, such as ``evaluate`` in a callback, start where
    the training pass started.

    With ``grown=True`` a state may be of fewer files than there are: what is new comes into the
    rest of its epoch, as ``Loader.load_state_dict`` says.
    """

    def __init__(self, *, grown: bool | Dataset = False) -> None:
        self.grown = grown
        self._loaders: Loaders | None = None
        self.epochs: int | None = 1
        self._restored: State | None = None
        self._epoch = 0
        self._start = 0  # samples of the epoch that were used before it was resumed
        self.batches = 0  # counted since
        self.in_fit = False  # does ``ndfeed.keras.Resume`` count?

    def bind(self, loader: Loader, epochs: int | None) -> None:
        """Count the batches of a loader."""
        self._loaders, self.epochs = Loaders(loader), epochs
        if self._restored is not None:
            self._go_to(self._restored)

    @property
    def loaders(self) -> Loaders:
        """The loaders of the epochs that are counted."""
        return self._bound()

    @property
    def epoch(self) -> int:
        """The epoch in progress."""
        return self._epoch

    @property
    def samples(self) -> int:
        """Samples of the epoch that were used, by all ranks together."""
        if self._loaders is None:
            return self._start
        return self._loaders.of(self._epoch).cuts(self._epoch).consumed(self.batches, self._start)

    @property
    def left(self) -> int | None:
        """Batches until the pass over the dataset ends; ``None`` if it never does."""
        if self.epochs is None:
            return None
        end = self._epoch + self.epochs - self._epoch % self.epochs
        return self._bound().count_batches(self._epoch, self._start, end) - self.batches

    def advance(self, batches: int = 1) -> None:
        """Count batches that were used."""
        number = as_count("batches", batches, 0, 1 << 62)
        self._bound()
        if self.in_fit:  # ``fit`` was interrupted; this loop started where it had started
            self.in_fit, self.batches = False, 0
        self.count(number)

    def count(self, batches: int) -> None:
        """Count batches, whoever used them."""
        self.batches += batches
        while self.batches >= (count := self._count_left()) > 0:
            self.batches -= count
            self._epoch, self._start = self._epoch + 1, 0

    def _count_left(self) -> int:
        """Return how many batches come of the epoch after its start."""
        return self._bound().of(self._epoch).cuts(self._epoch).batches(self._start)

    def begin(self) -> tuple[int, int]:
        """Return the epoch and the sample that a pass starts at; called by the dataset."""
        if self.batches and not self.in_fit:  # abandoned, so it counts as started
            self.go_to(self._epoch + 1)
        return self._epoch, self._start

    def go_to(self, epoch: int, samples: int = 0) -> None:
        """Move to a position in an epoch, where the next pass starts."""
        if self._loaders is not None:
            self._loaders.move(epoch, samples)
        self._epoch, self._start, self.batches = epoch, samples, 0

    def settle(self) -> None:
        """Let the next pass start at the counter's position, even in the middle of an epoch."""
        self._start, self.batches = self.samples, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the consumer's position as JSON of a few hundred bytes."""
        loaders, samples = self._bound(), self.samples
        loader = loaders.of(self._epoch) if samples else loaders.newest
        return loader.state_at(self._epoch, samples).as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, of this or any other kind of loader."""
        self._restored = State.of(state)
        if self._loaders is not None:
            self._go_to(self._restored)
        else:
            self.go_to(self._restored.epoch, self._restored.samples)

    def _go_to(self, place: State) -> None:
        loaders = self._bound()
        loader = loaders.newest
        loader.load_state_dict(place.as_dict(), grown=self.grown)  # refuses other data
        loaders.forget_all()
        now = State.of(loader.state_dict())
        self.go_to(now.epoch, now.samples)
        if now.samples and not self._count_left():  # an epoch with nothing left is over
            self.go_to(now.epoch + 1)

    def _bound(self) -> Loaders:
        if self._loaders is None:
            raise RuntimeError("a counter needs a loader first")
        return self._loaders
