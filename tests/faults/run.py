"""Run the fault campaigns at many times their size, on all cores, and print what came of it.

    python tests/faults/run.py --times 100
    python tests/faults/run.py --times 50 --first 50
    python tests/faults/run.py --times 3 --jobs 2 "power lost after every call"

Every campaign runs once for each seed, in a process of its own. Prints a JSON line for each
campaign as its last process ends, and a total: how many cases were tried, how many were lost,
torn, crashed, hung, or ended in an error that is not ours. ``seconds`` is the time that the
processes took, one after the other; in the total, the time that passed. Progress and examples of
what went wrong go to stderr. The exit status is 1 if anything went wrong.

Needs Python 3.11 or later, NumPy and isal, and the folders ``src`` and ``tests``, with ``src`` on
PYTHONPATH. Root is not needed, but without it the kernel makes writers wait for 45 s instead of 1.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from children import short_lease_breaks
from faults.campaigns import CAMPAIGNS
from faults.tally import Tally

LONGEST = 900  # seconds that one campaign may take with one seed
MEMORY = "/dev/shm"  # where syncing costs nothing: what fails here is a process, not a disk


def main():
    """Run what the command line asks for; exit status 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help="all, unless named")
    parser.add_argument("--times", type=int, default=1, help="how often, each with another seed")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--jobs", type=int, default=_cores(), help="processes (default: cores)")
    parser.add_argument("--folder", default=_default_folder(), help="where to make files")
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)  # a job: this seed alone
    asked = parser.parse_args()
    unknown = set(asked.campaigns) - CAMPAIGNS.keys()
    if unknown:
        parser.error(f"no campaign {', '.join(unknown)}; there are: {', '.join(CAMPAIGNS)}")
    if asked.seed is not None:
        return _run_job(asked.campaigns[0], asked.seed, asked.folder)
    with short_lease_breaks(1):
        return _run_all(asked)


def _cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _default_folder():
    return MEMORY if os.access(MEMORY, os.W_OK) else tempfile.gettempdir()


def _run_job(name, seed, folder):
    """One campaign with one seed; what it counted, as JSON."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="ndfeed-faults-", dir=folder) as made:
        os.environ["XDG_CACHE_HOME"] = os.path.join(made, "cache")
        CAMPAIGNS[name](Path(made), tally, seed)
    print(json.dumps({"counts": tally, "examples": tally.examples}))
    return 0


def _run_all(asked):
    began = time.monotonic()
    names = list(dict.fromkeys(asked.campaigns)) or list(CAMPAIGNS)
    tallies = {name: Tally() for name in names}
    left, seconds, done = Counter(dict.fromkeys(names, asked.times)), Counter(), 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        jobs = [
            pool.submit(_start_job, name, seed, asked.folder)
            for seed in range(asked.first, asked.first + asked.times)
            for name in names
        ]
        for job in as_completed(jobs):
            name, seed, counts, examples, took = job.result()
            done += 1
            tallies[name].add(counts, examples)
            seconds[name] += took
            left[name] -= 1
            _say(f"{done}/{len(jobs)}: {name}, seed {seed}: {dict(counts)}, {took:.0f} s")
            if not left[name]:
                _print(name, tallies[name], seconds[name])
    total = Tally()
    for tally in tallies.values():
        total.add(tally, tally.examples)
    _print("total", total, time.monotonic() - began)
    for name, tally in tallies.items():
        for example in tally.examples:
            _say(f"{name}: {example}")
    return 0 if total.sound else 1


def _start_job(name, seed, folder):
    """Run a job in a process of its own: it may crash, or hang."""
    began = time.monotonic()
    command = [sys.executable, __file__, name, "--seed", str(seed), "--folder", folder]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = child.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        found = {"counts": {"hung": 1}, "examples": [f"hung: seed {seed}, over {LONGEST} s"]}
    else:
        if child.returncode:
            ended = f"crashed: seed {seed}, status {child.returncode}: {err[-500:]}"
            found = {"counts": {"crashed": 1}, "examples": [ended]}
        else:
            found = json.loads(out)
    return name, seed, found["counts"], found["examples"], time.monotonic() - began


def _print(name, tally, seconds):
    found = {"campaign": name, "tried": tally["tried"]}
    found |= {how: tally[how] for how in Tally.WRONG}
    print(json.dumps(found | {"seconds": round(seconds)}), flush=True)


def _say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
