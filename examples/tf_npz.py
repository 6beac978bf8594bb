"""How do many compressed .npz files become a tf.data.Dataset?

Each file has many samples. By hand, files are read in sequence or interleaved; ``np.load`` runs
inside ``tf.numpy_function`` and holds the GIL for each file. ndfeed decompresses in threads, ahead
of use, and shuffles over a window of files. For several workers see ``tf_workers.py``.
"""

import numpy as np
import tensorflow as tf
from side_by_side import compare, start

import ndfeed
import ndfeed.tf

BATCH, EACH = 64, 50
AUTO = tf.data.AUTOTUNE


def make(folder, samples):
    rng = np.random.default_rng(0)
    for i in range(0, samples, EACH):
        image = rng.integers(0, 64, (min(EACH, samples - i), 32, 32, 3), np.uint8)
        label = np.arange(i, i + len(image))
        np.savez_compressed(folder / f"{i:09}.npz", image=image, label=label)


def load(path):
    """Load a file in NumPy: np.load cannot be called in a graph, where the path is a tensor."""
    with np.load(path.decode()) as arrays:
        return arrays["image"], arrays["label"]


def rows(path):
    """Return a dataset of the samples in one file."""
    image, label = tf.numpy_function(load, [path], (tf.uint8, tf.int64))
    shaped = tf.ensure_shape(image, (None, 32, 32, 3)), tf.ensure_shape(label, (None,))
    return tf.data.Dataset.from_tensor_slices(shaped)


def sequential(paths):
    return tf.data.Dataset.from_tensor_slices(paths).flat_map(rows).batch(BATCH)


def interleaved(paths):
    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    mixed = files.interleave(rows, cycle_length=4, num_parallel_calls=AUTO, deterministic=False)
    return mixed.shuffle(10 * EACH).batch(BATCH).prefetch(AUTO)


def main(folder, samples):
    make(folder, samples)
    paths = sorted(map(str, folder.iterdir()))
    ds = ndfeed.open(folder, sample="row")
    words = {"batch_size": BATCH, "fields": ("image", "label")}  # (image, label), as fit expects

    ours = ndfeed.tf.dataset(ds, **words)
    ways = {"tf.data, file by file": sequential(paths), "ndfeed.tf.dataset": ours}
    compare("In sequence", ways, in_order=True)

    ours = ndfeed.tf.dataset(ds, shuffle=True, **words)
    ways = {"tf.data, interleave and shuffle": interleaved(paths), "ndfeed.tf.dataset": ours}
    compare("Shuffled", ways)


if __name__ == "__main__":
    start(main, samples=960)
