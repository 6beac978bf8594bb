"""Runs work that Ctrl-C must not cut short.

Python runs signal handlers in the main thread, between any two calls: a ``KeyboardInterrupt`` may
come between starting a thread and storing it, or after a fork, or inside the standard library's own
locks, which are then held for ever. So work that must not be cut short runs in its own thread,
which no signal disturbs, while the main thread waits.

What the main thread does itself is safe where it consists of single steps in C: ``with`` on a plain
lock, appending to a list, ``put`` and ``get`` of a ``SimpleQueue``. Objects written in Python
(``Condition``, ``Event``, ``Thread``) are not.
"""

import _thread
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

_MOMENT = 0.002


def uninterrupted(work: Callable[[], T]) -> T:
    """Return what ``work`` returns, or raise what it raises.

    Ctrl-C is raised when the work is done, so that no part of it runs later, during whatever the
    caller does next. A second one is raised at once.
    """
    if threading.get_ident() != threading.main_thread().ident or sys.is_finalizing():
        return work()  # where no signal comes, or no thread can run any more
    done: SimpleQueue[None] = SimpleQueue()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where we wait
            errors.append(error)
        done.put(None)

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # no more threads, or the interpreter is shutting down
        return work()
    try:
        done.get()
    except BaseException:
        while not results and not errors:  # not by the queue, whose one item may have been taken
            time.sleep(_MOMENT)
        raise
    for error in errors:
        raise error
    return results[0]


def clean_up(work: Callable[[], None]) -> None:
    """Run cleanup of an object being collected, where Python drops every exception.

    A Ctrl-C that comes meanwhile is repeated a moment later.
    """

    def interrupt() -> None:
        time.sleep(_MOMENT)
        _thread.interrupt_main()

    try:
        work()
    except KeyboardInterrupt:
        _thread.start_new_thread(interrupt, ())
