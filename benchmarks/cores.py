"""How do files, decoding and maps scale with the cores of the machine?

One sample per file, batches of 64, shuffled; samples of 49 and 786 KB, like small images and
feature maps. Compared with a DataLoader that calls ``np.load`` (or ``torch.load``) in 4, 8 and 16
workers, of which the best counts, and with a floor: as many processes as cores, which read with
nothing around them. ndfeed runs with the defaults unless a line says otherwise, on 1, 2, 4, 8 and
all cores (by affinity). A map crops and flips every sample with NumPy; its rows are in the page
cache like everything here. Compressed files of many rows are shuffled within ``memory`` for an
eighth of them. Where there is a GPU, batches are also delivered to its memory. Sums of all batches
are compared before anything is timed.

    python benchmarks/cores.py                  # all questions, on all cores
    python benchmarks/cores.py deflated stored  # some
    python benchmarks/cores.py --seconds 2 --counts 1 2
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

SMALL, LARGE = (128, 128, 3), (512, 512, 3)
BATCH = 64
CASES = {
    # name: kind of file, shape, files, targets against the best DataLoader and the floor
    # (for a map: by default, and in as many processes as cores)
    "deflated": ("deflated npz", SMALL, 12_000, 3, 0.8),
    "deflated-large": ("deflated npz", LARGE, 1_500, 3, 0.85),
    "stored": ("npz", SMALL, 12_000, 8, None),
    "npy": ("npy", SMALL, 12_000, 5, None),
    "pt": ("pt", SMALL, 12_000, 8, None),
    "map": ("npy rows", SMALL, 12_000, 1.2, 1.5),
    "many-rows": ("deflated npz of 200 rows", SMALL, 240, 3, None),
}


def picture(number, shape):
    """Like a photograph: smooth, with a little noise, and deflated to about a half."""
    y, x, c = np.ogrid[: shape[0], : shape[1], : shape[2]]
    smooth = 100 + 60 * np.sin(x / 17 + number) + 60 * np.cos(y / 23 + c)
    noise = np.random.default_rng(number).integers(0, 8, shape)
    # In steps of four: without them, deflating would save a tenth.
    return ((smooth + noise) // 4 * 4).clip(0, 255).astype(np.uint8)


def write_some(folder, kind, shape, numbers):
    """Write the files of ``numbers``."""
    for number in numbers:
        path = f"{folder}/{number:06}"
        if kind == "deflated npz of 200 rows":
            rows = np.stack([picture(number * 200 + i, shape) for i in range(200)])
            np.savez_compressed(path, x=rows, y=np.arange(number * 200, number * 200 + 200))
            continue
        one = picture(number, shape)
        if kind == "deflated npz":
            np.savez_compressed(path, x=one, y=np.int64(number))
        elif kind == "npz":
            np.savez(path, x=one, y=np.int64(number))
        elif kind == "npy":
            np.save(path, one)
        elif kind == "pt":
            import torch

            torch.save({"x": torch.from_numpy(one), "y": torch.tensor(number)}, path + ".pt")


def write(folder, kind, shape, files):
    """Write all files of a case, on every core."""
    os.makedirs(folder)
    if kind == "npy rows":
        # Eight times the same, so that an epoch takes longer than forking processes for it.
        out = np.lib.format.open_memmap(f"{folder}/x.npy", "w+", np.uint8, (8 * files, *shape))
        for number in range(files):
            out[number::files] = picture(number, shape)
        return
    with multiprocessing.get_context("spawn").Pool() as pool:
        some = np.array_split(np.arange(files), 64)
        pool.starmap(write_some, [(folder, kind, shape, one.tolist()) for one in some])


def crop_and_flip(sample, rng=None):
    """Crop a sample at random and flip half of them: a map that holds the GIL."""
    rng = rng or np.random.default_rng()
    image = sample["x"] if isinstance(sample, dict) else sample
    top, left = rng.integers(0, 17, 2)
    image = image[top : top + 112, left : left + 112]
    if rng.random() < 0.5:
        image = image[:, ::-1]
    return {"x": np.ascontiguousarray(image, np.float32) / 255}


class Files:
    """What people write: a dataset of files for a DataLoader."""

    def __init__(self, folder, kind):
        self.paths = sorted(f"{folder}/{name}" for name in os.listdir(folder))
        self.kind = kind
        self.rows = np.load(self.paths[0], mmap_mode="r") if kind == "npy rows" else None

    def __len__(self):
        return len(self.paths) if self.rows is None else len(self.rows)

    def __getitem__(self, i):
        import torch

        if self.rows is not None:
            return torch.from_numpy(crop_and_flip(np.array(self.rows[i]))["x"])
        if self.kind == "pt":
            return torch.load(self.paths[i])["x"]
        found = np.load(self.paths[i])
        return torch.from_numpy(found if self.kind == "npy" else found["x"])


class Parts:
    """The same for compressed files of many rows: file after file, rows shuffled within one."""

    def __new__(cls, folder):
        import torch.utils.data as data

        class Some(data.IterableDataset):
            def __iter__(self):
                info = data.get_worker_info()
                paths = sorted(os.listdir(folder))[info.id :: info.num_workers]
                for path in paths:
                    rows = np.load(f"{folder}/{path}")["x"]
                    for i in np.random.default_rng(0).permutation(len(rows)):
                        yield torch.from_numpy(rows[i])

        import torch

        return Some()


def run_dataloader(folder, kind, workers, seconds):
    """Rows a second of a DataLoader, after an epoch that is not timed."""
    import torch.utils.data as data

    many = kind == "deflated npz of 200 rows"
    made = Parts(folder) if many else Files(folder, kind)
    loader = data.DataLoader(
        made, BATCH, shuffle=None if many else True, num_workers=workers, prefetch_factor=4,
        persistent_workers=True,
    )  # fmt: skip
    return timed(lambda: (len(batch) for batch in loader), seconds)


def open_case(folder, kind):
    """The dataset of a case, its maps included."""
    import ndfeed

    ds = ndfeed.open(folder, sample="row" if "rows" in kind else "file")
    if kind == "npy rows":
        import cores  # by name: processes find it there

        ds = ds.rename({"data": "x"}).map(cores.crop_and_flip, batched=False)
    elif kind == "npy":
        ds = ds.rename({"data": "x"})
    return ds


def run_ndfeed(folder, kind, options, seconds):
    """Rows a second of a loader, and how it worked."""
    import ndfeed

    ds = open_case(folder, kind)
    if kind == "deflated npz of 200 rows":
        options = {"memory": "300MB", **options}  # so members are decoded in every epoch
    make = ndfeed.loader
    if "device" in options:
        import ndfeed.torch

        make = ndfeed.torch.loader
    with make(ds, BATCH, shuffle=True, fields="x", **options) as loader:
        # Longer where it has to find out first whether processes are faster.
        rate = timed(lambda: map(len, loader), seconds, warm=2 if "processes" in options else 4)
        report = loader.report()
    return rate, {"threads": report.threads, "processes": report.processes}


def has_gpu():
    """Is there one that torch can use? Asked in another process: CUDA is not to be in use here."""
    import subprocess

    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return not subprocess.run([sys.executable, "-c", code], check=False).returncode


def run_apart(*case):
    """``run_ndfeed`` in a process of its own: CUDA in use is another program."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run_ndfeed, case)


def timed(epoch, seconds, warm=2.0):
    """Rows a second over whole epochs and parts of them, after ``warm`` seconds."""
    rows, began, timing = 0, time.perf_counter(), False
    while True:
        for count in epoch():
            rows += count
            now = time.perf_counter()
            if not timing and now - began > warm:
                rows, began, timing = 0, now, True
            elif timing and now - began > seconds:
                return rows / (now - began)


def read_share(folder, kind, options, connection):
    """A process of the floor: reads batch after batch of a share, into the same memory."""
    rank, world, seconds = options
    ds = open_case(folder, kind)
    share = np.random.default_rng(0).permutation(len(ds))[rank::world]
    out = None
    connection.send("ready")
    connection.recv()
    rows, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for at in range(0, len(share) - BATCH + 1, BATCH):
            if kind == "npy rows" or out is None:
                out = ds.read(share[at : at + BATCH])
            else:
                ds.read_into(share[at : at + BATCH], out)
            rows += BATCH
            if time.perf_counter() - began > seconds:
                break
    connection.send(rows / (time.perf_counter() - began))


def read_files(folder, _kind, options, connection):
    """The same for files of many rows: reads file after file of a share, each anew."""
    import ndfeed

    rank, world, seconds = options
    paths = sorted(os.listdir(folder))[rank::world]
    connection.send("ready")
    connection.recv()
    rows, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for path in paths:
            rows += len(ndfeed.open(f"{folder}/{path}", sample="row")[:]["x"])
            if time.perf_counter() - began > seconds:
                break
    connection.send(rows / (time.perf_counter() - began))


def run_floor(folder, kind, count, seconds):
    """Rows a second of processes that read with nothing around them."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(count)]
    read = read_files if kind == "deflated npz of 200 rows" else read_share
    children = [
        context.Process(target=read, args=(folder, kind, (i, count, seconds), theirs))
        for i, (_, theirs) in enumerate(pairs)
    ]
    for child in children:
        child.start()
    for ours, _ in pairs:
        ours.recv()
    for ours, _ in pairs:
        ours.send("go")
    found = sum(ours.recv() for ours, _ in pairs)
    for child in children:
        child.join()
    return found


def compare_answers(folder, kind, counts):
    """All ways give the same rows: sums of everything, by threads and by processes."""
    import ndfeed

    ds = open_case(folder, kind)
    sums = []
    for processes in (0, counts[-1]):
        found = 0
        with ndfeed.loader(ds, BATCH, shuffle=True, fields="x", processes=processes) as loader:
            for _, batch in zip(range(40), loader, strict=False):
                found = (found * 31 + int(batch.astype(np.int64).sum())) % (1 << 61)
        sums.append(found)
    assert len(set(sums)) == 1, sums


def say(**line):
    """Print a line of results."""
    print(json.dumps(line), flush=True)


def ask(name, root, asked):
    """Answer for one case."""
    kind, shape, files, against, of_floor = CASES[name]
    folder = f"{root}/{name}"
    write(folder, kind, shape, max(int(files * asked.size), BATCH))
    every = os.sched_getaffinity(0)
    counts = [count for count in asked.counts if count <= len(every)]
    most, seconds = counts[-1], asked.seconds
    compare_answers(folder, kind, counts)
    naive = {}
    for workers in (4, 8, 16):
        if workers <= max(4, len(every)):
            naive[workers] = run_dataloader(folder, kind, workers, seconds)
            say(case=name, way="DataLoader", workers=workers, rate=round(naive[workers]))
    for count in counts:
        os.sched_setaffinity(0, sorted(every)[:count])
        rate, how = run_ndfeed(folder, kind, {}, seconds)
        say(case=name, way="ndfeed", cores=count, rate=round(rate), **how)
    fixed = {}
    for processes in (most, 0):
        fixed[processes], how = run_ndfeed(folder, kind, {"processes": processes}, seconds)
        way = f"ndfeed, processes={processes}"
        say(case=name, way=way, cores=most, rate=round(fixed[processes]), **how)
    best = max(naive.values())
    say(case=name, ratio="of the best DataLoader", found=round(rate / best, 2), target=against)
    if kind == "npy rows":
        found = round(fixed[most] / best, 2)
        say(case=name, ratio="of it with processes", found=found, target=of_floor)
    else:
        floor = run_floor(folder, kind, most, seconds)
        say(case=name, way="floor", cores=most, rate=round(floor))
        say(case=name, ratio="of the floor", found=round(rate / floor, 2), target=of_floor)
    if kind == "deflated npz of 200 rows":
        say(case=name, ratio="of threads", found=round(rate / fixed[0], 2), target=against)
    if asked.gpu:
        there, how = run_apart(folder, kind, {"device": "cuda"}, seconds)
        say(case=name, way="ndfeed to the GPU", cores=most, rate=round(there), **how)
        say(case=name, ratio="to the GPU", found=round(there / rate, 2), target=0.9)
    os.sched_setaffinity(0, every)
    shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", help="all, unless named")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--size", type=float, default=1, help="times as many files")
    parser.add_argument("--counts", type=int, nargs="*", default=[1, 2, 4, 8, 16], help="cores")
    parser.add_argument("--folder", help="where to make files")
    asked = parser.parse_args()
    asked.gpu = has_gpu()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="ndfeed-cores-", dir=asked.folder) as root:
        for name in asked.cases or CASES:
            ask(name, root, asked)


if __name__ == "__main__":
    main()
