"""The .npy.gz format: a .npy stream in one or more gzip members.

The stream's length is not stored anywhere that can be trusted (ISIZE is a remainder, and covers
the last member only), so it comes from the .npy header inside, and the stream must have exactly
that length. Such a file is decoded completely, one member after another (``cat a.gz b.gz``, pigz,
bgzip); there is no index for partial reads, since what is read more than once is kept decoded.
Zeros may follow the last member; anything else is an error that names the offset.
"""

from ndfeed.errors import LimitError, TruncatedError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats import inflate, npy
from ndfeed.formats.description import GZIP, MOST_RATIO, Description, Stream

MAGIC = b"\x1f\x8b\x08"  # with the only method there is: two bytes would match many raw files


def describe(file: File) -> Description:
    """Describe the array in a gzip file."""
    place = 0, file.size
    most = MOST_RATIO * file.size
    begin = inflate.head(file, place, GZIP, npy.PREFIX)
    if not begin.startswith(npy.MAGIC):
        raise UnsupportedError(
            file.path, "gzip, but no .npy inside", remedy="unpack it and open what comes out"
        )
    length = npy.header_bytes(file.path, begin, most)
    if length > len(begin):
        begin = inflate.head(file, place, GZIP, length)
    if length > len(begin):
        raise TruncatedError(
            file.path, f"expected a header of {length} bytes, decoded {len(begin)}"
        )
    header = npy.header_of(file.path, begin[:length])
    size = length + header.nbytes
    if size > most:
        raise LimitError(
            file.path,
            f"the header promises {size} bytes, more than its {file.size} "
            f"compressed bytes can hold",
        )
    found = npy.arrays(file.path, "", header, Stream(0, file.size, GZIP, decoded=size))
    return Description("npy.gz", found, header.alone.notes)
