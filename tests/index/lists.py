"""Tables as lists: what a table says, written down and read back."""

import dataclasses
import types

import numpy as np
from hypothesis import strategies as st

from ndfeed.formats.description import Array, Description
from ndfeed.index.build import make_table
from ndfeed.index.table import Table

numbers = st.integers(0, 2**62)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
arrays = st.builds(
    Array,
    name=st.sampled_from(["", "a", "b", "long/name"]),
    dtype=st.sampled_from(["<f4", ">f4", "|u1", "bfloat16"]),
    shape=shapes,
    offset=numbers,
    length=numbers,
    skip=st.integers(0, 4096),
    coding=st.integers(0, 4),
    strides=st.none() | shapes,
    crc=st.integers(-1, 2**32 - 1),
    decoded=numbers,
)
names = st.sampled_from([b"x", b"y", b"1/x", b"1/2/x", b"\xff\n", b"1/2/3/x"])


def status(device=1, inode=2, size=3, mtime=4, ctime=5):
    """What ``os.stat`` would say."""
    return types.SimpleNamespace(
        st_dev=device, st_ino=inode, st_size=size, st_mtime_ns=mtime, st_ctime_ns=ctime
    )


@st.composite
def files(draw):
    """Files as a person would write them down: a path, facts, and what is in them."""
    path = b"/data/" + draw(names)
    facts = status(*(draw(numbers) for _ in range(5)))
    found = tuple(draw(st.lists(arrays, max_size=3)))
    notes = tuple(draw(st.lists(st.sampled_from(["note", "other"]), max_size=2)))
    format = draw(st.sampled_from(["npy", "npz", "pt"]))
    return path, facts, Description(format, found, notes)


def one(file):
    """The table of one file."""
    path, facts, found = file
    return make_table(types.SimpleNamespace(path=path, status=facts), found)


def written_down(file):
    """What its table should say."""
    path, facts, found = file
    return path, tuple(vars(facts).values()), found.format, [*found.arrays]


def read_back(table):
    """What a table says, as a list."""
    found = []
    for file in range(table.files):
        inside = []
        for a in np.flatnonzero(table.file == file).tolist():
            strides = int(table.strides[a])
            inside.append(
                Array(
                    name=table.names[table.name[a]],
                    dtype=table.dtypes[table.dtype[a]],
                    shape=table.dimensions(int(table.shape[a])),
                    offset=int(table.offset[a]),
                    length=int(table.length[a]),
                    skip=int(table.skip[a]),
                    coding=int(table.coding[a]),
                    strides=None if strides < 0 else table.dimensions(strides),
                    crc=int(table.crc[a]),
                    decoded=int(table.decoded[a]),
                )
            )
        identity = tuple(table.identity[file].tolist())
        assert table.expected(file) == identity
        found.append((table.path(file), identity, table.formats[table.format[file]], inside))
    return found


def same(a, b):
    """Are two tables equal to the last number?"""
    for column in dataclasses.fields(Table):
        mine, yours = getattr(a, column.name), getattr(b, column.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == yours.dtype, column.name
            np.testing.assert_array_equal(mine, yours, err_msg=column.name)
        else:
            assert mine == yours, column.name
    return True


several = st.lists(files(), min_size=1, max_size=6)
