"""Targets under atheris, each in a fork of this process.

``run`` sends a JSON line for each: the target, the folder to work in, and libFuzzer's own words.
What the fork says goes to the file ``log`` in that folder; the answer is a line with its exit
status. Instrumenting ndfeed takes seconds, and is done once for all; a first line says that it is
done.
"""

import json
import os
import random
import sys
import warnings
from typing import NoReturn

import atheris

with atheris.instrument_imports(include=["ndfeed"]):
    from fuzz.targets import TARGETS

_REPAIRED = 0.8


def main() -> None:
    """Fuzz what is asked for, one target after the other."""
    print(0, flush=True)
    for line in sys.stdin:
        name, folder, words = json.loads(line)
        child = os.fork()
        if not child:
            _fuzz(name, folder, words)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)


def _fuzz(name: str, folder: str, words: list[str]) -> NoReturn:
    """Fuzz until libFuzzer says stop, which ends the process."""
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    target = TARGETS[name]

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        made = atheris.Mutate(data, most)
        if random.Random(seed).random() < _REPAIRED:
            made = target.repair(bytes(made))
        return bytes(made[:most])

    def once(data: bytes) -> None:
        # Not ``attempt``: libFuzzer has a clock of its own.
        target.check(data)

    warnings.simplefilter("ignore")
    atheris.Setup([sys.argv[0], *words], once, custom_mutator=mutate)
    atheris.Fuzz()
    os._exit(0)


if __name__ == "__main__":
    main()
