"""Does every Keras backend get the same data?

With one file, one seed and one program, TensorFlow, PyTorch and JAX get the same batches in the
same order.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np


def train(path):
    """Train with the backend this process was started with, and print the loss of each epoch."""
    import keras  # noqa: PLC0415 - imported after the backend is chosen

    import ndfeed  # noqa: PLC0415
    import ndfeed.keras  # noqa: PLC0415

    ds = ndfeed.open(path)
    data = ndfeed.keras.dataset(ds, 50, shuffle=True, seed=3, fields=("x", "y"))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]
    print(" ".join(f"{loss:.4f}" for loss in history))


def main():
    backends = [name for name in ("tensorflow", "torch", "jax") if find_spec(name)]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "data.npz"
        x = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
        np.savez(path, x=x, y=x.sum(axis=1, keepdims=True))
        losses = {}
        for backend in backends:
            words = [sys.executable, __file__, str(path)]
            env = os.environ | {"KERAS_BACKEND": backend}
            losses[backend] = subprocess.run(
                words, env=env, check=True, stdout=subprocess.PIPE, text=True
            ).stdout

        assert len(set(losses.values())) == 1, losses
        print(f"{', '.join(backends)}: the same losses, {next(iter(losses.values())).strip()}")


if __name__ == "__main__":
    train(sys.argv[1]) if len(sys.argv) > 1 else main()
