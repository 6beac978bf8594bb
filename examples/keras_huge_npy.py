"""How is a Keras model trained on one .npy that is larger than memory?

The file is read in sequence, shuffled, or preprocessed. The usual way is a generator over a memory
map (from ``np.load`` with ``mmap_mode``; ``np.memmap`` would read the file's header as samples):
Python makes one batch after another while training waits. ndfeed's threads prefetch: they copy
rows out of the file, preprocess them, and stay within the memory limit.

    TMPDIR=/large/disk python examples/keras_huge_npy.py --samples 2000000    # 25 GB
"""

import keras
import numpy as np
import tensorflow as tf
from side_by_side import compare, start

import ndfeed
import ndfeed.tf

BATCH = 32
SHAPE = (32, 32, 3)
MEMORY = "100MB"


def make(path, samples):
    """Write the file in pieces, as a file larger than memory has to be."""
    rng = np.random.default_rng(0)
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (samples, *SHAPE))
    for at in range(0, samples, 1000):
        rows[at : at + 1000] = rng.integers(0, 256, (min(1000, samples - at), *SHAPE))
    rows.flush()


def generated(path, shuffle=False, preprocess=None):
    """Return a dataset as usually written: a generator of batches, and prefetch."""
    rows = np.load(path, mmap_mode="r")
    rng = np.random.default_rng(0)

    def batches():
        order = rng.permutation(len(rows)) if shuffle else np.arange(len(rows))
        for at in range(0, len(rows), BATCH):
            batch = rows[order[at : at + BATCH]]
            yield preprocess({"data": batch})["data"] if preprocess else batch

    spec = tf.TensorSpec((None, *SHAPE), tf.float32)
    return tf.data.Dataset.from_generator(batches, output_signature=spec).prefetch(tf.data.AUTOTUNE)


def fractions(batch):
    """Scale to [0, 1] in place: the batch is our own copy, and this is faster than another."""
    batch["data"] /= 255
    return batch


def targets(batch):
    """Add a target to learn: the brightness of each image."""
    return {"x": batch["data"], "y": batch["data"].mean((1, 2, 3))}


def main(folder, samples):
    path = folder / "images.npy"
    make(path, samples)
    ds = ndfeed.open(path)
    words = {"memory": MEMORY, "fields": ("data",)}

    ways = {"a generator over a map": generated(path)}
    ways["ndfeed.tf.dataset"] = ndfeed.tf.dataset(ds, BATCH, **words)
    compare("In sequence", ways, in_order=True)

    words["shuffle"] = True
    ways = {"a generator over a map": generated(path, True)}
    ways["ndfeed.tf.dataset"] = shuffled = ndfeed.tf.dataset(ds, BATCH, **words)
    compare("Shuffled", ways)

    # Any NumPy code can go into ds.map. Small batches are better scaled in TensorFlow: batches
    # from ds.map are handed over one at a time, others several at a time.
    ways = {"a generator over a map": generated(path, True, fractions)}
    ways["ndfeed.tf.dataset of ds.map"] = ndfeed.tf.dataset(ds.map(fractions), BATCH, **words)
    ways["ndfeed.tf.dataset, then map"] = shuffled.map(lambda rows: rows / 255)
    compare("Shuffled and preprocessed", ways)

    pairs = ds.map(fractions).map(targets)
    data = ndfeed.tf.dataset(pairs, BATCH, shuffle=True, memory=MEMORY, fields=("x", "y"))
    model = keras.Sequential([keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(data, epochs=1, shuffle=False, verbose=0)  # shuffled already


if __name__ == "__main__":
    start(main, samples=2000)
