"""Make the corpus again: ``python -m fuzz.make_corpus``. A few small files of every kind.

They are sound, or wrong in a way that leads to code of its own. Needs torch for those of torch.
"""

import gzip
import io
import json
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save as save_safetensors

from fuzz.harness import CORPUS
from fuzz.targets import _state, repair_journal
from ndfeed.files.file import File
from ndfeed.formats import detect
from ndfeed.formats.manifest import Column, Field, Manifest, Part, Role
from ndfeed.index import codec
from ndfeed.index.build import make_table

_PLAIN = np.arange(6, dtype="<f4").reshape(2, 3)
_RECORDS = np.zeros(2, [("a", "<f4", (2,)), ("b", [("c", "<i2"), ("d", "S3")])])
Seeds = Iterator[tuple[str, bytes]]


def _npy(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def npy() -> Seeds:
    """Versions, orders, types."""
    yield "plain", _npy(_PLAIN)
    yield "fortran", _npy(np.asfortranarray(_PLAIN))
    yield "records", _npy(_RECORDS)
    yield "scalar", _npy(np.array(3, ">i8"))
    yield "empty", _npy(np.zeros((0, 5), "u1"))
    yield "version2", _npy(_PLAIN, (2, 0))
    yield "version3", _npy(np.zeros(2, [("é", "<U2")]), (3, 0))
    yield "times", _npy(np.zeros(2, "M8[7ns]"))
    yield "python2", _npy(_PLAIN).replace(b"(2, 3), ", b"(2L, 3) ")


def npz() -> Seeds:
    """Stored and deflated members, zip64, names twice, members that are no arrays."""
    for name, save in (("stored", np.savez), ("deflated", np.savez_compressed)):
        file = io.BytesIO()
        save(file, x=_PLAIN, y=np.array(1), **{"a/b": _RECORDS})
        yield name, file.getvalue()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = b"a comment"
        for member, data in (("x.npy", _npy(_PLAIN)), ("x", _npy(_PLAIN)), ("note.txt", b"none"),
                             ("folder/", b""), ("é.npy", _npy(_PLAIN))):  # fmt: skip
            archive.writestr(zipfile.ZipInfo(member), data)
    yield "odd", b"before" + file.getvalue()


def npy_gz() -> Seeds:
    """One member, several, zeros behind."""
    whole = _npy(np.arange(100))
    yield "one", gzip.compress(whole, mtime=0)
    yield "records", gzip.compress(_npy(_RECORDS), mtime=0)
    first, second = (gzip.compress(part, mtime=0) for part in (whole[:200], whole[200:]))
    yield "two", first + second + bytes(5)


def pt() -> Seeds:
    """Everything that torch.save is used for, with its protocols."""
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    values = {
        "tensor": tensor,
        "dict": {"x": tensor, "y": tensor.to(torch.bfloat16), 7: True, "t": "text"},
        "numbers": {"n": 3, "f": 0.5, "big": 1 << 80, "c": 1j, "none": None},
        "views": [tensor.t(), tensor[:, 1], tensor.expand(2, 2, 3), torch.nn.Parameter(tensor)],
        "numpy": {"a": _PLAIN, "s": np.float32(1), "b": b"\x80\xff", "o": np.arange(3)[::-1]},
        "module": torch.nn.Linear(2, 1).state_dict(),
        "empty": {},
    }
    for name, value in values.items():
        for protocol in (2, 4):
            file = io.BytesIO()
            torch.save(value, file, pickle_protocol=protocol)
            yield f"{name}{protocol}", _shrunk(file.getvalue())


def _shrunk(data: bytes) -> bytes:
    """The archive without padding and without members that are not read."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for member in old.namelist():
            if member.endswith(("data.pkl", "byteorder")) or "/data/" in member:
                new.writestr(zipfile.ZipInfo(member.replace("archive/", "x/")), old.read(member))
    return file.getvalue()


def safetensors() -> Seeds:
    """Types, metadata, nothing at all."""
    yield "plain", save_safetensors({"x": _PLAIN, "y": np.arange(3)}, {"key": "text"})
    yield "empty", save_safetensors({})
    header = {"n": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]},
              "e": {"dtype": "BF16", "shape": [0, 3], "data_offsets": [2, 2]}}  # fmt: skip
    text = json.dumps(header).encode()
    yield "narrow", len(text).to_bytes(8, "little") + text + b"\x12\x34"


def sidecar() -> Seeds:
    """What may stand beside a raw file."""
    yield "type", b'{"dtype": "<u2"}'
    yield "shape", b'{"dtype": "float32", "shape": [4, 5], "offset": 0}'
    yield "offset", b'{"offset": 60, "dtype": "|u1", "shape": 3}'
    yield "times", b'{"dtype": "<M8[7ns]", "shape": []}'
    yield "small", b'{"dtype": "bfloat16", "shape": [8], "note": "more"}'


def megatron() -> Seeds:
    """Sequences of 240 numbers of four bytes, or of 960 bytes; and an index without sequences."""
    for name, code, width in (("int32", 4, 4), ("bytes", 1, 1)):
        sizes = np.array([100, 0, 960 // width - 100], "<i4")
        pointers = (np.cumsum(sizes) - sizes).astype("<i8") * width
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 3, 2)
        yield name, head + sizes.tobytes() + pointers.tobytes() + np.array([0, 3], "<i8").tobytes()
    yield "empty", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 0, 1) + bytes(8)


def csr() -> Seeds:
    """Stored and deflated."""
    members = {"indices": np.arange(4, dtype="<i4"), "data": np.arange(4.0), "format": b"csr"}
    members |= {"indptr": np.array([0, 1, 1, 4], "<i4"), "shape": np.array([3, 9])}
    for name, save in (("stored", np.savez), ("deflated", np.savez_compressed)):
        file = io.BytesIO()
        save(file, **members)
        yield name, file.getvalue()


def manifest() -> Seeds:
    """Fields of one shape, ragged ones, parts, where it came from."""
    x, y, z = (
        Field("x", "<f4", (3,)),
        Field("y/z", "bfloat16", (None,)),
        Field("z", "<i8", (None, 2, None)),
    )
    parts = []
    for number, rows in enumerate((2, 3)):
        columns = [_column("x", "rows", "x.npy", rows, 12)]
        for one, stem, width in ((y, "y%2Fz", 2), (z, "z", 8)):
            columns.append(_column(one.name, "values", f"{stem}.values.npy", 5, width))
            columns.append(_column(one.name, "offsets", f"{stem}.offsets.npy", rows + 1, 8))
        columns.append(_column("z", "shapes", "z.shapes.npy", rows, 24))
        parts.append(Part(f"{number:05}", rows, tuple(columns)))
    source = {"packs": [{"plan": "0" * 32, "rows": 5}], "map": None, "exact": True}
    yield "ragged", Manifest((x, y, z), tuple(parts), source).encoded()
    alone = Part("00000", 1, (_column("x", "rows", "x.npy", 1, 12),))
    yield "plain", Manifest((x,), (alone,)).encoded()


def _column(field: str, role: Role, file: str, rows: int, width: int) -> Column:
    return Column(field, role, file, rows, 128 + width * rows, 128, 9, "0" * 16)


def index() -> Seeds:
    """Tables of one file, with what the cache keeps beside them."""
    for name, data in (*npz(), ("fortran", dict(npy())["fortran"])):
        with tempfile.TemporaryDirectory() as folder:
            path = os.fsencode(Path(folder) / ("x.npz" if name != "fortran" else "x.npy"))
            Path(os.fsdecode(path)).write_bytes(data)
            with File(path) as file:
                made = make_table(file, detect.describe(file))
        tail = np.frombuffer(b"/data/x.npz", np.uint8)
        made = replace(made, base=b"", path_bytes=tail, path_ends=np.array([0, len(tail)]),
                       identity=np.array([[1, 2, len(data), 4, 5]]))  # fmt: skip
        extra = {"built": 7, "folder_bytes": np.frombuffer(b"/data", np.uint8),
                 "folder_ends": np.array([0, 5]), "folder_facts": np.array([1, 2, 3])}  # fmt: skip
        yield name, b"".join(codec.encode(made, extra))


def journal() -> Seeds:
    """What pieces note: rows, offsets, members that several read, the end."""
    wrote = {"0.0.rows": [0, 4096, [1, 2]], "0.1.values": [0, 10, [3]]}
    records = [
        {"task": "rows 0", "rows": 10, "bytes": 4096, "wrote": wrote},
        {"task": "rows 1", "rows": 3, "bytes": 9, "wrote": {}, "read": {"0.0.1": [[0, 5, [7]]]}},
        {"task": "offsets 0", "rows": 1, "bytes": 8, "wrote": {}, "values": 12},
        {"task": "publish"},
    ]
    lines = [json.dumps(one, sort_keys=True, separators=(",", ":")).encode() for one in records]
    yield "all", repair_journal(b"".join(b"%s 00000000\n" % line for line in lines))
    yield "one", b"%s %08x\n" % (lines[0], zlib.crc32(lines[0]))


def state() -> Seeds:
    """A loader's own."""
    yield "plain", _state().state()


MAKERS = {
    "npy": npy, "npz": npz, "npy.gz": npy_gz, "pt": pt, "safetensors": safetensors,
    "sidecar": sidecar, "megatron": megatron, "csr": csr, "manifest": manifest, "index": index,
    "journal": journal, "state": state,
}  # fmt: skip

if __name__ == "__main__":
    for name, make in MAKERS.items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for title, data in make():
            (folder / title).write_bytes(data)
