"""Damage is repaired from the sources: only what is damaged, and only with what was there."""

import contextlib
import os
import random
import shutil
import signal
from itertools import count

import numpy as np
import pytest
from faults.seam import forked, kill, system, tree
from packing import making

import ndfeed


@pytest.fixture(params=["stored", "shuffled", "mapped", "appended"])
def packed(request, folder):
    """A packed dataset, and the calls that repair it."""
    target = folder / "packed"
    if request.param == "mapped":
        ds = making.npz_of_rows(folder / "source").map(making.ragged)
        calls = [(ds, {"shuffle": 2, "rows_per_part": 30})]
    elif request.param == "appended":
        ds = making.npz_of_samples(folder / "source")
        calls = [(ds.take([0, 2, 4, 6, 8]), {"names": True}), (ds.take([9, 7]), {"names": True})]
    else:
        ds = making.npz_of_samples(folder / "source", files=20)
        seed = 3 if request.param == "shuffled" else None
        calls = [(ds, {"shuffle": seed, "rows_per_part": 7})]
    for i, (one, options) in enumerate(calls):
        ndfeed.pack(one, target, append=i > 0, **options)
    return target, [one for one, _ in calls]


def columns(target):
    return sorted(target.glob("*/*.npy"))


def flip(path, at, bit=0):
    with open(path, "rb+") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def repair(target, sources):
    """Repair with each source in turn: each sees to what was made of it."""
    for ds in sources:
        with contextlib.suppress(ndfeed.ChangedError):  # the others'
            ndfeed.pack(ds, target, repair=True)


def test_every_column_is_repaired(packed):
    """Header, first and last byte of every file, all at once."""
    target, sources = packed
    before = tree(target)
    for path in columns(target):
        for at in {0, 128, path.stat().st_size - 1} - {path.stat().st_size}:
            flip(path, at)
    assert not ndfeed.verify(target).ok
    repair(target, sources)

    assert tree(target) == before
    assert ndfeed.verify(target).ok


def test_files_that_are_gone_cut_or_too_long(packed):
    """They are made anew."""
    target, sources = packed
    before = tree(target)
    paths = columns(target)
    for i, path in enumerate(paths):
        if i % 3 == 0:
            path.unlink()
        elif i % 3 == 1:
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.write_bytes(path.read_bytes() + b"more")
    repair(target, sources)

    assert tree(target) == before


def test_sound_files_are_not_touched(packed):
    """Not even their times change."""
    target, sources = packed
    paths = columns(target)
    flip(paths[0], 200 if paths[0].stat().st_size > 200 else 3)
    times = {path: path.stat().st_mtime_ns for path in paths[1:]}
    repair(target, sources)

    assert {path: path.stat().st_mtime_ns for path in paths[1:]} == times
    assert ndfeed.verify(target).ok


def test_repairing_what_is_sound(packed):
    """Nothing happens."""
    target, sources = packed
    before = tree(target)
    found = ndfeed.pack(sources[0], target, repair=True)

    assert tree(target) == before
    assert len(found) == sum(map(len, sources))


def test_another_source_is_refused(packed, tmp_path):
    """Other files, or the same with other contents: nothing is written."""
    target, _ = packed
    flip(columns(target)[0], 130)
    before = tree(target)
    other = making.npz_of_rows(tmp_path / "other", files=2)

    with pytest.raises(ndfeed.ChangedError, match="made from data with fingerprint"):
        ndfeed.pack(other, target, repair=True)
    assert tree(target) == before


def test_sources_with_other_values_are_refused(tmp_path):
    """A fingerprint does not see values; checksums do."""
    np.save(tmp_path / "x.npy", np.arange(1000))
    ndfeed.pack(tmp_path / "x.npy", tmp_path / "packed")
    np.save(tmp_path / "x.npy", np.arange(1000) + 1)
    flip(tmp_path / "packed/00000/data.npy", 500)
    before = tree(tmp_path / "packed")

    with pytest.raises(ndfeed.ChangedError, match=r"x\.npy: gives other values of 'data'"):
        ndfeed.pack(tmp_path / "x.npy", tmp_path / "packed", repair=True)
    assert tree(tmp_path / "packed") == before


def test_other_maps_are_refused(tmp_path):
    """By their names."""
    ds = making.npz_of_rows(tmp_path / "source")
    ndfeed.pack(ds.map(making.ragged), tmp_path / "packed")
    flip(tmp_path / "packed/00000/label.npy", 200)

    with pytest.raises(ndfeed.ChangedError, match=r"made with the maps .*making\.ragged"):
        ndfeed.pack(ds, tmp_path / "packed", repair=True)


def test_a_damaged_manifest_is_beyond_repair(tmp_path):
    """What is right is not known then."""
    ds = making.npz_of_rows(tmp_path / "source")
    ndfeed.pack(ds, tmp_path / "packed")
    flip(tmp_path / "packed/ndfeed.json", 30)

    with pytest.raises(ndfeed.ManifestError, match="pack the dataset again"):
        ndfeed.pack(ds, tmp_path / "packed", repair=True)
    with pytest.raises(ndfeed.MissingError, match="no packed dataset to repair"):
        ndfeed.pack(ds, tmp_path, repair=True)


def test_killed_while_repairing(folder):
    """It is finished the next time."""
    ds = making.npz_of_samples(folder / "source", files=5)
    target, kept = folder / "packed", folder / "kept"
    ndfeed.pack(ds, target)
    before = tree(target)
    rng = random.Random(0)
    for path in columns(target):
        flip(path, rng.randrange(path.stat().st_size), rng.randrange(8))
    shutil.copytree(target, kept)

    def repair_and_die(at):
        with system(at, kill):
            ndfeed.pack(ds, target, repair=True)

    for at in count(1):
        shutil.rmtree(target)
        shutil.copytree(kept, target)
        status = forked(lambda at=at: repair_and_die(at))
        assert status in (0, -signal.SIGKILL)
        ndfeed.pack(ds, target, repair=True)
        assert tree(target) == before
        if status == 0:
            break
    assert at > 20
