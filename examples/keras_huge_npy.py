"""How is a Keras model trained on one .npy that is larger than memory?

In sequence, shuffled, or preprocessed: rows are read out of the file where it lies, and what is
in memory at a time stays within a bound. A small file stands for the large one here.
"""

import tempfile
from pathlib import Path

import keras
import numpy as np

import ndfeed
import ndfeed.keras

ROWS = 4000


def make(path):
    """Written piece by piece, as a file larger than memory would be; the last column is wanted."""
    rng = np.random.default_rng(0)
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (ROWS, 9))
    for at in range(0, ROWS, 1000):
        x = rng.normal(size=(1000, 8))
        rows[at : at + 1000] = np.column_stack([x, x[:, 0] - 2 * x[:, 1]])


def columns(batch):
    """The table as inputs and targets."""
    rows = batch["data"]
    return {"x": rows[:, :8], "y": rows[:, 8:]}


def noisy(batch, rng):
    """What is drawn here, the seed and the place in the order fix."""
    return batch | {"x": batch["x"] + 0.01 * rng.normal(size=batch["x"].shape).astype(np.float32)}


def main():
    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "table.npy"
        make(path)
        ds = ndfeed.open(path).map(columns)
        words = {"fields": ("x", "y"), "memory": "100MB"}

        sequential = ndfeed.keras.dataset(ds, 64, **words)
        shuffled = ndfeed.keras.dataset(ds, 64, shuffle=True, seed=1, **words)
        preprocessed = ndfeed.keras.dataset(ds.map(noisy), 64, shuffle=True, workers=2, **words)

        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.02), "mse")
        for data in (sequential, shuffled, preprocessed):
            model.fit(data, epochs=2, shuffle=False, verbose=0)
        loss = model.evaluate(sequential, verbose=0)
        given = model.predict(sequential, verbose=0)

        assert loss < 0.05
        assert given.shape == (ROWS, 1)
        print(f"6 epochs over {ROWS} rows in three ways, the loss is below {0.05}")


if __name__ == "__main__":
    main()
