"""Choose the format of a file by its first bytes, and describe what it holds."""

from ndfeed.errors import FormatError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats import gz, npy, npz, pt, raw, safetensors, zip
from ndfeed.formats.array import Description

SUFFIXES = (b".npy", b".npz", b".npy.gz", b".pt", b".pth", b".safetensors")
_HEAD = 16
# Members that only archives of torch have.
_TORCH = frozenset(("data.pkl", "constants.pkl", "archive_format"))
_KNOWN = {
    b"\x89HDF\r\n\x1a\n": "HDF5; read it with h5py and save the arrays with np.save",
    b"\x28\xb5\x2f\xfd": "zstd; unpack it first",
    b"BZh": "bzip2; unpack it first",
    b"\xfd7zXZ\x00": "xz; unpack it first",
    b"ARROW1": "Arrow; save the arrays with np.save",
    b"PAR1": "Parquet; save the columns with np.save",
}


def describe(file: File, layout: raw.Layout | None = None) -> Description:
    """What ``file`` holds. ``layout`` is for files that no format claims."""
    if file.size == 0:
        raise FormatError(file.path, "an array file expected, found 0 bytes")
    head = file.read(0, min(_HEAD, file.size))
    if head.startswith(npy.MAGIC):
        return npy.describe(file)
    if head.startswith((zip.MAGIC, zip.EMPTY)):
        return _archive(file)
    if head.startswith(gz.MAGIC):
        return gz.describe(file)
    if pt.legacy(head):
        raise UnsupportedError(file.path, pt.LEGACY)
    if safetensors.looks_like(head, file.size):
        return safetensors.describe(file)
    layout = layout or raw.beside(file.path)
    if layout is not None:
        return raw.describe(file, layout)
    return _unknown(file, head)


def recognised(file: File) -> bool:
    """Does some format claim the file?"""
    head = file.read(0, min(_HEAD, file.size))
    return (
        head.startswith((npy.MAGIC, zip.MAGIC, gz.MAGIC))
        or pt.legacy(head)
        or safetensors.looks_like(head, file.size)
    )


def _archive(file: File) -> Description:
    members, notes = zip.members(file)
    if any(member.name.rpartition("/")[2] in _TORCH for member in members):
        return pt.describe(file, members)
    return npz.describe(file, members, notes)


def _unknown(file: File, head: bytes) -> Description:
    for magic, what in _KNOWN.items():
        if head.startswith(magic):
            raise UnsupportedError(file.path, f"found {what}")
    if file.path.endswith((b".npz", b".pt", b".pth")):
        return _archive(file)  # other bytes may precede an archive
    raise FormatError(
        file.path,
        f"no array format begins with the bytes {head[:8].hex(' ')}; for a raw file give "
        f"dtype= and shape= (of one sample), else it is damaged",
    )
