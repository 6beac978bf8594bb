"""What crops to make: checks what ``Dataset.crops`` was given."""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ndfeed.dataset.row_selection import Travelling
from ndfeed.index.table import Ints

_MOST = 1 << 48  # elements of a crop, or crops of a case: products of few stay below 2**63

Sizes = Mapping[str, Sequence[int | None]]


class Spec(NamedTuple):
    """What crops to make: their sizes by field, and which of them."""

    sizes: tuple[tuple[str, tuple[int | None, ...]], ...]
    each: int = 1
    at: Travelling | None = None  # numbers of case and corner, flat
    overlap: tuple[int, ...] | None = None
    pad: tuple[tuple[str, float], ...] = ()  # by field
    place: bool = False

    @property
    def axes(self) -> int:
        """In how many axes boxes start anywhere."""
        return sum(n is not None for n in self.sizes[0][1])

    @property
    def text(self) -> str:
        """The crops in words."""
        boxes = ", ".join(f"{name} {size}".replace("None", ":") for name, size in self.sizes)
        if self.overlap is not None:
            return f"crops of {boxes} in a grid, overlapping by {self.overlap}"
        if self.at is not None:
            return f"chosen crops of {boxes}"
        return f"{self.each:,} random crop{'s' * (self.each != 1)} of {boxes} each"


def crop_spec(
    sizes: Sizes,
    each: int,
    at: ArrayLike | None,
    grid: int | Sequence[int] | None,
    pad: float | Mapping[str, float] | None,
    place: bool | None,
) -> Spec:
    """Check what ``crops`` was given."""
    given: object = sizes
    if not isinstance(given, Mapping) or not given:
        raise TypeError(f'crops() takes a dict such as {{"image": (96, 96)}}, got {sizes!r:.80}')
    found = tuple((name, _as_box(name, box)) for name, box in sizes.items())
    spec = Spec(found, _as_positive("each", each), pad=_as_pads(pad, [name for name, _ in found]))
    for name, box in found:
        if sum(n is not None for n in box) != spec.axes:
            raise ValueError(
                f"crops() cuts {found[0][0]!r} in {spec.axes} axes and {name!r} in "
                f"{sum(n is not None for n in box)}; give None for axes that are kept whole, "
                "such as channels: (None, 96, 96)"
            )
    if (at is not None) + (grid is not None) + (each != 1) > 1:
        raise ValueError("crops() takes one of each=, at= and grid=")
    if at is not None:
        spec = spec._replace(at=Travelling(_as_corners(at, spec.axes)))
    if grid is not None:
        spec = spec._replace(overlap=_as_overlap(grid, found[0][1]))
    fixed = at is not None or grid is not None
    return spec._replace(place=fixed if place is None else bool(place))


def _as_pads(pad: object, names: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """Return what to fill up each field with."""
    if pad is None:
        return ()
    pads: dict[str, Any] = dict(pad) if isinstance(pad, Mapping) else dict.fromkeys(names, pad)
    if set(pads) != set(names):
        raise ValueError(f"pad= must have a value for each of {list(names)}, got {list(pads)}")
    for value in pads.values():
        if not isinstance(value, int | float | np.number | np.bool_):
            raise TypeError(f"pad= takes a number, got {value!r:.80}")
    return tuple(pads.items())


def _as_box(name: str, box: object) -> tuple[int | None, ...]:
    if not isinstance(box, Sequence) or isinstance(box, str | bytes) or not len(box):
        raise TypeError(f"crops(): the size of {name!r} must be a tuple, got {box!r:.80}")
    found = tuple(None if n is None else _as_positive(f"the size of {name!r}", n) for n in box)
    if all(n is None for n in found):
        raise ValueError(f"crops(): the size of {name!r} must have a number, got {box!r:.80}")
    if math.prod(n for n in found if n is not None) > _MOST:
        raise ValueError(f"crops(): {found} of {name!r} are more than {_MOST:,} elements")
    return found


def _as_whole(name: str, value: Any) -> int:  # noqa: ANN401 - whatever a caller gave
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"crops(): {name} must be a whole number, got {value!r:.80}") from None


def _as_positive(name: str, value: object) -> int:
    found = _as_whole(name, value)
    if found < 1:
        raise ValueError(f"crops(): {name} must be at least 1, got {found}")
    if found > _MOST:
        raise ValueError(f"crops(): {name} must be at most {_MOST:,}, got {found}")
    return found


def _as_corners(at: ArrayLike, axes: int) -> Ints:
    found = np.asarray(at)
    if found.shape == (0,):
        return np.zeros(0, np.int64)
    if found.ndim != 2 or found.shape[1] != 1 + axes or found.dtype.kind not in "iu":
        raise ValueError(
            f"at= takes rows of {1 + axes} whole numbers, the case and its corner, got "
            f"{found.dtype} {found.shape}"
        )
    return found.astype(np.int64).reshape(-1)


def _as_overlap(grid: int | Sequence[int], box: Sequence[int | None]) -> tuple[int, ...]:
    sizes = [n for n in box if n is not None]
    given = list(grid) if isinstance(grid, Sequence | np.ndarray) else [grid] * len(sizes)
    found = [_as_whole("grid=", one) for one in given]
    if len(found) != len(sizes) or not all(0 <= a < n for a, n in zip(found, sizes, strict=True)):
        raise ValueError(
            f"grid= is how far neighbours overlap, from 0 to less than {tuple(sizes)}, got {grid!r}"
        )
    return tuple(found)
