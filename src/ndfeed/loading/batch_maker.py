"""Makes one batch: reads rows into pooled memory, runs the maps, collates ragged fields."""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_fields import learn_fields, may_differ, with_lists
from ndfeed.dataset.map_steps import Batch, Step, apply_steps, as_samples
from ndfeed.errors import CastError, Error, ResourceError, WorkerError
from ndfeed.loading.budget import Budget
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.engine import BatchGroup
from ndfeed.loading.map_rng import SampleSeeds, key_of
from ndfeed.loading.options import Options
from ndfeed.loading.ragged import PLAIN, Room, collate_ragged, field_of_samples, owner
from ndfeed.loading.timing import Timing
from ndfeed.loading.worker_process import Died
from ndfeed.order.permutation import Ints

_NAMED = 8
LISTED = 1000  # skipped samples whose row and error are kept


class Source(Protocol):
    """Where the stored fields of rows come from."""

    def read(self, rows: Ints) -> Batch:
        """Return the fields of ``rows``; those read straight into their ragged form as ``Room``."""
        ...


class Transform(Protocol):
    """Runs the steps of a dataset on a batch, in this process or in another."""

    def __call__(self, batch: Batch, steps: Sequence[Step], draws: SampleSeeds) -> Batch:
        """Return what the steps make of the batch."""
        ...


class Skipped:
    """Samples that were skipped: how often, and the first of them with their errors."""

    def __init__(self) -> None:
        self.count = 0
        self.listed: dict[int, str] = {}  # row to its error

    def add(self, row: int, error: BaseException) -> None:
        """Count a sample, perhaps the same one in another epoch."""
        self.count += 1
        if len(self.listed) < LISTED:
            self.listed.setdefault(row, f"{error}")


def list_skipped(some: Iterable[Skipped]) -> tuple[tuple[int, str], ...]:
    """List the first skipped samples, each once."""
    found: dict[int, str] = {}
    for one in some:
        found |= one.listed
    return tuple(itertools.islice(found.items(), LISTED))


class BatchMaker:
    """Makes batches of a dataset. Thread-safe."""

    def __init__(
        self,
        ds: Dataset,
        options: Options,
        pool: Pool,
        source: Source,
        finish: Callable[[Any], Any],
        skipped: Skipped | None,
    ) -> None:
        ragged, names = options.ragged, options.structure.names
        self.ds = ds
        self.pool = pool
        self.source = source
        self.skipped = skipped
        self.transform: Transform = apply_steps  # runs in the thread that read the batch
        self.finish = finish  # converts a batch for a framework
        self.budget: Budget
        # Set where they are not split; groups batches that maps made.
        self.join: Callable[[Iterator[Batch]], Iterator[Any]] | None = None
        self.batch_bytes = 0  # size of the largest batch so far, including the input of a map
        self._ragged = ragged
        self._pads = options.pads
        self._differ = may_differ(ds.groups, ds.steps)
        self._stored = {c.field.name: c.field for group in ds.groups for c in group.columns}
        # Fields that count as ragged even in a batch whose samples all have one shape: those whose
        # lengths or offsets are requested, and those that are padded to a fixed length.
        self._asked = {owner(name, [name.rpartition("_")[0]], ragged) for name in names or ()}
        self._asked |= set(self._pads)
        self._learning = threading.Lock()
        self._made_fields: Mapping[str, Field] | None = None

    def read_together(self, rows: Ints, clock: Timing) -> Batch | None:
        """Read the stored fields of several small batches at once, to be split.

        Returns ``None`` if that fails: each batch is then read by itself, so that the error is
        raised for the batch that it belongs to.
        """
        try:
            with clock.filling():
                return self.source.read(rows)
        except Error:
            return None

    def make(
        self, rows: Ints, draws: SampleSeeds | None, clock: Timing, batch: Batch | None = None
    ) -> Any:  # noqa: ANN401
        """Make the batch of ``rows``; ``draws`` seeds the maps, if there are any.

        ``batch`` holds their stored fields if those were read already.
        """
        if self.skipped is not None and (batch is None or self.ds.steps):
            return self._skipping(rows, draws, clock, self.skipped)
        return self._counted(self._made(rows, draws, clock, batch), rows, clock)

    def several(self, joint: Batch, count: int, rows: Ints, clock: Timing) -> BatchGroup:
        """Return several batches that were read together, not split."""
        made = BatchGroup(self._handed(joint, rows), count)
        clock.batches += count
        clock.rows += len(rows)
        clock.nbytes += nbytes(joint)
        return made

    def _made(
        self, rows: Ints, draws: SampleSeeds | None, clock: Timing, batch: Batch | None = None
    ) -> Batch:
        """Read a batch, run the maps and collate its ragged fields."""
        if not len(rows):
            return self._nothing()
        if batch is None:
            with clock.filling():
                batch = self.source.read(rows)
        if not self.ds.steps and self._ragged == "list":
            return batch
        try:
            return self._worked(batch, rows, draws, clock)
        except Died:
            pass
        with clock.filling():
            batch = self.source.read(rows)  # read again: a map may have modified it
        try:
            return self._worked(batch, rows, draws, clock)
        except Died as died:
            raise WorkerError(
                f"{died} while running map() on {_named(rows)}, as did the one before it",
                "check whether the function crashes or runs out of memory",
            ) from None

    def _nothing(self) -> Batch:
        """Return a batch of no samples, with the fields it would have; does not call maps."""
        made: Batch = {}
        for name, field in self._fields().items():
            shape = field.lengths
            if self._ragged != "list" and (field.ragged or name in self._asked):
                uneven = Field(name, field.dtype, (None,) * len(shape), field.type)
                known = field if field.ragged else uneven
                pad = self._pads.get(name, PLAIN)
                made |= Room(known, [], self._ragged, self.pool, pad).batch
            else:
                made[name] = [] if field.ragged else np.empty((0, *shape), field.dtype)
        return made

    def _fields(self) -> Mapping[str, Field]:
        """Return the fields of a batch; the stored ones where a map cannot be tried on a sample."""
        try:
            return self.ds.fields
        except Exception:  # noqa: BLE001 - a map may raise anything
            return self._stored

    def _worked(self, batch: Batch, rows: Ints, draws: SampleSeeds | None, clock: Timing) -> Batch:
        began = time.perf_counter()
        try:
            if draws is not None:
                batch = self.transform(batch, self.ds.steps, draws)
        except Died:
            raise
        except Exception as error:
            _say_where(error, rows)
            raise
        if not self.ds.steps:
            batch = self._formed(batch)
        elif self._differ:
            batch = self._formed_behind(batch, self._learned())
        elif self._ragged != "list":
            batch = self._formed_behind(batch, {})
        clock.transform += time.perf_counter() - began
        return batch

    def _counted(self, batch: Batch, rows: Ints, clock: Timing) -> Any:  # noqa: ANN401
        size = nbytes(batch)
        clock.batches += 1
        clock.rows += len(rows)
        clock.nbytes += size
        held = self.budget.count(size)
        if held > self.batch_bytes:
            self.batch_bytes = held
        return self._handed(batch, rows)

    def _handed(self, batch: Batch, rows: Ints) -> Any:  # noqa: ANN401
        """Return the batch as the consumer gets it."""
        try:
            return self.finish(batch)
        except CastError as error:
            raise error.in_row(int(rows[error.row])) from None

    def _formed(self, batch: Batch) -> Batch:
        """Collate the ragged fields of a batch as it was read."""
        made: Batch = {}
        for name, values in batch.items():
            pad = self._pads.get(name, PLAIN)
            if isinstance(values, Room):
                made |= values.batch  # read straight into its form
            elif self._stored[name].ragged:
                made |= collate_ragged(self._stored[name], values, self._ragged, self.pool, pad)
            else:
                made[name] = values
        return made

    def _formed_behind(self, batch: Batch, known: Mapping[str, Field]) -> Batch:
        """Collate the ragged fields of a batch that maps made; ``known`` are the fields so far.

        Which fields are ragged does not depend on the batch.
        """
        if self._ragged == "list":
            return with_lists(batch, known)
        made: Batch = {}
        for name, values in batch.items():
            field = known.get(name)
            ragged = field is not None and field.ragged
            list_skipped = isinstance(values, list | tuple)
            if len(values) and (list_skipped or ragged or name in self._asked):
                samples = as_samples(values)
                field = field_of_samples(name, samples, field if ragged else None)
                pad = self._pads.get(name, PLAIN)
                made |= collate_ragged(field, samples, self._ragged, self.pool, pad)
            else:
                made[name] = values
        return made

    def _learned(self) -> Mapping[str, Field]:
        """Return the fields that the maps make, learned once."""
        with self._learning:
            if self._made_fields is None and self.transform is apply_steps:
                self._made_fields = self._fields()
            elif self._made_fields is None:
                try:
                    self._made_fields = learn_fields(self.ds, self._try)
                except Exception:  # noqa: BLE001 - a map may raise anything, or end its process
                    self._made_fields = self._stored
            return self._made_fields

    def _try(self, rows: Ints) -> Batch:
        """Run the maps on some samples where they normally run: a map may crash its process."""
        draws = SampleSeeds(key_of(0, 0), 0, np.arange(len(rows)))
        return self.transform(self.source.read(rows), self.ds.steps, draws)

    def _skipping(
        self, rows: Ints, draws: SampleSeeds | None, clock: Timing, skipped: Skipped
    ) -> Any:  # noqa: ANN401
        """Make the batch without the samples that cannot be read or that make a map fail."""
        kept = np.arange(len(rows))
        while len(kept):
            try:
                left = None if draws is None else draws.only(kept)
                batch = self._made(rows[kept], left, clock)
            except Exception as error:
                at = error.__dict__.pop("ndfeed_sample", None)
                if at is not None:
                    skipped.add(int(rows[kept[at]]), error)
                    kept = np.delete(kept, at)
                    continue
                if not isinstance(error, Error) or isinstance(error, WorkerError | ResourceError):
                    raise
                good = self._readable(rows[kept], skipped)
                if good.all():
                    raise  # the samples can be read now, or no sample caused it
                kept = kept[good]
            else:
                return self._counted(batch, rows[kept], clock)
        return self._counted(self._nothing(), rows[:0], clock)

    def _readable(self, rows: Ints, skipped: Skipped) -> NDArray[np.bool_]:
        """Find which of ``rows`` can be read, by bisection."""
        good = np.ones(len(rows), bool)
        todo = [(0, len(rows))]
        while todo:
            first, end = todo.pop()
            try:
                if first < end:
                    self.source.read(rows[first:end])
            except ResourceError:
                raise  # the sample is not the cause
            except Error as error:
                if end - first == 1:
                    good[first] = False
                    skipped.add(int(rows[first]), error)
                else:
                    middle = (first + end) // 2
                    todo += [(middle, end), (first, middle)]
        return good


def nbytes(batch: Batch) -> int:
    """Count the bytes of all arrays of a batch."""
    found = 0
    for values in batch.values():
        size = getattr(values, "nbytes", None)
        if size is None:
            size = sum(getattr(one, "nbytes", 0) for one in values)
        found += size
    return found


def _say_where(error: BaseException, rows: Ints) -> None:
    """Add to a map's error which samples it was called with."""
    at = error.__dict__.get("ndfeed_sample")
    if at is not None:
        error.add_note(f"in map, at row {int(rows[at])}")
        return
    error.add_note(f"in map, in the batch of {_named(rows)}")


def _named(rows: Ints) -> str:
    """Format the first few rows as text."""
    some = ", ".join(map(str, rows[:_NAMED].tolist()))
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f"rows {some}{more}"
