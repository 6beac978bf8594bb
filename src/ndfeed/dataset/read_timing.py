"""Where this thread's time went while it read: for whoever asks what the limit is.

Counted for many files or a whole stream at once, so that counting costs nothing that shows.
Copying out of maps is not counted: it is what is left of the time that reading takes.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Spent(threading.local):
    """Seconds and streams, of this thread, since it began."""

    read = 0.0  # in calls that read from files
    inflate = 0.0  # decoding, and reading what is decoded piece by piece
    streams = 0  # how many were decoded whole, to be kept


spent = Spent()


@contextmanager
def reading() -> Iterator[None]:
    """Count what is done within as reading."""
    began = time.perf_counter()
    try:
        yield
    finally:
        spent.read += time.perf_counter() - began


@contextmanager
def inflating() -> Iterator[None]:
    """Count what is done within as decoding."""
    began = time.perf_counter()
    try:
        yield
    finally:
        spent.inflate += time.perf_counter() - began
