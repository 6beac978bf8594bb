"""Decoded members: kept within bounds, decoded as seldom as that allows."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ndfeed
from ndfeed.dataset import decoding
from ndfeed.dataset.decoding import Decoded


def decoded_anew(kept, key, size):
    """Did asking for a stream decode it?"""
    calls = []
    kept.stream((0, key, 0), size, lambda: calls.append(key) or np.zeros(size, np.uint8))
    return bool(calls)


def test_the_least_recently_used_goes_first():
    """A window of files that is read again and again stays."""
    kept = Decoded(limit=30)
    for key in (0, 1, 2, 0, 3):
        decoded_anew(kept, key, 10)

    assert [decoded_anew(kept, key, 10) for key in (0, 2, 3)] == [False, False, False]
    assert decoded_anew(kept, 1, 10)


def test_the_newest_is_kept_whatever_its_size():
    """The next row is most likely in the same member: decoding it again would never end."""
    kept = Decoded(limit=30)
    decoded_anew(kept, 0, 10)
    decoded_anew(kept, 1, 100)

    assert not decoded_anew(kept, 1, 100)
    assert decoded_anew(kept, 0, 10)


def test_room_is_made_before_decoding():
    """The bound holds while the next member is being decoded, not only afterwards."""
    kept = Decoded(limit=30)
    decoded_anew(kept, 0, 20)
    held = []
    kept.stream((0, 1, 0), 20, lambda: held.append(kept.held) or np.zeros(20, np.uint8))

    assert held == [20]


def test_several_threads_decode_a_stream_once():
    """The others wait for the one that is at it."""
    kept = Decoded(limit=30)
    calls = []

    def decode():
        calls.append(threading.get_ident())
        time.sleep(0.05)
        return np.zeros(10, np.uint8)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: kept.stream((0, 0, 0), 10, decode), range(4)))

    assert len(calls) == 1
    assert all(one is found[0] for one in found)


def test_a_stream_that_cannot_be_decoded_is_tried_again():
    """An error is for who met it: nobody waits for a stream that never comes."""
    kept = Decoded(limit=30)
    with pytest.raises(ValueError, match="damaged"):
        kept.stream((0, 0, 0), 10, lambda: (_ for _ in ()).throw(ValueError("damaged")))

    assert decoded_anew(kept, 0, 10)
    assert kept.held == 10
    kept.clear()
    assert kept.held == 0


def test_a_member_is_decoded_once_for_all_its_rows(tmp_path):
    """Rows of a deflated file, one after the other, do not inflate it each time."""
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(1000).reshape(100, 10))
    ds = ndfeed.open(tmp_path / "x.npz")
    rows = [ds[i]["x"][0] for i in range(100)]
    (tmp_path / "x.npz").unlink()

    assert rows == list(range(0, 1000, 10))
    assert ds[50]["x"][0] == 500  # from what is kept: the file is gone


def test_fields_of_one_stream_share_it(tmp_path):
    """The columns of a structured array are one member, decoded once."""
    points = np.zeros(50, [("x", "<f4"), ("y", ">i2", (2,))])
    points["x"], points["y"][:, 1] = np.arange(50), np.arange(50)
    np.savez_compressed(tmp_path / "p.npz", p=points)
    batch = ndfeed.open(tmp_path / "p.npz")[[7, 3]]

    assert batch["p/x"].tolist() == [7, 3]
    assert batch["p/y"].tolist() == [[0, 7], [0, 3]]
    assert batch["p/y"].dtype.isnative


def test_a_structured_member_is_compared_once_for_all_its_fields(tmp_path, monkeypatch):
    """Thousands of fields of one member must not mean thousands of passes over it."""
    points = np.zeros(50, [(f"f{i}", "<f4") for i in range(20)])
    np.savez(tmp_path / "p.npz", p=points, q=points["f0"])
    ds = ndfeed.open(tmp_path / "p.npz")
    passes = []
    real = decoding.File.__init__
    monkeypatch.setattr(
        decoding.File, "__init__", lambda file, *args: passes.append(args[0]) or real(file, *args)
    )
    decoding.verify(ds.groups[0].columns)

    assert len(passes) == 2
