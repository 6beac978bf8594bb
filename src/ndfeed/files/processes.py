"""Run work in worker processes and yield its results in order: for work that holds the GIL.

The processes are forks of a lean one (``process_server``), so a script needs no guard and nothing
of it is run. A thread for each of them sends items and receives results; while the processes
start, work is done here.

Guarantees:

- The results are those of a loop over the items, whatever happens to the processes: an item whose
  process died, or could not be started, or raised an error, is done here.
- The error of the earliest item that fails is raised, as a loop would.
- When the generator is exhausted or closed, or after an error or Ctrl-C at any moment, no process
  is left.
"""

import _thread
import itertools
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from ndfeed.files import platform_calls, process_server
from ndfeed.files.process_server import Payload, Server
from ndfeed.files.threads import map_in_threads
from ndfeed.files.worker_process import Child, Died, Parent

Job = TypeVar("Job")
Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST = 32
WORTH_IT = 0.3  # seconds of work for which processes are started
_MOMENT = 0.001  # seconds


def useful_processes() -> int:
    """Return how many processes share work among this process's cores; 0 if none would help."""
    cores = platform_calls.share_of_cores()
    return 0 if cores < 2 or process_server.why_not() else min(cores, _MOST)


def map_in_processes(
    function: Callable[[Job, Item], Result],
    job: Job,
    items: Sequence[Item],
    count: int,
    *,
    here: int = 1,
    stop: Callable[[], None] = lambda: None,
) -> Generator[Result, None, None]:
    """Yield ``function(job, item)`` of every item, in order. Close the generator to stop early.

    The function must be found by its name in a module. The job is sent once, before the processes
    are forked, and items and results through pipes. What is done here is done by ``here`` threads
    at most. ``stop`` may make calls here end sooner, as in ``map_in_threads``; those in processes
    end at once.
    """
    pool = _Pool(function, job, len(items), count, here)

    def stop_both() -> None:
        stop()
        pool.stop()

    try:
        pool.start()
        with closing(map_in_threads(pool.call, items, pool.count, stop_both)) as results:
            for result in results:
                if isinstance(result, _Failed):
                    raise result.error
                yield result  # type: ignore[misc]
    finally:
        pool.end()


def map_with_all_cores(
    function: Callable[[Job, Item], Result], job: Job, items: Sequence[Item]
) -> Generator[Result, None, None]:
    """Yield ``function(job, item)`` of every item, in order; the first are done here and timed.

    If the others would take long, processes share them. Items should take about the same time.
    """
    for number, item in enumerate(items):
        began = time.perf_counter()
        result = function(job, item)
        left = (time.perf_counter() - began) * (len(items) - number - 1)
        yield result
        # The first one takes longer: what it needs is imported and allocated.
        if number and left > WORTH_IT and (count := useful_processes()):
            yield from map_in_processes(function, job, _Rest(items, number + 1), count)
            return


class _Rest(Sequence[Any]):
    """The items of a sequence from one on."""

    def __init__(self, items: Sequence[Any], start: int) -> None:
        self._items, self._numbers = items, range(start, len(items))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:  # noqa: ANN401 - whatever the items are
        return self._items[self._numbers[at]]


class _Failed(NamedTuple):
    """An item failed: raised when its turn comes."""

    error: Exception


class _Stopped(Exception):
    """Nobody wants the result of the call any more."""


class _Pool:
    """Processes that run calls for as many threads.

    They are started and ended by a thread of their own, which Ctrl-C does not reach. What the main
    thread does are single steps in C, as in ``threads``.
    """

    def __init__(
        self, function: Callable[[Any, Any], Any], job: object, items: int, count: int, here: int
    ) -> None:
        self.count = min(items, count)
        self._function = function
        self._job = job
        self._items = items
        self._done = itertools.count(1)
        # One entry for each thread: a process, or none where the work is to be done here.
        self._free: SimpleQueue[Child | None] = SimpleQueue()
        self._here = threading.Semaphore(here)  # more threads would only wait for the GIL
        self._stop: SimpleQueue[None] = SimpleQueue()
        self._begun: list[None] = []
        self._ended: list[None] = []

    def start(self) -> None:
        """Begin to start processes."""
        try:
            _thread.start_new_thread(self._live, ())
        except RuntimeError:  # no more threads may be started
            self._fill_up(0)

    def stop(self) -> None:
        """Have all processes end, whatever they are doing. May be called several times."""
        self._stop.put(None)

    def end(self) -> None:
        """Have all processes end, and wait for it; a second Ctrl-C ends only the wait."""
        try:
            self._stop_and_wait()
        except BaseException:
            self._stop_and_wait()
            raise

    def _stop_and_wait(self) -> None:
        self.stop()
        while len(self._ended) < len(self._begun):
            time.sleep(_MOMENT)

    def _live(self) -> None:
        self._begun.append(None)
        server: Server | None = None
        children: list[Child] = []
        try:
            if self._stop.empty():
                payload = Payload(_serve, (self._function, self._job))
                server = Server()
                server.load(payload)
            while server is not None and len(children) < self.count and self._stop.empty():
                children.append(server.start_child())
                self._free.put(children[-1])
        except Exception:  # noqa: BLE001 - whatever it is, the work can be done here
            pass
        finally:
            self._fill_up(len(children))
        self._stop.get()
        self._stop.put(None)  # for threads that ask whether it is over
        for child in children:
            child.terminate()
        for child in children:
            child.reap()
        if server is not None:
            server.close()
        self._ended.append(None)

    def _fill_up(self, children: int) -> None:
        for _ in range(children, self.count):
            self._free.put(None)

    def call(self, item: object) -> object:
        """Return the result of an item, or how it failed."""
        try:
            return self._call(item)
        except Exception as error:  # noqa: BLE001 - raised in the thread that takes the results
            return _Failed(error)
        finally:
            if next(self._done) == self._items:
                self.stop()  # here, since the main thread may be interrupted before it can

    def _call(self, item: object) -> object:
        if self._free.empty() and self._here.acquire(blocking=False):  # they are starting
            try:
                return self._function(self._job, item)
            finally:
                self._here.release()
        child = self._free.get()
        try:
            done, result = (False, None) if child is None else child.ask(item)
        except Died:
            child, done, result = None, False, None
        finally:
            self._free.put(child)
        if done:
            return result
        with self._here:
            if not self._stop.empty():
                raise _Stopped
            return self._function(self._job, item)


def _serve(parent: Parent, work: tuple[Callable[[Any, Any], Any], Any]) -> None:
    """Answer with results until the parent is gone; an error is found again by the parent."""
    function, job = work
    while True:
        item = parent.receive()
        try:
            parent.send((True, function(job, item)))
        except Exception:  # noqa: BLE001 - including a result that cannot be pickled
            parent.send((False, None))
