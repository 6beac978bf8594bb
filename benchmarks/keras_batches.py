"""Measure how much of the time of ``fit``, ``evaluate`` and ``predict`` is ndfeed's and Keras's.

The model does nothing, rows are raw and in the page cache, the shuffle is exact. Compared are

    loader   a loop over ``ndfeed.loader`` and nothing else
    feed     the same batches as Keras requests them, without a model
    ndfeed   Keras with ``ndfeed.keras.dataset``
    memory   Keras with batches already in memory, as tensors of the backend: its lower bound
    arrays   Keras with entire arrays in memory, as used without a loader

KERAS_BACKEND selects the backend. The timings alternate, and the best of all rounds counts. Prints
one JSON line per measurement, in microseconds per batch.

    KERAS_BACKEND=torch python benchmarks/keras_batches.py [--folder DIR] [--rounds N]
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import ndfeed
import ndfeed.keras

ROWS = {"37 KB": (37632, 4000, 64), "3 KB": (3072, 40000, 256)}  # bytes, rows, batch
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


def use_up(batches):
    for _ in batches:
        pass


def tensors(array):
    return array if BACKEND == "tensorflow" else keras.ops.convert_to_tensor(array)


def feed(data):
    """Yield the batches as the trainer of the backend gets them."""
    from keras.src.trainers.data_adapters import get_data_adapter

    adapter = get_data_adapter(data)
    yield from {  # the adapter stays alive as long as this generator
        "torch": adapter.get_torch_dataloader,
        "jax": adapter.get_jax_iterator,
        "tensorflow": adapter.get_tf_dataset,
    }[BACKEND]()


def ways(model, data, loader, x, y, size):
    parts = [slice(at, at + size) for at in range(0, len(x), size)]
    memory = InMemory([(tensors(x[part]), tensors(y[part])) for part in parts])
    quiet = {"verbose": 0}
    asked = {
        "fit": lambda given, **more: model.fit(given, **more, shuffle=False, **quiet),
        "evaluate": lambda given, **more: model.evaluate(given, **more, **quiet),
        "predict": lambda given, **more: model.predict(given, **more, **quiet),
    }
    yield "loader", lambda: use_up(loader)
    yield "feed", lambda: use_up(feed(data))
    for name, ask in asked.items():
        whole = {"batch_size": size} | ({} if name == "predict" else {"y": y})
        yield f"{name}, ndfeed", lambda ask=ask: ask(data)
        yield f"{name}, memory", lambda ask=ask: ask(memory)
        yield f"{name}, arrays", lambda ask=ask, whole=whole: ask(x, **whole)


def measure(folder, rows, rounds):
    length, count, size = ROWS[rows]
    x = np.random.default_rng(0).integers(0, 256, (count, length), np.uint8)
    y = np.zeros(count, np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    ds = ndfeed.open({"x": folder / "x.npy", "y": folder / "y.npy"})
    words = {"shuffle": True, "fields": ("x", "y")}
    loader, data = ndfeed.loader(ds, size, **words), ndfeed.keras.dataset(ds, size, **words)
    model = keras.Sequential([keras.Input((length,), dtype="uint8"), Nothing()])
    model.compile("sgd", "mse")
    np.testing.assert_array_equal(data[0][0], next(iter(loader))[0])
    best = {}
    for _ in range(rounds):
        for name, run in ways(model, data, loader, x, y, size):
            begun = time.perf_counter()
            run()
            taken = (time.perf_counter() - begun) / len(loader) * 1e6
            best[name] = min(taken, best.get(name, taken))
    for name, taken in best.items():
        print(json.dumps({"backend": BACKEND, "rows": rows, "way": name, "us": round(taken)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    for rows in ROWS:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            measure(Path(folder), rows, given.rounds)


if __name__ == "__main__":
    main()
