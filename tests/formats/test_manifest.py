"""The manifest: what is written is read, the bytes are fixed, and nothing in it is believed."""

import contextlib
import dataclasses
import hashlib
import json
import re
from pathlib import Path
from urllib.parse import unquote

import hostile
import ml_dtypes
import numpy as np
import packed_making
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ndfeed
from ndfeed.formats.manifest import (
    MOST_BLOCKS,
    Column,
    Field,
    Manifest,
    Part,
    file_names,
    parse,
    rows_per_block,
)

PATH = b"packed/ndfeed.json"
ON_DISK = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9._%-]*\.npy")

TYPES = ["<f4", "|u1", "|b1", "<M8[ns]", "<U5", "|S3", "bfloat16", "float8_e4m3fn", "<c16"]
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
shapes = st.lists(st.none() | st.integers(0, 5), max_size=4).map(tuple)
fields = st.lists(
    st.builds(Field, texts, st.sampled_from(TYPES), shapes),
    min_size=1,
    max_size=5,
    unique_by=lambda field: field.name,
)
plain = st.none() | st.booleans() | st.integers(0, 2**70) | texts
sources = st.none() | st.dictionaries(
    texts, plain | st.lists(plain) | st.dictionaries(texts, plain)
)


@st.composite
def manifests(draw):
    """Manifests of data that need not be there."""
    own = tuple(draw(fields))
    names = file_names(own)
    parts = []
    for number in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(0, 1000))
        columns = []
        for field in own:
            for role in field.roles:
                values = draw(st.integers(0, 1000))
                count = {"values": values, "offsets": rows + 1}.get(role, rows)
                header = 64 * draw(st.integers(1, 4))
                nbytes = header + count * field.row_bytes(role)
                per_block = draw(st.integers(1, 300))
                crc = draw(st.integers(0, 2**32 - 1))
                blocks = 1 + -(-count // per_block)
                file = names[field.name, role]
                columns.append(
                    Column(
                        field.name,
                        role,
                        file,
                        count,
                        nbytes,
                        header,
                        per_block,
                        f"{crc:08x}" * blocks,
                    )
                )
        parts.append(Part(f"{number:05}", rows, tuple(columns)))
    return Manifest(own, tuple(parts), draw(sources))


def known():
    """A small one, with columns of every role."""
    own = (
        Field("image", "<f4", (3, 2)),
        Field("text", "|u1", (None,)),
        Field("crop", "bfloat16", (3, None)),
    )
    columns = (
        Column("image", "rows", "image.npy", 2, 128 + 48, 128, 1, "00000001" * 3),
        Column("text", "values", "text.values.npy", 9, 128 + 9, 128, 4, "0000000a" * 4),
        Column("text", "offsets", "text.offsets.npy", 3, 128 + 24, 128, 3, "ffffffff" * 2),
        Column("crop", "values", "crop.values.npy", 0, 128, 128, 7, "deadbeef"),
        Column("crop", "offsets", "crop.offsets.npy", 3, 128 + 24, 128, 3, "00000000" * 2),
        Column("crop", "shapes", "crop.shapes.npy", 2, 128 + 32, 128, 3, "00000000" * 2),
    )
    return Manifest(own, (Part("00000", 2, columns),), {"map": ["f"], "fingerprint": "ab"})


GOLDEN = b"""{"ndfeed":1,
"rows":2,
"fields":[
{"name":"image","dtype":"<f4","shape":[3,2]},
{"name":"text","dtype":"|u1","shape":[null]},
{"name":"crop","dtype":"bfloat16","shape":[3,null]}],
"parts":[
{"folder":"00000","rows":2,"columns":[
{"field":"image","role":"rows","file":"image.npy","rows":2,"bytes":176,"header":128,\
"rows_per_block":1,"crc32":"000000010000000100000001"},
{"field":"text","role":"values","file":"text.values.npy","rows":9,"bytes":137,"header":128,\
"rows_per_block":4,"crc32":"0000000a0000000a0000000a0000000a"},
{"field":"text","role":"offsets","file":"text.offsets.npy","rows":3,"bytes":152,"header":128,\
"rows_per_block":3,"crc32":"ffffffffffffffff"},
{"field":"crop","role":"values","file":"crop.values.npy","rows":0,"bytes":128,"header":128,\
"rows_per_block":7,"crc32":"deadbeef"},
{"field":"crop","role":"offsets","file":"crop.offsets.npy","rows":3,"bytes":152,"header":128,\
"rows_per_block":3,"crc32":"0000000000000000"},
{"field":"crop","role":"shapes","file":"crop.shapes.npy","rows":2,"bytes":160,"header":128,\
"rows_per_block":3,"crc32":"0000000000000000"}]}],
"source":{"fingerprint":"ab","map":["f"]},
"digest":"@"}
"""


def signed(text):
    """``text`` with the digest it needs in place of ``@``, or of the one it has."""
    head = re.sub(rb',\n"digest":"[^"]*"\}\n\Z', b"", text)
    return head + b',\n"digest":"' + hashlib.sha256(head).hexdigest().encode() + b'"}\n'


@given(manifests())
def test_what_is_written_is_read(manifest):
    """Whatever the names, types and counts."""
    data = manifest.encoded()

    assert parse(data, PATH) == manifest
    assert parse(data, PATH).encoded() == data
    assert json.loads(data)["digest"] == manifest.digest
    assert json.loads(data)["rows"] == manifest.rows


def test_the_bytes_are_fixed():
    """Datasets outlive versions of the library."""
    assert known().encoded() == signed(GOLDEN)
    assert parse(signed(GOLDEN), PATH) == known()


def test_every_byte_is_covered():
    """No change of one bit in a manifest goes unseen."""
    data = known().encoded()
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            with pytest.raises(ndfeed.ManifestError, match="expected"):
                parse(flipped, PATH)


CHANGES = {
    "another version": (b'{"ndfeed":1', b'{"ndfeed":2', "expected format version 1, found 2"),
    "no version": (b'{"ndfeed":1', b'{"ndfed":1', "the key"),
    "true for 1": (b'{"ndfeed":1', b'{"ndfeed":true', "the key"),
    "a key twice": (b'"rows":2,\n', b'"rows":2,\n"rows":2,\n', "twice"),
    "another key": (b'"rows":2,\n', b'"rows":2,\n"x":2,\n', "an object with the keys"),
    "rows that do not add up": (b'"rows":2,\n', b'"rows":3,\n', "expected 3 rows, but the parts"),
    "a number below 0": (b'"rows":2,\n', b'"rows":-2,\n', "expected whole numbers"),
    "a fraction": (b'"rows":2,\n', b'"rows":2.0,\n', "expected whole numbers"),
    "no number": (b'"rows":2,\n', b'"rows":NaN,\n', "expected whole numbers"),
    "a folder above": (b'"folder":"00000"', b'"folder":".."', "a plain name"),
    "a folder elsewhere": (b'"folder":"00000"', b'"folder":"/etc"', "a plain name"),
    "a folder deeper": (b'"folder":"00000"', b'"folder":"a/b"', "a plain name"),
    "a hidden file": (b'"image.npy"', b'".image.npy"', "a plain name"),
    "a file elsewhere": (b'"image.npy"', b'"../image.npy"', "a plain name"),
    "a file with a null": (b'"image.npy"', b'"image\\u0000.npy"', "a plain name"),
    "a file of Windows": (b'"image.npy"', b'"c:image.npy"', "a plain name"),
    "one file twice": (b'"image.npy"', b'"TEXT.values.npy"', "two columns are in one file"),
    "no file": (b'"image.npy"', b"7", "expected text"),
    "an unknown dtype": (b'"<f4"', b'"<f5"', "unknown dtype"),
    "a dtype that divides by 0": (b'"<f4"', b'"<M8[s/0]"', "unknown dtype"),
    "big-endian": (b'"<f4"', b'">f4"', "expected a little-endian dtype"),
    "an alias": (b'"<f4"', b'"float32"', "expected a little-endian dtype"),
    "a dtype of objects": (b'"<f4"', b'"|O"', "unknown dtype"),
    "a length below 0": (b"[3,2]", b"[3,-2]", "expected whole numbers"),
    "a length of text": (b"[3,2]", b'[3,"2"]', "lengths must be"),
    "a length of true": (b"[3,2]", b"[3,true]", "lengths must be"),
    "too many bytes": (b"[3,2]", b"[4611686018427387904,2]", "fewer than 2..63"),
    "another shape": (b"[3,2]", b"[3,3]", "expected 200 bytes, found 176"),
    "more dimensions than NumPy has": (b"[3,2]", b"[3,2" + b",1" * 70 + b"]", "dimensions"),
    "other roles": (b"[3,2]", b"[3,null]", "the columns of all fields"),
    "a role that is a list": (b'"role":"rows"', b'"role":["rows"]', "the columns of all fields"),
    "more rows of a column": (b'"rows":2,"bytes":176', b'"rows":3,"bytes":176', "crc32 needs"),
    "blocks of no rows": (b'"rows_per_block":1', b'"rows_per_block":0', "blocks of a row or more"),
    "a header that is not aligned": (b'"header":128', b'"header":100', "a multiple of 64"),
    "no header": (b'"bytes":128,"header":128', b'"bytes":0,"header":0', "a multiple of 64"),
    "other digits": (b'"deadbeef"', b'"DEADBEEF"', "hex digits"),
    "a digit less": (b'"deadbeef"', b'"deadbee"', "hex digits"),
    "fields of one name": (b'"name":"crop"', b'"name":"text"', "two fields of one name"),
    "a field without a name": (b'"name":"crop"', b'"name":""', "1 to 4096 characters"),
    "half a surrogate pair": (b'"name":"crop"', b'"name":"\\udc80"', "surrogates not allowed"),
    "half a pair in a list": (b'"ab"', b'["\\ud800"]', "surrogates not allowed"),
    "half a pair deeper": (b'"ab"', b'[[["x","\\udfff"]]]', "surrogates not allowed"),
    "no parts": (re.compile(rb'"parts":\[.*\]\}\]', re.S), b'"parts":[]', "at least one part"),
    "no fields": (re.compile(rb'"fields":\[.*?\}\]', re.S), b'"fields":[]', "at least one field"),
    "a source that is a list": (re.compile(rb'"source":\{.*\}'), b'"source":[]', "an object"),
    "deep nesting": (b'"ab"', b"[" * 100 + b"]" * 100, "8 deep"),
    "deeper nesting": (b'"ab"', b"[" * 10**6 + b"]" * 10**6, "8 deep"),
    "not UTF-8": (b'"ab"', b'"\xff"', "decode"),
    "masses of objects": (b'"ab"', b"[" + b"{}," * 1_000_010 + b"{}]", "at most 1,000,000 columns"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_hostile_manifest_is_refused(change):
    """A digest is no proof of good will: everything behind it is checked."""
    old, new, problem = change
    data = known().encoded()
    changed = old.sub(new, data) if isinstance(old, re.Pattern) else data.replace(old, new, 1)
    assert changed != data

    with pytest.raises((ndfeed.ManifestError, ndfeed.UnsupportedError), match=problem) as caught:
        parse(signed(changed), PATH)
    assert str(caught.value).startswith("packed/ndfeed.json: ")
    assert "\n" not in str(caught.value)


@given(hostile.damaged([known().encoded()]))
@example(b"")
@example(b"{}")
@example(b"[]")
@example(b'"digest":"')
def test_whatever_the_bytes_only_our_errors_come(data):
    """With the digest they have, and with the one they need."""
    for text in (data, signed(data)):
        with contextlib.suppress(ndfeed.ManifestError, ndfeed.UnsupportedError):
            parse(text, PATH)


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), unique=True))
@example(["a", "A", "Ab", "aB", "ab", "%41"])
@example(["a", "a.values", "a.Values", "A.VALUES", "a.values.values"])
@example(["con", "CON", "con.x", "nul", "COM1", ".", "..", "a/b", "a\\b", "ß", "ẞ", "é", "é"])
def test_names_of_files_are_distinct_and_plain(names):
    """On every file system, also those that ignore case; ``unquote`` gives the name back."""
    own = [Field(name, "<f4", (None,) if i % 2 else ()) for i, name in enumerate(names)]
    found = file_names(own)

    assert len({file.lower() for file in found.values()}) == len(found)
    for (name, role), file in found.items():
        assert ON_DISK.fullmatch(file)
        assert not re.match(r"(con|prn|aux|nul|com\d|lpt\d)\.", file, re.IGNORECASE)
        assert unquote(file.removesuffix(".npy").removesuffix(f".{role}")) == name


def test_a_long_name_still_fits_a_file_system():
    """255 bytes is what most allow; names that begin alike stay distinct."""
    own = [Field("ü" * 1000 + end, "<f4", (None, None)) for end in "ab"]
    found = set(file_names(own).values())

    assert len(found) == 6
    assert max(map(len, found)) <= 255


def test_common_names_stay_as_they_are():
    """People will look into the folder."""
    own = [Field("image", "<f4", ()), Field("a/b", "<f4", ()), Field("layer.0.w", "|u1", (None,))]

    assert list(file_names(own).values()) == [
        "image.npy",
        "a%2Fb.npy",
        "layer.0.w.values.npy",
        "layer.0.w.offsets.npy",
    ]


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_blocks_are_few_and_about_a_mebibyte(row_bytes, rows):
    """A checksum for every row would make the manifest as large as the data."""
    per_block = rows_per_block(row_bytes, rows)

    assert per_block >= 1
    assert -(-rows // per_block) <= MOST_BLOCKS
    if rows <= 2**16 and 0 < row_bytes < 2**20:
        assert 2**19 < per_block * row_bytes <= 2**20


def test_a_folder_made_by_hand_is_read_with_numpy(tmp_path):
    """The format is open: np.load maps every column, and the manifest says which is which."""
    image = np.arange(60, dtype="<f4").reshape(10, 3, 2)
    half = np.arange(10).astype(ml_dtypes.bfloat16)
    text = [np.frombuffer(b"x" * n, np.uint8) for n in range(10)]
    packed_making.write(tmp_path, {"image": image, "half": half, "text": text}, parts=2)
    found = parse((tmp_path / "ndfeed.json").read_bytes(), PATH)
    first = tmp_path / "00000"
    values, offsets = (
        np.load(first / f"text.{role}.npy", mmap_mode="r") for role in ("values", "offsets")
    )

    assert found.rows == 10
    assert [part.rows for part in found.parts] == [5, 5]
    np.testing.assert_array_equal(np.load(first / "image.npy", mmap_mode="r"), image[:5])
    np.testing.assert_array_equal(
        np.load(first / "half.npy", mmap_mode="r").view(ml_dtypes.bfloat16), half[:5]
    )
    np.testing.assert_array_equal(values[offsets[3] : offsets[4]], text[3])
    assert all(Path(first / c.file).stat().st_size == c.nbytes for c in found.parts[0].columns)


def test_values_are_checked_when_made():
    """What a writer makes can be read; what cannot be read cannot be made."""
    manifest = known()
    part = manifest.parts[0]
    with pytest.raises(ValueError, match=r"expected .* rows"):
        dataclasses.replace(manifest, parts=(dataclasses.replace(part, rows=3),))
    with pytest.raises(ValueError, match="two parts in one folder"):
        dataclasses.replace(manifest, parts=(part, part))
    with pytest.raises(ValueError, match="plain name"):
        dataclasses.replace(part, folder="../x")
