"""Decoding: bounded, whole, and the same with either engine."""

import gzip
import zlib

import pytest
from children import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndfeed.errors import ChecksumError, FormatError, TruncatedError
from ndfeed.files.file import File
from ndfeed.formats import inflate
from ndfeed.formats.description import DEFLATE, GZIP

ENGINES = {"zlib": zlib, "isal": inflate.engine}
FEW = settings(
    max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    """Each decoder in turn."""
    monkeypatch.setattr(inflate, "engine", ENGINES[request.param])
    monkeypatch.setattr(inflate, "crc32", ENGINES[request.param].crc32)


def squeezed(data, level=6, bits=-15):
    squeeze = zlib.compressobj(level, zlib.DEFLATED, bits)
    return squeeze.compress(data) + squeeze.flush()


def decoded(path, coding, size, skip=0, length=None, crc=-1):
    """What ``stream`` writes, and nothing behind it."""
    length = size - skip if length is None else length
    out = bytearray(b"\xaa" * (length + 8))
    with File(bytes(path)) as file:
        place = 0, file.size
        inflate.stream(file, place, coding, size, skip, memoryview(out)[:length], crc)
    assert out[length:] == b"\xaa" * 8
    return bytes(out[:length])


streams = st.one_of(
    st.binary(max_size=3000),
    st.tuples(st.binary(max_size=20), st.integers(0, 400)).map(lambda pair: pair[0] * pair[1]),
)


@FEW
@given(
    data=streams,
    level=st.integers(0, 9),
    sizes=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    skip=st.integers(0, 50),
)
@pytest.mark.parametrize("coding", [DEFLATE, GZIP])
@pytest.mark.usefixtures("engine")
def test_pieces_of_any_size(tmp_path, coding, data, level, sizes, skip):
    """Output that waits in the decoder when a piece is full is not lost, nor taken for an end."""
    path = tmp_path / "x"
    path.write_bytes(squeezed(data, level) if coding == DEFLATE else gzip.compress(data, level))
    skip = min(skip, len(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "_PIECE_IN", sizes[0])
        patch.setattr(inflate, "_PIECE_OUT", sizes[1])
        crc = zlib.crc32(data) if coding == DEFLATE else -1

        assert decoded(path, coding, len(data), skip, crc=crc) == data[skip:]


@FEW
@given(parts=st.lists(st.binary(max_size=60), min_size=1, max_size=6), size=st.integers(1, 80))
@pytest.mark.usefixtures("engine")
def test_gzip_members_in_pieces_of_any_size(tmp_path, parts, size):
    """A member may end anywhere in what was read."""
    path = tmp_path / "x"
    path.write_bytes(b"".join(map(gzip.compress, parts)) + bytes(size % 3))
    whole = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "_PIECE_IN", size)

        assert decoded(path, GZIP, len(whole)) == whole


@pytest.mark.usefixtures("engine")
def test_only_what_is_asked_for_is_written(tmp_path):
    """Out may begin late and end early; the whole stream is checked all the same."""
    data = bytes(range(256)) * 9
    path = tmp_path / "x"
    path.write_bytes(squeezed(data))

    found = decoded(path, DEFLATE, len(data), skip=100, length=50, crc=zlib.crc32(data))
    assert found == data[100:150]


@pytest.mark.usefixtures("engine")
def test_length_and_checksum_of_streams(tmp_path):
    """Shorter, longer, other: each is told apart."""
    data = b"hello" * 100
    path = tmp_path / "x"
    path.write_bytes(squeezed(data))

    with pytest.raises(
        TruncatedError, match="expected 501 bytes according to the header, decoded 500"
    ):
        decoded(path, DEFLATE, 501)
    with pytest.raises(
        FormatError, match="expected 499 bytes according to the header, decoded more"
    ):
        decoded(path, DEFLATE, 499)
    with pytest.raises(ChecksumError, match=r"expected checksum 00000007, found [0-9a-f]{8}"):
        decoded(path, DEFLATE, 500, crc=7)


@pytest.mark.usefixtures("engine")
def test_length_and_checksum_of_streams_in_memory():
    """The same, for small members that are decoded at once."""
    data = b"hello" * 100
    out = memoryview(bytearray(500))
    inflate.whole(b"x", squeezed(data), 500, 0, out, zlib.crc32(data))

    assert out == data
    with pytest.raises(TruncatedError, match="expected 501 bytes"):
        inflate.whole(b"x", squeezed(data), 501, 0, out, -1)
    with pytest.raises(FormatError, match="decoded more"):
        inflate.whole(b"x", squeezed(data), 499, 0, out, -1)
    with pytest.raises(ChecksumError, match="expected checksum 00000007"):
        inflate.whole(b"x", squeezed(data), 500, 0, out, 7)
    with pytest.raises(FormatError, match="x: the deflate stream is damaged"):
        inflate.whole(b"x", b"\xff" * 50, 500, 0, out, -1)


@pytest.mark.parametrize("kept", [0, 1, 5, -1])
@pytest.mark.usefixtures("engine")
def test_streams_that_end_early(tmp_path, kept):
    """No input, and more promised."""
    path = tmp_path / "x"
    path.write_bytes(squeezed(bytes(range(256)) * 9)[:kept])

    with pytest.raises(FormatError, match=f"^{path}"):
        decoded(path, DEFLATE, 256 * 9)


@pytest.mark.parametrize("wanted", [1, 512, 513, 5000, 99_999])
@pytest.mark.parametrize("coding", [DEFLATE, GZIP])
def test_head_gives_what_is_wanted_or_all_there_is(tmp_path, coding, wanted):
    """From the first bytes where they are enough, else from as many as it takes."""
    data = bytes(i * i % 251 for i in range(6000))
    path = tmp_path / "x"
    path.write_bytes(squeezed(data) if coding == DEFLATE else gzip.compress(data))
    with File(bytes(path)) as file:
        found = inflate.head(file, (0, file.size), coding, wanted)

    assert data.startswith(found)
    assert len(found) >= min(wanted, len(data))


@settings(FEW, max_examples=examples(400))
@given(
    data=st.binary(max_size=200), size=st.integers(0, 400), coding=st.sampled_from([DEFLATE, GZIP])
)
@pytest.mark.usefixtures("engine")
def test_any_bytes_raise_our_errors_alone(tmp_path, data, size, coding):
    """Whatever a decoder makes of them."""
    path = tmp_path / "x"
    path.write_bytes((b"\x1f\x8b\x08\0\0\0\0\0\0\3" if coding == GZIP else b"") + data)
    try:
        decoded(path, coding, size)
    except FormatError as error:
        problem = str(error)
        assert problem.startswith(str(path))
