"""One target under atheris, in this process; ``run`` starts it with libFuzzer's own words."""

import random
import sys
import warnings

import atheris

with atheris.instrument_imports(include=["ndfeed"]):
    from fuzz.targets import TARGETS

_REPAIRED = 0.8


def main() -> None:
    """Fuzz until libFuzzer says stop."""
    name, *words = sys.argv[1:]
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


if __name__ == "__main__":
    main()
