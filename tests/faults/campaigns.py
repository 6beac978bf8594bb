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
from functools import partial
from itertools import count

from faults.changing import CHANGES, Changer
from faults.endings import failing_loops, interrupted_programs, killed_programs, killed_workers
from faults.packs import PACKS, Case
from faults.power_loss import STATES, record
from faults.reads import READS, open_read
from faults.seam import ERRORS, WRITES, Fault, failing, forked, kill, watch
from faults.stops import stops
from faults.tally import caught
from faults.workers import ended_workers

import ndfeed


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
        for what, fault in _some(_failures(name, case.run), rng, 125):
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
        for call, state in _some(cases, rng, 110):
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
        for number, (what, fault) in enumerate(_some(_failures(name, read.run), rng, 60)):
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
        for name in READS:
            read = open_read(name, folder / name)
            with read.opened() as ds, watch() as seen:
                read.take(ds)
            cases = [(at, how) for at in range(1, seen.count + 1) for how in CHANGES]
            for at, how in _some(cases, rng, 20):
                change = partial(changer.begin, how, read.paths())
                _change_during(tally, read, f"{name}, {how} at call {at}", at, change)


def _change_during(tally, read, what, at, change):
    read.begin()
    done, inside, over = [], [], []

    def happen(name, call, args):
        inside.append(None)
        try:
            if not over:
                done.append(change())
                time.sleep(0.02)  # time enough for a writer that nobody keeps waiting
        finally:
            inside.pop()
        return call(*args)

    def run():
        with read.opened() as ds:
            for fault in (Fault(happen, at), Fault()):  # during the change, and behind it
                with watch(fault):
                    found = read.take(ds)
                if not read.is_right(found):
                    tally.bad("torn", f"{what}: other values")

    _check_change(tally, what, caught(tally, what, run))
    over.append(None)
    while inside:  # a loader's thread may still be at the call that brings the change
        time.sleep(0.001)
    for wait in done:
        wait()
    read.restore()


def _check_change(tally, what, error):
    """A change is not to be taken for damage, with advice that does not help."""
    known = (ndfeed.ChangedError, ndfeed.MissingError)
    if isinstance(error, ndfeed.Error) and not isinstance(error, known):
        tally.bad("other errors", f"{what}: {type(error).__name__}: {error}")


def changes_of_packs(folder, tally, seed=0):
    """A file of the source changes at every call of a pack."""
    rng = random.Random(seed)
    for name in PACKS:
        case = Case(name, folder / name, **_size(name, seed))
        case.begin()
        with watch() as seen:
            case.run()
        cases = [(at, how) for at in range(1, seen.count + 1) for how in CHANGES]
        for number, (at, how) in enumerate(_some(cases, rng, 30)):
            changed = Case(name, folder / f"{name} {number}", **_size(name, seed))
            _change_source(tally, changed, f"{name}, {how} at call {at}", at, CHANGES[how], rng)
            shutil.rmtree(folder / f"{name} {number}")


def _change_source(tally, case, what, at, change, rng):
    path = rng.choice(case.sources())

    def happen(name, call, args):
        child = os.fork()  # a writer of this process's own would end its leases
        if not child:
            change(path)
            os._exit(0)
        time.sleep(0.01)
        try:
            return call(*args)
        finally:
            waits.append(child)

    waits = []
    case.begin()
    with watch(Fault(happen, at)):
        error = caught(tally, what, case.run)
    for child in waits:
        os.waitpid(child, 0)
    _check_change(tally, what, error)
    if not case.is_whole_or_absent():
        tally.bad("torn", what)


CAMPAIGNS = {
    "killed at every call": kills,
    "errors of every call of a pack": pack_errors,
    "power lost after every call": power_losses,
    "errors of every call of a read": read_errors,
    "files changed at every call of a read": changes,
    "sources changed at every call of a pack": changes_of_packs,
    "stopped while files change": stops,
    "loaders and their workers ended": ended_workers,
    "programs with workers killed": killed_programs,
    "programs with workers interrupted": interrupted_programs,
    "loops over batches of workers failing": failing_loops,
    "workers killed": killed_workers,
}
