"""From a source to its table and back, without leaving anything open."""

import gc
import os
import pickle
import threading

import numpy as np
import psutil
import pytest
from children import run
from index.lists import read_back, same

import ndfeed
from ndfeed.files.shared_memory import Shared
from ndfeed.index import codec
from ndfeed.index.open import open_table


@pytest.fixture
def folder(tmp_path):
    """Files of several kinds."""
    for i in range(5):
        np.save(tmp_path / f"{i}.npy", np.full((4, 3), i, "<f4"))
        np.savez(tmp_path / f"{i}.npz", data=np.full((4, 3), i, "<f4"))
        np.savez_compressed(tmp_path / f"z{i}.npz", data=np.full((4, 3), i, "<f4"))
    return tmp_path


def test_a_table_travels_as_a_handle(folder):
    """A worker maps what its parent has: a few hundred bytes, however many files."""
    opened = open_table(folder)
    data = pickle.dumps(opened)
    arrived = pickle.loads(data)

    assert len(data) < 2000
    assert read_back(arrived.table) == read_back(opened.table)
    assert arrived.table.caches == opened.table.caches
    assert list(arrived.spellings) == [os.fsencode(folder)]


def test_a_table_that_cannot_be_reached_is_made_again(folder):
    """As when the pickle outlived the process that made it."""
    code = """
    import pickle
    from ndfeed.index.open import open_table
    print(pickle.dumps(open_table(args[0])).hex())
    """
    data = bytes.fromhex(run(code, folder))

    assert same(pickle.loads(data).table, open_table(folder).table)


def test_other_data_than_was_pickled_is_refused(folder):
    """Else a resumed run would go on with other samples."""
    code = """
    import pickle
    from ndfeed.index.open import open_table
    print(pickle.dumps(open_table(args[0])).hex())
    """
    data = bytes.fromhex(run(code, folder))
    np.save(folder / "5.npy", np.zeros((4, 3), "<f4"))

    with pytest.raises(ndfeed.ChangedError, match=f"^{folder}: expected data with fingerprint "):
        pickle.loads(data)


def test_a_copy_has_the_same_fingerprint(folder, tmp_path_factory):
    """Another place, other times, the same data; with a README beside it or without."""
    copy = tmp_path_factory.mktemp("copy")
    (copy / "inner").mkdir()
    for name in os.listdir(folder):
        (copy / "inner" / name).write_bytes((folder / name).read_bytes())
    (copy / "README").write_text("no array")

    assert codec.fingerprint(open_table(copy).table) == codec.fingerprint(open_table(folder).table)


def settled():
    """Descriptors and threads, once those of ours that end by themselves have ended."""
    gc.collect()  # what other tests have left, too
    for thread in threading.enumerate():
        if thread.name.startswith("ndfeed"):
            thread.join(60)
    return psutil.Process().num_fds(), threading.active_count()


def test_a_thousand_opens_leave_nothing_open(folder):
    """Descriptors and threads, also where reading raises."""
    damaged = folder / "damaged"
    damaged.mkdir()
    np.savez_compressed(damaged / "x.npz", data=np.random.default_rng(0).random((50, 3)))
    broken = bytearray((damaged / "x.npz").read_bytes())
    broken[600] ^= 0xFF
    (damaged / "x.npz").write_bytes(broken)
    before = settled()
    for i in range(1000):
        if i % 4 == 0:
            ds = ndfeed.open(damaged / "x.npz")
            with pytest.raises(ndfeed.FormatError, match=r"x\.npz"):
                ds[3]
        else:
            ds = ndfeed.open([folder / f"{i % 5}.npy", folder / "1.npy"], sample="row")
            assert ds[[0, 5]]["data"][:, 0].tolist() == [i % 5, 1]
    del ds

    assert settled() == before


def test_shared_memory_goes_with_the_table(folder):
    """What was pickled for workers is not kept longer than the table itself."""
    before, _ = settled()
    opened = open_table(folder)
    for _ in range(3):
        pickle.dumps(opened)
    assert psutil.Process().num_fds() == before + 1
    arrived = pickle.loads(pickle.dumps(opened))
    assert isinstance(arrived._memory, Shared)
    del opened, arrived

    assert psutil.Process().num_fds() == before
