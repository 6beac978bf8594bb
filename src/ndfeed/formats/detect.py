"""Choose the format of a file by its first bytes, and describe its arrays.

The name of a file decides nothing, with one exception: bytes before an archive are skipped if
the name ends in .npz, .pt or .pth. Raw files are those that no format claims.
"""

from ndfeed.errors import FormatError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats import gz, megatron, npy, npz, pt, raw, safetensors, ziparchive
from ndfeed.formats.description import Description, Wanted

SUFFIXES = (b".npy", b".npz", b".npy.gz", b".pt", b".pth", b".safetensors")
_ARCHIVES = (b".npz", b".pt", b".pth")
# Members that only torch archives have.
_TORCH = ("/data.pkl", "/constants.pkl", "/archive_format")
# Formats that are not supported, by first bytes that no raw file has by chance.
_KNOWN = {
    b"\x89HDF\r\n\x1a\n": ("HDF5", "read it with h5py and save the arrays with np.save"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unpack it first"),
    b"\xfd7zXZ\x00": ("xz", "unpack it first"),
    b"ARROW1": ("Arrow", "save the arrays with np.save"),
    b"PAR1": ("Parquet", "save the columns with np.save"),
    b"MATLAB 5.0 MAT-file": ("MATLAB", "read it with scipy.io.loadmat and save with np.savez"),
    b"\x89PNG\r\n\x1a\n": ("a PNG image", "decode it and save the pixels with np.save"),
    b"\xff\xd8\xff\xe0": ("a JPEG image", "decode it and save the pixels with np.save"),
    b"\xff\xd8\xff\xe1": ("a JPEG image", "decode it and save the pixels with np.save"),
}
_BZIP2 = b"1AY&SY"  # the magic of the first block, after "BZh" and a digit
_PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))


def describe(
    file: File, layout: raw.Layout | None = None, wanted: Wanted | None = None
) -> Description:
    """Describe the arrays of ``file``; ``layout`` is for files that no format claims.

    Arrays in a container that cannot be read are left out if they are not ``wanted``.
    """
    if file.size == 0:
        raise FormatError(file.path, "expected an array file, found 0 bytes")
    head = file.head()
    if head.startswith(npy.MAGIC):
        return npy.describe(file)
    if head.startswith((ziparchive.MAGIC, ziparchive.EMPTY)):
        return _archive(file, wanted)
    if head.startswith((gz.MAGIC, megatron.MAGIC)):
        return gz.describe(file) if head.startswith(gz.MAGIC) else megatron.describe(file)
    if safetensors.looks_like(head, file.size):
        return safetensors.describe(file, wanted)
    _refuse_known(file.path, head)
    if file.path.endswith(_ARCHIVES):
        return _archive(file, wanted)
    return _describe_raw(file, head, layout)


def _describe_raw(file: File, head: bytes, layout: raw.Layout | None) -> Description:
    layout = layout or raw.beside(file.path)
    if layout is not None:
        return raw.describe(file, layout)
    index = megatron.index_beside(file.path)
    raise _unknown(file.path, head) if index is None else megatron.refuse_values(file.path, index)


def is_recognised(file: File) -> bool:
    """Return whether some format claims the file."""
    head = file.head()
    return (
        head.startswith((npy.MAGIC, ziparchive.MAGIC, ziparchive.EMPTY, gz.MAGIC, megatron.MAGIC))
        or pt.legacy(head)
        or safetensors.looks_like(head, file.size)
    )


def _archive(file: File, wanted: Wanted | None) -> Description:
    members, notes = ziparchive.members(file)
    for member in members:
        if "/" in member.name and member.name.endswith(_TORCH):
            return pt.describe(file, members, wanted)
    return npz.describe(file, members, notes, wanted)


def _refuse_known(path: bytes, head: bytes) -> None:
    """Refuse formats that are not supported, so that nobody reads one as a raw file."""
    for magic, (what, remedy) in _KNOWN.items():
        if head.startswith(magic):
            raise UnsupportedError(path, f"found {what}", remedy=remedy)
    if pt.legacy(head):
        raise pt.legacy_error(path)
    if path.endswith(_ARCHIVES) and head.startswith(_PICKLES):
        raise _unknown(path, head)
    if head.startswith(b"BZh") and head[4:10] == _BZIP2:
        raise UnsupportedError(path, "found bzip2", remedy="unpack it first")


def _unknown(path: bytes, head: bytes) -> FormatError:
    if head.startswith(_PICKLES):
        return UnsupportedError(
            path, "found a pickle, which is never unpickled", remedy="save the arrays with np.savez"
        )
    return FormatError(
        path,
        f"not a known array format (first bytes {head[:8].hex(' ')})",
        remedy="if it is a raw file, pass dtype= and shape= (of one sample), otherwise it is "
        "damaged",
    )
