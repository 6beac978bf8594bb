"""What does reading random samples cost, from every kind of file, and what is the floor?

    one_npy     random batches of one large .npy: 150 KB, 3 KB and 128 B rows
    scattered   the same from 1,000 multi-row .npy files
    npy, npz, npz_deflated, pt, safetensors
                one sample per file, an image of 49 KB and a label (npy: the image)
    index       first open and second open of 100,000 small .npy and of .npz files

Each question has a floor (what the machine allows: the same bytes with everything known and
memory ready), today's ways (what people write), and ours (``ds.read(rows)``, fresh memory for
every batch). Files are warm, in the page cache. Prints a JSON line for every way and for every
bar. Needs the ``test`` extra (torch, safetensors).

    python benchmarks/read.py [question ...] [--folder DIR] [--quick]
"""

import argparse
import os
import shutil
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from measure import bar, compare, report, same

import ndfeed

IMAGE = (128, 128, 3)
ROWS = {
    "150KB": ((224, 224, 3), 256, 4_000),
    "3KB": ((32, 32, 3), 256, 200_000),
    "128B": ((32,), 1024, 4_000_000),
}
SCATTERED = {
    "150KB": ((224, 224, 3), 64, 4),
    "3KB": ((32, 32, 3), 256, 200),
    "128B": ((32,), 1024, 2_000),
}
BARS_ONE = {"150KB": 0.9, "3KB": 0.8, "128B": 0.6}
rng = np.random.default_rng(0)


def one_npy(folder: Path, quick: bool) -> None:
    """Random batches of one large .npy."""
    for label, (shape, batch, count) in ROWS.items():
        dtype = np.float32 if label == "128B" else np.uint8
        count //= 10 if quick else 1
        path = folder / f"one_{label}.npy"
        data = np.lib.format.open_memmap(path, "w+", dtype, (count, *shape))
        data[...] = rng.integers(0, 255, (1, *shape))
        data.reshape(count, -1)[:, 0] = np.arange(count) % 251
        data.flush()
        batches = [rng.integers(0, count, batch) for _ in range(16)]
        memory = np.array(data)
        today = np.load(path, mmap_mode="r")
        plain = np.asarray(today)
        ds = ndfeed.open(path)
        turn = {"n": 0}

        def rows() -> np.ndarray:
            turn["n"] += 1
            return batches[turn["n"] % 16]

        fixed = batches[0]
        for way in (
            lambda: np.take(plain, fixed, axis=0),
            lambda: today[fixed],
            lambda: ds.read(fixed)["data"],
        ):
            np.testing.assert_array_equal(way(), data[fixed])
        rates = compare(
            f"one_npy {label}",
            {
                "floor: np.take, ready memory": _floor_take(memory, batch, rows),
                "np.take of the mapped file, fresh memory": lambda: np.take(plain, rows(), axis=0),
                "today: memmap[rows]": lambda: today[rows()],
                "ours: ds.read": lambda: ds.read(rows()),
            },
            lambda _: None,
            work=batch,
        )
        bar(
            f"one_npy {label}",
            "ours / np.take fresh",
            rates["ours: ds.read"] / rates["np.take of the mapped file, fresh memory"],
            BARS_ONE[label],
        )
        path.unlink()


def _floor_take(memory: np.ndarray, batch: int, rows: Any) -> Any:
    size = memory[0].nbytes
    out = np.empty((batch, *memory.shape[1:]), memory.dtype)
    records = memory.reshape(len(memory), -1).view(np.uint8).reshape(-1).view(f"V{size}")
    void = out.reshape(-1).view(np.uint8).view(f"V{size}")
    return lambda: np.take(records, rows(), out=void, mode="clip")


def scattered(folder: Path, quick: bool) -> None:
    """Random batches over 1,000 multi-row .npy files."""
    for label, (shape, batch, each) in SCATTERED.items():
        dtype = np.float32 if label == "128B" else np.uint8
        place = folder / f"scattered_{label}"
        place.mkdir()
        for i in range(1000):
            part = np.broadcast_to(rng.integers(0, 255, shape).astype(dtype), (each, *shape)).copy()
            part.reshape(each, -1)[:, 0] = np.arange(each) % 251
            np.save(place / f"{i:04d}.npy", part)
        ds = ndfeed.open(place, sample="row")
        maps = [np.load(place / f"{i:04d}.npy", mmap_mode="r") for i in range(1000)]
        arrays = [np.asarray(one) for one in maps]
        batches = [rng.integers(0, 1000 * each, batch) for _ in range(16)]
        turn = {"n": 0}

        def rows() -> np.ndarray:
            turn["n"] += 1
            return batches[turn["n"] % 16]

        def loop(sources: list, wanted: np.ndarray) -> np.ndarray:
            out = np.empty((len(wanted), *shape), dtype)
            for i, row in enumerate(wanted.tolist()):
                out[i] = sources[row // each][row % each]
            return out

        def grouped(wanted: np.ndarray) -> np.ndarray:
            out = np.empty((len(wanted), *shape), dtype)
            files = wanted // each
            for file in np.unique(files).tolist():
                at = np.flatnonzero(files == file)
                out[at] = arrays[file][wanted[at] % each]
            return out

        expected = loop(maps, batches[0])
        for got in (ds.read(batches[0])["data"], loop(arrays, batches[0]), grouped(batches[0])):
            np.testing.assert_array_equal(got, expected)
        rates = compare(
            f"scattered {label}",
            {
                "floor: loop over arrays in memory": lambda: loop(arrays, rows()),
                "today: loop over cached memmaps": lambda: loop(maps, rows()),
                "grouped by file": lambda: grouped(rows()),
                "ours: ds.read": lambda: ds.read(rows()),
            },
            lambda _: None,
            work=batch,
        )
        wanted = 5 if label != "150KB" else 1
        bar(
            f"scattered {label}",
            "ours / loop over cached memmaps",
            rates["ours: ds.read"] / rates["today: loop over cached memmaps"],
            wanted,
        )
        shutil.rmtree(place)


def _images(count: int) -> np.ndarray:
    """Images that compress to about half, as photographs in uint8 would at best."""
    return (rng.integers(0, 255, (count, *IMAGE)) // 32 * 8).astype(np.uint8)


def _per_file(
    question: str,
    place: Path,
    write: Any,
    ways: dict[str, Any],
    wanted: dict[str, float],
    count: int,
) -> None:
    """One sample per file: write them, compare every way with what was written, time them."""
    place.mkdir()
    images = _images(count)
    paths = []
    for i in range(count):
        paths.append(write(place / f"{i:05d}", images[i], np.int64(i)))
    ds = ndfeed.open(place, sample="file")
    batches = [rng.permutation(count)[:64] for _ in range(16)]
    turn = {"n": 0}

    def rows() -> np.ndarray:
        turn["n"] += 1
        return batches[turn["n"] % 16]

    name = next(iter(ds.fields))
    np.testing.assert_array_equal(ds.read(batches[0])[name], images[batches[0]])
    for way in ways.values():
        np.testing.assert_array_equal(np.asarray(way(paths, batches[0])), images[batches[0]])
    calls: dict[str, Any] = {
        label: (lambda way=way: way(paths, rows())) for label, way in ways.items()
    }
    calls["ours: ds.read"] = lambda: ds.read(rows())
    with ThreadPoolExecutor(2) as pool:
        calls["ours: ds.read, 2 threads"] = lambda: list(pool.map(ds.read, np.split(rows(), 2)))
        rates = compare(question, calls, lambda _: None, unit="files", work=64)
    ours = max(rates["ours: ds.read"], rates["ours: ds.read, 2 threads"])
    for label, least in wanted.items():
        others = max(rate for way, rate in rates.items() if way.startswith(label))
        bar(question, f"ours / {label}", ours / others, least)
    shutil.rmtree(place)


def _load_npz(path: Path) -> np.ndarray:
    with np.load(path) as archive:
        archive["label"]
        return archive["image"]


def _stack(load: Any) -> Any:
    return lambda paths, rows: np.stack([load(paths[i]) for i in rows.tolist()])


def _stack_threads(load: Any) -> Any:
    pool = ThreadPoolExecutor(2)
    return lambda paths, rows: np.stack(list(pool.map(load, [paths[i] for i in rows.tolist()])))


def _stack_workers(load: Any) -> Any:
    """torch's DataLoader with two persistent workers, kept busy, a batch at a time."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Files(Dataset):
        def __init__(self, paths: list) -> None:
            self.paths = paths

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, i: int) -> Any:
            return torch.from_numpy(load(self.paths[i]))

    class Sampler:
        def __init__(self) -> None:
            self.rows: list = []

        def __iter__(self) -> Any:
            return iter(self.rows)

        def __len__(self) -> int:
            return len(self.rows)

    state: dict[str, Any] = {}

    def call(paths: list, rows: np.ndarray) -> np.ndarray:
        if "loader" not in state:
            state["sampler"] = Sampler()
            state["loader"] = DataLoader(
                Files(paths), batch_sampler=state["sampler"], num_workers=2, persistent_workers=True
            )
        state["sampler"].rows = [half.tolist() for half in np.split(rows, 4)]
        return np.concatenate([batch.numpy() for batch in state["loader"]])

    return call


def _read_bytes(offset: int) -> Any:
    """The floor: open, read into ready memory, close; place and size known beforehand."""
    out = np.empty((64, *IMAGE), np.uint8)
    memory = memoryview(out.reshape(-1))
    size = out[0].nbytes

    def call(paths: list, rows: np.ndarray) -> np.ndarray:
        for i, row in enumerate(rows.tolist()):
            fd = os.open(paths[row], os.O_RDONLY)
            os.preadv(fd, [memory[i * size : (i + 1) * size]], offset)
            os.close(fd)
        return out

    return call


def npy(folder: Path, quick: bool) -> None:
    """One .npy per sample."""

    def write(stem: Path, image: np.ndarray, label: np.int64) -> Path:
        np.save(stem.with_suffix(".npy"), image)
        return stem.with_suffix(".npy")

    ways = {
        "floor: open, preadv, close": _read_bytes(128),
        "today: np.load": _stack(np.load),
        "today: np.load, 2 threads": _stack_threads(np.load),
    }
    _per_file(
        "npy", folder / "npy", write, ways, {"today": 3, "floor": 0.7}, 400 if quick else 2000
    )


def npz(folder: Path, quick: bool) -> None:
    """One stored .npz per sample."""

    def write(stem: Path, image: np.ndarray, label: np.int64) -> Path:
        np.savez(stem.with_suffix(".npz"), image=image, label=label)
        return stem.with_suffix(".npz")

    ways = {
        "floor: open, preadv, close": _read_bytes(187),
        "today: np.load": _stack(_load_npz),
        "today: np.load, 2 threads": _stack_threads(_load_npz),
    }
    _per_file("npz", folder / "npz", write, ways, {"today": 10}, 400 if quick else 2000)


def npz_deflated(folder: Path, quick: bool) -> None:
    """One deflated .npz per sample."""

    def write(stem: Path, image: np.ndarray, label: np.int64) -> Path:
        np.savez_compressed(stem.with_suffix(".npz"), image=image, label=label)
        return stem.with_suffix(".npz")

    ways = {
        "floor: zlib.decompress alone": _inflate_alone(),
        "today: np.load": _stack(_load_npz),
        "today: np.load, 2 threads": _stack_threads(_load_npz),
        "today: np.load, DataLoader with 2 workers": _stack_workers(_load_npz),
    }
    _per_file(
        "npz_deflated", folder / "npz_deflated", write, ways, {"today": 5}, 400 if quick else 2000
    )


def _inflate_alone() -> Any:
    """Decode streams that are in memory already, on two threads, with the fastest decoder here."""
    try:
        from isal.isal_zlib import decompress
    except ImportError:
        decompress = zlib.decompress
    held: dict[Path, bytes] = {}
    pool = ThreadPoolExecutor(2)

    def stream(path: Path) -> bytes:
        if path not in held:
            import zipfile

            with zipfile.ZipFile(path) as archive:
                start = archive.infolist()[0].header_offset
            data = path.read_bytes()
            skip = (
                30
                + int.from_bytes(data[start + 26 : start + 28], "little")
                + int.from_bytes(data[start + 28 : start + 30], "little")
            )
            held[path] = data[start + skip :]
        return held[path]

    def decode(streams: list[bytes]) -> list[bytes]:
        return [decompress(one, wbits=-15) for one in streams]

    def call(paths: list, rows: np.ndarray) -> np.ndarray:
        streams = [stream(paths[i]) for i in rows.tolist()]
        half = len(streams) // 2
        decoded = [
            one for part in pool.map(decode, [streams[:half], streams[half:]]) for one in part
        ]
        return np.stack(
            [np.frombuffer(one, np.uint8, offset=128).reshape(IMAGE) for one in decoded]
        )

    return call


def pt(folder: Path, quick: bool) -> None:
    """One .pt per sample."""
    import torch

    def write(stem: Path, image: np.ndarray, label: np.int64) -> Path:
        torch.save({"image": torch.from_numpy(image), "label": int(label)}, stem.with_suffix(".pt"))
        return stem.with_suffix(".pt")

    def load(path: Path) -> np.ndarray:
        return torch.load(path, weights_only=True)["image"].numpy()

    _per_file(
        "pt",
        folder / "pt",
        write,
        {"today: torch.load(weights_only=True)": _stack(load)},
        {"today": 5},
        400 if quick else 2000,
    )


def safetensors(folder: Path, quick: bool) -> None:
    """One .safetensors per sample."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    def write(stem: Path, image: np.ndarray, label: np.int64) -> Path:
        save_file({"image": image, "label": np.array([label])}, stem.with_suffix(".safetensors"))
        return stem.with_suffix(".safetensors")

    def load(path: Path) -> np.ndarray:
        with safe_open(path, "numpy") as file:
            file.get_tensor("label")
            return file.get_tensor("image")

    _per_file(
        "safetensors",
        folder / "safetensors",
        write,
        {"today: safe_open": _stack(load)},
        {"today": 1},
        400 if quick else 2000,
    )


def index(folder: Path, quick: bool) -> None:
    """First and second open of many small files, in fresh cache folders."""
    count = 10_000 if quick else 100_000
    for kind, least in (("npy", 40_000), ("npz", 15_000)):
        place = folder / f"index_{kind}"
        place.mkdir()
        for i in range(count):
            if kind == "npy":
                np.save(place / f"{i}.npy", np.arange(16, dtype=np.float32))
            else:
                np.savez(place / f"{i}.npz", x=np.arange(16, dtype=np.float32), y=np.int64(i))
        time.sleep(0.2)
        first, second = [], []
        for turn in range(3):
            os.environ["XDG_CACHE_HOME"] = str(folder / f"cache_{kind}_{turn}")
            for times in (first, second):
                start = time.perf_counter()
                ds = ndfeed.open(place, sample="file")
                times.append(time.perf_counter() - start)
                assert len(ds) == count and len(ds.files) == count
        report(
            question=f"index {kind}",
            files=count,
            first_s=round(min(first), 3),
            second_s=round(min(second), 3),
        )
        bar(f"index {kind}", "files/s, first open", count / sorted(first)[1], least)
        bar(f"index {kind}", "first / second open", sorted(first)[1] / sorted(second)[1], 20)
        shutil.rmtree(place)


QUESTIONS = {
    f.__name__: f for f in (one_npy, scattered, npy, npz, npz_deflated, pt, safetensors, index)
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", nargs="*", choices=[[], *QUESTIONS], help="default: all")
    parser.add_argument("--folder", help="where to make the files; default: a temporary folder")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        os.environ["XDG_CACHE_HOME"] = str(Path(made) / "cache")
        report(machine=f"{os.cpu_count()} cores", numpy=np.__version__, ndfeed=ndfeed.__version__)
        for question in given.questions or QUESTIONS:
            QUESTIONS[question](Path(made), given.quick)
