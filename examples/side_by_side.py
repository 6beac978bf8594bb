"""What the comparing examples share: the option for their size, and the comparison.

Not an example itself. Answers come first: every way must deliver the same samples, or nothing is
timed. Then each has an epoch that does not count and three that do, without a pause: starting
processes and a cold disk are left out for all alike, and what was read ahead before the clock
started is made up for by what is read ahead when it stops.
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
    """Call ``main(folder, samples)``, with a folder for its files and ``--samples`` if given."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=samples, help=f"default {samples}")
    with tempfile.TemporaryDirectory() as folder:  # TMPDIR=/large/disk puts it elsewhere
        main(Path(folder), parser.parse_args().samples)


def once(work, *args):
    """How many seconds something takes, done once."""
    begun = time.perf_counter()
    work(*args)
    return time.perf_counter() - begun


def compare(title, ways, look=None, in_order=False):
    """Compare and time some ways to read, and print how each compares with the first.

    A way is anything that gives an epoch of batches each time it is iterated: arrays or tensors,
    or tuples of them. ``look`` picks what is compared of a batch; ``in_order`` says that the order
    must be the same, too.
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
    """One short digest for each sample that comes."""
    seen = []
    for batch in way:
        looked = look(batch) if look else batch
        fields = looked if isinstance(looked, tuple | list) else (looked,)
        arrays = [np.ascontiguousarray(field) for field in fields]
        for sample in zip(*arrays, strict=True):
            values = b"".join(value.tobytes() for value in sample)
            seen.append(hashlib.blake2b(values, digest_size=8).digest())
    return seen if in_order else sorted(seen)
