"""Passes over a dataset, as TensorFlow asks for them."""

import weakref
from collections.abc import Iterator
from typing import Any

from ndfeed.errors import ResumeError
from ndfeed.loader.engine import counted
from ndfeed.loader.loader import Loader
from ndfeed.tf.form import Form
from ndfeed.tf.state import State

_MANY = 256  # batches; fewer may have been asked for ahead, by somebody who used only one


class Source:
    """What TensorFlow calls for a pass.

    It keeps every function that it was ever given. So this one holds no loader: the dataset
    does, and the loader's threads and memory end with it.
    """

    def __init__(self, passes: "Passes") -> None:
        self._passes = weakref.ref(passes)

    def __call__(self) -> Iterator[Any]:
        """What the batches of a pass are made of."""
        passes = self._passes()
        if passes is None:
            raise RuntimeError("the dataset is gone: keep what ndfeed.tf.dataset returned")
        return passes.arrays()


class Passes:
    """The passes over a dataset, one at a time. One that goes on in the middle is shorter."""

    def __init__(self, loader: Loader, form: Form, epochs: int | None, state: State | None) -> None:
        self._loader = loader
        self._form = form
        self._epochs = epochs
        self._state = state
        self._next = 0  # the epoch that the next pass begins with, where no state says it
        self._begun: tuple[int, int] | None = None  # where the last pass began, with a state
        self._whole = False  # was all of its first epoch handed over?

    def arrays(self) -> Iterator[Any]:
        """What the batches of the next pass are made of."""
        epoch, start = self._begin()
        chain = self._epochs
        stop = None if chain is None else epoch - epoch % chain + chain
        while stop is None or epoch < stop:
            yield from self._epoch(epoch, start)
            epoch, start = epoch + 1, 0

    def _begin(self) -> tuple[int, int]:
        if self._state is not None:
            begun, place = self._begun, self._state.begin()
            if begun == place and self._whole and len(self._loader) > _MANY:
                raise RuntimeError(
                    "a pass was used and no batch of it counted; call state.advance() behind "
                    "each, or give fit the callback ndfeed.keras.Resume(state)"
                )
            self._begun, self._whole = place, False
            return place
        epoch = self._next
        self._next += self._epochs or 1
        return epoch, 0

    def _epoch(self, epoch: int, start: int) -> Iterator[Any]:
        loader = self._loader
        share = loader.share
        if self._form.full and not share.drop_last and (share.n - start) % share.together:
            raise ResumeError(
                f"batches of {share.batch_size} do not come out after {start} samples; restore "
                "the state before the dataset is made, or use drop_last=True"
            )
        if start:
            loader.load_state_dict(loader.state_dict() | {"epoch": epoch, "samples": start})
        else:
            loader.epoch = epoch
        batches = iter(loader)
        left = share.batches(start)
        while left:
            found = next(batches)
            left -= counted(found)
            if not left:
                self._whole = True
                next(batches, None)  # the epoch is over: threads may go on with the next
            parts = self._form.arrays(found)
            del found  # not to be kept here while the next is made: its memory is still in cache
            while parts:
                yield parts.pop(0)
