"""Shared by the examples that compare: the option for their size, and the comparison.

This is not an example itself. Results are compared first: every approach must deliver the same
samples before anything is timed. Each then runs one epoch that does not count and three that do,
without a pause. Starting processes and reading from a cold disk are therefore excluded for all of
them, and what was prefetched before the clock started is offset by what is prefetched at the end.
"""

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

EPOCHS = 3


def start(main, samples):
    """Call ``main(folder, samples)`` with a temporary folder and the value of ``--samples``."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=samples, help=f"default {samples}")
    with tempfile.TemporaryDirectory() as folder:  # set TMPDIR=/large/disk to use another disk
        main(Path(folder), parser.parse_args().samples)


def once(work, *args):
    """Return how many seconds one call takes."""
    begun = time.perf_counter()
    work(*args)
    return time.perf_counter() - begun


def compare(title, ways, look=None, in_order=False):
    """Check that all ways deliver the same samples, time them, and print the results.

    A way is anything that yields an epoch of batches each time it is iterated: arrays, tensors or
    tuples of them. ``look`` returns the part of a batch that is compared; with ``in_order`` the
    order must be the same, too.
    """
    answers = [_seen(way, look, in_order) for way in ways.values()]
    for name, answer in zip(ways, answers, strict=True):
        assert answer == answers[0], f"{name}: not the same samples as {next(iter(ways))}"

    rates = [EPOCHS * len(answers[0]) / _seconds(way) for way in ways.values()]
    print(f"{title}: the same {len(answers[0]):,} samples from each")
    for name, rate in zip(ways, rates, strict=True):
        ratio = f"{rate / rates[0]:8.1f} times as fast" if rate is not rates[0] else ""
        print(f"  {name:50} {rate:10,.0f} rows/s{ratio}")


def _seconds(way):
    _epochs(way, 1)
    return once(_epochs, way, EPOCHS)


def _epochs(way, count):
    for _ in range(count):
        for _ in way:
            pass


def _seen(way, look, in_order):
    """Return one short digest per sample."""
    seen = []
    for batch in way:
        looked = look(batch) if look else batch
        fields = looked if isinstance(looked, tuple | list) else (looked,)
        arrays = [np.ascontiguousarray(field) for field in fields]
        for sample in zip(*arrays, strict=True):
            values = b"".join(value.tobytes() for value in sample)
            seen.append(hashlib.blake2b(values, digest_size=8).digest())
    return seen if in_order else sorted(seen)
