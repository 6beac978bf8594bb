"""Check that shuffled batches reach GPU memory through JAX intact, and measure how fast.

    held     does JAX keep a NumPy array until its copy to the device is done?
    races    every value of thousands of batches, with a consumer that is faster and one that is
             slower than the loader, and of batches that are kept while it continues
    rates    ours against a pinned copy, and against ``device_put`` of NumPy batches that are ready
             and of ``mapped[rows]``; with a consumer that uses every batch, too

Needs only JAX with a CUDA device, NumPy, and ndfeed on the path. Prints one JSON line per
measurement; ``met`` says whether a target is reached.

    python benchmarks/jax_gpu.py [QUESTION ...] [--folder DIR] [--quick]
"""

import argparse
import itertools
import json
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ndfeed
import ndfeed.jax
from ndfeed.cuda.driver import driver_of

# Dtype and shape of a row, rows per batch, rows in the file. Odd sizes are not aligned in memory.
ROWS = {
    "150KB": ("u1", (224, 224, 3), 256, 20_000),
    "3KB": ("u1", (32, 32, 3), 1024, 500_000),
    "3001B": ("u1", (3001,), 333, 300_000),
    "128B": ("u1", (128,), 4096, 4_000_000),
    "int64": ("<i8", (128,), 1024, 500_000),
}
OF_THE_BUS = {"150KB": 0.9, "3KB": 0.6}


def say(**facts: Any) -> None:
    """Print one JSON line."""
    print(json.dumps(facts), flush=True)


def make(label: str, folder: Path, quick: bool) -> Path:
    """Write a file of rows that differ everywhere."""
    dtype, shape, _, count = ROWS[label]
    count //= 10 if quick else 1
    path = folder / f"{label}.npy"
    if path.exists():
        return path
    data = np.lib.format.open_memmap(path, "w+", dtype, (count, *shape))
    rows = data.reshape(count, -1)
    pattern = np.arange(rows.shape[1], dtype=np.uint32) * 40_503 % 251
    step = max((16 << 20) // rows.shape[1], 1)
    for at in range(0, count, step):
        number = np.arange(at, min(at + step, count), dtype=np.uint32)[:, None]
        rows[at : at + step] = (pattern + number * 7 + (number >> 8) * 13) % 251
    data.flush()
    return path


def loader_of(path: Path, label: str, **options: Any) -> Any:
    return ndfeed.jax.loader(
        ndfeed.open(path), ROWS[label][2], shuffle=True, drop_last=True, fields=("data",), **options
    )


def held(folder: Path, quick: bool) -> None:
    """Check that memory is not reused before its copy is done, which would change batches."""
    for size in (1 << 16, 1 << 22, 1 << 28):
        early = wrong = 0
        for turn in range(20):
            host = np.full(size, turn, np.uint8)
            gone: list[bool] = []
            on_device = jax.device_put(host)
            # The next owner of the memory writes to it at once, as a pool's next batch would.
            weakref.finalize(host, lambda a, g=gone: g.append(a.is_ready()), on_device)
            del host
            again = np.full(size, 255, np.uint8)
            on_device.block_until_ready()
            wrong += int((on_device != turn).any())
            early += gone.count(False)
            del again
        say(question="held", nbytes=size, given_back_early=early, wrong=wrong,
            met=not early and not wrong)  # fmt: skip


@jax.jit
def differ(batch: jax.Array, truth: jax.Array, rows: jax.Array) -> jax.Array:
    return (batch != truth[rows].astype(batch.dtype)).any().astype(jnp.int32)


@jax.jit
def work(x: jax.Array) -> jax.Array:
    for _ in range(8):
        x = x @ x * 0.01
    return x


def races(folder: Path, quick: bool) -> None:
    """Compare every value with a copy of the file on the device."""
    wanted = 200 if quick else 3000
    for label in ROWS:
        path = make(label, folder, quick)
        mapped = np.load(path, mmap_mode="r")
        narrow = np.int32 if mapped.dtype == np.int64 else mapped.dtype
        truth = jnp.concatenate(
            [jax.device_put(mapped[at : at + 8192].astype(narrow))
             for at in range(0, len(mapped), 8192)]
        )  # fmt: skip
        for consumer in ("fast", "slow", "slow, in little memory"):
            memory = "256MB" if "memory" in consumer else None
            wrong, kept = _wrong(path, label, truth, wanted, "slow" in consumer, memory)
            say(question="races", way=label, consumer=consumer, batches=wanted, wrong=wrong,
                kept_and_changed=kept, met=not wrong and not kept)  # fmt: skip
        del truth


def _wrong(
    path: Path, label: str, truth: jax.Array, wanted: int, slow: bool, memory: str | None
) -> tuple[int, int]:
    batch = ROWS[label][2]
    bad = jnp.zeros((), jnp.int32)
    busy = jax.random.normal(jax.random.key(0), (2048, 2048), jnp.bfloat16)
    kept: list[tuple[jax.Array, jax.Array]] = []
    done = 0
    with loader_of(path, label, memory=memory) as loader:
        while done < wanted:
            order = ndfeed.Exact().begin(len(truth), 0, loader.epoch)
            for at, (one,) in zip(itertools.count(0, batch), loader):
                rows = jnp.asarray(order.rows(at, at + batch).astype(np.int32))
                bad += differ(one, truth, rows)
                done += 1
                if done % 97 == 0:
                    kept.append((one, rows))
                if slow:
                    busy = work(busy)
                    busy.block_until_ready()
                if done == wanted:
                    break
        changed = sum(int(differ(one, truth, rows)) for one, rows in kept)
    return int(bad), changed


def rate(batches: Iterator[Any], rows: int, seconds: float = 1.0) -> float:
    """Return rows per second; at most four batches are in flight at a time, as in training."""
    for _ in range(8):
        jax.block_until_ready(next(batches))
    waiting: list[Any] = []
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        waiting.append(next(batches))
        done += 1
        if len(waiting) == 4:
            jax.block_until_ready(waiting.pop(0))
    jax.block_until_ready(waiting)
    return done * rows / (time.perf_counter() - start)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


@jax.jit
def used(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32).sum()


def pinned_rate() -> float:
    """Return bytes per second of copies from pinned memory, by the driver."""
    size = 1 << 28
    driver = driver_of(0)
    with driver.context():
        host, device, stream = (
            driver.allocate_pinned(size),
            driver.allocate(size),
            driver.make_stream(),
        )
        for turns in (4, 40):
            start = time.perf_counter()
            for _ in range(turns):
                stream.copy(device, host, size)
            stream.record().wait()
        found = turns * size / (time.perf_counter() - start)
        driver.free(device)
        driver.free_pinned(host)
    say(question="rates", way="pinned copy", gb_per_s=round(found / 1e9, 1))
    return found


def rates(folder: Path, quick: bool) -> None:
    """Measure each way in turn; the best of three rounds counts."""
    bus = pinned_rate()
    for label, (_, _, batch, _) in ROWS.items():
        path = make(label, folder, quick)
        mapped = np.load(path, mmap_mode="r")
        order = ndfeed.Exact().begin(len(mapped), 0, 0)
        count = len(mapped) // batch
        rows = [order.rows(at * batch, (at + 1) * batch) for at in range(min(count, 64))]
        narrow = "i4" if mapped.dtype == np.int64 else mapped.dtype
        ready = [mapped[one].astype(narrow) for one in rows[:8]]
        loader = loader_of(path, label)
        ours = endless(loader)
        np.testing.assert_array_equal(np.asarray(next(iter(loader_of(path, label)))[0]), ready[0])
        ways: dict[str, Callable[[], Iterator[Any]]] = {
            "ready: device_put": lambda ready=ready: map(jax.device_put, itertools.cycle(ready)),
            "today: device_put of mapped[rows]": lambda mapped=mapped, rows=rows, to=narrow: (
                jax.device_put(mapped[one].astype(to, copy=False)) for one in itertools.cycle(rows)
            ),
            "ours": lambda ours=ours: ours,
            "ours, each used": lambda ours=ours: (used(one[0]) for one in ours),
        }
        best = dict.fromkeys(ways, 0.0)
        for _ in range(3):
            for name, way in ways.items():
                best[name] = max(best[name], rate(way(), batch))
        size = mapped[0].nbytes
        found = loader.report()
        say(question=f"rates {label}", threads=found.threads, took=found.way)
        for name, value in best.items():
            say(question=f"rates {label}", way=name, rows_per_s=round(value),
                gb_per_s=round(value * size / 1e9, 2))  # fmt: skip
        if label in OF_THE_BUS:
            of_bus = best["ours"] * size / bus
            say(question=f"rates {label}", bar="ours / pinned copy rate", ratio=round(of_bus, 2),
                wanted=OF_THE_BUS[label], met=of_bus >= OF_THE_BUS[label])  # fmt: skip
        if label == "128B":
            say(question=f"rates {label}", bar="M rows/s", ratio=round(best["ours"] / 1e6, 1),
                wanted=40, met=best["ours"] >= 40e6)  # fmt: skip
        ratio = best["ours"] / best["ready: device_put"]
        say(question=f"rates {label}", bar="ours / device_put of ready batches",
            ratio=round(ratio, 2), wanted=0.8, met=ratio >= 0.8)  # fmt: skip
        loader.close()


QUESTIONS = {function.__name__: function for function in (held, races, rates)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=", ".join(QUESTIONS))
    parser.add_argument("--folder", type=Path, help="where to make the files (default: temporary)")
    parser.add_argument("--quick", action="store_true", help="smaller data")
    given = parser.parse_args()
    device = jax.devices()[0]
    say(device=f"{device.device_kind}", platform=device.platform, jax=jax.__version__)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for name in given.questions or QUESTIONS:
            QUESTIONS[name](Path(folder), given.quick)


if __name__ == "__main__":
    main()
