"""Run one peer: requests are JSON lines on stdin, answers are JSON lines on stdout.

    python -m peer.serve NAME

Everything the peer prints goes to stderr. An error is an answer, too: its last line.
"""

import importlib
import importlib.metadata
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

READY = 10  # batches that four workers may have prefetched, two each
FEWEST = 8  # batches that are timed at least


class Server:
    """The requests that a peer answers."""

    def __init__(self, name: str) -> None:
        self.peer = importlib.import_module(f"peer.{name}")
        self.running: dict[str, Iterator[Any]] = {}

    def versions(self) -> dict[str, Any]:
        """Return the versions of the peer's packages, and of the torch and numpy it runs with."""
        names = [package.split(">")[0].split("=")[0] for package in self.peer.PACKAGES]
        return {name: importlib.metadata.version(name) for name in [*names, "torch", "numpy"]}

    def convert(self, source: str, target: str) -> dict[str, Any]:
        """Convert the data; return the seconds this takes and the bytes on disk."""
        start = time.perf_counter()
        self.peer.convert(Path(source), Path(target))
        return {"seconds": time.perf_counter() - start, "bytes": disk(Path(target))}

    def check(self, source: str, target: str, batch: int, setting: dict) -> dict[str, Any]:
        """Check that an epoch has every row once, identical to the source, and not in order."""
        rows = np.load(source, mmap_mode="r")
        epoch = self.peer.batches(Path(target), batch, **setting)
        seen = [true_rows(found, rows) for found in epoch]
        ids = np.concatenate(seen)
        counts = np.bincount(ids, minlength=len(rows))
        if counts.min() != 1 or counts.max() != 1:
            lost, twice = np.count_nonzero(counts == 0), np.count_nonzero(counts > 1)
            raise ValueError(f"an epoch of {len(rows)} rows lost {lost} and repeated {twice}")
        if len(rows) > 1 and np.all(np.diff(ids) > 0):
            raise ValueError("rows came in order")
        return {"rows": len(ids), "batches": len(seen)}

    def time(
        self, source: str, target: str, batch: int, setting: dict, seconds: float
    ) -> dict[str, Any]:
        """Return rows per second, epoch after epoch.

        Batches continue where they were left: a loader interrupted in the middle of an epoch may
        disturb the next. The first is checked; prefetched ones are taken before the clock starts.
        """
        if target not in self.running:
            self.running[target] = again(self.peer.batches(Path(target), batch, **setting))
            true_rows(next(self.running[target]), np.load(source, mmap_mode="r"))
        batches = self.running[target]
        for _ in range(READY):
            next(batches)
        rows, start = 0, time.perf_counter()
        for done, found in enumerate(batches, 1):
            rows += len(found)
            del found
            now = time.perf_counter()
            if now - start > seconds and done >= FEWEST:
                return {"rows_per_s": rows / (now - start)}
        raise ValueError("batches came to an end")


def again(loader: Any) -> Iterator[Any]:
    """Yield batches epoch after epoch."""
    while True:
        yield from loader


def true_rows(found: Any, rows: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows in a batch, which are in their first eight bytes."""
    import torch

    if not isinstance(found, torch.Tensor) or found.dtype != torch.uint8:
        raise TypeError(f"a batch must be a tensor of bytes, got {type(found).__name__}")
    batch = np.ascontiguousarray(found.numpy())
    ids = batch.reshape(len(batch), -1)[:, :8].copy().view("<i8").reshape(-1)
    if ids.min() < 0 or ids.max() >= len(rows):
        raise ValueError("a batch has rows that are not in the source")
    if not np.array_equal(batch, rows[ids]):
        raise ValueError("rows of a batch differ from the source")
    return ids


def disk(path: Path) -> int:
    """Return the bytes that a folder's files take on disk."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.lstat().st_blocks * 512 for one in files)


def main(name: str) -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    warnings.filterwarnings("ignore")
    server = Server(name)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(server, request.pop("do"))(**request)
        except Exception as error:  # noqa: BLE001 - whatever a peer raises is its answer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # A peer's threads or workers must not keep the process alive.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
