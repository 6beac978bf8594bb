"""Counts the batches that a prefetching consumer has really used.

TensorFlow and Keras prefetch batches and do not say which of them were used. So the code that
uses them counts, and that count is the consumer's position.
"""

from collections.abc import Mapping
from typing import Any

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.dataset import Dataset
from ndfeed.loading.loader import Loader
from ndfeed.loading.state import State


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
        self._loader: Loader | None = None
        self.epochs: int | None = 1
        self._restored: State | None = None
        self._epoch = 0
        self._start = 0  # samples of the epoch that were used before it was resumed
        self.batches = 0  # counted since
        self.in_fit = False  # does ``ndfeed.keras.Resume`` count?

    def bind(self, loader: Loader, epochs: int | None) -> None:
        """Count the batches of a loader."""
        self._loader, self.epochs = loader, epochs
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
        return self._loader.cuts(self._epoch).consumed(self.batches, self._start)

    @property
    def left(self) -> int | None:
        """Batches until the pass over the dataset ends; ``None`` if it never does."""
        if self.epochs is None:
            return None
        loader = self._bound()
        coming = range(self._epoch + 1, self._epoch + self.epochs - self._epoch % self.epochs)
        left = loader.cuts(self._epoch).batches(self._start) - self.batches
        return left + loader.cuts.count_batches(coming)

    def advance(self, batches: int = 1) -> None:
        """Count batches that were used."""
        number = as_count("batches", batches, 0, 1 << 62)
        self._bound()
        if self.in_fit:  # ``fit`` was interrupted; this loop started where it had started
            self.in_fit, self.batches = False, 0
        self.count(number)

    def count(self, batches: int) -> None:
        """Count batches, whoever used them."""
        cuts = self._bound().cuts
        self.batches += batches
        while self.batches >= (count := cuts(self._epoch).batches(self._start)) > 0:
            self.batches -= count
            self._epoch, self._start = self._epoch + 1, 0

    def begin(self) -> tuple[int, int]:
        """Return the epoch and the sample that a pass starts at; called by the dataset."""
        if self.batches and not self.in_fit:  # abandoned, so it counts as started
            self.go_to(self._epoch + 1)
        return self._epoch, self._start

    def go_to(self, epoch: int, samples: int = 0) -> None:
        """Move to a position in an epoch, where the next pass starts."""
        self._epoch, self._start, self.batches = epoch, samples, 0

    def settle(self) -> None:
        """Let the next pass start at the counter's position, even in the middle of an epoch."""
        self._start, self.batches = self.samples, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the consumer's position as JSON of a few hundred bytes."""
        return self._bound().state_at(self._epoch, self.samples).as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, of this or any other kind of loader."""
        self._restored = State.of(state)
        if self._loader is not None:
            self._go_to(self._restored)
        else:
            self.go_to(self._restored.epoch, self._restored.samples)

    def _go_to(self, place: State) -> None:
        loader = self._bound()
        loader.load_state_dict(place.as_dict(), grown=self.grown)  # refuses other data
        now = State.of(loader.state_dict())
        self.go_to(now.epoch, now.samples)
        self.count(0)  # an epoch with nothing left is over

    def _bound(self) -> Loader:
        if self._loader is None:
            raise RuntimeError("a counter needs a loader first")
        return self._loader
