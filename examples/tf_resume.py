"""How does a Keras training that was stopped in the middle of an epoch resume?

A callback counts the batches that were used, and ``tf.train.Checkpoint`` saves the count with the
model. The weights are the same as those of an uninterrupted run, bit for bit.
"""

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import ndfeed
import ndfeed.keras
import ndfeed.tf

EPOCHS = 3


class Stop(tf.keras.callbacks.Callback):
    """Simulates a machine that fails after a number of batches."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise InterruptedError


def train(path, folder, stop_after=0):
    """Train, resuming from the last checkpoint in the folder if there is one."""
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(0.01), "mse")
    model.optimizer.build(model.trainable_variables)

    state = ndfeed.tf.State()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, data=state)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    manager.restore_or_initialize()

    ds = ndfeed.open(path)
    data = ndfeed.tf.dataset(ds, 32, shuffle=True, seed=5, fields=("x", "y"), state=state)
    resume = ndfeed.keras.Resume(state, manager.save, every=10)
    words = {"initial_epoch": state.epoch, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    model.fit(data, callbacks=[resume, Stop(stop_after)], **words)
    return model.get_weights()


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
        np.savez(folder / "data.npz", x=x, y=x[:, :1] * 2)

        whole = train(folder / "data.npz", folder / "whole")
        try:
            train(folder / "data.npz", folder / "stopped", stop_after=45)  # in the second epoch
        except InterruptedError:
            resumed = train(folder / "data.npz", folder / "stopped")

        assert all(np.array_equal(a, b) for a, b in zip(whole, resumed, strict=True))
        print("45 steps, a stop, and on from the checkpoint: the same weights as in one go")


if __name__ == "__main__":
    main()
