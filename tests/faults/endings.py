"""A thousand ends: loaders with worker processes whose program, loop or worker ends at any moment.

As in ``faults.workers``, but many in a row: a program that goes on after a Ctrl-C, an error in its
loop, or the death of a worker must have as many processes, threads, open files and mapped blocks of
shared memory as before. A program that is killed takes everything with it. Every batch that was
delivered is compared, bit for bit, with those of a loader without processes.

Programs are forks of this process, which never has threads.
"""

import gc
import os
import random
import signal
import time
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
from faults.workers import kill_one, session, wait_for_none

import ndfeed

CASES = 40  # for each seed; fewer for the first, with which CI runs
FEW = 8
FILES = 24
ROWS = 12  # of a file that has many
EPOCHS = 3  # orders that batches are compared with
BATCH = 4
START = 0.5  # seconds within which something happens, while processes may still be starting
PAUSE = 0.002  # seconds that a program spends on a batch
MOMENT = 0.1  # the same once they are at work
PATIENCE = 60.0  # seconds for anything to end
SETTLED = 40.0  # seconds after which nothing may be left
AGAIN = 5.0  # seconds after which Ctrl-C is pressed again
GROWTH = 32 << 20  # bytes of memory that a program may grow by, whatever it did

KINDS = ("stored", "deflated", "stored, map", "deflated, map", "many rows")
WAYS = ("drop", "close", "with", "go on")


class _Own(Exception):
    """An error of the consumer."""


def write(kind, folder):
    """The files of a kind."""
    folder.mkdir(parents=True)
    save = np.savez if kind.startswith("stored") else np.savez_compressed
    rows = (ROWS,) if kind == "many rows" else ()
    for i in range(FILES // (ROWS // 4) if rows else FILES):
        x = np.random.default_rng(i).integers(0, 99, (*rows, 24, 24, 8)).astype("<f8")
        save(folder / f"{i:03}", x=x, n=np.full(rows, i))


def loader_of(kind, folder, **options):
    """What every program iterates over."""
    if kind == "many rows":  # of which processes decode one file after the other
        ds, options = ndfeed.open(folder, sample="row"), options | {"memory": "2MB"}
        return ndfeed.loader(ds, BATCH, shuffle=ndfeed.Windows(files=2), seed=7, **options)
    ds = ndfeed.open(folder, sample="file")
    if kind.endswith("map"):
        ds = ds.map(lambda batch, rng: batch | {"x": batch["x"] + rng.integers(0, 99)})
    return ndfeed.loader(ds, BATCH, shuffle=True, seed=7, memory="16MB", **options)


def killed_programs(folder, tally, seed=0):
    """SIGKILL of the program."""
    for kind, rng, expected in _kinds(folder, seed):
        for _ in range(_cases(seed)):
            _try(tally, "kill the program", kind, folder, rng, expected, 1)


def interrupted_programs(folder, tally, seed=0):
    """SIGINT, again and again."""
    _try_all(tally, "interrupt it", folder, seed)


def failing_loops(folder, tally, seed=0):
    """An error in the loop over batches."""
    _try_all(tally, "raise an error", folder, seed)


def killed_workers(folder, tally, seed=0):
    """SIGKILL of one of the processes that the loader has started."""
    _try_all(tally, "kill a worker", folder, seed)


def _try_all(tally, event, folder, seed):
    for kind, rng, expected in _kinds(folder, seed):
        _try(tally, event, kind, folder, rng, expected, _cases(seed))


def _cases(seed):
    return (CASES if seed else FEW) // len(KINDS)


def _kinds(folder, seed):
    rng = random.Random(seed)
    for kind in KINDS:
        write(kind, folder / kind)
        yield kind, rng, _ask_for_batches(kind, folder / kind)


def _ask_for_batches(kind, folder):
    """The batches of some epochs, made in threads of a fork."""
    ours, theirs = Pipe()
    pid = os.fork()
    if not pid:
        try:
            with loader_of(kind, folder, processes=0) as loader:
                theirs.send([[dict(batch) for batch in loader] for _ in range(EPOCHS)])
        finally:
            os._exit(0)
    theirs.close()
    found = ours.recv()
    os.waitpid(pid, 0)
    return found


def _try(tally, event, kind, folder, rng, expected, cases):
    """Fork a program that does ``cases`` in a row, and let things happen to it."""
    what = f"{kind}: {event}"
    ours, theirs = Pipe()
    pid = os.fork()
    if not pid:
        ours.close()
        run_program(theirs, event, kind, folder / kind, rng.random(), expected, cases)
    theirs.close()
    try:
        for _ in range(cases):
            tally["tried"] += 1
            if not _watch(tally, event, what, pid, ours, rng):
                break
    except EOFError:
        tally.bad("crashed", f"{what}: the program ended")
    finally:
        if event != "kill the program":
            ours.close()  # tells it to end
        _end(tally, what, pid)


def _watch(tally, event, what, pid, pipe, rng):
    """Let a case happen; false if nothing more can be tried."""
    assert pipe.recv() == "begun"
    if rng.random() < 0.5:
        time.sleep(rng.random() * START)
    elif pipe.poll(PATIENCE):
        assert pipe.recv() == "at work"
        time.sleep(rng.random() * MOMENT)
    if event == "kill the program":
        names = _find_names(pid)
        os.kill(pid, signal.SIGKILL)
        _drain(tally, what, pipe)
    else:
        names = _happen(event, pid, pipe, rng)
    if names:
        tally.bad("lost", f"{what}: a name in shared memory: {names[0]}")
    return event == "kill the program" or _await_end(tally, event, what, pid, pipe)


def _happen(event, pid, pipe, rng):
    names = _find_names(pid) if rng.random() < 0.2 else []
    if event == "interrupt it":
        os.kill(pid, signal.SIGINT)
    elif event == "kill a worker":
        kill_one([one for one in session(pid) if one != pid], rng)
    if event != "interrupt it":
        pipe.send("now")
    return names


def _find_names(pid):
    """Files in /dev/shm that a program or its processes have mapped, but for those it reads."""
    found = []
    for one in session(pid):
        try:
            lines = Path(f"/proc/{one}/maps").read_text().splitlines()
        except OSError:
            continue
        found += [line for line in lines if "/dev/shm/" in line and not line.endswith(".npz")]
    return found


def _drain(tally, what, pipe):
    """Take what a killed program had to say."""
    try:
        while pipe.poll(PATIENCE):
            said = pipe.recv()
            if said not in ("begun", "at work"):
                tally.bad("torn", f"{what}: {said}")
    except (EOFError, OSError):
        return
    tally.bad("hung", f"{what}: its end of a pipe is open")


def _await_end(tally, event, what, pid, pipe):
    """Wait until a program has gone through a case, and judge what it says."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if not pipe.poll(AGAIN):
            # Python loses a Ctrl-C that comes in a weak reference's callback.
            if event == "interrupt it":
                os.kill(pid, signal.SIGINT)
        elif (said := pipe.recv()) != "at work":
            if said != "done":
                tally.bad("torn" if "values" in said else "lost", f"{what}: {said}")
            return True
    tally.bad("hung", f"{what}: after {PATIENCE} s")
    return False


def _end(tally, what, pid):
    until = time.monotonic() + PATIENCE
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > until:
            tally.bad("hung", f"{what}: the program does not end")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            break
        time.sleep(0.002)
    left = wait_for_none(pid)
    if left:
        tally.bad("lost", f"{what}: {len(left)} processes are left")
        for one in left:
            os.kill(one, signal.SIGKILL)


# What follows runs in the program.


def run_program(pipe, event, kind, folder, seed, expected, cases):
    """Go through some cases, and say of each how it went."""
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Errors of other threads, and in finalizers, are shown; those of Ctrl-C are no news.
        program = _Program(pipe, event, kind, folder, random.Random(seed), expected)
        for _ in range(cases):
            try:
                pipe.send(program.go_through())
            except KeyboardInterrupt:  # pressed again
                pipe.send("done")
    finally:
        os._exit(0)


class _Program:
    """Iterates over loaders while things happen, and looks at what is left."""

    def __init__(self, pipe, event, kind, folder, rng, expected):
        self._pipe, self._event, self._rng = pipe, event, rng
        self._kind, self._folder, self._expected = kind, folder, expected
        self._before = None
        self._told = False  # did what was to happen happen?

    def go_through(self):
        """One case; "done", or what was wrong."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._told = False
        way = self._rng.choice(WAYS)
        try:
            problem = self._run(way)
        except AssertionError as error:
            problem = f"{error}"
        except ndfeed.Error as error:
            problem = f"{type(error).__name__}: {error}"
        gc.collect()
        left = self._find_left()
        return problem or left or "done"

    def _run(self, way):
        loader = loader_of(self._kind, self._folder, processes=2)
        epoch = self._rng.randrange(EPOCHS)
        try:
            if way == "with":
                with loader:
                    self._loop(loader, epoch)
            else:
                self._loop(loader, epoch)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            assert self._event == "interrupt it", "interrupted"
        except _Own:
            assert self._event == "raise an error", "an error of its own"
        if way == "go on" or self._event == "kill a worker":
            self._check_epoch(loader, (epoch + 1) % EPOCHS)
        if way in ("go on", "close"):
            loader.close()
        return ""

    def _loop(self, loader, epoch):
        """Iterate until something happens, and a little longer if nobody notices."""
        self._pipe.send("begun")
        working = False
        while True:
            loader.epoch = epoch
            for number, batch in enumerate(loader):
                self._compare(batch, epoch, number)
                time.sleep(PAUSE)
                if not working and loader.report().processes:
                    self._pipe.send("at work")
                    working = True
                self._told = self._told or (self._pipe.poll() and bool(self._pipe.recv()))
                if self._told and self._event == "raise an error":
                    raise _Own
            if self._told:
                return

    def _check_epoch(self, loader, epoch):
        loader.epoch = epoch
        numbers = 0
        for number, batch in enumerate(loader):
            self._compare(batch, epoch, number)
            numbers += 1
        assert numbers == len(self._expected[epoch]), "other values: batches are missing"

    def _compare(self, batch, epoch, number):
        expected = self._expected[epoch][number]
        for name, values in expected.items():
            if batch[name].tobytes() != values.tobytes():
                self._pipe.send(f"other values of {name!r}")
                raise AssertionError(f"other values of {name!r}")

    def _find_left(self):
        """What there is more of than after the first case."""
        until = time.monotonic() + SETTLED
        while found := self._count_left():
            if time.monotonic() > until:
                return found
            time.sleep(0.01)
            gc.collect()
        return ""

    def _count_left(self):
        me = os.getpid()
        if others := [one for one in session(me) if one != me]:
            return f"{len(others)} processes are left: {', '.join(map(_describe, others))}"
        now = {
            "open files": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "mapped blocks": Path("/proc/self/maps").read_text().count("memfd:"),
            "bytes of memory": _own_memory(),
        }
        if self._before is None:
            if now["threads"] > 1 or now["mapped blocks"]:
                return f"left: {now}"
            self._before = now
        for what, count in now.items():
            if count > self._before[what] + (GROWTH if what == "bytes of memory" else 0):
                return f"{count} {what}, {self._before[what]} before"
        return ""


def _describe(pid):
    """What a process is and does: a case in which one is left is rare, and does not come again."""
    try:
        facts = Path(f"/proc/{pid}/status").read_text().splitlines()
        waits = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return f"{pid}, gone now"
    own = [line.replace("\t", " ") for line in facts if line.startswith(("State:", "PPid:"))]
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return f"{pid} {own} in {waits}: {words[-80:]}"


def _own_memory():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0
