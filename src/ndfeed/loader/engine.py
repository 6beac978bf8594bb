"""Threads that make batches ahead of the consumer, who gets them in order.

Guarantees:

- Batch k is delivered before batch k + 1, whichever was ready first.
- At most ``depth`` batches are being made or waiting to be delivered; a thread that finds no
  room rests until the consumer has taken some.
- What goes wrong in a batch is raised where that batch would have been delivered.
- ``stop`` wakes everybody; whoever waits for a batch that will not come gets
  ``RuntimeError``. Threads end with the piece of work they are at.

The one lock is held for choosing work, never while working. Handing over a batch that is ready
takes no lock: the slots are a dict, which changes in one step. It works since each side first
says that it waits and then looks once more, and the other side first acts and then looks
whether anybody waits.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ndfeed.loader.clock import Clock

_JOIN = 2.0  # seconds for threads to end; what runs longer is left behind


class Course(Protocol):
    """The batches of one pass, numbered from 0.

    ``count`` of them are made by ``make``, from several threads at once, up to ``together`` at a
    time by one thread. ``errand`` is work that should be done first, such as decoding what coming
    batches need; batches for which ``ready`` is false are not begun, and those for which it is
    true are. Both are called with the engine's lock held, so they only look.
    """

    count: int
    together: int
    slow: bool  # may a batch take long, so that those before it should be delivered first?

    def make(self, first: int, stop: int, clock: Clock) -> Iterator[Any]:
        """The batches of the numbers [first, stop); some may come as ``Several``."""
        ...

    def look_ahead(self, number: int, clock: Clock) -> None:
        """What is worth doing before the batches from ``number`` on are made."""
        ...

    def ready(self, stop: int) -> bool:
        """May the batches before ``stop`` be begun?"""
        ...

    def errand(self) -> Callable[[Clock], None] | None:
        """Something to do now, or nothing."""
        ...


class Failure:
    """What went wrong in a batch, in its place."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Several:
    """Some batches in a row, in one piece."""

    def __init__(self, made: Any, count: int) -> None:  # noqa: ANN401
        self.made = made
        self.count = count


def counted(found: Any) -> int:  # noqa: ANN401
    """How many batches something delivered is."""
    return found.count if isinstance(found, Several) else 1


class _Run:
    """One course under way."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.slots: dict[int, Any] = {}
        self.next = 0  # the first batch nobody has begun
        self.given = 0  # batches the consumer has
        self.over = False  # stopped, or failed: nothing new is begun
        self.stopped = False


class Engine:
    """Makes the batches of one course after the other, in ``threads`` threads."""

    def __init__(self, threads: int, depth: Callable[[], int]) -> None:
        self.clocks: list[Clock] = []
        self.starved = 0.0  # seconds the consumer waited for us
        self._depth = depth
        self._wanted = threads
        self._changed = threading.Condition()
        self._done = threading.Condition(self._changed._lock)  # type: ignore[attr-defined]
        self._spare = threading.Condition(self._changed._lock)  # type: ignore[attr-defined]
        self._threads: list[threading.Thread] = []
        self._run: _Run | None = None
        self._coming: _Run | None = None
        self._resting = 0
        self._waiting = False
        self._closed = False

    # The consumer's side: one thread.

    def begin(self, course: Course) -> None:
        """Start to make the batches of a course, or go on if it was begun ahead."""
        with self._changed:
            for run in (self._run, self._coming):
                if run is not None and run.course is not course:
                    run.over = run.stopped = True
            coming, self._coming = self._coming, None
            ahead = coming is not None and coming.course is course
            self._run = coming if ahead else _Run(course)
            self._closed = False
            if not any(thread.is_alive() for thread in self._threads):
                self.clocks = [sum(self.clocks, Clock())]
            self._start()
            self._changed.notify_all()

    def prepare(self, course: Course) -> None:
        """Begin a course ahead, as soon as all batches of the current one are begun."""
        with self._changed:
            self._coming = _Run(course)
            self._changed.notify_all()

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
            found = self._wait(run, number)
        run.given = number + counted(found)
        if self._resting:
            coming = self._next_run()
            if coming is not None and self._room(coming):
                with self._changed:
                    self._changed.notify()
        return found

    def _wait(self, run: _Run, number: int) -> Any:  # noqa: ANN401
        began = time.perf_counter()
        with self._changed:
            self._waiting = True
            try:
                while (found := run.slots.pop(number, None)) is None:
                    if run.stopped:
                        raise RuntimeError("another pass over this loader began, or it was closed")
                    self._done.wait()
            finally:
                self._waiting = False
        self.starved += time.perf_counter() - began
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
        with self._changed:
            self._wanted = threads
            if self._run is not None and not self._closed:
                self._start()
            self._changed.notify_all()
            self._spare.notify_all()

    def stop(self) -> list[threading.Thread]:
        """Leave the course and tell the threads to end; ``join`` waits for them."""
        with self._changed:
            self._closed = True
            for run in (self._run, self._coming):
                if run is not None:
                    run.over = run.stopped = True
                    run.slots.clear()
            self._run = self._coming = None
            threads, self._threads = self._threads, []
            self._changed.notify_all()
            self._spare.notify_all()
            self._done.notify_all()
        return threads

    def join(self, threads: list[threading.Thread]) -> None:
        """Wait for threads to end, for a while."""
        until = time.monotonic() + _JOIN
        for thread in threads:
            # The last reference to a loader may be dropped in one of its own threads.
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(until - time.monotonic(), 0))

    def end(self) -> None:
        """The course was delivered whole: its threads rest until the next."""
        self._run = None

    # The threads' side.

    def _start(self) -> None:
        """As many threads as are wanted; the lock is held."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        while len(self._threads) < self._wanted:
            number = len(self._threads)
            clock = Clock()
            self.clocks.append(clock)
            thread = threading.Thread(
                target=self._work, args=(number, clock), name=f"ndfeed-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

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

    def _claim(self) -> Callable[[Clock], None] | None:
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
                return _Ticket(self, run, first, stop)
        errand = run.course.errand()
        return None if errand is None else _Errand(self, run, errand)

    def _work(self, number: int, clock: Clock) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                began = time.perf_counter()
                while True:
                    if self._closed or me not in self._threads:
                        return
                    if number >= self._wanted:
                        self._spare.wait()
                        continue
                    # Said before it is looked: whoever makes room afterwards will see it.
                    self._resting += 1
                    try:
                        job = self._claim()
                        if job is None:
                            self._changed.wait()
                    finally:
                        self._resting -= 1
                    if job is not None:
                        break
                if self._resting:
                    self._changed.notify()  # there may be something for the next one too
                clock.idle += time.perf_counter() - began
            job(clock)
            del job  # or a batch would be kept alive while this thread rests

    def tell(self) -> None:
        """Batches are ready: wake the consumer if it waits."""
        if self._waiting:
            with self._changed:
                self._done.notify()

    def done(self, run: _Run) -> None:
        """Something was finished that others may have waited for."""
        if self._resting and not run.over:
            with self._changed:
                self._changed.notify_all()


class _Errand:
    """Something to be done before batches that need it."""

    __slots__ = ("_do", "_engine", "_run")

    def __init__(self, engine: Engine, run: _Run, do: Callable[[Clock], None]) -> None:
        self._engine, self._run, self._do = engine, run, do

    def __call__(self, clock: Clock) -> None:
        """Do it."""
        try:
            self._do(clock)
        finally:
            self._engine.done(self._run)


class _Ticket:
    """A few batches in a row, for one thread to make."""

    __slots__ = ("_engine", "_first", "_run", "_stop")

    def __init__(self, engine: Engine, run: _Run, first: int, stop: int) -> None:
        self._engine, self._run, self._first, self._stop = engine, run, first, stop

    def __call__(self, clock: Clock) -> None:
        """Make them."""
        run, course = self._run, self._run.course
        number = self._first
        try:
            course.look_ahead(self._stop, clock)
            for made in course.make(self._first, self._stop, clock):
                if run.stopped:
                    return
                run.slots[number] = made
                number += counted(made)
                if course.slow:
                    self._engine.tell()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer is to see it
            run.over = True
            run.slots[number] = Failure(error)
        finally:
            # Once for all, if they are quick: waking a thread costs as much as a small batch.
            self._engine.tell()
