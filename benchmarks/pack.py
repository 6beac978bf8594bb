"""What does packing cost, and what does it buy?

    compressed   2,000 compressed .npz, an image and a label in each
    tiny         100,000 .npy of 3 KB
    stored       one stored .npz of 2 GB
    buys         shuffled batches of the users' cases U2 (whole cases), U4, U7, U10 and U11,
                 before and after, each packed once

Packing is compared with what people write today: a loop of ``np.load`` and ``np.save`` per array,
and the same in a ``ProcessPoolExecutor``, neither of which syncs what it wrote, as ours does; and
for one large file with what the disk takes: ``dd conv=fsync``. Sources are warm, in the page cache;
every way writes to a new folder, and what is written is compared before it counts. Prints a JSON
line for every way and for every bar.

    python benchmarks/pack.py [QUESTION ...] [--folder DIR] [--quick]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from measure import bar, report

import ndfeed

ROUNDS = 3
BATCH = 256
SECONDS = 2.0
rng = np.random.default_rng(0)


def convert(path, to):
    """Today: one file, every array of it to a .npy of its own."""
    loaded = np.load(path)
    if isinstance(loaded, np.ndarray):
        np.save(to / f"{path.stem}.npy", loaded)
        return
    with loaded:
        for key in loaded:
            np.save(to / f"{path.stem}_{key}.npy", loaded[key])


def loop(paths, to):
    """Today, in a loop."""
    to.mkdir()
    for path in paths:
        convert(path, to)


def pool(paths, to):
    """Today, with every core."""
    to.mkdir()
    with ProcessPoolExecutor() as workers:
        for _ in workers.map(partial(convert, to=to), paths, chunksize=64):
            pass


def ours(source, to, **options):
    """Ours, synced."""
    return ndfeed.pack(source, to, **options)


def timed(question, ways, folder, nbytes):
    """Median seconds of every way, in turns, each into a new folder."""
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
    """How much sooner ours is done."""
    bar(question, "the loop / ours", seconds["loop"] / seconds["ours"], 3)
    bar(question, "the pool / ours", seconds["pool"] / seconds["ours"], 1.5)


def compressed(folder, quick):
    """Small compressed archives, one sample in each."""
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
    """Very many very small files."""
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
    """The disk: the same bytes, copied and synced."""
    command = ["dd", f"if={source}", f"of={to}", "bs=1M", "conv=fsync", "status=none"]
    subprocess.run(command, check=True)


def stored(folder, quick):
    """One large stored archive, its rows copied as they are."""
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


def cases(folder, quick):
    """Whole volumes of different sizes, compressed (U2, without crops)."""
    side = 24 if quick else 120
    for i in range(6 if quick else 24):
        shape = (1, side + i % 7 * side // 10, 2 * side, 2 * side)
        volume = rng.integers(0, 300, shape).astype(np.float32)
        np.savez_compressed(folder / f"{i}.npz", data=volume, seg=(volume > 250).astype(np.int8))
    return ndfeed.open(folder, sample="file"), {}, 2


def latents(folder, quick):
    """Pairs of small files (U4)."""
    for name in ("features", "labels"):
        (folder / name).mkdir()
    for i in range(2_000 if quick else 100_000):
        np.save(folder / f"features/{i}.npy", np.full((1, 4, 32, 32), i, np.float32))
        np.save(folder / f"labels/{i}.npy", np.array([i]))
    source = {"x": folder / "features", "y": folder / "labels"}
    return ndfeed.open(source, sample="file"), {}, 256


def episodes(folder, quick):
    """Episodes of many steps, compressed (U7)."""
    steps = 51 if quick else 501
    for i in range(10 if quick else 40):
        frames = rng.integers(0, 8, (steps, 9, 84, 84), dtype=np.uint8)
        reward = rng.random((steps, 1), dtype=np.float32)
        np.savez_compressed(folder / f"{i}.npz", observation=frames, reward=reward)
    return ndfeed.open(folder, sample="row"), {}, 256


def signals(folder, quick):
    """Rows of a large .npy, cast and written in a random order (U10)."""
    rows = 10_000 if quick else 500_000
    made = np.lib.format.open_memmap(folder / "chunks.npy", "w+", np.float16, (rows, 3600))
    made[...] = rng.random((1, 3600))
    made[:, 0] = np.arange(rows) % 1000
    del made
    np.save(folder / "references.npy", rng.integers(0, 4, (rows, 400), dtype=np.uint8))
    source = {name: folder / f"{name}.npy" for name in ("chunks", "references")}
    return ndfeed.open(source), {"shuffle": 0}, 256


def shards(folder, quick):
    """Shards of rows, compressed (U11)."""
    rows = 50 if quick else 500
    for i in range(20):
        image = rng.integers(0, 99, (rows, 3, 128, 64)).astype(np.float32)
        label = rng.random((rows, 100), dtype=np.float32)
        np.savez_compressed(folder / f"{i}.npz", image=image, label=label)
    return ndfeed.open(folder, sample="row"), {}, 64


CASES = {"U2": cases, "U4": latents, "U7": episodes, "U10": signals, "U11": shards}


def rate(ds, batch, **options):
    """Samples a second of a loader behind its first batch."""
    rows, began = 0, None
    while True:
        for one in ndfeed.loader(ds, batch, **options):
            if began is None:
                began = time.perf_counter()
                continue
            rows += len(next(iter(one.values())))
            if time.perf_counter() - began > SECONDS:
                return rows / (time.perf_counter() - began)


def buys(folder, quick):
    """Shuffled batches before and after, and what that took."""
    for name, make in CASES.items():
        place = folder / name
        place.mkdir()
        ds, options, batch = make(place, quick)
        before = rate(ds, batch, shuffle=True)
        began = time.perf_counter()
        packed = ours(ds, folder / f"{name}.packed", **options)
        took = time.perf_counter() - began
        if not options:
            first = ds.read([3]), packed.read([3])
            for field in first[0]:
                np.testing.assert_array_equal(first[0][field][0], first[1][field][0])
        # Rows that lie in a random order need no other.
        after = rate(packed, batch, shuffle=not options)
        report(
            question="buys",
            case=name,
            what=make.__doc__.strip("."),
            samples=len(ds),
            before_per_s=round(before),
            after_per_s=round(after),
            ratio=round(after / before, 1),
            packed_in_s=round(took, 2),
            mb=round(ds.nbytes / 1e6),
        )
        del packed, ds
        shutil.rmtree(place)
        shutil.rmtree(folder / f"{name}.packed")


QUESTIONS = {"compressed": compressed, "tiny": tiny, "stored": stored, "buys": buys}


def main():
    """Ask some or all questions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION")
    parser.add_argument("--folder", help="where to make files; a new folder in it is used")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data and less")
    args = parser.parse_args()
    for name in args.questions or QUESTIONS:
        folder = Path(tempfile.mkdtemp(prefix="ndfeed-", dir=args.folder))
        try:
            QUESTIONS[name](folder, args.quick)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
