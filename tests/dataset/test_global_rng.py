"""Maps that draw from global generators, in worker processes: no number is drawn twice.

Forked processes begin with copies of one generator. Augmentations that repeat themselves in every
worker are a fault that nobody sees in a batch.
"""

import importlib.util
import os
import random
import threading

import numpy as np
import pytest
from children import run
from loading.making import epoch_of, numbers

import ndfeed
from ndfeed.dataset.global_rng import seed_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="maps here are not importable")


def from_numpy(batch):
    return {**batch, "drawn": np.random.random(len(batch["data"]))}  # noqa: NPY002


def from_normal(batch):
    return {**batch, "drawn": np.random.normal(size=len(batch["data"]))}  # noqa: NPY002


def from_python(batch):
    return {**batch, "drawn": np.array([random.random() for _ in batch["data"]])}


def from_torch(batch):
    import torch

    return {**batch, "drawn": torch.rand(len(batch["data"]), dtype=torch.float64).numpy()}


without = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
each_map = pytest.mark.parametrize(
    "function", [from_numpy, from_normal, from_python, pytest.param(from_torch, marks=without)]
)


def drawn(ds, batch_size=8, **options):
    """What each row drew, in the order of rows."""
    batches = epoch_of(ds, batch_size, **options)
    pairs = [
        (int(row), float(value))
        for batch in batches
        for row, value in zip(batch["data"], batch["drawn"], strict=True)
    ]
    return [value for _, value in sorted(pairs)]


@each_map
def test_processes_do_not_draw_the_same_numbers(tmp_path, function):
    """As many different draws as rows."""
    found = drawn(numbers(tmp_path, 320).map(function), shuffle=True, processes=4)

    assert len(set(found)) == 320


@each_map
def test_the_number_of_processes_does_not_change_what_is_drawn(tmp_path, function):
    """Nor which of them runs a batch: the same seed gives the same run."""
    ds = numbers(tmp_path, 64).map(function)
    expected = drawn(ds, shuffle=True, processes=1)

    assert drawn(ds, shuffle=True, processes=3) == expected
    assert drawn(ds, shuffle=True, processes=3, threads=7) == expected


@each_map
def test_seeds_epochs_and_ranks_draw_other_numbers(tmp_path, function):
    """Everything that makes a batch another batch counts."""
    ds = numbers(tmp_path, 32).map(function)
    found = []
    for seed in (0, 1):
        for rank in (0, 1):
            with ndfeed.loader(ds, 4, seed=seed, shard=(rank, 2), processes=2) as loader:
                for _ in range(2):
                    found += [value for batch in loader for value in batch["drawn"].tolist()]

    assert len(set(found)) == 2 * 2 * 32


def test_a_resumed_epoch_draws_what_it_would_have(tmp_path):
    """The position counts, not how the epoch was begun."""
    ds = numbers(tmp_path, 48).map(from_numpy)
    whole = epoch_of(ds, 6, shuffle=True, processes=2)
    with ndfeed.loader(ds, 6, shuffle=True, processes=2) as loader:
        loader.load_state_dict({**loader.state_dict(), "samples": 24})
        rest = list(loader)

    assert [b["drawn"].tolist() for b in rest] == [b["drawn"].tolist() for b in whole[4:]]


@pytest.mark.parametrize("processes", [0, 2])
def test_the_generators_of_this_process_are_left_alone(tmp_path, processes):
    """They are the user's: a loader that reseeds them would make their program repeat itself."""
    import torch

    ds = numbers(tmp_path, 32).map(dict)
    before = np.random.get_state()[1].tolist(), random.getstate(), torch.get_rng_state()  # noqa: NPY002
    epoch_of(ds, 4, shuffle=True, processes=processes)
    after = np.random.get_state()[1].tolist(), random.getstate(), torch.get_rng_state()  # noqa: NPY002

    assert after[:2] == before[:2]
    assert torch.equal(after[2], before[2])


def test_threads_draw_different_numbers(tmp_path):
    """They share one generator, the user's."""
    assert len(set(drawn(numbers(tmp_path, 320).map(from_numpy), threads=4))) == 320


@pytest.mark.parametrize("step", [1, 32, 100])
def test_no_two_batches_of_an_epoch_have_the_same_seed(step):
    """NumPy is given 32 bits: hashes of that length repeat among 65,000 batches."""
    positions = range(0, step << 18, step)
    found = [seed_of(b"epoch" + position.to_bytes(8, "little")) for position in positions]

    assert len({seed & 0xFFFFFFFF for seed in found}) == len(positions)
    other = {seed_of(b"other" + position.to_bytes(8, "little")) for position in positions}
    assert other.isdisjoint(found)


SCRIPT = """
    def late(batch):
        import torch
        return {"drawn": torch.rand(len(batch["data"]), dtype=torch.float64).numpy()}

    ds = ndfeed.open(args[0]).map(late)
    loader = ndfeed.loader(ds, 8, processes=2)
    found = [value for batch in loader for value in batch["drawn"].tolist()]
    assert "torch" not in sys.modules
    print(len(set(found)), hash(tuple(found)))
    loader.close()
"""


def test_a_map_that_imports_torch_itself(tmp_path):
    """PyTorch begins with one fixed seed in every process that imports it."""
    pytest.importorskip("torch")
    numbers(tmp_path, 64)
    found = {run(SCRIPT, tmp_path / "x.npy") for _ in range(2)}

    assert len(found) == 1
    assert found.pop().startswith("64 ")


def test_a_generator_that_is_in_use_while_processes_are_forked(tmp_path):
    """Its lock is held in the copy for ever; maps that draw nothing must not wait for it."""
    torch = pytest.importorskip("torch")
    over = threading.Event()

    def draw():
        while not over.is_set():
            torch.randn(1 << 20)
            np.random.normal(size=1 << 18)  # noqa: NPY002

    busy = [threading.Thread(target=draw) for _ in range(2)]
    for thread in busy:
        thread.start()
    try:
        for _ in range(3):
            assert len(epoch_of(numbers(tmp_path, 32).map(dict), 4, processes=2)) == 8
    finally:
        over.set()
        for thread in busy:
            thread.join()
