"""How fast do windows, crops and orders get into GPU memory, and are all values right?

    windows   windows of 1,025 uint16 out of one raw file of 2 GB, and of 200 steps of 17 floats
              out of 200 .npy files, shuffled. Floor: a pinned copy, which is what the bus allows
    crops     crops of 96 x 96 x 96 out of volumes of 256 x 256 x 256 float32, batches of 4,
              beside the same without a GPU
    orders    rows of 3,072 bytes, batches of 4,096: draws by weight and a mixture of three sets,
              beside the plain shuffle; and batches of similar length, beside the same without a GPU

Every value of some hundred batches of each is compared with NumPy first, and with the loader
without a GPU, also after ``loader.refresh()``. Needs a CUDA device and PyTorch (with
``--device cpu`` it only tries the script). Prints one JSON line per measurement and per target.

    python benchmarks/gpu_samples.py [QUESTION ...] [--folder DIR] [--quick] [--device cuda]
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

sys.path.insert(0, str(Path(__file__).parent))
from measure import bar, report
from orders_buckets import write_texts
from samples import write_volumes

import ndfeed
import ndfeed.torch

LENGTH, STEPS, WIDTH = 1025, 200, 17
BOX = 96
ROUNDS, SECONDS = 3, 1.0
WEIGHTS = [3, 2, 1]


class Bench:
    """What all questions share: where the data goes, and what the bus allows."""

    def __init__(self, device, quick):
        self.device, self.quick = device, quick
        self.seconds = 0.2 if quick else SECONDS
        self.bus = self.copy_rate() if device == "cuda" else float("nan")
        report(question="bus", way="pinned copy", gb_per_s=round(self.bus / 1e9, 1),
               quick=quick, date=time.strftime("%Y-%m-%d"))  # fmt: skip

    def copy_rate(self):
        """Bytes per second of a pinned copy of 1 GB."""
        host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
        there = torch.empty_like(host, device=self.device)
        found = []
        for _ in range(20):
            torch.cuda.synchronize()
            began = time.perf_counter()
            there.copy_(host, non_blocking=True)
            torch.cuda.synchronize()
            found.append(host.nbytes / (time.perf_counter() - began))
        return max(found)

    def synchronize(self):
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def loader(self, ds, batch_size=None, device=None, **options):
        """A shuffled loader."""
        words = {"shuffle": True, "drop_last": True} | options
        return ndfeed.torch.loader(ds, batch_size, device=device or self.device, **words)

    def check(self, name, ds, batch_size, right, wanted=300, **options):
        """Compare batches with those without a GPU, and the latter with what NumPy gives."""
        wrong, done = 0, 0
        here = self.loader(ds, batch_size, "cpu", **options)
        with self.loader(ds, batch_size, **options) as there, here:
            while done < wanted:
                for ours, theirs in zip(there, here, strict=True):
                    assert right(theirs), name
                    same = [bool((ours[one].cpu() == theirs[one]).all()) for one in theirs]
                    wrong += not all(same)
                    done += 1
                    if done == wanted:
                        break
            took = there.report().way
        report(question="values", way=name, batches=done, wrong=wrong, took=took)
        assert not wrong, name

    def rate(self, loaders):
        """Bytes per second of each loader, in turn, and how batches got there."""
        found = {name: [] for name in loaders}
        endless = {name: forever(one) for name, one in loaders.items()}
        for at in range(ROUNDS + 1):
            for name, batches in endless.items():
                one = self.time(batches, self.seconds)
                if at:  # the first round registers memory
                    found[name].append(one)
        taken = {name: one.report().way for name, one in loaders.items()}
        for one in loaders.values():
            one.close()
        return {name: statistics.median(each) for name, each in found.items()}, taken

    def time(self, batches, seconds):
        """Bytes per second of an iterator of batches."""
        self.synchronize()
        moved, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            moved += sum(one.nbytes for one in next(batches).values())
        self.synchronize()
        return moved / (time.perf_counter() - began)

    def report(self, question, rates, taken):
        """Report the rates."""
        for name, rate in rates.items():
            report(question=question, way=name, gb_per_s=round(rate / 1e9, 3),
                   of_bus=round(rate / self.bus, 3), took=taken[name])  # fmt: skip


def forever(loader):
    """The batches of one epoch after the other."""
    while True:
        yield from loader


def numbered(folder, rows, shape, dtype):
    """Two fields: random rows, and the number of each; and the array of the first."""
    folder.mkdir()
    rng = np.random.default_rng(len(str(folder)))
    data = rng.integers(0, 250, (rows, *shape), np.uint8).astype(dtype)
    np.save(folder / "x.npy", data)
    np.save(folder / "n.npy", np.arange(rows))
    return ndfeed.open({"x": folder / "x.npy", "n": folder / "n.npy"}, sample="row"), data


def windows(bench, folder):
    """Windows that the GPU reads out of mapped files."""
    for dtype, shape, length in (("u2", (), LENGTH), ("f4", (WIDTH,), STEPS), ("u1", (), 333)):
        ds, data = numbered(folder / dtype, 60_000, shape, dtype)
        every = np.moveaxis(sliding_window_view(data, length, 0), -1, 1)

        def right(batch, every=every):
            return bool((batch["x"].numpy() == every[batch["n"][:, 0].numpy()]).all())

        bench.check(f"windows of {length} {dtype}", ds.windows(length), 64, right)
    rng = np.random.default_rng(0)
    block = rng.integers(0, 50_257, 10**7, np.uint16).tobytes()
    with open(folder / "train.bin", "wb") as file:
        for _ in range(1 if bench.quick else 100):
            file.write(block)
    (folder / "series").mkdir()
    for i in range(200):
        length = int(rng.integers(5000, 15000))
        np.save(folder / f"series/{i:04}.npy", rng.random((length, WIDTH), np.float32))
    tokens = ndfeed.open(folder / "train.bin", dtype="uint16", shape=()).windows(LENGTH)
    series = ndfeed.open(folder / "series", sample="row").windows(STEPS)
    for name, ds, sizes in (("tokens", tokens, (64, 256, 4096)), ("series", series, (64, 1024))):
        for size in sizes:
            loaders = {f"batches of {size}": bench.loader(ds, size)}
            rates, taken = bench.rate(loaders)
            bench.report(f"windows {name}", rates, taken)
            (rate,) = rates.values()
            bar(f"windows {name}", f"batches of {size}: ours / pinned copy rate", rate / bench.bus,
                0.85)  # fmt: skip


def crops(bench, folder):
    """Crops of volumes."""

    def save(stem, image):
        np.save(f"{stem}.npy", image)
        return f"{stem}.npy"

    paths = write_volumes(folder, 2 if bench.quick else 12, save)
    arrays = [np.load(path, mmap_mode="r") for path in paths]
    base = ndfeed.open(paths, sample="file").rename({"data": "image"})
    sizes = {"image": (BOX, BOX, BOX)}

    def right(batch):
        corners = batch["corner"].tolist()
        boxes = [tuple(slice(a, a + BOX) for a in corner) for corner in corners]
        cut = zip(batch["case"].tolist(), boxes, batch["image"].numpy(), strict=True)
        return all((arrays[case][box] == found).all() for case, box, found in cut)

    bench.check("crops", base.crops(sizes, each=8, place=True), 4, right, wanted=100)
    ds = base.crops(sizes, each=8)
    compare_with_host(bench, "crops", ds, 4)


def compare_with_host(bench, question, ds, batch_size, **options):
    """The rate to the GPU beside that without one."""
    ways = {"to the GPU": bench.device, "without a GPU": "cpu"}
    loaders = {name: bench.loader(ds, batch_size, way, **options) for name, way in ways.items()}
    rates, taken = bench.rate(loaders)
    bench.report(question, rates, taken)
    ratio = rates["to the GPU"] / rates["without a GPU"]
    bar(question, "to the GPU / without a GPU", ratio, 0.9)


def orders(bench, folder):
    """Draws by weight, mixtures, batches of similar length, and data that grows."""
    count = 20_000 if bench.quick else 200_000
    sets, arrays = {}, {}
    for name in ("web", "code", "math"):
        sets[name], arrays[name] = numbered(folder / name, count, (32, 32, 3), "u1")
    names = list(sets)
    plain, data = sets["web"], arrays["web"]
    drawn = ndfeed.Weighted(np.random.default_rng(0).random(count))
    mixed = ndfeed.mix(sets, weights=WEIGHTS, end="cycle", source="source")

    def right(batch):
        return bool((batch["x"].numpy() == data[batch["n"].numpy()]).all())

    def right_mix(batch):
        each = zip(batch["source"].tolist(), batch["n"].tolist(), batch["x"].numpy(), strict=True)
        return all((arrays[names[one]][n] == x).all() for one, n, x in each)

    bench.check("Weighted", plain, 256, right, shuffle=drawn)
    bench.check("mix", mixed, 256, right_mix)
    check_growth(bench, folder / "growing")
    ways = {
        "shuffled": (plain, True),
        "weighted": (plain, drawn),
        "mix": (ndfeed.mix(sets, weights=WEIGHTS, end="cycle"), True),
    }
    loaders = {name: bench.loader(ds, 4096, shuffle=how) for name, (ds, how) in ways.items()}
    rates, taken = bench.rate(loaders)
    bench.report("orders", rates, taken)
    bar("orders", "weighted / shuffled", rates["weighted"] / rates["shuffled"], 0.8)
    bar("orders", "mix / shuffled", rates["mix"] / rates["shuffled"], 0.9)
    check_buckets(bench, folder)


def check_buckets(bench, folder):
    """Batches of similar length, which are padded on the CPU."""
    lengths = write_texts(folder, 4_000 if bench.quick else 100_000)
    held = np.load(folder / "tokens.npy")
    texts = ndfeed.open(folder / "tokens.npy", offsets=folder / "offsets.npy")

    def right(batch):
        """Is everything after a text padding?"""
        padding = np.arange(batch["data"].shape[1]) >= batch["data_length"].numpy()[:, None]
        return not batch["data"].numpy()[padding].any()

    by_length = ndfeed.Buckets("data")
    total = 0
    with bench.loader(texts, 32, shuffle=by_length, ragged="pad", drop_last=False) as loader:
        for batch in loader:
            total += int(batch["data"].sum())
    assert total == int(held.sum(dtype=np.int64)), "each token once"
    assert len(lengths) == len(texts)
    bench.check("Buckets", texts, 32, right, shuffle=by_length, ragged="pad")
    compare_with_host(bench, "buckets", texts, 32, shuffle=by_length, ragged="pad")


def check_growth(bench, folder):
    """Files that come between epochs are read by the device as well."""
    folder.mkdir()

    def write(numbers):
        for number in numbers:
            rows = number * 1000 + np.arange(1000)
            np.save(folder / f"{number}.npy", np.repeat(rows[:, None], 64, 1))

    write(range(5))
    ds = ndfeed.open(folder, sample="row")
    done = 0
    with bench.loader(ds, 64, drop_last=False) as loader:
        for number in range(5, 10):
            found = torch.cat([batch["data"] for batch in loader]).cpu().numpy()
            done += len(loader)
            assert (found == found[:, :1]).all()
            assert (np.sort(found[:, 0]) == np.arange(number * 1000)).all()
            took = loader.report().way
            write([number])
            assert loader.refresh(settle=0) == 1000
    report(question="values", way="refresh", batches=done, wrong=0, took=took)


QUESTIONS = {one.__name__: one for one in (windows, crops, orders)}


def main():
    """Answer the questions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", nargs="*", choices=[[], *QUESTIONS])
    parser.add_argument("--folder", help="where the data is written (default: a new folder)")
    parser.add_argument("--quick", action="store_true", help="less data: to try the script")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    bench = Bench(given.device, given.quick)
    for name in given.questions or QUESTIONS:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            QUESTIONS[name](bench, Path(folder))


if __name__ == "__main__":
    main()
