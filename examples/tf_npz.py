"""How do many compressed .npz files get into a TensorFlow training?

Each file has many samples. They are shared out among readers, shuffled over a window of files,
inflated ahead of use, batched and prefetched by one line; preprocessing in TensorFlow goes
behind it, as with any other ``tf.data.Dataset``.
"""

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import ndfeed
import ndfeed.tf

FILES, EACH = 40, 50


def make(folder):
    """Images of two kinds: bright in the left half, or in the right."""
    rng = np.random.default_rng(0)
    for i in range(FILES):
        image = rng.integers(0, 100, (EACH, 16, 16, 3), np.uint8)
        label = rng.integers(0, 2, EACH)
        for one, kind in zip(image, label, strict=True):
            one[:, 8 * kind : 8 * kind + 8] += 100
        np.savez_compressed(folder / f"{i:03}.npz", image=image, label=label)


def fractions(image, label):
    """In TensorFlow, in its own threads."""
    return tf.cast(image, tf.float32) / 255, label


def network():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Conv2D(8, 3, strides=2, activation="relu"), layers.Flatten(), layers.Dense(2)]
    )


def main():
    tf.keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        train, test = ndfeed.open(folder, sample="row").split(0.9, seed=0)
        words = {"fields": ("image", "label")}

        # One of two readers has every other slice of each global batch, and no file is missed.
        halves = [
            ndfeed.tf.dataset(train, 16, shuffle=True, shard=(rank, 2), **words) for rank in (0, 1)
        ]
        counts = [sum(len(label) for _, label in half) for half in halves]
        assert sum(counts) == len(train)

        data = ndfeed.tf.dataset(train, 32, shuffle=True, seed=1, **words).map(fractions)
        held = ndfeed.tf.dataset(test, 32, **words).map(fractions)

        model = network()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
        model.fit(data, epochs=2, shuffle=False, verbose=0)  # we have shuffled: Keras need not
        right = model.evaluate(held, verbose=0)[1]

        assert right > 0.9
        print(f"{len(train)} samples of {FILES} files, 2 epochs: {right:.0%} of {len(test)} right")


if __name__ == "__main__":
    main()
