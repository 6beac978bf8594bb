"""Count what was tried and what went wrong."""

import os
import time
import warnings
from collections import Counter
from traceback import extract_tb

import ndfeed

SLOW = 5.0  # seconds of work after which a case counts as hung
STUCK = 60.0  # seconds after which it does whatever it did: a loaded machine makes everybody wait
EXAMPLES = 10  # how many faults are described


class Stopwatch:
    """Seconds of work, in this process and its children; or of waiting, if it is long."""

    def __init__(self):
        self._began, self._worked = time.monotonic(), sum(os.times()[:4])

    @property
    def seconds(self):
        """Seconds since it was made."""
        took = time.monotonic() - self._began
        return took if took > STUCK else sum(os.times()[:4]) - self._worked


class Tally(Counter):
    """How many cases were tried, and how many of them went wrong, and how."""

    WRONG = ("lost", "torn", "crashed", "hung", "other errors")

    def __init__(self):
        super().__init__()
        self.examples = []

    def bad(self, how, example):
        """Count something that went wrong."""
        self[how] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{how}: {example}")

    def add(self, counts, examples):
        """Add what another process counted."""
        self.update(counts)
        self.examples = [*self.examples, *examples][:EXAMPLES]

    @property
    def sound(self):
        """Did nothing go wrong?"""
        return not any(self[how] for how in self.WRONG)


def caught(tally, what, function, limit=SLOW):
    """Run a case: its error if it has one of ours; anything else is counted as wrong."""
    tally["tried"] += 1
    watch = Stopwatch()
    error = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function()
    except ndfeed.Error as found:
        error = found
        if "\n" in str(found) and not isinstance(found, ndfeed.BadFilesError):
            tally.bad("other errors", f"{what}: several lines: {found}")
    except Exception as found:  # noqa: BLE001 - that is the question
        tally.bad("other errors", f"{what}: {type(found).__name__}: {found}, {_origin(found)}")
        error = found
    if watch.seconds > limit:
        tally.bad("hung", what)
    return error


def _origin(error):
    """The line of ours that an error went through last."""
    frames = [frame for frame in extract_tb(error.__traceback__) if "ndfeed" in frame.filename]
    return " ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames[-2:])
