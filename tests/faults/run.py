"""Run the fault campaigns at many times their size, and print what came of it.

    python tests/faults/run.py --times 100
    python tests/faults/run.py --times 3 "power lost after every call"

Prints one JSON line for each campaign: how many cases were tried, and how many were lost, torn,
crashed, hung, or ended in an error that is not ours.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from faults.campaigns import CAMPAIGNS, Tally


def main():
    """Run what the command line asks for; exit status 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help="all, unless named")
    parser.add_argument("--times", type=int, default=1, help="how often, each with another seed")
    asked = parser.parse_args()
    sound = True
    for name in asked.campaigns or CAMPAIGNS:
        began = time.monotonic()
        tally = Tally()
        for seed in range(asked.times):
            with tempfile.TemporaryDirectory() as folder:
                os.environ["XDG_CACHE_HOME"] = os.path.join(folder, "cache")
                CAMPAIGNS[name](Path(folder), tally, seed)
        found = {"campaign": name, "tried": tally["tried"]}
        found |= {how: tally[how] for how in Tally.WRONG}
        print(json.dumps(found | {"seconds": round(time.monotonic() - began)}), flush=True)
        print(*tally.examples, sep="\n", end="\n" * bool(tally.examples), file=sys.stderr)
        sound &= tally.sound
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
