"""Rows out of many mapped files: any size, any alignment, any number of files."""

from itertools import pairwise

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import ndfeed
from ndfeed.dataset import gather as ways
from ndfeed.dataset.map_places import find_pieces
from ndfeed.dataset.reader import reader_of


@settings(max_examples=examples(40), deadline=None)
@given(
    width=st.sampled_from([1, 3, 7, 128, 1536, 3072, 4095, 4096, 4097, 12_288, 17_000]),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    stored=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_gather_equals_concatenation(tmp_path_factory, width, lengths, stored, seed):
    """Members of an archive begin at any byte, rows have any size, files any number of rows."""
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 256, (n, width)).astype(np.uint8) for n in lengths]
    for i, part in enumerate(parts):
        if stored:
            np.savez(folder / f"{i}.npz", data=part)
        else:
            np.save(folder / f"{i}.npy", part)
    ds = ndfeed.open(folder, sample="row", cache=False)
    whole = np.concatenate(parts)
    asked = rng.integers(0, len(whole), 30)
    out = np.empty((30, width), np.uint8)
    ds.read_into(asked, {"data": out})

    np.testing.assert_array_equal(ds.read(asked)["data"], whole[asked])
    np.testing.assert_array_equal(out, whole[asked])
    for batch in ndfeed.loader(ds.take(asked), len(asked)):
        np.testing.assert_array_equal(batch["data"], whole[asked])


@pytest.mark.parametrize("rows", [[3, 4, 5], [5, 4, 3], [3, 5, 5], [3], [0, 1]])
def test_a_slice_and_what_only_looks_like_one(tmp_path, rows):
    """Consecutive rows are one copy; the first and last alone do not make them so."""
    data = np.arange(40).reshape(10, 4)
    np.save(tmp_path / "x.npy", data)
    out = np.empty((len(rows), 4), data.dtype)
    ndfeed.open(tmp_path / "x.npy").read_into(rows, {"data": out})

    np.testing.assert_array_equal(out, data[rows])


def test_large_and_small_rows_of_one_group(tmp_path):
    """An image and its label in the same files go different ways into the same batch."""
    for i in range(3):
        image = np.full((4, ways.LARGE_ROW + 1), i, np.uint8)
        np.savez(tmp_path / f"{i}.npz", image=image, label=np.arange(4) + 10 * i)
    batch = ndfeed.open(tmp_path, sample="row").read([11, 2, 5])

    assert batch["image"][:, 0].tolist() == [2, 0, 1]
    assert batch["label"].tolist() == [23, 2, 11]


@pytest.mark.parametrize("mapped", [True, False])
def test_both_byte_orders_in_one_batch(tmp_path, mapped):
    """Only the rows of the foreign files are turned round."""
    np.save(tmp_path / "a.npy", np.arange(4, dtype="<u4"))
    np.save(tmp_path / "b.npy", np.arange(4, 8, dtype=">u4"))
    ds = ndfeed.open(tmp_path, sample="row", mapped=mapped)

    assert ds.read([6, 1, 7, 0, 6])["data"].tolist() == [6, 1, 7, 0, 6]


def test_fortran_order_warns_once_with_its_cost(tmp_path):
    """Supported, and never a silent surprise of a hundredfold slower epoch."""
    data = np.asfortranarray(np.arange(6000.0).reshape(1000, 6))
    np.save(tmp_path / "x.npy", data)
    with pytest.warns(UserWarning, match=r"x\.npy: Fortran order: a row of 48 B is scattered"):
        ds = ndfeed.open(tmp_path / "x.npy")

    np.testing.assert_array_equal(ds.read([7, 999])["data"], data[[7, 999]])


@settings(max_examples=examples(40), deadline=None)
@given(
    width=st.sampled_from([8, 24, 512, 768, 1536, 3072, 8192]),
    before=st.lists(st.sampled_from([0, 1, 8, 512, 4096, 5000]), min_size=2, max_size=5),
    seed=st.integers(0, 2**32),
)
def test_rows_that_begin_at_other_places_in_every_file(tmp_path_factory, width, before, seed):
    """What divides the rows of some files need not divide the distances between others."""
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 256, (9, width)).astype(np.uint8) for _ in before]
    for i, (part, skipped) in enumerate(zip(parts, before, strict=True)):
        # The same members everywhere, of which the first moves the others.
        np.savez(folder / f"{i}.npz", a=np.zeros((9, skipped), np.uint8), data=part, n=part[:, 0])
    ds = ndfeed.open(folder, sample="row", cache=False).select("data", "n")
    whole = np.concatenate(parts)

    for rows in rng.integers(0, len(whole), (3, 40)):
        for batch in ndfeed.loader(ds.take(rows), 40, threads=2):
            np.testing.assert_array_equal(batch["data"], whole[rows])
            np.testing.assert_array_equal(batch["n"], whole[rows, 0])


@pytest.mark.parametrize(
    ("width", "before", "size"),
    [
        (3072, (0, 0, 0), 3072),
        (3072, (0, 1024, 4096), 3072),
        (3072, (0, 512, 0), 0),  # pages cannot make up for half a kilobyte; six pieces are too many
        (1536, (0, 512, 256), 0),
        (1024, (0, 512, 0), 512),
        (3001, (0, 4, 8), 3001),  # an odd size leaves any remainder
        (3000, (0, 8, 16), 3000),
        (3000, (0, 4, 8), 0),
        (16_384, (0, 1024, 0), 0),
        (16_383, (0, 1024, 0), 16_383),
        (17_000, (0, 0, 0), 0),  # copied row by row
        (8, (0, 8, 16), 8),
    ],
)
def test_rows_of_many_files_form_one_array_where_pages_allow_it(tmp_path, width, before, size):
    """They are gathered without the GIL, so that all cores do it, into memory of the pool."""
    for i, skipped in enumerate(before):
        data = np.full((4, width), i, np.uint8)
        np.savez(tmp_path / f"{i}.npz", a=np.zeros((4, skipped // 4), np.uint8), data=data)
    (group,) = ndfeed.open(tmp_path, sample="row").select("data").groups
    found = find_pieces(group.columns[0], reader_of(group).maps)

    assert (found.size if found else 0) == size


@pytest.mark.parametrize("rows", [(101, 104), (102, 104), (101, 105)])
def test_pieces_of_rows_may_be_smaller_than_their_elements(tmp_path, rows):
    """Points and their colours: where colours have three bytes, numbers begin at odd places."""
    parts = [np.random.default_rng(n).random((n, 3), np.float32) for n in rows]
    for i, part in enumerate(parts):
        np.savez(tmp_path / f"{i}.npz", rgb=np.full(part.shape, i, np.uint8), xyz=part)
    ds = ndfeed.open(tmp_path, sample="row")
    whole = np.concatenate(parts)

    for shown in (ds, ds.in_memory()):
        with ndfeed.loader(shown, 32, shuffle=True) as loader:
            order = ndfeed.Exact().begin(len(ds), 0, 0).rows(0, len(ds))
            found = np.concatenate([batch["xyz"] for batch in loader])
        np.testing.assert_array_equal(found, whole[order])


@pytest.mark.parametrize("packed", [False, True])
def test_pieces_of_rows_need_not_consist_of_elements(tmp_path, packed):
    """Files are mapped for the largest rows, of 36 bytes: others of 24 come in pieces of 12."""
    large, small = np.arange(90, dtype="f4").reshape(10, 9), np.arange(30.0).reshape(10, 3)
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", large=large + i, small=small + i)
    ds = ndfeed.open(tmp_path, sample="row")
    if packed:
        ds = ndfeed.pack(ds, tmp_path / "packed")
        ds = ds + ds
    rows = [13, 2, 19, 0]
    expected = np.concatenate([small, small + 1])[rows]

    np.testing.assert_array_equal(ds.read(rows)["small"], expected)
    for batch in ndfeed.loader(ds.take(rows), 4):
        np.testing.assert_array_equal(batch["small"], expected)


def test_batches_do_not_lie_among_mapped_files(tmp_path):
    """NumPy would copy rows through a buffer, three times as slowly, if they might overlap."""
    for i in range(20):
        np.save(tmp_path / f"{i:02}.npy", np.full((40, 1000), i, np.float32))
    ds = ndfeed.open(tmp_path, sample="row")
    with ndfeed.loader(ds, 512, shuffle=True, threads=1) as loader:
        for batch in loader:  # files are mapped as batches need them
            maps = reader_of(ds.groups[0]).maps
            low, records = maps.records(4000, 4000)
            assert not np.may_share_memory(records, batch["data"])
            assert low <= maps.address[maps.address > 0].min()


class _Interrupted(np.ndarray):
    """Numbers that let another thread run, once, when something is subtracted from them."""

    def __isub__(self, other):
        self.meanwhile()
        return np.subtract(self, other)


def test_a_file_that_another_thread_maps_moves_no_other(tmp_path):
    """Where the first batches of several threads meet, records of all files were taken from
    addresses that count from the lowest file of a moment ago: samples were other bytes.
    """
    for i in range(8):
        np.save(tmp_path / f"{i}.npy", np.full((16, 2), i, "<i4"))
    (group,) = ndfeed.open(tmp_path, sample="row").groups
    maps, column = reader_of(group).maps, group.columns[0]
    for number, other in pairwise(range(8)):
        start = np.full(5, column.first[number]).view(_Interrupted)
        start.meanwhile = lambda other=other: maps.read(other, lambda: None)
        file = np.full(5, number)
        found = maps.read(number, lambda f=file, s=start: ways.by_address(maps, f, s, 8))

        assert found.view("<i4").tolist() == [number] * 10
