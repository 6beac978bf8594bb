"""The .npy.gz format: a .npy stream in one or more gzip members.

The stream's length is not stored anywhere that can be trusted (ISIZE is a remainder, and of
the last member only), so it comes from the .npy header inside. Such a file is decoded whole.
"""

from ndfeed.errors import FormatError, TruncatedError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats import inflate, npy
from ndfeed.formats.array import GZIP, Description
from ndfeed.formats.npz import MOST_RATIO

MAGIC = b"\x1f\x8b"
_FIRST_OUT = 512


def describe(file: File) -> Description:
    """The array in a gzip file."""
    begin = _decoded(file, 4096, _FIRST_OUT)
    if not begin.startswith(npy.MAGIC):
        raise UnsupportedError(
            file.path, "gzip, but no .npy inside; unpack it and open what comes out"
        )
    length = npy.header_bytes(file.path, begin[: npy.PREFIX], MOST_RATIO * file.size)
    if length > len(begin):
        begin = _decoded(file, 2 * npy.MOST_HEADER, length)
    if length > len(begin):
        raise TruncatedError(
            file.path, f"a header of {length} bytes promised, {len(begin)} decoded"
        )
    header = npy.header_of(file.path, begin[:length])
    size = length + header.nbytes
    if size > MOST_RATIO * file.size:
        raise TruncatedError(
            file.path,
            f"{size} bytes promised by the header, more than its {file.size} "
            f"compressed bytes can hold",
        )
    found, notes = npy.arrays(
        file.path, "", header, offset=0, length=file.size, skip=length, coding=GZIP, decoded=size
    )
    return Description("npy.gz", found, notes)


def _decoded(file: File, taken: int, length: int) -> bytes:
    try:
        return inflate.head(file.read(0, min(taken, file.size)), GZIP, length)
    except ValueError as error:
        raise FormatError(file.path, f"the gzip stream is damaged: {error}") from None
