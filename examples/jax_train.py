"""How does a JAX training read .npz files and resume where it was stopped?

Labels are stored as int64 and arrive as int32; every value is checked to fit. The loader's state
is a few hundred bytes of JSON saved next to the weights. A run that was stopped in the middle of an
epoch ends with the same weights, bit for bit.
"""

import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import ndfeed
import ndfeed.jax

EPOCHS = 4


def make(folder):
    """Write ten files of a hundred images each; the label is the brightest quarter."""
    rng = np.random.default_rng(0)
    for i in range(10):
        image = rng.integers(0, 100, (100, 8, 8), np.uint8)
        label = rng.integers(0, 4, 100)  # int64
        for one, quarter in zip(image, label, strict=True):
            one[(quarter // 2) * 4 :][:4, (quarter % 2) * 4 :][:, :4] += 100
        np.savez(folder / f"{i}.npz", image=image, label=label)


def loss_of(weights, image, label):
    x = image.reshape(len(image), -1).astype(jnp.float32) / 255
    scores = jax.nn.log_softmax(x @ weights["w"] + weights["b"])
    return -scores[jnp.arange(len(label)), label].mean()


@jax.jit
def step(weights, image, label):
    loss, slope = jax.value_and_grad(loss_of)(weights, image, label)
    return jax.tree.map(lambda w, g: w - 0.5 * g, weights, slope), loss


def train(folder, checkpoint, stop=None):
    """Train to the end, or to step ``stop`` and save a checkpoint there."""
    ds = ndfeed.open(folder, sample="row")
    loader = ndfeed.jax.loader(
        ds, 50, shuffle=True, seed=1, drop_last=True, fields=("image", "label")
    )
    weights = {"w": jnp.zeros((64, 4)), "b": jnp.zeros(4)}
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        loader.load_state_dict(saved["loader"])
        weights = {name: jnp.array(w, jnp.float32) for name, w in saved["weights"].items()}
    steps = 0
    with loader:
        while loader.epoch < EPOCHS:
            for image, label in loader:
                weights, loss = step(weights, image, label)
                steps += 1
                if steps == stop:
                    values = {name: w.tolist() for name, w in weights.items()}
                    saved = {"loader": loader.state_dict(), "weights": values}
                    checkpoint.write_text(json.dumps(saved))
                    return weights, loss
    return weights, loss


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        make(folder / "data")
        whole, loss = train(folder / "data", folder / "none.json")
        train(folder / "data", folder / "checkpoint.json", stop=27)
        resumed, _ = train(folder / "data", folder / "checkpoint.json")
        assert all((whole[key] == resumed[key]).all() for key in whole)
        assert loss < 0.2
    print(f"loss {loss:.3f}; stopped within an epoch and resumed, the weights are the same")
