"""What does a mixture cost: three sets in exact proportions, beside one set and beside others?

    mix    three sets of images of 3,072 bytes with labels in .npz files, weights 3, 2 and 1,
           exactly shuffled, batches of 256, from the page cache, into which all files were read
           from the disk: ``ndfeed.mix``, one set that has as many rows in one file, and the sum of
           the three without weights. The same three as LitData's ``CombinedStreamingDataset`` (its
           own chunks, 0 and 2 workers) and Grain's ``MapDataset.mix`` (over the mapped arrays, 0, 2
           and 16 threads): the best counts

Ways take turns; medians are compared. Prints one JSON line per measurement and per target.

    python benchmarks/orders_mix.py [--folder DIR] [--quick] [--python PEERS]

``--python`` is an interpreter that has litdata and grain; without it only ndfeed is measured.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from measure import bar, report

ROUNDS, SECONDS = 5, 3.0
BATCH, SHAPE = 256, (32, 32, 3)
WEIGHTS = [3, 2, 1]
SETS = ["web", "code", "math"]


def rate(batches, seconds=SECONDS):
    """Rows per second of an endless iterator of batches, after the first few."""
    for _ in range(10):
        next(batches)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        next(batches)
        count += 1
    return count * BATCH / (time.perf_counter() - began)


def forever(loader):
    """The batches of one epoch after the other."""
    while True:
        yield from loader


def write(folder, rows):
    """Three sets of so many rows each, and one with as many as all of them."""
    rng = np.random.default_rng(0)
    for name, count in (*((one, rows) for one in SETS), ("one", len(SETS) * rows)):
        x = rng.integers(0, 256, (count, *SHAPE), np.uint8)
        np.savez(folder / f"{name}.npz", x=x, y=rng.integers(0, 10, count))
        if name != "one":
            np.save(folder / f"{name}-x.npy", x)
            np.save(folder / f"{name}-y.npy", np.load(folder / f"{name}.npz")["y"])
    for path in folder.iterdir():
        read_again(path)


def read_again(path):
    """Read a file from the disk, in pieces as small as those of rows that are read in any order.

    The kernel keeps what was written, or read from end to end, in pieces of any size, by chance,
    and rows of large pieces come up to a quarter faster.
    """
    with path.open("rb", buffering=0) as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        room = bytearray(1 << 20)
        while file.readinto(room):
            pass


def mix(folder, quick, python=None, rounds=ROUNDS):
    """Rates of all ways in turn, and the targets."""
    import ndfeed

    folder = Path(folder)
    write(folder, 4_000 if quick else 60_000)
    sets = {name: ndfeed.open(folder / f"{name}.npz") for name in SETS}
    mixed = ndfeed.mix(sets, weights=WEIGHTS, end="cycle", source="source")
    _check(mixed)
    data = {
        "one set": ndfeed.open(folder / "one.npz"),
        "three sets added": sets["web"] + sets["code"] + sets["math"],
        "ndfeed.mix": ndfeed.mix(sets, weights=WEIGHTS, end="cycle"),
        "ndfeed.mix with source=": mixed,
    }
    seconds = 0.3 if quick else SECONDS
    found = {name: [] for name in data}
    for _ in range(2 if quick else rounds):
        for name, ds in data.items():
            with ndfeed.loader(ds, BATCH, shuffle=True) as loader:
                found[name].append(rate(forever(loader), seconds))
        for name, each in _run_peers(python, folder, seconds).items():
            found.setdefault(name, []).append(each)
    rates = {name: statistics.median(each) for name, each in found.items()}
    for name, each in found.items():
        report(question="mix", way=name, per_s=round(rates[name]), unit="rows",
               all=[round(one) for one in each])  # fmt: skip
    bar("mix", "ndfeed.mix / one set", rates["ndfeed.mix"] / rates["one set"], 0.9)
    for peer in ("LitData", "Grain"):
        others = [one for name, one in rates.items() if name.startswith(peer)]
        if others:
            bar("mix", f"ndfeed.mix / {peer}", rates["ndfeed.mix"] / max(others), 10)


def _check(ds):
    """Proportions are exact before anything is timed."""
    import ndfeed

    told = np.concatenate([batch["source"] for batch in ndfeed.loader(ds, BATCH, shuffle=True)])
    counts = np.cumsum(told[:, None] == np.arange(len(SETS)), axis=0)
    shares = np.arange(1, len(told) + 1)[:, None] * np.array(WEIGHTS) / sum(WEIGHTS)
    assert (np.abs(counts - shares) < 1).all()


def _run_peers(python, folder, seconds):
    """The rates of others, each measured in a process of its own."""
    found = {}
    for peer in ("litdata", "grain") if python else ():
        command = [
            python,
            __file__,
            "--peer",
            peer,
            "--folder",
            str(folder),
            "--seconds",
            str(seconds),
        ]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in made.stdout.splitlines() if line.startswith('{"way"')]
        if not lines:
            report(question="mix", failed=peer, said=made.stderr[-300:])
        for line in lines:
            one = json.loads(line)
            found[one["way"]] = one["per_s"]
    return found


def serve(peer, folder, seconds):
    """Print the rate of a peer for each of its settings."""
    for name, make in {"litdata": _list_litdata, "grain": _list_grain}[peer](folder):
        print(json.dumps({"way": name, "per_s": rate(forever(make()), seconds)}), flush=True)


def _rows_of(folder, name, start):
    x = np.load(folder / f"{name}-x.npy", mmap_mode="r")
    y = np.load(folder / f"{name}-y.npy", mmap_mode="r")
    for at in range(start, min(start + 4096, len(x))):
        yield {"x": np.array(x[at]), "y": int(y[at])}


class _Piece:
    """Yields some rows of a set; LitData's workers have to unpickle it."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name

    def __call__(self, start):
        yield from _rows_of(self.folder, self.name, start)


def _list_litdata(folder):
    from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, optimize

    for name in SETS:
        target = folder / f"{name}-litdata"
        if not target.exists():
            count = len(np.load(folder / f"{name}-x.npy", mmap_mode="r"))
            optimize(_Piece(folder, name), list(range(0, count, 4096)), str(target),
                     chunk_bytes="64MB", num_workers=1)  # fmt: skip

    def make(workers):
        every = [StreamingDataset(str(folder / f"{name}-litdata"), shuffle=True) for name in SETS]
        weights = [one / sum(WEIGHTS) for one in WEIGHTS]
        data = CombinedStreamingDataset(every, weights=weights, iterate_over_all=False, seed=0)
        return StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)

    return [(f"LitData, {n} workers", lambda n=n: make(n)) for n in (0, 2)]


def _list_grain(folder):
    import grain

    class Rows:
        def __init__(self, name):
            self._x = np.load(folder / f"{name}-x.npy", mmap_mode="r")
            self._y = np.load(folder / f"{name}-y.npy", mmap_mode="r")

        def __len__(self):
            return len(self._x)

        def __getitem__(self, index):
            return {"x": np.array(self._x[index]), "y": self._y[index]}

    def make(threads):
        every = [grain.MapDataset.source(Rows(name)).seed(0).shuffle() for name in SETS]
        mixed = grain.MapDataset.mix(every, [one / sum(WEIGHTS) for one in WEIGHTS])
        options = grain.ReadOptions(threads, 8 * BATCH if threads else 0)
        return mixed.batch(BATCH).to_iter_dataset(options)

    return [(f"Grain, {n} threads", lambda n=n: make(n)) for n in (0, 2, 16)]


def main():
    """Measure, in a folder that is removed again."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--python", help="an interpreter with litdata and grain")
    parser.add_argument("--peer", choices=["litdata", "grain"])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    if given.peer:
        serve(given.peer, given.folder, given.seconds)
        return
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        mix(folder, given.quick, given.python)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
