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
