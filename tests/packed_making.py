"""Packed datasets written by hand, with ``np.save`` and the manifest: a check of the format.

    write(folder, {"x": np.zeros((10, 3)), "text": [np.arange(n) for n in range(10)]}, parts=2)

An array is a field of one shape; a list of arrays, one for each sample, is a ragged one.
"""

import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np

from ndfeed.formats.dtypes import EXTENDED, named
from ndfeed.formats.manifest import Column, Field, Manifest, Part, file_names, rows_per_block


def write(folder, data, *, parts=1, rows_per_block=None, source=None, shapes=None):
    """Write ``data`` below ``folder``; ``shapes`` has those of ragged fields it cannot tell."""
    folder = Path(folder)
    fields = [_field(name, values, (shapes or {}).get(name)) for name, values in data.items()]
    count = len(next(iter(data.values())))
    cuts = np.linspace(0, count, parts + 1).astype(int).tolist()
    made = []
    for i, (start, stop) in enumerate(pairwise(cuts)):
        (folder / f"{i:05}").mkdir(parents=True)
        names = file_names(fields)
        columns = []
        for field in fields:
            for role, array in _arrays(field, data[field.name][start:stop]).items():
                file = folder / f"{i:05}" / names[field.name, role]
                np.save(file, array)
                columns.append(column(file, field, role, array, rows_per_block))
        made.append(Part(f"{i:05}", stop - start, tuple(columns)))
    manifest = Manifest(tuple(fields), tuple(made), source)
    (folder / "ndfeed.json").write_bytes(manifest.encoded())
    return manifest


def column(file, field, role, array, per_block=None):
    """What the manifest says of a column that is there already."""
    data = file.read_bytes()
    header = len(data) - array.nbytes
    size = field.row_bytes(role)
    per_block = per_block or rows_per_block(size, len(array))
    blocks = [data[:header]]
    for first in range(0, len(array), per_block):
        last = min(first + per_block, len(array))
        blocks.append(data[header + first * size : header + last * size])
    crc = "".join(f"{zlib.crc32(block):08x}" for block in blocks)
    return Column(field.name, role, file.name, len(array), len(data), header, per_block, crc)


def _field(name, values, shape):
    if isinstance(values, np.ndarray):
        return Field(name, _little(values.dtype), values.shape[1:])
    values = [np.asarray(value) for value in values]
    if shape is None:
        lengths = zip(*(value.shape for value in values), strict=True)
        shape = tuple(n[0] if len(set(n)) == 1 else None for n in lengths)
        assert None in shape, f"{name}: say its shape, the samples have all the same"
    return Field(name, _little(values[0].dtype if values else np.dtype("f8")), shape)


def _little(dtype):
    name = named(dtype)
    return name if name in EXTENDED else np.dtype(name).newbyteorder("<").str


def _arrays(field, values):
    """The columns of one field of a part."""
    if field.roles == ("rows",):
        return {"rows": _stored(field, values)}
    samples = [np.asarray(value) for value in values]
    dtype, row = field.stored("values")
    lengths = [s.size if "shapes" in field.roles else len(s) for s in samples]
    flat = [_stored(field, s).reshape(n, *row) for s, n in zip(samples, lengths, strict=True)]
    found = {
        "values": np.concatenate([np.zeros((0, *row), dtype), *flat]).astype(dtype),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype("<i8"),
    }
    if "shapes" in field.roles:
        found["shapes"] = np.array([s.shape for s in samples], "<i8").reshape(
            len(samples), len(field.shape)
        )
    return found


def _stored(field, array):
    if field.dtype in EXTENDED:
        return np.ascontiguousarray(array).view(f"V{EXTENDED[field.dtype]}")
    return np.ascontiguousarray(array, field.dtype)
