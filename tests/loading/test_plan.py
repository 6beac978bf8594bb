"""Streams of many rows are decoded ahead, in the order of need, once, and within memory."""

import numpy as np
import pytest
from loading.making import assert_same, compressed, epoch_of, eventually

import ndfeed
from ndfeed.files.platform_calls import can


@pytest.mark.parametrize("files", [1, 2, 4, 10])
@pytest.mark.parametrize("threads", [1, 3])
def test_tight_memory_still_inflates_each_stream_once(tmp_path, files, threads):
    """The window, a few batches, and one file more: as much as an order needs is enough."""
    ds, data = compressed(tmp_path, files=20, rows=50, width=2000)  # 100.4 kB a file
    memory = (files + 2) * 101_000 + 10 * 10 * 2008
    options = {"shuffle": ndfeed.Windows(files=files), "threads": threads, "memory": memory}
    with ndfeed.loader(ds, 10, **options) as loader:
        for _ in range(2):
            rows = []
            for batch in loader:
                assert loader.report().decoded <= memory
                np.testing.assert_array_equal(batch["x"], data[batch["n"]])
                rows += batch["n"].tolist()

            assert sorted(rows) == list(range(1000))
            assert loader.report().streams <= 40


def test_the_next_epoch_begins_with_what_is_there(tmp_path):
    """Small data stays decoded from one epoch to the next."""
    ds, _ = compressed(tmp_path, files=5, rows=20)
    with ndfeed.loader(ds, 10, shuffle=True) as loader:
        list(loader)
        assert loader.report().streams == 10
        list(loader)
        assert loader.report().streams == 0


def test_close_gives_decoded_streams_up(tmp_path):
    """Memory is what close() is called for."""
    ds, _ = compressed(tmp_path, files=5, rows=20)
    loader = ndfeed.loader(ds, 10, shuffle=True)
    list(loader)
    assert loader.report().decoded > 0
    loader.close()

    assert loader.report().decoded == 0


def test_streams_are_decoded_before_they_are_needed(tmp_path):
    """While the consumer computes, coming files are decoded as far as memory allows."""
    ds, _ = compressed(tmp_path, files=10, rows=100, width=200)
    with ndfeed.loader(ds, 10, threads=1) as loader:
        batches = iter(loader)
        next(batches)

        assert eventually(lambda: loader.report().streams >= 10)


def test_files_of_very_different_sizes(tmp_path):
    """A window is counted in files: one of them may be larger than all others together."""
    start = 0
    for i, rows in enumerate([1, 500, 2, 1, 300, 1, 7]):
        n = np.arange(start, start + rows)
        np.savez_compressed(tmp_path / f"{i}.npz", n=n, x=np.repeat(n[:, None], 50, 1))
        start += rows
    ds = ndfeed.open(tmp_path, sample="row")
    for memory in (10 * 408, 300_000, None):
        batches = epoch_of(ds, 10, shuffle=True, memory=memory, threads=2)

        assert sorted(np.concatenate([b["n"] for b in batches]).tolist()) == list(range(start))
        assert all((b["x"] == b["n"][:, None]).all() for b in batches)


def test_two_compressed_sources_cut_differently(tmp_path):
    """Images in files of 6, labels in files of 15: each is decoded when it is first needed."""
    for name, rows in (("a", 6), ("b", 15)):
        (tmp_path / name).mkdir()
        for i in range(0, 60, rows):
            np.savez_compressed(tmp_path / name / f"{i:02}.npz", np.arange(i, i + rows))
    ds = ndfeed.open({"a": tmp_path / "a", "b": tmp_path / "b"}, sample="row")
    with ndfeed.loader(ds, 7, shuffle=True, threads=2) as loader:
        batches = list(loader)
        assert loader.report().streams == 10 + 4

    a, b = (np.concatenate([batch[f"{name}/arr_0"] for batch in batches]) for name in "ab")
    assert a.tolist() == b.tolist()
    assert sorted(a.tolist()) == list(range(60))


@pytest.mark.parametrize("shuffle", [True, False, ndfeed.Exact()], ids=str)
def test_two_compressed_sources_alike_are_not_confused(tmp_path, shuffle):
    """The same names, sizes and places in both: only the data differs, and it must stay apart."""
    for name, more in (("a", 0), ("b", 1000)):
        (tmp_path / name).mkdir()
        for i in range(0, 60, 6):
            np.savez_compressed(tmp_path / name / f"{i:02}.npz", np.arange(i, i + 6) + more)
    ds = ndfeed.open({"a": tmp_path / "a", "b": tmp_path / "b"}, sample="row")
    for batch in epoch_of(ds, 7, shuffle=shuffle):
        np.testing.assert_array_equal(batch["b/arr_0"], batch["a/arr_0"] + 1000)


def test_two_compressed_sources_one_behind_the_other(tmp_path):
    """Files of two tables, of one group."""
    parts = []
    for name, more in (("a", 0), ("b", 60)):
        (tmp_path / name).mkdir()
        for i in range(0, 60, 6):
            np.savez_compressed(tmp_path / name / f"{i:02}.npz", x=np.arange(i, i + 6) + more)
        parts.append(ndfeed.open(tmp_path / name, sample="row"))
    batches = epoch_of(parts[0] + parts[1], 7, shuffle=True)

    assert sorted(np.concatenate([b["x"] for b in batches]).tolist()) == list(range(120))


def test_ranks_decode_what_all_of_them_pass(tmp_path):
    """Each rank sees a slice of every window: the batches of all are those of one."""
    ds, _ = compressed(tmp_path, files=8, rows=15)
    whole = epoch_of(ds, 12, shuffle=True)
    ranks = [epoch_of(ds, 4, shuffle=True, shard=(rank, 3), threads=2) for rank in range(3)]
    for number, batch in enumerate(whole):
        parts = [ranks[rank][number] for rank in range(3)]

        assert_same({n: np.concatenate([p[n] for p in parts]) for n in batch}, batch)


@pytest.mark.parametrize("shuffle", [False, True, ndfeed.Exact(), ndfeed.Blocks(rows=16)], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_larger_than_memory_gives_the_same_batches(tmp_path, shuffle, threads):
    """Memory decides how rows are read, never which and in what order."""
    ds, _ = compressed(tmp_path, files=2, rows=300, width=20_000)  # 6 MB a file
    plenty = epoch_of(ds, 10, shuffle=shuffle)
    tight = epoch_of(ds, 10, shuffle=shuffle, memory="2MB", threads=threads)

    assert_same(tight, plenty)


def test_two_fields_that_fit_singly_but_not_together(tmp_path):
    """A batch needs both: to give one up for the other would decode each for every batch."""
    x = np.arange(100 * 30_000, dtype="<i4").reshape(100, 30_000)
    np.savez_compressed(tmp_path / "x.npz", a=x, b=-x)
    with ndfeed.loader(ndfeed.open(tmp_path / "x.npz", sample="row"), 4, memory="16MB") as loader:
        for number, batch in enumerate(loader):
            np.testing.assert_array_equal(batch["a"], x[4 * number : 4 * number + 4])
            np.testing.assert_array_equal(batch["b"], -x[4 * number : 4 * number + 4])

        assert loader.report().streams == 2


def test_a_view_in_another_order_is_no_order(tmp_path):
    """Without shuffle=, but as scattered as with it."""
    ds, data = compressed(tmp_path, files=1, rows=600, width=10_000)
    rows = np.random.default_rng(0).permutation(600)
    with ndfeed.loader(ds.take(rows), 10, memory="1MB") as loader:
        found = np.concatenate([batch["x"] for batch in loader])
        assert loader.report().streams == 2

    np.testing.assert_array_equal(found, data[rows])


@pytest.mark.parametrize("shuffle", [True, ndfeed.Exact()], ids=str)
def test_without_a_disk_it_is_refused_at_construction(tmp_path, monkeypatch, shuffle):
    """With what would help, and before an epoch has begun."""
    ds, _ = compressed(tmp_path, files=1, rows=600, width=10_000)
    monkeypatch.setattr(can, "scratch", False)
    with pytest.raises(
        ndfeed.ResourceError, match=r"raise memory= by .* set TMPDIR .* ndfeed pack"
    ):
        ndfeed.loader(ds, 10, memory="1MB", shuffle=shuffle)

    ndfeed.loader(ds, 10, memory="1MB")
    ndfeed.loader(ds, 10, memory="20MB", shuffle=shuffle)


@pytest.mark.filterwarnings("ignore:.*Fortran")
def test_scattered_rows_without_a_disk_are_refused_at_construction(tmp_path, monkeypatch):
    """Also in order: every row of a Fortran-ordered array needs the whole stream."""
    np.savez_compressed(tmp_path / "x.npz", x=np.asfortranarray(np.ones((1000, 1000))))
    ds = ndfeed.open(tmp_path / "x.npz", sample="row")
    assert sum(len(batch["x"]) for batch in epoch_of(ds, 10, memory="1MB")) == 1000
    monkeypatch.setattr(can, "scratch", False)

    with pytest.raises(ndfeed.ResourceError, match=r"x\.npz: its rows are compressed together"):
        ndfeed.loader(ds, 10, memory="1MB")


def test_one_sample_larger_than_memory_is_refused_by_name(tmp_path):
    """The average sample is small: only this one would break the promise."""
    for i in range(20):
        np.savez_compressed(tmp_path / f"{i:02}.npz", x=np.zeros(10_000_000 if i == 7 else 10))
    ds = ndfeed.open(tmp_path, sample="file")
    with pytest.raises(
        ndfeed.ResourceError, match=r"07\.npz: one sample takes 80 MB, but memory= is"
    ):
        ndfeed.loader(ds, 1, memory="10MB")

    ndfeed.loader(ds.take([i for i in range(20) if i != 7]), 1, memory="10MB")
