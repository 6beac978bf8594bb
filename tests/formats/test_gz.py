"""Every gzip stream of one .npy is decoded to the bit; what is no such stream is refused."""

import gzip
import random
import struct
import zlib

import numpy as np
import pytest
from children import examples
from described import describe
from formats.making import npy, saved
from formats.reading import numpys, ours, rows, same
from formats.test_npy import any_arrays
from hard_arrays import each_hard_array
from hostile import assert_harmless, contained, damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ndfeed
from ndfeed.errors import (
    ChecksumError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedError,
)
from ndfeed.formats import inflate

FEW = settings(
    max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
A = np.arange(12, dtype="<f4").reshape(4, 3)
FILE = "x.npy.gz"


def read_whole(path):
    """Open and read: some damage is behind the header."""
    return ndfeed.open(path, sample="file", cache=False)[0]


@each_hard_array
def test_hard_arrays_are_read_to_the_bit(write, array):
    """np.load itself cannot: it takes the file for a pickle."""
    path = write(gzip.compress(saved(array)))

    assert same(ours(path), numpys(path))
    if array.ndim:
        assert same(rows(path), numpys(path))


def test_numpy_takes_it_for_a_pickle(write):
    """Why this module exists."""
    with pytest.raises(ValueError, match="pickled"):
        np.load(write(gzip.compress(saved(A))))


@pytest.mark.parametrize("name", ["x.npy.gz", "x.gz", "x.npy", "x"])
def test_first_bytes_tell_not_the_name(write, name):
    """Compressed files get renamed."""
    assert same(ours(write(gzip.compress(saved(A)), name)), {"data": A})


@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_any_level(write, level):
    """Level 0 does not compress: stored blocks."""
    assert same(ours(write(gzip.compress(saved(A), level))), {"data": A})


def test_larger_than_what_is_decoded_at_a_time(write):
    """Pieces follow each other without a gap, and the checksum is that of all."""
    array = np.random.default_rng(0).integers(0, 4, 3_000_000).astype("u1")
    path = write(gzip.compress(saved(array), 1))

    assert same(ours(path), {"data": array})


@pytest.mark.parametrize("size", [1, 7, 128, 129, 1000])
def test_members_in_a_row_are_one_stream(write, size):
    """pigz, bgzip, cat a.gz b.gz: a header may be cut anywhere, and members may be empty."""
    whole = saved(np.arange(200))
    parts = [whole[i : i + size] for i in range(0, len(whole), size)]
    path = write(gzip.compress(b"") + b"".join(map(gzip.compress, parts)) + gzip.compress(b""))

    assert same(ours(path), numpys(path))


def test_blocks_of_bgzip(write):
    """An extra field in each member, and an empty one at the end."""
    whole = saved(np.arange(30_000))
    blocks = b""
    for start in range(0, len(whole) + 1, 60_000):
        piece = whole[start : start + 60_000]
        squeeze = zlib.compressobj(6, zlib.DEFLATED, -15)
        data = squeeze.compress(piece) + squeeze.flush()
        head = struct.pack("<4BIBBH2sHH", 31, 139, 8, 4, 0, 0, 255, 6, b"BC", 2, len(data) + 25)
        blocks += head + data + struct.pack("<II", zlib.crc32(piece), len(piece))
    path = write(blocks)

    assert same(ours(path), numpys(path))


def test_names_and_comments_in_the_header(write):
    """gzip stores the name of the file; other fields are as legal."""
    plain = gzip.compress(saved(A))
    optional = b"\x05\0extra" + b"name\0" + b"comment\0"
    head = plain[:3] + b"\x1e" + plain[4:10] + optional
    head += (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little")

    assert same(ours(write(head + plain[10:])), {"data": A})


@pytest.mark.parametrize("zeros", [1, 511, 70_000])
def test_zeros_behind_the_stream(write, zeros):
    """Tapes and block devices pad with them."""
    path = write(gzip.compress(saved(A)) + bytes(zeros))

    assert same(ours(path), numpys(path))


@pytest.mark.parametrize("garbage", [b"x", b"\x1f", b"\x1f\x8b", b"\0\0garbage", b"PK\x03\x04"])
def test_garbage_behind_the_stream_is_refused_where_it_lies(write, garbage):
    """A torn download, or two files joined."""
    whole = gzip.compress(saved(A))
    path = write(whole + garbage)

    with pytest.raises(FormatError, match=r"x\.npy\.gz at byte \d+"):
        read_whole(path)


def test_length_at_the_end_is_not_what_counts(write):
    """It is that of the last member only, so it cannot tell the size of the array."""
    whole = saved(A)
    path = write(gzip.compress(whole[:100]) + gzip.compress(whole[100:]))

    assert describe(path).arrays[0].decoded == len(whole)


def test_wrong_checksum(write):
    """One flipped bit in the trailer, or in what it covers."""
    whole = bytearray(gzip.compress(saved(A), 0))
    whole[-20] ^= 1
    path = write(bytes(whole))

    with pytest.raises(ChecksumError, match=r"x\.npy\.gz.*damaged"):
        read_whole(path)


def test_wrong_length_at_the_end(write):
    """It belongs to the checksum."""
    whole = bytearray(gzip.compress(saved(A)))
    whole[-1] ^= 1

    with pytest.raises(ChecksumError, match="damaged"):
        read_whole(write(bytes(whole)))


@pytest.mark.parametrize("kept", [3, 10, 18, 40, -1, -4, -8, -9, -30])
def test_truncated_streams(write, kept):
    """Wherever it is cut: at open if the header is gone, else when read."""
    path = write(gzip.compress(saved(np.arange(1000)))[:kept])

    with pytest.raises(FormatError, match=r"x\.npy\.gz"):
        read_whole(path)


def test_stream_that_ends_before_its_elements(write):
    """A sound gzip of half a .npy."""
    path = write(gzip.compress(saved(A)[:-5]))

    with pytest.raises(
        TruncatedError, match="expected 176 bytes according to the header, decoded 171"
    ):
        read_whole(path)


def test_stream_that_goes_on_behind_its_elements(write):
    """What follows the array is no part of it: refused, since nobody says what it is."""
    path = write(gzip.compress(saved(A) + b"more"))

    with pytest.raises(
        FormatError, match="expected 176 bytes according to the header, decoded more"
    ):
        read_whole(path)


def test_gzip_of_something_else(write):
    """Most .gz files are text."""
    with pytest.raises(UnsupportedError, match=r"gzip, but no \.npy inside; unpack it"):
        ndfeed.open(write(gzip.compress(b"a,b\n1,2\n" * 100)))


def test_gzip_of_nothing(write):
    """An empty file, compressed."""
    with pytest.raises(UnsupportedError, match=r"no \.npy inside"):
        ndfeed.open(write(gzip.compress(b"")))


@pytest.mark.parametrize("kept", [7, 11, 60])
def test_header_that_ends_in_the_stream(write, kept):
    """A sound gzip of half a header."""
    with pytest.raises(TruncatedError, match=rf"header.*{kept}"):
        ndfeed.open(write(gzip.compress(saved(A)[:kept])))


def test_long_headers(write):
    """Longer than what is decoded at first."""
    points = np.zeros(2, [(f"a_rather_long_name_of_a_field_{i}", "<f4") for i in range(300)])
    path = write(gzip.compress(saved(points)))

    assert same(ours(path), numpys(path))


def test_both_engines_agree(write, monkeypatch):
    """zlib stands in where there is no isal: the same bytes, the same errors."""
    good, torn = gzip.compress(saved(A)), bytearray(gzip.compress(saved(A)))
    torn[-5] ^= 1
    for engine in (zlib, inflate.engine):
        monkeypatch.setattr(inflate, "engine", engine)
        monkeypatch.setattr(inflate, "crc32", engine.crc32)
        assert same(ours(write(good)), {"data": A})
        with pytest.raises(ChecksumError, match="damaged"):
            read_whole(write(bytes(torn)))


# Bombs


def test_promise_beyond_what_gzip_can_hold(write):
    """A header of 128 bytes promises a terabyte."""
    path = write(gzip.compress(npy("<f8", (1 << 37,))))

    with pytest.raises(LimitError, match="the header promises 1099511627904 bytes, more than"):
        ndfeed.open(path)


def bomb(shape, megabytes):
    """A header, and so many zeros behind it."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = squeeze.compress(npy("|u1", shape))
    for _ in range(megabytes):
        data += squeeze.compress(bytes(1 << 20))
    return data + squeeze.flush()


def test_bomb_that_is_larger_than_it_says(write):
    """300 MB behind an array of 4 bytes: decoding stops when there is more than was promised."""
    assert_harmless(write(bomb((4,), 300)), kinds=["FormatError"])


def test_bomb_that_is_smaller_than_it_says(write):
    """900 MB are promised; the rest of the file is random, and no gzip."""
    noise = random.Random(0).randbytes(900_000)
    path = write(gzip.compress(npy("|u1", (900_000_000,))) + noise)

    assert_harmless(path, kinds=["FormatError", "TruncatedError"])


def test_bomb_of_empty_members(write):
    """Fifty thousand members of nothing: each must cost no more than its own bytes."""
    empty = gzip.compress(b"", mtime=0)
    path = write(gzip.compress(saved(A)) + empty * (990_000 // len(empty)))
    cost_free = ours(path)

    assert same(cost_free, {"data": A})
    assert_harmless(write(path.read_bytes() + b"!"), kinds=["FormatError"])


def test_bomb_of_empty_members_before_the_array(write):
    """The same, where the header is looked for."""
    empty = gzip.compress(b"", mtime=0)

    assert_harmless(write(empty * (990_000 // len(empty))), kinds=["UnsupportedError"])


# Properties


@FEW
@given(array=any_arrays(), cut=st.integers(1, 400), level=st.integers(0, 9))
def test_any_array_is_read_to_the_bit(tmp_path, array, cut, level):
    """Every type, shape and order, in one member or many, at any level."""
    whole = saved(array)
    path = tmp_path / "x.npy.gz"
    parts = [whole[i : i + cut] for i in range(0, len(whole), cut)]
    path.write_bytes(b"".join(gzip.compress(part, level) for part in parts))

    assert same(ours(path), numpys(path))


SAMPLES = [
    gzip.compress(saved(A)),
    gzip.compress(saved(A), 0),
    gzip.compress(saved(A)[:90]) + gzip.compress(saved(A)[90:]),
    gzip.compress(saved(np.zeros(2, [("x", "<f4"), ("c", "u1", (2,))]))) + bytes(5),
]


@settings(FEW, max_examples=examples(400))
@given(data=damaged(SAMPLES))
def test_damaged_files_raise_our_errors_alone(tmp_path, data):
    """And what is accepted in spite of the damage is what gzip and NumPy read, if they do."""
    path = tmp_path / "x.npy.gz"
    path.write_bytes(data)
    found = contained(path)
    if found is None:
        return
    try:
        expected = numpys(path)
    except (ValueError, TypeError, SyntaxError, OSError, MemoryError, EOFError, zlib.error):
        return

    assert same(found, expected)
