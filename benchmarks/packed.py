"""Measure what it costs to read and to verify a packed dataset.

    warm      shuffled batches of packed rows of 150 KB, 3 KB and 128 B, with loader.py's targets
    cold      the same from the disk, 150 KB rows
    parts     random batches of a packed column: one part, and 64 of them
    ragged    random batches of samples of different lengths, found by their offsets
    verify    reading everything and comparing checksums
    checked   shuffled epochs with verify=True at open, the first and later ones, and without it

Shuffled batches have the targets of one large file: against the floors and today's solutions over
the .npy that was packed, and against ours over that .npy, since packing must not slow reading down.
Ragged samples are compared with what people write today (a copy per sample from
np.load(mmap_mode="r")) and with a floor (everything known, memory ready), verify with a loop that
only reads the same files. Files are in the page cache unless noted. Prints one JSON line per
measurement and per target.

    python benchmarks/packed.py [QUESTION ...] [--folder DIR] [--quick]
"""

import argparse
import itertools
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import loader
import numpy as np
from measure import bar, compare, report

import ndfeed

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import packed_making

BATCH = 256
LENGTHS = {"10": 10, "100": 100, "1000": 1000}


def packed(path):
    """Pack a .npy, after removing those packed before."""
    to = path.with_suffix("")
    for old in path.parent.glob("*/ndfeed.json"):
        shutil.rmtree(old.parent)
    ndfeed.pack(path, to)
    return to


def warm(folder, quick):
    """Check the targets of one large file, in memory."""
    loader.warm(folder, quick, "packed", packed)


def cold(folder, quick):
    """Check the targets of one large file, from the disk."""
    loader.cold(folder, quick, "packed cold 150KB", packed)


def parts(folder, quick):
    """Check that a packed column, which is a .npy, costs no more than one."""
    count = 20_000 if quick else 200_000
    data = np.random.default_rng(0).integers(0, 255, (count, 3072), dtype=np.uint8)
    np.save(folder / "plain.npy", data)
    packed_making.write(folder / "one", {"data": data})
    packed_making.write(folder / "many", {"data": data}, parts=64)
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, count, BATCH) for _ in range(100)]
    ways = {
        "a .npy": ndfeed.open(folder / "plain.npy").read,
        "packed, one part": ndfeed.open(folder / "one").read,
        "packed, 64 parts": ndfeed.open(folder / "many").read,
    }
    rates = compare("parts", ways, batches, data[batches[0]])
    bar("parts", "packed / a .npy", rates["packed, one part"] / rates["a .npy"], 0.95)


def ragged(folder, quick):
    """Measure samples of uint16, end to end, as the loader packs them."""
    count = 5_000 if quick else 50_000
    for name, mean in LENGTHS.items():
        rng = np.random.default_rng(0)
        place = folder / f"ragged{name}"
        lengths = rng.integers(0, 2 * mean + 1, count)
        samples = [rng.integers(0, 65535, n).astype(np.uint16) for n in lengths]
        packed_making.write(place, {"data": samples}, shapes={"data": (None,)})
        values = np.load(place / "00000/data.values.npy", mmap_mode="r")
        offsets = np.load(place / "00000/data.offsets.npy", mmap_mode="r")
        plain, ends = np.asarray(values), np.asarray(offsets)
        ready = np.empty(4 * BATCH * mean, np.uint16)

        def today(batch, values=values, offsets=offsets):
            return np.concatenate([values[offsets[i] : offsets[i + 1]].copy() for i in batch])

        def floor(batch, plain=plain, ends=ends, ready=ready):
            at = 0
            for a, b in zip(ends[batch].tolist(), ends[batch + 1].tolist(), strict=True):
                ready[at : at + b - a] = plain[a:b]
                at += b - a
            return ready[:at]

        ds = ndfeed.open(place)
        ways = {"floor": floor, "today": today, "ours": lambda b, ds=ds: joined(ds.read(b))}
        batches = [rng.integers(0, count, BATCH) for _ in range(100)]
        rates = compare(f"ragged {name}", ways, batches, today(batches[0]))
        bar(f"ragged {name}", "ours / today", rates["ours"] / rates["today"], 2)
        bar(f"ragged {name}", "ours / floor", rates["ours"] / rates["floor"], 0.5)


def joined(batch):
    """Return the samples of a batch end to end, without a copy: they are stored that way."""
    first = batch["data"][0]
    return first.base.view(first.dtype) if first.base is not None else first


def verify(folder, quick):
    """Compare every byte, against a loop that only reads."""
    count = 2_000 if quick else 20_000
    data = np.random.default_rng(0).integers(0, 255, (count, 150_528), dtype=np.uint8)
    packed_making.write(folder / "large", {"data": data})
    del data
    paths = [path for path in sorted((folder / "large").rglob("*")) if path.is_file()]
    nbytes = sum(path.stat().st_size for path in paths)

    def plain():
        memory = bytearray(1 << 20)
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            at = 0
            while read := os.preadv(fd, [memory], at):
                at += read
            os.close(fd)

    ways = {
        "a loop that reads": plain,
        "ours, one thread": lambda: ndfeed.verify(folder / "large", threads=1).ok,
        "ours": lambda: ndfeed.verify(folder / "large").ok,
    }
    assert ways["ours"]()
    taken = {name: [] for name in ways}
    for _, (name, way) in itertools.product(range(5), ways.items()):
        began = time.perf_counter()
        way()
        taken[name].append(time.perf_counter() - began)
    rates = {name: nbytes / float(np.median(times)) for name, times in taken.items()}
    for name, rate in rates.items():
        report(question="verify", way=name, per_s=round(rate), unit="bytes")
    bar("verify", "ours / a loop that reads", rates["ours"] / rates["a loop that reads"], 0.8)


def checked(folder, quick):
    """Time the first and second epoch of new loaders; every block is checked in the first."""
    for name, size in {"150KB": 150_528, "3KB": 3072, "128B": 128}.items():
        count = min((200 << 20 if quick else 1 << 30) // size, 4_000_000)
        data = np.random.default_rng(0).integers(0, 255, (count, size), dtype=np.uint8)
        place = folder / name
        packed_making.write(place, {"data": data})
        total = int(data.sum(dtype=np.int64))
        del data
        ds = ndfeed.open(place, verify=True)
        with ndfeed.loader(ds, BATCH, shuffle=True) as batches:
            assert sum(int(batch["data"].sum(dtype=np.int64)) for batch in batches) == total
        taken = {}
        for _, verify in itertools.product(range(5), (False, True)):
            ds = ndfeed.open(place, verify=verify)
            with ndfeed.loader(ds, BATCH, shuffle=True) as batches:
                for epoch in ("first epoch", "second epoch"):
                    began = time.perf_counter()
                    for _ in batches:
                        pass
                    way = f"{epoch}, {'checked' if verify else 'not checked'}"
                    taken.setdefault(way, []).append(time.perf_counter() - began)
        rates = {way: count / float(np.median(times)) for way, times in taken.items()}
        for way, rate in rates.items():
            report(question=f"checked {name}", way=way, per_s=round(rate), unit="rows")
        for epoch, wanted in {"first epoch": 0.3, "second epoch": 0.95}.items():
            ratio = rates[f"{epoch}, checked"] / rates[f"{epoch}, not checked"]
            bar(f"checked {name}", f"{epoch}, checked / not checked", ratio, wanted)
        shutil.rmtree(place)


QUESTIONS = {
    "warm": warm,
    "cold": cold,
    "parts": parts,
    "ragged": ragged,
    "verify": verify,
    "checked": checked,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", nargs="*", choices=[*QUESTIONS, []], default=[])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for name in options.questions or QUESTIONS:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            QUESTIONS[name](Path(folder), options.quick)


if __name__ == "__main__":
    main()
