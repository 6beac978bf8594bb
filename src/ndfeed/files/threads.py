"""Run work in threads in such a way that Ctrl-C at any moment neither hangs nor leaves one running.

Python raises ``KeyboardInterrupt`` in the main thread, between any two steps. Inside objects that
are written in Python (``ThreadPoolExecutor``, ``Future``, ``Thread``, ``Condition``) it may come
between acquiring a lock and entering its ``with``: the lock is then held for ever, and threads that
need it never end. What the main thread does here are single steps in C, which cannot be cut in two.
"""

import _thread
import itertools
import time
from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOMENT = 0.001  # seconds


def map_in_threads(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    threads: int,
    stop: Callable[[], None] = lambda: None,
) -> Generator[Result, None, None]:
    """Yield ``function`` of every item, in order. Close the generator to stop early.

    When it is closed, or after an error or Ctrl-C, only calls that have begun are finished; they
    are waited for, unless there is a second Ctrl-C. ``stop`` is called first: it may make them end
    sooner, and must be as uninterruptible as the rest. If no thread can be started, calls are made
    here.
    """
    numbers, results = itertools.count(), SimpleQueue[tuple[int, Result | None]]()
    begun: list[None] = []
    ended: list[None] = []
    stopping: list[None] = []
    errors: list[BaseException] = []

    def work() -> None:
        begun.append(None)
        try:
            while not stopping and (at := next(numbers)) < len(items):
                results.put((at, function(items[at])))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            errors.append(error)
            results.put((-1, None))
        finally:
            ended.append(None)

    try:
        if _start(work, min(threads, len(items))):
            yield from _in_order(results, errors, len(items))
        else:
            yield from map(function, items)
    except BaseException:
        stopping.append(None)
        stop()
        raise
    finally:
        while len(ended) < len(begun):
            time.sleep(_MOMENT)


def _start(work: Callable[[], None], threads: int) -> int:
    """Start so many threads, or as many as the system allows; return how many."""
    for started in range(threads):
        try:
            _thread.start_new_thread(work, ())
        except RuntimeError:
            return started
    return threads


def _in_order(
    results: "SimpleQueue[tuple[int, Result | None]]", errors: list[BaseException], count: int
) -> Generator[Any, None, None]:
    """Yield ``count`` results as their turn comes; an error as soon as it comes."""
    ready: dict[int, Result | None] = {}
    for at in range(count):
        while at not in ready:
            number, result = results.get()
            if errors:
                raise errors[0]
            ready[number] = result
        yield ready.pop(at)


def run_apart(work: Callable[[], Result], stop: Callable[[], None]) -> Result:
    """Return what ``work`` returns, or raise what it raises. It runs where no Ctrl-C comes.

    On Ctrl-C ``stop`` is called, and the interrupt is raised when the work has ended.
    """
    (result,) = map_in_threads(lambda _: work(), (None,), 1, stop)
    return result
