"""``ndfeed.pack(..., dry_run=True)``: what would be written, to the byte, and nothing is."""

import os

import numpy as np
import pytest
from faults.seam import tree
from packing import making

import ndfeed


def columns_bytes(target):
    return sum(path.stat().st_size for path in target.rglob("*.npy"))


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": 3, "names": True}, {"rows_per_part": 4}, {"dtype": {"points": "float16"}}],
    ids=["plain", "order", "parts", "cast"],
)
def test_it_says_to_the_byte_what_pack_then_writes(tmp_path, options):
    """Ragged fields, names, parts and casts included; the disk is as before."""
    ds = making.npz_of_samples(tmp_path / "source")
    before = tree(tmp_path)
    found = ndfeed.pack(ds, tmp_path / "packed", dry_run=True, **options)

    assert isinstance(found, ndfeed.Forecast)
    assert tree(tmp_path) == before
    packed = ndfeed.pack(ds, tmp_path / "packed", **options)
    assert found.needed == columns_bytes(tmp_path / "packed")
    assert dict(found.fields) == dict(packed.fields)
    assert (found.rows, found.parts) == (len(packed), len(list((tmp_path / "packed").glob("0*"))))
    assert (found.target, found.state) == (str(tmp_path / "packed"), "new")
    assert found.exact
    assert found.fits
    assert found.free > 0
    assert f"{found.rows} rows in {found.parts} part" in str(found)


def test_lengths_that_only_a_map_knows_are_left_out(tmp_path):
    """It says so: what is needed is a least figure then."""
    ds = making.npz_of_rows(tmp_path / "source").map(making.ragged)
    found = ndfeed.pack(ds, tmp_path / "packed", dry_run=True)
    ndfeed.pack(ds, tmp_path / "packed")
    values = (tmp_path / "packed/00000/counted.values.npy").stat().st_size

    assert not found.exact
    assert found.needed == columns_bytes(tmp_path / "packed") - values
    assert "at least" in str(found)


def test_what_an_earlier_run_did_is_told(tmp_path):
    """Begun, or done already."""
    ds = making.npz_of_rows(tmp_path / "source")

    def stop(rows, nbytes):
        if rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ndfeed.pack(ds, tmp_path / "packed", progress=stop)
    assert ndfeed.pack(ds, tmp_path / "packed", dry_run=True).state == "begun"
    assert ndfeed.pack(ds, tmp_path / "packed", shuffle=0, dry_run=True).state == "new"
    ndfeed.pack(ds, tmp_path / "packed")
    before = tree(tmp_path)
    found = ndfeed.pack(ds, tmp_path / "packed", dry_run=True)

    assert found.state == "done"
    assert "nothing would be written" in str(found)
    more = ndfeed.pack(ds.take(slice(0, 5)), tmp_path / "packed", append=True, dry_run=True)
    assert (more.state, more.rows) == ("new", 5)
    assert tree(tmp_path) == before


def test_what_pack_would_refuse_is_refused(tmp_path):
    """Not found out an hour later."""
    ds = making.npz_of_rows(tmp_path / "source")
    ndfeed.pack(ds, tmp_path / "packed")
    with pytest.raises(ndfeed.ConflictError, match="already holds another packed dataset"):
        ndfeed.pack(ds, tmp_path / "packed", shuffle=1, dry_run=True)
    with pytest.raises(ndfeed.ConflictError, match="the folder is not empty"):
        ndfeed.pack(ds, tmp_path / "source", dry_run=True)
    with pytest.raises(ndfeed.MissingError, match="append"):
        ndfeed.pack(ds, tmp_path / "new", append=True, dry_run=True)
    with pytest.raises(ValueError, match=r"ndfeed\.verify says what repair"):
        ndfeed.pack(ds, tmp_path / "packed", repair=True, dry_run=True)


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="the disk does not say what it has")
def test_too_little_room_is_told_and_not_raised(tmp_path):
    """The figure is what whoever asks wants."""
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (1 << 20, 1 << 20)).flush()
    found = ndfeed.pack(tmp_path / "x.npy", tmp_path / "packed", dry_run=True)

    assert found.needed > 1 << 40
    assert not found.fits
    assert sorted(os.listdir(tmp_path)) == ["x.npy"]
