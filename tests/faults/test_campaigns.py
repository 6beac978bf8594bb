"""Every fault at every call: nothing lost, nothing torn, no crash, no hang, no strange error.

Each campaign runs in a program of its own: a fork of this process, which has imported every
framework, costs several times as much as what most cases do.
"""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from children import WARNINGS, short_lease_breaks
from faults.campaigns import CAMPAIGNS
from faults.endings import failing_loops, interrupted_programs, killed_programs, killed_workers
from faults.stops import stops
from faults.tally import Tally
from faults.workers import ended_workers

RUN = Path(__file__).with_name("run.py")
LEAST = 100  # cases; fewer would mean that the seam misses calls
LEAST_PROGRAMS = 5  # cases that each take processes of their own
PROGRAMS = (ended_workers, failing_loops, interrupted_programs, killed_programs, killed_workers)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_goes_wrong(name, folder):
    """The library is trusted with the only copy of somebody's data."""
    with short_lease_breaks(2) if CAMPAIGNS[name] is stops else nullcontext():
        done = subprocess.run(
            [sys.executable, *WARNINGS, RUN, name, "--seed", "0", "--folder", os.fspath(folder)],
            capture_output=True,
            text=True,
            timeout=290,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tally = Tally()
    tally.add(found["counts"], found["examples"])

    assert tally.examples == []
    assert tally.sound
    assert tally["tried"] >= (LEAST_PROGRAMS if CAMPAIGNS[name] in PROGRAMS else LEAST)
