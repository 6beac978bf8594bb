"""Run programs one after the other in this process, each as if it were started by itself."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    programs = sys.argv[1:]
    for program in programs:
        sys.stdout.write(f"== {program}\n")
        sys.argv = [program]
        sys.path[0] = str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")
        sys.stdout.flush()
