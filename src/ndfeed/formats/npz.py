"""The .npz format: a zip archive whose members are .npy files.

A member's field name is its name without ``.npy``. Members that are no .npy are remarked on
and are no fields. Where a name occurs twice the last one counts, as in NumPy; where ``x`` and
``x.npy`` are both present, ``x`` is meant. Stored members can be read in part, deflated ones
are decoded whole; each member decides for itself.
"""

from ndfeed.errors import FormatError, LimitError, TruncatedError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats import inflate, npy, zip
from ndfeed.formats.array import DEFLATE, RAW, Array, Description

# Deflate cannot do better than this, so a promise beyond it is a lie.
MOST_RATIO = 1100
_FIRST_IN = 4096
_FIRST_OUT = 512


def describe(file: File, found: list[zip.Member], notes: tuple[str, ...] = ()) -> Description:
    """The arrays of an archive, in the order of its directory."""
    arrays: list[Array] = []
    remarks = list(notes)
    for name, member in _chosen(found, remarks).items():
        described = _member(file, name, member)
        if described is None:
            remarks.append(f"member {member.name!r} is no array and is left out")
            continue
        arrays += described[0]
        remarks += described[1]
    if not arrays:
        raise FormatError(file.path, f"no arrays among its {len(found)} members")
    return Description("npz", tuple(arrays), tuple(remarks))


def _chosen(found: list[zip.Member], remarks: list[str]) -> dict[str, zip.Member]:
    """Field name to member, where several claim one name the one NumPy takes."""
    chosen: dict[str, zip.Member] = {}
    for member in found:
        if member.name.endswith("/") and not member.size:
            continue
        name = member.name.removesuffix(".npy")
        other = chosen.get(name)
        if other is None:
            chosen[name] = member
            continue
        exact = other.name == name and member.name != name
        chosen[name] = other if exact else member
        remarks.append(f"{name!r} is there twice; {chosen[name].name!r}, the last, is used")
    return chosen


def _member(
    file: File, name: str, member: zip.Member
) -> tuple[tuple[Array, ...], tuple[str, ...]] | None:
    """What one member holds; ``None`` where it is no .npy."""
    if member.flags & zip.ENCRYPTED:
        raise UnsupportedError(
            file.path, f"member {member.name!r} is encrypted; write the archive without a password"
        )
    start = zip.data_offset(file, member)
    if member.method == zip.STORED:
        if member.stored != member.size:
            raise FormatError(
                file.path,
                f"member {member.name!r}: {member.size} bytes promised, {member.stored} stored",
                start,
            )
        preamble = _stored_preamble(file, start, member.size)
        coding = RAW
    elif member.method == zip.DEFLATED:
        if member.size > MOST_RATIO * member.stored + 1024:
            raise LimitError(
                file.path,
                f"member {member.name!r} promises {member.size} bytes from "
                f"{member.stored}: more than deflate can hold",
                start,
            )
        preamble = _deflated_preamble(file, start, member)
        coding = DEFLATE
    else:
        method = zip.METHODS.get(member.method, str(member.method))
        raise UnsupportedError(
            file.path,
            f"member {member.name!r} is compressed with {method}; stored and deflate "
            f"are read: write it again with np.savez or np.savez_compressed",
        )
    if preamble is None:
        return None
    header = npy.header_of(file.path, preamble, start)
    return npy.arrays(
        file.path,
        name,
        header,
        offset=start,
        length=member.stored,
        skip=len(preamble),
        coding=coding,
        crc=member.crc,
        decoded=member.size,
    )


def _stored_preamble(file: File, start: int, size: int) -> bytes | None:
    prefix = file.read(start, min(size, npy.PREFIX))
    if not prefix.startswith(npy.MAGIC):
        return None
    return file.read(start, npy.header_bytes(file.path, prefix, size, start))


def _deflated_preamble(file: File, start: int, member: zip.Member) -> bytes | None:
    data = file.read(start, min(_FIRST_IN, member.stored))
    begin = _decoded(file, member, data, min(_FIRST_OUT, member.size), start)
    if not begin.startswith(npy.MAGIC):
        return None
    length = npy.header_bytes(file.path, begin[: npy.PREFIX], member.size, start)
    if length > len(begin):
        # A header compresses at most as well as anything does, so this is bounded too.
        data = file.read(start, min(member.stored, 2 * npy.MOST_HEADER))
        begin = _decoded(file, member, data, length, start)
    if length > len(begin):
        raise TruncatedError(
            file.path, f"a header of {length} bytes promised, {len(begin)} decoded", start
        )
    return begin[:length]


def _decoded(file: File, member: zip.Member, data: bytes, length: int, start: int) -> bytes:
    try:
        return inflate.head(data, DEFLATE, length)
    except ValueError as error:
        raise FormatError(file.path, f"member {member.name!r} is damaged: {error}", start) from None
