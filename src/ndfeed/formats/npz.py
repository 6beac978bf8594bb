"""The .npz format: a zip archive whose members are .npy files.

A member's field name is its name without ``.npy``; slashes are kept. A member is an array if it
begins like one, whatever its name; the others are mentioned in a remark and are not fields (NumPy
returns them as bytes). If a name occurs twice, the last member counts, as in NumPy; if both ``x``
and ``x.npy`` exist, ``x`` counts. Folders are ignored.

Stored members can be read in part, deflated ones are decoded completely; this is decided per
member. bzip2, lzma and the rest are refused by name: NumPy does not write them, and each would be
another decoder to trust. Checksums are compared when an entire member is read, not here; rows of a
stored member are read without, since a partial read cannot be checked.

Matrices that scipy.sparse saves in such archives are described if they are stored row by row
(``csr``): the arrays ``indices`` and ``data``, the offsets of their rows in ``indptr``, and the
number of ``columns``, which the index holds. Other sparse matrices are refused by name: neither
their members nor the rows of these are samples.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import FormatError, LimitError, TruncatedError, UnsupportedError, shown
from ndfeed.files.file import File
from ndfeed.formats import inflate, npy, ziparchive
from ndfeed.formats.description import (
    DEFLATE,
    INLINE,
    MOST_BYTES,
    MOST_RATIO,
    RAW,
    Array,
    Description,
    Stream,
    Wanted,
    is_wanted,
)

_UNNAMED = "data"
_MOST_REMARKS = 50
# Limit for the part of headers beyond 1 KiB, in total: deflate can make them out of nothing.
_MOST_HEADERS = 1 << 20
_SHORT_HEADER = 1024
# The members of sparse matrices, by the library that writes them.
_SPARSE = (
    ("scipy.sparse", {"format", "shape", "data", "indices", "indptr"}),
    ("scipy.sparse", {"format", "shape", "data", "row", "col"}),
    ("scipy.sparse", {"format", "shape", "data", "coords"}),
    ("scipy.sparse", {"format", "shape", "data", "offsets"}),
    ("sparse", {"shape", "data", "coords", "fill_value"}),
)
_KINDS = ("csc", "coo", "dia", "bsr", "dok", "lil")
_MOST_SMALL = 4096  # bytes of members that are read to describe a matrix
_DENSE = {"scipy.sparse": "toarray", "sparse": "todense"}


def describe(
    file: File,
    found: list[ziparchive.Member],
    notes: tuple[str, ...] = (),
    wanted: Wanted | None = None,
) -> Description:
    """Describe the arrays of an archive, in the order of its directory.

    A member that cannot be read is refused, unless it is not ``wanted``.
    """
    arrays: list[Array] = []
    remarks = list(notes)
    room = _MOST_HEADERS
    narrowed = False
    chosen = _chosen(found, remarks)
    for name, member in chosen.items():
        try:
            made, own, long = _member(file, name, member)
        except UnsupportedError as error:
            if is_wanted(name, wanted):
                raise
            remarks.append(f"{error.problem}: left out")
            narrowed = True
            continue
        arrays += made
        remarks += own
        room -= long
        if room < 0:
            raise LimitError(
                file.path, "many long headers", remedy="save structures as plain arrays"
            )
    matrix = _describe_sparse(file, arrays) if "shape" in chosen else None
    if matrix is not None:
        return matrix
    if not arrays:
        raise FormatError(file.path, f"no arrays among its {len(found)} members")
    more = len(remarks) - _MOST_REMARKS
    if more > 0:
        remarks[_MOST_REMARKS:] = [f"… and {more:,} more remarks"]
    return Description("npz", tuple(arrays), tuple(remarks), narrowed)


def _member(
    file: File, name: str, member: ziparchive.Member
) -> tuple[Sequence[Array], Sequence[str], int]:
    """Return the arrays of a member, remarks, and how much its header exceeds the usual size."""
    stream = _stream(file, member)
    preamble = _preamble(file, stream)
    if preamble is None:
        folder = not member.size and member.name.endswith("/")
        return (), () if folder else (f"{_name_member(member)} is no array and is left out",), 0
    try:
        header = npy.header_of(file.path, preamble, stream.offset)
    except UnsupportedError as error:
        problem = f"{_name_member(member)} {error.problem}"
        remedy = f"{error.remedy}; or leave it out with fields="
        raise UnsupportedError(file.path, problem, error.offset, remedy) from None
    arrays = npy.arrays(file.path, name, header, stream)
    return arrays, header.alone.notes, max(len(preamble) - _SHORT_HEADER, 0)


def _name_member(member: ziparchive.Member) -> str:
    return f"member {shown(member.name[:100])!r}"


def _describe_sparse(file: File, arrays: list[Array]) -> Description | None:
    """Describe a matrix that is stored row by row; refuse other sparse matrices by name."""
    known = {array.name: array for array in arrays}
    for library, members in _SPARSE:
        if not members <= known.keys() or len(known["shape"].shape) != 1:
            continue
        if library == "scipy.sparse" and known.get("format", known["shape"]).shape != ():
            continue
        kind = _read_text(file, known["format"]) if library == "scipy.sparse" else ""
        if kind == "csr":
            return _describe_csr(file, known)
        if kind in _KINDS:
            raise UnsupportedError(
                file.path,
                f"holds a sparse matrix of the format {kind}, which is not stored row by row",
                remedy="save it as csr: scipy.sparse.save_npz(path, matrix.tocsr())",
            )
        raise UnsupportedError(
            file.path,
            f"holds a sparse matrix of {library}, whose rows are not stored as arrays",
            remedy="save it dense: "
            f"np.save(new_path, {library}.load_npz(path).{_DENSE[library]}())",
        )
    return None


def _describe_csr(file: File, known: dict[str, Array]) -> Description:
    """Describe a matrix that is stored row by row, if its arrays belong together."""
    indices, data, indptr = (known.get(name) for name in ("indices", "data", "indptr"))
    if indices is None or data is None or indptr is None:
        raise FormatError(file.path, "a csr matrix without indices, data or indptr")
    if not len(indices.shape) == len(data.shape) == len(indptr.shape) == 1:
        raise FormatError(file.path, "a csr matrix whose arrays are not one-dimensional")
    shape = _read_small(file, known["shape"])
    if shape is None or shape.dtype.kind not in "iu" or shape.shape != (2,):
        raise FormatError(file.path, "a csr matrix must have two axes", remedy="save a matrix")
    rows, columns = map(int, shape)
    if rows < 0 or not 0 <= columns < MOST_BYTES:
        raise FormatError(file.path, f"a csr matrix of the shape ({rows}, {columns})")
    if indptr.shape != (rows + 1,):
        raise FormatError(
            file.path, f"expected {rows + 1} numbers in indptr for {rows} rows, found "
            f"{indptr.shape[0]}"
        )  # fmt: skip
    if indices.shape != data.shape:
        raise FormatError(
            file.path,
            f"expected as many indices as data, found {indices.shape[0]} and {data.shape[0]}",
        )
    width = Array("columns", "<i8", (), columns, 0, coding=INLINE)
    return Description("csr", (indices, data, indptr, width))


def _read_text(file: File, array: Array) -> str:
    """Return the text of a member, empty where it is not one short text."""
    value = _read_small(file, array)
    if value is None or value.dtype.kind not in "SU":
        return ""
    # From its bytes: NumPy raises an error for characters that do not exist.
    if value.dtype.kind == "S":
        return value.tobytes().decode("latin-1").rstrip("\0")
    order = "utf-32-be" if value.dtype.str[0] == ">" else "utf-32-le"
    return value.tobytes().decode(order, "replace").rstrip("\0")


def _read_small(file: File, array: Array) -> NDArray[Any] | None:
    """Read a member of a few numbers, or of one text; ``None`` if it is larger than that."""
    if array.dtype[1:2] not in ("i", "u", "S", "U"):
        return None
    dtype = np.dtype(array.dtype)
    count = int(np.prod(array.shape, dtype=np.int64))
    end = array.skip + count * dtype.itemsize
    if not count or end > _MOST_SMALL or array.strides is not None:
        return None
    stream = Stream(array.offset, array.length, array.coding, array.crc, array.decoded)
    found = _begin(file, stream, end)[array.skip : end]
    if len(found) < end - array.skip:
        raise TruncatedError(file.path, f"member {array.name!r} is cut off", array.offset)
    return np.frombuffer(found, dtype, count).reshape(array.shape)


def _chosen(found: list[ziparchive.Member], remarks: list[str]) -> dict[str, ziparchive.Member]:
    """Map field names to members; of several with the same name, the one that NumPy takes."""
    chosen: dict[str, ziparchive.Member] = {}
    for member in found:
        name = member.name.removesuffix(".npy") or _UNNAMED
        other = chosen.get(name)
        if other is not None:
            if other.name == name != member.name:
                member = other
            remarks.append(f"{name[:100]!r} appears twice; {member.name[:100]!r} is used")
        chosen[name] = member
    return chosen


def _stream(file: File, member: ziparchive.Member) -> Stream:
    """Return where the bytes of a member are, if they can be read."""
    if member.flags & ziparchive.ENCRYPTED:
        raise UnsupportedError(
            file.path,
            f"member {member.name!r} is encrypted",
            remedy="write the archive without a password",
        )
    start = ziparchive.data_offset(file, member)
    _, method, _, crc, stored, size, *_ = member
    if method == ziparchive.STORED:
        if stored != size:
            raise FormatError(
                file.path, f"member {member.name!r}: expected {size} bytes, found {stored}", start
            )
        return Stream(start, stored, RAW, crc)
    if method != ziparchive.DEFLATED:
        how = ziparchive.METHODS.get(method, f"method {method}")
        raise UnsupportedError(
            file.path,
            f"member {member.name!r} is compressed with {how}",
            remedy="only stored and deflate are supported: save it again with np.savez or "
            "np.savez_compressed",
        )
    if size > MOST_RATIO * stored + 1024:
        raise LimitError(
            file.path,
            f"member {member.name!r} claims that {stored} bytes expand to {size}, more than "
            f"deflate allows",
            start,
        )
    return Stream(start, stored, DEFLATE, crc, size)


def _preamble(file: File, stream: Stream) -> bytes | None:
    """Return magic, version and header of the .npy in a stream, or ``None`` if there is none."""
    begin = _begin(file, stream, npy.PREFIX)
    if not begin.startswith(npy.MAGIC):
        return None
    length = npy.header_bytes(file.path, begin, stream.held, stream.offset)
    if length > len(begin):
        begin = _begin(file, stream, length)
    if length > len(begin):
        raise TruncatedError(
            file.path, f"expected a header of {length} bytes, decoded {len(begin)}", stream.offset
        )
    return begin[:length]


def _begin(file: File, stream: Stream, wanted: int) -> bytes:
    """Return the first bytes of a stream, ``wanted`` or more, unless it ends."""
    offset, length, coding, *_ = stream
    if coding == RAW:
        return file.read(offset, min(max(wanted, 128), length))
    return inflate.head(file, (offset, length), coding, wanted)
