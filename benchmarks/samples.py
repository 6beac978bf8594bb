"""What do samples cost that are no rows: windows of tokens and of time series, crops of volumes?

    tokens      windows of 1,025 uint16 out of one raw file of 2 GB, shuffled, batches of 256:
                a loader, and ``ds.read`` of the same rows. Floor: ``sliding_window_view`` indexed
                with the rows and copied into ready memory, in this thread and in two
    series      windows of 200 steps of 17 floats over 1,000 .npy files, batches of 64
    volumes     crops of 96 x 96 x 96 out of raw .npy volumes of 256 x 256 x 256 float32, batches
                of 4, from the page cache; and how many bytes are read of files that are not in it
    compressed  the same volumes in compressed .npz, four crops of each

Compared with what people write: nanoGPT's ``get_batch``, a loop or a ``DataLoader`` over single
samples, ``np.load(mmap_mode="r")[box]``, and ``np.load`` of the whole volume for every crop. A
``DataLoader`` has the best of 0, 2 and 4 workers. Results are compared before anything is timed;
ways take turns. Prints one JSON line per measurement and per target.

    python benchmarks/samples.py [QUESTION ...] [--folder DIR] [--quick]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

sys.path.insert(0, str(Path(__file__).parent))
from measure import Threads, bar, compare, report

import ndfeed
import ndfeed.torch

ROUNDS = 5
WORKERS = 0, 2, 4
LENGTH, BATCH = 1025, 256
STEPS, WIDTH, FILES = 200, 17, 1_000
SIDE, BOX = 256, 96


def rate(make, rows, seconds=4.0):
    """Rows per second of an endless iterator of batches, after the first."""
    batches = make()
    next(batches)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        next(batches)
        count += 1
    return count * rows / (time.perf_counter() - began)


def forever(loader):
    """The batches of one epoch after the other."""
    while True:
        yield from loader


def alternate(question, ways, rows, rounds, unit):
    """Median rates of several ways in turn; ``ways`` make iterators of batches."""
    found = {name: [] for name in ways}
    for _ in range(rounds):
        for name, make in ways.items():
            found[name].append(rate(make, rows))
    for name, each in found.items():
        report(question=question, way=name, per_s=round(statistics.median(each), 1), unit=unit,
               all=[round(one, 1) for one in each])  # fmt: skip
    return {name: statistics.median(each) for name, each in found.items()}


def best(rates, start):
    """The highest rate of the ways whose names begin so."""
    return max(one for name, one in rates.items() if name.startswith(start))


def workers_of(name, dataset, batch):
    """A DataLoader with each number of workers."""

    def make(count):
        kept = count > 0
        return forever(
            torch.utils.data.DataLoader(
                dataset, batch, shuffle=True, num_workers=count, persistent_workers=kept
            )
        )

    return {f"{name}, {count} workers": lambda count=count: make(count) for count in WORKERS}


def loader_of(ds, batch, **options):
    """Our loader, epoch after epoch."""
    return lambda: forever(ndfeed.torch.loader(ds, batch, shuffle=True, **options))


def tokens(folder, quick):
    """Windows of one long array."""
    path = f"{folder}/train.bin"
    count = 10**7 if quick else 10**9
    rng = np.random.default_rng(0)
    with open(path, "wb") as file:
        for _ in range(0, count, 10**7):
            file.write(rng.integers(0, 50_257, 10**7, np.uint16).tobytes())
    ds = ndfeed.open(path, dtype="uint16", shape=()).windows(LENGTH)
    data = np.memmap(path, np.uint16, "r")
    windows = sliding_window_view(data, LENGTH)
    ready = np.empty((BATCH, LENGTH), np.uint16)

    def floor(rows):
        ready[...] = windows[rows]
        return ready

    def floor_in_threads(rows):
        return windows[rows]

    def get_batch(rows):
        """As nanoGPT has it, for given rows: it maps the file anew and stacks both halves."""
        held = np.memmap(path, np.uint16, "r")
        x = torch.stack([torch.from_numpy(held[i : i + 1024].astype(np.int64)) for i in rows])
        y = torch.stack([torch.from_numpy(held[i + 1 : i + 1025].astype(np.int64)) for i in rows])
        return np.concatenate([x[:, :1].numpy(), y.numpy()], axis=1)

    batches = [rng.integers(0, len(ds), BATCH) for _ in range(200)]
    ways = {
        "sliding_window_view into ready memory": floor,
        "the same in two threads": Threads(floor_in_threads),
        "ndfeed.read": lambda rows: ds.read(rows),
        "ndfeed.read in two threads": Threads(lambda rows: ds.read(rows)),
        "nanoGPT's get_batch": get_batch,
    }
    rates = compare("tokens", ways, batches, windows[batches[0]], unit="windows", seconds=0.5)
    loaded = alternate("tokens", {"ndfeed loader": loader_of(ds, BATCH)}, BATCH, ROUNDS, "windows")
    alone = rates["sliding_window_view into ready memory"]
    bar("tokens", "loader / sliding_window_view", loaded["ndfeed loader"] / alone, 0.8)
    bar("tokens", "loader / get_batch", loaded["ndfeed loader"] / rates["nanoGPT's get_batch"], 5)


class Series(torch.utils.data.Dataset):
    """What people write: one window at a time out of a list of maps."""

    def __init__(self, paths):
        self.arrays = [np.load(path, mmap_mode="r") for path in paths]
        counts = [len(one) - STEPS + 1 for one in self.arrays]
        self.ends = np.cumsum(counts)

    def __len__(self):
        return int(self.ends[-1])

    def __getitem__(self, i):
        which = int(np.searchsorted(self.ends, i, side="right"))
        at = i - (int(self.ends[which - 1]) if which else 0)
        return np.array(self.arrays[which][at : at + STEPS])


def series(folder, quick):
    """Windows of many files."""
    rng = np.random.default_rng(0)
    paths = [f"{folder}/{i:04}.npy" for i in range(100 if quick else FILES)]
    for path in paths:
        length = int(rng.integers(500, 1500))
        np.save(path, rng.normal(size=(length, WIDTH)).astype(np.float32))
    ds = ndfeed.open(paths, sample="row").windows(STEPS)
    theirs = Series(paths)
    assert len(ds) == len(theirs)
    batches = [rng.integers(0, len(ds), 64) for _ in range(200)]

    def opened(i):
        which = int(np.searchsorted(theirs.ends, i, side="right"))
        at = i - (int(theirs.ends[which - 1]) if which else 0)
        return np.load(paths[which], mmap_mode="r")[at : at + STEPS]

    ways = {
        "np.load(mmap_mode) per sample": lambda rows: np.stack([opened(i) for i in rows.tolist()]),
        "a loop over maps kept open": lambda rows: np.stack([theirs[i] for i in rows.tolist()]),
        "ndfeed.read": lambda rows: ds.read(rows),
    }
    first = np.stack([theirs[i] for i in batches[0].tolist()])
    rates = compare("series", ways, batches, first, unit="windows", seconds=0.5)
    ways = {"ndfeed loader": loader_of(ds, 64), **workers_of("DataLoader", theirs, 64)}
    loaded = alternate("series", ways, 64, ROUNDS, "windows")
    ours = loaded["ndfeed loader"]
    bar("series", "loader / np.load(mmap_mode) per sample",
        ours / rates["np.load(mmap_mode) per sample"], 20)  # fmt: skip
    bar("series", "loader / a loop over maps kept open",
        ours / rates["a loop over maps kept open"], 20)  # fmt: skip
    bar("series", "loader / best DataLoader over maps kept open",
        ours / best(loaded, "DataLoader"), 20)  # fmt: skip


class Volumes(torch.utils.data.Dataset):
    """What people write: a random box of a mapped or a loaded volume."""

    def __init__(self, paths, each, mapped):
        self.paths, self.each, self.mapped = paths, each, mapped

    def __len__(self):
        return len(self.paths) * self.each

    def __getitem__(self, i):
        corner = np.random.randint(0, SIDE - BOX + 1, 3)
        box = tuple(slice(a, a + BOX) for a in corner)
        path = self.paths[i // self.each]
        if self.mapped:
            return torch.from_numpy(np.array(np.load(path, mmap_mode="r")[box]))
        with np.load(path) as held:
            return torch.from_numpy(held["image"][box].copy())


def write_volumes(folder, count, save):
    """Smooth volumes with some noise, as scans are: they compress by about a third."""
    rng = np.random.default_rng(0)
    smooth = np.add.outer(np.add.outer(np.arange(SIDE), np.arange(SIDE)), np.arange(SIDE))
    paths = []
    for i in range(count):
        noise = rng.integers(0, 16, (SIDE, SIDE, SIDE), dtype=np.int32)
        paths.append(save(f"{folder}/{i:02}", (smooth + i + noise).astype(np.float32)))
    return paths


def check_crops(ds, read):
    """Compare some crops with what slicing gives."""
    for crop in (ds[i] for i in range(0, len(ds), max(len(ds) // 8, 1))):
        box = tuple(slice(a, a + BOX) for a in crop["corner"])
        np.testing.assert_array_equal(crop["image"], read(crop["case"])[box])


def volumes(folder, quick):
    """Crops of arrays that are stored as they are."""

    def save(stem, image):
        np.save(f"{stem}.npy", image)
        return f"{stem}.npy"

    paths = write_volumes(folder, 4 if quick else 24, save)
    measure_cold(paths)
    base = ndfeed.open(paths, sample="file").rename({"data": "image"})
    sizes = {"image": (BOX, BOX, BOX)}
    check_crops(base.crops(sizes, each=2, place=True), lambda case: np.load(paths[case]))
    ds = base.crops(sizes, each=8)
    ways = {
        "ndfeed loader": loader_of(ds, 4),
        **workers_of("np.load(mmap_mode)[box]", Volumes(paths, 8, True), 4),
    }
    found = alternate("volumes", ways, 4, ROUNDS, "crops")
    bar("volumes", "loader / best np.load(mmap_mode)[box]",
        found["ndfeed loader"] / best(found, "np.load"), 2)  # fmt: skip


# In a process of its own: what is mapped cannot be dropped.
COLD = """
import sys
import ndfeed

def read():
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("read_bytes")).split()[1])

ds = ndfeed.open(sys.argv[2:], sample="file").crops({"data": (int(sys.argv[1]),) * 3}, each=4)
before = read()
with ndfeed.loader(ds, 4, shuffle=True) as loader:
    useful = sum(batch["data"].nbytes for batch in loader)
print(read() - before, useful)
"""


def measure_cold(paths):
    """How many bytes are fetched from the disk for crops."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, "-c", COLD, str(BOX), *paths]
    said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    taken, useful = map(int, said.split())
    report(question="volumes", way="ndfeed loader, cold", read_mb=round(taken / 1e6),
           useful_mb=round(useful / 1e6))  # fmt: skip
    if taken:
        bar("volumes", "3 x bytes of crops / bytes read", 3 * useful / taken, 1)


def compressed(folder, quick):
    """Crops of compressed volumes: each is decoded once for all of its crops."""

    def save(stem, image):
        np.savez_compressed(f"{stem}.npz", image=image)
        return f"{stem}.npz"

    paths = write_volumes(folder, 4 if quick else 12, save)
    base = ndfeed.open(paths, sample="file")
    sizes = {"image": (BOX, BOX, BOX)}
    check_crops(base.crops(sizes, each=2, place=True), lambda case: np.load(paths[case])["image"])
    ways = {
        # Less memory than all volumes take: they are decoded in every epoch.
        "ndfeed loader": loader_of(base.crops(sizes, each=4), 4, memory="512MB"),
        **workers_of("np.load per crop", Volumes(paths, 4, False), 4),
    }
    found = alternate("compressed", ways, 4, 3, "crops")
    bar("compressed", "loader / best np.load per crop",
        found["ndfeed loader"] / best(found, "np.load"), 3)  # fmt: skip


QUESTIONS = {one.__name__: one for one in (tokens, series, volumes, compressed)}


def main():
    """Answer the questions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", nargs="*", choices=[[], *QUESTIONS])
    parser.add_argument("--folder", help="where the data is written (default: a new folder)")
    parser.add_argument("--quick", action="store_true", help="less data: to try the script")
    given = parser.parse_args()
    report(question="samples", cores=len(os.sched_getaffinity(0)), quick=given.quick,
           date=time.strftime("%Y-%m-%d"))  # fmt: skip
    for name in given.questions or QUESTIONS:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            QUESTIONS[name](folder, given.quick)


if __name__ == "__main__":
    main()
