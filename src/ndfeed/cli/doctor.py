"""From measured rates to a verdict: what limits, and what would help most. Pure arithmetic.

A *stage* is given what it could deliver if all threads did nothing else. Threads do them one after
the other, so the stage with the lowest rate is the one that they spend most of their time with.
The disk works beside them: it limits where it gives less than they could use.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WORTH = 1.2  # a remedy that gives less than this may be noise
_SEEN = 0.005  # share of the threads' time below which a stage is not worth a line

LABELS = {
    "disk": "disk, cold",
    "cache": "disk, warm",
    "order": "working out the order",
    "ahead": "asking ahead",
    "read": "reading files",
    "inflate": "inflating",
    "copy": "copying into batches",
    "transform": "your function",
    "device": "to the device",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage by itself: how many rows a second it could give."""

    name: str
    rows_per_second: float

    @property
    def label(self) -> str:
        """For people."""
        return LABELS[self.name]


@dataclass(frozen=True, slots=True)
class Trial:
    """Something that was tried on a sample, and what a loader gave with it.

    ``how`` is what to write for it. ``disk`` is what the disk could give with it, where the disk
    counts.
    """

    name: str
    how: str
    rows_per_second: float
    disk: float = math.inf

    @property
    def given(self) -> float:
        """Rows a second, with what the disk lets through."""
        return min(self.rows_per_second, self.disk)


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, and how many times as fast it was on the sample."""

    name: str
    how: str
    before: float
    after: float

    @property
    def gain(self) -> float:
        """How many times as fast."""
        return self.after / self.before


def stages_of(seconds: Mapping[str, float], rows: int, threads: int) -> list[Stage]:
    """What each stage of a loader could give, from the time that its threads spent on them.

    >>> stages_of({"inflate": 4.0, "copy": 1.0, "order": 0.001}, 1000, 2)
    [Stage(name='inflate', rows_per_second=500.0), Stage(name='copy', rows_per_second=2000.0)]
    """
    busy = sum(seconds.values())
    return [
        Stage(name, rows * threads / spent)
        for name, spent in seconds.items()
        if rows and spent > _SEEN * busy
    ]


def limiting(stages: Sequence[Stage], *, disk: bool) -> str | None:
    """The stage that limits; the disk only if it counts."""
    left_out = {"cache"} if disk else {"cache", "disk"}
    known = [one for one in stages if one.name not in left_out]
    return min(known, key=lambda one: one.rows_per_second).name if known else None


def disk_counts(nbytes: int, room: int, *, cold: bool) -> bool:
    """Does every epoch come from the disk? Files that fit into memory do so once.

    ``cold`` says that the disk was measured at all.
    """
    return cold and nbytes > room


def remedies(trials: Sequence[Trial], base: Trial, most: int = 2) -> list[Remedy]:
    """The best of what was tried, best first and one of a name; nothing that hardly helps."""
    if not base.given:
        return []
    found = [Remedy(one.name, one.how, base.given, one.given) for one in trials]
    worth = sorted((one for one in found if one.gain >= WORTH), key=lambda one: one.gain)
    best = {one.name: one for one in worth}  # of each name the last, which gains most
    return sorted(best.values(), key=lambda one: -one.gain)[:most]
