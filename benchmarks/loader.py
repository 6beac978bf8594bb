"""Measure how fast shuffled batches arrive, from warm and cold files, and in how much memory.

    warm        one .npy of 150 KB, 3 KB and 128 B rows in the page cache, exact shuffle
    cold        one .npy of 150 KB rows, not in the page cache, exact shuffle
    memory      data four times larger than ``memory``: anonymous memory over three epochs
    first       time to the first batch of 60,000 rows, reopened
    huge        the start of an epoch of 10^10 rows against one of 10^4
    compressed  .npz of many rows, deflated, larger than ``memory``: how often each is inflated
    files       one sample per file: stored and deflated .npz
    u1          volumes of different sizes, one stored .npz each, batches of 7
    u3          tokens: rows of 1,025 out of one raw file, cast and shifted in a map
    u4          pairs of small .npy files, features and labels
    u6          tables: three fields in four files each, in order and in shuffled blocks
    u8          200,000 arbitrary rows of one large array at a time

All solutions to a question read the same rows in the same order, their first batches are compared,
and the timings alternate. Batches are NumPy arrays; "today" is what people use now: torch's
DataLoader, ``np.load``, maps and threads. Prints one JSON line per measurement, with the peak of
anonymous memory while it ran, and one per target. Needs the ``test`` extra.

    python benchmarks/loader.py [QUESTION ...] [--folder DIR] [--quick]
"""

import argparse
import gc
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from measure import bar, report

import ndfeed

# A way turns an endless iterator of row numbers into an endless iterator of batches.
Rows = Iterator[np.ndarray]
Way = Callable[[Rows], Iterator[Any]]

ROWS = {
    "150KB": ((224, 224, 3), 256, 8_000),
    "3KB": ((32, 32, 3), 256, 400_000),
    "128B": ((128,), 1024, 8_000_000),
}
FLOOR = {"150KB": 0.85, "3KB": 0.80, "128B": 0.50}
PER_SAMPLE = {"150KB": 2.5, "3KB": 14, "128B": 30}
BATCHED = {"150KB": 1.5, "3KB": 2, "128B": 2}
ITSELF = "ours, the .npy itself"
rng = np.random.default_rng(0)


def anonymous() -> int:
    """Return the bytes of this process's memory that are not pages of files."""
    with open("/proc/self/status") as status:
        found = dict(line.split(":", 1) for line in status)
    return (int(found["RssAnon"].split()[0]) + int(found["RssShmem"].split()[0])) * 1024


class Peak:
    """Measures the peak of anonymous memory within a context."""

    def __enter__(self) -> "Peak":
        self.bytes = anonymous()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self.bytes = max(self.bytes, anonymous())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def order_of(n: int, batch: int, seed: int = 0) -> Rows:
    """Yield the rows that ``ndfeed.loader(..., shuffle=True)`` delivers, epoch after epoch."""
    for epoch in itertools.count():
        rows = ndfeed.Exact().begin(n, seed, epoch)
        for start in range(0, n - batch + 1, batch):
            yield rows.rows(start, start + batch)


def first_array(batch: Any) -> np.ndarray:
    """Return the first field of a batch, whatever its type."""
    if isinstance(batch, dict):
        batch = next(iter(batch.values()))
    elif isinstance(batch, tuple):
        batch = batch[0]
    return batch if isinstance(batch, list) else np.asarray(batch)


def compare(
    question: str,
    ways: dict[str, Way],
    order: Callable[[], Rows],
    expected: Any,
    *,
    per_batch: int,
    seconds: float = 1.0,
    rounds: int = 3,
    before: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Return the median rows per second of every way; ``before`` is called before each timing."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    peaks = dict.fromkeys(ways, 0)
    for turn in range(rounds):
        for name, way in ways.items():
            if before:
                before()
            batches = way(order())
            with Peak() as peak:
                if not before:
                    found = first_array(next(batches))  # this also starts threads and workers
                    if isinstance(found, list) and not isinstance(expected, list):
                        found = np.asarray(found[0])  # DataLoader returns tuples as lists
                    if turn == 0:
                        _same(found, expected, f"{question}: {name}")
                    del found
                rates[name].append(_timed(batches, seconds) * per_batch)
            peaks[name] = max(peaks[name], peak.bytes)
            del batches
    for name, found in rates.items():
        report(question=question, way=name, rows_per_s=round(statistics.median(found)),
               range=[round(min(found)), round(max(found))], peak_mb=peaks[name] >> 20)  # fmt: skip
    return {name: statistics.median(found) for name, found in rates.items()}


def _same(found: Any, expected: Any, name: str) -> None:
    if isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=name)


def _timed(batches: Iterator[Any], seconds: float) -> float:
    """Return batches per second."""
    start = now = time.perf_counter()
    for done, batch in enumerate(batches, 1):
        del batch
        now = time.perf_counter()
        if now - start > seconds:
            return done / (now - start)
    raise AssertionError("batches came to an end")


def ours(source: Any, batch: int, **options: Any) -> Way:
    """Return our loader over a dataset, epoch after epoch; it makes its own order."""

    def way(rows: Rows) -> Iterator[Any]:
        ds = source if isinstance(source, ndfeed.Dataset) else ndfeed.open(source)
        with ndfeed.loader(ds, batch, **({"shuffle": True, "drop_last": True} | options)) as loader:
            while True:
                yield from loader

    return way


def tensors(path: Path, batch: int) -> Way:
    """Return our loader with torch tensors."""

    def way(rows: Rows) -> Iterator[Any]:
        import ndfeed.torch

        ds = ndfeed.open(path)
        with ndfeed.torch.loader(ds, batch, shuffle=True, drop_last=True) as loader:
            while True:
                yield from loader

    return way


def each(function: Callable[[np.ndarray], Any]) -> Way:
    """Return a way that calls a function of row numbers, batch after batch."""
    return lambda rows: map(function, rows)


def pooled(function: Callable[[np.ndarray], Any], threads: int, ahead: int = 2) -> Way:
    """Return the same in a pool of threads, with ``ahead`` batches in flight for each."""

    def way(rows: Rows) -> Iterator[Any]:
        with ThreadPoolExecutor(threads) as pool:
            waiting = [pool.submit(function, next(rows)) for _ in range(threads * ahead)]
            while True:
                done = waiting.pop(0).result()
                waiting.append(pool.submit(function, next(rows)))
                yield done

    return way


def dataloader(dataset: Any, workers: int) -> Way:
    """Return torch's DataLoader over a map-style dataset."""

    def way(rows: Rows) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        batches = (one.tolist() for one in rows)
        options = {"num_workers": workers, "prefetch_factor": 4 if workers else None}
        if isinstance(dataset, Batched):
            options["collate_fn"] = dataset.only
        return iter(DataLoader(dataset, batch_sampler=Endless(batches), **options))

    return way


class Endless:
    """A sampler of batches of row numbers."""

    def __init__(self, batches: Iterator[list[int]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches


class Mapped:
    """The usual way: a mapped array, one row at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.array: np.ndarray | None = None

    def open(self) -> np.ndarray:
        if self.array is None:
            self.array = np.load(self.path, mmap_mode="r")
        return self.array

    def __len__(self) -> int:
        return len(self.open())

    def __getitem__(self, row: int) -> Any:
        import torch

        return torch.from_numpy(np.array(self.open()[row]))


class Batched(Mapped):
    """The same with all rows of a batch at once."""

    def __getitems__(self, rows: list[int]) -> Any:
        import torch

        return [torch.from_numpy(self.open()[rows])]

    @staticmethod
    def only(batches: list[Any]) -> Any:
        return batches[0]


def one_npy(path: Path, shape: tuple[int, ...], count: int) -> np.ndarray:
    """Write a large .npy whose rows differ, and map it."""
    data = np.lib.format.open_memmap(path, "w+", np.uint8, (count, *shape))
    data[...] = rng.integers(0, 255, (1, *shape))
    data.reshape(count, -1)[:, 0] = np.arange(count) % 251
    data.flush()
    del data  # ndfeed does not map a file that is open for writing
    return np.load(path, mmap_mode="r")


def take_ready(mapped: np.ndarray, batch: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the floor: ``np.take`` from the mapped file into memory that is ready."""
    size = mapped[0].nbytes
    records = np.asarray(mapped).reshape(-1).view(np.uint8).view(f"V{size}")
    memory = threading.local()

    def way(rows: np.ndarray) -> np.ndarray:
        if not hasattr(memory, "out"):
            memory.out = itertools.cycle(
                [np.empty((batch, *mapped.shape[1:]), mapped.dtype) for _ in range(6)]
            )
        out = next(memory.out)
        np.take(records, rows, out=out.reshape(-1).view(np.uint8).view(f"V{size}"), mode="clip")
        return out

    return way


def as_it_is(path: Path) -> Path:
    """Return the .npy itself: it is read in place."""
    return path


def itself(path: Path, read: Path, batch: int) -> dict[str, Way]:
    """Return our loader over the .npy too, where the other one reads something else."""
    return {} if read == path else {ITSELF: ours(path, batch)}


def beside(question: str, rates: dict[str, float]) -> None:
    """Check that what was made from a .npy is not slower than the .npy."""
    if ITSELF in rates:
        bar(question, "ours / the .npy itself", rates["ours"] / rates[ITSELF], 0.95)


def warm(
    folder: Path, quick: bool, name: str = "warm", source: Callable[[Path], Path] = as_it_is
) -> None:
    """Measure one .npy after another; our loader reads what ``source`` makes of it."""
    for label, (shape, batch, count) in ROWS.items():
        count //= 4 if quick else 1
        path = folder / f"{label}.npy"
        mapped = one_npy(path, shape, count)
        read = source(path)
        ready = take_ready(mapped, batch)
        ways: dict[str, Way] = {
            "floor: np.take into ready memory": each(ready),
            "floor: the same in 2 threads": pooled(ready, 2),
            "today: DataLoader, 0 workers": dataloader(Mapped(path), 0),
            "today: DataLoader, 2 workers": dataloader(Mapped(path), 2),
            "today: DataLoader, 4 workers": dataloader(Mapped(path), 4),
            "today: DataLoader with __getitems__": dataloader(Batched(path), 0),
            "ours": ours(read, batch),
            "ours, torch tensors": tensors(read, batch),
        }
        ways |= itself(path, read, batch)
        # The rows for the floor and for today's solutions are computed beforehand.
        known = list(itertools.islice(order_of(count, batch), min(count // batch, 2000)))
        rates = compare(f"{name} {label}", ways, lambda known=known: itertools.cycle(known),
                        mapped[known[0]], per_batch=batch)  # fmt: skip
        floors = [rate for name, rate in rates.items() if name.startswith("floor")]
        single = [rate for name, rate in rates.items() if "workers" in name]
        batched = rates["today: DataLoader with __getitems__"]
        for way in ("ours", "ours, torch tensors"):
            mine, question = rates[way], f"{name} {label}"
            bar(question, f"{way} / floor", mine / max(floors), FLOOR[label])
            bar(question, f"{way} / best DataLoader", mine / max(single), PER_SAMPLE[label])
            bar(question, f"{way} / DataLoader with __getitems__", mine / batched, BATCHED[label])
        beside(question, rates)
        path.unlink()


def forget(paths: list[Path]) -> None:
    """Drop files from the page cache; nobody may have them mapped."""
    gc.collect()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def cold(
    folder: Path,
    quick: bool,
    question: str = "cold 150KB",
    source: Callable[[Path], Path] = as_it_is,
) -> None:
    """Measure a .npy that is not in memory; our loader reads what ``source`` makes of it."""
    shape, batch, count = ROWS["150KB"]
    count = 8_000 if quick else 24_000
    path = folder / "cold.npy"
    expected = np.array(one_npy(path, shape, count)[:1])
    del expected
    read = source(path)
    columns = [path] if read == path else sorted(read.rglob("*.npy"))
    size = int(np.prod(shape))
    fd = os.open(path, os.O_RDONLY)
    head = os.fstat(fd).st_size - count * size

    def advised(rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), *shape), np.uint8)
        memory = memoryview(out.reshape(-1))
        for row in rows.tolist():
            os.posix_fadvise(fd, head + row * size, size, os.POSIX_FADV_WILLNEED)
        for i, row in enumerate(rows.tolist()):
            os.preadv(fd, [memory[i * size : (i + 1) * size]], head + row * size)
        return out

    def pread_each(pool: ThreadPoolExecutor) -> Callable[[np.ndarray], np.ndarray]:
        def read(rows: np.ndarray) -> np.ndarray:
            out = np.empty((len(rows), *shape), np.uint8)
            memory = memoryview(out.reshape(-1))
            list(
                pool.map(
                    lambda i: os.preadv(
                        fd, [memory[i * size : (i + 1) * size]], head + int(rows[i]) * size
                    ),
                    range(len(rows)),
                )
            )
            return out

        return read

    def mapped(rows: np.ndarray) -> np.ndarray:
        return np.array(np.load(path, mmap_mode="r")[rows])

    with ThreadPoolExecutor(16) as pool:
        ways: dict[str, Way] = {
            "today: memmap[rows]": each(mapped),
            "16 threads of pread": each(pread_each(pool)),
            "fadvise(WILLNEED), then pread": each(advised),
            "fadvise, then pread, in 2 threads": pooled(advised, 2),
            "ours": ours(read, batch),
        }
        ways |= itself(path, read, batch)
        rates = compare(question, ways, lambda: order_of(count, batch), None, per_batch=batch,
                        seconds=0.8, before=lambda: forget([path, *columns]))  # fmt: skip
    os.close(fd)
    mine, today = rates["ours"], rates["today: memmap[rows]"]
    best = max(rate for name, rate in rates.items() if "pread" in name)
    report(question=question, gb_per_s=round(mine * size / 1e9, 2))
    bar(question, "ours / memmap[rows]", mine / today, 5)
    bar(question, "ours / best pread or fadvise loop", mine / best, 0.8)
    beside(question, rates)
    path.unlink()


def memory(folder: Path, quick: bool) -> None:
    budget = 128 << 20 if quick else 512 << 20
    shape, batch, _ = ROWS["150KB"]
    path = folder / "memory.npy"
    one_npy(path, shape, 4 * budget // int(np.prod(shape)))
    loader = ndfeed.loader(ndfeed.open(path), batch, shuffle=True, memory=budget)
    before = anonymous()
    peaks = []
    for _ in range(3):
        with Peak() as peak:
            for _batch in loader:
                pass
        peaks.append(peak.bytes - before)
    report(question="memory", budget_mb=budget >> 20, peaks_mb=[one >> 20 for one in peaks])
    bar("memory", "(memory + 150 MB) / peak", (budget + (150 << 20)) / max(peaks), 1)
    path.unlink()


FIRST = """
import sys, time
import numpy, ndfeed
began = time.perf_counter()
loader = ndfeed.loader(ndfeed.open(sys.argv[1]), 256, shuffle=True)
next(iter(loader))
print(time.perf_counter() - began)
"""


def first(folder: Path, quick: bool) -> None:
    path = folder / "first.npy"
    one_npy(path, (32, 32, 3), 60_000)
    taken = [_first(path) for _ in range(5)][1:]
    report(question="first", milliseconds=[round(1000 * one, 1) for one in taken])
    bar("first", "50 ms / time to the first batch", 0.05 / statistics.median(taken), 1)
    path.unlink()


def _first(path: Path) -> float:
    command = [sys.executable, "-c", FIRST, str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def huge(folder: Path, quick: bool) -> None:
    taken: dict[int, float] = {}
    for n in (10**4, 10**10):
        path = folder / f"{n}.bin"
        with open(path, "wb") as file:
            file.truncate(n)  # a hole: it takes no space on disk
        loader = ndfeed.loader(ndfeed.open(path, dtype="uint8", shape=()), 256, shuffle=True)
        starts = []
        for _ in range(31):
            loader.close()
            loader.epoch = 0  # the same rows, so that all rounds but the first find them in memory
            began = time.perf_counter()
            batches = iter(loader)
            next(batches)
            starts.append(time.perf_counter() - began)
        taken[n] = statistics.median(starts)
        report(question="huge", rows=n, milliseconds=round(1000 * taken[n], 3))
        loader.close()
        path.unlink()
    bar("huge", "start at 10^4 / start at 10^10", taken[10**4] / taken[10**10], 0.8)


def in_turn(paths: list[Path], rows: int, threads: int) -> Way:
    """Return files in turn, rows shuffled within each, as an iterable dataset does."""

    def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
        with np.load(path) as archive:
            return archive["image"], archive["label"]

    def way(_: Rows) -> Iterator[Any]:
        with ThreadPoolExecutor(threads) as pool:
            while True:
                for some in np.array_split(rng.permutation(len(paths)), len(paths) // 4):
                    for image, label in pool.map(load, [paths[i] for i in some]):
                        mixed = rng.permutation(rows)
                        for at in range(0, rows, 128):
                            part = mixed[at : at + 128]
                            yield {"image": image[part], "label": label[part]}

    return way


def compressed(folder: Path, quick: bool) -> None:
    """Measure deflated files of many rows each, inflated four times larger than memory."""
    files, rows = (24, 256) if quick else (64, 512)
    place = folder / "compressed"
    place.mkdir()
    images = rng.integers(0, 16, (rows, 64, 64, 3)).astype(np.uint8)
    for i in range(files):
        images.reshape(rows, -1)[:, 0] = np.arange(rows) % 251
        np.savez_compressed(place / f"{i:03d}.npz", image=images, label=np.arange(rows) + i * rows)
    ds = ndfeed.open(place, sample="row")
    budget = ds.nbytes // 4
    paths = sorted(place.iterdir())

    loader = ndfeed.loader(ds, 128, shuffle=True, memory=budget)
    seen = np.concatenate([batch["label"] for batch in loader])
    np.testing.assert_array_equal(np.sort(seen), np.arange(files * rows))
    found = loader.report()
    report(question="compressed", members=2 * files, inflated=found.streams,
           memory_mb=budget >> 20, order=str(loader.order),
           mixing=round(loader.order.mixing.ratio, 3))  # fmt: skip
    bar("compressed", "members / times inflated", 2 * files / found.streams, 1)
    loader.close()
    ways = {
        "today: np.load, files in turn": in_turn(paths, rows, 1),
        "today: the same, 2 threads": in_turn(paths, rows, 2),
        "ours": ours(ds, 128, memory=budget),
    }
    rates = compare("compressed", ways, lambda: iter(()), None, per_batch=128, before=lambda: None)
    best = max(rate for name, rate in rates.items() if name.startswith("today"))
    bar("compressed", "ours / best of today", rates["ours"] / best, 1.5)


def files(folder: Path, quick: bool) -> None:
    """Measure one sample per file: images with a label."""
    count = 1_000 if quick else 4_000
    for kind, save, wanted in (("stored", np.savez, 10), ("deflated", np.savez_compressed, 5)):
        place = folder / kind
        place.mkdir()
        # Deflates to about half the size, as uint8 images do at best.
        image = (rng.integers(0, 255, (128, 128, 3)) // 32 * 8).astype(np.uint8)
        for i in range(count):
            image[0, 0, 0] = i % 251
            save(place / f"{i:05d}.npz", image=image, label=np.int64(i))
        paths = sorted(place.iterdir())
        sample = Npz(paths)
        ways: dict[str, Way] = {
            "today: np.load": each(lambda rows, s=sample: np.stack([s[i] for i in rows.tolist()])),
            "today: np.load in 2 threads": pooled(
                lambda rows, s=sample: np.stack([s[i] for i in rows.tolist()]), 2
            ),
            "today: DataLoader, 2 workers": dataloader(sample, 2),
            "today: DataLoader, 4 workers": dataloader(sample, 4),
            "ours": ours(ndfeed.open(place), 64),
        }
        known = list(itertools.islice(order_of(count, 64), count // 64))
        rates = compare(f"files {kind}", ways, lambda known=known: itertools.cycle(known),
                        sample_batch(sample, known[0]), per_batch=64)  # fmt: skip
        today = [rate for name, rate in rates.items() if name.startswith("today")]
        against = rates["today: np.load"] if kind == "stored" else max(today)
        bar(f"files {kind}", "ours / today", rates["ours"] / against, wanted)


class Npz:
    """One image and one label per .npz."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> np.ndarray:
        with np.load(self.paths[i]) as archive:
            archive["label"]
            return archive["image"]


def sample_batch(dataset: Any, rows: np.ndarray) -> np.ndarray:
    return np.stack([np.asarray(dataset[i]) for i in rows.tolist()])


def u1(folder: Path, quick: bool) -> None:
    """Measure MLPerf Storage unet3d: volumes of different sizes, one stored .npz each."""
    place = folder / "u1"
    place.mkdir()
    count, mean = (16, 8 << 20) if quick else (64, 32 << 20)
    for i in range(count):
        side = int(np.sqrt(max(rng.normal(mean, mean * 0.46), mean / 8)))
        volume = np.full((side, side, 1), i % 251, np.uint8)
        np.savez(place / f"{i:03d}.npz", x=volume, y=np.array([i]))
    paths = sorted(place.iterdir())

    def load(i: int) -> np.ndarray:
        with np.load(paths[i]) as archive:
            archive["y"]
            return archive["x"]

    def batch(rows: np.ndarray) -> list[np.ndarray]:
        return [load(i) for i in rows.tolist()]

    ways: dict[str, Way] = {
        "today: np.load": each(batch),
        "today: np.load in 4 threads": pooled(batch, 4, 1),
        "ours": ours(ndfeed.open(place, sample="file"), 7),
    }
    known = list(itertools.islice(order_of(count, 7), count // 7))
    rates = compare("u1", ways, lambda: itertools.cycle(known), batch(known[0]), per_batch=7)
    best = max(rate for name, rate in rates.items() if name.startswith("today"))
    bar("u1", "ours / best of today", rates["ours"] / best, 1.5)


def u3(folder: Path, quick: bool) -> None:
    """Measure nanoGPT: rows of tokens from one raw file; x and y, shifted by one, as int64."""
    for batch, length in ((12, 1024), (512, 2048)):
        path = folder / f"{length}.bin"
        rows = (100 if quick else 500) * 10**6 // (length + 1)
        rng.integers(0, 50_000, rows * (length + 1)).astype(np.uint16).tofile(path)
        data = np.memmap(path, np.uint16, "r")

        def today(starts: np.ndarray, data: Any = data, length: int = length) -> Any:
            x = np.stack([data[i : i + length].astype(np.int64) for i in starts * (length + 1)])
            y = np.stack(
                [data[i + 1 : i + 1 + length].astype(np.int64) for i in starts * (length + 1)]
            )
            return x, y

        def shift(one: dict[str, Any]) -> dict[str, Any]:
            whole = one["data"].astype(np.int64)
            return {"x": whole[:, :-1], "y": whole[:, 1:]}

        ds = ndfeed.open(path, dtype="uint16", shape=(length + 1,)).map(shift)
        known = list(itertools.islice(order_of(rows, batch), min(rows // batch, 500)))
        rates = compare(f"u3 {batch}x{length}",
                        {"today: a loop over the map": each(today), "ours": ours(ds, batch)},
                        lambda known=known: itertools.cycle(known), today(known[0])[0],
                        per_batch=batch)  # fmt: skip
        ratio = rates["ours"] / rates["today: a loop over the map"]
        bar(f"u3 {batch}x{length}", "ours / a loop over the map", ratio, 2)
        del data


class Pairs:
    """Two small .npy files per sample."""

    def __init__(self, features: list[Path], labels: list[Path]) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        return np.load(self.features[i]), np.load(self.labels[i])


def u4(folder: Path, quick: bool) -> None:
    """Measure cached latents: features/i.npy and labels/i.npy."""
    count = 5_000 if quick else 100_000
    for name in ("features", "labels"):
        (folder / name).mkdir()
    latent = rng.normal(size=(1, 4, 32, 32)).astype(np.float32)
    for i in range(count):
        latent[0, 0, 0, 0] = i
        np.save(folder / "features" / f"{i}.npy", latent)
        np.save(folder / "labels" / f"{i}.npy", np.array([i]))
    sources = {name: sorted((folder / name).iterdir()) for name in ("features", "labels")}
    pairs = Pairs(sources["features"], sources["labels"])
    ds = ndfeed.open(
        {name: str(folder / name) for name in sources}, sample=dict.fromkeys(sources, "file")
    )
    # People sort by name, which puts 10 before 2; ndfeed sorts by number.
    names = [Path(path).name for path in ds.files[:count]]
    pairs = Pairs(
        [folder / "features" / one for one in names], [folder / "labels" / one for one in names]
    )

    def batch(rows: np.ndarray) -> np.ndarray:
        return np.stack([pairs[i][0] for i in rows.tolist()])

    ways: dict[str, Way] = {
        "today: two np.load": each(batch),
        "today: DataLoader, 4 workers": dataloader(pairs, 4),
        "ours": ours(ds, 256),
    }
    known = list(itertools.islice(order_of(count, 256), count // 256))
    rates = compare("u4", ways, lambda: itertools.cycle(known), batch(known[0]), per_batch=256)
    report(question="u4", files_per_s=round(2 * rates["ours"]))
    best = max(rate for name, rate in rates.items() if name.startswith("today"))
    bar("u4", "ours / best of today", rates["ours"] / best, 3)


Maps = list[list[np.ndarray]]  # one map per field and day


def contiguous(maps: Maps, batch: int) -> Way:
    """Return slices of every field, day by day."""

    def way(_: Rows) -> Iterator[Any]:
        rows = len(maps[0][0])
        for day in itertools.cycle(range(len(maps[0]))):
            for at in range(0, rows - batch + 1, batch):
                yield tuple(np.array(field[day][at : at + batch]) for field in maps)

    return way


def mixed(maps: Maps, batch: int) -> Way:
    """Return blocks of neighbouring rows, each from a random position and shuffled within."""

    def way(_: Rows) -> Iterator[Any]:
        rows = len(maps[0][0])
        while True:
            for block in rng.permutation(len(maps[0]) * rows // batch):
                day, at = divmod(int(block) * batch, rows)
                inner = rng.permutation(min(batch, rows - at)) + at
                yield tuple(field[day][inner] for field in maps)

    return way


def u6(folder: Path, quick: bool) -> None:
    """Measure Criteo: dense, sparse and labels, four files each."""
    rows = 500_000 if quick else 4_000_000
    kinds = {"dense": (np.float32, 13), "sparse": (np.int32, 26), "labels": (np.int32, 1)}
    for name, (dtype, width) in kinds.items():
        (folder / name).mkdir()
        for day in range(4):
            data = np.arange(rows * width, dtype=np.int64).reshape(rows, width) % 10_007 + day
            np.save(folder / name / f"day_{day}.npy", data.astype(dtype))
    ds = ndfeed.open(
        {name: str(folder / name) for name in kinds}, sample=dict.fromkeys(kinds, "row")
    )
    maps = [[np.load(folder / n / f"day_{d}.npy", mmap_mode="r") for d in range(4)] for n in kinds]
    for batch in (8_192, 65_536):
        expected = np.array(maps[0][0][:batch])
        rates = compare(
            f"u6 {batch} in order",
            {"today: slices of maps": contiguous(maps, batch),
             "ours": ours(ds, batch, shuffle=False)},
            lambda: iter(()), expected, per_batch=batch)  # fmt: skip
        ratio = rates["ours"] / rates["today: slices of maps"]
        report(question=f"u6 {batch} in order", gb_per_s=round(rates["ours"] * 160 / 1e9, 2))
        bar(f"u6 {batch} in order", "ours / slices of maps", ratio, 1)
        blocks = ndfeed.Blocks(rows=4096, window=32)
        rates = compare(
            f"u6 {batch} blocks",
            {"today: a shuffled block a batch": mixed(maps, batch),
             "ours: 32 blocks mixed": ours(ds, batch, shuffle=blocks),
             "ours: exact": ours(ds, batch)},
            lambda: iter(()), None, per_batch=batch, before=lambda: None)  # fmt: skip
        ratio = rates["ours: 32 blocks mixed"] / rates["today: a shuffled block a batch"]
        bar(f"u6 {batch} blocks", "ours, 32 blocks mixed / one block a batch", ratio, 1)


def u8(folder: Path, quick: bool) -> None:
    """Measure node features: arbitrary rows of a large array, many at a time."""
    count, batch = (200_000, 20_000) if quick else (2_000_000, 200_000)
    path = folder / "node_feat.npy"
    data = np.lib.format.open_memmap(path, "w+", np.float16, (count, 1024))
    data[...] = 1
    data[:, 0] = np.arange(count) % 2048
    del data
    mapped = np.load(path, mmap_mode="r")
    ready = take_ready(mapped, batch)
    ways: dict[str, Way] = {
        "floor: np.take into ready memory": each(ready),
        "floor: the same in 2 threads": pooled(ready, 2, 1),
        "today: memmap[rows]": each(mapped.__getitem__),
        "ours": ours(path, batch, memory="4GB"),
    }
    known = list(itertools.islice(order_of(count, batch), count // batch))
    rates = compare("u8", ways, lambda: itertools.cycle(known), mapped[known[0]], per_batch=batch)
    bar("u8", "ours / memmap[rows]", rates["ours"] / rates["today: memmap[rows]"], 1.5)
    floors = [rate for name, rate in rates.items() if name.startswith("floor")]
    bar("u8", "ours / floor", rates["ours"] / max(floors), 0.8)


QUESTIONS = {
    function.__name__: function
    for function in (warm, cold, memory, first, huge, compressed, files, u1, u3, u4, u6, u8)
}


def main() -> None:
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=", ".join(QUESTIONS))
    parser.add_argument("--folder", type=Path, help="where to make the files (default: temporary)")
    parser.add_argument("--quick", action="store_true", help="smaller data")
    given = parser.parse_args()
    unknown = set(given.questions) - set(QUESTIONS)
    if unknown:
        parser.error(
            f"no question {', '.join(sorted(unknown))}; choose from {', '.join(QUESTIONS)}"
        )
    wanted = given.questions or list(QUESTIONS)
    if len(wanted) > 1:
        # Each runs in its own process: memory left over by one is not counted for the next.
        for name in wanted:
            command = [sys.executable, __file__, name]
            command += ["--folder", str(given.folder)] if given.folder else []
            subprocess.run(command + ["--quick"] * given.quick, check=True)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        QUESTIONS[wanted[0]](Path(folder), given.quick)


if __name__ == "__main__":
    main()
