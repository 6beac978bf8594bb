"""Generators for maps are fixed by seed, epoch and position, and by nothing else."""

import numpy as np
import pytest
from loading.making import assert_same, compressed, epoch_of, numbers

import ndfeed


def drawn(sample, rng):
    """One number a sample or a batch, beside the rows."""
    return {**sample, "drawn": rng.integers(0, 1 << 62, np.shape(sample["data"]))}


def again(sample, rng):
    return {**sample, "again": rng.integers(0, 1 << 62, np.shape(sample["data"]))}


def by_row(batches, name="drawn"):
    return {
        int(row): int(value)
        for batch in batches
        for row, value in zip(batch["data"], batch[name], strict=True)
    }


@pytest.fixture
def ds(tmp_path):
    return numbers(tmp_path, 60)


@pytest.mark.parametrize("batched", [True, False])
def test_neither_threads_nor_processes_change_what_is_drawn(ds, batched):
    """A run can be repeated on another machine."""
    ds = ds.map(drawn, batched=batched)
    expected = epoch_of(ds, 7, shuffle=True, threads=1)
    for options in ({"threads": 8}, {"processes": 2}, {"memory": 1000, "threads": 2}):
        assert_same(epoch_of(ds, 7, shuffle=True, **options), expected)


def test_for_single_samples_neither_batch_size_nor_ranks_count(ds):
    """A sample in its place draws the same, however many it comes with."""
    ds = ds.map(drawn, batched=False)
    expected = by_row(epoch_of(ds, 60, shuffle=True))
    for size in (1, 7, 16):
        assert by_row(epoch_of(ds, size, shuffle=True)) == expected
    of_ranks = {}
    for rank in range(4):
        of_ranks |= by_row(epoch_of(ds, 5, shuffle=True, shard=(rank, 4)))

    assert of_ranks == expected


@pytest.mark.parametrize("batched", [True, False])
def test_a_resumed_epoch_draws_what_it_would_have(ds, batched):
    """The generator hangs on the position in the epoch, not on how the epoch was begun."""
    ds = ds.map(drawn, batched=batched)
    whole = epoch_of(ds, 6, shuffle=True)
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        loader.load_state_dict({**loader.state_dict(), "samples": 24})

        assert_same(list(loader), whole[4:])


@pytest.mark.parametrize("batched", [True, False])
def test_seeds_epochs_and_positions_differ(ds, batched):
    """Nothing is drawn twice."""
    ds = ds.map(drawn, batched=batched)
    values = []
    for seed in (0, 1):
        with ndfeed.loader(ds, 6, seed=seed) as loader:
            for _ in range(3):
                values += by_row(loader).values()

    assert len(set(values)) == 2 * 3 * 60


@pytest.mark.parametrize("batched", [True, False])
def test_several_maps_do_not_share_a_stream(ds, batched):
    """A flip and a crop that go together are half an augmentation."""
    ds = ds.map(drawn, batched=batched).map(again, batched=batched)
    batches = epoch_of(ds, 6, shuffle=True)
    first, second = by_row(batches), by_row(batches, "again")

    assert not set(first.values()) & set(second.values())


def test_a_batched_map_and_one_for_samples_do_not_share_a_stream(ds):
    """At the same place in the chain, they stand for different things."""
    whole = by_row(epoch_of(ds.map(drawn), 6))
    single = by_row(epoch_of(ds.map(drawn, batched=False), 6))

    assert not set(whole.values()) & set(single.values())


def test_long_streams_of_neighbours_do_not_meet(ds):
    """Images draw millions of numbers each: position 1 must not go on where 0 ended."""
    many = ds.map(lambda s, rng: {"data": s["data"], "x": rng.random(5000)}, batched=False)
    (batch,) = epoch_of(many, 60)

    assert len(np.unique(batch["x"])) == 60 * 5000


def test_what_is_drawn_is_frozen(ds):
    """A run that is repeated after an update must be the same run: these may not change."""
    single = epoch_of(ds.map(drawn, batched=False), 2, seed=5)[1]["drawn"]
    whole = epoch_of(ds.map(drawn), 2, seed=5)[1]["drawn"]

    assert single.tolist() == [465157924512169158, 1777892221068736075]
    assert whole.tolist() == [3971464600552863404, 2773921871258704590]


def test_draws_do_not_hang_on_the_order_of_decoding(tmp_path):
    """Also where files are decoded ahead by whatever thread is free."""
    ds, _ = compressed(tmp_path, files=6, rows=10)
    ds = ds.map(lambda b, rng: {"n": b["n"], "x": rng.random(len(b["n"]))})
    expected = epoch_of(ds, 7, shuffle=True, threads=1)

    for threads in (2, 8):
        assert_same(epoch_of(ds, 7, shuffle=True, threads=threads), expected)
