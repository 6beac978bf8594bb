"""Threads that prefetch batches and deliver them in order.

Guarantees:

- Batch k is delivered before batch k + 1, whichever was ready first.
- At most ``depth`` batches are being made or waiting to be delivered; a thread that finds no
  room sleeps until the consumer has taken some.
- An error in a batch is raised where that batch would have been delivered.
- ``stop`` wakes everybody; whoever waits for a batch that will not come gets ``RuntimeError``.
  Threads end when they have finished their current task.
- Ctrl-C at any moment leaves no lock held, and no thread that ``stop`` would not end.

There is no ``Condition`` here, since an interrupt could leave it locked (see
``loading.uninterrupted``): a thread waits for a bell to ring and then checks for itself.

The only lock is held while choosing work, never while working. Delivering a batch that is ready
takes no lock, since updating the dict of slots is atomic. That is correct because each side first
announces that it waits and then checks once more, while the other side first acts and then checks
whether anybody waits.
"""

import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

from ndfeed.loading.timing import Timing
from ndfeed.loading.uninterrupted import start_own_thread, uninterrupted

# Whatever an adapter makes of a batch of arrays: tensors, say, in any structure.
Delivered: TypeAlias = Any

_JOIN = 2.0  # seconds to wait for threads to end; those that run longer are left behind


class BatchSource(Protocol):
    """The batches of one pass, numbered from 0.

    ``make`` makes the ``count`` batches, called from several threads at once, up to ``together``
    batches per call. ``next_task`` returns work to do first, such as decoding what coming batches
    need. Batches for which ``ready`` is false are not started, those for which it is true are.
    Both are called with the engine's lock held, so they must be quick.

    Implemented by ``EpochBatches``.
    """

    count: int
    together: int
    slow: bool  # may a batch take long, so that those before it should be delivered first?
    abandoned: bool  # set by the engine: nobody wants the batches that are not made yet

    def make(self, first: int, stop: int, timing: Timing) -> Iterator[Delivered]:
        """Make the batches [first, stop); some may come as ``BatchGroup``."""
        ...

    def look_ahead(self, number: int, timing: Timing) -> None:
        """Do what is useful before the batches from ``number`` on are made, such as prefetching."""
        ...

    def ready(self, stop: int) -> bool:
        """May the batches before ``stop`` be started?"""
        ...

    def next_task(self) -> Callable[[Timing], None] | None:
        """Return a task to do now, or ``None``."""
        ...


class Failure:
    """An error in a batch, delivered in its place."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class BatchGroup:
    """Several consecutive batches in one object: of ``size`` samples, the last perhaps of fewer."""

    def __init__(self, made: Delivered, count: int, size: int) -> None:
        self.made, self.count, self.size = made, count, size


def count_batches(found: Delivered) -> int:
    """Count the batches in a delivered object."""
    return found.count if isinstance(found, BatchGroup) else 1


class _Bell:
    """Wakes a waiting thread. Several rings that nobody has heard yet count as one."""

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake a waiting thread, or the next one that waits."""
        if self._rings.empty():
            self._rings.put(None)

    def wait(self) -> None:
        """Wait for a ring."""
        self._rings.get()


class _Run:
    """The progress of one batch source."""

    def __init__(self, source: BatchSource, *, prepared: bool = False) -> None:
        self.source = source
        self.prepared = prepared  # before the consumer wanted it?
        self.slots: dict[int, Delivered] = {}
        self.next = 0  # the first batch that nobody has started
        self.taken = 0  # batches the consumer has
        self.over = False  # stopped or failed: nothing new is started
        self.stopped = False
        self._waiting = False
        self._arrived = _Bell()

    def stop(self) -> None:
        """Start nothing more, and wake whoever waits."""
        self.over = self.stopped = self.source.abandoned = True
        self._arrived.ring()

    def wake_consumer(self) -> None:
        """Wake the consumer if it waits for batches, which are now ready."""
        if self._waiting:
            self._arrived.ring()

    def wait(self, number: int) -> Delivered:
        """Return batch ``number`` once it is there."""
        self._waiting = True
        try:
            while (found := self.slots.pop(number, None)) is None:
                if self.stopped:
                    self._arrived.ring()  # for other waiting threads
                    raise RuntimeError("another pass over this loader began, or it was closed")
                self._arrived.wait()
        finally:
            self._waiting = False
        return found


class _Threads:
    """Threads that end together, and a ``Timing`` for each of their numbers."""

    def __init__(self) -> None:
        self.running: dict[int, threading.Thread] = {}
        self.timings: dict[int, Timing] = {}
        self.over = False
        self.bell = _Bell()  # for sleeping threads

    def end(self) -> None:
        """Tell the threads to end; each one that wakes up tells the next."""
        self.over = True
        self.bell.ring()


class Engine:
    """Makes the batches of one batch source after the other, in ``threads`` threads."""

    def __init__(self, threads: int, depth: Callable[[], int]) -> None:
        self.timings: list[Timing] = []
        self.waited = 0.0  # seconds the consumer waited for batches
        self._depth = depth
        self._wanted = threads
        self._lock = threading.Lock()
        self._threads = _Threads()
        self._run: _Run | None = None
        self._upcoming: _Run | None = None
        self._sleeping = 0

    # The consumer's side: one thread.

    def begin(self, source: BatchSource) -> None:
        """Start making the batches of a source, or continue if it was prepared."""
        with self._lock:
            for run in (self._run, self._upcoming):
                if run is not None and run.source is not source:
                    run.stop()
            coming, self._upcoming = self._upcoming, None
            ahead = coming is not None and coming.source is source
            self._run = coming if ahead else _Run(source)
        self._start_threads()

    def prepare(self, source: BatchSource) -> None:
        """Start the next source early, as soon as all batches of the current one are started."""
        with self._lock:
            self._upcoming = _Run(source, prepared=True)
        self._threads.bell.ring()

    def take(self, *, wait: bool = True) -> Delivered:
        """Take the next batch; with ``wait=False`` return ``None`` if it is not ready."""
        run = self._run
        if run is None:
            raise RuntimeError("the loader was closed; iterate it again")
        number = run.taken
        found = run.slots.pop(number, None)
        if found is None:
            if not wait:
                return None
            began = time.perf_counter()
            found = run.wait(number)
            self.waited += time.perf_counter() - began
        run.taken = number + count_batches(found)
        coming = self._next_run() if self._sleeping else None
        if coming is not None and self._has_room(coming):
            self._threads.bell.ring()
        return found

    @property
    def taken(self) -> int:
        """Batches of the current source that the consumer has taken."""
        return 0 if (run := self._run) is None else run.taken

    @property
    def ready(self) -> int:
        """Batches that are ready to be taken."""
        return 0 if (run := self._run) is None else len(run.slots)

    @property
    def threads(self) -> int:
        """Number of threads that make batches."""
        return self._wanted

    def set_threads(self, threads: int) -> None:
        """Continue with more or fewer threads."""
        self._wanted = threads
        if self._run is not None:
            self._start_threads()

    def stop(self) -> list[threading.Thread]:
        """Abandon the source and tell the threads to end; ``join`` waits for them."""
        with self._lock:
            self._threads.end()
            for run in (self._run, self._upcoming):
                if run is not None:
                    run.stop()
                    run.slots.clear()
            self._run = self._upcoming = None
            return list(self._threads.running.values())

    def join(self, threads: list[threading.Thread]) -> None:
        """Wait for threads to end, for a limited time."""
        until = time.monotonic() + _JOIN
        for thread in threads:
            # The last reference to a loader may be dropped in one of its own threads.
            if thread.ident != threading.get_ident():
                thread.join(max(until - time.monotonic(), 0))

    def end(self) -> None:
        """Finish a source that was delivered completely: its threads sleep until the next one."""
        self._run = None

    # The threads' side.

    def _start_threads(self) -> None:
        """Start threads up to the wanted number, and wake some of them."""
        threads = self._threads
        if threads.over or len(threads.running) < self._wanted:
            uninterrupted(self._start_missing)
        self._threads.bell.ring()

    def _start_missing(self) -> None:
        with self._lock:
            if self._run is None:  # stopped meanwhile
                return
            if self._threads.over:
                self._threads = _Threads()
                self.timings = [sum(self.timings, Timing())]
            threads = self._threads
            for number in sorted(set(range(self._wanted)) - threads.running.keys()):
                if number not in threads.timings:
                    self.timings.append(threads.timings.setdefault(number, Timing()))
                args = self._work, threads, number, threads.timings[number]
                try:
                    threads.running[number] = start_own_thread(f"ndfeed-{number}", *args)
                except RuntimeError:
                    if not threads.running:
                        raise
                    return  # no more may be started: those that run do the work

    def _has_room(self, run: _Run) -> bool:
        """May the next batches of the run be started?"""
        left = run.source.count - run.next
        room = run.taken + self._depth() - run.next
        # Looked at once: the consumer may end the current run meanwhile.
        if run is self._upcoming and (current := self._run) is not None:
            room -= current.next - current.taken  # those of the current run count, too
            return left > 0 and room >= min(run.source.together, left)
        return left > 0 and (room >= min(run.source.together, left) or run.next <= run.taken)

    def _next_run(self) -> _Run | None:
        """Return the run whose batches are to be started next."""
        run = self._run
        if self._upcoming is not None and (run is None or run.next == run.source.count):
            return None if run is not None and run.over else self._upcoming
        return run

    def _choose_task(self) -> Callable[[Timing], None] | None:
        """Choose a task for a thread; the lock is held."""
        run = self._next_run()
        if run is None or run.over:
            return None
        if self._has_room(run):
            first = run.next
            # One by one at first: the consumer waits for the very first batch.
            size = 1 if first < self._wanted and not run.prepared else run.source.together
            if run.source.slow:  # or one thread would make all of the last ones
                size = min(size, (run.source.count - first) // (2 * self._wanted) or 1)
            if run.source.ready(stop := min(first + size, run.source.count)):
                run.next = stop
                return _MakeTask(run, first, stop)
        decode = run.source.next_task()
        return None if decode is None else _DecodeTask(self, run, decode)

    def _work(self, threads: _Threads, number: int, timing: Timing) -> None:
        try:
            while (task := self._wait_for_task(threads, number, timing)) is not None:
                task(timing)
                del task  # or a batch would be kept alive while this thread sleeps
        finally:
            with self._lock:
                if not threads.over:  # a surplus thread, or a bug of ours: another may be started
                    del threads.running[number]
            threads.bell.ring()  # pass on a wake-up that was meant for this thread

    def _wait_for_task(
        self, threads: _Threads, number: int, timing: Timing
    ) -> Callable[[Timing], None] | None:
        """Wait for a task; ``None`` where the thread is to end."""
        began = time.perf_counter()
        while not threads.over and number < self._wanted:
            with self._lock:
                # Announced before checking: whoever makes room afterwards will see it.
                self._sleeping += 1
                task = self._choose_task()
                self._sleeping -= task is not None
            if task is not None:
                if self._sleeping:
                    threads.bell.ring()  # there may be a task for the next one too
                timing.idle += time.perf_counter() - began
                return task
            threads.bell.wait()
            with self._lock:
                self._sleeping -= 1
        return None

    def wake_others(self, run: _Run) -> None:
        """Wake others that may have waited for what was finished."""
        if self._sleeping and not run.over:
            self._threads.bell.ring()


class _DecodeTask:
    """A task that comes before the batches that need it."""

    __slots__ = ("_do", "_engine", "_run")

    def __init__(self, engine: Engine, run: _Run, do: Callable[[Timing], None]) -> None:
        self._engine, self._run, self._do = engine, run, do

    def __call__(self, timing: Timing) -> None:
        """Run the task."""
        try:
            self._do(timing)
        finally:
            self._engine.wake_others(self._run)


class _MakeTask:
    """A few consecutive batches, made by one thread."""

    __slots__ = ("_first", "_run", "_stop")

    def __init__(self, run: _Run, first: int, stop: int) -> None:
        self._run, self._first, self._stop = run, first, stop

    def __call__(self, timing: Timing) -> None:
        """Make the batches."""
        run, source = self._run, self._run.source
        number = self._first
        try:
            source.look_ahead(self._stop, timing)
            if run.stopped:
                return
            for made in source.make(self._first, self._stop, timing):
                if run.stopped:
                    return
                run.slots[number] = made
                number += count_batches(made)
                if source.slow:
                    run.wake_consumer()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer is to see it
            run.over = True
            run.slots[number] = Failure(error)
        finally:
            # Once for all, if they are quick: waking a thread costs as much as a small batch.
            run.wake_consumer()
