"""What somebody may put in the way of packing, and datasets for them to attack."""

import os
import shutil

import numpy as np
from faults.seam import tree
from packing import making

import ndfeed


def two(place):
    """A packed dataset, and something to append to it."""
    a, b = np.arange(40.0).reshape(10, 4), np.arange(40.0, 80.0).reshape(10, 4)
    np.save(place / "a.npy", a)
    np.save(place / "b.npy", b)
    ndfeed.pack(place / "a.npy", place / "packed")
    return np.concatenate([a, b])


def everything(folder):
    """All below a folder: bytes, and where links lead; links are not followed."""
    return {
        path.relative_to(folder).as_posix(): (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else 0
        )
        for path in sorted(folder.rglob("*"))
    }


IN_THE_WAY = {
    "a link to a folder": lambda at, precious: at.symlink_to(precious),
    "a link to a file": lambda at, precious: at.symlink_to(precious / "notes"),
    "a dangling link": lambda at, precious: at.symlink_to(precious / "nothing"),
    "a file": lambda at, precious: at.write_bytes(b"mine"),
    "a hard link": lambda at, precious: os.link(precious / "notes", at),
    "a folder": lambda at, precious: shutil.copytree(precious, at),
    "an empty folder": lambda at, precious: at.mkdir(),
}


NAMES = [
    ".packed.x.packing",
    f".packed.{'0' * 32}.packing",
    f".packed.{'0' * 32}-{'1' * 32}.packing",
]


def replaced(at, what, precious):
    """Put something else in place of what is at a path."""
    if at.is_dir() and not at.is_symlink():
        shutil.rmtree(at)
    else:
        at.unlink(missing_ok=True)
    IN_THE_WAY[what](at, precious)


def damaged(place):
    """A packed dataset of which every column is damaged, its bytes before, and its source."""
    ds = making.npz_of_samples(place / "source", files=6)
    ndfeed.pack(ds, place / "packed", rows_per_part=3)
    before = tree(place / "packed")
    for path in (place / "packed").glob("*/*.npy"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    return ds, before
