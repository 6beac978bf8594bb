"""The index files of Megatron-LM, which say where the sequences of a file of tokens lie.

``corpus.idx`` describes ``corpus.bin``, as MMapIndexedDataset and IndexedDataset write them:

    offset  bytes  content
    0       9      magic, b"MMIDIDX\\0\\0"
    9       8      version, now 1
    17      1      code of the element type of the .bin file
    18      8      n, the number of sequences
    26      8      d, the number of entries of the document index
    34      4 n    elements of each sequence, int32
    …       8 n    byte in the .bin file at which each sequence begins, int64
    …       8 d    the first sequence of each document, and the end, int64
    …       n      mode of each sequence, int8; in multimodal datasets only

All numbers are little-endian. The .bin file has the sequences and nothing else, so any bytes are
possible in it: it is described from the index, and its first bytes are not looked at.
"""

import os
import struct

from ndfeed.errors import Error, FormatError, TruncatedError, UnsupportedError, shown
from ndfeed.files import listing
from ndfeed.files.file import File
from ndfeed.formats.description import Array, Description
from ndfeed.formats.dtypes import itemsize

MAGIC = b"MMIDIDX\0\0"
SUFFIX, VALUES = b".idx", b".bin"
FORMAT = "megatron"
SIZES, POINTERS, DOCUMENTS = "sizes", "pointers", "documents"
_HEADER = struct.Struct("<9sQBQQ")
_VERSION = 1
_DTYPES = {
    1: "|u1",
    2: "|i1",
    3: "<i2",
    4: "<i4",
    5: "<i8",
    6: "<f8",
    7: "<f4",
    8: "<u2",
}


def describe(file: File) -> Description:
    """Describe the arrays of an index file. One number for each sequence is in each row."""
    _, count, documents = _read_header(file)
    sizes = _HEADER.size
    pointers = sizes + 4 * count
    index = pointers + 8 * count
    end = index + 8 * documents
    if file.size not in (end, end + count):
        kind = TruncatedError if file.size < end else FormatError
        raise kind(
            file.path,
            f"expected {end} bytes for {count} sequences and a document index of {documents} "
            f"entries, found {file.size}",
            remedy="write the index again; only Megatron's own layout is read",
        )
    return Description(
        FORMAT,
        (
            Array(SIZES, "<i4", (count, 1), sizes, 4 * count),
            Array(POINTERS, "<i8", (count, 1), pointers, 8 * count),
            Array(DOCUMENTS, "<i8", (documents,), index, 8 * documents),
        ),
    )


def dtype_of(file: File) -> str:
    """Return the element type of the .bin file that an index file describes."""
    return _read_header(file)[0]


def describe_values(file: File, dtype: str) -> Description:
    """Describe the .bin file beside an index file that gives its ``dtype``."""
    rows, spare = divmod(file.size, itemsize(dtype))
    if spare:
        raise FormatError(
            file.path,
            f"expected a multiple of {itemsize(dtype)} bytes, as its index gives it the dtype "
            f"{dtype}, found {file.size}",
            remedy="the two files do not belong together, or this one is cut off",
        )
    return Description("raw", (Array("", dtype, (rows,), 0, file.size),))


def index_beside(path: bytes) -> bytes | None:
    """Return the index file beside a .bin file, if there is one."""
    if not path.endswith(VALUES):
        return None
    found = path.removesuffix(VALUES) + SUFFIX
    if not listing.exists(found):
        return None
    try:
        with File(found) as file:
            return found if file.head().startswith(MAGIC) else None
    except Error:
        return None


def values_beside(path: bytes) -> bytes:
    """Return the path of the .bin file that an index file describes."""
    stem, suffix = os.path.splitext(path)
    if suffix != SUFFIX:
        raise FormatError(
            path,
            "an index of Megatron-LM whose name does not end in .idx, so its .bin file is unknown",
            remedy="rename both files",
        )
    return stem + VALUES


def refuse_values(path: bytes, index: bytes) -> UnsupportedError:
    """Make the error for a .bin file that was named without its index."""
    name = shown(os.path.basename(index))
    return UnsupportedError(
        path,
        f"holds sequences of tokens that {name} describes",
        remedy="open the .idx files: write .idx instead of .bin in the pattern or list",
    )


def _read_header(file: File) -> tuple[str, int, int]:
    """Return the dtype of the elements, and the numbers of sequences and document entries."""
    head = file.read(0, min(_HEADER.size, file.size))
    if len(head) < _HEADER.size:
        problem = f"expected a header of {_HEADER.size} bytes, found {len(head)}"
        raise TruncatedError(file.path, problem)
    _, version, code, count, documents = _HEADER.unpack(head)
    if version != _VERSION:
        raise UnsupportedError(file.path, f"an index of Megatron-LM of version {version}, not 1")
    if code not in _DTYPES:
        raise FormatError(file.path, f"expected a dtype code from 1 to 8, found {code}", 17)
    if max(count, documents) > file.size:
        raise TruncatedError(
            file.path, f"{max(count, documents)} entries promised in {file.size} bytes", 18
        )
    return _DTYPES[code], count, documents
