"""Decoded members: kept within bounds, decoded as seldom as that allows."""

import numpy as np

import ndfeed
from ndfeed.dataset import members
from ndfeed.dataset.members import Decoded


def test_the_least_recently_used_goes_first():
    """A window of files that is read again and again stays."""
    kept = Decoded(limit=30)
    for key in range(3):
        kept.keep((key, 0), np.zeros(10, np.uint8))
    kept.get((0, 0))
    kept.keep((3, 0), np.zeros(10, np.uint8))

    assert [kept.get((key, 0)) is not None for key in range(4)] == [True, False, True, True]


def test_the_newest_is_kept_whatever_its_size():
    """The next row is most likely in the same member: decoding it again would never end."""
    kept = Decoded(limit=30)
    kept.keep((0, 0), np.zeros(10, np.uint8))
    kept.keep((1, 0), np.zeros(100, np.uint8))

    assert kept.get((0, 0)) is None
    assert kept.get((1, 0)) is not None


def test_room_is_made_before_decoding():
    """The bound holds while the next member is being decoded, not only afterwards."""
    kept = Decoded(limit=30)
    kept.keep((0, 0), np.zeros(20, np.uint8))
    kept.make_room(20)

    assert kept.get((0, 0)) is None


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
    real = members.File.__init__
    monkeypatch.setattr(
        members.File, "__init__", lambda file, *args: passes.append(args[0]) or real(file, *args)
    )
    members.verify(ds.groups[0].columns)

    assert len(passes) == 2
