"""What the tests of JAX share: data, and processes that meet through gloo.

What runs in other processes lives here too: a child that is spawned imports this module and no
test.
"""

import functools
import json
import os
import socket
import warnings

import jax
import numpy as np
from children import all_ended
from cuda.stand_in import StandIn
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from loading.making import eventually, labels, refused

import ndfeed
import ndfeed.jax
import ndfeed.jax.jax_loader
from ndfeed.jax import cuda_feed
from ndfeed.jax.adapter import Away, Target, ToDevices

P = PartitionSpec
CPU = 1, 0  # as DLPack numbers devices
ROWS = 96
DEVICES = 4  # of a process


def table(folder, n=ROWS):
    """``n`` rows of eight numbers, and a label of 64 bits that says which row it is."""
    x = np.arange(n * 8, dtype="<f4").reshape(n, 8)
    np.savez(folder / "table.npz", x=x, label=np.arange(n))
    return ndfeed.open(folder / "table.npz")


def meshes():
    """Meshes over all devices: in their order, and so that no process has neighbours."""
    devices = np.array(jax.devices())
    mixed = devices.reshape(2, -1).T
    return {
        "data": (Mesh(devices, ("data",)), P("data")),
        "mixed": (Mesh(mixed.reshape(-1), ("data",)), P("data")),
        "both": (Mesh(devices.reshape(4, 2), ("data", "model")), P("data", "model")),
        "columns over processes": (Mesh(mixed, ("data", "model")), P("data", "model")),
        "columns alone": (Mesh(devices, ("model",)), P(None, "model")),
        "copies": (Mesh(devices, ("data",)), P()),
    }


def laid_out(ds):
    """A pass for every mesh: how many rows were read, and whether all is as NumPy has it."""
    found = {}
    expected = list(ndfeed.loader(ds, 16, shuffle=True, seed=5))
    for name, (mesh, spec) in meshes().items():
        loader = ndfeed.jax.loader(ds, 16, shuffle=True, seed=5, sharding=NamedSharding(mesh, spec))
        right = []
        for batch, other in zip(loader, expected, strict=True):
            whole = multihost_utils.process_allgather(batch, tiled=True)
            right += [np.array_equal(whole[key], other[key]) for key in ("x", "label")]
            right += [
                np.array_equal(shard.data, other["x"][shard.index])
                for shard in batch["x"].addressable_shards
            ]
        report = loader.report()
        found[name] = {"rows": report.rows, "right": all(right), "len": len(loader)}
    return found


def together(process, world, source):
    """What processes read, what they must agree on, and a state of both."""
    ds = ndfeed.open(source)
    loader = ndfeed.jax.loader(ds, 8, shuffle=True, seed=5)
    found = {"len": len(loader), "first": labels(loader), "second": labels(loader)}
    found["laid out"] = laid_out(ds)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, P("data"))
    wrong = {
        "seed": ndfeed.jax.loader(ds, 8, shuffle=True, seed=process, sharding=sharding),
        "batch_size": ndfeed.jax.loader(ds, 8 + 8 * process, sharding=sharding),
        "order": ndfeed.jax.loader(ds, 8, shuffle=bool(process)),
        "drop_last": ndfeed.jax.loader(ds, 8, drop_last=bool(process)),
        "rows": ndfeed.jax.loader(ds.take(range(80 + process)), 8),
    }
    late = ndfeed.jax.loader(ds, 8)
    late.epoch = process
    found["refused"] = {name: refused(one) for name, one in (wrong | {"epoch": late}).items()}
    found["own"] = labels(ndfeed.jax.loader(ds, 8, shard=(0, 1))) if process else None
    try:
        ndfeed.jax.loader(ds, 8, sharding=sharding, shard=(process, world))
    except ValueError as error:
        found["two words"] = str(error)
    small = NamedSharding(Mesh(np.array(jax.local_devices()), ("data",)), P("data"))
    found["local mesh"] = labels(ndfeed.jax.loader(ds, 8, sharding=small))

    loader = ndfeed.jax.loader(ds, 16, shuffle=True, seed=7, sharding=sharding)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    found["state"] = loader.state_dict()
    loader.close()
    loader.load_state_dict(found["state"])
    rest = [multihost_utils.process_allgather(batch, tiled=True) for batch in loader]
    found["rest"] = labels(rest)
    return found


@functools.cache
def stand_in():
    """One for all tests, since there is one driver."""
    driver = StandIn(0.0002, room=8 << 30)
    return driver, driver.make_stream()


class OfGPU:
    """A device that says it is a GPU."""

    platform = "gpu"


class ToStandIn(ToDevices):
    """Takes the stand-in for a GPU."""

    def find_device(self):
        device = super().find_device()
        return device and OfGPU()

    def __call__(self):
        chosen = not cuda_feed.why_not(self.ds, self.form, self.size)
        if (self.layout is None or self.layout.only) and self.room and chosen:
            committed = self.place is not None or self.layout is not None
            target = cuda_feed.CudaTarget(*stand_in(), CPU, "stand-in", committed)
            return cuda_feed.Direct(
                self.ds, self.form, target, self.size, self.layout, resident=self.resident
            )
        device = self.place and self.place.find()
        target = Target(self.layout, device, jax.config.jax_default_device)
        return Away(self.form, target, "device", self.size, self.room)


def one_device_each(process, world, source):
    """Global arrays of which each process has a part, on one device that stands in for a GPU."""
    ndfeed.jax.jax_loader.ToDevices = ToStandIn
    ds = ndfeed.open(source)
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([firsts[at] for at in range(world)]), ("data",))
    expected = list(ndfeed.loader(ds, 10, shuffle=True, seed=5))
    found = {}
    for spec in (P("data"), P(), P(None, "data")):
        sharding = NamedSharding(mesh, spec)
        loader = ndfeed.jax.loader(ds, 10, shuffle=True, seed=5, sharding=sharding)
        right = []
        for batch, other in zip(loader, expected, strict=True):
            for name in ("x", "label"):
                (shard,) = batch[name].addressable_shards
                right.append(batch[name].shape == other[name].shape)
                right.append(np.array_equal(shard.data, other[name][shard.index]))
        report = loader.report()
        found[str(spec)] = {"rows": report.rows, "right": all(right), "way": report.way}
    return {"found": found, "devices": len(mesh.devices), "faults": len(stand_in()[0].faults)}


def one_process_first(process, world, source, folder):
    """Process 0 begins a pass, and the other joins it when it has warned."""
    if process == 0:
        ndfeed.jax.jax_loader.PATIENCE = 0.2  # nobody wants to wait for ten seconds
    warned = folder / "warned"
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_, **__: warned.write_text(str(message))
    loader = ndfeed.jax.loader(ndfeed.open(source), 8)
    if process:
        eventually(warned.exists)
    return {"rows": labels(loader), "warning": warned.read_text()}


def run_processes(function, world, folder, *args, timeout=250):
    """``function(process, world, *args)`` in as many processes of one JAX; what each returned."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    each = [(function, at, world, port, folder, args) for at in range(world)]
    assert all_ended(_process, each, timeout) == [0] * world
    return [json.loads((folder / f"{at}.json").read_text()) for at in range(world)]


def _process(function, process, world, port, folder, args):
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", world, process)
    made = function(process, world, *args)
    (folder / f"{process}.json").write_text(json.dumps(made))
    multihost_utils.sync_global_devices("the end")
    jax.distributed.shutdown()
    os._exit(0)


# Maps.


def noisy(batch, rng):
    """Of a whole batch."""
    return {**batch, "noise": rng.random(len(batch["label"]), np.float32)}


def widened(batch):
    """A fraction of 64 bits."""
    return {**batch, "wide": batch["x"].astype(np.float64)}
