"""Measure how fast shuffled batches get into TensorFlow, and in how much memory.

    rows        one .npy of 150 KB, 3 KB and 128 B rows in the page cache, exact shuffle
    compressed  500 deflated .npz of many rows each, shuffled
    memory      data four times larger than ``memory``: anonymous memory over three epochs

Today's solutions are a generator of batches from the mapped file, the entire array in
``from_tensor_slices``, ``numpy_function`` around the mapped file, and an interleave of files that
are each loaded completely. One solution is unsafe: the mapped file as a tensor that TensorFlow
gathers from by itself, which nothing protects against writers. The floor is the same ready batches
in memory again and again, handed over and divided as ours are: no file is read, and the remaining
time is TensorFlow's own. These two use our iterator; the others, as people write them, use
TensorFlow's.

All rows of one question come in the same order, where a solution has one; the first batch is
compared before anything is timed. Prints one JSON line per measurement and per target.

    python benchmarks/tf_batches.py [QUESTION ...] [--folder DIR] [--quick]
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from loader import Peak, anonymous, order_of
from measure import bar, report

import ndfeed
import ndfeed.tf
from ndfeed.tf.fast_iterator import Batches

Way = Callable[[], tf.data.Dataset]

ROWS = {
    "150KB": ((224, 224, 3), 256, 8_000),
    "3KB": ((32, 32, 3), 256, 400_000),
    "128B": ((128,), 1024, 8_000_000),
}
IMAGE = (32, 32, 3)
BARS = {"150KB": 4, "3KB": 2.5, "128B": 4}
AT_A_TIME = 64  # index batches passed to the unguarded solution at a time
PIECE = 16 << 20  # bytes of ready batches handed over at a time


def compare(question: str, ways: dict[str, Way], expected: np.ndarray | None, size: int,
            seconds: float, rounds: int) -> dict[str, float]:  # fmt: skip
    """Return the median rows per second of every way, timed in turn."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    peaks = dict.fromkeys(ways, 0)
    for turn in range(rounds):
        for name, way in ways.items():
            before = anonymous()
            with Peak() as peak:
                batches = iter(way())
                first = next(batches)[0].numpy()
                if turn == 0 and expected is not None and "slices" not in name:
                    np.testing.assert_array_equal(first, expected, err_msg=f"{question}: {name}")
                rates[name].append(timed(batches, seconds) * size)
            peaks[name] = max(peaks[name], peak.bytes - before)
            del batches
    for name, found in rates.items():
        report(question=question, way=name, rows_per_s=round(statistics.median(found)),
               range=[round(min(found)), round(max(found))], peak_mb=peaks[name] >> 20)  # fmt: skip
    return {name: statistics.median(found) for name, found in rates.items()}


def timed(batches: Iterator[tuple[tf.Tensor, ...]], seconds: float) -> float:
    """Return batches per second, after some warm-up batches."""
    for _ in range(8):
        next(batches)
    start = time.perf_counter()
    for done in itertools.count(1):
        next(batches)
        taken = time.perf_counter() - start
        if taken > seconds:
            return done / taken
    raise AssertionError


def rows(folder: Path, quick: bool) -> None:
    """Measure raw rows of three sizes."""
    for name, (shape, size, count) in ROWS.items():
        some = count // 20 if quick else count
        path = folder / f"{name}.npy"
        if not path.exists():
            made = np.lib.format.open_memmap(path, "w+", np.uint8, (some, *shape))
            rng = np.random.default_rng(0)
            for at in range(0, some, 1 << 14):
                made[at : at + (1 << 14)] = rng.integers(0, 256, made[at : at + (1 << 14)].shape)
            del made
        row_size(f"rows {name}", path, size, BARS[name], quick)


def row_size(question: str, path: Path, size: int, wanted: float, quick: bool) -> None:
    """Measure rows of one size."""
    mapped = np.load(path, mmap_mode="c")
    mapped.reshape(-1)[::4096].sum()  # load it into the page cache
    count = len(mapped)
    ds = ndfeed.open(path)
    spec = tf.TensorSpec((size, *mapped.shape[1:]), tf.uint8)
    ways: dict[str, Way] = {
        "from_generator": lambda: tf.data.Dataset.from_generator(
            lambda: ((mapped[ix],) for ix in order_of(count, size)), output_signature=(spec,)
        ).prefetch(2),
        "numpy_function": lambda: (
            indices(count, size)
            .map(lambda ix: (looked_up(mapped, ix, spec),), num_parallel_calls=2)
            .prefetch(2)
        ),
        "unguarded gather": lambda: unguarded(mapped, count, size),
        "ready": lambda: ready(mapped, count, size),
        "ours": lambda: ndfeed.tf.dataset(
            ds, size, shuffle=True, drop_last=True, fields=("data",), epochs=None
        ),
    }
    if mapped.nbytes < 1 << 31:
        ways["from_tensor_slices"] = lambda: (
            tf.data.Dataset.from_tensor_slices((np.asarray(mapped),))
            .shuffle(10_000)
            .repeat()
            .batch(size, drop_remainder=True)
            .prefetch(2)
        )
    expected = mapped[next(order_of(count, size))]
    found = compare(question, ways, expected, size, 0.5 if quick else 2, 3 if quick else 5)
    bar(question, "ours / from_generator", found["ours"] / found["from_generator"], wanted)
    today = max(v for k, v in found.items() if k not in ("ours", "unguarded gather", "ready"))
    bar(question, "ours / best of today", found["ours"] / today, 1)
    bar(question, "ours / unguarded gather", found["ours"] / found["unguarded gather"], 0.8)
    report(question=question, floor="ours / ready", ratio=round(found["ours"] / found["ready"], 2))


def indices(count: int, size: int) -> tf.data.Dataset:
    """Return a dataset of the row numbers of batches."""
    spec = tf.TensorSpec((size,), tf.int64)
    return tf.data.Dataset.from_generator(lambda: order_of(count, size), output_signature=spec)


def looked_up(mapped: np.ndarray, ix: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Read a batch with ``numpy_function``."""
    return tf.ensure_shape(tf.numpy_function(lambda i: mapped[i], [ix], tf.uint8), spec.shape)


def unguarded(mapped: np.ndarray, count: int, size: int) -> tf.data.Dataset:
    """Let TensorFlow gather from the map: a file truncated meanwhile kills the process."""
    tensor = tf.experimental.dlpack.from_dlpack(np.asarray(mapped).__dlpack__())
    many = min(AT_A_TIME, count // size)

    def blocks() -> Iterator[np.ndarray]:
        order = order_of(count, size)
        while True:
            yield np.stack(list(itertools.islice(order, many)))

    spec = tf.TensorSpec((many, size), tf.int64)
    ix = tf.data.Dataset.from_generator(blocks, output_signature=spec).unbatch()
    gathered = ix.map(lambda i: (tf.gather(tensor, i),), num_parallel_calls=2, deterministic=True)
    return Batches(gathered.prefetch(2))


def ready(mapped: np.ndarray, count: int, size: int) -> tf.data.Dataset:
    """Return some megabytes of ready batches, placed where TensorFlow uses them without a copy."""
    many = min(max(PIECE // (size * mapped[0].nbytes), 1), count // size)
    rows = np.concatenate(list(itertools.islice(order_of(count, size), many)))
    room = np.empty(len(rows) * mapped[0].nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    piece = room[start : start + len(rows) * mapped[0].nbytes].reshape(-1, *mapped.shape[1:])
    piece[...] = mapped[rows]
    piece = piece.reshape(many, size, *mapped.shape[1:])
    spec = (tf.TensorSpec(piece.shape, tf.uint8),)
    pieces = tf.data.Dataset.from_generator(
        lambda: itertools.repeat((piece,)), output_signature=spec
    )
    cut = pieces.flat_map(lambda part: tf.data.Dataset.from_tensor_slices((part,)))
    return Batches(cut.prefetch(4))


def load(path: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Load an entire file."""
    with np.load(path.decode()) as file:
        return file["x"], file["n"]


def loaded(path: tf.Tensor) -> tf.data.Dataset:
    """Return a dataset of the rows of a file."""
    x, n = tf.numpy_function(load, [path], (tf.uint8, tf.int64))
    x, n = tf.ensure_shape(x, (None, *IMAGE)), tf.ensure_shape(n, (None,))
    return tf.data.Dataset.from_tensor_slices((x, n))


def windows(paths: list[str], size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches from sixteen files at a time, their rows shuffled."""
    rng = np.random.default_rng(0)
    while True:
        for some in np.array_split(rng.permutation(len(paths)), max(len(paths) // 16, 1)):
            parts = [load(paths[i].encode()) for i in some]
            x, n = (np.concatenate(one) for one in zip(*parts, strict=True))
            order = rng.permutation(len(n))
            for at in range(0, len(n) - size + 1, size):
                yield x[order[at : at + size]], n[order[at : at + size]]


def compressed(folder: Path, quick: bool) -> None:
    """Measure deflated files of many rows each."""
    files, each, size = (50 if quick else 500), 200, 256
    (folder / "npz").mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    paths = [str(folder / "npz" / f"{i:04}.npz") for i in range(files)]
    for i, path in enumerate(paths):
        if not os.path.exists(path):
            x = rng.integers(0, 16, (each, *IMAGE)).astype(np.uint8)
            np.savez_compressed(path, x=x, n=np.arange(i * each, (i + 1) * each))
    ds = ndfeed.open(paths, sample="row")
    spec = (tf.TensorSpec((size, *IMAGE), tf.uint8), tf.TensorSpec((size,), tf.int64))
    ways: dict[str, Way] = {
        "parallel interleave": lambda: (
            tf.data.Dataset.from_tensor_slices(paths)
            .shuffle(files)
            .repeat()
            .interleave(loaded, cycle_length=16, block_length=16, num_parallel_calls=2)
            .shuffle(4096)
            .batch(size, drop_remainder=True)
            .prefetch(2)
        ),
        "from_generator": lambda: tf.data.Dataset.from_generator(
            lambda: windows(paths, size), output_signature=spec
        ).prefetch(2),
        "ours": lambda: ndfeed.tf.dataset(
            ds, size, shuffle=True, drop_last=True, fields=("x", "n"), epochs=None
        ),
    }
    for name, way in ways.items():  # each has its own order
        x, n = next(iter(way()))
        np.testing.assert_array_equal(x.numpy(), ds.read(n.numpy())["x"], err_msg=name)
    found = compare("compressed", ways, None, size, 1 if quick else 4, 3 if quick else 5)
    best = max(found["parallel interleave"], found["from_generator"])
    bar("compressed", "ours / best of today", found["ours"] / best, 3)


def memory(folder: Path, quick: bool) -> None:
    """Measure the anonymous memory used over three epochs."""
    given = (64 if quick else 256) << 20
    path = folder / "memory.npy"
    made = np.lib.format.open_memmap(path, "w+", np.uint8, (4 * given >> 15, 1 << 15))
    made[:] = 1
    del made
    ds = ndfeed.open(path)
    next(iter(ndfeed.tf.dataset(ds.take(range(64)), 32)))
    before = anonymous()
    with Peak() as peak:
        for _ in ndfeed.tf.dataset(ds, 128, shuffle=True, memory=given, epochs=3):
            pass
    used = peak.bytes - before
    report(question="memory", way="ours", peak_mb=used >> 20, memory_mb=given >> 20)
    bar("memory", "(memory + 150 MB) / peak", (given + (150 << 20)) / max(used, 1), 1)


def main() -> None:
    """Run all questions, or the named ones."""
    questions = {"rows": rows, "compressed": compressed, "memory": memory}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", choices=[*questions, []])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    words = parser.parse_args()
    report(tensorflow=tf.__version__, numpy=np.__version__, cores=os.cpu_count())
    with tempfile.TemporaryDirectory() as made:
        folder = words.folder or Path(made)
        folder.mkdir(exist_ok=True, parents=True)
        for name in words.questions or questions:
            questions[name](folder, words.quick)


if __name__ == "__main__":
    main()
