"""Functions that worker processes find by name."""

import os
import signal
import time


def where(job, item):
    """The process that made the call, after a moment."""
    time.sleep(job)
    return item, os.getpid()


def slowly_here(job, item):
    """The same, but for process ``job``, which others overtake however late they start."""
    time.sleep(0.5 if os.getpid() == job else 0.02)
    return item, os.getpid()


def fail_from(job, item):
    """An error for items from ``job`` on, the later the sooner."""
    if item >= job:
        time.sleep(0.5 / item)
        raise ValueError(f"item {item}")
    return item


def die(job, item):
    """Kill the process that makes the call, unless it is ``job``."""
    if item % 3 == 1 and os.getpid() != job:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return -item


def unpicklable(job, item):
    """A result that no other process can send."""
    return lambda: (job, item)


def sleep_for_ever(job, item):
    """A call that only a signal ends, in another process than ``job``."""
    time.sleep(0.02)
    while os.getpid() != job:
        time.sleep(1)
    return item
