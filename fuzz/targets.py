"""One target for each kind of file that comes from elsewhere, or that somebody else may edit."""

import gzip
import hashlib
import io
import json
import re
import struct
import tempfile
import zlib
from contextlib import nullcontext
from pathlib import Path

import numpy as np

import ndfeed
from fuzz.harness import Failure, Sample, Target, check_message, checked_file, same, watch
from ndfeed.formats import manifest
from ndfeed.index import codec
from ndfeed.index.table import Table
from ndfeed.packing import journal

try:
    import safetensors.numpy as reference
except ImportError:
    reference = None

ELEMENTS = bytes(range(240)) * 4
_DIGEST = re.compile(rb',\n"digest":"[^"]*"\}\n?\Z')


# Formats of others: what is accepted must be what the format's own reader says it is.


def _compare_npy(data: bytes, sample: Sample) -> None:
    try:
        array = np.lib.format.read_array(io.BytesIO(data), max_header_size=1 << 20)
    except Exception:  # noqa: BLE001 - it may refuse what it likes
        return
    if array.dtype.names is None and not array.dtype.hasobject:
        same("data", sample["data"], array)


def _compare_gz(data: bytes, sample: Sample) -> None:
    try:
        _compare_npy(gzip.decompress(data), sample)
    except (OSError, EOFError, zlib.error):  # zeros behind it, or something it does not know
        return


def _compare_npz(data: bytes, sample: Sample) -> None:
    try:
        with np.load(io.BytesIO(data), max_header_size=1 << 20) as archive:
            theirs = {name: archive[name] for name in archive.files if name in sample}
    except Exception:  # noqa: BLE001 - it may refuse what it likes
        return
    for name, array in theirs.items():
        if isinstance(array, np.ndarray) and array.dtype.names is None:
            same(name, sample[name], array)


def _compare_safetensors(data: bytes, sample: Sample) -> None:
    if reference is None:
        return
    try:
        theirs = reference.load(data)
    except Exception:  # noqa: BLE001 - it may refuse what it likes
        return
    for name, array in theirs.items():
        if name and sample[name].dtype != np.uint8:  # narrow types come as packed bytes
            same(name, sample[name], array)


# Samples in ranges of an array: what is read must be what plain slicing gives.


def _open_ragged(path: Path) -> ndfeed.Dataset | None:
    """The dataset of a file, in the folder of its own; nothing if it is refused."""
    # What is decoded when it is opened takes shared memory, for which the system is asked.
    watching = watch(path, path.with_suffix(".bin"), f"{path}.json")
    try:
        with watching if path.suffix == ".idx" else nullcontext():
            ds = ndfeed.open(path, cache=False)
            ds.lengths("data")  # looks at every offset
            return ds
    except ndfeed.Error as error:
        check_message(error)
        return None


def _check_megatron(data: bytes) -> bool:
    path = _ragged / "x.idx"
    path.write_bytes(data)
    path.with_suffix(".bin").write_bytes(ELEMENTS)
    ds = _open_ragged(path)
    if ds is None:
        return False
    count = int.from_bytes(data[18:26], "little")
    sizes = np.frombuffer(data, "<i4", count, 34).tolist()
    pointers = np.frombuffer(data, "<i8", count, 34 + 4 * count).tolist()
    found = ds.read(np.arange(len(ds)))["data"]
    for sample, size, start in zip(found, sizes, pointers, strict=True):
        same("data", sample, np.frombuffer(ELEMENTS, sample.dtype, size, start))
    return True


def _check_csr(data: bytes) -> bool:
    path = _ragged / "x.npz"
    path.write_bytes(data)
    ds = _open_ragged(path)
    if ds is None or "sparse matrix" not in ds.why or ds.nbytes > 1 << 20:
        return ds is not None
    try:
        with np.load(io.BytesIO(data), max_header_size=1 << 20) as archive:
            theirs = {name: archive[name] for name in ("indptr", "indices", "data")}
    except Exception:  # noqa: BLE001 - it may refuse what it likes
        return True
    try:
        found = ds.read(np.arange(len(ds)))
    except ndfeed.Error:  # a stream that ends early, of which NumPy may need no more
        return True
    for name in ("indices", "data"):
        for at, sample in enumerate(found[name]):
            first, last = theirs["indptr"][at : at + 2].tolist()
            same(name, sample, theirs[name][first:last])
    return True


_ragged = Path(tempfile.mkdtemp(prefix="ndfeed-fuzz-"))


# Put checksums right.


def repair_npz(data: bytes) -> bytes:
    """Checksums of stored and deflated members, as far as the directory leads to them."""
    made = bytearray(data)
    shift = 0  # bytes before the archive, from which its places do not count
    end = data.rfind(b"PK\x05\x06")
    if 0 <= end <= len(data) - 22:
        shift = max(end - _u32(made, end + 12) - _u32(made, end + 16), 0)
    at = data.find(b"PK\x01\x02")
    while 0 <= at <= len(data) - 46:
        method, stored = struct.unpack_from("<H", made, at + 10)[0], _u32(made, at + 20)
        local = _u32(made, at + 42) + shift
        if local + 30 <= len(made):
            name, extra = struct.unpack_from("<HH", made, local + 26)
            start = local + 30 + name + extra
            content = bytes(made[start : start + min(stored, len(made))])
            struct.pack_into("<I", made, at + 16, zlib.crc32(_inflated(method, content)))
        at = data.find(b"PK\x01\x02", at + 46)
    return bytes(made)


def _u32(data: bytearray, at: int) -> int:
    found: int = struct.unpack_from("<I", data, at)[0]
    return found


def _inflated(method: int, data: bytes) -> bytes:
    if method != 8:
        return data
    try:
        return zlib.decompressobj(-15).decompress(data, 1 << 20)
    except zlib.error:
        return b""


def repair_gz(data: bytes) -> bytes:
    """The checksum and the length behind a plain gzip member."""
    if data[:4] != b"\x1f\x8b\x08\0" or len(data) < 18:
        return data
    inflating = zlib.decompressobj(-15)
    try:
        content = inflating.decompress(data[10:], 1 << 20)
    except zlib.error:
        return data
    if not inflating.eof:
        return data
    end = len(data) - len(inflating.unused_data)
    tail = struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF)
    return data[:end] + tail + data[end + 8 :]


def repair_manifest(data: bytes) -> bytes:
    """The digest at the end, whatever stands before it."""
    signed = _DIGEST.sub(b"", data)
    return signed + f',\n"digest":"{hashlib.sha256(signed).hexdigest()}"}}\n'.encode()


def repair_index(data: bytes) -> bytes:
    """The checksum of everything behind it."""
    return data[:8] + struct.pack("<I", zlib.crc32(data[12:])) + data[12:]


def repair_journal(data: bytes) -> bytes:
    """The checksum of every line."""
    lines = [line.rpartition(b" ")[0] for line in data.split(b"\n") if line]
    return b"".join(b"%s %08x\n" % (line, zlib.crc32(line)) for line in lines)


# Files of our own: they may be edited by somebody who puts their checksums right.


def _check_manifest(data: bytes) -> bool:
    try:
        with watch():
            found = manifest.parse(data, b"folder/ndfeed.json")
    except ndfeed.Error as error:
        check_message(error, "folder/ndfeed.json")
        return False
    for part in found.parts:
        for name in (part.folder, *(column.file for column in part.columns)):
            if "/" in name or name in (".", "..") or not name.isprintable():
                raise Failure(f"a name that leads elsewhere: {name!r}")
    if manifest.parse(found.encoded(), b"again") != found:
        raise Failure("a manifest that is another once it is written")
    return True


def _check_index(data: bytes) -> bool:
    try:
        with watch():
            table, _ = codec.decode(data, checked=True)
            _check_table(table)
    except ValueError:  # which the cache takes for: build it again
        return False
    return True


def _check_table(table: Table) -> None:
    """Whoever reads by this table must stay in its files, and meet no surprise."""
    from ndfeed.index import build, validate  # noqa: PLC0415 - only here: codec is older

    validate.check(table, build.FORMATS)
    sizes = table.identity[table.file, 2]
    inline = table.coding == 3
    if not (inline | (table.offset >= 0) & (table.offset + table.length <= sizes)).all():
        raise Failure("an array outside of its file")
    for name in table.dtypes:
        np.dtype(name) if name[0] in "<>|" else None
    list(table.paths_of(np.arange(table.files)))
    [table.dimensions(place) for place in range(len(table.dims))]


def _check_journal(data: bytes) -> bool:
    with watch():
        records, end = journal.parse_journal(data)
    if not 0 <= end <= len(data):
        raise Failure(f"{end} of {len(data)} bytes believed")
    for record in records:
        line = journal.seal_line(journal.encode_entry(record), journal.checksum)
        if journal.parse_journal(line) != ([record], len(line)):
            raise Failure("a record that is another once it is written")
    return bool(records)


class _State:
    """A loader, which is given one state after the other."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "x.npy"
        np.save(path, np.arange(100))
        self._loader = ndfeed.loader(ndfeed.open(path, cache=False), 10, shuffle=True, seed=0)

    def state(self) -> bytes:
        """A sound one."""
        return json.dumps(self._loader.state_dict()).encode()

    def check(self, data: bytes) -> bool:
        """Only what is sound is gone on from."""
        try:
            state = json.loads(data)
        except (ValueError, RecursionError):
            return False  # that is for whoever kept it
        try:
            with watch():
                self._loader.load_state_dict(state)
        except ndfeed.Error as error:
            check_message(error)
            return False
        found = self._loader.state_dict()
        if any(found[name] != state[name] for name in found):
            raise Failure(f"a state of {state!r:.200} that became {found!r:.200}")
        return True


TARGETS = {
    target.name: target
    for target in (
        Target("npy", checked_file("x.npy", _compare_npy)),
        Target("npz", checked_file("x.npz", _compare_npz), repair_npz),
        Target("npy.gz", checked_file("x.npy.gz", _compare_gz), repair_gz),
        Target("pt", checked_file("x.pt"), repair_npz),
        Target("safetensors", checked_file("x.safetensors", _compare_safetensors)),
        Target("sidecar", checked_file("x.bin", beside=ELEMENTS)),
        Target("megatron", _check_megatron),
        Target("csr", _check_csr, repair_npz),
        Target("manifest", _check_manifest, repair_manifest),
        Target("index", _check_index, repair_index),
        Target("journal", _check_journal, repair_journal),
        Target("state", lambda data: _state().check(data)),
    )
}
_states: list[_State] = []


def _state() -> _State:
    """Made when it is first needed: it starts nothing, but opens a file."""
    if not _states:
        _states.append(_State())
    return _states[0]
