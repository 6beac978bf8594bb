"""Compressed files divided among ranks: each inflates its own, and every sample comes once."""

import math
from collections import Counter

import numpy as np
import pytest
from audit import opened_in
from loading.making import assert_same, compressed, epoch_of

import ndfeed
from ndfeed.order.epoch import Share

FILES, ROWS = 24, 20

OPENED = 3  # times for each file: once for each of two streams, once to ask for it ahead


@pytest.fixture
def ds(tmp_path):
    return compressed(tmp_path, FILES, ROWS)[0]


def files_read(ds, folder, **options):
    """How often one epoch opens which files, and the numbers of its rows."""
    with opened_in(folder) as opened:
        numbers = [n for batch in epoch_of(ds, 8, **options) for n in batch["n"].tolist()]
    return Counter(opened), numbers


@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_inflates_its_own_files(ds, tmp_path, world):
    """Together all of them once, but for those that a cut falls into; every row once."""
    order = ndfeed.Windows(3, ranks=4)
    reads, rows = [], []
    for rank in range(world):
        files, found = files_read(ds, tmp_path, shuffle=order, shard=(rank, world))
        assert max(files.values()) <= OPENED  # none is inflated again
        reads.append(set(files))
        rows += found

    assert sorted(rows) == list(range(FILES * ROWS))
    assert len(set().union(*reads)) == FILES
    assert sum(map(len, reads)) <= FILES + 3
    assert max(map(len, reads)) <= FILES // world + 4


def test_without_it_every_rank_inflates_them_all(ds, tmp_path):
    """What it is for."""
    for rank in range(2):
        files, _ = files_read(ds, tmp_path, shuffle=ndfeed.Windows(3), shard=(rank, 2))
        assert len(files) == FILES


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 6])
def test_all_ranks_have_as_many_batches(ds, world, drop_last):
    """Of one size, but for the last."""
    order = ndfeed.Windows(3, ranks=6)
    found = [
        epoch_of(ds, 7, shuffle=order, shard=(rank, world), drop_last=drop_last)
        for rank in range(world)
    ]
    sizes = [[len(batch["n"]) for batch in batches] for batches in found]
    rows = [n for batches in found for batch in batches for n in batch["n"].tolist()]

    assert len(set(map(len, sizes))) == 1
    assert all(size == 7 for each in sizes for size in each[:-1])
    assert len(set(rows)) == len(rows)
    assert len(rows) == (FILES * ROWS // (7 * world) * 7 * world if drop_last else FILES * ROWS)


@pytest.mark.parametrize("others", [1, 2, 3, 8])
def test_resuming_with_another_number_of_ranks(ds, others):
    """And another batch size: what four ranks left is what the others deliver."""
    order = ndfeed.Windows(3, ranks=8)
    before, states = [], []
    for rank in range(4):
        with ndfeed.loader(ds, 8, shuffle=order, shard=(rank, 4), seed=3) as loader:
            batches = iter(loader)
            before += [n for _ in range(5) for n in next(batches)["n"].tolist()]
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    after = []
    for rank in range(others):
        with ndfeed.loader(ds, 5, shuffle=order, shard=(rank, others)) as loader:
            loader.load_state_dict(states[0])
            after += [n for batch in loader for n in batch["n"].tolist()]

    assert len(before) == 4 * 5 * 8
    assert sorted(before + after) == list(range(FILES * ROWS))


def test_resuming_a_rank(ds):
    """The batches it would have had, bit for bit, maps that draw included."""
    mapped = ds.map(lambda b, rng: {**b, "drawn": rng.random(len(b["n"]))})
    options = {"shuffle": ndfeed.Windows(3, ranks=2), "shard": (1, 2)}
    whole = epoch_of(mapped, 8, **options)
    with ndfeed.loader(mapped, 8, **options) as loader:
        loader.load_state_dict({**loader.state_dict(), "samples": 4 * 16})

        assert_same(list(loader), whole[4:])


def test_draws_hang_on_positions_alone(ds):
    """A sample in its place draws the same, whatever the ranks and the batch size."""
    mapped = ds.map(lambda s, rng: {"n": s["n"], "drawn": rng.random()}, batched=False)
    order = ndfeed.Windows(3, ranks=4)

    def drawn(size, world):
        batches = [
            batch
            for rank in range(world)
            for batch in epoch_of(mapped, size, shuffle=order, shard=(rank, world))
        ]
        return {
            n: x for b in batches for n, x in zip(b["n"].tolist(), b["drawn"].tolist(), strict=True)
        }

    expected = drawn(FILES * ROWS, 1)
    assert len(set(expected.values())) == FILES * ROWS
    assert drawn(7, 2) == expected
    assert drawn(16, 4) == expected


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 6}, {"memory": 4000}])
def test_neither_threads_nor_memory_change_a_batch(ds, options):
    """Also where files have to be inflated again and again."""
    order = {"shuffle": ndfeed.Windows(3, ranks=4), "shard": (1, 2)}

    assert_same(epoch_of(ds, 8, **order, **options), epoch_of(ds, 8, **order))


def test_epochs_divide_files_anew(ds):
    """A rank must not train on the same files for ever."""
    with ndfeed.loader(ds, 8, shuffle=ndfeed.Windows(3, ranks=4), shard=(0, 4)) as loader:
        epochs = [{n // ROWS for batch in loader for n in batch["n"].tolist()} for _ in range(3)]

    assert epochs[0] != epochs[1] != epochs[2]


def test_a_process_that_is_several_ranks(ds):
    """Their rows one behind the other, as each of them would have had them."""
    from ndfeed.loading.facts import Facts
    from ndfeed.loading.loader import Loader
    from ndfeed.loading.options import Options, Request

    order = ndfeed.Windows(3, ranks=4)
    share = Share(len(ds), 8, 0, 4, others=(2,))
    request = Request(ds, share, order, Options(memory=1 << 26), Facts(ds))
    with Loader(request) as loader:
        together = [batch["n"] for batch in loader]
    alone = [epoch_of(ds, 8, shuffle=order, shard=(rank, 4)) for rank in (0, 2)]
    for found, *parts in zip(together, *alone, strict=True):
        assert found.tolist() == [n for part in parts for n in part["n"].tolist()]


def test_a_state_of_another_division_is_refused(ds):
    """It is another order."""
    with ndfeed.loader(ds, 8, shuffle=ndfeed.Windows(3, ranks=4)) as loader:
        state = loader.state_dict()
    with (
        ndfeed.loader(ds, 8, shuffle=ndfeed.Windows(3)) as loader,
        pytest.raises(ndfeed.ResumeError, match=r"another order: windows\(files=3, ranks=4\)"),
    ):
        loader.load_state_dict(state)


def test_views_and_mixed_sizes(tmp_path):
    """Rows of files in any order, files of any size."""
    found, _ = compressed(tmp_path, 9, 13)
    view = found.take(np.random.default_rng(0).permutation(9 * 13)[:100])
    rows = [
        n
        for rank in range(3)
        for batch in epoch_of(view, 4, shuffle=ndfeed.Windows(2, ranks=3), shard=(rank, 3))
        for n in batch["n"].tolist()
    ]

    assert sorted(rows) == sorted(view[:]["n"].tolist())
    assert math.ceil(100 / 12) * 12 >= len(rows)
