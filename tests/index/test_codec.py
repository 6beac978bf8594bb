"""Tables survive as bytes, and damaged bytes are never a table."""

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given
from index.lists import one, read_back, same, several, status

from ndfeed.formats.description import Array, Description
from ndfeed.index import codec
from ndfeed.index.table import concat

GOLDEN = "9cd5a20ca10ba2f0a62a380553288968ab3b70bf590c99243aa342118733781e"
FINGERPRINT = "ec21bd61ac79b435"


def joined(pieces):
    return b"".join(pieces)


def hand_made():
    """A table whose every number is written here."""
    found = Description(
        "npz",
        (
            Array("image", "|u1", (28, 28), 100, 912, skip=128, crc=7),
            Array("label", "<i8", (), 1100, 136, skip=128, coding=1, decoded=200),
        ),
        ("a remark",),
    )
    other = Description("npy", (Array("image", ">f4", (3, 2), 128, 24, strides=(4, 12)),))
    table = concat(
        [
            one((b"/data/a/1.npz", status(inode=11), found)),
            one((b"/data/b/\xff.npy", status(inode=12), other)),
        ]
    )
    return dataclasses.replace(table, ignored=("/data/README",), passed_over=1)


@given(several)
def test_a_table_comes_back_as_it_was(files):
    """Also through memory that another process made."""
    table = concat([one(file) for file in files])
    data = joined(codec.encode(table, {"built": 5, "more": np.arange(3)}))
    again, extra = codec.decode(data, checked=True)

    assert same(again, table)
    assert extra["built"] == 5
    assert extra["more"].tolist() == [0, 1, 2]


def test_the_layout_is_frozen():
    """Caches of an earlier release are read by this one: a change needs a new version."""
    data = joined(codec.encode(hand_made(), {"built": 1}))

    assert codec.VERSION == 2
    assert data[:8] == b"NDFINDEX"
    assert data[12:16] == (2).to_bytes(4, "little")
    assert data[24:].startswith(b'{"values": {"base": "/data/", "formats": ["npy", "npz", ')
    assert hashlib.sha256(data).hexdigest() == GOLDEN


def test_columns_are_aligned():
    """They are used where they lie; a number across two cache lines would cost."""
    table, _ = codec.decode(joined(codec.encode(hand_made())), checked=True)

    assert read_back(table) == read_back(hand_made())
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if isinstance(value, np.ndarray):
            assert value.flags.aligned, field.name


def test_every_flipped_byte_is_noticed():
    """Whichever it is: in the lengths as well as in the numbers."""
    data = bytearray(joined(codec.encode(hand_made(), {"built": 1})))
    for at in range(len(data)):
        for bits in (0x01, 0x80, 0xFF):
            data[at] ^= bits
            with pytest.raises((ValueError, KeyError, TypeError, IndexError)):
                codec.decode(bytes(data), checked=True)
            data[at] ^= bits
    codec.decode(bytes(data), checked=True)


def test_every_shorter_or_longer_file_is_noticed():
    """A disk that was full, a copy that was cut."""
    data = joined(codec.encode(hand_made()))
    for cut in range(len(data)):
        with pytest.raises((ValueError, KeyError, TypeError, IndexError)):
            codec.decode(data[:cut], checked=True)
    with pytest.raises(ValueError, match="checksum"):
        codec.decode(data + b" ", checked=True)


def test_another_version_is_refused():
    """Its numbers may mean something else."""
    data = bytearray(joined(codec.encode(hand_made())))
    data[12] = 1

    with pytest.raises(ValueError, match="version 2"):
        codec.decode(bytes(data), checked=False)


def test_the_fingerprint_is_of_the_data():
    """A copy elsewhere is the same data; another size, name or shape is other data."""
    table = hand_made()
    fingerprint = codec.fingerprint(table)
    moved = dataclasses.replace(
        table, base=b"/elsewhere/", identity=table.identity * [5, 5, 1, 5, 5]
    )
    longer = dataclasses.replace(table, identity=table.identity + np.array([0, 0, 1, 0, 0]))
    renamed = dataclasses.replace(table, names=("image", "target"))

    assert codec.fingerprint(moved) == fingerprint
    assert codec.fingerprint(longer) != fingerprint
    assert codec.fingerprint(renamed) != fingerprint
    assert fingerprint == FINGERPRINT
