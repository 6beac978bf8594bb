"""What opening a file costs grows as its bytes do, whether it is honest or hostile.

Each maker takes a size and writes a file with so many of something. Time and memory of opening it
are measured at one size and at four times that size; both may grow as the file did, with room for
noise. Where a file is hostile it may be refused, at no
greater cost.
"""

import gc
import gzip
import json
import struct
import time
import tracemalloc
import warnings

import numpy as np
import packed_making
import pytest
from formats import making

import ndfeed

MODULUS = (1 << 61) - 1  # numbers that differ by it have one hash in Python
NOISE = 2.5
SPARE = 1 << 20  # bytes of memory that do not count


# Makers: name, size of the smaller file, and what writes it


def npy_fields(path, n):
    """A structured array of many fields."""
    fields = ", ".join(f"('field{i}', '<f4', (2,))" for i in range(n))
    path.write_bytes(making.npy(f"[{fields}]", "(1,)", bytes(8 * n), version=2))


def npy_data(path, n):
    """A plain array: opening costs the same whatever its size."""
    np.save(path, np.zeros((n, 1000)))


def npz_members(path, n):
    """Many small members."""
    data = making.saved(np.zeros(3))
    entries = [making.Entry(f"member{i}.npy", data) for i in range(n)]
    path.write_bytes(making.archive(*entries, zip64=True))


def npz_deflated(path, n):
    """Many members that must be decoded for their headers, of many shapes."""
    entries = [
        making.deflated(f"member{i}.npy", making.saved(np.zeros((1, i % 977)))) for i in range(n)
    ]
    path.write_bytes(making.archive(*entries, zip64=True))


def npz_places(path, n):
    """Members in places whose hashes have the same low bits, far behind the end of the file."""
    entries = [making.Entry(f"{i}.npy", b"", header=(1 << 33) + i * MODULUS) for i in range(4)]
    data = making.archive(*entries, zip64=True)
    central = data.index(b"PK\x01\x02")
    one = data[central : data.index(b"PK\x01\x02", central + 4)]
    first = struct.pack("<Q", 1 << 33)
    places = [(1 << 33) + (i % 7) * MODULUS + ((i // 7) << 40) for i in range(n)]
    places = sorted(set(places))
    directory = b"".join(one.replace(first, struct.pack("<Q", place)) for place in places)
    path.write_bytes(_closed(data[:central], directory, len(places)))


def _closed(body, directory, count):
    end = struct.pack(
        "<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(directory), len(body)
    )
    end += struct.pack("<4sIQI", b"PK\x06\x07", 0, len(body) + len(directory), 1)
    end += struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0)
    return body + directory + end


def gz_fields(path, n):
    """A structured array behind gzip."""
    fields = ", ".join(f"('field{i}', '<f4', (2,))" for i in range(n))
    text = making.npy(f"[{fields}]", "(1,)", bytes(8 * n), version=2)
    path.write_bytes(gzip.compress(text, 1))


def _pt(path, pickle):
    path.write_bytes(making.archive(making.Entry("x/data.pkl", pickle)))


def pt_numbers(path, n):
    """A dict of numbers, by name."""
    items = b"".join(b"X\x08\0\0\0" + b"%08d" % i + b"K\x01" for i in range(n))
    _pt(path, b"\x80\x02}(" + items + b"u.")


def pt_colliding_keys(path, n):
    """A dict whose keys have one hash."""
    keys = [(i * MODULUS).to_bytes(12, "little", signed=True) for i in range(n)]
    _pt(path, b"\x80\x02}(" + b"".join(b"\x8a\x0c" + key + b"K\x01" for key in keys) + b"u.")


def pt_texts(path, n):
    """Remarks and nothing else, but for one number."""
    items = b"".join(b"X\x08\0\0\0%08dX\x08\0\0\0\x1b[31m\n\n\n" % i for i in range(n))
    _pt(path, b"\x80\x02}(" + items + b"K\x01K\x01u.")


def pt_memo(path, n):
    """Values stored under numbers whose hashes have the same low bits."""
    puts = b"".join(b"r" + struct.pack("<I", (i << 20) & 0xFFFFFFFF) for i in range(n))
    _pt(path, b"\x80\x02K\x01" + puts + b".")


def pt_depth(path, n):
    """Tuples in tuples that are shared: few bytes, as many values as there may be."""
    _pt(path, b"\x80\x02(" + b"K\x01" * n + b"tq\0h\0\x86.")


def _safetensors(path, entries, nbytes):
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(nbytes))


def safetensors_tensors(path, n):
    """Many tensors of many shapes."""
    sizes = [1 + i % 977 for i in range(n)]
    ends = np.cumsum(sizes).tolist()
    spans = zip(sizes, ends, strict=True)
    entries = {
        f"tensor{i}": {"dtype": "U8", "shape": [1, size], "data_offsets": [end - size, end]}
        for i, (size, end) in enumerate(spans)
    }
    _safetensors(path, entries, ends[-1])


def safetensors_colliding_shapes(path, n):
    """Empty tensors, of shapes that have one hash as tuples."""
    entries = {
        f"tensor{i}": {"dtype": "U8", "shape": shape, "data_offsets": [0, 0]}
        for i, shape in enumerate(colliding_shapes(n))
    }
    _safetensors(path, entries, 0)


def colliding_shapes(n):
    """Lists of numbers whose tuples have one hash: the last number makes it so.

    Python's hash of a tuple takes each item's in turn and can be solved for any of them.
    """
    p1, p2, p5 = 11400714785074694791, 14029467366897019727, 2870177450012600261
    mask, rank, goal = (1 << 64) - 1, 24, 123456789

    def turned(value, bits):
        return ((value << bits) | (value >> (64 - bits))) & mask

    back = turned(goal * pow(p1, -1, 1 << 64) & mask, 33)
    found = []
    for bits in range(1 << (rank - 2)):
        lead = [0, *((bits >> i) & 1 for i in range(rank - 2))]
        acc = p5
        for lane in lead:
            acc = turned((acc + lane * p2) & mask, 31) * p1 & mask
        last = (back - acc) * pow(p2, -1, 1 << 64) & mask
        if last < 1 << 60:
            found.append([*lead, last])
            if len(found) == n:
                return found
    raise AssertionError("too few")


def safetensors_metadata(path, n):
    """Remarks that nobody reads to the end."""
    entries = {"__metadata__": {f"key{i}": "\x1b" * 50 for i in range(n)}}
    entries["x"] = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    _safetensors(path, entries, 1)


MAKERS = {
    "npy, data": ("x.npy", 100, npy_data),
    "npy, fields": ("x.npy", 500, npy_fields),
    "npz, members": ("x.npz", 1000, npz_members),
    "npz, deflated": ("x.npz", 700, npz_deflated),
    "npz, places": ("x.npz", 4000, npz_places),
    "npy.gz, fields": ("x.npy.gz", 500, gz_fields),
    "pt, numbers": ("x.pt", 1500, pt_numbers),
    "pt, texts": ("x.pt", 3000, pt_texts),
    "pt, memo": ("x.pt", 50_000, pt_memo),
    "pt, shared": ("x.pt", 1000, pt_depth),
    "safetensors, tensors": ("x.safetensors", 1500, safetensors_tensors),
    "safetensors, metadata": ("x.safetensors", 3000, safetensors_metadata),
}


def opened(path):
    """All that somebody does with a dataset before it is read."""
    try:
        ds = ndfeed.open(path, sample="file", cache=False)
    except ndfeed.Error as error:
        return str(error)
    return repr(ds), ds.nbytes, len(ds.fields)


def seconds_of(path, open_it=opened):
    """The better of two times, without that of looking for garbage of other tests."""
    seconds = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            began = time.process_time()
            open_it(path)
            seconds.append(time.process_time() - began)
    finally:
        gc.enable()
    return max(min(seconds), 0.01)


def memory_of(path, open_it=opened):
    """Bytes at most."""
    tracemalloc.start()
    try:
        open_it(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_linear(small, large, open_it=opened):
    """The larger of two files costs no more than its bytes say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds, more_seconds = seconds_of(small, open_it), seconds_of(large, open_it)
        memory, more_memory = memory_of(small, open_it), memory_of(large, open_it)
    grown = max(large.stat().st_size / small.stat().st_size, 4)

    assert more_seconds <= NOISE * grown * seconds, (seconds, more_seconds, grown)
    assert more_memory <= 1.5 * grown * memory + SPARE, (memory, more_memory, grown)


@pytest.mark.parametrize(("name", "size", "make"), MAKERS.values(), ids=MAKERS)
def test_opening_grows_as_the_file_does(tmp_path, name, size, make):
    """One file among thousands must not hold everybody up, whoever made it."""
    small, large = tmp_path / "small" / name, tmp_path / "large" / name
    for path, count in ((small, size), (large, 4 * size)):
        path.parent.mkdir()
        make(path, count)

    assert_linear(small, large)


@pytest.mark.parametrize(
    ("name", "size", "honest", "hostile"),
    [
        ("x.pt", 60_000, pt_numbers, pt_colliding_keys),
        ("x.safetensors", 5000, safetensors_tensors, safetensors_colliding_shapes),
    ],
    ids=["keys of a dict", "shapes"],
)
def test_numbers_of_one_hash_cost_no_more_than_others(tmp_path, name, size, honest, hostile):
    """A megabyte of keys that collide took a minute: every lookup walked through all of them."""
    seconds = []
    for make in (honest, hostile):
        path = tmp_path / make.__name__ / name
        path.parent.mkdir()
        make(path, size)
        seconds.append(seconds_of(path))

    assert seconds[1] <= NOISE * seconds[0], seconds


@pytest.mark.parametrize("what", ["parts", "fields"])
def test_opening_a_packed_dataset_grows_as_its_manifest_does(tmp_path, what):
    """A manifest with many parts, or many fields, costs what as many files cost."""
    found = {}
    for name, count in (("small", 40), ("large", 160)):
        fields = count if what == "fields" else 2
        data = {f"field{i}": np.zeros((count, 1 + i), "u1") for i in range(fields)}
        packed_making.write(tmp_path / name, data, parts=count if what == "parts" else 2)
        found[name] = tmp_path / name / "ndfeed.json"

    assert_linear(found["small"], found["large"], lambda path: repr(ndfeed.open(path.parent)))


def test_shapes_collide():
    """The attack itself: without it, its test would prove nothing."""
    shapes = colliding_shapes(100)

    assert len({hash(tuple(shape)) for shape in shapes}) == 1
    assert len({hash(i * MODULUS) for i in range(100)}) == 1
