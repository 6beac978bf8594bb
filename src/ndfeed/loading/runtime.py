"""Per-process runtime of a loader: buffers, threads, processes, and batches by number.

The budget divides the memory limit once, between batches in progress and decoded streams.

``BatchesByNumber`` makes any batch of any epoch on request, for those who have their own workers.
Its batches are those of a loader, and so is what maps draw. Nothing is prefetched; compressed files
are decoded by whoever needs them first, and kept within ``memory``.
"""

import os
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.decoding import nowhere
from ndfeed.dataset.row_selection import Drawn
from ndfeed.files import platform_calls
from ndfeed.loading.adapter import Adapter, Arrays
from ndfeed.loading.batch_builder import BatchBuilder, Builder
from ndfeed.loading.batch_maker import BatchMaker, Skipped, list_skipped
from ndfeed.loading.budget import Budget, estimate_batch_bytes, make_budget
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.builder_switch import Switch
from ndfeed.loading.engine import Delivered, Engine, Failure
from ndfeed.loading.epoch_batches import EpochBatches, Pass
from ndfeed.loading.host_source import HostSource
from ndfeed.loading.map_rng import Key, SampleSeeds, key_of, list_positions
from ndfeed.loading.options import Options, Request, stored_fields
from ndfeed.loading.order_mixing import order_in_use
from ndfeed.loading.plan import Plan, make_plan
from ndfeed.loading.pool_worker import make_job
from ndfeed.loading.process_builder import ProcessBuilder
from ndfeed.loading.process_choice import (
    Trial,
    choose_processes,
    opens_files,
    start_in_background,
    why_not_start,
)
from ndfeed.loading.process_pool import ProcessPool
from ndfeed.loading.report import Snapshot
from ndfeed.loading.stream_decoder import StreamDecoder
from ndfeed.loading.thread_count import Tuner, guess_threads
from ndfeed.loading.timing import Disk, Padding, Timing
from ndfeed.loading.uninterrupted import uninterrupted
from ndfeed.order.epoch import Epoch
from ndfeed.order.protocol import OrderInUse

_LOOK_EVERY = 0.25  # seconds
_PAUSE = 0.05  # seconds between two epochs that make them count separately
_KEPT = 64  # free buffers of one size that are kept


def budget_for(
    ds: Dataset, options: Options, plan: Plan, batch_bytes: int, adapter: Adapter
) -> Budget:
    """Divide the memory limit of a loader whose batches go to ``adapter``."""
    return make_budget(
        options.memory,
        batch_bytes,
        decodes=bool(plan.coded),
        splits=adapter.cuts_ragged or not any(field.ragged for field in stored_fields(ds)),
        # Processes are asked for more at a time, since asking takes longer.
        group_bytes=adapter.together * (2 if opens_files(ds) else 1),
        growth=adapter.growth,
        held=adapter.held,
    )


class Runtime:
    """Per-process runtime: buffers, threads, caches. Serves one pass at a time."""

    def __init__(
        self,
        ds: Dataset,
        options: Options,
        plan: Plan,
        batch_bytes: int,
        adapter: Adapter,
    ) -> None:
        self.pid = os.getpid()
        platform_calls.keep_some_freed_memory()
        self.adapter = adapter
        self._ds = ds
        self.plan = plan
        self._budget = budget_for(ds, options, plan, batch_bytes, adapter)
        choice = choose_processes(ds, options, decodes=bool(plan.coded))
        self._processes = ProcessPool(choice, make_job(ds, options)) if choice.processes else None
        self._decoder: StreamDecoder | None = None
        if self._processes is not None and plan.coded:
            self._decoder = StreamDecoder(ds, self._processes)
        elsewhere = nowhere if self._decoder is None else self._decoder.decode
        self._decoded = plan.make_cache(self._budget.streams, elsewhere)
        threads_read = bool(choice.processes and ds.steps and plan.coded)  # for processes that map
        allocate = adapter.allocate_shared if threads_read else adapter.allocate
        self._pool = Pool(_KEPT) if allocate is None else Pool(_KEPT, allocate)
        host = HostSource(ds, options, self._pool, self._decoded)
        source = adapter.source(host)
        local = BatchBuilder(ds, options, self._pool, source)
        self._shared = Pool(_KEPT, adapter.allocate_shared)
        self._obstacle = choice.obstacle
        self._had_processes = 0  # how many built the batches of a pass that was stopped
        if source is not host and not plan.coded:  # a framework's own, which reads here
            self._processes = None
        builder: Builder = local
        if self._processes is not None:
            builder = self._make_switch(local, self._processes, wanted=choice.wanted)
        self._maker = BatchMaker(options, self._budget, self._pool, local, builder, adapter)
        busy = self._processes.threads if choice.wanted and self._processes is not None else 0
        fixed = options.threads or busy or adapter.threads
        threads = fixed or guess_threads(ds)
        # Weak: engine threads must not keep buffers alive.
        own = weakref.ref(self)
        self._engine = Engine(threads, lambda: _depth_of(own()))
        self._tuner = None if fixed else Tuner(threads, self._engine.set_threads)
        self._trial: Trial | None = None
        if self._processes is not None and options.processes is None:
            self._trial = Trial(
                self._switch, self._processes, ds.steps, threads, self._engine.set_threads
            )
        self._before = Timing()  # what was done before the current pass
        self._waited_before = 0.0
        self._began = self._ended = 0.0
        self._disk, self._padding = Disk(), Padding()
        self._stopped = True  # is there nothing to stop?
        self._look_at = 0.0
        self._pass: Pass | None = None
        self._count = 0  # batches of the pass
        self._size = 1  # samples of most of them
        self._taken = 0  # batches delivered of a pass that has ended
        # Taken, and being transferred to where they are used.
        self._sent: deque[Delivered] = deque()
        self._ahead: tuple[Pass, EpochBatches] | None = None
        # The next epoch is started early unless somebody could notice: a function that runs, a
        # stream that is decoded, a sample that is listed as skipped.
        self._continues = not (ds.steps or plan.coded or options.on_error == "skip")

    def _make_switch(self, local: BatchBuilder, pool: ProcessPool, *, wanted: bool) -> Builder:
        """Return what builds batches in processes, or here if these are slower."""
        there = ProcessBuilder(self._ds, pool, self._shared, self._budget.batches, local)
        self._switch = Switch(local, there, pool, careful=bool(self._ds.steps) and not wanted)
        # Where functions run was said, so they run nowhere else.
        return there if wanted and self._ds.steps else self._switch

    @property
    def skipped(self) -> Skipped:
        """Samples skipped by ``on_error="skip"``."""
        return self._maker.skipped

    def depth(self) -> int:
        """Return how many batches may be in progress."""
        return self._budget.depth(self._maker.largest, self._engine.threads)

    def begin(self, wanted: Pass) -> int:
        """Start a pass; return the number of its batches."""
        self._stopped = False
        ahead = self._ahead
        prepared = ahead[1] if ahead is not None and ahead[0] == wanted else None
        batches = self._batches_of(wanted) if prepared is None else prepared
        self._before = self.timing()
        self._waited_before = self._engine.waited
        now = time.perf_counter()
        # Short consecutive epochs count as one period: each alone would be too short to judge.
        if self._tuner is not None and now - self._ended >= _PAUSE:
            self._tuner.restart(self._before.rows, self._engine.waited)
        if self._trial is not None:
            self._trial.resume(self._before.rows, self._engine.waited)
        if self._began:  # else nothing was read since the runtime was made
            self._disk = Disk()
        self._began, self._ended, self._had_processes = now, 0.0, 0
        self._pass, self._count, self._taken = wanted, batches.count, 0
        self._size, self._padding = batches.size, batches.padding
        self._sent.clear()
        if self._processes is not None and (self._trial is None or self._trial.uses_processes):
            self._start_processes(self._processes)
        self._engine.begin(batches)
        if self._continues:
            coming = wanted._replace(epoch=wanted.epoch + 1, start=0)
            self._ahead = coming, self._batches_of(coming)
            self._engine.prepare(self._ahead[1])
        return batches.count

    def _start_processes(self, processes: ProcessPool) -> None:
        if processes.ready and (self._trial is not None or processes.keep_or_close()):
            return
        if processes.lean:
            start_in_background(processes)
        elif self._trial is not None and (problem := why_not_start(processes)):
            processes.abandon(problem)
        else:
            processes.reopen()
            processes.start()  # before our own threads exist: forking is safer without them

    def _batches_of(self, wanted: Pass) -> EpochBatches:
        return EpochBatches(wanted, self._ds, self.plan, self._budget, self._decoded, self._maker)

    def next_batch(self) -> Delivered:
        """Return the next batch of the pass, or raise the error that came in its place.

        Starts the transfer of those after it, if a framework wants that.
        """
        adapter, engine, sent = self.adapter, self._engine, self._sent
        if not adapter.ahead:
            found = _raise_failure(engine.take())
        else:
            while len(sent) <= adapter.ahead and engine.taken < self._count:
                found = engine.take(wait=not sent)
                if found is None:
                    break
                sent.extend((found,) if isinstance(found, Failure) else adapter.send(found))
            found = adapter.receive(_raise_failure(sent.popleft()))
        if time.perf_counter() >= self._look_at:
            self._look()
        return found

    def _look(self) -> None:
        """Adjust the number of threads, and note the rate of the disk."""
        self._look_at = time.perf_counter() + _LOOK_EVERY
        self._disk.look()
        self._padding.count(self._engine.taken)  # from time to time, so that few are kept
        if self._trial is not None and not self._trial.over:
            self._trial.look(self.timing().rows, self._engine.waited, self._size)
        elif self._tuner is not None and not self._count_processes():
            self._tuner.look(self.timing().rows, self._engine.waited)

    def _count_processes(self) -> int:
        """Return how many processes build batches now."""
        return self._processes.count if self._processes and self._processes.active else 0

    def timing(self) -> Timing:
        """Return the timing of all threads together."""
        return sum(self._engine.timings, Timing())

    def snapshot(self) -> Snapshot:
        """Return what was measured so far, for the report."""
        total = self.timing()
        batches, rows = self._count_delivered()
        engine, decoded = self._engine, self._decoded
        return Snapshot(
            seconds=(self._ended or time.perf_counter()) - self._began,
            batches=batches,
            rows=rows,
            padded=self._padding.count(batches),
            done=total - self._before,
            total=total,
            consumer_waiting=engine.waited - self._waited_before,
            threads=engine.threads,
            ready=engine.ready,
            depth=self.depth(),
            batch_bytes=self._maker.largest,
            processes=self._count_processes() or self._had_processes,
            obstacle=self._processes.problem if self._processes else self._obstacle,
            buffers=self._pool.made + self._shared.made,
            buffers_idle=self._pool.idle + self._shared.idle,
            decoded=decoded.held,
            window=self.plan.window,
            ahead=self.plan.count_ahead(decoded.room),
            decodes_again=decoded.large is None and self.plan.window > decoded.limit,
            from_disk=self._disk.since,
            disk_peak=self._disk.peak,
            skipped=self.skipped.count,
            transfer=self.adapter.describe(),
            cores=platform_calls.cores(),
            machine_memory=platform_calls.memory_bytes(),
            tried=self._trial is not None and self._trial.over,
        )

    def _count_delivered(self) -> tuple[int, int]:
        """Count batches and samples of the current or last pass that the consumer has."""
        batches = self._taken or self._engine.taken
        if not batches or self._pass is None:
            return 0, 0
        share, seed, epoch, start = self._pass
        cut = self.plan.cut(share, seed, epoch)
        last = sum(len(range(*span)) for span in self.plan.spans(cut, batches - 1, start))
        if cut.even:
            return batches, (batches - 1) * share.size + last
        return batches, (cut.consumed(batches, start) - start) // share.world * len(share.ranks)

    def end(self) -> None:
        """End the pass; threads wait for the next."""
        self._taken = self._engine.taken
        self._ended = time.perf_counter()
        self._engine.end()
        if self._trial is not None:
            self._trial.pause(self.timing().rows, self._engine.waited)

    def stop(self) -> None:
        """Abandon the pass, end the threads, release memory. May be repeated if interrupted."""
        if self._stopped:
            return
        self._ended = self._ended or time.perf_counter()
        self._had_processes = self._count_processes()
        self._ahead = None
        self._taken = self._engine.taken or self._taken
        self._sent.clear()
        uninterrupted(self._stop)
        self._stopped = True

    def _stop(self) -> None:
        threads = self._engine.stop()
        if self._processes is not None:
            self._processes.close()
        self._engine.join(threads)
        self._decoded.clear()
        self._pool.clear()
        self._shared.clear()
        if self._decoder is not None:
            self._decoder.clear()
        self.adapter.close()


def _depth_of(runtime: Runtime | None) -> int:
    return 1 if runtime is None else runtime.depth()


def _raise_failure(found: Delivered) -> Delivered:
    """Return a batch; raise the error that came in its place."""
    if isinstance(found, Failure):
        try:
            raise found.error
        finally:
            del found  # or the error would refer to itself through this frame
    return found


class BatchesByNumber:
    """Batches by number. Thread-safe; can be pickled, and survives a fork."""

    def __init__(self, request: Request, adapter: Arrays | None = None) -> None:
        self._adapter = adapter or Arrays(request.options.structure)
        self._adopt(request)

    def _adopt(self, request: Request) -> None:
        ds, options = request.ds, request.options
        self.dataset = ds
        self.share = request.share
        self._request = request
        self._plan = make_plan(request)
        size = estimate_batch_bytes(ds, request.largest_batch, options.memory)
        self._budget = budget_for(ds, options, self._plan, size, self._adapter)
        self._plan.make_cache(self._budget.streams)  # refuses streams that do not fit
        self._makers: dict[int, BatchMaker] = {}  # by process: one that was forked needs its own
        self._begun: tuple[int, Epoch, Key] | None = None

    @property
    def order(self) -> OrderInUse:
        """How samples are ordered within an epoch. ``order.mixing`` says how well it mixes."""
        seed = self._request.options.seed
        return order_in_use(self._plan, self.dataset, self.share, seed)

    def follow(self, request: Request) -> None:
        """Make the batches of a loader's request: a state, or new files, may have changed it."""
        mine = self._request
        if request.ds is not mine.ds or request.shuffle is not mine.shuffle:
            self._adopt(replace(request, options=mine.options))

    def count(self, epoch: int) -> int:
        """Return how many batches an epoch has."""
        return self._plan.cut(self.share, self._request.options.seed, epoch).batches()

    def batch(self, epoch: int, number: int) -> Delivered:
        """Make batch ``number`` of an epoch."""
        rows, key = self._begin(epoch)
        cut = self._plan.cut(self.share, self._request.options.seed, epoch)
        spans = self._plan.spans(cut, number, 0)
        found = self._plan.places(np.concatenate([rows.rows(*span) for span in spans]))
        if isinstance(self.dataset.rows, Drawn):
            found = self.dataset.rows.draw(found, key, list_positions(spans))
        pid = os.getpid()
        maker = self._makers.get(pid) or self._makers.setdefault(pid, self._make_maker())
        return maker.make(found, SampleSeeds.of(key, spans), Timing())

    def _make_maker(self) -> BatchMaker:
        pool, decoded = Pool(_KEPT), self._plan.make_cache(self._budget.streams)
        ds, options = self.dataset, self._request.options
        local = BatchBuilder(ds, options, pool, HostSource(ds, options, pool, decoded))
        return BatchMaker(options, self._budget, pool, local, local, self._adapter)

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples skipped by ``on_error="skip"``: row and error of the first 1,000."""
        return list_skipped(maker.skipped for maker in self._makers.values())

    def _begin(self, epoch: int) -> tuple[Epoch, Key]:
        begun = self._begun
        if begun is None or begun[0] != epoch:
            seed, plan = self._request.options.seed, self._plan
            rows = plan.order.begin(self.share.n, seed, epoch, plan.counts)
            begun = self._begun = epoch, rows, key_of(seed, epoch)
        return begun[1], begun[2]

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchesByNumber, (self._request, self._adapter)
