"""Checksums of two pieces make that of both, with isal and without."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndfeed.formats.checksums import combine_crc32, combined


@pytest.mark.parametrize("combine", [combined, combine_crc32])
@given(first=st.binary(max_size=300), second=st.binary(max_size=300))
def test_pieces_make_the_whole(combine, first, second):
    """Whatever they hold, nothing too."""
    sums = zlib.crc32(first), zlib.crc32(second)

    assert combine(*sums, len(second)) == zlib.crc32(first + second)


def test_long_pieces():
    """Lengths beyond 32 bits cost no more."""
    zeros = zlib.crc32(bytes(1 << 20))
    found = zlib.crc32(b"x")
    for _ in range(3):
        found = combine_crc32(found, zeros, 1 << 20)

    assert found == zlib.crc32(bytes(3 << 20), zlib.crc32(b"x"))
    assert combined(1, 2, 1 << 40) == combine_crc32(1, 2, 1 << 40)
