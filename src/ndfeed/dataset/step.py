"""What is done to a batch after it is read: functions of the user's, and choices of fields."""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.field import Field
from ndfeed.errors import FieldError

Batch = dict[str, Any]


class Draws(Protocol):
    """Random generators for the steps of one batch."""

    def batch(self, step: int) -> np.random.Generator:
        """For a step that takes the whole batch."""
        ...

    def sample(self, step: int, at: int) -> np.random.Generator:
        """For a step that takes sample ``at`` of it alone."""
        ...


class Given:
    """One generator, the caller's, for everything."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def batch(self, step: int) -> np.random.Generator:
        """The caller's."""
        return self._rng

    def sample(self, step: int, at: int) -> np.random.Generator:
        """The caller's."""
        return self._rng


@dataclass(frozen=True, slots=True)
class Map:
    """A function of the user's, on whole batches or on single samples."""

    function: Callable[..., Mapping[str, Any]]
    batched: bool
    random: bool  # does the function take a generator?

    @classmethod
    def of(cls, function: Callable[..., Mapping[str, Any]], batched: bool) -> "Map":
        """A step from what the user wrote."""
        return cls(function, batched, takes_rng(function))

    def __call__(self, batch: Batch, draws: Draws | None, number: int) -> Batch:
        """The batch that the function makes of ``batch``, being step ``number``."""
        count = len(next(iter(batch.values()), ()))
        if self.batched:
            rng = draws.batch(number) if draws and self.random else None
            return self._whole(self._checked(self._call(batch, rng)), count)
        made = []
        for at in range(count):
            rng = draws.sample(number, at) if draws and self.random else None
            sample = {name: values[at] for name, values in batch.items()}
            try:
                made.append(self._checked(self._call(sample, rng)))
            except Exception as error:
                error.__dict__["ndfeed_sample"] = at
                raise
        return {name: _stacked([one[name] for one in made]) for name in (made[0] if made else ())}

    def _call(self, batch: Batch, rng: np.random.Generator | None) -> Mapping[str, Any]:
        if self.random:
            return self.function(batch, rng=rng)
        return self.function(batch)

    def _checked(self, made: Mapping[str, Any]) -> Batch:
        if not isinstance(made, Mapping):
            raise TypeError(f"{self._name} must return a dict of arrays, got {type(made).__name__}")
        for name, values in made.items():
            one = values[0] if isinstance(values, list | tuple) and values else values
            if isinstance(values, Mapping) or isinstance(one, Mapping):
                inner = next(iter(values if isinstance(values, Mapping) else one), "a")
                raise TypeError(
                    f"{self._name} must return a dict of arrays, got a dict in it for {name!r}; "
                    f"return {f'{name}/{inner}'!r} instead, and nest it in the loader: "
                    f"fields={{{name!r}: {{{inner!r}: {f'{name}/{inner}'!r}}}}}"
                )
        return dict(made)

    def _whole(self, made: Batch, count: int) -> Batch:
        for name, values in made.items():
            listed = isinstance(values, list | tuple)  # may differ in shape: no array then
            found = len(values) if listed or np.ndim(values) else None
            if found != count:
                raise ValueError(
                    f"{self._name} must return a value for each of {count} samples; {name!r} "
                    f"has {'one for all' if found is None else found}"
                )
        return made

    @property
    def _name(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


@dataclass(frozen=True, slots=True)
class Select:
    """A choice of what an earlier function made."""

    names: tuple[str, ...]
    random: bool = False

    def __call__(self, batch: Batch, draws: Draws | None = None, number: int = 0) -> Batch:
        """The chosen fields of ``batch``."""
        for name in self.names:
            if name not in batch:
                raise FieldError(name, list(batch))
        return {name: batch[name] for name in self.names}


@dataclass(frozen=True, slots=True)
class Rename:
    """Other names for some fields: pairs of the name they have and the one they get."""

    names: tuple[tuple[str, str], ...]
    random: bool = False

    def __call__(self, batch: Batch, draws: Draws | None, number: int) -> Batch:
        """The same fields under other names."""
        names = dict(self.names)
        for name in names:
            if name not in batch:
                raise FieldError(name, list(batch))
        return {names.get(name, name): values for name, values in batch.items()}


class Step(Protocol):
    """Something that is done to every batch: a ``Map`` or a choice of fields, among others."""

    @property
    def random(self) -> bool:
        """Does it need generators?"""
        ...

    def __call__(self, batch: Batch, draws: Draws | None, number: int) -> Batch:
        """What it makes of ``batch``, being step ``number``."""
        ...


def stepped(batch: Batch, steps: Sequence[Step], draws: Draws | None, first: int = 0) -> Batch:
    """What the steps, one after the other, make of ``batch``; the first has number ``first``."""
    for step in steps:
        batch = step(batch, draws, first)
        first += getattr(step, "numbers", 1)  # how many steps it counts as
    return batch


def stepped_alone(
    batch: Batch, steps: Sequence[Step], rows: NDArray[Any], rng: np.random.Generator | None
) -> Batch:
    """What the steps make of ``rows`` outside of a loader: draws are the caller's, or fixed by
    the rows.
    """
    if rng is None and any(step.random for step in steps):
        digest = hashlib.sha256(rows.tobytes()).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
    return stepped(batch, steps, None if rng is None else Given(rng))


def takes_rng(function: Callable[..., Any]) -> bool:
    """Does the function have a parameter ``rng``?"""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _stacked(values: list[Any]) -> NDArray[Any] | list[NDArray[Any]]:
    arrays = [np.asarray(value) for value in values]
    if all(array.shape == arrays[0].shape for array in arrays):
        return np.stack(arrays)
    return arrays


def as_samples(values: Sequence[Any]) -> list[NDArray[Any]]:
    """The values of a field as an array for each sample."""
    return [np.asarray(value) for value in values]


def fields_of(batch: Batch) -> dict[str, Field]:
    """The fields of a batch that a function made. Every axis of a list may differ."""
    return {name: _field_of(name, values) for name, values in batch.items()}


def _field_of(name: str, values: Sequence[Any]) -> Field:
    first = np.asarray(values[0])
    shape = (None,) * first.ndim if isinstance(values, list) else first.shape
    return Field(name, first.dtype, shape, first.dtype.str)
