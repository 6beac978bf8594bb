"""How much padding do batches of similar length have, and what do they cost?

Texts end to end in one .npy, with log-normal lengths up to 2,048 tokens, padded to the longest of
each batch of 32. Compared with ``LengthGroupedSampler`` of transformers (``group_by_length``),
which runs in a process of its own with the interpreter given by ``--peers``, with a plain shuffle,
and with a budget of tokens that makes about as many batches:

    padding   the share of padding in four epochs, measured on the batches that were delivered; for
              transformers computed from the order of its sampler
    begin     seconds from the lengths to the first rows of an epoch
    rate      texts per second and tokens without padding per second of our loader, shuffled with
              and without buckets, in turn

Prints one JSON line per measurement and per target.

    python benchmarks/orders_buckets.py [--peers PYTHON] [--folder DIR] [--quick]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from measure import bar, report

import ndfeed

BATCH, LONGEST, EPOCHS = 32, 2048, 4
ROUNDS = 9

PEER = """
import json, sys, time
import numpy as np, torch
from transformers.trainer_pt_utils import LengthGroupedSampler

lengths, batch = np.load(sys.argv[1]), int(sys.argv[2])
listed = lengths.tolist()
found, begin = [], []
for seed in range(int(sys.argv[3])):
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    rows = list(LengthGroupedSampler(batch, lengths=listed, generator=generator))
    begin.append(time.perf_counter() - began)
    each = lengths[rows]
    starts = np.arange(0, len(each), batch)
    counts = np.diff(np.append(starts, len(each)))
    found.append(1 - each.sum() / (np.maximum.reduceat(each, starts) * counts).sum())
print(json.dumps({"padding": found, "begin": begin}))
"""


def write_texts(folder, count):
    """Write texts of log-normal lengths; return their lengths."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4.5, 0.8, count), 1, LONGEST).astype(np.int64)
    np.save(f"{folder}/lengths.npy", lengths)
    np.save(f"{folder}/offsets.npy", np.concatenate(([0], np.cumsum(lengths))))
    np.save(f"{folder}/tokens.npy", rng.integers(0, 50_257, int(lengths.sum()), np.int32))
    return lengths


def padding_of(loader):
    """Measure the share of padding in some epochs, and check that each has all texts."""
    found = []
    for _ in range(EPOCHS):
        padded = real = count = 0
        for batch in loader:
            padded += batch["data"].size
            real += int(batch["data_length"].sum())
            count += len(batch["data"])
        assert count == len(loader.dataset)
        found.append(1 - real / padded)
    return found


def begin_of(ds, **words):
    """Measure how long it takes from the lengths to the first rows of an epoch."""
    began = time.perf_counter()
    loader = ndfeed.loader(ds, ragged="pad", **words)
    loader.order.begin(len(ds), 0, 0).rows(0, 1)
    return time.perf_counter() - began


def ask_transformers(python, folder):
    """Run the sampler of transformers in its own process."""
    command = [python, "-c", PEER, f"{folder}/lengths.npy", str(BATCH), str(EPOCHS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        report(question="buckets", way="transformers", problem=done.stderr.splitlines()[-1:])
        return None
    return json.loads(done.stdout.splitlines()[-1])


def rates_of(ds, ways, lengths, rounds):
    """Measure one epoch of each way in turn; return the texts per second of each round."""
    loaders = {name: ndfeed.loader(ds, ragged="pad", **words) for name, words in ways.items()}
    found = {name: [] for name in ways}
    for at in range(rounds + 1):
        for name, loader in loaders.items():
            began = time.perf_counter()
            for _ in loader:
                pass
            if at:  # the first epoch starts threads
                found[name].append(len(lengths) / (time.perf_counter() - began))
    for name, each in found.items():
        middle = statistics.median(each)
        report(question="buckets", way=name, per_s=round(middle), unit="texts",
               tokens_per_s=round(middle * lengths.mean()),
               all=[round(one) for one in each])  # fmt: skip
    return found


def buckets(folder, quick, python=sys.executable, rounds=ROUNDS):
    """Batches of similar length."""
    lengths = write_texts(folder, 20_000 if quick else 400_000)
    ds = ndfeed.open(f"{folder}/tokens.npy", offsets=f"{folder}/offsets.npy")
    by_length = ndfeed.Buckets("data")
    budget = int(lengths.sum()) // -(-len(lengths) // BATCH)
    ways = {
        "plain shuffle": {"batch_size": BATCH, "shuffle": True},
        "Buckets": {"batch_size": BATCH, "shuffle": by_length},
        f"tokens={max(budget, LONGEST)}": {"tokens": max(budget, LONGEST), "shuffle": by_length},
    }
    paddings = {}
    for name, words in ways.items():
        loader = ndfeed.loader(ds, ragged="pad", **words)
        found = padding_of(loader)
        paddings[name] = statistics.mean(found)
        begin = statistics.median(begin_of(ds, **words) for _ in range(3))
        report(question="buckets", way=name, padding=round(paddings[name], 4),
               all=[round(one, 4) for one in found], batches=len(loader),
               begin_s=round(begin, 3))  # fmt: skip
    peer = ask_transformers(python, folder)
    if peer is not None:
        theirs = statistics.mean(peer["padding"])
        report(question="buckets", way="transformers LengthGroupedSampler",
               padding=round(theirs, 4), all=[round(one, 4) for one in peer["padding"]],
               begin_s=round(statistics.median(peer["begin"]), 3))  # fmt: skip
        bar("buckets", "padding of group_by_length / of Buckets", theirs / paddings["Buckets"], 1)
    rates = rates_of(ds, ways, lengths, rounds)
    pairs = zip(rates["Buckets"], rates["plain shuffle"], strict=True)
    ratio = statistics.median(one / other for one, other in pairs)  # of the same minute
    bar("buckets", "rate of Buckets / plain shuffle", ratio, 0.9)


def main():
    """Answer the question."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=sys.executable, help="a Python that has transformers")
    parser.add_argument("--folder", help="where the data is written (default: a new folder)")
    parser.add_argument("--quick", action="store_true", help="less data: to try the script")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        buckets(folder, given.quick, given.peers)


if __name__ == "__main__":
    main()
