"""The first bytes choose the format; what has none is refused in words that help."""

import gzip
import io
import pickle

import numpy as np
import pytest
from children import examples
from described import describe
from hostile import contained
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ndfeed
from ndfeed.errors import FormatError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats import detect

A = np.arange(12, dtype="<f4").reshape(4, 3)
FEW = settings(
    max_examples=examples(400), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def saved(writer, *args, **members):
    file = io.BytesIO()
    writer(file, *args, **members)
    return file.getvalue()


FILES = {
    "npy": saved(np.save, A),
    "npz": saved(np.savez, x=A),
    "npy.gz": gzip.compress(saved(np.save, A)),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", ["x", "x.npy", "x.npz", "x.npy.gz", "x.dat", "x.safetensors"])
def test_names_do_not_matter(tmp_path, kind, name):
    """Files get renamed, and some never had a suffix."""
    path = tmp_path / name
    path.write_bytes(FILES[kind])
    with File(bytes(path)) as file:
        known = detect.is_recognised(file)

    assert known
    assert describe(path).format == kind


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x89HDF\r\n\x1a\n" + bytes(99), "found HDF5; read it with h5py"),
        (b"\x28\xb5\x2f\xfd" + bytes(99), "found zstd; unpack it first"),
        (b"BZh91AY&SY" + bytes(99), "found bzip2; unpack it first"),
        (b"\xfd7zXZ\x00" + bytes(99), "found xz; unpack it first"),
        (b"PAR1" + bytes(99), "found Parquet"),
        (b"ARROW1\0\0" + bytes(99), "found Arrow"),
        (b"MATLAB 5.0 MAT-file, Platform" + bytes(99), "found MATLAB"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "found a PNG image"),
        (pickle.dumps({"a": A}), "found a pickle, which is never unpickled"),
    ],
)
def test_other_formats_are_named(tmp_path, data, message):
    """With the way from there to here."""
    path = tmp_path / "x.npy"
    path.write_bytes(data)

    with pytest.raises(UnsupportedError, match=rf"x\.npy: {message}"):
        ndfeed.open(path)


@pytest.mark.parametrize("data", [b"a,b\n1,2\n", b"{}", b"\0" * 99, b"x", b"<html>", b"\x93NUMP"])
def test_unknown_bytes_are_shown(tmp_path, data):
    """Text saved as .npy, half a magic: the first bytes say what it is to who knows them."""
    path = tmp_path / "x.npy"
    path.write_bytes(data)

    with pytest.raises(FormatError, match=rf"first bytes {data[:8].hex(' ')}\); .*dtype="):
        ndfeed.open(path)


def test_empty_files_are_refused(tmp_path):
    """A failed copy, most likely."""
    (tmp_path / "x.npy").touch()

    with pytest.raises(FormatError, match=r"x\.npy: expected an array file, found 0 bytes"):
        ndfeed.open(tmp_path / "x.npy")


def test_bytes_before_an_archive_are_looked_past_by_name_alone(tmp_path):
    """Only where the name says archive: any file may end like one."""
    for name in ("x.npz", "x.dat"):
        (tmp_path / name).write_bytes(b"junk" + FILES["npz"])

    assert describe(tmp_path / "x.npz").format == "npz"
    with pytest.raises(FormatError, match="not a known array format"):
        describe(tmp_path / "x.dat")


def test_raw_tokens_that_look_like_gzip(tmp_path):
    """The two bytes of its magic are a token; the third must be a method that exists."""
    tokens = np.array([0x8B1F, 0x0102, 5], "<u2")
    tokens.tofile(tmp_path / "x.bin")

    assert ndfeed.open(tmp_path / "x.bin", dtype="uint16")[:]["data"].tolist() == tokens.tolist()


def test_several_bad_files_are_listed_together(tmp_path):
    """One run finds them all."""
    (tmp_path / "a.npy").write_bytes(FILES["npy"])
    (tmp_path / "b.npy").write_bytes(FILES["npy"][:-1])
    (tmp_path / "c.npy").write_bytes(b"")

    with pytest.raises(ndfeed.Error, match=r"(?s)b\.npy.*c\.npy.*2 of 3 files"):
        ndfeed.open(tmp_path)


@FEW
@given(
    magic=st.sampled_from(
        [b"", b"\x93NUMPY\1\0", b"PK\3\4", b"PK\5\6", b"\x1f\x8b\x08", b"\x80\2"]
    ),
    data=st.binary(max_size=200),
    name=st.sampled_from(["x", "x.npz", "x.pt", "x.bin"]),
)
def test_any_bytes_raise_our_errors_alone(tmp_path, magic, data, name):
    """Whatever claims them."""
    path = tmp_path / name
    path.write_bytes(magic + data)
    contained(path)
