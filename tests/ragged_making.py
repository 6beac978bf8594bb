"""Files with ragged samples end to end: arrays with offsets, Megatron pairs, sparse matrices.

Written here from the formats' specifications, byte by byte, not by their own libraries.
"""

import struct
from itertools import pairwise

import numpy as np

MEGATRON_CODES = {
    1: "<u1",
    2: "<i1",
    3: "<i2",
    4: "<i4",
    5: "<i8",
    6: "<f8",
    7: "<f4",
    8: "<u2",
}


def offsets_of(lengths):
    """n + 1 offsets of samples of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def texts(count=50, seed=0, dtype=np.uint16):
    """Values of samples of several lengths, some of them empty, and their offsets."""
    rng = np.random.default_rng(seed)
    offsets = offsets_of(rng.integers(0, 40, count))
    return rng.integers(0, 100, offsets[-1]).astype(dtype), offsets


def pieces(values, offsets):
    """The samples, by plain slicing."""
    return [values[a:b] for a, b in pairwise(offsets)]


def megatron_index(lengths, code=8, *, pointers=None, documents=None, version=1, modes=b""):
    """The bytes of an .idx file: the layout of MMapIndexedDataset."""
    size = np.dtype(MEGATRON_CODES.get(code, "<u2")).itemsize
    if pointers is None:
        pointers = offsets_of(lengths)[:-1] * size
    documents = [0, len(lengths)] if documents is None else documents
    return b"".join(
        [
            b"MMIDIDX\x00\x00",
            struct.pack("<Q", version),
            struct.pack("<B", code),
            struct.pack("<Q", len(lengths)),
            struct.pack("<Q", len(documents)),
            np.asarray(lengths, "<i4").tobytes(),
            np.asarray(pointers, "<i8").tobytes(),
            np.asarray(documents, "<i8").tobytes(),
            modes,
        ]
    )


def save_megatron(path, samples, code=8):
    """Write a pair of .bin and .idx files; ``path`` is that of the latter."""
    dtype = MEGATRON_CODES[code]
    path.write_bytes(megatron_index([len(one) for one in samples], code))
    data = b"".join(np.asarray(one, dtype).tobytes() for one in samples)
    path.with_suffix(".bin").write_bytes(data)


def save_csr(path, rows, columns, *, compressed=True, array=False, **changes):
    """Write what scipy.sparse.save_npz does; ``rows`` are pairs of indices and data."""
    members = {
        "indices": np.concatenate([np.asarray(i, np.int32) for i, _ in rows]),
        "indptr": offsets_of([len(i) for i, _ in rows]).astype(np.int32),
        "format": b"csr",
        "shape": np.array((len(rows), columns)),
        "data": np.concatenate([np.asarray(d, np.float32) for _, d in rows]),
    }
    if array:
        members["_is_array"] = np.array(True)
    members = {name: value for name, value in (members | changes).items() if value is not None}
    (np.savez_compressed if compressed else np.savez)(path, **members)


def sparse_rows(count=30, columns=100, seed=0):
    """Rows of a sparse matrix: indices and data of what is not zero."""
    rng = np.random.default_rng(seed)
    found = []
    for length in rng.integers(0, 12, count):
        indices = np.sort(rng.choice(columns, length, replace=False)).astype(np.int32)
        found.append((indices, rng.random(length, np.float32)))
    return found
