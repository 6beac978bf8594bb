"""Compare how fast ndfeed and other loaders deliver shuffled torch batches.

The data is one .npy with rows of 150 KB, 3 KB or 128 B of random bytes. Each peer converts it into
its own format (timed, and its size on disk recorded), its batches are checked, each of its settings
is tried, and the fastest alternates with ndfeed, which reads the .npy directly:

- With each setting, an epoch of a small set made the same way must contain every row once, with
  identical bytes, and not in order. A setting that fails is reported and not used.
- The first batch of what is timed is compared, too.
- A batch is a torch tensor that belongs to the consumer. Startup and the first batches are not
  timed; the page cache is warm; epochs follow each other, so the end of an epoch is part of the
  rate. Between turns a peer's batches wait: no epoch is interrupted.
- Every setting is tried in its own process.
- ``--quick`` shows that everything works. Its epochs have 16 batches, which penalises peers that
  are slow to start an epoch, and its data fits into a CPU cache: do not quote its ratios.
- All peers together have ``--minutes``: each has an equal share plus what the ones before it left
  over, and so have its row sizes. What does not answer in time is ended and reported, and settings
  that were not tried for lack of time are named.
- ``ratio`` is ndfeed's rate divided by the peer's, measured in the same minute. It is reliable
  where ``steady`` is true: the rates of the setting that was kept are within a factor of two.

Each peer has its own virtual environment, made below ``--environments`` on its first run, and its
own process; all share one torch. Set ``PIP_EXTRA_INDEX_URL`` to the index of a CPU build where pip
would fetch CUDA. What cannot be installed is reported with pip's reason, and not tried again until
its environment is removed. Prints one JSON line per peer and row size, and appends each to
``--output`` immediately, so an interrupted run keeps what it measured.

    python benchmarks/peers.py --output FILE               # all of them
    python benchmarks/peers.py --output FILE --only PEER   # these again, replacing their lines
"""

import argparse
import contextlib
import importlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from peer.environment import Environments, NotInstalled
from peer.process import Failed, Process

OURS = "ndfeed"
# Slow ones last: they may use the time that others left over.
PEERS = (
    "dataloader",
    "torchdata",
    "tensordict",
    "datasets",
    "spdl",
    "dali",
    "dali_files",
    "ffcv",
    "grain",
    "mosaic",
    "litdata",
    "webdataset",
    "lance",
    "zarr",
)
# Shape of a row, rows per batch, rows in total.
ROWS = {
    "150KB": ((224, 224, 3), 64, 4_096),
    "3KB": ((32, 32, 3), 256, 65_536),
    "128B": ((128,), 1024, 524_288),
}
MINUTES = 24
TURNS = 15  # seconds reserved for the alternating turns while settings are tried
UNSTEADY = 2  # rates of one setting this far apart say more about the machine than the peer
SMALL = 16  # batches of the set of which an entire epoch is checked


class Bench:
    """Sources, environments and how long to measure."""

    def __init__(
        self, folder: Path, environments: Environments, quick: bool, output: Path | None
    ) -> None:
        self.folder, self.environments, self.quick = folder, environments, quick
        self.output = output
        self.trial, self.turn, self.turns = (0.2, 0.3, 2) if quick else (0.5, 1.2, 3)
        self.ours: Process | None = None

    def report(self, **facts: Any) -> None:
        """Print one JSON line, and write it to the file immediately, since a run takes long."""
        print(json.dumps(facts), flush=True)
        if self.output:
            with self.output.open("a") as file:
                file.write(json.dumps(facts) + "\n")

    def forget(self, peer: str) -> None:
        """Remove the lines of an earlier run of this peer from the file."""
        if self.output:
            lines = self.output.read_text().splitlines(keepends=True)
            kept = [line for line in lines if json.loads(line).get("peer") != peer]
            self.output.write_text("".join(kept))

    def source(self, label: str, small: bool) -> Path:
        """Return a .npy of rows that begin with their number."""
        shape, batch, count = ROWS[label]
        count = SMALL * batch if small else count
        path = self.folder / f"{label}-{count}.npy"
        if not path.exists():
            data = np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)
            data.reshape(count, -1)[:, :8] = np.arange(count)[:, None].view(np.uint8)
            np.save(path, data)
        return path

    def start(self, name: str, module: ModuleType) -> Process:
        """Start the process of a peer in its environment."""
        environment = getattr(module, "ENVIRONMENT", name)
        python = self.environments.python(environment, module.PACKAGES)
        return Process(python, name, self.folder / f"{name}.log")

    def peer(self, name: str, until: float) -> None:
        """Measure all row sizes of one peer until a given time; report any failure."""
        module = importlib.import_module(f"peer.{name}")
        self.forget(module.NAME)
        try:
            with self.start(name, module) as process:
                self.sizes(process, module, until)
        except NotInstalled as error:
            self.report(peer=module.NAME, not_installed=str(error))
        except Exception as error:  # noqa: BLE001 - the peers after it must get their turn
            traceback.print_exc()
            self.report(peer=module.NAME, failed=f"{type(error).__name__}: {error}")

    def sizes(self, process: Process, module: ModuleType, until: float) -> None:
        """Measure every row size in its share of the time."""
        process.until = until
        versions = process.ask("versions")
        facts = {"peer": module.NAME}
        self.report(**facts, format=module.FORMAT, shuffle=module.SHUFFLE, versions=versions)
        for left, label in zip(range(len(ROWS), 0, -1), ROWS, strict=True):
            if np.prod(ROWS[label][0]) < getattr(module, "LEAST", 0):
                self.report(**facts, rows=label, left_out="a file a row is not for such rows")
                continue
            self.source(label, small=True), self.source(label, small=self.quick)
            now = time.monotonic()
            process.until = now + (until - now) / left
            try:
                found = self.measure(process, module, label)
            except Failed as error:
                found = {"failed": str(error)}
            self.report(**facts, rows=label, **found, took_s=round(time.monotonic() - now))

    def measure(self, process: Process, module: ModuleType, label: str) -> dict[str, Any]:
        """Measure one peer at one row size."""
        small = self.converted(process, module, label, small=True)
        full = small if self.quick else self.converted(process, module, label, small=False)
        try:
            tried, failed = self.settings(process, module, small, full)
            if not tried:
                raise Failed("; ".join(f"{name}: {why}" for name, why in failed.items()))
            best = max(module.SETTINGS, key=lambda one: tried.get(words(one), 0))
            process.close()
            theirs, mine = [], []
            for _ in range(self.turns):
                mine.append(rate(self.ours, full | {"target": full["source"]}, {}, self.turn))
                theirs.append(rate(process, full, best, self.turn))
        finally:
            process.close()  # before its files are removed
            for data in (small, full):
                remove(data)
        seen = [*theirs, tried[words(best)]]
        found = {
            "rows_per_s": round(statistics.median(theirs)),
            "range": [round(min(theirs)), round(max(theirs))],
            "ndfeed_rows_per_s": round(statistics.median(mine)),
            "ratio": round(statistics.median(mine) / statistics.median(theirs), 2),
            "steady": max(seen) < UNSTEADY * min(seen),
            "setting": words(best),
            "tried": {name: round(one) for name, one in tried.items()},
            "convert_s": round(full["seconds"], 1),
            "disk_mb": round(full["bytes"] / 1e6),
        }
        return found | ({"settings_failed": failed} if failed else {})

    def settings(
        self, process: Process, module: ModuleType, small: dict[str, Any], full: dict[str, Any]
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return the rate of every setting with correct batches, and what is wrong with others.

        Each runs in its own process, so that nothing left over by one slows the next. None may
        take more than half of the remaining time.
        """
        tried, failed = {}, {}
        last = process.until
        for setting in module.SETTINGS:
            process.close()
            now = time.monotonic()
            process.until = now + (last - TURNS - now) / 2
            asked = {name: small[name] for name in ("source", "target", "batch")}
            try:
                process.ask("check", **asked, setting=setting)
                tried[words(setting)] = rate(process, full, setting, self.trial)
            except Failed as error:
                failed[words(setting)] = str(error)
        process.until = last
        return tried, failed

    def converted(
        self, process: Process, module: ModuleType, label: str, small: bool
    ) -> dict[str, Any]:
        """Convert the data for a peer; return where it is, what that cost, and its source."""
        source = self.source(label, small)
        facts = {"source": str(source), "target": str(source), "batch": ROWS[label][1]}
        if not hasattr(module, "convert"):
            return facts | {"seconds": 0, "bytes": source.stat().st_size}
        target = self.folder / f"{module.__name__}-{source.stem}"
        made = process.ask("convert", source=str(source), target=str(target))
        os.sync()  # otherwise the disk is busy while others are timed
        return facts | {"target": str(target)} | made


def rate(who: Process, data: dict[str, Any], setting: dict[str, Any], seconds: float) -> float:
    """Return rows per second of a peer's data."""
    asked = {name: data[name] for name in ("source", "target", "batch")}
    return who.ask("time", **asked, setting=setting, seconds=seconds)["rows_per_s"]


def words(setting: dict[str, Any]) -> str:
    """Return a setting as text: ``workers 2``."""
    parts = [name if value is True else f"{name} {value}" for name, value in setting.items()]
    return ", ".join(parts) or "as it is"


def remove(data: dict[str, Any]) -> None:
    """Delete a peer's files, but not the source."""
    target = Path(data["target"])
    if data["target"] != data["source"] and target.exists():
        shutil.rmtree(target) if target.is_dir() else target.unlink()


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="PEER", choices=PEERS, default=PEERS,
                        help=", ".join(PEERS))  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="only the small sets, shorter turns")
    parser.add_argument("--environments", type=Path, default=cache / "ndfeed-peers",
                        help="where virtual environments are kept")  # fmt: skip
    parser.add_argument("--folder", type=Path, help="where to make the files (default: temporary)")
    parser.add_argument("--minutes", type=float, default=MINUTES,
                        help=f"time for all peers together (default: {MINUTES})")  # fmt: skip
    parser.add_argument("--output", type=Path, help="a file to which lines are appended")
    return parser.parse_args()


def begun(given: argparse.Namespace) -> dict[str, Any]:
    """Return the first line of a run; a file that is continued must start with the same line."""
    first = {
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "quick": given.quick,
        "rows": {label: SMALL * batch if given.quick else count
                 for label, (_, batch, count) in ROWS.items()},
        "batch": {label: batch for label, (_, batch, _) in ROWS.items()},
    }  # fmt: skip
    output = given.output
    if output and given.only != PEERS and output.exists():
        if json.loads(output.read_text().split("\n")[0]) != first:
            sys.exit(f"{output}: from another machine or size; choose another --output")
    elif output:
        output.write_text(json.dumps(first) + "\n")
    return first


def main() -> None:
    """Measure one peer after another."""
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also ends peers and removes files
    print(json.dumps(begun(given)), flush=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        bench = Bench(Path(folder), Environments(given.environments), given.quick, given.output)
        ours = importlib.import_module(f"peer.{OURS}")
        with bench.start(OURS, ours) as bench.ours:
            for name in given.only:  # install first, since it takes long
                with contextlib.suppress(NotInstalled, subprocess.SubprocessError):
                    bench.start(name, importlib.import_module(f"peer.{name}"))
            start = time.monotonic()
            for number, name in enumerate(given.only, 1):
                bench.peer(name, until=start + 60 * given.minutes * number / len(given.only))


if __name__ == "__main__":
    main()
