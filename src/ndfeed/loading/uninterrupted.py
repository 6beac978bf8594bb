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
import contextlib
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

_MOMENT = 0.002
_PATIENCE = 2.0  # seconds

_own_threads: set[int] = set()  # identifiers of those that ``start_own_thread`` started


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


def start_own_thread(name: str, work: Callable[..., None], *args: object) -> threading.Thread:
    """Start a thread of a loader: one that may hold the loader's locks."""

    def run() -> None:
        _own_threads.add(threading.get_ident())
        try:
            work(*args)
        finally:
            _own_threads.discard(threading.get_ident())

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def clean_up(work: Callable[[], None]) -> None:
    """Run cleanup of an object being collected, where Python drops every exception.

    The garbage collector runs in whichever thread happens to allocate something. That may be a
    thread of the very loader that is collected, holding a lock that ``work`` needs: it would wait
    for itself, and Python would collect no garbage any more. So only the main thread, which has
    none of these locks, does the work at once. For any other, a new thread does; a loader's own
    thread (``start_own_thread``) does not wait for it, and others not for ever.

    A Ctrl-C that comes meanwhile is repeated a moment later.
    """

    def interrupt() -> None:
        time.sleep(_MOMENT)
        _thread.interrupt_main()

    if threading.get_ident() != threading.main_thread().ident and _work_elsewhere(work):
        return
    try:
        work()
    except KeyboardInterrupt:
        _thread.start_new_thread(interrupt, ())


def _work_elsewhere(work: Callable[[], None]) -> bool:
    """Do the work in a new thread; return whether there is one."""
    done: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        try:
            work()
        finally:
            done.put(None)

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # no more threads, or the interpreter is shutting down
        return False
    if threading.get_ident() not in _own_threads:
        with contextlib.suppress(Empty):
            done.get(timeout=_PATIENCE)
    return True
