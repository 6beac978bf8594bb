"""Measure what packing costs and what it gains.

    compressed   2,000 compressed .npz with an image and a label each
    tiny         100,000 .npy of 3 KB
    stored       one stored .npz of 2 GB
    buys         shuffled batches of the users' datasets (``cases.py``), before and after packing;
                 where users require a speed, that speed, too

Packing is compared with what people write today: a loop of ``np.load`` and ``np.save`` per array,
and the same in a ``ProcessPoolExecutor``, neither of which syncs to disk, as ours does; for one
large file it is compared with the disk: ``dd conv=fsync``. Sources are in the page cache; each
measurement writes to a new folder, and the result is compared before it counts. Prints one JSON
line per measurement and per target.

    python benchmarks/pack.py [QUESTION ...] [--folder DIR] [--quick]
"""

import argparse
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from cases import CASES
from loader import forget
from measure import bar, report

import ndfeed

ROUNDS = 3
SECONDS = 2.0
rng = np.random.default_rng(0)


def convert(path, to):
    """Write every array of a file to its own .npy, as people do today."""
    loaded = np.load(path)
    if isinstance(loaded, np.ndarray):
        np.save(to / f"{path.stem}.npy", loaded)
        return
    with loaded:
        for key in loaded:
            np.save(to / f"{path.stem}_{key}.npy", loaded[key])


def loop(paths, to):
    """Convert files in a loop."""
    to.mkdir()
    for path in paths:
        convert(path, to)


def pool(paths, to):
    """Convert files with every core."""
    to.mkdir()
    with ProcessPoolExecutor() as workers:
        for _ in workers.map(partial(convert, to=to), paths, chunksize=64):
            pass


def ours(source, to, **options):
    """Pack with ndfeed, which syncs to disk."""
    return ndfeed.pack(source, to, **options)


def timed(question, ways, folder, nbytes):
    """Return the median seconds of every way, run in turn, each into a new folder."""
    times = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            to = folder / "to"
            os.sync()
            began = time.perf_counter()
            way(to)
            times[name].append(time.perf_counter() - began)
            shutil.rmtree(to) if to.is_dir() else to.unlink()
    for name, taken in times.items():
        taken.sort()
        middle = taken[len(taken) // 2]
        report(
            question=question,
            way=name,
            seconds=round(middle, 3),
            all=[round(t, 3) for t in taken],
            mb_per_s=round(nbytes / middle / 1e6),
        )
    return {name: taken[len(taken) // 2] for name, taken in times.items()}


def bars(question, seconds):
    """Report how much sooner ours is done."""
    bar(question, "the loop / ours", seconds["loop"] / seconds["ours"], 3)
    bar(question, "the pool / ours", seconds["pool"] / seconds["ours"], 1.5)


def compressed(folder, quick):
    """Measure small compressed archives of one sample each."""
    source = folder / "source"
    source.mkdir()
    for i in range(200 if quick else 2000):
        image = rng.integers(0, 32, (128, 128, 3), dtype=np.uint8)
        np.savez_compressed(source / f"{i:05}.npz", image=image, label=i)
    ds = ndfeed.open(source, sample="file")
    paths = sorted(source.iterdir())
    packed = ours(ds, folder / "check")
    np.testing.assert_array_equal(packed[7]["image"], np.load(paths[7])["image"])
    shutil.rmtree(folder / "check")
    ways = {
        "loop": partial(loop, paths),
        "pool": partial(pool, paths),
        "ours": partial(ours, ds),
    }
    bars("compressed", timed("compressed", ways, folder, ds.nbytes))


def tiny(folder, quick):
    """Measure very many very small files."""
    source = folder / "source"
    source.mkdir()
    for i in range(5_000 if quick else 100_000):
        np.save(source / f"{i:06}.npy", np.full((32, 32, 3), i % 251, np.uint8))
    ds = ndfeed.open(source, sample="file")
    paths = sorted(source.iterdir())
    packed = ours(ds, folder / "check")
    assert (packed[:]["data"][:, 0, 0, 0] == np.arange(len(paths)) % 251).all()
    shutil.rmtree(folder / "check")
    ways = {
        "loop": partial(loop, paths),
        "pool": partial(pool, paths),
        "ours": partial(ours, ds),
    }
    bars("tiny", timed("tiny", ways, folder, ds.nbytes))


def dd(source, to):
    """Copy and sync the same bytes: the speed of the disk."""
    command = ["dd", f"if={source}", f"of={to}", "bs=1M", "conv=fsync", "status=none"]
    subprocess.run(command, check=True)


def stored(folder, quick):
    """Measure one large stored archive, whose rows are copied unchanged."""
    rows = 2_000 if quick else 20_000
    data = rng.integers(0, 255, (rows, 100_000), dtype=np.uint8)
    np.savez(folder / "big.npz", x=data, y=np.arange(rows))
    del data
    ds = ndfeed.open(folder / "big.npz")
    path = [folder / "big.npz"]
    packed = ours(ds, folder / "check")
    np.testing.assert_array_equal(packed[rows - 1]["x"], ds[rows - 1]["x"])
    del packed
    shutil.rmtree(folder / "check")
    ways = {
        "loop": partial(loop, path),
        "dd conv=fsync": partial(dd, path[0]),
        "ours": partial(ours, ds),
    }
    seconds = timed("stored", ways, folder, ds.nbytes)
    bar("stored", "dd / ours", seconds["dd conv=fsync"] / seconds["ours"], 0.7)


def batches(opened, case, shuffle):
    """Return samples per second of a new loader, including its start; one epoch if cold."""
    ds = opened()  # opened again: mapped files stay in the page cache
    if case.cold:
        forget(ds.files)
    rows, began = 0, time.perf_counter()
    with ndfeed.loader(ds, case.batch, shuffle=shuffle) as loader:
        while True:
            for one in loader:
                rows += len(next(iter(one.values())))
                if time.perf_counter() - began > SECONDS:
                    return rows / (time.perf_counter() - began)
            if case.cold:  # the next epoch would not be cold
                return rows / (time.perf_counter() - began)


def compared(case, opened):
    """Check that every packed row that is sampled has the values of its source row."""
    ds, packed = case.open(), opened()
    assert len(ds) == len(packed)
    rows = np.unique(rng.integers(0, len(ds), 2 * case.batch))
    seed = case.packing.get("shuffle")
    order = None if seed is None else ndfeed.Exact().begin(len(ds), seed, 0)
    sources = rows if order is None else np.concatenate([order.rows(r, r + 1) for r in rows])
    wanted, found = ds.read(sources), packed.read(rows)
    for field in wanted:
        for one, other in zip(wanted[field], found[field], strict=True):
            np.testing.assert_array_equal(one, other)


def copies(folder, count):
    """Return what U2 requires, the speed of .npy: every case copied out of the mapped columns."""
    fields = [
        [np.load(folder / f"{name}.{role}.npy", mmap_mode="r") for role in ("values", "offsets")]
        for name in ("data", "seg")
    ]
    rows, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for row in rng.permutation(count):
            for values, ends in fields:
                np.array(values[ends[row] : ends[row + 1]])
            rows += 1
    return rows / (time.perf_counter() - began)


def in_a_row(folder, count):
    """Return what U10 requires, the speed of sequential reading: all columns in 1 MB reads."""
    paths = list(folder.iterdir())
    forget(paths)
    memory = bytearray(1 << 20)
    began = time.perf_counter()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(memory):
                pass
    return count / (time.perf_counter() - began)


def files_wanted(folder, count):
    """Return what U4 requires: 200,000 files per second, two per sample."""
    return 100_000.0


ASKED = {
    "U2": ("packed / copies of mapped .npy", copies, 1),
    "U4": ("packed / 200,000 files a second", files_wanted, 1),
    "U10": ("packed / reading in order", in_a_row, 0.8),
}


def buys(folder, quick):
    """Measure shuffled batches before and after packing, in turn, and what users require."""
    for name, make in CASES.items():
        place = Path(tempfile.mkdtemp(dir=folder))
        case, to = make(place, quick), place / "packed"
        began = time.perf_counter()
        count, nbytes = len(ours(case.open(), to, **case.packing)), case.open().nbytes
        took = time.perf_counter() - began
        opened = partial(ndfeed.open, to)
        compared(case, opened)
        ways = {
            "before": lambda case=case: batches(case.open, case, True),
            "after": lambda case=case, opened=opened: batches(opened, case, case.shuffle),
        }
        what, floor, wanted = ASKED.get(name, ("", None, 0))
        if floor:
            ways["asked"] = partial(floor, to / "00000", count)
        rates = {key: [] for key in ways}
        for _, (key, way) in itertools.product(range(ROUNDS), ways.items()):
            rates[key].append(way())
        middle = {key: statistics.median(found) for key, found in rates.items()}
        report(
            question=f"buys {name}",
            what=case.what,
            samples=count,
            mb=round(nbytes / 1e6),
            before_per_s=round(middle["before"], 1),
            after_per_s=round(middle["after"], 1),
            ratio=round(middle["after"] / middle["before"], 2),
            ranges={key: [round(min(some), 1), round(max(some), 1)] for key, some in rates.items()},
            packed_in_s=round(took, 2),
        )
        if floor:
            bar(f"buys {name}", what, middle["after"] / middle["asked"], wanted)
        shutil.rmtree(place)


QUESTIONS = {"compressed": compressed, "tiny": tiny, "stored": stored, "buys": buys}


def main():
    """Run some or all questions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION")
    parser.add_argument("--folder", help="where to make a new folder for files")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data or less")
    args = parser.parse_args()
    for name in args.questions or QUESTIONS:
        folder = Path(tempfile.mkdtemp(prefix="ndfeed-", dir=args.folder))
        try:
            QUESTIONS[name](folder, args.quick)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
