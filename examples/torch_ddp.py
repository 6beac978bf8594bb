"""How do several processes train together?

    torchrun --nproc-per-node=2 examples/torch_ddp.py

The loader takes rank and world size from torch.distributed: each rank gets its part of every global
batch, all ranks get the same number of batches, and there is no sampler whose epoch must be set.
Without torchrun, the world size is 1.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import ndfeed
import ndfeed.torch

ROWS = 2000


def make(folder):
    """Write a table whose last column is the sum of the others."""
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
    np.savez(folder / "table.npz", x=x, y=x.sum(1, keepdims=True), row=np.arange(ROWS))


def train(path):
    """Train for two epochs; return the rows this rank saw in the last, and the last loss."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ndfeed.torch.loader(ndfeed.open(path), 50, shuffle=True, seed=1) as loader:
        for _ in range(2):
            rows = []
            for batch in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
                loss.backward()
                optimizer.step()
                rows += batch["row"].tolist()
    return rows, loss.item()


def main(folder, rank, world):
    everyone = [folder] + [None] * (world - 1)
    if rank == 0:
        make(Path(folder))
    if world > 1:
        dist.broadcast_object_list(everyone)
    rows, loss = train(Path(everyone[0]) / "table.npz")
    gathered = [rows]
    if world > 1:
        gathered = [None] * world
        dist.all_gather_object(gathered, rows)
    if rank == 0:
        seen = sorted(row for part in gathered for row in part)
        assert seen == list(range(ROWS))
        assert loss < 0.1
        ranks = f"{world} rank{'s' * (world > 1)}"
        print(f"{ranks} saw {len(seen)} rows together, each once; loss {loss:.4f}")


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    with tempfile.TemporaryDirectory() as name:
        main(name, rank, world)
    if dist.is_initialized():
        dist.destroy_process_group()
