"""What do orders cost that are more than a shuffle, and what do they cost those who only shuffle?

    first      draws by weight from 10**8 rows of 32 bytes: how long until the first batch
    weighted   how fast batches come after it, of rows of 32 and of 128 bytes. Floor: the plain
               shuffle of the same rows
    mix        a mixture of three sets beside one set, LitData and Grain (``orders_mix.py``)
    buckets    padding of batches of similar length, beside group_by_length of transformers, and
               what they cost (``orders_buckets.py``)
    plain      the plain shuffle of small rows, with this version and another one (``--before``)

Compared with what people use: ``torch.utils.data.WeightedRandomSampler``, which has at most 2**24
weights, and for more of them ``np.random.choice`` of a whole epoch, its usual replacement. Both are
given nothing but the draws to do: no row is read. Draws are compared before anything is timed.
Prints one JSON line per measurement and per target.

    python benchmarks/orders.py [QUESTION ...] [--folder DIR] [--before DIR] [--peers PYTHON]
    taskset -c 0,1 python benchmarks/orders.py plain --before DIR --rounds 5    # on two cores
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from measure import bar, report
from orders_buckets import buckets
from orders_mix import mix

import ndfeed

ROUNDS = 11
SECONDS = 1.0
ROWS, SMALL, WIDE = 10**8, 32, 128  # rows, and the bytes of one
MOST = 1 << 24  # weights of torch's sampler: at least, it refuses this many
BATCH = 4096


def write_rows(path, rows, size=SMALL):
    """A file whose rows of ``size`` bytes are full of their own number."""
    out = np.lib.format.open_memmap(path, "w+", np.uint32, (rows, size // 4))
    for at in range(0, rows, 1 << 20):
        out[at : at + (1 << 20)] = np.arange(at, min(at + (1 << 20), rows))[:, None]
    out.flush()


def rate(batches, size, seconds=SECONDS):
    """Rows per second of an iterator of batches."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        next(batches)
        count += 1
    return count * size / (time.perf_counter() - began)


def forever(loader):
    """The batches of one epoch after the other."""
    while True:
        yield from loader


def alternate(question, loaders, size, rounds=ROUNDS):
    """Rates of two loaders in turn, and the median of the second's over the first's.

    Both of a round meet the same load of the machine, so rounds are compared one by one. ``cpu_ns``
    is processor time per row in the round that took least.
    """
    found, cpu = ({name: [] for name in loaders} for _ in range(2))
    each = {name: forever(loader) for name, loader in loaders.items()}
    for batches in each.values():
        rate(batches, size)  # the first is not counted: pages are mapped, threads chosen
    for _ in range(rounds):
        for name, batches in each.items():
            began, used = time.perf_counter(), time.process_time()
            found[name].append(rate(batches, size))
            rows = found[name][-1] * (time.perf_counter() - began)
            cpu[name].append((time.process_time() - used) / rows * 1e9)
    for name, rates in found.items():
        report(question=question, way=name, per_s=round(statistics.median(rates)), unit="rows",
               cpu_ns=round(min(cpu[name]), 1), all=[round(one) for one in rates])  # fmt: skip
    return compare_rounds(*found.values())


def compare_rounds(first, second):
    """The median of the ratios of two lists of rates."""
    return statistics.median(b / a for a, b in zip(first, second, strict=True))


def timed(question, way, call, rounds=1):
    """The median time of a call, in seconds."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    seconds = statistics.median(taken)
    report(question=question, way=way, seconds=round(seconds, 4), all=[round(t, 4) for t in taken])
    return seconds


# Weighted


def check_draws(name, rows, weights):
    """Are rows drawn as often as they should be? By weight, in a hundred groups."""
    groups = np.minimum((weights * 100).astype(int), 99)
    expected = np.bincount(groups, weights) / weights.sum()
    found = np.bincount(groups[rows], minlength=len(expected)) / len(rows)
    np.testing.assert_allclose(found, expected, atol=5 * (0.02 / len(rows)) ** 0.5, err_msg=name)


def choose(weights, rows):
    """What is recommended where torch's sampler refuses: an epoch of draws by NumPy."""
    return np.random.choice(len(weights), rows, p=weights / weights.sum())


def sample(weights):
    """The first batch of torch's sampler, which draws an epoch."""
    sampler = torch.utils.data.WeightedRandomSampler(weights, len(weights))
    return list(itertools.islice(sampler, BATCH))


def first_batch(ds, weights):
    """Our first batch, rows and all, with a new order."""
    with ndfeed.loader(ds, BATCH, shuffle=ndfeed.Weighted(weights)) as loader:
        return next(iter(loader))["data"][:, 0]


def first(folder, quick):
    """The time to the first batch, from so many rows that others give up."""
    count, most = (10**6, 10**5) if quick else (ROWS, MOST - 1)
    write_rows(f"{folder}/x.npy", count)
    ds = ndfeed.open(f"{folder}/x.npy")
    weights = np.random.default_rng(0).random(count)
    some, small = ds.take(range(10**5)), weights[: 10**5]
    with ndfeed.loader(some, BATCH, shuffle=ndfeed.Weighted(small, rows=10**6)) as loader:
        ours = np.concatenate([batch["data"][:, 0] for batch in loader])
    check_draws("ndfeed", ours, small)
    check_draws("np.random.choice", choose(small, 10**6), small)
    check_draws("torch", np.array(sample(small)), small)

    few = ds.take(range(most))
    name = f"{most:,} rows"
    ours = timed("first", f"{name}: ndfeed", lambda: first_batch(few, weights[:most]), 3)
    theirs = timed("first", f"{name}: WeightedRandomSampler", lambda: sample(weights[:most]))
    bar("first", f"{name}: ours / WeightedRandomSampler", theirs / ours, 20)
    name = f"{count:,} rows"
    ours = timed("first", f"{name}: ndfeed", lambda: first_batch(ds, weights), 3)
    theirs = timed("first", f"{name}: np.random.choice", lambda: choose(weights, count))
    bar("first", f"{name}: ours / np.random.choice of an epoch", theirs / ours, 20)


def weighted(folder, quick, rounds=ROUNDS):
    """The rate of draws by weight, compared with that of a shuffle."""
    count = 10**6 if quick else ROWS
    weights = np.random.default_rng(0).random(count)
    for width, size in itertools.product((SMALL, WIDE), (64, BATCH)):
        path = f"{folder}/{width}.npy"
        if not os.path.exists(path):
            write_rows(path, count, width)
        ds = ndfeed.open(path)
        name = f"{width} bytes, batches of {size}"
        orders = {"shuffled": True, "weighted": ndfeed.Weighted(weights)}
        loaders = {
            f"{name}: {way}": ndfeed.loader(ds, size, shuffle=order)
            for way, order in orders.items()
        }
        ratio = alternate("weighted", loaders, size, rounds)
        bar("weighted", f"{name}: weighted / shuffled", ratio, 0.8)
        for loader in loaders.values():
            loader.close()


# Those who only shuffle

# In a process of its own, which imports the version that it is given.
PLAIN = """
import sys, time
import ndfeed

path, size, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

def forever(loader):
    while True:
        yield from loader

with ndfeed.loader(ndfeed.open(path), size, shuffle=True) as loader:
    batches = forever(loader)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        next(batches)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        next(batches)
        count += 1
    print(count * size / (time.perf_counter() - began))
"""


def plain(folder, quick, before, rounds=9):
    """The plain shuffle, now and before."""
    if before is None:
        report(question="plain", skipped="no --before, the folder src of another version")
        return
    path = f"{folder}/x.npy"
    write_rows(path, 10**5 if quick else 10**7)
    now = Path(ndfeed.__file__).parents[1]
    for size in (64, BATCH):
        found = {"before": [], "now": []}
        for _ in range(2 if quick else rounds):
            for name, source in (("before", before), ("now", now)):
                command = [sys.executable, "-c", PLAIN, path, str(size), "1.5"]
                env = os.environ | {"PYTHONPATH": str(source)}
                said = subprocess.run(command, capture_output=True, check=True, text=True, env=env)
                found[name].append(float(said.stdout))
        for name, rates in found.items():
            report(question="plain", way=f"batches of {size}: {name}", unit="rows",
                   per_s=round(statistics.median(rates)),
                   all=[round(one) for one in rates])  # fmt: skip
        ratio = compare_rounds(found["before"], found["now"])
        bar("plain", f"batches of {size}: now / before", ratio, 0.97)


def main():
    """Answer the questions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "questions", nargs="*", choices=[[], "first", "weighted", "mix", "buckets", "plain"]
    )
    parser.add_argument("--folder", help="where the data is written (default: a new folder)")
    parser.add_argument("--before", help="the folder src of another version, to compare with")
    parser.add_argument("--peers", help="a Python that has litdata, grain and transformers")
    parser.add_argument("--quick", action="store_true", help="less data: to try the script")
    parser.add_argument("--rounds", type=int, help="how often ways take turns, if not as usual")
    given = parser.parse_args()
    more = {"rounds": given.rounds} if given.rounds else {}
    report(question="orders", cores=len(os.sched_getaffinity(0)), quick=given.quick,
           date=time.strftime("%Y-%m-%d"))  # fmt: skip
    questions = {
        "first": first,
        "weighted": lambda folder, quick: weighted(folder, quick, **more),
        "mix": lambda folder, quick: mix(folder, quick, given.peers, **more),
        "buckets": lambda folder, quick: buckets(
            folder, quick, given.peers or sys.executable, **more
        ),
        "plain": lambda folder, quick: plain(folder, quick, given.before, **more),
    }
    for name in given.questions or questions:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            questions[name](folder, given.quick)


if __name__ == "__main__":
    main()
