"""Megatron's pairs and sparse matrices as datasets: one sample for each sequence, and each row."""

import numpy as np
import pytest
from dataset.test_ragged_files import same, same_in_any_order
from ragged_making import megatron_index, pieces, save_csr, save_megatron, sparse_rows, texts

import ndfeed

VALUES, OFFSETS = texts()
EXPECTED = pieces(VALUES, OFFSETS)
ROWS = sparse_rows()


@pytest.fixture
def corpus(tmp_path):
    """A pair of files."""
    save_megatron(tmp_path / "corpus.idx", EXPECTED)
    return tmp_path


@pytest.mark.parametrize("name", ["corpus.idx", "corpus.bin", ""])
@pytest.mark.parametrize("mapped", [True, False])
def test_a_pair_is_opened_by_either_name_or_its_folder(corpus, name, mapped):
    """People know the .bin; the .idx is what describes it."""
    ds = ndfeed.open(corpus / name, mapped=mapped)

    same_in_any_order(ds, EXPECTED)
    assert "sequences of Megatron-LM" in ds.why
    assert ds.lengths("data").tolist() == [len(one) for one in EXPECTED]
    assert [path.rpartition("/")[2] for path in ds.files] == ["corpus.bin", "corpus.idx"]


def test_several_pairs(corpus):
    """In a folder, by a pattern, as a list; the second open uses the cached index."""
    other = pieces(*texts(20, seed=5))
    save_megatron(corpus / "other.idx", other)
    save_megatron(corpus / "zero.idx", [])
    for source in (corpus, corpus / "*.idx", [corpus / f"{n}.bin" for n in ("corpus", "other")]):
        for _ in range(2):
            same_in_any_order(ndfeed.open(source), EXPECTED + other)


def test_pairs_work_with_all_else(corpus, tmp_path):
    """Labels, casts, loaders, processes, memory, packing, resuming."""
    np.save(tmp_path / "labels.npy", np.arange(len(EXPECTED)))
    text = ndfeed.open(corpus / "corpus.idx", dtype={"data": "int64"})
    same_in_any_order(text, [one.astype(np.int64) for one in EXPECTED])
    ds = ndfeed.open({"text": corpus / "corpus.bin", "label": tmp_path / "labels.npy"})
    same_in_any_order(ds, EXPECTED, "text")
    same_in_any_order(ds.in_memory(), EXPECTED, "text")
    same_in_any_order(ndfeed.pack(ds, tmp_path / "packed"), EXPECTED, "text")
    same_in_any_order(
        text
        + ndfeed.open(tmp_path / "packed", dtype={"text": "int64"})
        .select("text")
        .rename({"text": "data"}),
        [one.astype(np.int64) for one in EXPECTED * 2],
    )
    loader = ndfeed.loader(ds, 8, shuffle=True, processes=2)
    for batch in loader:
        same(batch["text"], [EXPECTED[i] for i in batch["label"]])


def test_casts_in_a_dict_of_sources(corpus):
    """There the field has the name of its source."""
    ds = ndfeed.open({"text": corpus / "corpus.idx"}, dtype={"text": "int64"})
    assert ds[3]["text"].dtype == np.int64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pointers": OFFSETS[:-1] * 2 + 1}, "expected 1791 bytes"),
        ({"pointers": OFFSETS[:-1] * 2 - 2}, r"corpus\.bin"),
        ({"code": 4}, r"corpus\.bin"),
        ({"code": 1}, r"corpus\.bin"),
    ],
)
def test_pairs_that_do_not_fit_are_refused_when_opened(corpus, change, message):
    """Another dtype, another file, or pointers elsewhere."""
    (corpus / "corpus.idx").write_bytes(megatron_index(np.diff(OFFSETS), **change))
    with pytest.raises(ndfeed.FormatError, match=message):
        ndfeed.open(corpus / "corpus.idx")


@pytest.mark.parametrize("wrong", [-2, 3, 10**9, 2**62, 2**63 - 2, -(2**63)])
def test_pointers_out_of_range_are_refused_when_read(corpus, wrong):
    """Or inside of an element; other sequences can be read."""
    pointers = OFFSETS[:-1] * 2
    pointers[20] = wrong
    (corpus / "corpus.idx").write_bytes(megatron_index(np.diff(OFFSETS), pointers=pointers))
    ds = ndfeed.open(corpus / "corpus.idx")
    same(ds.read([19, 21])["data"], [EXPECTED[19], EXPECTED[21]])
    with pytest.raises(ndfeed.FormatError, match="sample 20 are damaged") as caught:
        ds[20]
    assert caught.value.path.endswith("corpus.idx")


def test_negative_sizes_are_refused(corpus):
    """They would end before they begin."""
    lengths = np.diff(OFFSETS)
    lengths[20] = -1
    (corpus / "corpus.idx").write_bytes(megatron_index(lengths, pointers=OFFSETS[:-1] * 2))
    with pytest.raises(ndfeed.FormatError, match="sample 20 are damaged"):
        ndfeed.open(corpus)[20]


def test_what_does_not_go_with_pairs(corpus):
    """Each with the word for it."""
    save_megatron(corpus / "other.idx", [[1, 2]], 4)
    with pytest.raises(ndfeed.SchemaError, match=r"holds int32, .*corpus\.idx holds uint16"):
        ndfeed.open(corpus)
    with pytest.raises(ndfeed.SchemaError, match="remove sample="):
        ndfeed.open(corpus / "corpus.idx", sample="file")
    with pytest.raises(ndfeed.SchemaError, match="already has a dtype"):
        ndfeed.open(corpus / "corpus.idx", dtype="uint16")
    with pytest.raises(ndfeed.UnsupportedError, match=r"write \.idx instead of \.bin"):
        ndfeed.open(corpus / "corp*.bin")
    with pytest.raises(ndfeed.FieldError):
        ndfeed.open(corpus / "corpus.idx", fields="text")
    (corpus / "other.bin").unlink()
    with pytest.raises(ndfeed.MissingError, match=r"other\.bin"):
        ndfeed.open(corpus / "other.idx")
    np.save(corpus / "x.npy", np.zeros(3))
    with pytest.raises(ndfeed.SchemaError, match="another kind"):
        ndfeed.open(corpus)
    # The dtype of a raw file is the caller's word.
    assert len(ndfeed.open(corpus / "corpus.bin", dtype="uint16")) == len(VALUES)


def same_rows(ds, rows):
    """Are the samples these rows of a sparse matrix?"""
    same_in_any_order(ds, [indices for indices, _ in rows], "indices")
    same_in_any_order(ds, [data for _, data in rows], "data")


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("array", [True, False])
def test_a_row_of_a_sparse_matrix_is_a_sample(tmp_path, compressed, array):
    """It opened as one sample, or as one for every value that is not zero."""
    save_csr(tmp_path / "m.npz", ROWS, 100, compressed=compressed, array=array)
    ds = ndfeed.open(tmp_path / "m.npz")

    assert list(ds.fields) == ["indices", "data"]
    same_rows(ds, ROWS)
    assert "100 columns" in ds.why
    assert [path.rpartition("/")[2] for path in ds.files] == ["m.npz"]
    assert ds.lengths("data").tolist() == [len(data) for _, data in ROWS]
    widths = ndfeed.open(tmp_path / "m.npz", fields=("data", "columns"))
    assert list(widths.fields) == ["data", "columns"]
    assert widths[[0, 5]]["columns"].tolist() == [100, 100]


def test_what_scipy_saves_is_read(tmp_path):
    """Matrices and arrays of scipy itself, compressed and not."""
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.random(40, 300, 0.05, "csr", np.float32, random_state=0)
    rows = [(matrix[i].indices, matrix[i].data) for i in range(40)]
    for compressed in (True, False):
        for one in (matrix, sparse.csr_array(matrix)):
            sparse.save_npz(tmp_path / "m.npz", one, compressed=compressed)
            same_rows(ndfeed.open(tmp_path / "m.npz"), rows)


@pytest.mark.parametrize("compressed", [True, False])
def test_matrices_in_a_folder_are_rows_of_one_dataset(tmp_path, compressed):
    """As many columns in each; the cached index serves the second time."""
    others = sparse_rows(7, seed=3)
    save_csr(tmp_path / "a.npz", ROWS, 100, compressed=compressed)
    save_csr(tmp_path / "b.npz", others, 100, compressed=compressed)
    for _ in range(2):
        same_rows(ndfeed.open(tmp_path), ROWS + others)
    save_csr(tmp_path / "c.npz", others, 101, compressed=compressed)
    with pytest.raises(ndfeed.SchemaError, match="a matrix of 101 columns"):
        ndfeed.open(tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
def test_matrices_work_with_all_else(tmp_path, compressed):
    """Labels, casts, loaders, processes, memory, packing."""
    save_csr(tmp_path / "m.npz", ROWS, 100, compressed=compressed)
    np.save(tmp_path / "labels.npy", np.arange(len(ROWS)))
    ds = ndfeed.open({"x": tmp_path / "m.npz", "label": tmp_path / "labels.npy"})
    assert list(ds.fields) == ["x/indices", "x/data", "label"]
    for batch in ndfeed.loader(ds, 8, shuffle=True, processes=2):
        same(batch["x/data"], [ROWS[i][1] for i in batch["label"]])
    plain = ndfeed.open(tmp_path / "m.npz")
    same_rows(plain.in_memory(), ROWS)
    same_rows(ndfeed.pack(plain, tmp_path / "packed"), ROWS)
    cast = ndfeed.open(tmp_path / "m.npz", dtype={"indices": "int64"})
    same(cast[:]["indices"], [indices.astype(np.int64) for indices, _ in ROWS])


def test_values_behind_the_last_row_are_left_out(tmp_path):
    """scipy allows them."""
    indices = np.concatenate([*(i for i, _ in ROWS), [1, 2]]).astype(np.int32)
    data = np.concatenate([*(d for _, d in ROWS), [1, 2]]).astype(np.float32)
    save_csr(tmp_path / "m.npz", ROWS, 100, indices=indices, data=data)
    same_rows(ndfeed.open(tmp_path / "m.npz"), ROWS)


INDPTR = np.concatenate([[0], np.cumsum([len(i) for i, _ in ROWS])])


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indptr": INDPTR[:-1]}, "expected 31 numbers in indptr for 30 rows, found 30"),
        ({"indptr": INDPTR + 1}, "expected offsets from 0"),
        ({"indptr": INDPTR * 2}, "expected offsets from 0"),
        ({"indptr": INDPTR.astype(float)}, "integers"),
        ({"indptr": INDPTR.reshape(-1, 1)}, "one-dimensional"),
        ({"indices": np.zeros(3, np.int32)}, "as many indices as data, found 3"),
        ({"shape": np.array([30])}, "two axes"),
        ({"shape": np.array([30.0, 5])}, "two axes"),
        ({"shape": np.array([-1, 5])}, r"shape \(-1, 5\)"),
        ({"shape": np.array([30, -5])}, r"shape \(30, -5\)"),
        ({"shape": np.array([2**63, 2**64 - 1], np.uint64)}, "shape"),
        ({"format": b"csc"}, r"format csc.*matrix\.tocsr\(\)"),
        ({"format": np.array("bsr")}, r"format bsr.*matrix\.tocsr\(\)"),
        ({"format": b"xyz"}, "sparse matrix"),
        ({"format": np.frombuffer(b"\xff" * 12, "<U3").reshape(())}, "sparse matrix"),
        ({"format": b"coo", "indptr": None, "indices": None, "row": INDPTR, "col": INDPTR}, "coo"),
        ({"format": b"dia", "indptr": None, "indices": None, "offsets": INDPTR}, "dia"),
        ({"format": b"csr", "indptr": None, "indices": None, "offsets": INDPTR}, "without"),
    ],
)
def test_matrices_that_are_wrong_or_stored_otherwise_are_refused(
    tmp_path, change, message, compressed
):
    """By one line that names the file."""
    save_csr(tmp_path / "m.npz", ROWS, 100, compressed=compressed, **change)
    with pytest.raises((ndfeed.FormatError, ndfeed.SchemaError), match=message) as caught:
        ndfeed.open(tmp_path / "m.npz")
    assert str(tmp_path / "m.npz") in str(caught.value)


@pytest.mark.parametrize("compressed", [True, False])
def test_indptr_that_goes_back_is_refused(tmp_path, compressed):
    """When opened where it was decoded, else when the row is read."""
    indptr = INDPTR.copy()
    indptr[10] = indptr[-1]
    indptr[11] = 0
    save_csr(tmp_path / "m.npz", ROWS, 100, compressed=compressed, indptr=indptr)
    with pytest.raises(ndfeed.FormatError, match=r"m\.npz: the offsets"):
        ndfeed.open(tmp_path / "m.npz")[10]


def test_what_does_not_go_with_matrices(tmp_path):
    """Each with the word for it."""
    save_csr(tmp_path / "m.npz", ROWS, 100)
    with pytest.raises(ndfeed.SchemaError, match="remove sample="):
        ndfeed.open(tmp_path / "m.npz", sample="file")
    with pytest.raises(ndfeed.FieldError):
        ndfeed.open(tmp_path / "m.npz", fields="indptrs")
    np.savez(tmp_path / "n.npz", x=np.zeros(3))
    with pytest.raises(ndfeed.SchemaError, match="another kind"):
        ndfeed.open(tmp_path)
