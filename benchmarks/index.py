"""How long until very many files can be read: opened, opened again, loaded into memory, packed?

    open      one-array .npy files of 64 bytes in folders of 1,000: opened for the first time right
              after they were written, then again, in new processes
    memory    small deflated .npz, each a picture and a label: ``in_memory()``
    rows      deflated .npz of 200 pictures each: ``in_memory()``
    pack      the small deflated .npz: ``ndfeed.pack``, with the first open and without it

Compared with what people write: a loop that reads every header with ``np.lib.format`` or maps every
file with ``np.load``, ``np.stack`` of ``np.load``, a loop of ``np.load`` and ``np.save``. The loops
run over a part of the files, as given in the line, and their time is scaled. Files are in the page
cache; results are compared before anything is timed. Prints one JSON line per measurement and per
target.

    python benchmarks/index.py [QUESTION ...] [--size N] [--folder DIR] [--rounds N]
"""

import argparse
import io
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from cores import SMALL, picture
from measure import bar, report

import ndfeed

SIZES = {"open": 1_000_000, "memory": 6_000, "rows": 60, "pack": 6_000}
PER_FOLDER, PER_FILE = 1_000, 200
LOOPED = {"open": 20_000, "memory": 1_500, "rows": 15, "pack": 1_500}  # files that loops visit
OPEN = """
import json, sys, time
import ndfeed
began = time.perf_counter()
ds = ndfeed.open(sys.argv[1], sample="file")
print(json.dumps([time.perf_counter() - began, len(ds), ds.fingerprint]))
"""


def spread(write, folder, count, step):
    """Write files with every core."""
    pieces = [(folder, start, min(start + step, count)) for start in range(0, count, step)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.starmap(write, pieces)


def write_npy(folder, start, stop):
    """Write tiny files."""
    held = io.BytesIO()
    for number in range(start, stop):
        if number % PER_FOLDER == 0:
            os.mkdir(f"{folder}/{number // PER_FOLDER:06}")
        held.seek(0)
        np.save(held, np.arange(number, number + 16, dtype=np.int32))
        with open(f"{folder}/{number // PER_FOLDER:06}/{number:08}.npy", "wb") as file:
            file.write(held.getvalue())


def write_npz(folder, start, stop):
    """Write compressed pictures with a label each."""
    for number in range(start, stop):
        values = {"image": picture(number, SMALL), "label": np.int64(number)}
        np.savez_compressed(f"{folder}/{number:06}.npz", **values)


def write_rows(folder, start, stop):
    """Write compressed files of many pictures."""
    for number in range(start, stop):
        first = number * PER_FILE
        rows = np.stack([picture(first + row, SMALL) for row in range(PER_FILE)])
        np.savez_compressed(f"{folder}/{number:06}.npz", image=rows)


def files_of(folder):
    """All files, in the order of their names."""
    return sorted(str(path) for path in Path(folder).rglob("*.np?"))


def seconds_of(work, scale=1.0):
    """How long some work takes, scaled, and its result."""
    began = time.perf_counter()
    found = work()
    return (time.perf_counter() - began) * scale, found


def told(question, way, seconds, files, **facts):
    """Report one measurement; return the median of its rounds."""
    middle = sorted(seconds)[len(seconds) // 2]
    report(question=question, way=way, files=files, seconds=round(middle, 3),
           all=[round(one, 3) for one in seconds], cores=os.cpu_count(), **facts)  # fmt: skip
    return middle


def headers(paths):
    """Dtype and shape of every file, by the functions that NumPy has for that."""
    found = []
    for path in paths:
        with open(path, "rb") as file:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            found.append((shape, dtype))
    return found


def mapped(paths):
    """The same, by mapping every file."""
    return [(one.shape, one.dtype) for one in (np.load(path, mmap_mode="r") for path in paths)]


def open_files(folder, size, rounds):
    """Measure the first open and the second."""
    first, again = [], []
    for number in range(rounds):
        data = f"{folder}/{number}"
        os.mkdir(data)
        spread(write_npy, data, size, 10 * PER_FOLDER)
        for taken in (first, again):
            seconds, count, _ = opened(data)
            assert count == size
            taken.append(seconds)
        if number < rounds - 1:
            shutil.rmtree(data)
    ds = ndfeed.open(data, sample="file")
    for row in np.linspace(0, size - 1, 50).astype(int):
        np.testing.assert_array_equal(ds[row]["data"], np.arange(row, row + 16, dtype=np.int32))
    paths = files_of(data)[: LOOPED["open"]]
    scale = size / len(paths)
    middle = {}
    for name, way in {"np.lib.format": headers, "np.load(mmap_mode)": mapped}.items():
        assert set(way(paths[:100])) == {((16,), np.dtype(np.int32))}
        taken = [seconds_of(lambda way=way: way(paths), scale)[0] for _ in range(rounds)]
        middle[name] = told("open", name, taken, size, looped=len(paths))
    ours = told("open", "ndfeed.open, first", first, size)
    second = told("open", "ndfeed.open, again", again, size)
    bar("open", "np.lib.format / first open", middle["np.lib.format"] / ours, 1.5)
    bar("open", "seconds allowed for 1 M files / first open", 5e-6 * size / ours, 1)
    bar("open", "seconds allowed for 1 M files / second open", 0.5e-6 * size / second, 1)


def opened(data):
    """Seconds, samples and fingerprint of a dataset opened in a new process."""
    command = [sys.executable, "-c", OPEN, data]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def stacked(paths):
    """Load every array of every file, as people do."""
    loaded = []
    for path in paths:
        with np.load(path) as arrays:
            loaded.append({name: arrays[name] for name in arrays})
    return {name: np.stack([one[name] for one in loaded]) for name in loaded[0]}


def load(question, write, sample):
    """Measure loading into memory."""

    def measure(folder, size, rounds):
        spread(write, folder, size, max(size // 120, 1))
        paths = files_of(folder)[: LOOPED[question]]
        ds = ndfeed.open(folder, sample=sample)
        some = stacked(paths[:3])
        held = ds.in_memory()
        for name, values in some.items():
            expected = values if sample == "file" else values.reshape(-1, *values.shape[2:])
            np.testing.assert_array_equal(held[: len(expected)][name], expected)
        last = len(ds) - 1
        for name, value in ds[last].items():
            np.testing.assert_array_equal(held[last][name], value)
        del held
        taken = {"np.stack of np.load": [], "in_memory()": []}
        for _ in range(rounds):
            scale = size / len(paths)
            taken["np.stack of np.load"].append(seconds_of(lambda: stacked(paths), scale)[0])
            fresh = ndfeed.open(folder, sample=sample)  # the other one keeps what it has decoded
            taken["in_memory()"].append(seconds_of(fresh.in_memory)[0])
        middle = {
            way: told(question, way, found, size, mb=round(ds.nbytes / 1e6))
            for way, found in taken.items()
        }
        bar(question, "np.stack / in_memory()", middle["np.stack of np.load"]
            / middle["in_memory()"], 3)  # fmt: skip

    return measure


def pack(folder, size, rounds):
    """Measure packing of small compressed files."""
    source = f"{folder}/source"
    os.mkdir(source)
    spread(write_npz, source, size, max(size // 120, 1))
    paths = files_of(source)[: LOOPED["pack"]]
    taken = {"loop": [], "ndfeed.pack, first open": [], "ndfeed.pack, opened": []}
    ds = ndfeed.open(source, sample="file")
    packed = ndfeed.pack(ds, f"{folder}/check", progress=ignored)
    for name, values in stacked(paths[:50]).items():
        np.testing.assert_array_equal(packed[:50][name], values)
    del packed
    for _ in range(rounds):
        os.sync()
        taken["loop"].append(seconds_of(lambda: loop(paths, folder), size / len(paths))[0])
        shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)
        for way, what in (("ndfeed.pack, first open", source), ("ndfeed.pack, opened", ds)):
            os.sync()
            target = f"{folder}/packed"
            taken[way].append(
                seconds_of(lambda what=what, to=target: ndfeed.pack(what, to, progress=ignored))[0]
            )
            shutil.rmtree(target)
    middle = {way: told("pack", way, found, size) for way, found in taken.items()}
    for way in list(taken)[1:]:
        bar("pack", f"loop / {way}", middle["loop"] / middle[way], 8)


def ignored(rows, nbytes):
    """Show no progress."""


def loop(paths, folder):
    """Write every array of every file to its own .npy, as people do."""
    to = f"{folder}/loop"
    os.mkdir(to)
    for path in paths:
        with np.load(path) as arrays:
            for name in arrays:
                np.save(f"{to}/{Path(path).stem}_{name}.npy", arrays[name])
    shutil.rmtree(to)


QUESTIONS = {
    "open": open_files,
    "memory": load("memory", write_npz, "file"),
    "rows": load("rows", write_rows, "row"),
    "pack": pack,
}


def main():
    """Run some or all questions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION", choices=[[], *QUESTIONS])
    parser.add_argument("--size", type=int, help="how many files, instead of the usual number")
    parser.add_argument("--folder", help="where to make a new folder for files")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for name in args.questions or QUESTIONS:
        folder = tempfile.mkdtemp(prefix="ndfeed-", dir=args.folder)
        data = f"{folder}/data"
        os.mkdir(data)
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        try:
            QUESTIONS[name](data, args.size or SIZES[name], args.rounds)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
