"""How are batches laid out on a mesh of devices?

This example simulates eight CPU devices on a mesh with two axes: samples are divided along "data",
the columns of the table and the weights along "model". Every device receives its part of every
batch, so the jitted step moves no data before it starts. On real devices, and with several
processes after ``jax.distributed.initialize()``, only the first lines change.
"""

import os
import tempfile
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import ndfeed
import ndfeed.jax

ROWS, COLUMNS = 4096, 16


def make(path):
    """Write a table whose last column is the sum of the others."""
    x = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    np.savez(path, x=x, y=x.sum(1), row=np.arange(ROWS))


@jax.jit
def step(weights, batch):
    def loss_of(w):
        return ((batch["x"] @ w - batch["y"]) ** 2).mean()

    loss, slope = jax.value_and_grad(loss_of)(weights)
    return weights - 0.1 * slope, loss


def train(path, mesh):
    """Train for two epochs; return the rows of the last, in order, and the last loss."""
    weights = jax.device_put(jnp.zeros(COLUMNS), NamedSharding(mesh, P("model")))
    # "y" and "row" have no columns, so they are divided by samples only.
    sharding = NamedSharding(mesh, P("data", "model"))
    with ndfeed.jax.loader(
        ndfeed.open(path), 256, shuffle=True, seed=3, sharding=sharding
    ) as loader:
        for _ in range(2):
            rows = []
            for batch in loader:
                weights, loss = step(weights, batch)
                rows += np.asarray(batch["row"]).tolist()
    assert batch["x"].sharding == sharding
    assert {shard.data.shape for shard in batch["x"].addressable_shards} == {(64, 8)}
    return rows, float(loss)


if __name__ == "__main__":
    mesh = jax.make_mesh((4, 2), ("data", "model"), (AxisType.Auto, AxisType.Auto))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "table.npz"
        make(path)
        rows, loss = train(path, mesh)
        plain = ndfeed.loader(ndfeed.open(path), 256, shuffle=True, seed=3)
        plain.epoch = 1
        assert rows == [row for batch in plain for row in batch["row"].tolist()]
        assert loss < 0.01
    print(f"{ROWS} rows on {mesh.size} devices, in the order of every loader; loss {loss:.5f}")
