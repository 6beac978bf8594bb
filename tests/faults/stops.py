"""Processes that are stopped, as by Ctrl-Z, a debugger or a suspended laptop, and continued.

While a process is stopped, another one changes its files. The kernel makes writers wait for a
reader's lease, but only for the lease-break time: a process that is stopped for longer has lost
its leases without noticing. What it delivers afterwards must be right, or a ``ChangedError``.

A process stops itself at a chosen call of the seam, or is stopped at a random moment, which is
usually in the middle of a copy. Since a stop takes seconds, many processes are stopped at once.
"""

import json
import math
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from children import lease_break_time
from faults.changing import CHANGES
from faults.packs import PACKS, Case
from faults.reads import READS, open_read
from faults.seam import Fault, watch
from faults.tally import Tally, caught

import ndfeed
from ndfeed.files.platform_calls import can

WAYS = ("truncate", "overwrite", "replace")
READ_CASES, PACK_CASES = 8, 9  # of each kind
AT_ONCE = 48  # processes
PATIENCE = 60.0  # seconds for all processes of a round to stop, and again to end
MOMENT = 0.3  # seconds within which a process is stopped that does not stop itself
SPARE = 0.4  # seconds that a stop is longer than writers wait


@dataclass(frozen=True)
class Stop:
    """A process to stop: what it does, at which call (0: at a random moment), what changes."""

    name: str
    at: int
    change: str
    leased: bool = True

    def __str__(self):
        when = f"call {self.at}" if self.at else "a random moment"
        guard = "" if self.leased else ", without leases"
        return f"{self.name}, stopped at {when} to {self.change} files{guard}"


def stops(folder, tally, seed=0):
    """Readers and packers are stopped at every call for longer than writers wait."""
    rng = random.Random(seed)
    run_all(
        [*_read_stops(folder / "count", rng), *_pack_stops(folder / "count", rng)],
        folder,
        tally,
        rng,
    )


def run_all(cases, folder, tally, rng):
    """Stop the processes of some cases, change their files, continue them, count how they end."""
    wait = lease_break_time() + SPARE
    for first in range(0, len(cases), AT_ONCE):
        place = folder / f"round {first}"
        some = cases[first : first + AT_ONCE]
        running = [Stopped(case, place / str(i), rng) for i, case in enumerate(some)]
        stop_all(running)
        for one in running:
            one.begin_change()
        time.sleep(wait)
        for one in running:
            one.go_on()
        until = time.monotonic() + PATIENCE
        for one in running:
            one.finish(tally, until)


def _read_stops(folder, rng):
    """Each kind of read, at calls chosen at random and at random moments."""
    for name in READS:
        read = open_read(name, folder / name)
        with read.opened() as ds, watch() as seen:
            read.take(ds)
        for number in range(READ_CASES):
            at = 0 if number % 3 == 0 else rng.randint(1, seen.count)
            yield Stop(name, at, WAYS[number % len(WAYS)], leased=number % 4 != 3)


def _pack_stops(folder, rng):
    """Each kind of pack, at calls chosen at random."""
    for name in PACKS:
        case = Case(name, folder / name)
        case.begin()
        with watch() as seen:
            case.run()
        for number in range(PACK_CASES):
            yield Stop(name, rng.randint(1, seen.count), WAYS[number % len(WAYS)])


class Stopped:
    """A child process that reads or packs until it is stopped, and the writers of its files."""

    def __init__(self, case, folder, rng):
        self.case, self._folder = case, folder
        self._at_random, self._draw = not case.at, rng.random()
        folder.mkdir(parents=True)
        self._moment = self._ready = 0.0
        self.stopped = self.ended = False
        self._status = None
        self._writers = []
        self._child = os.fork()
        if not self._child:
            _in_child(case, folder)

    def poll(self):
        """Has it stopped, or ended before it could?"""
        if not (self.stopped or self.ended):
            if self._at_random:
                self._stop_if_due()
            child, status = os.waitpid(self._child, os.WNOHANG | os.WUNTRACED)
            self.stopped = child != 0 and os.WIFSTOPPED(status)
            if child and not self.stopped:
                self._end(status)
        return self.stopped or self.ended

    def _stop_if_due(self):
        if not self._ready and (self._folder / "begun").exists():
            self._ready = time.monotonic() + MOMENT * self._draw
        if self._ready and time.monotonic() > self._ready:
            os.kill(self._child, signal.SIGSTOP)
            self._at_random = False  # once

    def _end(self, status):
        self.ended, self._status = True, os.waitstatus_to_exitcode(status)

    def begin_change(self):
        """Change two of its files, each by a process of its own: it may have to wait."""
        files = sorted(path for path in (self._folder / "files").read_text().splitlines())
        for path in {files[0], files[int(self._draw * len(files))]}:
            writer = os.fork()
            if not writer:
                CHANGES[self.case.change](path)
                os._exit(0)
            self._writers.append(writer)

    def go_on(self):
        """Continue it."""
        if self.stopped:
            os.kill(self._child, signal.SIGCONT)

    def finish(self, tally, until):
        """Count how it ended. One that has not by ``until`` hangs, and is killed."""
        while not self.ended and time.monotonic() < until:
            child, status = os.waitpid(self._child, os.WNOHANG)
            self._end(status) if child else time.sleep(0.01)
        tally["tried"] += 1
        tally["stopped"] += self.stopped
        if not self.ended:
            tally.bad("hung", str(self.case))
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
        elif self._status:
            tally.bad("crashed", f"{self.case}: status {self._status}")
        else:
            found = json.loads((self._folder / "found").read_text())
            tally.add(found["counts"], found["examples"])
        for writer in self._writers:
            os.waitpid(writer, 0)


def stop_all(running):
    """Wait until each has stopped, or ended without making so many calls."""
    until = time.monotonic() + PATIENCE
    left = running
    while left and time.monotonic() < until:
        left = [one for one in left if not one.poll()]
        time.sleep(0.002)


def _in_child(case, folder):
    """Do what the case says, and write down what was wrong with it. Does not return."""
    status = 3
    try:
        tally = Tally()
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        can.lease = can.lease and case.leased
        (_stopped_read if case.name in READS else _stopped_pack)(case, folder, tally)
        del tally["tried"]  # the parent counts
        (folder / "found").write_text(json.dumps({"counts": tally, "examples": tally.examples}))
        status = 0
    finally:
        os._exit(status)


def _stop(name, call, args):
    os.kill(os.getpid(), signal.SIGSTOP)
    return call(*args)


def _check_error(tally, case, error):
    """Only a change may be the reason."""
    tally["refused"] += isinstance(error, ndfeed.ChangedError)
    if isinstance(error, ndfeed.Error) and not isinstance(error, ndfeed.ChangedError):
        tally.bad("other errors", f"{case}: {type(error).__name__}: {error}")


def _stopped_read(case, folder, tally):
    read = open_read(case.name, folder)
    _tell(folder, read.paths())

    def run():
        with read.opened() as ds:
            until = time.monotonic() + (0 if case.at else 2 * MOMENT)
            (folder / "begun").touch()
            again = True
            with watch(Fault(_stop, case.at)):
                while again:
                    again = time.monotonic() < until
                    _compare(tally, case, read, ds)
            _compare(tally, case, read, ds)

    _check_error(tally, case, caught(tally, str(case), run, math.inf))


def _compare(tally, case, read, ds):
    if not read.is_right(read.take(ds)):
        tally.bad("torn", f"{case}: other values")


def _stopped_pack(case, folder, tally):
    packed = Case(case.name, folder)
    packed.begin()
    _tell(folder, packed.sources())

    def run():
        with watch(Fault(_stop, case.at)):
            packed.run()

    _check_error(tally, case, caught(tally, str(case), run, math.inf))
    if not packed.is_whole_or_absent():
        tally.bad("torn", f"{case}: neither whole nor absent")


def _tell(folder, files):
    """Tell the parent which files to change."""
    Path(folder / "files").write_text("\n".join(map(str, files)))
