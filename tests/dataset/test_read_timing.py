"""Time counted where it is spent, by thread."""

import threading

import numpy as np

import ndfeed
from ndfeed.dataset.read_timing import inflating, reading, spent


def test_reading_and_inflating_are_told_apart(tmp_path):
    """Deflated files are read, and then inflated; raw ones are only read."""
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((200, 1000)))
    ds = ndfeed.open(tmp_path / "x.npz")
    streams, inflate = spent.streams, spent.inflate
    ds.read([1])

    assert spent.streams == streams + 1
    assert spent.inflate > inflate
    np.save(tmp_path / "y.npy", np.zeros((200, 1000)))
    read, inflate = spent.read, spent.inflate
    ndfeed.open(tmp_path / "y.npy", mapped=False).read([1])
    assert spent.read > read
    assert spent.inflate == inflate


def test_every_thread_has_its_own():
    """Or a loader's threads would count each other's."""
    before = spent.read
    other = threading.Thread(target=lambda: reading().__enter__())
    other.start()
    other.join()

    assert spent.read == before


def test_what_fails_is_counted_too():
    """The time was spent."""
    before = spent.inflate
    try:
        with inflating():
            raise ValueError
    except ValueError:
        pass

    assert spent.inflate > before
