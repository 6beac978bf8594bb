"""What windows consist of: checks what ``Dataset.windows`` was given."""

import operator
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

Offsets = Mapping[str, int] | Mapping[str, Sequence[int]] | Sequence[int]

_MOST = 1 << 48  # rows: more than any file has, and sums of a few stay below 2**63


class View(NamedTuple):
    """One field of a window for each stored one: its rows relative to the first row of all.

    There are ``length`` of them, ``step`` apart; without a length, the one row itself. It is of
    all stored fields, or of ``field``. Views that are ``stacked`` are joined to one array.
    """

    name: str  # before the field's own, if it is not empty
    first: int
    length: int | None
    step: int = 1
    field: str = ""
    stacked: bool = False

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest row, and the one after the highest."""
        last = self.first + self.step * ((self.length or 1) - 1)
        return min(self.first, last), max(self.first, last) + 1


class Shape(NamedTuple):
    """What every window consists of, and how far apart windows start."""

    views: tuple[View, ...]
    stride: int
    text: str

    @property
    def low(self) -> int:
        """The lowest row, relative to the first row of a window."""
        return min(view.ends[0] for view in self.views)

    @property
    def span(self) -> int:
        """Rows from the lowest to the highest."""
        return max(view.ends[1] for view in self.views) - self.low


def window_shape(length: int | None, stride: int, offsets: Offsets | None) -> Shape:
    """Check what ``windows`` was given."""
    if length is None and offsets is None:
        raise TypeError("windows() takes a length, offsets=, or both: windows(128)")
    size = None if length is None else _as_positive("length", length)
    step = _as_positive("stride", stride)
    rows = "rows" if size is None else f"{size:,} consecutive rows"
    if offsets is None:
        return Shape((View("", 0, size),), step, f"{rows}, {step:,} apart")
    if isinstance(offsets, Mapping):
        text = f"{rows} at offsets {dict(offsets)}, {step:,} apart"
        return Shape(_named_views(offsets, size), step, text)
    if size is not None:
        raise TypeError('with a length, offsets= takes a dict such as {"x": 0, "y": 1}')
    if not _is_sequence(offsets):
        raise TypeError(f"offsets= takes a dict or a sequence of numbers, got {offsets!r:.80}")
    return Shape(_rows_at(offsets), step, f"rows at offsets {list(offsets)!r:.80}, {step:,} apart")


def _named_views(offsets: Mapping[str, Any], size: int | None) -> tuple[View, ...]:
    """Return a view for each name, or those of each field's own rows."""
    named: list[object] = list(offsets)
    if not named or not all(isinstance(name, str) and name for name in named):
        raise TypeError(f"offsets= needs names of fields, got {list(offsets)!r:.80}")
    lists = [name for name, at in offsets.items() if _is_sequence(at)]
    if not lists:
        return tuple(View(name, _as_offset(at), size) for name, at in offsets.items())
    if size is not None or len(lists) < len(offsets):
        raise TypeError(
            f"offsets= takes whole numbers, got a sequence for {lists[0]!r}; give every name one, "
            "and no length: offsets={'state': range(-3, 1), 'action': [0]}"
        )
    return tuple(view for name, at in offsets.items() for view in _rows_at(at, name))


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)


def _rows_at(offsets: Any, field: str = "") -> tuple[View, ...]:  # noqa: ANN401 - a sequence
    """Return the rows at some offsets as one array, or as several if they are not even."""
    places = [_as_offset(at) for at in offsets]
    steps = {b - a for a, b in pairwise(places)}
    if not places:
        raise ValueError("offsets= needs at least one, such as range(-3, 1)")
    if len(steps) > 1:
        each = enumerate(places)
        return tuple(View(f"offset {i}", at, None, 1, field, True) for i, at in each)
    return (View("", places[0], len(places), steps.pop() if steps else 1, field),)


def _as_positive(name: str, value: object) -> int:
    found = _as_whole(name, value)
    if found < 1:
        raise ValueError(f"{name} must be at least 1, got {found}")
    return found


def _as_offset(value: object) -> int:
    return _as_whole("offsets=", value)


def _as_whole(name: str, value: Any) -> int:  # noqa: ANN401 - whatever a caller gave
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} takes whole numbers, got {value!r:.80}") from None
    if abs(found) > _MOST:
        raise ValueError(f"{name} takes at most {_MOST:,} rows, got {found}")
    return found
