"""Finds the bottleneck from measured rates, and what would help most. Pure arithmetic.

The loader's threads run one stage after the other, so their time is divided among the stages, and
the stage that takes most of it is the bottleneck. The rate of a *stage* is what it could deliver if
threads did nothing else: the loader's rate, divided by the stage's share of their time. So no stage
is slower than the loader, and the shares and the idle time of threads add up to one.

The disk and the copy to a device run beside the threads and are measured separately: either is the
bottleneck where it is slower than every stage. One that is slower than the loader that includes it
was measured wrongly, and then there is no verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ndfeed.order.mixing import Mixing

WORTH = 1.2  # a smaller gain of a remedy may be noise
_NOISE = 1.1  # two measurements of the same thing may differ by this much
_SEEN = 0.005  # stages with a smaller share of the threads' time are not shown
_MOSTLY = 0.5  # threads that are idle for a larger share of their time are no bottleneck

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
    """One stage by itself: the rows per second that it could deliver.

    ``share`` is its share of the threads' time; ``None`` if other hardware does the work.
    ``loader`` is the rate of the loader that the stage was a part of.
    """

    name: str
    rows_per_second: float
    share: float | None = None
    loader: float = 0.0

    @property
    def label(self) -> str:
        """The name for people."""
        return LABELS[self.name]

    @property
    def is_consistent(self) -> bool:
        """Is the stage at least as fast as the loader that includes it?"""
        return self.rows_per_second * _NOISE >= self.loader


@dataclass(frozen=True, slots=True)
class Trial:
    """A change that was tried on a sample, and the rate of a loader with it.

    ``how`` is what to write for it. ``disk`` is what the disk could deliver with it, where the disk
    counts.
    """

    name: str
    how: str
    rows_per_second: float
    disk: float = math.inf

    @property
    def rate(self) -> float:
        """Rows per second, limited by the disk."""
        return min(self.rows_per_second, self.disk)


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, and how much faster it was on the sample."""

    name: str
    how: str
    before: float
    after: float

    @property
    def gain(self) -> float:
        """The ratio of the rates after and before."""
        return self.after / self.before


@dataclass(frozen=True, slots=True)
class OrderTrial:
    """An order that was tried: ``how`` to ask for it, its rate, and how well it mixes."""

    how: str
    order: str
    rows_per_second: float
    mixing: Mixing

    def gain_over(self, base: "OrderTrial") -> float:
        """Return the ratio of the rates; 0 if there is none."""
        return self.rows_per_second / base.rows_per_second if base.rows_per_second else 0.0


def compute_stages(seconds: Mapping[str, float], idle: float, loader: float) -> list[Stage]:
    """Compute the rate of each stage from the time that threads spent on it in a loader.

    ``seconds`` and ``idle`` are of all threads together, ``loader`` is its rows per second.

    >>> compute_stages({"inflate": 6.0, "copy": 1.5, "order": 0.001}, idle=0.0, loader=400.0)[1]
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
    """Compute the share of time in which threads had nothing to do, since batches were ready."""
    idle = max(idle, 0.0)
    whole = sum(seconds.values()) + idle
    return idle / whole if whole > 0 else 0.0


def find_bottleneck(stages: Sequence[Stage], *, disk: bool, idle: float = 0.0) -> str | None:
    """Find the bottleneck; the disk only if it counts.

    There is none if measurements contradict each other, or if threads were mostly idle.
    """
    known = [one for one in stages if disk or one.name != "disk"]
    if not known or not all(one.is_consistent for one in known):
        return None
    slowest = min(known, key=lambda one: one.rows_per_second)
    return None if slowest.share is not None and idle > _MOSTLY else slowest.name


def list_doubts(stages: Sequence[Stage], *, disk: bool, idle: float = 0.0) -> list[str]:
    """Say for people why there is no verdict, or which rates are unreliable."""
    found = [
        f"{one.label} measured slower than the loader that includes it: the measurement is "
        "unreliable, as on a busy machine; try --seconds 60"
        for one in stages
        if not one.is_consistent
    ]
    if (
        not found
        and stages
        and find_bottleneck(stages, disk=disk, idle=idle) is None
        and idle > _MOSTLY
    ):
        found.append(
            f"threads were idle {idle:.0%} of the time: batches are produced faster than "
            "one loop takes them, so no stage is the bottleneck; raise batch_size"
        )
    return found


def disk_counts(nbytes: int, room: int, *, cold: bool) -> bool:
    """Is every epoch read from the disk? Files that fit into memory are read once.

    ``cold`` says whether the disk was measured at all.
    """
    return cold and nbytes > room


def choose_remedies(trials: Sequence[Trial], base: Trial, most: int = 2) -> list[Remedy]:
    """Choose the best trials, best first and one of each name; none that hardly helps."""
    if not base.rate:
        return []
    found = [Remedy(one.name, one.how, base.rate, one.rate) for one in trials]
    worth = sorted((one for one in found if one.gain >= WORTH), key=lambda one: one.gain)
    best = {one.name: one for one in worth}  # of each name the last, which gains most
    return sorted(best.values(), key=lambda one: -one.gain)[:most]


def orders_differ(trials: Sequence[OrderTrial]) -> bool:
    """Is any order notably faster than the first, or does it mix notably better?"""
    return any(
        one.gain_over(trials[0]) >= WORTH or one.mixing.ratio >= WORTH * trials[0].mixing.ratio
        for one in trials[1:]
    )


def choose_order(trials: Sequence[OrderTrial]) -> OrderTrial | None:
    """Choose an order that is worth changing to for its speed, if there is one.

    Of those that are about as fast as the fastest, it is the one that mixes best.
    """
    if not trials:
        return None
    base, *others = trials
    faster = [one for one in others if one.gain_over(base) >= WORTH]
    most = max((one.rows_per_second for one in faster), default=0.0)
    about = [one for one in faster if one.rows_per_second * _NOISE >= most]
    return max(about, key=lambda one: one.mixing.ratio, default=None)


def choose_better_mixed(trials: Sequence[OrderTrial]) -> OrderTrial | None:
    """Choose the order for data whose files are sorted, if one mixes notably better than the first.

    Of those that mix about as well as the best, it is the fastest.
    """
    if not trials:
        return None
    base, *others = trials
    better = [one for one in others if one.mixing.ratio >= WORTH * base.mixing.ratio]
    most = max((one.mixing.ratio for one in better), default=0.0)
    about = [one for one in better if one.mixing.ratio * _NOISE >= most]
    return max(about, key=lambda one: one.rows_per_second, default=None)
