"""The .pt format: the zip archives that torch.save has written since torch 1.6.

    <prefix>/data.pkl     the saved object, pickled; its tensors name records by their key
    <prefix>/data/<key>   one storage each, as it was in memory, usually aligned to 64 bytes
    <prefix>/byteorder    "little" or "big"; absent before torch 2.1, when all were little
    <prefix>/…            version, .format_version, .storage_alignment, .data/serialization_id

The pickle is parsed and flattened by ``torch_objects``; nothing in it is run. A tensor is a view of
its record, and every view is checked against the size of that record in the archive. Several
tensors may share a record. Device tags are ignored: the bytes are those of the host. A list of
similar items has the format "pt list": its arrays are rows, with the same names in every item.

Refused by name: TorchScript, exported programs and packages, compressed records, and files that
torch wrote before 1.6. Checksums are ignored: torch can be told not to compute them.
"""

from ndfeed.errors import FormatError, LimitError, TruncatedError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats import ziparchive
from ndfeed.formats.description import INLINE, RAW, Array, Description, Wanted
from ndfeed.formats.torch_objects import Plan, View, flatten_object
from ndfeed.formats.ziparchive import Member

_MOST_PICKLE = 64 << 20
_MOST_PLANS, _MOST_KEPT = 1024, 16 << 10
_plans: dict[tuple[bytes, bool, Wanted | None], Plan] = {}
_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")
_TAR = (b"sys_info\0", b"pickle\0", b"storages\0", b"tensors\0")
# A member that only this kind of archive has, the name of the kind, and the remedy.
_KINDS = {
    "constants.pkl": (
        "a TorchScript program",
        "save its tensors: torch.save(torch.jit.load(path).state_dict(), new_path)",
    ),
    "archive_format": ("an exported program (.pt2)", "save its tensors with torch.save"),
    "serialized_exported_program.json": (
        "an exported program (.pt2)",
        "save its tensors with torch.save",
    ),
    ".data/extern_modules": ("a torch.package archive", "save its tensors with torch.save"),
}


def legacy(head: bytes) -> bool:
    """Return whether these first bytes (16 are enough) are of a file by torch before 1.6."""
    if head.startswith(_TAR):
        return True
    if len(head) < 15 or head[0] != 0x80:
        return False
    start = 11 if head[2] == 0x95 else 2  # protocols 4 and 5 announce the length of a frame
    return _MAGIC.startswith(head[start : start + len(_MAGIC)])


def legacy_error(path: bytes) -> UnsupportedError:
    """Make the error for such a file."""
    return UnsupportedError(
        path,
        "written in torch's format from before 1.6, which is not read",
        remedy="save it again: torch.save(torch.load(path, weights_only=True), path)",
    )


def describe(file: File, members: list[Member], wanted: Wanted | None = None) -> Description:
    """Describe the arrays of an archive whose ``members`` have been listed.

    An object that cannot be read is refused, unless it is not ``wanted``.
    """
    records = {member.name: member for member in members}
    if len(records) != len(members):
        raise FormatError(
            file.path, "two members of one name", remedy="save it again with torch.save"
        )
    prefix = _prefix(file.path, records)
    start, pickle = _content(file, records[f"{prefix}data.pkl"], _MOST_PICKLE)
    big = _big(file, records.get(f"{prefix}byteorder"))
    try:
        found = _find_plan(pickle, big, wanted)
    except FormatError as error:  # raised with no path, and offsets from the pickle's start
        offset = None if error.offset is None else start + error.offset
        raise type(error)(file.path, error.problem, offset, error.remedy) from None
    places: dict[str, tuple[int, int]] = {}
    arrays = []
    for array in found.arrays:
        if isinstance(array, View):
            place = places.get(array.key)
            if place is None:
                place = places[array.key] = _place(file, records, prefix, array)
            arrays.append(_array(file.path, array, *place))
        elif array.coding == INLINE:
            arrays.append(array)
        else:
            arrays.append(array._replace(offset=start + array.offset))
    kind = "pt list" if found.rows else "pt"
    return Description(kind, tuple(arrays), found.notes, found.narrowed)


def _find_plan(pickle: bytes, big: bool, wanted: Wanted | None) -> Plan:
    """Return the plan of a pickle. Samples saved by the same code usually have the same pickle."""
    found = _plans.get((pickle, big, wanted))
    if found is None:
        found = flatten_object(pickle, big, wanted)
        # No lru_cache: it would keep the large result of a small malicious pickle.
        if len(pickle) + 64 * len(found.arrays) <= _MOST_KEPT:
            if len(_plans) >= _MOST_PLANS:
                _plans.clear()
            _plans[pickle, big, wanted] = found
    return found


def _prefix(path: bytes, records: dict[str, Member]) -> str:
    """Return the prefix of all names: ``x/`` if there is ``x/data.pkl``."""
    found = [name for name in records if name.endswith("/data.pkl") and name.count("/") == 1]
    prefix = found[0][:-8] if found else next(iter(records), "").partition("/")[0] + "/"
    for name, (what, remedy) in _KINDS.items():
        if prefix + name in records:
            raise UnsupportedError(path, f"holds {what}, which is not read", remedy=remedy)
    if len(found) != 1:
        raise FormatError(
            path, f"expected one member data.pkl, found {len(found)}: not written by torch.save"
        )
    return prefix


def _big(file: File, member: Member | None) -> bool:
    if member is None:
        return False
    _, content = _content(file, member, 64)
    if content not in (b"little", b"big"):
        raise FormatError(
            file.path, f"byteorder must be 'little' or 'big', found {content.decode('latin-1')!r}"
        )
    return content == b"big"


def _content(file: File, member: Member, most: int) -> tuple[int, bytes]:
    """Return where a member begins, and all its bytes."""
    if member.size > most:
        raise LimitError(
            file.path,
            f"expected {member.name!r} of at most {most} bytes, found {member.size}",
            remedy="save large arrays as tensors: torch.from_numpy(x)",
        )
    start = _start(file, member)
    return start, file.read(start, member.size)


def _start(file: File, member: Member) -> int:
    """Return where the bytes of a member begin, which must be stored uncompressed."""
    if member.method != ziparchive.STORED or member.flags & ziparchive.ENCRYPTED:
        how = "encrypted" if member.flags & ziparchive.ENCRYPTED else "compressed"
        raise UnsupportedError(
            file.path, f"member {member.name!r} is {how}", remedy="save it again with torch.save"
        )
    if member.stored != member.size:
        raise FormatError(
            file.path, f"member {member.name!r} is {member.size} bytes and {member.stored}"
        )
    return ziparchive.data_offset(file, member)


def _place(file: File, records: dict[str, Member], prefix: str, view: View) -> tuple[int, int]:
    """Return the offset and length of the record that ``view`` names."""
    member = records.get(f"{prefix}data/{view.key}")
    if member is None:
        raise TruncatedError(
            file.path, f"record data/{view.key:.80} is missing", remedy="save or copy it again"
        )
    return _start(file, member), member.size


def _array(path: bytes, view: View, offset: int, length: int) -> Array:
    if view.held > length:
        raise TruncatedError(
            path, f"record data/{view.key:.80}: expected {view.held} bytes, found {length}"
        )
    return Array(view.name, view.dtype, view.shape, offset, length, view.skip, RAW, view.strides)
