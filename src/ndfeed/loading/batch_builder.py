"""Builds single batches in this process: reads rows, runs the maps, collates ragged fields."""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_fields import may_differ
from ndfeed.dataset.map_steps import Batch, SampleFailed, try_steps
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.collate import Collator
from ndfeed.loading.map_rng import SampleSeeds
from ndfeed.loading.options import Options, stored_fields
from ndfeed.loading.timing import Timing
from ndfeed.order.permutation import Ints

_NAMED = 8  # rows that an error names
_LONGEST = 10.0  # seconds that threads are held up


class _Gate:
    """Lets threads pass, or holds them up while something must not find them inside."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start over: nobody is inside, as in a forked child."""
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = 0

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Pass, once the gate is open."""
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[bool]:
        """Close the gate, and wait until nobody is inside: for a while, then it gives false."""
        with self._changed:
            self._closed += 1
            empty = self._changed.wait_for(lambda: not self._inside, _LONGEST)
        try:
            yield empty
        finally:
            with self._changed:
                self._closed -= 1
                self._changed.notify_all()


# Functions given to map that run in this process, of all loaders: nothing is forked meanwhile.
running_maps = _Gate()


def _in_forked_child() -> None:
    running_maps.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)


class Source(Protocol):
    """Where the stored fields of rows come from."""

    def foresee(self, rows: Ints) -> None:
        """Note which rows will be read, in this order: ``read`` is then given slices of it."""
        return

    def read(self, rows: Ints) -> Batch:
        """Return the fields of ``rows``; those read straight into their ragged form as ``Room``."""
        ...


class Builder(Protocol):
    """Builds batches: in the calling thread, or in another process."""

    def read(self, rows: Ints, timing: Timing) -> Batch | None:
        """Return the stored fields of several batches; ``None`` where each is better read alone."""
        ...

    def build(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing, batch: Batch | None = None
    ) -> Batch:
        """Return the batch of ``rows``; ``seeds`` seeds the maps, if there are any.

        ``batch`` holds their stored fields if those were read already. Raises ``SampleFailed``
        where a function of single samples fails.
        """
        ...

    def build_several(
        self, rows: Sequence[Ints], seeds: Sequence[SampleSeeds], timing: Timing
    ) -> list[Batch] | None:
        """Return several small batches that maps make; ``None`` where that is no faster."""
        ...


class BatchBuilder:
    """Builds the batches of a dataset in this process. Thread-safe."""

    def __init__(self, ds: Dataset, options: Options, pool: Pool, source: Source) -> None:
        self._ds, self._steps = ds, ds.steps
        self._source = source
        self._collator = Collator(ds, options, pool)
        self._lists = options.ragged == "list"
        self._differ = may_differ(ds.groups, ds.steps)
        self.pads = options.ragged == "pad"
        self.maps = bool(ds.steps)
        self._learning = threading.Lock()
        self._learned: Mapping[str, Field] | None = None

    def foresee(self, rows: Ints) -> None:
        """Tell the source which rows will be read, in slices of ``rows``."""
        self._source.foresee(rows)

    def read(self, rows: Ints, timing: Timing) -> Batch:
        """Return the stored fields of ``rows``."""
        with timing.reading():
            return self._source.read(rows)

    def build(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing, batch: Batch | None = None
    ) -> Batch:
        """Return the batch of ``rows``."""
        if batch is None:
            batch = self.read(rows, timing)
        if not self._steps and self._lists:
            return batch
        began = time.perf_counter()
        if seeds is not None:
            batch = self._run_maps(batch, rows, seeds)
        batch = self.collate(batch)
        timing.transform += time.perf_counter() - began
        return batch

    def build_several(self, *_: object) -> None:
        """Build nothing: in one thread, several batches take as long as one after the other."""

    def collate(self, batch: Batch) -> Batch:
        """Give the ragged fields of a batch their form, after the maps if there are any."""
        if not self._steps:
            return self._collator.collate_stored(batch)
        if self._differ:
            return self._collator.collate_mapped(batch, self._learn_fields())
        return batch if self._lists else self._collator.collate_mapped(batch, {})

    def count_padding(self, batch: Batch) -> tuple[int, int]:
        """Return how long all samples of a batch are together, and how much of it is padding."""
        return self._collator.count_padding(batch)

    def make_empty(self) -> Batch:
        """Return a batch without samples."""
        return self._collator.make_empty(self._known_fields())

    def _run_maps(self, batch: Batch, rows: Ints, seeds: SampleSeeds) -> Batch:
        """Run the maps on a batch; errors say which samples they were called with."""
        try:
            with running_maps.passing():
                return try_steps(batch, self._steps, seeds)
        except SampleFailed as failed:
            failed.error.add_note(f"in map, at row {self.number(rows[failed.at])}")
            raise
        except Exception as error:
            error.add_note(f"in map, in the batch of {format_rows(rows, len(self._ds))}")
            raise

    def number(self, row: np.int64) -> int:
        """Return the number of a row, whatever was drawn for it."""
        return int(row) % len(self._ds)

    def _learn_fields(self) -> Mapping[str, Field]:
        """Return the fields that the maps make, learned once."""
        with self._learning:
            if self._learned is None:
                self._learned = self._known_fields()
            return self._learned

    def _known_fields(self) -> Mapping[str, Field]:
        """Return the fields of a batch; the stored ones where a map cannot be tried on a sample."""
        try:
            return self._ds.fields
        except Exception:  # noqa: BLE001 - a map may raise anything
            return {field.name: field for field in stored_fields(self._ds)}


def format_rows(rows: Ints, count: int) -> str:
    """Format the first few rows as text, of ``count`` that there are."""
    some = ", ".join(map(str, (rows[:_NAMED] % count).tolist()))
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f"rows {some}{more}"
