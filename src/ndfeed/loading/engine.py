"""Threads that make batches ahead of the consumer, who gets them in order.

Guarantees:

- Batch k is delivered before batch k + 1, whichever was ready first.
- At most ``depth`` batches are being made or waiting to be delivered; a thread that finds no
  room rests until the consumer has taken some.
- What goes wrong in a batch is raised where that batch would have been delivered.
- ``stop`` wakes everybody; whoever waits for a batch that will not come gets
  ``RuntimeError``. Threads end with the piece of work they are at.
- Ctrl-C at any moment leaves no lock held, and no thread that ``stop`` would not end.

There is no ``Condition`` here, since an interrupt could leave it locked (see
``loading.uninterrupted``): whoever waits, waits for a bell to ring and then looks for itself. An
extra ring does no harm.

The one lock is held for choosing work, never while working. Handing over a batch that is ready
takes no lock: the slots are a dict, which changes in one step. It works since each side first
says that it waits and then looks once more, and the other side first acts and then looks
whether anybody waits.
"""

import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol

from ndfeed.loading.timing import Timing
from ndfeed.loading.uninterrupted import uninterrupted

_JOIN = 2.0  # seconds for threads to end; what runs longer is left behind


class BatchSource(Protocol):
    """The batches of one pass, numbered from 0.

    ``count`` of them are made by ``make``, from several threads at once, up to ``together`` at a
    time by one thread. ``errand`` is work that should be done first, such as decoding what coming
    batches need; batches for which ``ready`` is false are not begun, and those for which it is
    true are. Both are called with the engine's lock held, so they only look.
    """

    count: int
    together: int
    slow: bool  # may a batch take long, so that those before it should be delivered first?
    left: bool  # set by the engine: nobody wants the batches that are not made yet

    def make(self, first: int, stop: int, clock: Timing) -> Iterator[Any]:
        """The batches of the numbers [first, stop); some may come as ``BatchGroup``."""
        ...

    def look_ahead(self, number: int, clock: Timing) -> None:
        """What is worth doing before the batches from ``number`` on are made."""
        ...

    def ready(self, stop: int) -> bool:
        """May the batches before ``stop`` be begun?"""
        ...

    def errand(self) -> Callable[[Timing], None] | None:
        """Something to do now, or nothing."""
        ...


class Failure:
    """What went wrong in a batch, in its place."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class BatchGroup:
    """Some batches in a row, in one piece."""

    def __init__(self, made: Any, count: int) -> None:  # noqa: ANN401
        self.made = made
        self.count = count


def count_batches(found: Any) -> int:  # noqa: ANN401
    """How many batches something delivered is."""
    return found.count if isinstance(found, BatchGroup) else 1


class _Bell:
    """Wakes one who waits. A ring that nobody has heard yet is enough for many."""

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake somebody who waits, or the next who does."""
        if self._rings.empty():
            self._rings.put(None)

    def wait(self) -> None:
        """Wait for a ring."""
        self._rings.get()


class _Run:
    """One course under way."""

    def __init__(self, course: BatchSource) -> None:
        self.course = course
        self.slots: dict[int, Any] = {}
        self.next = 0  # the first batch nobody has begun
        self.given = 0  # batches the consumer has
        self.over = False  # stopped, or failed: nothing new is begun
        self.stopped = False
        self._waiting = False
        self._arrived = _Bell()

    def stop(self) -> None:
        """Begin nothing more, and tell whoever waits."""
        self.over = self.stopped = self.course.left = True
        self._arrived.ring()

    def tell(self) -> None:
        """Batches are ready: wake the consumer if it waits."""
        if self._waiting:
            self._arrived.ring()

    def wait(self, number: int) -> Any:  # noqa: ANN401
        """Batch ``number``, when it is there."""
        self._waiting = True
        try:
            while (found := self.slots.pop(number, None)) is None:
                if self.stopped:
                    self._arrived.ring()  # for others who wait
                    raise RuntimeError("another pass over this loader began, or it was closed")
                self._arrived.wait()
        finally:
            self._waiting = False
        return found


class _Crew:
    """Threads that end together, by number, and what each number has done so far."""

    def __init__(self) -> None:
        self.threads: dict[int, threading.Thread] = {}
        self.clocks: dict[int, Timing] = {}
        self.over = False
        self.bell = _Bell()  # for those who rest

    def end(self) -> None:
        """Tell the threads to end; each who hears of it tells the next."""
        self.over = True
        self.bell.ring()


class Engine:
    """Makes the batches of one course after the other, in ``threads`` threads."""

    def __init__(self, threads: int, depth: Callable[[], int]) -> None:
        self.clocks: list[Timing] = []
        self.starved = 0.0  # seconds the consumer waited for us
        self._depth = depth
        self._wanted = threads
        self._lock = threading.Lock()
        self._crew = _Crew()
        self._run: _Run | None = None
        self._coming: _Run | None = None
        self._resting = 0

    # The consumer's side: one thread.

    def begin(self, course: BatchSource) -> None:
        """Start to make the batches of a course, or go on if it was begun ahead."""
        with self._lock:
            for run in (self._run, self._coming):
                if run is not None and run.course is not course:
                    run.stop()
            coming, self._coming = self._coming, None
            ahead = coming is not None and coming.course is course
            self._run = coming if ahead else _Run(course)
        self._staff()

    def prepare(self, course: BatchSource) -> None:
        """Begin a course ahead, as soon as all batches of the current one are begun."""
        with self._lock:
            self._coming = _Run(course)
        self._crew.bell.ring()

    def take(self, *, wait: bool = True) -> Any:  # noqa: ANN401
        """The next batch of the course; without waiting for it, nothing if it is not ready."""
        run = self._run
        if run is None:
            raise RuntimeError("the loader was closed; iterate it again")
        number = run.given
        found = run.slots.pop(number, None)
        if found is None:
            if not wait:
                return None
            began = time.perf_counter()
            found = run.wait(number)
            self.starved += time.perf_counter() - began
        run.given = number + count_batches(found)
        if self._resting:
            coming = self._next_run()
            if coming is not None and self._room(coming):
                self._crew.bell.ring()
        return found

    @property
    def given(self) -> int:
        """Batches of the course that the consumer has."""
        return 0 if self._run is None else self._run.given

    @property
    def ready(self) -> int:
        """Batches that wait to be taken."""
        return 0 if self._run is None else len(self._run.slots)

    @property
    def threads(self) -> int:
        """Threads that make batches."""
        return self._wanted

    def use(self, threads: int) -> None:
        """Go on with more or fewer threads."""
        self._wanted = threads
        if self._run is not None:
            self._staff()

    def stop(self) -> list[threading.Thread]:
        """Leave the course and tell the threads to end; ``join`` waits for them."""
        with self._lock:
            self._crew.end()
            for run in (self._run, self._coming):
                if run is not None:
                    run.stop()
                    run.slots.clear()
            self._run = self._coming = None
            return list(self._crew.threads.values())

    def join(self, threads: list[threading.Thread]) -> None:
        """Wait for threads to end, for a while."""
        until = time.monotonic() + _JOIN
        for thread in threads:
            # The last reference to a loader may be dropped in one of its own threads.
            if thread.ident != threading.get_ident():
                thread.join(max(until - time.monotonic(), 0))

    def end(self) -> None:
        """The course was delivered whole: its threads rest until the next."""
        self._run = None

    # The threads' side.

    def _staff(self) -> None:
        """Have as many threads as are wanted, and some of them look for work."""
        crew = self._crew
        if crew.over or len(crew.threads) < self._wanted:
            uninterrupted(self._start)
        self._crew.bell.ring()

    def _start(self) -> None:
        with self._lock:
            if self._run is None:  # stopped meanwhile
                return
            if self._crew.over:
                self._crew = _Crew()
                self.clocks = [sum(self.clocks, Timing())]
            crew = self._crew
            for number in range(self._wanted):
                if number not in crew.threads:
                    if number not in crew.clocks:
                        crew.clocks[number] = Timing()
                        self.clocks.append(crew.clocks[number])
                    args, name = (crew, number, crew.clocks[number]), f"ndfeed-{number}"
                    thread = threading.Thread(target=self._work, args=args, name=name, daemon=True)
                    thread.start()
                    crew.threads[number] = thread

    def _room(self, run: _Run) -> bool:
        """May the next batches of the run be begun?"""
        left = run.course.count - run.next
        room = run.given + self._depth() - run.next
        if run is self._coming and self._run is not None:
            room -= self._run.next - self._run.given  # they are under way, too
            return left > 0 and room >= min(run.course.together, left)
        return left > 0 and (room >= min(run.course.together, left) or run.next <= run.given)

    def _next_run(self) -> _Run | None:
        """Whose batches are to be begun now."""
        run = self._run
        if self._coming is not None and (run is None or run.next == run.course.count):
            return None if run is not None and run.over else self._coming
        return run

    def _claim(self) -> Callable[[Timing], None] | None:
        """Something to do for a thread; the lock is held."""
        run = self._next_run()
        if run is None or run.over:
            return None
        if self._room(run):
            first = run.next
            # One by one at first: the consumer waits for the first batch of all.
            size = run.course.together if first >= self._wanted else 1
            stop = min(first + size, run.course.count)
            if run.course.ready(stop):
                run.next = stop
                return _MakeTask(run, first, stop)
        errand = run.course.errand()
        return None if errand is None else _DecodeTask(self, run, errand)

    def _work(self, crew: _Crew, number: int, clock: Timing) -> None:
        try:
            while (job := self._next_job(crew, number, clock)) is not None:
                job(clock)
                del job  # or a batch would be kept alive while this thread rests
        finally:
            with self._lock:
                if not crew.over:  # one too many, or an error of ours: another may be started
                    del crew.threads[number]
            crew.bell.ring()  # what was meant for this thread is for another

    def _next_job(self, crew: _Crew, number: int, clock: Timing) -> Callable[[Timing], None] | None:
        """Wait for something to do; nothing where the thread is to end."""
        began = time.perf_counter()
        while not crew.over and number < self._wanted:
            with self._lock:
                # Said before it is looked: whoever makes room afterwards will see it.
                self._resting += 1
                job = self._claim()
                self._resting -= job is not None
            if job is not None:
                if self._resting:
                    crew.bell.ring()  # there may be something for the next one too
                clock.idle += time.perf_counter() - began
                return job
            crew.bell.wait()
            with self._lock:
                self._resting -= 1
        return None

    def done(self, run: _Run) -> None:
        """Something was finished that others may have waited for."""
        if self._resting and not run.over:
            self._crew.bell.ring()


class _DecodeTask:
    """Something to be done before batches that need it."""

    __slots__ = ("_do", "_engine", "_run")

    def __init__(self, engine: Engine, run: _Run, do: Callable[[Timing], None]) -> None:
        self._engine, self._run, self._do = engine, run, do

    def __call__(self, clock: Timing) -> None:
        """Do it."""
        try:
            self._do(clock)
        finally:
            self._engine.done(self._run)


class _MakeTask:
    """A few batches in a row, for one thread to make."""

    __slots__ = ("_first", "_run", "_stop")

    def __init__(self, run: _Run, first: int, stop: int) -> None:
        self._run, self._first, self._stop = run, first, stop

    def __call__(self, clock: Timing) -> None:
        """Make them."""
        run, course = self._run, self._run.course
        number = self._first
        try:
            course.look_ahead(self._stop, clock)
            if run.stopped:
                return
            for made in course.make(self._first, self._stop, clock):
                if run.stopped:
                    return
                run.slots[number] = made
                number += count_batches(made)
                if course.slow:
                    run.tell()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer is to see it
            run.over = True
            run.slots[number] = Failure(error)
        finally:
            # Once for all, if they are quick: waking a thread costs as much as a small batch.
            run.tell()
