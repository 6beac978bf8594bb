"""What the tests of ``ndfeed.torch`` share, and what they run in other processes.

It lies beside their folder, not in it: a folder named torch hides nothing, as long as nothing in
it is imported by that name.
"""

import itertools
import json
import os
import signal
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from growing import write
from imported import all_ended
from loading.making import eventually, labels, refused
from order.own_orders import Strided

import ndfeed
import ndfeed.torch
import ndfeed.torch.distributed
import ndfeed.torch.framework_hacks

LOST = "lost the others"


def first(ds, **words):
    """The first batch, of all samples."""
    with ndfeed.torch.loader(ds, max(len(ds), 1), **words) as loader:
        return next(iter(loader))


def texts(folder, lengths, width=()):
    """A file a sample, of as many elements as its length says."""
    folder.mkdir(exist_ok=True, parents=True)
    for i, n in enumerate(lengths):
        values = 100.0 * i + np.arange(n * int(np.prod(width, dtype=int))).reshape(n, *width)
        np.savez(folder / f"{i:03}.npz", text=values, label=i)
    return ndfeed.open(folder, sample="file")


# Maps and collate functions.


def brightened(batch):
    """Draws as transforms of torchvision do: from whatever torch draws from."""
    noise = torch.rand(len(batch["label"])) + torch.empty(1).uniform_(0, 1)
    return {"label": batch["label"], "noise": noise, "order": torch.randperm(len(noise))}


def given(batch, generator):
    """Draws from the generator it is given."""
    return {**batch, "noise": torch.rand(len(batch["label"]), generator=generator)}


def one_noisy(sample):
    """Of a single sample."""
    return {"label": sample["label"], "noise": torch.rand(())}


def as_they_are(samples):
    """A collate function that does nothing."""
    return samples


def in_worker(samples):
    """The rows, with the number of the process that read them."""
    return [int(sample["label"]) for sample in samples], os.getpid()


# Ranks.


def run_ranks(function, world, folder, *args, joined=True, timeout=250):
    """``function(rank, world, folder, *args)`` in as many processes; what each returned.

    Nothing for a rank that was killed. If ``joined``, they are a process group from the start.
    """
    folder.mkdir(exist_ok=True, parents=True)
    each = [(function, rank, world, folder, args, joined) for rank in range(world)]
    found = []
    for rank, code in enumerate(all_ended(["torch_making"], _rank, each, timeout)):
        assert code in (0, -signal.SIGKILL), f"rank {rank} ended with {code}"
        path = folder / f"rank{rank}.json"
        found.append(json.loads(path.read_text()) if code == 0 else None)
    return found


def _rank(function, rank, world, folder, args, joined):
    torch.set_num_threads(1)
    if joined:
        join_group(rank, world, folder)
    made = function(rank, world, folder, *args)
    (folder / f"rank{rank}.json").write_text(json.dumps(made))
    others = [] if made == LOST else [folder / f"rank{other}.json" for other in range(world)]
    # Not before the others have read what this one sent them; and without a goodbye, which
    # whoever lost a rank cannot say.
    eventually(lambda: all(path.exists() for path in others))
    os._exit(0)


def join_group(rank, world, folder):
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )


def share_and_agree(rank, world, folder, source):
    """Two ranks: who reads what, what they must agree on, and a checkpoint of both."""
    ds = ndfeed.open(source)
    loader = ndfeed.torch.loader(ds, 8, shuffle=True, seed=5)
    found = {"len": len(loader), "first": labels(loader), "second": labels(loader)}
    wrong = {
        "seed": ndfeed.torch.loader(ds, 8, shuffle=True, seed=rank),
        "batch size": ndfeed.torch.loader(ds, 8 + rank),
        "order": ndfeed.torch.loader(ds, 8, shuffle=bool(rank)),
        "drop_last": ndfeed.torch.loader(ds, 8, drop_last=bool(rank)),
        "rows": ndfeed.torch.loader(ds.take(range(90 + rank)), 8),
    }
    late = ndfeed.torch.loader(ds, 8)
    late.epoch = rank
    found["refused"] = {name: refused(one) for name, one in (wrong | {"epoch": late}).items()}
    found["epochs"] = [wrong["seed"].epoch, late.epoch - rank]
    found["own"] = labels(ndfeed.torch.loader(ds, 8, shard=(0, 1))) if rank else None

    batches = iter(loader)
    found["third"] = labels([next(batches), next(batches)])
    model = torch.nn.Linear(2, 1)
    dcp.save({"model": model.state_dict(), "loader": loader}, checkpoint_id=folder / "saved")
    dist.barrier()
    return found


def follow_a_folder(rank, world, folder, source):
    """Two ranks over a folder that grows; one file comes when rank 0 has looked already."""
    loader = ndfeed.torch.loader(ndfeed.open(source, sample="row"), 2, shuffle=True)
    found = {"epochs": [[x for batch in loader for x in batch["data"].tolist()]]}
    looked = folder / "looked"
    if rank == 0:
        write(Path(source), 5)
        found["new"] = [loader.refresh()]
        looked.touch()
    else:
        eventually(looked.exists)
        write(Path(source), 40)
        found["new"] = [loader.refresh()]
    dist.barrier()
    found["epochs"].append([x for batch in loader for x in batch["data"].tolist()])
    dist.barrier()
    found["new"].append(loader.refresh())
    batches = iter(loader)
    found["seen"] = [x for _ in range(2) for x in next(batches)["data"].tolist()]
    found["state"] = loader.state_dict()
    del batches
    dist.barrier()  # a rank still reads the file until it has its batches
    if rank == 0:
        (Path(source) / "005.npy").unlink()
    dist.barrier()
    try:
        loader.refresh()
    except (RuntimeError, ndfeed.Error) as error:
        found["gone"] = f"{type(error).__name__} {error}"
    dist.barrier()
    return found


def train_on_a_mixture(rank, world, folder, sources, state=None):
    """DDP over a mixture: what this rank was given in an epoch, and the state in its middle."""
    ds = ndfeed.mix({name: ndfeed.open(path) for name, path in sources.items()}, weights=[3, 1],
                    end="last", source="source")  # fmt: skip
    loader = ndfeed.torch.loader(ds, 8, shuffle=True, seed=5)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if state is not None:
        loader.load_state_dict(state)
    found = {"len": len(loader), "batches": [], "states": []}
    for batch in loader:
        model(batch["image"].flatten(1).float()).mean().backward()
        optimizer.step()
        found["batches"].append([batch["label"].tolist(), batch["source"].tolist()])
        found["states"].append(loader.state_dict())
    return found


def list_orders():
    """Orders for the 100 samples of a source: those that know something of samples, and an own."""
    return {
        "balanced": ndfeed.Balanced(np.arange(100) ** 2 % 7, weights={"2": 2}),
        "sorted": ndfeed.Sorted("label", reverse=True, stages=3),
        "recent": ndfeed.Recent(64),
        "buckets": ndfeed.Buckets(np.arange(100) % 17, edges=(4, 9)),
        "own": Strided(3),
    }


def train_by_orders(rank, world, folder, source, size, states=None):
    """DDP by each order: two epochs, or the rest of one, with the state in its middle."""
    found = {}
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for name, order in list_orders().items():
        loader = ndfeed.torch.loader(ndfeed.open(source), size, shuffle=order, seed=5)
        if states is not None:
            loader.load_state_dict(states[name])
        epochs, state = [], None
        for _ in range(2):
            epochs.append([])
            for batch in loader:
                model(batch["image"].flatten(1).float()).mean().backward()
                optimizer.step()
                epochs[-1].append(batch["label"].tolist())
                state = loader.state_dict() if len(epochs[-1]) == 3 else state
        found[name] = {"epochs": epochs, "state": state, "len": len(loader)}
    return found


def by_length(rank, world, folder, source, state):
    """A rank of those that read by a budget of tokens: a few batches, or the rest of an epoch."""
    loader = ndfeed.torch.loader(
        ndfeed.open(source, sample="file"), tokens=40, shuffle=True, seed=3, ragged="pad"
    )
    if state is not None:
        loader.load_state_dict(state)
    batches = [
        (batch["n"].tolist(), list(batch["x"].shape)) for batch in itertools.islice(loader, 3)
    ]
    found = {"first": batches, "state": loader.state_dict(), "len": len(loader)}
    loader.load_state_dict(found["state"])
    rest = [(batch["n"].tolist(), list(batch["x"].shape)) for batch in loader]
    wrong = ndfeed.torch.loader(
        ndfeed.open(source, sample="file"), tokens=40 + rank, shuffle=True, seed=3
    )
    return found | {"rest": rest, "refused": refused(wrong)}


def late_group(rank, world, folder, source):
    """A loader that was made before the process group was."""
    loader = ndfeed.torch.loader(ndfeed.open(source), 8, shuffle=True)
    alone = len(loader)
    join_group(rank, world, folder)
    return {"alone": alone, "len": len(loader), "rows": labels(loader)}


def one_rank_first(rank, world, folder, source, first):
    """Rank ``first`` begins a pass; the others in between meet, and join it when it has warned."""
    if rank == first:
        ndfeed.torch.distributed.PATIENCE = 0.2  # nobody wants to wait for ten seconds
    warned = folder / "warned"

    def show(message, category, filename, *_, **__):
        warned.write_text(json.dumps([str(message), category.__name__, os.path.basename(filename)]))

    warnings.simplefilter("always")
    warnings.showwarning = show
    loader = ndfeed.torch.loader(ndfeed.open(source), 8)
    if rank != first:
        eventually(warned.exists)
    rows = labels(loader)
    total = torch.tensor(len(rows))
    dist.all_reduce(total)
    return {"rows": rows, "total": int(total), "warning": json.loads(warned.read_text())}


def a_rank_that_never_comes(rank, world, folder, source):
    """Rank 0 begins a pass, and rank 1 calls a collective of its own instead."""
    if rank == 1:
        total = torch.ones(100)
        dist.all_reduce(total)
        return float(total[0])
    loader = ndfeed.torch.loader(ndfeed.open(source), 8)
    torch.distributed.distributed_c10d._get_default_store().set_timeout(timedelta(seconds=1))
    said = refused(loader)
    dist.all_reduce(torch.ones(100))
    return said


def train_until_killed(rank, world, folder, source, victim, at):
    """Trains until a rank is killed; rank 0 saves the loader's state behind every step."""
    loader = ndfeed.torch.loader(ndfeed.open(source), 5, shuffle=True, seed=3)
    taken = []
    try:
        for step, batch in enumerate(loader):
            taken.append(batch["label"].tolist())
            (folder / f"taken{rank}.json").write_text(json.dumps(taken))
            if rank == victim and step == at:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(batch["image"].float().mean())
            if rank == 0:
                (folder / "state.json").write_text(json.dumps(loader.state_dict()))
    except RuntimeError:
        return LOST
    return "came to the end"


def go_on(rank, world, folder, source, state, batch_size):
    """What is left after a state, and the next epoch."""
    loader = ndfeed.torch.loader(ndfeed.open(source), batch_size, shuffle=True)
    loader.load_state_dict(json.loads(state))
    return {"rest": labels(loader), "next": labels(loader)}


def load_checkpoint(rank, world, folder, source, saved):
    """The same from a checkpoint of torch's own."""
    loader = ndfeed.torch.loader(ndfeed.open(source), 4, shuffle=True, seed=99)
    state = {"model": torch.nn.Linear(2, 1).state_dict(), "loader": loader}
    dcp.load(state, checkpoint_id=saved)
    return {"epoch": loader.epoch, "rest": labels(loader)}


def without_a_store(rank, world, folder, source):
    """As with MPI, or with a torch that hides its store: the ranks' samples, and a refusal."""
    del dist.distributed_c10d._get_default_store
    ds = ndfeed.open(source)
    rows = labels(ndfeed.torch.loader(ds, 10, shuffle=True, seed=3))
    try:
        labels(ndfeed.torch.loader(ds, 10, shuffle=True, seed=rank))
    except RuntimeError as error:
        return {"rows": rows, "refused": str(error)}
    return {"rows": rows, "refused": ""}


def whose_store(rank, world, folder):
    """Is the store that is found one that all ranks see?"""
    store = ndfeed.torch.framework_hacks.find_store()
    store.set(f"from {rank}", "here")
    dist.barrier()
    return [store.get(f"from {other}").decode() for other in range(world)]


def draw_weighted(rank, world, folder, source):
    """Rows of two epochs under DDP's ranks, and of the rest of the second from a state."""
    ds = ndfeed.open(source)
    order = ndfeed.Weighted(np.arange(100) % 7, rows=130)
    loader = ndfeed.torch.loader(ds, 8, shuffle=order, seed=5)
    first = [batch["label"].tolist() for batch in loader]
    batches = iter(loader)
    second = [next(batches)["label"].tolist() for _ in range(3)]
    state = loader.state_dict()
    other = ndfeed.torch.loader(ds, 5, shuffle=order)
    other.load_state_dict(json.loads(json.dumps(state)))
    rest = [batch["label"].tolist() for batch in other]
    return {"first": first, "second": second, "rest": rest}


def weights_disagree(rank, world, folder, source):
    """Each rank has weights of its own, which nobody may train with."""
    order = ndfeed.Weighted(np.arange(100) + rank)
    return refused(ndfeed.torch.loader(ndfeed.open(source), 8, shuffle=order))


def share_weights(rank, world, folder, source):
    """Which memory a rank's table lies in, for so many samples that it is worth sharing."""
    n = (16 << 20) // 8
    np.save(folder / f"{rank}.npy", np.arange(n, dtype="u4"))
    ds = ndfeed.open(folder / f"{rank}.npy")
    loader = ndfeed.loader(ds, 8, shuffle=ndfeed.Weighted(np.ones(n)), shard=(rank, world))
    rows = next(iter(loader))["data"].tolist()
    with open("/proc/self/maps") as maps:
        inodes = [line.split()[4] for line in maps if "memfd:ndfeed" in line and " r--s " in line]
    dist.barrier()
    return {"inode": inodes[0], "rows": rows}
