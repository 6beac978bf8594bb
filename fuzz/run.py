"""Run targets for a while, each in a process of its own, and say what was found.

    python -m fuzz.run all --seconds 60
    python -m fuzz.run npz pt --seconds 3600 --found found/
    python -m fuzz.run npz --plain --seconds 60 --seed 7      without coverage, and without atheris
    python -m fuzz.run npz --input found/npz-crash-…          one input again

With atheris, inputs are made by what they reach; what is new stays in ``--keep`` if it is given.
Without it they are random changes of the corpus. An input that makes a target fail is written to
``--found``, and the run goes on. The exit status is 1 if there was any.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple, Self

ROOT = Path(__file__).parent.parent
NAMES = (
    *("npy", "npz", "npy.gz", "pt", "safetensors", "sidecar", "megatron", "csr"),
    *("manifest", "index", "journal", "state"),
)
_PATIENCE = 60.0  # seconds that a process may be silent before it is ended
_TIMEOUT = 70  # libFuzzer's exit status
_MOST_RUNS = 50
_UNITS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_PLAIN = re.compile(r"inputs (\d+) failures (\d+) hangs (\d+)")


class Found(NamedTuple):
    """What came of one target."""

    inputs: int = 0
    crashes: int = 0
    hangs: int = 0

    def __add__(self, other: "Found") -> "Found":  # type: ignore[override]
        return Found(*(a + b for a, b in zip(self, other, strict=True)))


def main() -> int:
    """Run what was asked for; print a line for each target."""
    words = _parsed()
    names = NAMES if "all" in words.targets else words.targets
    if words.input:
        return _once(names[0], Path(words.input))
    found_in = Path(words.found)
    plain = words.plain or importlib.util.find_spec("atheris") is None
    print(f"{'target':12} {'engine':8} {'inputs':>10} {'crashes':>8} {'hangs':>6} {'seconds':>8}")
    bad = False
    with nullcontext() if plain else _Instrumented() as process:
        for name in names:
            began = time.monotonic()
            if process is None:
                found = _plainly(name, words.seconds, words.seed, found_in)
            else:
                found = _by_coverage(process, name, words.seconds, words.seed, found_in, words.keep)
            engine = "plain" if plain else "atheris"
            took = time.monotonic() - began
            counts = f"{found.inputs:10,} {found.crashes:8} {found.hangs:6}"
            print(f"{name:12} {engine:8} {counts} {took:8.0f}", flush=True)
            bad |= bool(found.crashes or found.hangs)
    if bad:
        print(f"inputs that failed are in {found_in}; --input runs one again")
    return int(bad)


def _parsed() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m fuzz.run", description=__doc__, formatter_class=raw)
    parser.add_argument("targets", nargs="+", choices=("all", *NAMES))
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--plain", action="store_true", help="do without atheris")
    parser.add_argument("--found", default="fuzz-found", help="where inputs that failed go")
    parser.add_argument("--keep", help="where inputs that reached something new go")
    parser.add_argument("--input", help="run one input and nothing else")
    return parser.parse_args()


def _environment() -> dict[str, str]:
    paths = [os.fspath(ROOT), os.fspath(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _once(name: str, path: Path) -> int:
    from fuzz.harness import attempt  # noqa: PLC0415 - ndfeed is not needed before
    from fuzz.targets import TARGETS  # noqa: PLC0415

    print("accepted" if attempt(TARGETS[name], path.read_bytes()) else "refused")
    return 0


class _Instrumented:
    """The process that has instrumented ndfeed; it forks for every run of a target."""

    def __enter__(self) -> Self:
        self._said = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.coverage"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
            env=_environment(), cwd=tempfile.gettempdir(),
        )  # fmt: skip
        self._answer()  # it is ready; what follows is timed
        return self

    def run(self, name: str, folder: str, words: list[str]) -> tuple[int, str]:
        """Fuzz a target in ``folder``; the exit status, and what was said."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, folder, words]) + "\n")
        self._process.stdin.flush()
        return self._answer(), (Path(folder) / "log").read_text(errors="replace")

    def _answer(self) -> int:
        assert self._process.stdout is not None
        status = self._process.stdout.readline()
        if not status:
            self._said.seek(0)
            raise RuntimeError(f"fuzz.coverage ended:\n{self._said.read()[-2000:]}")
        return int(status)

    def __exit__(self, *_: object) -> None:
        with self._said:
            self._process.communicate()  # the end of its input ends it


def _by_coverage(
    process: _Instrumented, name: str, seconds: float, seed: int, found_in: Path, keep: str | None
) -> Found:
    """atheris ends at the first input that fails: begin again until the time is over."""
    total = Found()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(keep).resolve() / name if keep else Path(folder) / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        for turn in range(_MOST_RUNS):
            left = round(end - time.monotonic())
            if left < 1:
                break
            artifacts = Path(folder) / f"found{turn}"
            artifacts.mkdir()
            words = [
                *(corpus, ROOT / "fuzz" / "corpus" / name),
                *(f"-max_total_time={left}", f"-seed={(seed + turn) % (1 << 31) or 1}"),
                *("-timeout=5", "-rss_limit_mb=4096", "-max_len=16384", "-print_final_stats=1"),
                f"-artifact_prefix={artifacts}{os.sep}",
            ]
            status, said = process.run(name, folder, list(map(os.fspath, words)))
            units = _UNITS.findall(said)
            hangs = _kept(name, artifacts, found_in, said)
            crashed = status not in (0, _TIMEOUT)
            if crashed and not any(artifacts.iterdir()):
                what = f"{name}: ended with status {status} and left no input behind"
                print(f"{what}:\n{said[-2000:]}", file=sys.stderr)
            total += Found(int(units[-1]) if units else 0, int(crashed), hangs)
    return total


def _kept(name: str, artifacts: Path, found_in: Path, said: str) -> int:
    """Keep what failed, with what was said of it; how many of them were hangs."""
    hangs = 0
    for one in artifacts.iterdir():
        kind = one.name.partition("-")[0]
        hangs += kind == "timeout"
        keep(name, kind, one.read_bytes(), found_in, said[-4000:])
    return hangs


def keep(name: str, kind: str, data: bytes, found_in: Path, said: str) -> None:
    """Write an input that failed to where such inputs go."""
    found_in.mkdir(parents=True, exist_ok=True)
    path = found_in / f"{name}-{kind}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    path.with_name(f"{path.name}.txt").write_text(said)


def _plainly(name: str, seconds: float, seed: int, found_in: Path) -> Found:
    """Random changes in a process of its own, begun again where one ends it."""
    total = Found()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        current = Path(folder) / "current"
        for turn in range(_MOST_RUNS):
            left = end - time.monotonic()
            if left <= 0:
                break
            words = name, str(left), str(seed + turn), current, found_in.resolve()
            child = subprocess.Popen(
                [sys.executable, "-m", "fuzz.plain", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=_environment(),
                cwd=folder,
            )
            hung = _watched(child, current)
            said, complaint = child.communicate()
            done = _PLAIN.search(said)
            if done:
                total += Found(*map(int, done.groups()))
            else:
                kind = "timeout" if hung else "crash"
                if current.exists():
                    keep(name, kind, current.read_bytes(), found_in, complaint[-4000:])
                total += Found(0, int(not hung), int(hung))
    return total


def _watched(child: "subprocess.Popen[str]", current: Path) -> bool:
    """Wait for a process; end it where it is busy with one input for too long."""
    while child.poll() is None:
        time.sleep(0.2)
        if current.exists() and time.time() - current.stat().st_mtime > _PATIENCE:
            child.kill()
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
