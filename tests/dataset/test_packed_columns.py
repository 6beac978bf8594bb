"""Packed datasets: opened by their manifest, read like any columns, refused when they are wrong."""

import dataclasses
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import packed_making
import pytest
from children import examples
from hard_arrays import HARD_ARRAYS
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ndfeed
from ndfeed.dataset.column import Place
from ndfeed.dataset.reader import reader_of
from ndfeed.formats.manifest import parse

ROWS = 40


def content(seed=0, rows=ROWS):
    """A field of every kind."""
    rng = np.random.default_rng(seed)
    return {
        "image": rng.random((rows, 3, 4), dtype=np.float32),
        "label": np.arange(rows),
        "a/b": rng.integers(0, 9, (rows, 2)).astype(ml_dtypes.bfloat16),
        "name": np.array([f"ünï{i}" for i in range(rows)], "<U5"),
        "text": [rng.integers(0, 255, n).astype(np.uint8) for n in rng.integers(0, 30, rows)],
        "boxes": [rng.random((n, 4)).astype("<f2") for n in rng.integers(0, 99, rows)],
        "crop": [
            rng.random(s).astype(ml_dtypes.float8_e4m3fn) for s in rng.integers(0, 5, (rows, 2))
        ],
    }


def same(found, expected, rows):
    """Is a batch that of ``rows``, in values, shapes and types?"""
    assert list(found) == list(expected)
    for name, values in expected.items():
        if isinstance(values, np.ndarray):
            pairs = [(found[name], values[np.asarray(rows, int)])]
        else:
            pairs = zip(found[name], [values[row] for row in rows], strict=True)
        for one, wanted in pairs:
            assert one.dtype == wanted.dtype.newbyteorder("=")
            assert one.shape == wanted.shape
            np.testing.assert_array_equal(one, wanted)


def nbytes(data, rows):
    """Bytes of some samples."""
    return sum(
        v[rows].nbytes if isinstance(v, np.ndarray) else sum(v[r].nbytes for r in rows)
        for v in data.values()
    )


@pytest.fixture
def folder(tmp_path):
    packed_making.write(tmp_path / "p", content(), parts=3, rows_per_block=4)
    return tmp_path / "p"


each_way = pytest.mark.parametrize("mapped", [True, False])


@each_way
@pytest.mark.parametrize("parts", [1, 3, 40, 60])
def test_every_kind_of_field_is_read(tmp_path, parts, mapped):
    """From one part or many, some of them empty, mapped or by position."""
    packed_making.write(tmp_path, content(), parts=parts)
    ds = ndfeed.open(tmp_path, mapped=mapped)
    rows = np.random.default_rng(1).integers(0, ROWS, 100)

    assert len(ds) == ROWS
    assert {n: f.shape for n, f in ds.fields.items()} == {
        "image": (3, 4),
        "label": (),
        "a/b": (2,),
        "name": (),
        "text": (None,),
        "boxes": (None, 4),
        "crop": (None, None),
    }
    same(ds.read(rows), content(), rows)
    same(ds[5:20], content(), range(5, 20))
    assert ds.nbytes == nbytes(content(), np.arange(ROWS))
    assert ds.take(rows).nbytes == nbytes(content(), rows)


@settings(max_examples=examples(40))
@given(st.data())
def test_whatever_is_packed_is_read(tmp_path_factory, data):
    """Any dtype, any shapes, any number of parts, any rows: as NumPy has them."""
    count = data.draw(st.integers(1, 8))
    dtypes = hnp.scalar_dtypes() | hnp.unicode_string_dtypes(min_len=1, max_len=4)
    fixed = data.draw(hnp.arrays(dtypes, (count, *data.draw(hnp.array_shapes(min_dims=0)))))
    rank = data.draw(st.integers(1, 3))
    kind = data.draw(dtypes)
    shapes = [data.draw(st.tuples(*[st.integers(0, 3)] * rank)) for _ in range(count)]
    ragged = [data.draw(hnp.arrays(kind, shape)) for shape in shapes]
    folder = tmp_path_factory.mktemp("drawn")
    packed_making.write(
        folder,
        {"fixed": fixed, "ragged": ragged},
        parts=data.draw(st.integers(1, 4)),
        shapes={"ragged": (None,) * rank},
    )
    ds = ndfeed.open(folder, mapped=data.draw(st.booleans()))
    rows = data.draw(st.lists(st.integers(0, count - 1), max_size=10))

    same(ds.read(rows), {"fixed": fixed, "ragged": ragged}, rows)


@pytest.mark.parametrize(
    "name", [n for n, a in HARD_ARRAYS.items() if a.ndim and not a.dtype.names]
)
def test_hard_arrays_survive(tmp_path, name):
    """What is big-endian or in Fortran order comes out native and in C order."""
    array = HARD_ARRAYS[name]
    packed_making.write(tmp_path, {"x": array})
    ds = ndfeed.open(tmp_path)

    found = ds.read(np.arange(len(array)))["x"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype.newbyteorder("=")


HARD = {
    "no rows": {"x": np.zeros((0, 3), "<f4"), "y": []},
    "one row": {"x": np.zeros((1, 3), "<f4"), "y": [np.arange(3)]},
    "all empty": {"x": np.zeros((5, 0), "<f4"), "y": [np.arange(0)] * 5},
    "odd names": {"": 0, "x\n": np.arange(3), "A": np.arange(3) + 1, "a": np.arange(3) + 2,
                  "é/ß": [np.arange(n) for n in range(3)], "con": np.arange(3) + 3,
                  ".x": np.arange(3) + 4, "../x": np.arange(3) + 5, "n" * 400: np.arange(3) + 6},
    "values of no bytes": {"y": [np.zeros((n, 0), "<f4") for n in range(4)]},
}  # fmt: skip
HARD["odd names"].pop("")


@each_way
@pytest.mark.parametrize("name", HARD)
def test_hard_cases(tmp_path, name, mapped):
    """Nothing at all, almost nothing, and names that no file could have."""
    data = HARD[name]
    shape = {"y": (None, 0) if name == "values of no bytes" else (None,)}
    packed_making.write(tmp_path, data, shapes=shape)
    ds = ndfeed.open(tmp_path, mapped=mapped)
    count = len(next(iter(data.values())))

    assert len(ds) == count
    assert list(ds.fields) == list(data)
    same(ds.read(np.arange(count)), data, range(count))
    assert ndfeed.verify(tmp_path).ok
    for form in ("list", "pad", "packed"):
        assert sum(1 for _ in ndfeed.loader(ds, 2, ragged=form)) == -(-count // 2)


def test_one_part_is_one_take_and_several_go_by_address(tmp_path):
    """A packed column must not be slower than a .npy of the same rows: it is the same way."""
    data = {"x": np.arange(60.0).reshape(20, 3)}
    for parts in (1, 4):
        packed_making.write(tmp_path / str(parts), data, parts=parts)
        ds = ndfeed.open(tmp_path / str(parts))
        (group,) = ds.groups
        reader = reader_of(group)

        assert group.columns[0].plain
        assert reader._short
        assert (reader._alone is not None) == (parts == 1)
        assert reader.maps is not None


def test_opening_reads_headers_only(tmp_path):
    """The data of a terabyte is not touched, not even its offsets."""
    packed_making.write(tmp_path, content())
    for column in (tmp_path / "00000").iterdir():
        header = 128
        damaged = column.read_bytes()
        column.write_bytes(damaged[:header] + b"\xff" * (len(damaged) - header))

    assert len(ndfeed.open(tmp_path)) == ROWS


def test_the_fingerprint_is_the_digest(folder, tmp_path):
    """It covers the data itself; a copy elsewhere has the same, one other bit another."""
    digest = parse((folder / "ndfeed.json").read_bytes(), b"").digest
    shutil.copytree(folder, tmp_path / "copy")
    changed = content()
    changed["label"][3] += 1
    packed_making.write(tmp_path / "other", changed, parts=3, rows_per_block=4)
    ds = ndfeed.open(folder)

    assert ds.fingerprint == digest[:16]
    assert ndfeed.open(tmp_path / "copy").fingerprint == ds.fingerprint
    assert ndfeed.open(tmp_path / "other").fingerprint != ds.fingerprint
    assert ds.select("label").fingerprint == ds.fingerprint
    assert ds.in_memory().fingerprint == ds.fingerprint
    both = [ndfeed.open({"x": tmp_path / n}).fingerprint for n in ("p", "copy", "other")]
    assert both[0] == both[1] != both[2]
    assert (ds + ds).fingerprint != ds.fingerprint


def test_sources_of_every_form(folder, tmp_path):
    """Alone, by its manifest, several in a list, beside other sources in a dict."""
    np.save(tmp_path / "extra.npy", np.arange(ROWS) * 10)
    by_name = ndfeed.open(folder / "ndfeed.json", fields=("text", "label"))
    twice = ndfeed.open([folder, os.fsencode(folder)])
    beside = ndfeed.open({"p": folder, "extra": tmp_path / "extra.npy"})
    one = ndfeed.open({"y": ndfeed.open(folder).select("label")})

    assert list(by_name.fields) == ["text", "label"]
    assert len(twice) == 2 * ROWS
    same(twice.read([3, ROWS + 3]), content(), [3, 3])
    assert len(set(twice.files)) * 2 == len(twice.files)
    assert beside[7]["extra"] == 70
    np.testing.assert_array_equal(beside[7]["p/text"], content()["text"][7])
    assert one[7]["y"] == 7


def test_contradictions_are_refused(folder, tmp_path):
    """The dataset says itself what it holds."""
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(ndfeed.SchemaError, match="are rows; remove sample="):
        ndfeed.open(folder, sample="file")
    with pytest.raises(ndfeed.SchemaError, match="remove dtype="):
        ndfeed.open(folder, dtype="uint8")
    with pytest.raises(
        ndfeed.SchemaError, match="is not a packed dataset; open each, and add them"
    ):
        ndfeed.open([folder, tmp_path / "x.npy"])
    with pytest.raises(ndfeed.FieldError, match="no field 'x'; the fields are 'image'"):
        ndfeed.open(folder, fields="x")
    assert len(ndfeed.open(folder, sample="row")) == ROWS


DAMAGES = {
    "a missing column": (lambda d: (d / "00001/label.npy").unlink(),
                         ndfeed.MissingError, "a column of the dataset is missing"),
    "a short column": (lambda d: os.truncate(d / "00001/label.npy", 200),
                       ndfeed.TruncatedError, "expected 232 bytes, found 200"),
    "a long column": (lambda d: (d / "00001/label.npy").write_bytes(bytes(999)),
                      ndfeed.FormatError, "expected 232 bytes, found 999"),
    "another header": (lambda d: swap(d / "00001/label.npy", b"<i8", b"<u8"),
                       ndfeed.ChecksumError, "a header with CRC-32"),
    "another manifest": (lambda d: swap(d / "ndfeed.json", b"label", b"lobel"),
                         ndfeed.ManifestError, "digest"),
    "an empty manifest": (lambda d: (d / "ndfeed.json").write_bytes(b""),
                          ndfeed.ManifestError, "ends with its digest"),
    "a linked column": (lambda d: link(d / "00001/label.npy"),
                        ndfeed.SourceError, "a symbolic link, which is not followed"),
    "a linked part": (lambda d: link(d / "00001"), ndfeed.BadFilesError, "a symbolic link"),
    "a folder for a column": (lambda d: ((d / "00001/label.npy").unlink(),
                                         (d / "00001/label.npy").mkdir()),
                              ndfeed.SourceError, "expected a regular file"),
}  # fmt: skip


def swap(path, old, new):
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_found_when_opening(folder, damage):
    """The manifest, sizes and headers are compared always; every message has the way out."""
    damage_it, kind, problem = damage
    damage_it(folder)

    with pytest.raises(kind, match=problem) as caught:
        ndfeed.open(folder)
    if kind is not ndfeed.BadFilesError:
        assert "\n" not in str(caught.value)
        assert ";" in str(caught.value)


def test_a_header_that_says_otherwise_is_refused(tmp_path):
    """A manifest whose checksums fit a column of another type was not made by us."""
    manifest = packed_making.write(tmp_path, {"x": np.arange(3, dtype="<i8")})
    np.save(tmp_path / "00000/x.npy", np.arange(3, dtype="<u8"))
    column = packed_making.column(
        tmp_path / "00000/x.npy", manifest.fields[0], "rows", np.arange(3, dtype="<u8")
    )
    part = dataclasses.replace(manifest.parts[0], columns=(column,))
    other = dataclasses.replace(manifest, parts=(part,))
    (tmp_path / "ndfeed.json").write_bytes(other.encoded())

    with pytest.raises(ndfeed.FormatError, match=r"expected <i8 \(3,\) in C order .* found <u8"):
        ndfeed.open(tmp_path)


NUMBERS = {
    "negative": [0, -1, 5, 9],
    "falling": [0, 5, 3, 9],
    "too large": [0, 5, 10, 9],
    "enormous": [0, 2**62, 2**63 - 1, 9],
}


@each_way
@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_damaged_offsets_are_an_error_and_nothing_else(tmp_path, numbers, mapped):
    """They come from a file, so they may be anything; no read goes elsewhere."""
    packed_making.write(tmp_path, {"x": [np.arange(n) for n in (2, 3, 4)]})
    ds = ndfeed.open(tmp_path, mapped=mapped)
    ds.read([0])
    path = tmp_path / "00000/x.offsets.npy"
    keep = os.stat(path).st_mtime_ns
    path.write_bytes(path.read_bytes()[:128] + np.array(numbers, "<i8").tobytes())
    os.utime(path, ns=(keep, keep))
    again = ndfeed.open(tmp_path, mapped=mapped)

    with pytest.raises(
        ndfeed.FormatError, match=r"offsets of row . are damaged; list .* ndfeed verify"
    ):
        again.read([0, 1, 2])
    with pytest.raises(ndfeed.FormatError, match=r"the offsets of row . are damaged"):
        list(ndfeed.loader(again, 3, ragged="packed"))
    assert not ndfeed.verify(tmp_path).ok


@each_way
@pytest.mark.parametrize(
    "shape", [[-1, -2], [2**32, 2**32], [1, 3], [2**62, 0]], ids=["signs", "wrap", "other", "huge"]
)
def test_damaged_shapes_are_an_error(tmp_path, shape, mapped):
    """Of a product that wraps around as well."""
    packed_making.write(tmp_path, {"x": [np.zeros((2, 1)), np.zeros((0, 3))]})
    path = tmp_path / "00000/x.shapes.npy"
    data = bytearray(path.read_bytes())
    row = 1 if 0 in shape or shape[0] > 9 else 0
    data[128 + 16 * row : 144 + 16 * row] = np.array(shape, "<i8").tobytes()
    path.write_bytes(data)
    ds = ndfeed.open(tmp_path, mapped=mapped)

    with pytest.raises(ndfeed.FormatError, match=r"the shapes of row . are damaged"):
        ds.read([0, 1])


def test_pickles_small_and_arrives_in_a_fresh_process(folder):
    """Workers map the same table; a process that cannot opens the folder again."""
    ds = ndfeed.open(folder)
    text = pickle.dumps(ds)
    code = (
        "import pickle, sys; ds = pickle.loads(sys.stdin.buffer.read()); "
        "print(len(ds), ds[7]['label'], ds.fingerprint, len(ds[7]['text']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, timeout=250
    )

    assert len(text) < 10_000
    wanted = f"{ROWS} 7 {ds.fingerprint} {len(content()['text'][7])}"
    assert done.stdout.decode().strip() == wanted, done.stderr.decode()


def test_a_reader_goes_on_while_a_part_is_added(folder):
    """A new manifest appears by renaming; who opened the old one has the old rows, all of them."""
    ds = ndfeed.open(folder)
    old = parse((folder / "ndfeed.json").read_bytes(), b"")
    extra = content(seed=5, rows=8)
    packed_making.write(folder.parent / "more", extra, rows_per_block=4)
    shutil.copytree(folder.parent / "more/00000", folder / "00003")
    (part,) = parse((folder.parent / "more/ndfeed.json").read_bytes(), b"").parts
    new = dataclasses.replace(old, parts=(*old.parts, dataclasses.replace(part, folder="00003")))
    (folder / "next").write_bytes(new.encoded())
    os.replace(folder / "next", folder / "ndfeed.json")
    child = pickle.loads(pickle.dumps(ds))

    for one in (ds, child):
        assert len(one) == ROWS
        same(one.read([0, ROWS - 1]), content(), [0, ROWS - 1])
        assert one.fingerprint == old.digest[:16]
    again = ndfeed.open(folder)
    assert len(again) == ROWS + 8
    assert again.fingerprint == new.digest[:16]
    same(again.read([ROWS + 1]), extra, [1])


def test_a_changed_column_is_an_error_when_read(folder):
    """As with any file: never other data than what was opened."""
    ds = ndfeed.open(folder)
    path = folder / "00000/text.values.npy"
    path.write_bytes(path.read_bytes()[::-1])

    with pytest.raises(ndfeed.ChangedError, match=r"text\.values\.npy"):
        ds.select("text").read([0])


@each_way
def test_added_to_other_datasets(folder, tmp_path, mapped):
    """Ragged samples by offsets, of one file each, and of one shape, behind each other."""
    whole = [np.arange(n, dtype="<f2") for n in (4, 0, 2)]
    (tmp_path / "files").mkdir()
    for i, x in enumerate(whole):
        np.savez(tmp_path / f"files/{i}.npz", x=x)
    even = np.arange(6, dtype="<f2").reshape(2, 3)
    packed_making.write(tmp_path / "ragged", {"x": whole[::-1]}, parts=2)
    packed_making.write(tmp_path / "even", {"x": even})
    ragged, fixed = (ndfeed.open(tmp_path / n, mapped=mapped) for n in ("ragged", "even"))
    files = ndfeed.open(tmp_path / "files", sample="file", mapped=mapped)
    every = {"x": [*whole[::-1], *whole, *even]}
    ds = ragged + files + fixed
    rows = [7, 0, 3, 4, 2, 2, 5, 6, 1]

    same(ds.read(rows), every, rows)
    assert ds.nbytes == sum(x.nbytes for x in every["x"])
    same(ds.in_memory().read(rows), every, rows)
    batch = next(iter(ndfeed.loader(ds, 8, ragged="packed")))
    np.testing.assert_array_equal(batch["x"], np.concatenate(every["x"]))


def test_ranks_that_differ_cannot_be_added(tmp_path):
    """Offsets know one number of dimensions."""
    packed_making.write(tmp_path / "a", {"x": [np.zeros(n) for n in range(3)]})
    packed_making.write(tmp_path / "b", {"x": [np.zeros((n, 2)) for n in range(3)]})

    with pytest.raises(ndfeed.SchemaError, match="one number of dimensions"):
        ndfeed.open(tmp_path / "a") + ndfeed.open(tmp_path / "b")


@each_way
def test_elements_in_the_other_byte_order_are_swapped(tmp_path, mapped):
    """As they are on a machine of the other order: here the table is told so."""
    values = [np.arange(n, dtype="<i4") for n in (40, 0, 2)]
    packed_making.write(tmp_path, {"x": values})
    ds = ndfeed.open(tmp_path, mapped=mapped)
    (group,) = ds.groups
    dtypes = tuple(">i4" if d == "<i4" else d for d in ds.groups[0].table.dtypes)
    table = dataclasses.replace(group.table, dtypes=dtypes)
    column = dataclasses.replace(group.columns[0], table=table)
    other = dataclasses.replace(group, columns=(column,))
    (target,) = reader_of(other).fill(other, np.arange(3), {})

    for found, value in zip(target.ragged, values, strict=True):
        np.testing.assert_array_equal(found, value.byteswap())


def test_samples_not_in_memory_are_asked_for(folder):
    """The places of ragged samples are known to whoever asks the disk ahead."""
    ds = ndfeed.open(folder).select("boxes")
    (group,) = ds.groups
    (column,) = group.columns
    rows = np.array([39, 0, 20])
    place = group.locate(rows)
    spans = reader_of(group).spans(group, column, Place(*place))

    assert spans.nbytes.tolist() == [content()["boxes"][r].nbytes for r in rows]
    for file, start, nbytes, row in zip(*spans[:3], rows, strict=True):
        data = Path(os.fsdecode(group.table.path(int(file)))).read_bytes()
        assert data[start : start + nbytes] == content()["boxes"][row].tobytes()


def test_torch_gives_jagged_tensors(folder):
    """Values and offsets as they are read, without a tensor for each sample."""
    pytest.importorskip("torch")
    import ndfeed.torch

    ds = ndfeed.open(folder).select("text", "label")
    (batch,) = ndfeed.torch.loader(ds, ROWS, ragged="nested")

    for found, expected in zip(batch["text"].unbind(), content()["text"], strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)


def test_the_loader_goes_on_from_a_state(folder):
    """The digest is what tells that it is the same data."""
    loader = ndfeed.loader(ndfeed.open(folder), 8, shuffle=True, ragged="pad")
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [batch["label"].tolist() for batch in batches]
    again = ndfeed.loader(ndfeed.open(folder), 8, shuffle=True, ragged="pad")
    again.load_state_dict(state)

    assert [batch["label"].tolist() for batch in again] == rest
