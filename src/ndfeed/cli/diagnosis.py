"""From measured rates to a verdict: what limits, and what would help most. Pure arithmetic.

The loader's threads do one stage after the other, so their time is divided among the stages, and
the stage that takes most of it limits. A *stage* is shown with what it could deliver if the threads
did nothing else: the loader's rate, divided by the share of their time that the stage takes. So no
stage is slower than the loader, and the shares add up to one with the time that threads were idle.

The disk and the copy to a device work beside the threads and are measured by themselves: they limit
where they give less than any stage could use. One that comes out slower than the loader that
includes it was measured wrongly, and then there is no verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WORTH = 1.2  # a remedy that gives less than this may be noise
_NOISE = 1.1  # two measurements of the same thing may differ by this much
_SEEN = 0.005  # share of the threads' time below which a stage is not worth a line
_MOSTLY = 0.5  # threads that are idle for more of their time than this limit nothing

LABELS = {
    "disk": "disk, cold",
    "order": "computing the order",
    "ahead": "prefetching",
    "read": "reading files",
    "inflate": "decompressing",
    "copy": "copying into batches",
    "transform": "your function",
    "device": "to the device",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage by itself: how many rows a second it could give.

    ``share`` is the part of the threads' time that it takes; ``None`` if others do the work.
    ``loader`` is what the loader gave that the stage was a part of.
    """

    name: str
    rows_per_second: float
    share: float | None = None
    loader: float = 0.0

    @property
    def label(self) -> str:
        """For people."""
        return LABELS[self.name]

    @property
    def is_consistent(self) -> bool:
        """Can the loader have been as fast as it was, with this stage in it?"""
        return self.rows_per_second * _NOISE >= self.loader


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


def stages_of(seconds: Mapping[str, float], idle: float, loader: float) -> list[Stage]:
    """What each stage could give, from the time that threads spent on it while the loader ran.

    ``seconds`` and ``idle`` are those of all threads together, ``loader`` is its rows a second.

    >>> stages_of({"inflate": 6.0, "copy": 1.5, "order": 0.001}, idle=0.0, loader=400.0)[1]
    Stage(name='copy', rows_per_second=2000.26..., share=0.199..., loader=400.0)
    """
    known = {name: spent for name, spent in seconds.items() if spent > 0}
    whole = sum(known.values()) + max(idle, 0.0)
    return [
        Stage(name, loader / (spent / whole), spent / whole, loader)
        for name, spent in known.items()
        if loader and spent > _SEEN * whole
    ]


def idle_share(seconds: Mapping[str, float], idle: float) -> float:
    """The part of their time for which threads had nothing to do: batches were ready."""
    idle = max(idle, 0.0)
    whole = sum(seconds.values()) + idle
    return idle / whole if whole > 0 else 0.0


def limiting(stages: Sequence[Stage], *, disk: bool, idle: float = 0.0) -> str | None:
    """The stage that limits; the disk only if it counts.

    None does if the measurements contradict each other, or if threads were mostly idle.
    """
    known = [one for one in stages if disk or one.name != "disk"]
    if not known or not all(one.is_consistent for one in known):
        return None
    slowest = min(known, key=lambda one: one.rows_per_second)
    return None if slowest.share is not None and idle > _MOSTLY else slowest.name


def doubts(stages: Sequence[Stage], *, disk: bool, idle: float = 0.0) -> list[str]:
    """Why there is no verdict, or which rates are not to be believed: sentences for people."""
    found = [
        f"{one.label} measured slower than the loader that includes it: the measurement is "
        "unreliable, as on a busy machine; try --seconds 60"
        for one in stages
        if not one.is_consistent
    ]
    if not found and stages and limiting(stages, disk=disk, idle=idle) is None and idle > _MOSTLY:
        found.append(
            f"threads were idle {idle:.0%} of the time: batches are produced faster than "
            "one loop takes them, so no stage is the bottleneck; raise batch_size"
        )
    return found


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
