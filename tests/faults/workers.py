"""Loaders whose worker processes, or who themselves, end at any moment.

A program iterates over a loader with worker processes: lean ones that read files, forks that run a
map, lean ones that decode members of many rows. At a random moment it is killed or interrupted, its
loop raises an error, or one of its processes is killed. What it delivers must be right, it must
end, and nothing that it started may be left.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

CASES = 15  # for each seed; fewer for the first, with which CI runs
FEW = 5
PATIENCE = 120.0  # seconds for a program to begin, and again to end
MOMENT = 0.25  # seconds within which something happens
GONE = 60.0  # seconds after which nothing may be left

KINDS = ("files", "map", "members")
EVENTS = ("kill the program", "interrupt it", "kill a worker", "kill the server", "raise an error")

PROGRAM = """
import sys
import numpy as np
import ndfeed

kind, folder, fails = sys.argv[1], sys.argv[2], int(sys.argv[3])
ds = ndfeed.open(folder, sample="file" if kind == "files" else "row")
if kind == "map":
    ds = ds.map(lambda batch: {"n": batch["n"], "x": batch["x"] + 1})
with ndfeed.loader(ds, 8, shuffle=True, processes=2, memory="4MB") as loader:
    while loader.report().processes < 2:
        list(loader)
    print("begun", flush=True)
    for epoch in range(6):
        seen = []
        for batch in loader:
            value = batch["x"].reshape(len(batch["n"]), -1)[:, 5]
            assert (value == batch["n"] % 200 + (kind == "map")).all(), "other values"
            seen += batch["n"].tolist()
            if epoch * 100 + len(seen) > fails:
                raise ValueError("of my own")
        assert sorted(seen) == list(range(len(ds))), "not every sample once"
print("done", flush=True)
"""


def write(kind, folder):
    """The files that a program reads."""
    folder.mkdir(parents=True)
    if kind == "files":
        for i in range(160):
            np.savez(folder / f"{i:03}", x=np.full((32, 32, 8), i % 200, "<f8"), n=np.int64(i))
        return
    for i in range(8):
        n = np.arange(i * 40, i * 40 + 40)
        x = np.repeat((n % 200).astype("<u2")[:, None], 8192, axis=1)
        x[:, 6:] = np.random.default_rng(i).integers(0, 9, x[:, 6:].shape)
        np.savez_compressed(folder / f"{i:03}", x=x, n=n)


def ended_workers(folder, tally, seed=0):
    """Programs and their worker processes end at random moments."""
    rng = random.Random(seed)
    for kind in KINDS:
        write(kind, folder / kind)
    for number in range(CASES if seed else FEW):
        kind, event = KINDS[number % len(KINDS)], EVENTS[number % len(EVENTS)]
        tally["tried"] += 1
        _run(kind, event, folder / kind, tally, rng)


def _run(kind, event, folder, tally, rng):
    what = f"{kind}: {event}"
    fails = rng.randrange(600) if event == "raise an error" else 1 << 60
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, kind, os.fspath(folder), str(fails)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        # No more than that, and not by the file: communicate() leaves out what is in its buffer.
        begun = os.read(program.stdout.fileno(), len("begun\n")).decode()
        if begun == "begun\n":
            time.sleep(rng.random() * MOMENT)
            _happen(event, program.pid, rng)
        out, err = program.communicate(timeout=PATIENCE)
        _judge(event, program.returncode, begun + out, err, what, tally)
    except subprocess.TimeoutExpired:
        tally.bad("hung", f"{what}: after {PATIENCE} s")
        program.kill()
        program.communicate()
    left = wait_for_none(program.pid)
    if left:
        tally.bad("lost", f"{what}: {len(left)} processes are left")
        for pid in left:
            os.kill(pid, signal.SIGKILL)


def _happen(event, program, rng):
    others = [pid for pid in session(program) if pid != program]
    server = [pid for pid in others if _parent(pid) == program and "process_server" in _words(pid)]
    if event == "kill the program":
        os.kill(program, signal.SIGKILL)
    elif event == "interrupt it":
        os.kill(program, signal.SIGINT)
    elif event == "kill a worker":
        kill_one([pid for pid in others if pid not in server], rng)
    elif event == "kill the server":
        kill_one(server or others, rng)


def kill_one(pids, rng):
    if pids:
        try:
            os.kill(rng.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return


def _judge(event, status, out, err, what, tally):
    last = err.strip().splitlines()[-1:] or [""]
    if event == "kill the program":
        fine = status == -signal.SIGKILL or "done" in out
    elif event == "interrupt it":
        fine = (status != 0 and last[0].startswith("KeyboardInterrupt")) or "done" in out
    elif event == "raise an error":
        fine = status == 1 and last[0] == "ValueError: of my own"
    else:
        fine = status == 0 and "done" in out
    if not fine:
        kind = "torn" if "AssertionError" in err else "other errors"
        tally.bad(kind, f"{what}: status {status}: {last[0]}")


def session(leader):
    """Processes of a session that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3]) == leader:
            found.append(int(path.parent.name))
    return found


def _parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _words(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def wait_for_none(leader):
    until = time.monotonic() + GONE
    while (left := session(leader)) and time.monotonic() < until:
        time.sleep(0.02)
    return left
