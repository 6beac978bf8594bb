"""One target in this process, with random changes of its corpus; ``run`` starts it."""

import sys
import time
import traceback
from pathlib import Path

from fuzz.harness import Failure, attempt
from fuzz.mutations import mutated
from fuzz.run import keep
from fuzz.targets import TARGETS


def main(name: str, seconds: float, seed: int, current: Path, found_in: Path) -> None:
    """Try inputs until the time is over, and say how many failed."""
    target = TARGETS[name]
    end = time.monotonic() + seconds
    inputs = failures = hangs = 0
    for data in mutated(target, 1 << 62, seed):
        if time.monotonic() > end:
            break
        current.write_bytes(data)  # for who finds this process dead
        inputs += 1
        try:
            attempt(target, data)
        except Failure as failure:
            hang = " over " in str(failure)
            hangs += hang
            failures += not hang
            keep(name, "timeout" if hang else "crash", data, found_in, traceback.format_exc())
    print(f"inputs {inputs} failures {failures} hangs {hangs}")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5]))
