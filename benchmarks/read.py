"""Measure what it costs to read random samples from every kind of file, and the floor.

    one_npy     random batches of one large .npy: 150 KB, 3 KB and 128 B rows
    scattered   the same from 1,000 multi-row .npy files
    npy, npz, npz_deflated, pt, safetensors
                one sample per file, an image of 49 KB and a label (npy: the image alone)
    index       first and second open of 100,000 small .npy and .npz files

Each question has a floor (what the machine allows: the same bytes with everything known and
memory ready), today's solutions (what people write), and ours (``ds.read(rows)``, new memory for
every batch). Files are in the page cache. Prints one JSON line per measurement and per target.
Needs the ``test`` extra (torch, safetensors).

    python benchmarks/read.py [QUESTION ...] [--folder DIR] [--quick]
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import today
from measure import Threads, bar, compare, report

import ndfeed

IMAGE = (128, 128, 3)
# Shape of a row, rows per batch, rows in the file, rows in each of the scattered files.
ROWS = {
    "150KB": ((224, 224, 3), 256, 4_000, 4),
    "3KB": ((32, 32, 3), 256, 200_000, 200),
    "128B": ((128,), 1024, 4_000_000, 2_000),
}
ONE_FILE = {"150KB": 0.9, "3KB": 0.8, "128B": 0.6}
# Large rows are limited by memory bandwidth, whoever copies them.
SCATTERED = {"150KB": 1, "3KB": 5, "128B": 5}
rng = np.random.default_rng(0)


def one_npy(folder: Path, quick: bool) -> None:
    """Measure random batches of one large .npy."""
    for label, (shape, batch, count, _) in ROWS.items():
        count //= 10 if quick else 1
        path = folder / f"{label}.npy"
        data = np.lib.format.open_memmap(path, "w+", np.uint8, (count, *shape))
        data[...] = rng.integers(0, 255, (1, *shape))
        data.reshape(count, -1)[:, 0] = np.arange(count) % 251
        del data  # ndfeed does not map a file that is open for writing
        mapped = np.load(path, mmap_mode="r")
        plain, memory = np.asarray(mapped), np.array(mapped)
        batches = [rng.integers(0, count, batch) for _ in range(64)]
        rates = compare(
            f"one_npy {label}",
            {
                "floor: np.take from and to ready memory": today.take_ready(memory, batch),
                "np.take of the mapped file, fresh memory": partial(_take, plain),
                "today: memmap[rows]": mapped.__getitem__,
                "ours: ds.read": ndfeed.open(path).read,
            },
            batches,
            plain[batches[0]],
        )
        ours, take = rates["ours: ds.read"], rates["np.take of the mapped file, fresh memory"]
        bar(f"one_npy {label}", "ours / np.take of the mapped file", ours / take, ONE_FILE[label])
        path.unlink()


def _take(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.take(array, rows, axis=0)


def scattered(folder: Path, quick: bool) -> None:
    """Measure random batches over 1,000 multi-row .npy files."""
    for label, (shape, batch, _, each) in ROWS.items():
        place = folder / f"scattered_{label}"
        place.mkdir()
        for i in range(1000):
            part = np.repeat(rng.integers(0, 255, (1, *shape)).astype(np.uint8), each, axis=0)
            part.reshape(each, -1)[:, 0] = np.arange(each) % 251
            np.save(place / f"{i:04d}.npy", part)
        maps = [np.load(place / f"{i:04d}.npy", mmap_mode="r") for i in range(1000)]
        arrays = [np.asarray(one) for one in maps]
        batches = [rng.integers(0, 1000 * each, batch) for _ in range(16)]
        rates = compare(
            f"scattered {label}",
            {
                "floor: loop over plain arrays": today.loop(arrays),
                "today: loop over cached memmaps": today.loop(maps),
                "grouped by file": today.grouped(arrays),
                "ours: ds.read": ndfeed.open(place, sample="row").read,
            },
            batches,
            today.loop(arrays)(batches[0]),
        )
        ratio = rates["ours: ds.read"] / rates["today: loop over cached memmaps"]
        bar(f"scattered {label}", "ours / loop over cached memmaps", ratio, SCATTERED[label])
        shutil.rmtree(place)


def npy(folder: Path, quick: bool) -> None:
    """Measure one .npy per sample."""

    def write(stem: Path, image: np.ndarray, label: int) -> Path:
        np.save(stem.with_suffix(".npy"), image)
        return stem.with_suffix(".npy")

    _one_per_file("npy", folder, write, np.load, {"today": 3, "floor": 0.6}, quick, floor_at=128)


def _load_npz(path: Path) -> np.ndarray:
    with np.load(path) as archive:
        archive["label"]
        return archive["image"]


def npz(folder: Path, quick: bool) -> None:
    """Measure one stored .npz per sample."""

    def write(stem: Path, image: np.ndarray, label: int) -> Path:
        np.savez(stem.with_suffix(".npz"), image=image, label=np.int64(label))
        return stem.with_suffix(".npz")

    _one_per_file("npz", folder, write, _load_npz, {"today": 10}, quick, floor_at=187)


def npz_deflated(folder: Path, quick: bool) -> None:
    """Measure one deflated .npz per sample."""

    def write(stem: Path, image: np.ndarray, label: int) -> Path:
        np.savez_compressed(stem.with_suffix(".npz"), image=image, label=np.int64(label))
        return stem.with_suffix(".npz")

    _one_per_file("npz_deflated", folder, write, _load_npz, {"today": 5}, quick, workers=True)


def pt(folder: Path, quick: bool) -> None:
    """Measure one .pt per sample."""
    import torch

    def write(stem: Path, image: np.ndarray, label: int) -> Path:
        torch.save({"image": torch.from_numpy(image), "label": label}, stem.with_suffix(".pt"))
        return stem.with_suffix(".pt")

    def load(path: Path) -> np.ndarray:
        return torch.load(path, weights_only=True)["image"].numpy()

    _one_per_file("pt", folder, write, load, {"today": 5}, quick)


def safetensors(folder: Path, quick: bool) -> None:
    """Measure one .safetensors per sample."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    def write(stem: Path, image: np.ndarray, label: int) -> Path:
        save_file({"image": image, "label": np.array([label])}, stem.with_suffix(".safetensors"))
        return stem.with_suffix(".safetensors")

    def load(path: Path) -> np.ndarray:
        with safe_open(path, "numpy") as file:
            file.get_tensor("label")
            return file.get_tensor("image")

    _one_per_file("safetensors", folder, write, load, {"today": 1}, quick)


def _one_per_file(
    question: str,
    folder: Path,
    write: Callable[[Path, np.ndarray, int], Path],
    load: today.Load,
    bars: dict[str, float],
    quick: bool,
    *,
    floor_at: int = 0,
    workers: bool = False,
) -> None:
    """Write one sample per file, and time every way to read random batches of 64 of them."""
    count, batch = (400 if quick else 2000), 64
    place = folder / question
    place.mkdir()
    # Deflates to about half the size, as uint8 images do at best.
    images = (rng.integers(0, 255, (count, *IMAGE)) // 32 * 8).astype(np.uint8)
    paths = [write(place / f"{i:05d}", images[i], i) for i in range(count)]
    batches = [rng.permutation(count)[:batch] for _ in range(16)]
    ds = ndfeed.open(place, sample="file")
    ds = ds.select(*sorted(ds.fields))  # the image first
    ways: dict[str, today.Way] = {
        "today: one by one": today.stacked(paths, load),
        "today: in 2 threads": Threads(today.stacked(paths, load)),
        "ours: ds.read": ds.read,
        "ours: ds.read in 2 threads": Threads(ds.read),
    }
    if floor_at:
        ways["floor: open, read, close"] = today.read_ready(paths, floor_at, batch, IMAGE)
    if workers:
        ways["floor: decode alone, 2 threads"] = Threads(today.inflate_ready(paths, IMAGE))
        ways["today: DataLoader, 2 workers"] = today.dataloader(paths, load)
    rates = compare(question, ways, batches, images[batches[0]], unit="files")
    best = {
        kind: max(rate for name, rate in rates.items() if name.startswith(kind))
        for kind in ("ours", *bars)
    }
    for kind, wanted in bars.items():
        bar(question, f"ours / the best of {kind}", best["ours"] / best[kind], wanted)
    shutil.rmtree(place)


def index(folder: Path, quick: bool) -> None:
    """Measure the first and second open of many small files, each time with a new cache."""
    count = 10_000 if quick else 100_000
    for kind, wanted in (("npy", 40_000), ("npz", 15_000)):
        place = folder / f"index_{kind}"
        place.mkdir()
        for i in range(count):
            x = np.arange(16, dtype=np.float32)
            if kind == "npy":
                np.save(place / f"{i}.npy", x)
            else:
                np.savez(place / f"{i}.npz", x=x, y=np.int64(i))
        time.sleep(0.2)  # otherwise the newest files might still be being written
        times = np.array([_open_twice(place, folder / f"cache_{kind}_{i}") for i in range(5)])
        first, second = np.median(times, axis=0).tolist()
        report(question=f"index {kind}", files=count, first_s=first, second_s=second)
        bar(f"index {kind}", "files/s, first open", count / first, wanted)
        bar(f"index {kind}", "first open / second open", first / second, 20)
        shutil.rmtree(place)


def _open_twice(place: Path, cache: Path) -> list[float]:
    os.environ["XDG_CACHE_HOME"] = str(cache)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        ds = ndfeed.open(place, sample="file")
        times.append(time.perf_counter() - start)
        if len(ds) != len(ds.files):
            raise AssertionError("files are missing")
    return times


QUESTIONS = {
    f.__name__: f for f in (one_npy, scattered, npy, npz, npz_deflated, pt, safetensors, index)
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("questions", nargs="*", help=f"{', '.join(QUESTIONS)} (default: all)")
    parser.add_argument("--folder", help="where to make the files (default: temporary)")
    parser.add_argument("--quick", action="store_true", help="a fifth to a tenth of the data")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        os.environ["XDG_CACHE_HOME"] = str(Path(made) / "cache")
        report(cores=os.cpu_count(), numpy=np.__version__, ndfeed=ndfeed.__version__)
        for name in given.questions or QUESTIONS:
            QUESTIONS[name](Path(made), given.quick)
