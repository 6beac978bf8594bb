"""Per-process runtime of a loader: buffers, threads, processes, and batches by number.

The plan divides the memory limit once, between batches in progress and decoded streams. One batch
is counted for the consumer, who holds it while the next is made.

``BatchesByNumber`` makes any batch of any epoch on request, for those who have their own workers.
Its batches are those of a loader, and so is what maps draw. Nothing is prefetched; compressed files
are decoded by whoever needs them first, and kept within ``memory``.
"""

import os
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.files.shared_memory import Block
from ndfeed.loading.adapter import Adapter, Arrays
from ndfeed.loading.batch_maker import BatchMaker, Skipped, list_skipped
from ndfeed.loading.budget import batch_bytes, make_budget
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.engine import Engine
from ndfeed.loading.epoch_batches import EpochBatches
from ndfeed.loading.host_source import HostSource, Joiner
from ndfeed.loading.map_processes import Processes
from ndfeed.loading.map_rng import Key, SampleSeeds, key_of
from ndfeed.loading.options import Options, Shuffle, stored_fields
from ndfeed.loading.plan import Plan, make_plan
from ndfeed.loading.thread_count import Tuner, guess_threads
from ndfeed.loading.timing import Disk, Timing
from ndfeed.loading.uninterrupted import uninterrupted
from ndfeed.order.orders import Epoch, Order
from ndfeed.order.rank_share import Share

_LOOK_EVERY = 0.25  # seconds
_PAUSE = 0.05  # seconds between two epochs that make them count separately
_KEPT = 64  # free buffers of one size that are kept


class Runtime:
    """Per-process runtime: buffers, threads, caches."""

    def __init__(
        self,
        ds: Dataset,
        options: Options,
        plan: Plan,
        batch_bytes: int,
        adapter: Adapter,
    ) -> None:
        self.pid = os.getpid()
        self.plan = plan
        self.skipped = Skipped()
        self._budget = budget = make_budget(
            options.memory,
            batch_bytes,
            decodes=bool(plan.coded),
            splits=not any(field.ragged for field in stored_fields(ds)),
            group_bytes=adapter.together,
            growth=adapter.growth,
            held=adapter.held,
        )
        self.decoded = plan.make_cache(budget.streams)
        self.adapter = adapter
        self.processes: Processes | None = None
        allocate = adapter.allocate
        if options.processes and ds.steps:
            self.processes = Processes(options.processes, ds.steps)
            allocate = Block.of
        self.pool = Pool(_KEPT) if allocate is None else Pool(_KEPT, allocate)
        host = HostSource(ds, options.ragged, self.pool, self.decoded, options.pads)
        self.filler = BatchMaker(
            ds,
            options,
            self.pool,
            adapter.source(host),
            adapter.finish,
            self.skipped if options.on_error == "skip" else None,
        )
        self.filler.batch_bytes = budget.batch_bytes
        self.filler.budget = budget
        if self.processes is not None:
            self.filler.transform = self.processes
        if adapter.joint:
            self.filler.join = Joiner(self.pool, budget.group_bytes)
        # A thread waits while a worker process has its batch: one more thread reads meanwhile.
        fixed = options.threads or (options.processes + 1 if self.processes else None)
        fixed = fixed or adapter.threads
        threads = fixed or guess_threads(ds)
        # Weak: engine threads must not keep buffers alive.
        own = weakref.ref(self)
        self.engine = Engine(threads, lambda: _depth(own()))
        self.tuner = None if fixed else Tuner(threads, self.engine.use)
        self.before = Timing()  # what was done before the current pass
        self.starved_before = 0.0
        self.began = self.ended = 0.0
        self.disk = Disk()
        self._stopped = True  # is there nothing to stop?
        self._look_at = 0.0
        self.given = 0  # batches delivered of a pass that has ended
        self._pass: tuple[Share, int] | None = None
        self._ahead: tuple[tuple[Share, int, int, int], EpochBatches] | None = None
        # The next epoch is started early unless somebody could notice: a function that runs, a
        # stream that is decoded, a sample that is listed as skipped.
        self._goes_on = not (ds.steps or plan.coded or options.on_error == "skip")

    def depth(self) -> int:
        """How many batches may be in progress."""
        return self._budget.depth(self.filler.batch_bytes, self.engine.threads)

    def begin(self, share: Share, seed: int, epoch: int, start: int) -> int:
        """Start an epoch from position ``start`` on; return the number of its batches."""
        self._stopped = False
        asked, ahead = (share, seed, epoch, start), self._ahead
        prepared = ahead[1] if ahead is not None and ahead[0] == asked else None
        course = self._course(*asked) if prepared is None else prepared
        self.before = self.clock()
        self.starved_before = self.engine.starved
        now = time.perf_counter()
        # Short consecutive epochs count as one period: each alone would be too short to judge.
        if self.tuner is not None and (prepared is None or now - self.ended >= _PAUSE):
            self.tuner.restart(self.before.rows, self.engine.starved)
        if self.began:  # else nothing was read since the runtime was made
            self.disk = Disk()
        self.began, self.ended = now, 0.0
        self.given, self._pass = 0, (share, start)
        if self.processes is not None:
            self.processes.start()  # before our own threads exist: forking is safer without them
        self.engine.begin(course)
        if self._goes_on:
            coming = share, seed, epoch + 1, 0
            self._ahead = coming, self._course(*coming)
            self.engine.prepare(self._ahead[1])
        return course.count

    def _course(self, share: Share, seed: int, epoch: int, start: int) -> EpochBatches:
        return EpochBatches(
            self.filler,
            self.decoded,
            self.plan,
            share,
            seed=seed,
            epoch=epoch,
            start=start,
        )

    def look(self) -> None:
        """Adjust the number of threads now and then, and note the rate of the disk."""
        now = time.perf_counter()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY
        self.disk.look()
        if self.tuner is not None:
            self.tuner.look(self.clock().rows, self.engine.starved)

    def clock(self) -> Timing:
        """Return the timing of all threads together."""
        return sum(self.engine.clocks, Timing())

    def delivered(self) -> tuple[int, int]:
        """Batches and samples of the current or last pass that the consumer has."""
        batches = self.given or self.engine.given
        if not batches or self._pass is None:
            return 0, 0
        share, start = self._pass
        last = sum(len(range(*span)) for span in self.plan.spans(share, batches - 1, start))
        return batches, (batches - 1) * share.size + last

    def end(self) -> None:
        """End the pass; threads wait for the next."""
        self.given = self.engine.given
        self.ended = time.perf_counter()
        self.engine.end()

    def stop(self) -> None:
        """Abandon the pass, end the threads, release memory. May be repeated if interrupted."""
        if self._stopped:
            return
        self.ended = self.ended or time.perf_counter()
        self._ahead = None
        self.given = self.engine.given or self.given
        uninterrupted(self._stop)
        self.adapter.close()
        self._stopped = True

    def _stop(self) -> None:
        threads = self.engine.stop()
        if self.processes is not None:
            self.processes.close()
        self.engine.join(threads)
        self.decoded.clear()
        self.pool.clear()


def _depth(machine: Runtime | None) -> int:
    return 1 if machine is None else machine.depth()


class BatchesByNumber:
    """Batches by number. Thread-safe; can be pickled, and survives a fork."""

    def __init__(self, ds: Dataset, share: Share, shuffle: Shuffle, options: Options) -> None:
        self.dataset = ds
        self.share = share
        self._options = options
        self._plan = make_plan(ds, shuffle, share)
        self._bytes = batch_bytes(ds, share.batch_size, options.memory)
        self._budget = make_budget(options.memory, self._bytes, decodes=bool(self._plan.coded))
        self._plan.make_cache(self._budget.streams)  # raises here, if at all
        self._shuffle = shuffle
        self._machine: Runtime | None = None
        self._begun: tuple[int, Epoch, Key] | None = None

    @property
    def order(self) -> Order:
        """How samples are ordered within an epoch."""
        return self._plan.order

    def batch(self, epoch: int, number: int) -> Any:  # noqa: ANN401
        """Make batch ``number`` of an epoch."""
        rows, key = self._epoch(epoch)
        spans = self._plan.spans(self.share, number, 0)
        machine = self._machine
        if machine is None or machine.pid != os.getpid():
            adapter = Arrays(self._options.structure)
            machine = Runtime(self.dataset, self._options, self._plan, self._bytes, adapter)
            self._machine = machine
        found = self._plan.places(np.concatenate([rows.rows(*span) for span in spans]))
        return machine.filler.make(found, SampleSeeds.of(key, spans), Timing())

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples skipped by ``on_error="skip"``: row and error of the first 1,000."""
        return () if self._machine is None else list_skipped([self._machine.skipped])

    def _epoch(self, epoch: int) -> tuple[Epoch, Key]:
        begun = self._begun
        if begun is None or begun[0] != epoch:
            seed, plan = self._options.seed, self._plan
            rows = plan.order.begin(self.share.n, seed, epoch, plan.counts)
            begun = self._begun = epoch, rows, key_of(seed, epoch)
        return begun[1], begun[2]

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchesByNumber, (self.dataset, self.share, self._shuffle, self._options)
