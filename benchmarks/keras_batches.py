"""Measure how much of the time of ``fit``, ``evaluate`` and ``predict`` is ndfeed's and Keras's.

The model does nothing, rows are raw and in the page cache, the shuffle is exact. Compared are

    loader    a loop over ``ndfeed.loader`` and nothing else
    feed      the same batches as Keras requests them, without a model
    ready     Keras with one batch in memory, again and again: what Keras itself takes
    ndfeed    Keras with ``ndfeed.keras.dataset``
    tf        Keras with ``ndfeed.tf.dataset``, TensorFlow backend only
    files     Keras with a ``PyDataset`` over memory-mapped .npy files, ``workers=2``
    memory    Keras with a ``PyDataset`` of batches in memory, as tensors of the backend
    arrays    Keras with entire arrays in memory, as used without a loader

KERAS_BACKEND selects the backend. ``fit`` runs some epochs, so that what it does once counts
little. The timings alternate, and the best of all rounds counts. Prints one JSON line per
measurement, in microseconds per batch, and the time with ndfeed as a multiple of what Keras (ready)
and the loader take one after the other.

    KERAS_BACKEND=torch python benchmarks/keras_batches.py [--folder DIR] [--rounds N] [--only fit]
"""

import argparse
import json
import os
import tempfile
import time
from importlib import import_module
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import ndfeed
import ndfeed.keras

ROWS = {"37 KB": (37632, 4000, 64), "3 KB": (3072, 40000, 256)}  # bytes, rows, batch
EPOCHS = 8
BACKEND = keras.backend.backend()


class Nothing(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(1,))

    def call(self, x):
        return keras.ops.cast(x[:, :1], "float32") * self.scale


class InMemory(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


class Files(keras.utils.PyDataset):
    def __init__(self, folder, size):
        super().__init__(workers=2)
        self.arrays = [np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy")]
        self.size = size
        self.on_epoch_end()

    def __len__(self):
        return -(-len(self.rows) // self.size)

    def on_epoch_end(self):
        self.rows = np.random.default_rng(0).permutation(len(self.arrays[0]))

    def __getitem__(self, index):
        rows = self.rows[index * self.size : (index + 1) * self.size]
        return tuple(array[rows] for array in self.arrays)


def use_up(batches):
    for _ in batches:
        pass


def tensors(array):
    return array if BACKEND == "tensorflow" else keras.ops.convert_to_tensor(array)


def ready(batch, count):
    """One batch, again and again, in the form that the backend takes fastest."""
    if BACKEND != "tensorflow":
        return InMemory([batch] * count)
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(batch).repeat(count)


def feed(data):
    """Yield the batches as the trainer of the backend gets them."""
    trainer = import_module(f"keras.src.backend.{BACKEND}.trainer")
    if BACKEND == "tensorflow":
        import tensorflow as tf

        strategy = tf.distribute.get_strategy()
        source = trainer.TFEpochIterator(x=data, distribute_strategy=strategy)
    else:
        kind = {"torch": "TorchEpochIterator", "jax": "JAXEpochIterator"}[BACKEND]
        source = getattr(trainer, kind)(x=data)
    yield from source._get_iterator()  # as long as ``source`` is kept


def sources(folder, ds, size, x, y, words):
    parts = [slice(at, at + size) for at in range(0, len(x), size)]
    batches = [(tensors(x[part]), tensors(y[part])) for part in parts]
    yield "ready", ready(batches[0], len(batches))
    yield "ndfeed", ndfeed.keras.dataset(ds, size, **words)
    if BACKEND == "tensorflow":
        yield "tf", ndfeed.tf.dataset(ds, size, **words)
    yield "files", Files(folder, size)
    yield "memory", InMemory(batches)


def ways(model, found, loader, x, y, size):
    quiet = {"verbose": 0}
    asked = {
        "fit": lambda given, **more: model.fit(
            given, **more, shuffle=False, epochs=EPOCHS, **quiet
        ),
        "evaluate": lambda given, **more: model.evaluate(given, **more, **quiet),
        "predict": lambda given, **more: model.predict(given, **more, **quiet),
    }
    yield "loader", lambda: use_up(loader), 1
    yield "feed", lambda: use_up(feed(found["ndfeed"])), 1
    for name, ask in asked.items():
        passes = EPOCHS if name == "fit" else 1
        whole = {"batch_size": size} | ({} if name == "predict" else {"y": y})
        for kind, data in found.items():
            yield f"{name}, {kind}", lambda ask=ask, data=data: ask(data), passes
        yield f"{name}, arrays", lambda ask=ask, whole=whole: ask(x, **whole), passes


def measure(folder, rows, rounds, only):
    length, count, size = ROWS[rows]
    x = np.random.default_rng(0).integers(0, 256, (count, length), np.uint8)
    y = np.zeros(count, np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    ds = ndfeed.open({"x": folder / "x.npy", "y": folder / "y.npy"})
    words = {"shuffle": True, "fields": ("x", "y")}
    loader = ndfeed.loader(ds, size, **words)
    found = dict(sources(folder, ds, size, x, y, words))
    model = keras.Sequential([keras.Input((length,), dtype="uint8"), Nothing()])
    model.compile("sgd", "mse")
    np.testing.assert_array_equal(found["ndfeed"][0][0], next(iter(loader))[0])
    best = {}
    for _ in range(rounds):
        for name, run, passes in ways(model, found, loader, x, y, size):
            if "," in name and not name.startswith(only):
                continue
            begun = time.perf_counter()
            run()
            taken = (time.perf_counter() - begun) / passes / len(loader) * 1e6
            best[name] = min(taken, best.get(name, taken))
    said = {"backend": BACKEND, "rows": rows}
    for name, taken in best.items():
        print(json.dumps({**said, "way": name, "us": round(taken)}), flush=True)
    for name in ("fit", "evaluate", "predict"):
        if f"{name}, ndfeed" in best:
            limit = best["loader"] + best[f"{name}, ready"]
            ratio = best[f"{name}, ndfeed"] / limit
            print(json.dumps({**said, "way": f"{name}, of ready + loader", "x": round(ratio, 2)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default="", help="fit, evaluate or predict")
    given = parser.parse_args()
    for rows in ROWS:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            measure(Path(folder), rows, given.rounds, given.only)


if __name__ == "__main__":
    main()
