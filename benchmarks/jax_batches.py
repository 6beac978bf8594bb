"""Measure how fast shuffled batches get from files into JAX arrays on the CPU.

The data is one .npy with rows of 150 KB, 3 KB or 128 B in the page cache. Compared are

    ready    ``jax.device_put`` of NumPy batches that are ready in memory, in a loop. No file is
             read: this is the cost of putting batches on a device
    today    ``jax.device_put(mapped[rows])``, batch by batch
    Grain    ``MapDataset.source(...).shuffle().batch()`` in its threads, over the mapped file as
             people write it and over ``ndfeed.jax.source``; with no threads, and with 2, 4 and 16
    ours     ``ndfeed.jax.loader``, alone and on a mesh of 8 simulated devices

Ready batches lie where NumPy allocates them, and in a second measurement where JAX can use them
without a copy: the latter moves nothing at all. Every batch is waited for. The first batch of each
measurement is compared with NumPy's before anything is timed, and the timings alternate. Prints one
JSON line per measurement and per target. Needs the ``test`` extra.

    python benchmarks/jax_batches.py [QUESTION ...] [--folder DIR] [--quick]
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import grain
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from measure import bar, report

import ndfeed
import ndfeed.jax

# Shape of a row, rows per batch, rows in the file.
ROWS = {
    "150KB": ((224, 224, 3), 256, 8_000),
    "3KB": ((32, 32, 3), 256, 400_000),
    "128B": ((128,), 1024, 8_000_000),
}
GRAIN = {"150KB": 1, "3KB": 10, "128B": 10}
PLAIN = 0.8
READY = 16  # batches, used in turn

Way = Callable[[], Iterator[Any]]


def one_npy(path: Path, shape: tuple[int, ...], count: int) -> np.ndarray:
    """Write a large .npy whose rows contain their row number, and map it."""
    data = np.lib.format.open_memmap(path, "w+", np.uint8, (count, *shape))
    data[...] = np.random.default_rng(0).integers(0, 255, (1, *shape))
    number = np.arange(count, dtype=np.uint32).view(np.uint8).reshape(count, 4)
    data.reshape(count, -1)[:, :4] = number
    del data  # ndfeed does not map a file that is open for writing
    return np.load(path, mmap_mode="r")


def numbers(batch: Any) -> np.ndarray:
    """Return the numbers of the rows in a batch."""
    found = np.ascontiguousarray(np.asarray(batch).reshape(len(batch), -1)[:, :4])
    return found.view(np.uint32)[:, 0]


def order(n: int, batch: int) -> Iterator[np.ndarray]:
    """Yield the rows that ndfeed's loader delivers."""
    for epoch in itertools.count():
        rows = ndfeed.Exact().begin(n, 0, epoch)
        for start in range(0, n - batch + 1, batch):
            yield rows.rows(start, start + batch)


def ours(path: Path, batch: int, sharding: Any = None) -> Way:
    def way() -> Iterator[Any]:
        loader = ndfeed.jax.loader(
            ndfeed.open(path), batch, shuffle=True, drop_last=True, sharding=sharding,
            fields=("data",),
        )  # fmt: skip
        with loader:
            while True:
                for (one,) in loader:
                    yield one

    return way


def ready(mapped: np.ndarray, batch: int, aligned: bool) -> Way:
    def way() -> Iterator[Any]:
        rows = list(itertools.islice(order(len(mapped), batch), READY))
        batches = [placed(mapped[one], aligned) for one in rows]
        for one in itertools.cycle(batches):
            yield jax.device_put(one)

    return way


def placed(batch: np.ndarray, aligned: bool) -> np.ndarray:
    """Copy a batch to where JAX uses it without a copy, or to 16 bytes after, as malloc does."""
    room = np.empty(batch.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + (0 if aligned else 16)
    made = room[start : start + batch.nbytes].reshape(batch.shape)
    made[...] = batch
    return made


def today(mapped: np.ndarray, batch: int) -> Way:
    def way() -> Iterator[Any]:
        for rows in order(len(mapped), batch):
            yield jax.device_put(mapped[rows])

    return way


class Mapped:
    """The usual way: a mapped array, one row at a time."""

    def __init__(self, mapped: np.ndarray) -> None:
        self.mapped = mapped

    def __len__(self) -> int:
        return len(self.mapped)

    def __getitem__(self, row: int) -> np.ndarray:
        return np.array(self.mapped[row])


def grained(source: Any, batch: int, threads: int) -> Way:
    def way() -> Iterator[Any]:
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads * 16, 1))
        ds = grain.MapDataset.source(source).shuffle(seed=0).repeat()
        ds = ds.batch(batch, drop_remainder=True).to_iter_dataset(options)
        for one in ds:
            yield jax.device_put(one["data"] if isinstance(one, dict) else one)

    return way


def check(question: str, ways: dict[str, Way], mapped: np.ndarray, batch: int) -> None:
    """Check that every batch consists of rows of the file, and ours of those in the order."""
    expected = next(order(len(mapped), batch))
    for name, way in ways.items():
        batches = way()
        found = np.asarray(next(batches))
        rows = expected if "Grain" not in name else numbers(found)
        assert len(np.unique(rows)) == batch
        np.testing.assert_array_equal(found, mapped[rows], err_msg=f"{question}: {name}")
        batches.close()


def timed(batches: Iterator[Any], seconds: float) -> float:
    """Return batches per second."""
    jax.block_until_ready(next(batches))  # this also starts the threads
    start = time.perf_counter()
    for done, batch in enumerate(batches, 1):
        jax.block_until_ready(batch)
        now = time.perf_counter()
        if now - start > seconds:
            return done / (now - start)
    raise AssertionError("batches came to an end")


def question(label: str, folder: Path, quick: bool) -> None:
    shape, batch, count = ROWS[label]
    count //= 8 if quick else 1
    path = folder / f"{label}.npy"
    mapped = one_npy(path, shape, count)
    sharding = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
    source = ndfeed.jax.source(ndfeed.open(path))
    ways: dict[str, Way] = {
        "ready: device_put": ready(mapped, batch, aligned=False),
        "ready: device_put, used as it is": ready(mapped, batch, aligned=True),
        "today: device_put of mapped[rows]": today(mapped, batch),
        "ours": ours(path, batch),
        "ours, 8 devices": ours(path, batch, sharding),
    }
    for threads in (0, 2, 4, 16):
        ways[f"Grain, {threads} threads"] = grained(Mapped(mapped), batch, threads)
    ways["Grain over ndfeed.jax.source, 2 threads"] = grained(source, batch, 2)
    check(label, ways, mapped, batch)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for name, way in ways.items():
            batches = way()
            rates[name].append(timed(batches, 0.5 if quick else 1) * batch)
            batches.close()
    for name, found in rates.items():
        report(question=label, way=name, rows_per_s=round(statistics.median(found)),
               range=[round(min(found)), round(max(found))], jax=jax.__version__,
               grain=grain.__version__)  # fmt: skip
    middle = {name: statistics.median(found) for name, found in rates.items()}
    best = max(rate for name, rate in middle.items() if name.startswith("Grain,"))
    bar(label, "ours / best Grain", middle["ours"] / best, GRAIN[label])
    bar(label, "ours / device_put of ready batches", middle["ours"] / middle["ready: device_put"],
        PLAIN)  # fmt: skip
    path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=", ".join(ROWS))
    parser.add_argument("--folder", type=Path, help="where to make the files (default: temporary)")
    parser.add_argument("--quick", action="store_true", help="smaller data")
    given = parser.parse_args()
    unknown = set(given.questions) - set(ROWS)
    if unknown:
        parser.error(f"no question {', '.join(sorted(unknown))}; choose from {', '.join(ROWS)}")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for label in given.questions or ROWS:
            question(label, Path(folder), given.quick)


if __name__ == "__main__":
    main()
