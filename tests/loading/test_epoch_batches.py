"""Which rows make which batch, and what is asked of the disk ahead of it."""

import gc
import os
from itertools import islice

import numpy as np
import pytest
from loading.making import epoch_of, numbers, rows_of

import ndfeed
from ndfeed.files.platform_calls import can

needs_hints = pytest.mark.skipif(not can.advise or not can.probe, reason="hints are Linux's")


@pytest.mark.parametrize("batch_size", [1, 3, 1000, 16_384, 20_000])
@pytest.mark.parametrize("world", [1, 3])
def test_long_epochs_are_worked_out_in_pieces(tmp_path, batch_size, world):
    """Rows are computed thousands at a time: the seams between those pieces must not show."""
    n = 60_000 if batch_size > 3 else 2000 * batch_size
    ds = numbers(tmp_path, n)
    order = ndfeed.Exact().begin(n, 3, 0).rows(0, n)
    ranks = [
        epoch_of(ds, batch_size, shuffle=True, seed=3, shard=(rank, world), threads=2)
        for rank in range(world)
    ]
    found = [np.concatenate([b["data"] for b in parts]) for parts in zip(*ranks, strict=True)]

    np.testing.assert_array_equal(np.concatenate(found), order)


@pytest.mark.parametrize(
    "shuffle", [True, False, ndfeed.Blocks(rows=64, window=4), ndfeed.Windows(files=2)], ids=str
)
def test_resuming_far_inside_gives_the_same_rows(tmp_path, shuffle):
    """Pieces are cut from where a pass begins, so they lie elsewhere after a resume."""
    ds = numbers(tmp_path, 40_000)
    whole = rows_of(epoch_of(ds, 100, shuffle=shuffle))
    for samples in (1, 99, 16_384, 39_950, 40_000):
        with ndfeed.loader(ds, 100, shuffle=shuffle) as loader:
            loader.load_state_dict({**loader.state_dict(), "samples": samples})

            assert rows_of(loader) == whole[samples:]


@needs_hints
@pytest.mark.parametrize("shuffle", [True, ndfeed.Blocks(rows=16, window=2), False], ids=str)
@pytest.mark.parametrize("capability", ["advise", "probe", None])
def test_batches_are_the_same_with_every_hint_left_out(tmp_path, monkeypatch, shuffle, capability):
    """Other platforms lack them; cold files are where they would matter."""
    ds = numbers(tmp_path, 600, width=600)
    expected = rows_of(epoch_of(ds, 8, shuffle=shuffle))
    if capability:
        monkeypatch.setattr(can, capability, False)
    fd = os.open(tmp_path / "x.npy", os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)

    assert rows_of(epoch_of(ndfeed.open(tmp_path / "x.npy"), 8, shuffle=shuffle)) == expected


def test_the_first_batch_of_a_very_long_epoch_costs_no_more(tmp_path):
    """Ten thousand million rows, all of them the same few bytes of a sparse file."""
    path = tmp_path / "x.bin"
    with open(path, "wb") as file:
        file.truncate(10**10)
    try:
        ds = ndfeed.open(path, dtype="u1", shape=())
        # Few rows: every one is a page of the sparse file.
        with ndfeed.loader(ds, 2, shuffle=True, threads=1) as loader:
            assert len(loader) == 5 * 10**9
            assert len(next(iter(loader))["data"]) == 2
            loader.load_state_dict({**loader.state_dict(), "samples": 10**10 - 3, "epoch": 0})
            assert [len(batch["data"]) for batch in loader] == [2, 1]
    finally:
        path.unlink()


@pytest.mark.parametrize("kind", ["plain", "windows", "crops", "compressed"])
def test_a_pass_that_is_over_is_freed_at_once(tmp_path, kind):
    """In a reference cycle, its rows would stay until garbage is collected: megabytes per epoch."""
    save = np.savez_compressed if kind == "compressed" else np.savez
    for i in range(4):
        save(tmp_path / f"{i}.npz", x=np.zeros((900, 30)))
    ds = ndfeed.open(tmp_path, sample="file" if kind == "crops" else "row")
    ds = ds.windows(3) if kind == "windows" else ds
    ds = ds.crops({"x": (5, 5)}, each=900) if kind == "crops" else ds
    found = gc.garbage
    with ndfeed.loader(ds, 16, shuffle=True) as loader:
        for _ in islice(loader, 5):
            pass
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                for _ in islice(loader, 5):
                    pass
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            names = {type(one).__name__ for one in found if "loading" in type(one).__module__}
        finally:
            gc.set_debug(0)
            found.clear()
            gc.enable()

    assert not names
