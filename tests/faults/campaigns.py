"""Attacks on ndfeed, each counted: what was tried, and what went wrong.

The tests run every campaign once, at its smallest. ``python tests/faults/run.py --times 100`` runs
them all at that many times the size.
"""

import errno
import gc
import os
import random
import shutil
import signal
import time
import warnings
from collections import Counter
from functools import partial
from itertools import count
from traceback import extract_tb

from faults.packs import PACKS, Case
from faults.power_loss import STATES, record
from faults.reads import READS, open_read
from faults.seam import ERRORS, WRITES, Fault, failing, forked, kill, watch

import ndfeed

SLOW = 5.0  # seconds after which a case counts as hung


class Tally(Counter):
    """How many cases were tried, and how many of them went wrong, and how."""

    WRONG = ("lost", "torn", "crashed", "hung", "other errors")

    def __init__(self):
        super().__init__()
        self.examples = []

    def bad(self, how, example):
        """Count something that went wrong."""
        self[how] += 1
        if len(self.examples) < 10:
            self.examples.append(f"{how}: {example}")

    @property
    def sound(self):
        """Did nothing go wrong?"""
        return not any(self[how] for how in self.WRONG)


def caught(tally, what, function):
    """Run a case: its error if it has one of ours; anything else is counted as wrong."""
    tally["tried"] += 1
    began = time.monotonic()
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
    if time.monotonic() - began > SLOW:
        tally.bad("hung", what)
    return error


def _origin(error):
    """The line of ours that an error went through last."""
    frames = [frame for frame in extract_tb(error.__traceback__) if "ndfeed" in frame.filename]
    return " ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames[-2:])


def check_pack(tally, case, what):
    """What a fault left must be whole or absent, and the same call must go on."""
    if not case.is_whole_or_absent():
        tally.bad("torn", what)
    error = caught(tally, f"{what}, again", lambda: _go_on(tally, case, what))
    tally["tried"] -= 1  # the same case
    if isinstance(error, ndfeed.Error):
        tally.bad("lost", f"{what}: {error}")


def _go_on(tally, case, what):
    if not case.goes_on():
        tally.bad("lost", f"{what}: the same again ends in something else")


def kills(folder, tally, seed=0):
    """SIGKILL before every call that changes the disk, in the middle of every write."""
    for name in PACKS:
        case = Case(name, folder / name, **_size(name, seed))
        for at in count(1):
            case.begin()
            tally["tried"] += 1

            def pack(at=at, case=case):
                with watch(Fault(kill, at, named=frozenset(WRITES))):
                    case.run()

            status = forked(pack)
            if status not in (0, -signal.SIGKILL):
                tally.bad("crashed", f"{name}, killed at call {at}: status {status}")
            check_pack(tally, case, f"{name}, killed at call {at}")
            if status == 0:
                break


def _size(name, seed):
    return {} if not seed else {"size": 3 + seed % 5}


def pack_errors(folder, tally, seed=0):
    """Every call of a pack fails, once or for good, with every error that it can give."""
    rng = random.Random(seed)
    for name in PACKS:
        case = Case(name, folder / name, **_size(name, seed))
        case.begin()
        for what, fault in _some(_failures(name, case.run), rng, 250):
            case.begin()
            with watch(fault):
                error = caught(tally, what, case.run)
            if error is not None and not isinstance(error, ndfeed.Error):
                continue
            if isinstance(error, OSError) and not error.path:
                tally.bad("other errors", f"{what}: names no file: {error}")
            check_pack(tally, case, what)


def _failures(name, run):
    """Every call of a run with every error that it can give, once and for good."""
    with watch() as seen:
        run()
    return [
        (
            f"{name}, call {at} ({call}) fails with {errno.errorcode[number]}",
            Fault(failing(number), at, sticky=sticky),
        )
        for at, call in enumerate(seen.calls, 1)
        for number in ERRORS[call]
        for sticky in (False, True)
    ]


def _some(cases, rng, most):
    """All of a few, an even choice of many."""
    return cases if len(cases) <= most else rng.sample(cases, most)


def power_losses(folder, tally, seed=0):
    """The power fails after every call, with what was not synced kept, lost, reordered or torn."""
    rng = random.Random(seed)
    for name in PACKS:
        case = Case(name, folder / name, **_size(name, seed))
        case.begin()
        length = record(case.folder, case.run).length
        cases = [(call, state) for call in range(length + 1) for state in STATES]
        for call, state in _some(cases, rng, 220):
            what = f"{name}, power lost after call {call}, {state} of the rest kept"
            case.begin()
            record(case.folder, case.run).restore(call, state, rng)
            tally["tried"] += 1
            check_pack(tally, case, what)


def read_errors(folder, tally, seed=0):
    """Every call of opening and reading fails, once or for good."""
    rng = random.Random(seed)
    for name in READS:
        read = open_read(name, folder / name)
        for number, (what, fault) in enumerate(_some(_failures(name, read.run), rng, 120)):
            read.begin()
            with watch(fault):
                caught(tally, what, lambda read=read, what=what: _compare(tally, read, what))
            if number % 40 == 0:  # what errors keep alive holds descriptors
                gc.collect()
        read.begin()
        caught(tally, f"{name}, afterwards", lambda read=read: _compare(tally, read, "afterwards"))


def _compare(tally, read, what):
    if not read.is_right(read.run()):
        tally.bad("torn", f"{what}: other values")


def changes(folder, tally, seed=0):
    """Another process changes a file at every call of a read that was begun before."""
    rng = random.Random(seed)
    with Changer() as changer:
        for name in (name for name in READS if READS[name].changes):
            read = open_read(name, folder / name)
            with read.opened() as ds, watch() as seen:
                read.take(ds)
            cases = [(at, how) for at in range(1, seen.count + 1) for how in CHANGES]
            for at, how in _some(cases, rng, 35):
                change = partial(changer.begin, how, read.paths())
                _change_during(tally, read, f"{name}, {how} at call {at}", at, change)


def _change_during(tally, read, what, at, change):
    read.begin()
    done = []

    def happen(name, call, args):
        done.append(change())
        time.sleep(0.02)  # time enough for a writer that nobody keeps waiting
        return call(*args)

    def run():
        with read.opened() as ds:
            for fault in (Fault(happen, at), Fault()):  # during the change, and behind it
                with watch(fault):
                    found = read.take(ds)
                if not read.is_right(found):
                    tally.bad("torn", f"{what}: other values")

    caught(tally, what, run)
    for wait in done:
        wait()
    read.restore()


class Changer:
    """Another process, which changes files when it is told to."""

    def __init__(self):
        self._orders, orders = os.pipe()[::-1]
        done, self._done = os.pipe()[::-1]
        self._child = os.fork()
        if not self._child:
            os.close(self._orders)
            with open(orders) as lines:
                for line in lines:
                    how, *paths = line.rstrip("\n").split("\0")
                    for path in paths:
                        CHANGES[how](path)
                    os.write(done, b".")
            os._exit(0)
        os.close(orders)
        os.close(done)

    def begin(self, how, paths):
        """Begin to change files; gives what waits for the end of it."""
        os.write(self._orders, ("\0".join([how, *map(str, paths)]) + "\n").encode())
        return lambda: os.read(self._done, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._orders)
        os.close(self._done)
        os.waitpid(self._child, 0)


def _truncate(path):
    os.truncate(path, os.path.getsize(path) // 2)


def _overwrite(path):
    """Other bytes of the same length, and the time put back."""
    status = os.stat(path)
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        file.seek(0)
        file.write(bytes(byte ^ 1 for byte in data))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace(path):
    status = os.stat(path)
    shutil.copyfile(path, f"{path}.other")
    _overwrite(f"{path}.other")
    os.utime(f"{path}.other", ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(f"{path}.other", path)


def _remove(path):
    os.unlink(path)


CHANGES = {"truncate": _truncate, "overwrite": _overwrite, "replace": _replace, "remove": _remove}
CAMPAIGNS = {
    "killed at every call": kills,
    "errors of every call of a pack": pack_errors,
    "power lost after every call": power_losses,
    "errors of every call of a read": read_errors,
    "files changed at every call of a read": changes,
}
