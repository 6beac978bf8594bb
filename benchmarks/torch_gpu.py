"""Measure how fast shuffled batches get from files into GPU memory.

    bus        what a pinned copy reaches, and what 16 threads gather into pinned memory
    files      the GPU reads the mapped file itself: 150 KB, 3 KB and 128 B rows
    labels     150 KB images and int64 labels from a second file, batches of 32, 256 and 1024
    pinned     the same rows through pinned memory
    resident   rows of 3 KB out of GPU memory
    maps       a function on the CPU that returns its input, and one that makes floats
    inflate    deflated .npz files of a 49 KB image each: inflated on the GPU by nvCOMP, on the CPU
               by processes, and by np.load in a DataLoader
    today      torch's DataLoader with pinned memory, at its best number of workers
    training   a ResNet-50 in bfloat16: fed, and on data that is on the GPU already

``tests/torch/test_cuda_races.py`` checks every value. Needs a CUDA device, about 20 GB of
disk and as much memory, and PyTorch. Prints one JSON line per measurement and target.

    python benchmarks/torch_gpu.py [QUESTION ...] [--folder DIR] [--quick]
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cores
import numpy as np
import torch
from measure import bar, report

import ndfeed
import ndfeed.torch
from ndfeed.cuda import feed
from ndfeed.cuda.driver import Refused
from ndfeed.cuda.nvcomp import load_nvcomp
from ndfeed.torch.cuda_feed import Feed

DEVICE = torch.device("cuda:0")
# Shape of a row, rows per batch, rows in the file.
ROWS = {
    "150KB": ((224, 224, 3), 256, 80_000),
    "3KB": ((32, 32, 3), 4096, 3_000_000),
    "128B": ((128,), 4096, 40_000_000),
}
FILES = {"150KB": 0.99, "3KB": 0.85}
_why_not_direct = feed.why_not_direct


class Bench:
    """Shared by the questions: files, and what the machine can deliver."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.bus = 0.0
        self.gather: dict[str, float] = {}

    def path(self, label: str) -> Path:
        """Return a file of rows that contain their row number in several places."""
        shape, _, count = ROWS[label]
        count //= 10 if self.quick else 1
        path = self.folder / f"{label}.npy"
        if not path.exists():
            data = np.lib.format.open_memmap(path, "w+", np.uint8, (count, *shape))
            rows = data.reshape(count, -1)
            rows[...] = np.random.default_rng(0).integers(0, 255, (1, rows.shape[1]))
            number = np.arange(count, dtype=np.uint32).view(np.uint8).reshape(count, 4)
            for at in (0, 60, rows.shape[1] // 2, rows.shape[1] - 4):
                rows[:, at : at + 4] = number
            data.flush()
            del data, rows
        return path


def sync_rate(call: Callable[[], int], seconds: float = 1.0) -> float:
    """Return bytes per second of a function that returns how many it moved."""
    call()
    torch.cuda.synchronize()
    began, moved = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        moved += call()
    torch.cuda.synchronize()
    return moved / (time.perf_counter() - began)


def bus(bench: Bench) -> None:
    """Measure what the hardware allows."""
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE)

    def copy() -> int:
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        return host.nbytes

    bench.bus = max(sync_rate(copy) for _ in range(3))
    report(question="bus", way="pinned copy", gb_per_s=round(bench.bus / 1e9, 1),
           device=torch.cuda.get_device_name(DEVICE), torch=torch.__version__)  # fmt: skip
    for label in ("150KB", "3KB"):
        bench.gather[label] = _gather(bench, label)
        report(question="bus", way=f"16 threads gather {label} rows into pinned memory",
               gb_per_s=round(bench.gather[label] / 1e9, 1))  # fmt: skip


def _gather(bench: Bench, label: str) -> float:
    batch = ROWS[label][1]
    mapped = np.load(bench.path(label), mmap_mode="r")
    size = mapped[0].nbytes
    records = np.asarray(mapped).reshape(-1).view(np.uint8).view(f"V{size}")

    def work(seed: int) -> float:
        rng = np.random.default_rng(seed)
        out = torch.empty((batch, size), dtype=torch.uint8, pin_memory=True).numpy()
        room = out.reshape(-1).view(f"V{size}")
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < 1.0:
            records.take(rng.integers(0, len(records), batch), out=room, mode="clip")
            done += out.nbytes
        return done / (time.perf_counter() - began)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
        return sum(pool.map(work, range(16)))


def labels(bench: Bench) -> None:
    """Measure images with labels from a file of their own; every label is compared."""
    path = bench.path("150KB")
    count = len(np.load(path, mmap_mode="r"))
    beside = path.with_name("labels.npy")
    np.save(beside, np.arange(count))
    ds = ndfeed.open({"image": path, "label": beside}, sample="row")
    size = int(np.prod(ROWS["150KB"][0]))
    for batch in (32, 256, 1024):
        best = 0.0
        wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
        for _ in range(3):
            loader = ndfeed.torch.loader(
                ds, batch, shuffle=True, drop_last=True, memory="8GB", device=DEVICE
            )
            for one in itertools.islice(loader, 200):
                number = one["image"].view(batch, size)[:, :4].contiguous().view(torch.int32)
                wrong += (number[:, 0] != one["label"]).any()
            batches = endless(loader)
            sync_rate(lambda batches=batches: next(batches)["image"].nbytes, 0.7)
            best = max(best, sync_rate(lambda batches=batches: next(batches)["image"].nbytes, 1.5))
            found = loader.report()
            loader.close()
        report(question=f"labels, batch {batch}", way="ours", gb_per_s=round(best / 1e9, 1),
               threads=found.threads, took=found.way, wrong=int(wrong))  # fmt: skip
        bar(f"labels, batch {batch}", "ours / pinned copy rate", best / bench.bus, 0.95)


def loader_of(path: Path, batch: int, way: str, **options: Any) -> Any:
    """Return a loader that uses one of the ways."""
    feed.why_not_direct = (lambda ds: "asked for") if way == "pinned" else _why_not_direct
    ds = ndfeed.open(path)
    steps = {"maps": floats, "same": same}
    return ndfeed.torch.loader(
        ds.map(steps[way]) if way in steps else ds, batch, shuffle=True, drop_last=True,
        memory="8GB", resident=way == "resident", **{"device": DEVICE} | options,
    )  # fmt: skip


def floats(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert to float on the CPU, in new arrays."""
    return {"data": batch["data"].astype(np.float32)}


def same(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what it is given."""
    return batch


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def measured(label: str, way: str, bench: Bench, batch: int = 0) -> float:
    """Return bytes per second, for a consumer that does nothing."""
    batch = batch or ROWS[label][1]
    best = 0.0
    for _ in range(3):
        loader = loader_of(bench.path(label), batch, way)
        batches = endless(loader)
        sync_rate(lambda batches=batches: next(batches)["data"].nbytes, 0.7)  # allocates memory
        best = max(best, sync_rate(lambda batches=batches: next(batches)["data"].nbytes, 1.5))
        found = loader.report()
        loader.close()
    size = int(np.prod(ROWS[label][0]))
    report(question=f"{way} {label}", way="ours", rows_per_s=round(best / size),
           gb_per_s=round(best / 1e9, 1), of_bus=round(best / bench.bus, 3),
           threads=found.threads, took=found.way)  # fmt: skip
    return best


def files(bench: Bench) -> None:
    """Measure the GPU reading the file."""
    for label in ROWS:
        rate = measured(label, "files", bench)
        if label in FILES:
            bar(f"files {label}", "ours / pinned copy rate", rate / bench.bus, FILES[label])
        else:
            bar(f"files {label}", "M rows/s", rate / 128 / 1e6, 48)


def pinned(bench: Bench) -> None:
    """Measure copies through pinned memory."""
    for label in ("150KB", "3KB"):
        rate = measured(label, "pinned", bench)
        most = min(bench.bus, bench.gather[label])
        bar(f"pinned {label}", "ours / lower of pinned copy and gather", rate / most, 0.85)


def resident(bench: Bench) -> None:
    """Measure data that is entirely on the device."""
    rate = measured("3KB", "resident", bench, batch=1024)
    bar("resident 3KB", "M rows/s at batch 1024", rate / 3072 / 1e6, 10)


def maps(bench: Bench) -> None:
    """Measure batches that a function makes on the CPU, for the CPU and for the GPU."""
    path, batch = bench.path("150KB"), ROWS["150KB"][1]
    rates = {}
    for device in ("cpu", "cuda"):
        with loader_of(path, batch, "maps", device=device) as loader:
            batches = endless(loader)
            sync_rate(lambda batches=batches: len(next(batches)["data"]), 2.0)  # allocates memory
            rates[device] = sync_rate(lambda batches=batches: len(next(batches)["data"]), 3.0)
            report(question="maps 150KB", way=f"ours, {device}", rows_per_s=round(rates[device]),
                   took=loader.report().way)  # fmt: skip
    bar("maps 150KB", "on the GPU / on the CPU", rates["cuda"] / rates["cpu"], 0.8)
    rate = measured("150KB", "same", bench)
    bar("maps 150KB", "a map that returns its input / pinned copy rate", rate / bench.bus, 0.9)


class Deflated(torch.utils.data.Dataset[Any]):
    """The usual way: np.load, file by file."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.iterdir()))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        with np.load(self.paths[number]) as found:
            return {name: torch.from_numpy(found[name]) for name in ("x", "y")}


def no_nvcomp() -> Any:
    raise Refused("asked for")


def deflated_files(bench: Bench, distinct: int = 4000) -> tuple[Path, torch.Tensor]:
    """Return a folder of files, and the images in them by label; each is in several files."""
    first, folder = bench.folder / "distinct", bench.folder / "deflated"
    # In a process of its own: those that it starts need no CUDA.
    code = "import sys, cores; cores.write(sys.argv[1], 'deflated npz', cores.SMALL, {})"
    subprocess.run(
        [sys.executable, "-c", code.format(distinct), str(first)],
        cwd=Path(__file__).parent, check=True,
    )  # fmt: skip
    folder.mkdir()
    images = np.empty((distinct, *cores.SMALL), np.uint8)
    for number, path in enumerate(sorted(first.iterdir())):
        content = path.read_bytes()
        images[number] = cores.picture(number, cores.SMALL)
        for again in range(5 if bench.quick else 20):
            (folder / f"{again:02}-{path.name}").write_bytes(content)
    return folder, torch.from_numpy(images).to(DEVICE)


def inflate(bench: Bench) -> None:
    """Measure deflated files of one image each."""
    folder, images = deflated_files(bench)
    ds = ndfeed.open(folder, sample="file")
    rates = {}
    ways = {"ours, inflated on the GPU": load_nvcomp, "ours, on the CPU": no_nvcomp}
    for name, load in ways.items():
        Feed.load_library = staticmethod(load)
        for batch in (256,) if bench.quick else (256, 64):
            loader = ndfeed.torch.loader(ds, batch, shuffle=True, drop_last=True, device=DEVICE)
            with loader:
                batches = endless(loader)
                wrong = compare_images(itertools.islice(batches, 300), images)
                sync_rate(lambda batches=batches: len(next(batches)["y"]), 3.0)
                found = [sync_rate(lambda b=batches: len(next(b)["y"]), 1.5) for _ in range(2)]
                rates[name, batch] = max(found)
                told = loader.report()
            report(question=f"inflate, batch {batch}", way=name, files_per_s=round(max(found)),
                   gb_per_s=round(max(found) * images[0].nbytes / 1e9, 1), wrong=wrong,
                   threads=told.threads, processes=told.processes, took=told.way)  # fmt: skip
    Feed.load_library = staticmethod(load_nvcomp)
    batches = deflated_today(folder)
    wrong = compare_images(itertools.islice(batches, 20), images)
    today = sync_rate(lambda: len(next(batches)["y"]), 3.0)
    report(question="inflate, batch 256", way="DataLoader with np.load, 16 workers",
           files_per_s=round(today), wrong=wrong)  # fmt: skip
    ours = rates["ours, inflated on the GPU", 256]
    bar("inflate, batch 256", "thousand files/s", ours / 1e3, 100)
    bar("inflate, batch 256", "ours / DataLoader", ours / today, 10)


def compare_images(batches: Iterator[Any], images: torch.Tensor) -> int:
    """Return how many batches have a wrong value."""
    wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for batch in batches:
        wrong += (batch["x"] != images[batch["y"]]).any()
    return int(wrong)


def deflated_today(folder: Path) -> Iterator[Any]:
    loader = torch.utils.data.DataLoader(
        Deflated(folder), 256, shuffle=True, drop_last=True, num_workers=16, pin_memory=True,
        persistent_workers=True, prefetch_factor=4,
    )  # fmt: skip
    while True:
        for one in loader:
            yield {name: values.to(DEVICE, non_blocking=True) for name, values in one.items()}


class Mapped(torch.utils.data.Dataset[torch.Tensor]):
    """The usual way: a mapped array, one row at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.array: np.ndarray | None = None

    def __len__(self) -> int:
        return len(np.load(self.path, mmap_mode="r"))

    def __getitem__(self, row: int) -> torch.Tensor:
        if self.array is None:
            self.array = np.load(self.path, mmap_mode="r")
        return torch.from_numpy(np.array(self.array[row]))


def today_batches(path: Path, batch: int, workers: int) -> Iterator[torch.Tensor]:
    loader = torch.utils.data.DataLoader(
        Mapped(path), batch, shuffle=True, drop_last=True, num_workers=workers, pin_memory=True,
        persistent_workers=workers > 0, prefetch_factor=4 if workers else None,
    )  # fmt: skip
    while True:
        for one in loader:
            yield one.to(DEVICE, non_blocking=True)


def today(bench: Bench) -> None:
    """Measure torch's DataLoader."""
    for label in ("150KB", "3KB"):
        rates = {}
        for workers in (0, 8, 16):
            batches = today_batches(bench.path(label), ROWS[label][1], workers)
            next(batches)
            rates[workers] = sync_rate(lambda batches=batches: next(batches).nbytes, 3.0)
            del batches
            report(question=f"today {label}", way=f"DataLoader, {workers} workers",
                   rows_per_s=round(rates[workers] / int(np.prod(ROWS[label][0]))))  # fmt: skip
        mine = measured(label, "files", bench)
        bar(f"today {label}", "ours / best DataLoader", mine / max(rates.values()), 20)


def training(bench: Bench) -> None:
    """Measure training: a network that computes much per image, and one that computes little."""
    import torchvision

    small = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 16, 16), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Linear(64, 1000),
    )  # fmt: skip
    for net, model in (("ResNet-50", torchvision.models.resnet50()), ("small network", small)):
        _train(bench, net, model.to(DEVICE, memory_format=torch.channels_last))


def _train(bench: Bench, name_of_net: str, model: torch.nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    label = torch.zeros(256, dtype=torch.int64, device=DEVICE)

    def step(images: torch.Tensor) -> int:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return 1

    def prepared(raw: torch.Tensor) -> torch.Tensor:
        return raw.permute(0, 3, 1, 2).to(torch.bfloat16).div_(255)

    path = bench.path("150KB")
    data = torch.from_numpy(np.load(path, mmap_mode="r")[:256].copy()).to(DEVICE)
    ways: dict[str, Callable[[], Iterator[torch.Tensor]]] = {
        "data on the GPU already": lambda: itertools.repeat(data),
        "ours": lambda: (one["data"] for one in endless(loader_of(path, 256, "files"))),
        "ours, through pinned memory": lambda: (
            one["data"] for one in endless(loader_of(path, 256, "pinned"))
        ),
        "DataLoader, 16 workers": lambda: today_batches(path, 256, 16),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(2):
        for name, way in ways.items():
            batches = way()
            for _ in range(5):
                step(prepared(next(batches)))
            rates[name].append(sync_rate(lambda b=batches: step(prepared(next(b))), 3.0))
            del batches
    base = max(rates["data on the GPU already"])
    for name, found in rates.items():
        report(question=f"training {name_of_net}", way=name, images_per_s=round(256 * max(found)),
               waiting=round(max(1 - max(found) / base, 0), 4))  # fmt: skip
        if name_of_net == "ResNet-50" and name.startswith("ours"):
            # The small one is limited by its own kernel launches.
            fed = name.replace("ours", "fed")
            bar("training ResNet-50", f"{fed} / on the GPU already", max(found) / base, 0.99)


QUESTIONS = {
    f.__name__: f for f in (bus, files, labels, pinned, resident, maps, inflate, today, training)
}


def main() -> None:
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("questions", nargs="*", help=", ".join(QUESTIONS))
    parser.add_argument("--folder", type=Path, help="where to make the files (default: temporary)")
    parser.add_argument("--quick", action="store_true", help="smaller data")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        bench = Bench(Path(folder), given.quick)
        if given.questions != ["inflate"]:
            bus(bench)
        for name in given.questions or [name for name in QUESTIONS if name != "bus"]:
            QUESTIONS[name](bench)


if __name__ == "__main__":
    main()
