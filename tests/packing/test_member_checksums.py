"""Stored members are read once: their checksums come from the rows that are copied."""

import contextlib
import os

import numpy as np
import psutil
import pytest
from packing import making
from packing.making import same

import ndfeed

ROWS, WIDTH = 3000, 1000
PIECES = {"workers": 2, "memory": "1MB"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Two members, each in several pieces of the work."""
    path = tmp_path_factory.mktemp("stored") / "x.npz"
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (ROWS, WIDTH), np.uint8)
    np.savez(path, x=x, y=rng.random(ROWS), z=rng.random((ROWS, 3)).astype(">f4"))
    return path


def read_by(function):
    """Bytes that this process reads meanwhile."""
    before = psutil.Process().io_counters().read_chars
    function()
    return psutil.Process().io_counters().read_chars - before


@pytest.mark.skipif(not hasattr(psutil.Process, "io_counters"), reason="the system does not say")
def test_a_member_is_read_once(archive, tmp_path):
    """Rows, and what is left of it for its checksum: a header."""
    ds = ndfeed.open(archive).select("x", "y")
    taken = read_by(lambda: ndfeed.pack(ds, tmp_path / "packed", **PIECES))

    assert ds.nbytes < taken < 1.1 * ds.nbytes
    assert same(ndfeed.open(tmp_path / "packed"), ds)


def damaged(archive, to, at):
    data = bytearray(archive.read_bytes())
    data[at] ^= 16
    to.write_bytes(data)
    return ndfeed.open(to)


def places(archive):
    """A byte of every field's every piece, about; the fields lie one behind the other."""
    return range(600, ROWS * WIDTH + ROWS * 8 + ROWS * 12, 330_007)


OPTIONS = {
    "in order": (slice(None), {}),
    "some in a row": (slice(7, 2900), {}),
    "some here and there": (slice(None, None, 7), {}),
    "shuffled": (slice(None), {"shuffle": 1}),
    "parts": (slice(None), {"rows_per_part": 700}),
    "cast": (slice(None), {"dtype": {"x": "int16"}}),
}


@pytest.mark.parametrize("way", OPTIONS.values(), ids=OPTIONS)
def test_damage_anywhere_is_found(archive, tmp_path, way):
    """In rows that are packed and in those that are not: the archive has one checksum for both."""
    rows, options = way
    sound = ndfeed.pack(ndfeed.open(archive).take(rows), tmp_path / "sound", **options, **PIECES)
    assert len(sound) == len(range(ROWS)[rows])
    for at in places(archive):
        ds = damaged(archive, tmp_path / "x.npz", at).take(rows)
        with pytest.raises(ndfeed.ChecksumError, match=r"x\.npz: expected checksum "):
            ndfeed.pack(ds, tmp_path / "packed", **options, **PIECES)

        assert sorted(os.listdir(tmp_path)) == ["sound", "x.npz"]


def test_damage_is_found_by_the_run_that_goes_on(archive, tmp_path):
    """The pieces of an earlier one count with what they read."""
    ds = damaged(archive, tmp_path / "x.npz", 5000)

    def stop(rows, nbytes):
        if rows:
            raise KeyboardInterrupt

    for _ in range(3):
        with contextlib.suppress(KeyboardInterrupt):
            ndfeed.pack(ds, tmp_path / "packed", progress=stop, workers=1, memory="1MB")
    with pytest.raises(ndfeed.ChecksumError, match=r"x\.npz: expected checksum"):
        ndfeed.pack(ds, tmp_path / "packed", workers=1, memory="1MB")
    assert os.listdir(tmp_path) == ["x.npz"]


def test_many_members_of_many_rows(tmp_path):
    """Some in one piece, some in two, whatever the memory."""
    ds = making.npz_of_rows(tmp_path / "source", files=9, rows=50, compressed=False)
    for memory in (2000, 7000, 40_000):
        packed = ndfeed.pack(ds, tmp_path / f"packed{memory}", memory=memory, workers=1)
        assert same(packed, ds)
    for name in ("0", "4", "8"):
        path = tmp_path / f"source/{name}.npz"
        sound = path.read_bytes()
        for at in (300, 700, 1100):
            data = bytearray(sound)
            data[at] ^= 1
            path.write_bytes(data)
            for memory in (2000, 7000):
                with pytest.raises(ndfeed.ChecksumError, match=rf"{name}\.npz: expected checksum"):
                    ndfeed.pack(
                        ndfeed.open(tmp_path / "source", sample="row"),
                        tmp_path / "no",
                        memory=memory,
                        workers=1,
                    )
        path.write_bytes(sound)
