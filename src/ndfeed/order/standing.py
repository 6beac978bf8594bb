"""Where the sources of a mixture stand, as a state tells it: positions, and passes that grew.

A position counts the rows of a source that were delivered, in all epochs. It tells which pass of
the source is in progress, unless the source has grown: passes before had fewer rows. So of such a
source a state tells the number of a pass and the position at which that pass began. If it was in
progress when rows were added, it also lists its *generations*, as any state of an epoch that has
grown does: how many rows there were, how many of the pass had been delivered, and which they were.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

Generations = tuple[tuple[int, int, str], ...]  # rows, samples delivered, fingerprint

_LARGEST = 1 << 124  # of a position: more than any number of epochs leads to
_LONGEST = 1 << 60  # samples of an epoch


class Pass(NamedTuple):
    """A pass of a source: its number, the position at which it began, and how it has grown."""

    number: int = 0
    begin: int = 0
    past: Generations = ()

    def find(self, position: int, length: int) -> "Pass":
        """Return the pass that is in progress at a position, where all passes have a length."""
        passes, inner = divmod(position - self.begin, length)
        past = () if passes or not inner else self.past
        return Pass(self.number + passes, position - inner, past)

    def shorten(self, length: int) -> "Pass":
        """Return the first pass of all, if that tells as much."""
        return self if self.past or self.begin != self.number * length else Pass()


class Start(NamedTuple):
    """Where every source stands at some place, if not where epochs before led.

    That is after ``samples`` of an epoch, with which so many rows of each source were
    ``delivered``. ``passes`` is empty if no source has grown.
    """

    epoch: int
    positions: tuple[int, ...]
    samples: int = 0
    delivered: tuple[int, ...] = ()
    passes: tuple[Pass, ...] = ()

    def find_pass(self, source: int) -> Pass:
        """Return a pass of a source."""
        return self.passes[source] if self.passes else Pass()

    @property
    def grown(self) -> bool:
        """Is a pass in progress that has grown?"""
        return any(one.past for one in self.passes)

    def as_spec(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what a state tells."""
        spec: dict[str, Any] = {"epoch": self.epoch, "sources": _name(names, self.positions)}
        if self.samples:
            spec["samples"] = self.samples
            spec["delivered"] = _name(names, self.delivered)
        told = {n: one for n, one in zip(names, self.passes, strict=False) if one != Pass()}
        if told:
            spec["passes"] = {name: [one.number, one.begin] for name, one in told.items()}
        if self.grown:
            spec["grown"] = {n: [*map(list, one.past)] for n, one in told.items() if one.past}
        return spec


def parse_start(epoch: object, told: Mapping[str, Any], names: Sequence[str]) -> Start | None:
    """Return what a state tells; ``None`` if it is damaged."""
    positions = _list_counts(told.get("sources"), names)
    samples = told.get("samples", 0)
    delivered = _list_counts(told.get("delivered"), names) if samples else ()
    passes = _list_passes(told, names)
    good = _is_count(epoch) and _is_count(samples)
    if not good or positions is None or delivered is None or passes is None:
        return None
    if samples and (sum(delivered) != samples or samples > _LONGEST):
        return None
    if any(one.begin > position for one, position in zip(passes, positions, strict=False)):
        return None
    return Start(cast(int, epoch), positions, samples, delivered, passes)


def _name(names: Sequence[str], values: Sequence[int]) -> dict[str, int]:
    return dict(zip(names, values, strict=True))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _list_counts(told: object, names: Sequence[str]) -> tuple[int, ...] | None:
    """Return a number for each source."""
    if not isinstance(told, Mapping) or told.keys() != set(names):
        return None
    found = tuple(told[name] for name in names)
    return found if all(map(_is_count, found)) else None


def _list_passes(told: Mapping[str, Any], names: Sequence[str]) -> tuple[Pass, ...] | None:
    """Return a pass of each source; nothing if none is told."""
    passes, grown = told.get("passes", {}), told.get("grown", {})
    if not isinstance(passes, Mapping) or not isinstance(grown, Mapping):
        return None
    if not passes.keys() <= set(names) or not grown.keys() <= passes.keys():
        return None
    found = []
    for name in names:
        numbers, past = passes.get(name, (0, 0)), grown.get(name, ())
        if not _are_counts(numbers, 2) or not _are_generations(past):
            return None
        number, begin = numbers
        found.append(Pass(number, begin, tuple(map(tuple, past))))
    return keep_passes(found)


def keep_passes(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """Return passes of all sources, or nothing if positions tell them."""
    return tuple(passes) if any(one != Pass() for one in passes) else ()


def _are_counts(told: object, count: int) -> bool:
    return isinstance(told, list | tuple) and len(told) == count and all(map(_is_count, told))


def _are_generations(told: object) -> bool:
    """Do rows and samples rise?"""
    if not isinstance(told, list | tuple):
        return False
    rows = samples = 0
    for one in told:
        if not isinstance(one, list | tuple) or [*map(type, one)] != [int, int, str]:
            return False
        if not (rows <= one[0] and samples < one[1] <= one[0]):
            return False
        rows, samples = one[:2]
    return True
