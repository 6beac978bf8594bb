"""Sums of ranges of rows: the rows of each in turn, and no list of them."""

import os
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ndfeed

COUNTS = 3, 0, 5, 4
PLACES = st.none() | st.integers(-13, 13)
SLICES = st.builds(slice, PLACES, PLACES, st.sampled_from([None, 1, 2, 3, -1, -2, -5]))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Files of several rows; a row is 100 times its file's number and its own."""
    folder = tmp_path_factory.mktemp("shards")
    for i, count in enumerate(COUNTS):
        np.save(folder / f"{i}.npy", 100 * i + np.arange(count))
    return ndfeed.open(folder, sample="row")


def as_numbers(ds):
    return ds[:]["data"].tolist()


def list_rows(ds, taken):
    """The same sum with its rows listed, so that nothing is a range."""
    every = sum((ds for _ in taken[1:]), ds)
    starts = np.arange(len(taken)) * len(ds)
    rows = [np.arange(len(ds))[one] + at for one, at in zip(taken, starts, strict=True)]
    return every.take(np.concatenate(rows))


@given(taken=st.lists(SLICES, min_size=2, max_size=5), further=SLICES, again=SLICES)
def test_a_sum_of_slices_is_that_of_their_rows(shards, taken, further, again):
    """Also a slice of it, a sum of sums, and what is sent to another process."""
    ds = sum((shards.take(one) for one in taken[1:]), shards.take(taken[0]))
    values = np.array(as_numbers(shards), np.int64)
    expected = np.concatenate([values[one] for one in taken])
    some = ds.take(further)

    assert as_numbers(ds) == expected.tolist()
    assert as_numbers(some) == expected[further].tolist()
    both = some + ds.take(again)
    assert as_numbers(both) == [*expected[further], *expected[again]]
    listed = list_rows(shards, taken)
    assert ds.fingerprint == listed.fingerprint
    assert list(ds.files) == list(listed.files)
    if len(ds):
        assert [one.tolist() for one in ds.locate(range(len(ds)))] == [
            one.tolist() for one in listed.locate(range(len(ds)))
        ]
    sent = pickle.loads(pickle.dumps(both))
    assert (sent.fingerprint, as_numbers(sent)) == (both.fingerprint, as_numbers(both))


@given(taken=st.lists(SLICES, min_size=2, max_size=4), length=st.integers(1, 3))
def test_windows_of_a_sum_in_a_dict_leave_no_file_and_no_range(shards, taken, length):
    """Rows that do not follow each other in a file are not neighbours."""
    ds = sum((shards.take(one) for one in taken[1:]), shards.take(taken[0]))
    if not len(ds):
        return
    rows = np.concatenate([np.arange(12)[one] for one in taken])
    own = np.concatenate([[at] * len(np.arange(12)[one]) for at, one in enumerate(taken)])
    file = np.repeat(np.arange(4), COUNTS)[rows]
    follows = (np.diff(rows) == 1) & (np.diff(file) == 0) & (np.diff(own) == 0)
    fits = [at for at in range(len(rows) - length + 1) if follows[at : at + length - 1].all()]
    values = np.array(as_numbers(ds))
    source = ndfeed.open({"x": ds, "place": np.arange(len(ds))})
    if not fits:
        return

    found = source.windows(length)[:]
    assert found["place"][:, 0].tolist() == fits
    assert found["x"].tolist() == [values[at : at + length].tolist() for at in fits]


@given(taken=st.lists(SLICES, min_size=2, max_size=4))
def test_a_sum_of_slices_goes_everywhere(shards, tmp_path_factory, taken):
    """Into memory, behind a map, to a packed dataset, and through a loader in its order."""
    ds = sum((shards.take(one) for one in taken[1:]), shards.take(taken[0]))
    expected = as_numbers(ds)

    assert as_numbers(ds.in_memory()) == expected
    labelled = ds.with_labels(lambda path: int(os.path.basename(path)[0]))
    assert labelled[:]["label"].tolist() == [value // 100 for value in expected]
    mixed = ds + shards.map(lambda batch: {"data": -batch["data"]}).take(slice(2))
    assert as_numbers(mixed) == [*expected, 0, -1]
    if expected:
        with ndfeed.loader(ds, 2) as loader:
            assert np.concatenate([batch["data"] for batch in loader]).tolist() == expected
        folder = tmp_path_factory.mktemp("packed")
        assert as_numbers(ndfeed.pack(ds, folder / "x", progress=False)) == expected


def test_crops_of_sums_of_ranges(tmp_path):
    """Each is of the case that the sum has there."""
    np.save(tmp_path / "x.npy", np.arange(8 * 5 * 5).reshape(8, 5, 5))
    cases = ndfeed.open(tmp_path / "x.npy")
    ds = cases.take(slice(2, 5)) + cases.take(slice(None, None, -3))
    crops = ds.crops({"data": (2, 3)}, each=2, place=True)
    twice = crops.take(slice(3, 7)) + crops.take(slice(0, 3))

    assert crops[:]["case"].tolist() == np.repeat(range(6), 2).tolist()
    for one in twice:
        a, b = one["corner"]
        assert (one["data"] == ds[int(one["case"])]["data"][a : a + 2, b : b + 3]).all()
    assert twice[:]["case"].tolist() == [1, 2, 2, 3, 0, 0, 1]


def peak(make):
    """The most memory that a call allocates."""
    tracemalloc.start()
    try:
        make()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check_memory(make):
    """Check what a dataset takes, and a loader of it."""
    made = make()

    assert peak(make) < 1_000_000
    assert peak(lambda: (repr(made), made.fingerprint, made.files[-1])) < 1_000_000
    assert len(made.locate([0, len(made) - 1])[0]) == 2
    with ndfeed.loader(made, 4, shuffle=True) as loader:
        # Batches in progress are a few megabytes.
        assert peak(lambda: (next(iter(loader)), loader.state_dict())) < 100_000_000


def test_a_sum_of_a_billion_rows_takes_kilobytes(tmp_path):
    """Whatever is asked of it but its samples."""
    for name in ("a.bin", "b.bin"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(2 * 10**9)
    a, b = (ndfeed.open(tmp_path / name, dtype="u2", shape=()) for name in ("a.bin", "b.bin"))
    some = a.take(slice(5 * 10**8)), b.take(slice(10**8, 10**9))
    half = 5 * 10**8
    ds = some[0] + some[1]
    sums = [
        lambda: some[0] + some[1],
        lambda: ds + ds.take(range(10**9, 0, -3)),
        lambda: a + some[1],
        lambda: a.take(range(half)).windows(1025) + b.take(range(half, 10**9)).windows(1025),
        lambda: (
            a.windows(1025).take(range(half)) + b.windows(1025, stride=2).take(range(half // 2))
        ),
        lambda: ndfeed.open({"x": ds, "y": ds}).windows(1025),
        lambda: some[0].map(dict) + some[1],
        lambda: ndfeed.mix({"a": some[0], "b": some[1]}, weights=[1, 2]),
    ]

    for make in sums:
        check_memory(make)


def test_many_rows_of_a_sum_are_the_same_however_they_are_given(tmp_path):
    """A sum is not listed to be identified, and equal row numbers are equal data."""
    with open(tmp_path / "x.bin", "wb") as file:
        file.truncate(20_000_000)
    ds = ndfeed.open(tmp_path / "x.bin", dtype="u1", shape=())
    taken = slice(17_000_000), slice(5, 300), slice(20, 10, -2), slice(7, 8), slice(9, 10)
    both = sum((ds.take(one) for one in taken[1:]), ds.take(taken[0]))

    assert both.fingerprint == list_rows(ds, taken).fingerprint
    assert both.fingerprint != list_rows(ds, [*taken[:-1], slice(8, 9)]).fingerprint


def repeat(ds, times):
    """The sum of a dataset and itself, 2**times - 1 of it."""
    made = some = ds
    for _ in range(times - 1):
        some = some + some
        made = made + some
    return made


@pytest.mark.parametrize("more", [slice(0, 0), slice(7, 8), slice(7, 9)])
def test_the_longest_list_of_steps_is_the_same_however_rows_are_given(tmp_path, more):
    """Up to 65,536 of them identify rows, as here; of more, the rows themselves do."""
    with open(tmp_path / "x.bin", "wb") as file:
        file.truncate(17_000_000)
    ds = ndfeed.open(tmp_path / "x.bin", dtype="u1", shape=())
    taken = repeat(ds.take(slice(3)), 15) + ds + ds.take(more)
    every = repeat(ds, 15) + ds + ds
    starts = np.arange(1 << 15) * len(ds)
    some = (starts[:-1, None] + np.arange(3)).reshape(-1)
    last = np.arange(starts[-1], len(every))
    listed = np.concatenate([some, last[: len(ds)], last[len(ds) :][more]])

    assert taken.fingerprint == every.take(listed).fingerprint
