"""Decoding before batches need it.

The order says which rows come when; from that follows which parts are needed for the first
time by which batch. They are decoded in that order by whatever thread is free, as far ahead as
memory allows, so that a batch never waits for a stream that another thread could have decoded
meanwhile. What was decoded is kept in ``Decoded``, which is limited; should a stream be given
up too early it is decoded again by the batch that needs it.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ndfeed.dataset import ahead
from ndfeed.dataset.rowset import chosen
from ndfeed.errors import Error
from ndfeed.loader.clock import Clock
from ndfeed.loader.fill import Filler
from ndfeed.loader.members import Coded
from ndfeed.loader.plan import Plan

_LISTED_AHEAD = 64


class _Needed(NamedTuple):
    """A part, and the first batch that needs it."""

    batch: int
    coded: Coded
    part: int

    @property
    def size(self) -> int:
        return int(self.coded.sizes[self.part])


class Schedule:
    """What is to be decoded, when, for the ``count`` batches of one pass.

    ``arriving`` gives the ranges of rows that a batch is the first to need.
    """

    def __init__(
        self,
        plan: Plan,
        filler: Filler,
        arriving: Callable[[int], Iterable[tuple[int, int]]],
        count: int,
    ) -> None:
        self._coded = plan.coded
        self._rows = filler.ds.rows
        self._places = plan.places
        self._arriving = arriving
        self._count = count
        self._decoded = filler.decoded
        # Bytes that may be decoded ahead of need: what the order's own window leaves.
        self._room = max(filler.decoded.limit - plan.window, 0)
        self._lock = threading.Lock()
        self._listing = False
        self._listed = 0  # batches whose parts are known
        self._known = [np.zeros(len(one.sizes), bool) for one in plan.coded]
        self._todo: deque[_Needed] = deque()
        self._doing: list[_Needed] = []
        self._ahead: deque[_Needed] = deque()  # decoded or being decoded, not yet needed
        self._needed = 0

    def ready(self, batch: int) -> bool:
        """Is everything decoded that the batch needs?"""
        self._needed = batch
        with self._lock:
            waiting = bool(self._todo) and self._todo[0].batch <= batch
            return (
                self._listed > batch
                and not waiting
                and all(one.batch > batch for one in self._doing)
            )

    def errand(self) -> Callable[[Clock], None] | None:
        """A part to decode now, or parts to be listed."""
        with self._lock:
            while self._ahead and self._ahead[0].batch <= self._needed:
                self._ahead.popleft()
            if self._todo:
                held = sum(one.size for one in self._ahead)
                first = self._todo[0]
                if first.batch <= self._needed or held + first.size <= self._room:
                    self._todo.popleft()
                    self._doing.append(first)
                    self._ahead.append(first)
                    return lambda clock: self._decode(first, clock)
            short = len(self._todo) < _LISTED_AHEAD and self._listed < self._count
            if short and not self._listing:
                self._listing = True
                return self._list
            return None

    def _decode(self, one: _Needed, clock: Clock) -> None:
        try:
            with clock.filling():
                one.coded.decode(one.part, self._decoded)
        except (Error, OSError, MemoryError):
            pass  # the batch that needs it will meet it again, in its turn
        finally:
            with self._lock:
                self._doing.remove(one)

    def _list(self, clock: Clock) -> None:
        """Work out the parts of the next batches."""
        found: list[_Needed] = []
        batch = self._listed
        while batch < self._count and len(found) < _LISTED_AHEAD:
            for first, end in self._arriving(batch):
                found += self._parts(batch, first, end)
            batch += 1
        for coded in self._coded:
            parts = [one.part for one in found if one.coded is coded]
            if parts:
                clock.asked += ahead.ask_parts(coded.group, np.array(parts))
        with self._lock:
            self._todo.extend(found)
            self._listed = batch
            self._listing = False

    def _parts(self, batch: int, first: int, end: int) -> Iterable[_Needed]:
        samples = chosen(self._rows, self._places(np.arange(first, end)))
        for coded, known in zip(self._coded, self._known, strict=True):
            parts = np.unique(coded.group.locate(samples).part)
            parts = parts[~known[parts] & (coded.sizes[parts] > 0)]
            known[parts] = True
            for part in parts.tolist():
                yield _Needed(batch, coded, part)
