"""The steps of a dataset after reading: maps, field selections, and routes for joined datasets."""

import hashlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Field
from ndfeed.errors import FieldError

Batch = dict[str, Any]
Values: TypeAlias = Any  # of one field: an array, or a list of samples


class Draws(Protocol):
    """Random generators for the steps of one batch."""

    def batch(self, step: int) -> np.random.Generator:
        """Return the generator for a step that takes the whole batch."""
        ...

    def sample(self, step: int, at: int) -> np.random.Generator:
        """Return the generator for a step that takes sample ``at`` alone."""
        ...


class Given:
    """One generator, given by the caller, for everything."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def batch(self, step: int) -> np.random.Generator:
        """Return the caller's generator."""
        return self._rng

    def sample(self, step: int, at: int) -> np.random.Generator:
        """Return the caller's generator."""
        return self._rng


class SampleFailed(Exception):
    """A function raised ``error`` for sample ``at`` of a batch; users get the error itself."""

    def __init__(self, at: int, error: Exception) -> None:
        super().__init__(at, error)
        self.at, self.error = at, error


@dataclass(frozen=True, slots=True)
class Map:
    """A function given by the user, for whole batches or single samples."""

    function: Callable[..., Mapping[str, Any]]
    batched: bool
    random: bool  # does the function take a generator?

    @classmethod
    def of(cls, function: Callable[..., Mapping[str, Any]], batched: bool) -> "Map":
        """Make a step from what the user wrote."""
        return cls(function, batched, _takes_rng(function))

    def __call__(self, batch: Batch, draws: Draws | None, number: int) -> Batch:
        """Apply the function to ``batch``, as step ``number``."""
        count = len(next(iter(batch.values()), ()))
        if self.batched:
            rng = draws.batch(number) if draws and self.random else None
            return self._check_count(self._check_returned(self._call(batch, rng)), count)
        made = []
        for at in range(count):
            rng = draws.sample(number, at) if draws and self.random else None
            sample = {name: values[at] for name, values in batch.items()}
            try:
                made.append(self._check_returned(self._call(sample, rng)))
            except Exception as error:
                raise SampleFailed(at, error) from error
        return {name: _stack([one[name] for one in made]) for name in (made[0] if made else ())}

    def _call(self, batch: Batch, rng: np.random.Generator | None) -> Mapping[str, Any]:
        if self.random:
            return self.function(batch, rng=rng)
        return self.function(batch)

    def _check_returned(self, made: Mapping[str, Any]) -> Batch:
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

    def _check_count(self, made: Batch, count: int) -> Batch:
        for name, values in made.items():
            listed = isinstance(values, list | tuple)  # may differ in shape: not an array then
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
    """A selection of the fields that an earlier function made."""

    names: tuple[str, ...]
    random: bool = False

    def __call__(self, batch: Batch, draws: Draws | None = None, number: int = 0) -> Batch:
        """Return the selected fields of ``batch``."""
        for name in self.names:
            if name not in batch:
                raise FieldError(name, list(batch))
        return {name: batch[name] for name in self.names}


@dataclass(frozen=True, slots=True)
class Rename:
    """New names for some fields: pairs of the old name and the new one."""

    names: tuple[tuple[str, str], ...]
    random: bool = False

    def __call__(self, batch: Batch, draws: Draws | None, number: int) -> Batch:
        """Return the same fields under their new names."""
        names = dict(self.names)
        for name in names:
            if name not in batch:
                raise FieldError(name, list(batch))
        return {names.get(name, name): values for name, values in batch.items()}


class Step(Protocol):
    """An operation on every batch: a ``Map`` or a selection of fields, among others."""

    @property
    def random(self) -> bool:
        """Does it need generators?"""
        ...

    def __call__(self, batch: Batch, draws: Draws | None, number: int) -> Batch:
        """Apply it to ``batch``, as step ``number``."""
        ...


def try_steps(batch: Batch, steps: Sequence[Step], draws: Draws | None, first: int = 0) -> Batch:
    """Apply the steps to ``batch``, one after the other; the first has number ``first``.

    Raises ``SampleFailed`` where a function of single samples fails.
    """
    for step in steps:
        batch = step(batch, draws, first)
        first += getattr(step, "numbers", 1)  # how many steps it counts as
    return batch


def apply_steps(batch: Batch, steps: Sequence[Step], draws: Draws | None) -> Batch:
    """Apply the steps to ``batch``, and raise the errors of functions as they are."""
    try:
        return try_steps(batch, steps, draws)
    except SampleFailed as failed:
        error = failed.error
    try:
        raise error  # not in the handler above, which would become its context
    finally:
        del error  # or it would refer to itself through this frame


def apply_steps_alone(
    batch: Batch, steps: Sequence[Step], rows: NDArray[Any], rng: np.random.Generator | None
) -> Batch:
    """Apply the steps to ``rows`` outside of a loader: generators are the caller's, or fixed by
    the rows.
    """
    if rng is None and any(step.random for step in steps):
        digest = hashlib.sha256(rows.tobytes()).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
    return apply_steps(batch, steps, None if rng is None else Given(rng))


def _takes_rng(function: Callable[..., Any]) -> bool:
    """Does the function have a parameter ``rng``?"""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _stack(values: list[Any]) -> NDArray[Any] | list[NDArray[Any]]:
    arrays = [np.asarray(value) for value in values]
    if all(array.shape == arrays[0].shape for array in arrays):
        return np.stack(arrays)
    return arrays


def as_samples(values: Sequence[Any]) -> list[NDArray[Any]]:
    """Convert the values of a field to an array for each sample."""
    return [np.asarray(value) for value in values]


def fields_of(batch: Batch) -> dict[str, Field]:
    """Describe the fields of a batch that a function made. Every axis of a list may differ."""
    return {name: _field_of(name, values) for name, values in batch.items()}


def _field_of(name: str, values: Sequence[Any]) -> Field:
    if isinstance(values, np.ndarray):
        return Field(name, values.dtype, values.shape[1:], values.dtype.str)
    first = np.asarray(values[0])
    shape = (None,) * first.ndim if isinstance(values, list) else first.shape
    return Field(name, first.dtype, shape, first.dtype.str)


_MOST_NUMBER = (1 << 63) - 1
_HIDDEN = "ndfeed."  # prefix of the names of hidden fields


@dataclass(frozen=True, slots=True)
class Beside:
    """Steps that do not see some of the fields, which stay as they are."""

    names: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def random(self) -> bool:
        """Does any of the functions take a generator?"""
        return any(step.random for step in self.steps)

    @property
    def numbers(self) -> int:
        """Counts as this many steps, so that each draws what it would draw alone."""
        return len(self.steps)

    def __call__(self, batch: Batch, draws: Draws | None, number: int) -> Batch:
        """Apply the steps to the other fields, and add these."""
        kept = {name: batch[name] for name in self.names}
        others = {name: values for name, values in batch.items() if name not in kept}
        return try_steps(others, self.steps, draws, number) | kept


@dataclass(frozen=True, slots=True)
class Route:
    """What happens to the samples of one of several datasets that were added.

    ``fields`` pairs the names of its stored fields in the sum with those they had before.
    """

    fields: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Routed:
    """Steps for samples of several datasets: each takes its own route, then all are merged.

    The stored field ``field`` says for each sample which of ``routes`` it takes. All routes must
    end in the fields ``names``, which come in that order; ``None`` where they are not known.
    """

    field: str
    routes: tuple[Route, ...]
    names: tuple[str, ...] | None

    @property
    def random(self) -> bool:
        """Does any of the functions take a generator?"""
        return any(step.random for route in self.routes for step in route.steps)

    def __call__(self, batch: Batch, draws: Draws | None, number: int) -> Batch:
        """Send every sample of the batch along its route."""
        which = np.asarray(batch[self.field])
        made: list[tuple[NDArray[np.int64], Batch]] = []
        for route in np.unique(which).tolist() or [0]:
            at = np.flatnonzero(which == route)
            made.append((at, self._take_route(batch, route, at, draws, number)))
        if len(made) == 1:
            return made[0][1]
        return {name: _merge(name, [(at, own[name]) for at, own in made]) for name in made[0][1]}

    def _take_route(
        self, batch: Batch, route: int, at: NDArray[np.int64], draws: Draws | None, number: int
    ) -> Batch:
        """Apply one of the routes to the samples ``at``."""
        way = self.routes[route]
        own = {name: _pick_samples(batch[stored], at) for stored, name in way.fields}
        # Separate step numbers: functions of two routes must not draw the same.
        first = ((number + 1) << 24 | route << 8) & _MOST_NUMBER
        try:
            made = try_steps(
                own, way.steps, None if draws is None else PartialDraws(draws, at), first
            )
        except SampleFailed as failed:
            raise SampleFailed(int(at[failed.at]), failed.error) from None
        names = tuple(made) if self.names is None else self.names
        if set(names) != set(made):
            raise ValueError(
                f"datasets that were added must end in the same fields: expected {sorted(names)}, "
                f"found {sorted(made)}; select() or rename() them before they are added"
            )
        return {name: made[name] for name in names}


class PartialDraws:
    """The generators of some samples of a batch."""

    def __init__(self, draws: Draws, at: NDArray[np.int64]) -> None:
        self._draws, self._at = draws, at

    def batch(self, step: int) -> np.random.Generator:
        """Return the generator for a step that takes all of them."""
        return self._draws.batch(step)

    def sample(self, step: int, at: int) -> np.random.Generator:
        """Return the generator for a step that takes one of them alone."""
        return self._draws.sample(step, int(self._at[at]))


def _pick_samples(values: Values, at: NDArray[np.int64]) -> Values:
    if len(at) == len(values):
        return values
    return values[at] if isinstance(values, np.ndarray) else [values[i] for i in at.tolist()]


def _merge(name: str, parts: Sequence[tuple[NDArray[np.int64], Values]]) -> Values:
    """Merge the values of several parts into batch order."""
    listed = [
        (at, values if isinstance(values, list | tuple) else np.asarray(values))
        for at, values in parts
    ]
    dtypes = [
        values.dtype if isinstance(values, np.ndarray) else np.asarray(values[0]).dtype
        for _, values in listed
    ]
    text = dtypes[0].kind in "US" and len({dtype.kind for dtype in dtypes}) == 1
    for dtype in dtypes:
        if dtype != dtypes[0] and not text:
            raise ValueError(
                f"datasets that were added must end in the same fields: {name!r} is {dtypes[0]} "
                f"in one and {dtype} in another; convert it in a map"
            )
    total = sum(len(at) for at, _ in listed)
    shapes = {v.shape[1:] if isinstance(v, np.ndarray) else None for _, v in listed}
    shape = next(iter(shapes))
    if len(shapes) == 1 and shape is not None:
        widest = max(dtypes, key=lambda dtype: dtype.itemsize)
        merged = np.empty((total, *shape), widest)
        for at, values in listed:
            merged[at] = values
        return merged
    places = {
        i: value for at, values in listed for i, value in zip(at.tolist(), values, strict=True)
    }
    return [places[i] for i in range(total)]


def is_hidden(name: str) -> bool:
    """Is a stored field there only for ``Routed``?"""
    return name.startswith(_HIDDEN)


def hidden(name: str, known: Collection[str]) -> str:
    """Return a name for such a field that is not known yet."""
    return next(n for i in count() if (n := f"{_HIDDEN}{i}/{name}") not in known)


def all_maps(steps: Sequence[Step]) -> Iterator[Map]:
    """Yield the functions among the steps, including those for only some samples."""
    for step in steps:
        if isinstance(step, Map):
            yield step
        elif hasattr(step, "steps"):
            yield from all_maps(step.steps)
        elif isinstance(step, Routed):
            for route in step.routes:
                yield from all_maps(route.steps)
