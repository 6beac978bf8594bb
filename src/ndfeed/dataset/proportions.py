"""In which proportions the sources of a mixture come: weights as whole numbers.

Weights may be any numbers. They are taken as they are written, 0.1 as one tenth, and made whole
numbers with no common factor; exact proportions are then a matter of counting. A table of their sum
has to be kept, so weights whose sum would be more than 65,536 are rounded to that sum (to a larger
one, of up to 2**20, where the smallest weight would otherwise be rounded away): each is then right
to within one part in 65,536 of the whole, and no positive weight becomes 0.
"""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from ndfeed.errors import shown

End = Literal["first", "last", "cycle"]
Place = tuple[int, int]  # an epoch, and a sample of it
Stages = tuple[tuple[Place, tuple[int, ...]], ...]

ENDS = ("first", "last", "cycle")
_SUM, _LARGEST_SUM = 1 << 16, 1 << 20
_LARGEST = 1 << 62  # epoch, and sample of it


@dataclass(frozen=True, slots=True)
class Proportions:
    """What a dataset is mixed of: ``ds.mixture``.

    ``stages`` has for some places, an epoch and a sample of it, the weights that hold from there
    on. The first of them is ``(0, 0)``. ``prints`` are the fingerprints of the sources.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    stages: Stages
    end: End
    prints: tuple[str, ...] = ()

    @property
    def weights(self) -> dict[str, int]:
        """The weights of the first epoch by name: whole numbers, as they are used."""
        return dict(zip(self.names, self.stages[0][1], strict=True))

    def __repr__(self) -> str:
        rows = dict(zip(self.names, self.rows, strict=True))
        every = {
            (epoch, samples) if samples else epoch: list(weights)
            for (epoch, samples), weights in self.stages
        }
        weights = self.weights if len(self.stages) == 1 else every
        return f"Proportions(rows={rows}, weights={weights}, end={self.end!r})"


def make_stages(weights: object, names: Sequence[str], rows: Sequence[int]) -> Stages:
    """Return what a caller wrote as ``weights=``: the weights, and from where on they hold."""
    if weights is None:
        return (((0, 0), _as_whole(list(map(Fraction, rows)))),)
    if not isinstance(weights, Mapping) or not any(map(_is_place, weights)):
        return (((0, 0), _as_whole(_list_weights(weights, names, ""))),)
    found: dict[Place, Any] = {}
    for key, own in weights.items():
        place = _as_place(key)
        if place in found:
            raise ValueError(
                f"weights has epoch {place[0]} twice, as {place[0]} and as {place}; remove one of "
                "them"
            )
        found[place] = own
    if (first := min(found)) != (0, 0):
        raise ValueError(
            f"weights must say what holds from epoch 0 on, and begin with {_format_place(first)}; "
            "add 0: [...]"
        )
    return tuple(
        (place, _as_whole(_list_weights(found[place], names, f" from {_format_place(place)} on")))
        for place in sorted(found)
    )


def _is_place(key: object) -> bool:
    """Is this no name of a source, but says from where on weights hold?"""
    return isinstance(key, tuple) or _is_whole(key)


def _as_place(key: object) -> Place:
    """Check what says from where on weights hold: an epoch, or an epoch and a sample of it."""
    place = key if isinstance(key, tuple) else (key, 0)
    if len(place) != 2 or not all(map(_is_whole, place)):
        raise ValueError(
            "weights: keys are epochs, or pairs of an epoch and a number of its samples such as "
            f"(0, 100_000), got {key!r:.80}"
        )
    epoch, samples = map(int, place)
    for what, number in (("epochs", epoch), ("samples", samples)):
        if not 0 <= number < _LARGEST:
            bound = "" if number < 0 else " and below 2**62"
            raise ValueError(f"weights: {what} are counted from 0{bound}, got {key!r:.80}")
    return epoch, samples


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _format_place(place: Place) -> str:
    epoch, samples = place
    return f"sample {samples:,} of epoch {epoch}" if samples else f"epoch {epoch}"


def _list_weights(weights: object, names: Sequence[str], when: str) -> list[Fraction]:
    """Check the weights of all sources."""
    if isinstance(weights, Mapping):
        for name in weights:
            if name not in names:
                raise ValueError(
                    f"weights{when} has {name!r}, which is no source; sources are "
                    f"{', '.join(map(repr, names))}"
                )
        for name in names:
            if name not in weights:
                raise ValueError(
                    f"weights{when} has none for {name!r}; add it, with 0 if it is not wanted"
                )
        listed = [weights[name] for name in names]
    else:
        listed = _as_list(weights)
    if len(listed) != len(names):
        raise ValueError(
            f"weights{when} must have one for each of {len(names)} sources, got {len(listed)}; "
            f"list those of {', '.join(map(repr, names))}, or pass a dict by name"
        )
    found = [_as_fraction(one, name, when) for one, name in zip(listed, names, strict=True)]
    if not any(found):
        raise ValueError(f"weights{when} are all zero; make one of them positive")
    return found


def _as_list(weights: object) -> list[Any]:
    if hasattr(weights, "__array__"):  # of PyTorch, pandas and others
        weights = np.asarray(weights)
        weights = list(weights) if weights.ndim == 1 else weights.tolist()
    if not isinstance(weights, Iterable) or isinstance(weights, str | bytes | Set):
        raise TypeError(
            "weights must be a list with a number for each source, a dict by name, or a dict by "
            f"epoch of those, got {shown(repr(weights)):.80}"
        )
    return list(weights)


def _as_fraction(weight: object, name: str, when: str) -> Fraction:
    """Return a weight as it is written: 0.1 is one tenth."""
    if isinstance(weight, bool) or not isinstance(weight, numbers.Real | Decimal):
        raise TypeError(
            f"weights{when}: {name!r} must have a number, got {shown(repr(weight)):.80}"
        )
    # A whole number may be too large for a float.
    if not (isinstance(weight, numbers.Rational) or math.isfinite(weight)) or weight < 0:
        raise ValueError(
            f"weights{when}: {name!r} must be at least 0 and finite, got {weight}; 0 leaves a "
            "source out"
        )
    return Fraction(weight) if isinstance(weight, numbers.Rational) else Fraction(str(weight))


def _as_whole(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return whole numbers in the same proportions, rounded if their sum would be too large."""
    common = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * common) for weight in weights]
    if sum(whole) // math.gcd(*whole) > _SUM:
        whole = _round(whole)
    factor = math.gcd(*whole)
    return tuple(weight // factor for weight in whole)


def _round(weights: Sequence[int]) -> list[int]:
    """Round to a sum that is not too large, by largest remainder; what is positive stays so."""
    total = sum(weights)
    smallest = min(weight for weight in weights if weight)
    wanted = _SUM
    while wanted < _LARGEST_SUM and smallest * wanted < total:
        wanted *= 2
    made = [max(weight * wanted // total, int(weight > 0)) for weight in weights]
    left = wanted - sum(made)
    by_remainder = sorted(
        (at for at, weight in enumerate(weights) if weight),
        key=lambda at: made[at] * total - weights[at] * wanted,
    )
    for at in by_remainder[: max(left, 0)]:
        made[at] += 1
    made[max(range(len(made)), key=made.__getitem__)] += min(left, 0)
    return made
