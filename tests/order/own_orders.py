"""Orders as users write them, good and bad; importable, so that they can be pickled."""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Backwards:
    """The last row first."""

    def length(self, n):
        return n

    def rows(self, positions, n, seed, epoch):
        return n - 1 - positions


class Strided:
    """Every so many rows, twice over, beginning elsewhere in every epoch; it has parameters."""

    def __init__(self, step):
        self.step = step

    def length(self, n):
        return 2 * n

    def rows(self, positions, n, seed, epoch):
        positions *= self.step  # they are its own
        return ((positions + seed + epoch) % n).astype(np.int32)

    def spec(self):
        return {"step": self.step, "names": ["a", {"b": -1}]}


class Told(Backwards):
    """What it says of itself is given."""

    def __init__(self, told):
        self.told = told

    def spec(self):
        return self.told


class Scaled(Backwards):
    """Rows in steps of a weight; it has an attribute and no spec."""

    def __init__(self, w):
        self.w = w

    def rows(self, positions, n, seed, epoch):
        return (positions * int(np.sum(self.w))) % n


class Slotted(Backwards):
    """An attribute that is in no ``__dict__``."""

    __slots__ = ("__w",)

    def __init__(self, w):
        self.__w = w


class Tupled(NamedTuple):
    """Attributes that are what a tuple contains."""

    w: int

    def length(self, n):
        return n

    def rows(self, positions, n, seed, epoch):
        return positions


@dataclass(frozen=True)
class Inner:
    """An object within an order."""

    w: object


class Remembering(Backwards):
    """It keeps what it has computed."""

    def __init__(self):
        self.known = {}

    def rows(self, positions, n, seed, epoch):
        if n not in self.known:
            self.known[n] = np.arange(n)
        return self.known[n][positions]


class First(Backwards):
    """It expects at least one position."""

    def rows(self, positions, n, seed, epoch):
        return positions[0] + np.arange(len(positions))


class Bad(Backwards):
    """One mistake."""

    def __init__(self, mistake):
        self.mistake = mistake
        self.calls = itertools.count() if mistake == "counts" else None
        self.unpicklable = (lambda: 0) if mistake == "pickle" else None

    def length(self, n):
        if self.mistake == "counting length":
            self.calls = n = (self.calls or n) + 1
        return {"no length": 0, "float length": float(n), "None length": None}.get(self.mistake, n)

    def rows(self, positions, n, seed, epoch):
        good = n - 1 - positions
        if self.mistake == "counts":
            return (good + next(self.calls)) % n
        made = {
            "beyond": good + 1,
            "negative": good - 1,
            "short": good[:-1],
            "float": good.astype(float),
            "list": good.tolist(),
            "none": None,
            "table": good[:, None],
            # The same for all positions at once, but not for a part of them.
            "relative": np.argsort(np.argsort(positions)) % n,
            "random": np.random.default_rng().integers(0, n, len(positions)),
        }
        return made.get(self.mistake, good)

    def spec(self):
        made = {"float spec": {"x": 0.5}, "list spec": [1], "long spec": {"x": "y" * 5000}}
        return made.get(self.mistake, {})
