"""Measures where this thread's reading time goes, to find the bottleneck.

Measured for many files or a whole stream at once, so that it costs nothing noticeable. Copying
from mapped files is not measured: it is the rest of the time that reading takes.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Spent(threading.local):
    """Seconds and streams of this thread since it started."""

    read = 0.0  # in calls that read from files
    inflate = 0.0  # decoding, and reading what is decoded in chunks
    streams = 0  # streams decoded whole, to be cached


spent = Spent()


@contextmanager
def reading() -> Iterator[None]:
    """Count the time of a block as reading."""
    began = time.perf_counter()
    try:
        yield
    finally:
        spent.read += time.perf_counter() - began


@contextmanager
def inflating() -> Iterator[None]:
    """Count the time of a block as decoding."""
    began = time.perf_counter()
    try:
        yield
    finally:
        spent.inflate += time.perf_counter() - began
