"""Files that change while the GPU reads them, and what a closed loader or a dying process leaves.

The GPU reads pages of mapped files itself. A writer has to wait for it, or the batch has to be
refused; and nothing may stay registered when nobody reads any more.
"""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402
from ndfeed.files.platform_calls import can  # noqa: E402
from ndfeed.loading.options import Structure  # noqa: E402
from ndfeed.torch.batch_format import BatchFormat  # noqa: E402
from ndfeed.torch.torch_loader import OnDevice  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])


def endless(loader):
    """Epoch after epoch."""
    while True:
        yield from loader


def sevens(path, value=7):
    """A file whose rows are all alike."""
    np.save(path, np.full((20_000, 1024), value, np.uint8))
    return path


def truncated(path):
    os.truncate(path, 1000)


def replaced(path):
    """By a file of other values, as an editor or a download does it."""
    os.replace(sevens(path.with_name("other.npy"), 9), path)


@on_each_device
@pytest.mark.parametrize("change", [truncated, replaced])
def test_a_file_that_changes_is_an_error_and_no_wrong_batch(tmp_path, device, change):
    """Whoever writes to a file that is read: the values before it, or a ``ChangedError``."""
    path = sevens(tmp_path / "changing.npy")
    wrong = torch.zeros((), dtype=torch.int64, device=device)

    def compare(batches):
        for batch in batches:
            wrong.add_((batch["data"] != 7).any())

    with ndfeed.torch.loader(ndfeed.open(path), 256, shuffle=True, device=device) as loader:
        batches = endless(loader)
        compare(itertools.islice(batches, 20))
        change(path)
        with pytest.raises(ndfeed.ChangedError, match=r"changing\.npy"):
            compare(itertools.islice(batches, 20_000))

    assert int(wrong) == 0


@needs_gpu
def test_nothing_is_registered_after_close(tmp_path):
    """Registered pages are pinned: they would be missing everywhere else."""
    loader = ndfeed.torch.loader(ndfeed.open(sevens(tmp_path / "x.npy")), 256, device="cuda")
    batches = iter(loader)
    next(batches)
    during = loader.report().way
    loader.close()

    if "reads the files" not in during:
        pytest.skip(f"this machine takes another way: {during}")
    assert "0 B registered" not in during
    assert "0 B registered" in loader.report().way


@needs_gpu
def test_both_parts_of_a_split_are_read_by_the_gpu(tmp_path):
    """They are read by two loaders at a time, out of the same pages."""
    parts = ndfeed.open(sevens(tmp_path / "x.npy")).split(0.9, 0.1)
    loaders = [ndfeed.torch.loader(part, 256, shuffle=True, device="cuda") for part in parts]
    batches = [next(iter(loader)) for loader in loaders]
    ways = [loader.report().way for loader in loaders]
    loaders[0].close()
    batches += list(loaders[1])
    loaders[1].close()

    if "reads the files" not in ways[0]:
        pytest.skip(f"this machine takes another way: {ways[0]}")
    assert "reads the files" in ways[1]
    assert all(bool((batch["data"] == 7).all()) for batch in batches)


@needs_gpu
def test_without_leases_the_gpu_reads_no_files(tmp_path, monkeypatch):
    """Nobody could tell who wrote to a file while the GPU read it."""
    monkeypatch.setattr(can, "lease", False)
    ds = ndfeed.open(sevens(tmp_path / "x.npy"))
    with ndfeed.torch.loader(ds, 256, device="cuda") as loader:
        batch = next(iter(loader))

        assert "cannot be leased" in loader.report().way
        assert bool((batch["data"] == 7).all())


ENDING = """
import itertools, sys
import ndfeed, ndfeed.torch

path, device, how = sys.argv[1:]
ds = ndfeed.open(path)
if how == "maps":
    ds = ds.map(dict)
words = {"resident": True} if how == "resident" else {}
loader = ndfeed.torch.loader(ds, 1024, shuffle=True, device=device, **words)
batches = iter(loader)
kept = list(itertools.islice(batches, 10))
if how == "closed":
    loader.close()
"""


@on_each_device
@pytest.mark.parametrize("how", ["files", "maps", "resident", "closed"])
def test_a_program_that_ends_in_the_middle_of_a_pass_says_nothing(tmp_path, device, how):
    """Threads and GPU are at work when the interpreter and the driver shut down."""
    if (device, how) == ("cpu", "resident"):
        pytest.skip("only a GPU has memory of its own")
    path = sevens(tmp_path / "x.npy")
    done = subprocess.run(
        [sys.executable, "-c", ENDING, path, device, how],
        capture_output=True,
        text=True,
        timeout=250,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@on_each_device
@pytest.mark.parametrize("resident", [False, True])
def test_files_that_come_are_read_on_the_device(tmp_path, device, resident):
    """The feed of a device has the files of its dataset; after a refresh, the new ones, too."""
    if device == "cpu" and resident:
        pytest.skip("data is held in the memory of a GPU only")
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full((100, 8), number))
    ds = ndfeed.open(tmp_path, sample="row")
    how = {"shuffle": True, "device": device, "resident": resident}
    with ndfeed.torch.loader(ds, 32, **how) as loader:
        assert sum(len(batch["data"]) for batch in loader) == 300
        for number in (3, 4):
            np.save(tmp_path / f"{number}.npy", np.full((100, 8), number))
        assert loader.refresh() == 200
        found = torch.cat([batch["data"][:, 0] for batch in loader])
        assert torch.bincount(found).tolist() == [100] * 5


def test_a_feed_is_made_for_the_data_that_grew(tmp_path):
    """Here without a device: what makes the feed gets the dataset of all files."""
    np.save(tmp_path / "0.npy", np.zeros((4, 2)))
    ds = ndfeed.open(tmp_path, sample="row")
    form = BatchFormat(ds, Structure(), None, "list")
    adapt = OnDevice(ds, torch.device("cuda", 0), form, resident=False)
    np.save(tmp_path / "1.npy", np.zeros((4, 2)))
    assert len(adapt.for_dataset(ds.refresh()).ds) == 8
