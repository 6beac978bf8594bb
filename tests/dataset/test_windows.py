"""Windows of rows: what NumPy's own give, whatever the files, and never across a border."""

import gzip
import io
import os
import pickle

import numpy as np
import pytest
from children import run
from hypothesis import given
from hypothesis import strategies as st
from loading.making import in_process
from numpy.lib.stride_tricks import sliding_window_view

import ndfeed
from ndfeed.errors import ChecksumError, FieldError, FormatError, SchemaError

CODINGS = ("npy", "fortran", "big", "stored", "deflated", "gz", "raw", "structured")
DTYPES = ("u1", "<u2", "<i4", "<f4", "<f8", "S3", "<U2", "<c8", "?")


def make_array(rng, dtype, shape):
    """Values that differ, of any dtype."""
    return rng.integers(0, 100, shape).astype(dtype)


def write(folder, name, coding, array):
    """Write one array in a way that holds rows."""
    if coding == "stored":
        np.savez(folder / f"{name}.npz", data=array)
    elif coding == "deflated":
        np.savez_compressed(folder / f"{name}.npz", data=array)
    elif coding == "gz":
        held = io.BytesIO()
        np.save(held, array)
        (folder / f"{name}.npy.gz").write_bytes(gzip.compress(held.getvalue(), 1))
    elif coding == "raw":
        array.tofile(folder / f"{name}.bin")
    elif coding == "structured":
        made = np.zeros(len(array), [("odd", "u1"), ("data", array.dtype, array.shape[1:])])
        made["data"] = array
        np.save(folder / f"{name}.npy", made)
    else:
        other = array.astype(array.dtype.newbyteorder(">")) if coding == "big" else array
        np.save(folder / f"{name}.npy", np.asfortranarray(other) if coding == "fortran" else other)


def open_rows(folder, coding, dtype, shape):
    """Open what was written, as rows."""
    options = {"dtype": dtype, "shape": shape} if coding == "raw" else {"sample": "row"}
    ds = ndfeed.open(folder, cache=False, **options)
    return ds.select("data") if coding == "structured" else ds


def expected_windows(arrays, length, stride):
    """The windows of every array in turn, by NumPy."""
    found = [
        np.moveaxis(sliding_window_view(a, length, axis=0), -1, 1)[::stride]
        for a in arrays
        if len(a) >= length
    ]
    return np.concatenate(found)


@pytest.mark.filterwarnings("ignore:.*Fortran order")
@given(
    coding=st.sampled_from(CODINGS),
    dtype=st.sampled_from(DTYPES),
    shape=st.sampled_from([(), (3,), (2, 1), (1,), (4, 2)]),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    length=st.integers(1, 12),
    stride=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_windows_are_those_of_numpy(
    tmp_path_factory, coding, dtype, shape, lengths, length, stride, seed
):
    """Bit for bit, in any order, whatever holds the rows."""
    if max(lengths) < length:
        length = max(lengths)
    folder, rng = tmp_path_factory.mktemp("w"), np.random.default_rng(seed)
    arrays = [make_array(rng, dtype, (n, *shape)) for n in lengths]
    for i, array in enumerate(arrays):
        write(folder, f"{i}", coding, array)
    ds = open_rows(folder, coding, dtype, shape).windows(length, stride=stride)
    expected = expected_windows(arrays, length, stride)

    assert len(ds) == len(expected)
    rows = rng.integers(0, len(ds), 20)
    for some in (rows, np.arange(len(ds))):
        found = ds.read(some)["data"]
        assert found.dtype == expected.dtype.newbyteorder("=")
        assert found.tobytes() == np.ascontiguousarray(expected[some]).tobytes()
    with ndfeed.loader(ds, 4, shuffle=True, seed=seed, threads=2) as loader:
        every = [bytes(one) for batch in loader for one in batch["data"]]
    assert sorted(every) == sorted(np.ascontiguousarray(one).tobytes() for one in expected)


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    offsets=st.lists(st.integers(-5, 6), min_size=1, max_size=3, unique=True),
    length=st.none() | st.integers(1, 4),
    stride=st.integers(1, 4),
)
def test_offsets_are_rows_at_these_distances(tmp_path_factory, lengths, offsets, length, stride):
    """Each a field, within the same sequence."""
    folder = tmp_path_factory.mktemp("w")
    arrays = [np.arange(n * 2).reshape(n, 2) + 1000 * i for i, n in enumerate(lengths)]
    for i, array in enumerate(arrays):
        np.save(folder / f"{i}.npy", array)
    names = {f"at {one}": one for one in offsets}
    low, high = min(offsets), max(offsets) + (length or 1)
    starts = [
        (array, at - low)
        for array in arrays
        for at in range(0, len(array) - (high - low) + 1, stride)
    ]
    ds = ndfeed.open(folder, sample="row", cache=False)
    if not starts:
        with pytest.raises(SchemaError, match="do not fit"):
            ds.windows(length, stride=stride, offsets=names)
        return
    found = ds.windows(length, stride=stride, offsets=names)[:]

    assert list(found) == list(names)
    for name, offset in names.items():
        rows = [a[at + offset : at + offset + (length or 1)] for a, at in starts]
        expected = np.stack(rows) if length else np.concatenate(rows)
        assert (found[name] == expected).all()


@pytest.mark.parametrize(
    "offsets", [range(-3, 1), [0, 6], [4, 2, 0], [1], (-2, 0, 2), [-7, -3, -1, 0], [5, 0, 1]]
)
def test_a_sequence_of_offsets_makes_one_array(tmp_path, offsets):
    """A history, or a pair."""
    array = np.arange(60).reshape(20, 3)
    np.save(tmp_path / "x.npy", array)
    ds = ndfeed.open(tmp_path / "x.npy").windows(offsets=offsets)
    low, high = min(offsets), max(offsets)

    assert len(ds) == 20 - (high - low)
    expected = [[array[i + o - low] for o in offsets] for i in range(len(ds))]
    assert (ds[:]["data"] == np.array(expected)).all()


def test_each_field_may_have_offsets_of_its_own(tmp_path):
    """A history of states, a chunk of actions, and everything else as it is now."""
    rng = np.random.default_rng(0)
    state, action, reward = rng.normal(size=(40, 3)), rng.normal(size=(40, 2)), np.arange(40)
    np.savez(tmp_path / "x.npz", state=state, action=action, reward=reward)
    ds = ndfeed.open(tmp_path / "x.npz")
    given = {"state": [-4, -2, -1, 0], "action": range(5)}
    found = ds.windows(offsets=given)[:]

    assert list(found) == ["state", "action", "reward"]
    for i in range(40 - 8):
        now = i + 4
        assert (found["state"][i] == state[[now - 4, now - 2, now - 1, now]]).all()
        assert (found["action"][i] == action[now : now + 5]).all()
        assert found["reward"][i] == now
    even = ds.windows(offsets={"state": range(-3, 1), "action": range(5)})
    assert not even.steps
    assert (even[0]["state"] == state[:4]).all()
    with pytest.raises(FieldError, match="'states'"):
        ds.windows(offsets={"states": [0, 1]})
    with pytest.raises(TypeError, match="offsets= takes whole numbers, got"):
        ds.windows(offsets={"state": [0, 1], "action": 0})


def episodes(folder, compressed=False):
    """Three files with sequences of several lengths in them, numbered in a field."""
    rng, made = np.random.default_rng(0), []
    for i, lengths in enumerate([(5, 9, 1), (12,), (3, 3, 8, 2)]):
        episode = np.repeat(np.arange(len(lengths)) + 10 * i, lengths)
        state = rng.normal(size=(len(episode), 4)).astype("f4")
        save = np.savez_compressed if compressed else np.savez
        save(folder / f"{i}.npz", state=state, episode=episode)
        made += [state[episode == one] for one in np.unique(episode)]
    return made


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("way", ["by", "bounds"])
def test_no_window_crosses_the_border_of_a_sequence(tmp_path, compressed, way):
    """Where sequences share a file, a field or row numbers divide it."""
    made = episodes(tmp_path, compressed)
    bounds = np.cumsum([len(one) for one in made])
    options = {"by": "episode"} if way == "by" else {"bounds": bounds}
    ds = ndfeed.open(tmp_path, sample="row").windows(3, **options)
    expected = expected_windows(made, 3, 1)

    assert (ds[:]["state"] == expected).all()
    assert (ds[:]["episode"] == ds[:]["episode"][:, :1]).all()
    with ndfeed.loader(ds, 4, shuffle=True, seed=1) as loader:
        batches = list(loader)
        report = loader.report()
    assert sorted(bytes(s) for b in batches for s in b["state"]) == sorted(map(bytes, expected))
    if compressed:
        assert report.streams == 2 * 3  # each member once, whatever the sequences


def test_windows_compose(tmp_path):
    """With every other view, with processes, with memory, and when they are sent elsewhere."""
    made = episodes(tmp_path)
    base = ndfeed.open(tmp_path, sample="row")
    ds = base.windows(3, by="episode")
    expected = expected_windows(made, 3, 1)
    state = ds.select("state").rename({"state": "s"})

    assert (state[:]["s"] == expected).all()
    assert (ds.take([7, 3, 5])[:]["state"] == expected[[7, 3, 5]]).all()
    first, second = ds.split(0.5, seed=1)
    assert len(first) + len(second) == len(expected)
    assert ((ds + ds)[:]["state"] == np.concatenate([expected, expected])).all()
    assert (ds.map(lambda b: {"x": b["state"] * 2})[:]["x"] == expected * 2).all()
    assert (ds.in_memory()[:]["state"] == expected).all()
    assert (base.in_memory().windows(3, by="episode")[:]["state"] == expected).all()
    assert (pickle.loads(pickle.dumps(ds))[:]["state"] == expected).all()
    twice = ds.windows(2)
    assert len(twice.fields["state"].shape) == 3
    with ndfeed.loader(ds.map(in_process), 4, processes=2) as loader:
        found = np.concatenate([batch["state"] for batch in loader])
    assert (found == expected).all()
    ndfeed.pack(ds, tmp_path / "packed", progress=False)
    assert (ndfeed.open(tmp_path / "packed")[:]["state"] == expected).all()


def test_windows_of_memory_and_of_files_are_the_same_data(tmp_path):
    """So a run can be resumed from either; other windows are other data."""
    episodes(tmp_path)
    base = ndfeed.open(tmp_path, sample="row")
    prints = {
        base.windows(3).fingerprint,
        base.in_memory().windows(3).fingerprint,
        base.windows(3).in_memory().fingerprint,
    }

    assert len(prints) == 1
    others = [base.windows(2), base.windows(3, stride=2), base.windows(3, by="episode"), base]
    assert len({one.fingerprint for one in others} | prints) == 5


def test_rows_that_were_taken_form_windows_if_they_are_consecutive(tmp_path):
    """The usual way to hold back the end of a series."""
    np.save(tmp_path / "x.npy", np.arange(100))
    ds = ndfeed.open(tmp_path / "x.npy")

    assert (ds.take(range(80, 100)).windows(3)[0]["data"] == [80, 81, 82]).all()
    assert len(ds.take(slice(80, None)).windows(3)) == 18
    assert len(ds.take(np.arange(10, 20)).in_memory().windows(3)) == 8
    some = ds.take([1, 2, 3, 7, 8, 9, 10]).in_memory()
    assert (some.windows(3)[:]["data"][:, 0] == [1, 7, 8]).all()
    for rows in ([1, 2, 4], range(0, 10, 2), range(9, 0, -1)):
        with pytest.raises(ValueError, match="needs consecutive rows"):
            ds.take(rows).windows(2)


def test_sources_of_several_files_agree_on_sequences(tmp_path):
    """Where any of them ends, a window ends."""
    np.save(tmp_path / "x.npy", np.arange(20))
    for i in range(4):
        np.save(tmp_path / f"y{i}.npy", np.arange(5 * i, 5 * i + 5))
    sources = {"x": tmp_path / "x.npy", "y": [tmp_path / f"y{i}.npy" for i in range(4)]}
    ds = ndfeed.open(sources, sample={"y": "row"}).windows(2)

    assert len(ds) == 16
    found = ds[:]
    assert (found["x"] == found["y"]).all()


def test_no_windows_have_the_same_fields(tmp_path):
    """Also at uneven offsets, which are stored as a field each."""
    np.savez(tmp_path / "x.npz", x=np.arange(20).reshape(10, 2), n=np.arange(10))
    ds = ndfeed.open(tmp_path / "x.npz").windows(offsets={"x": [0, 1, 3]})
    none = ds.where(lambda batch: batch["n"] > 99)

    assert list(none.fields) == list(ds.fields) == ["x", "n"]
    assert none.fields["x"].shape == ds.fields["x"].shape == (3, 2)
    assert none.rename({"x": "y"}).fields["y"].shape == (3, 2)
    assert none[:]["x"].shape == (0, 3, 2)


@pytest.mark.parametrize("length", [5, 4])
def test_sequences_of_one_window_are_compressed_together(tmp_path, length):
    """A stream is shuffled as a whole, and counts, however its rows are divided."""
    rows = np.arange(60).reshape(30, 2)
    np.savez_compressed(tmp_path / "x.npz", data=rows, episode=np.repeat(range(6), 5))
    ds = ndfeed.open(tmp_path / "x.npz").windows(length, stride=5, by="episode")
    loader = ndfeed.loader(ds, 2, shuffle=True, processes=0)

    found = np.concatenate([batch["data"] for batch in loader])
    assert sorted(found[:, 0, 0].tolist()) == rows[::5, 0].tolist()
    assert isinstance(loader.order, ndfeed.Windows)
    uneven = ndfeed.open(tmp_path / "x.npz").windows(4, bounds=[4, 9])
    assert len(list(ndfeed.loader(uneven, 1, shuffle=True, processes=0))) == len(uneven) == 21


@pytest.mark.parametrize("rows", [range(12), range(2, 11), range(5, 6), range(6, 12), range(3, 5)])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_of_a_range_in_a_dict(tmp_path, rows, stride):
    """Are those of the rows themselves; of windows they are the windows of these."""
    for i, count in enumerate((3, 0, 5, 4)):
        np.save(tmp_path / f"{i}.npy", 10 * i + np.arange(count))
    ds = ndfeed.open(tmp_path, sample="row")
    listed = np.concatenate([10 * i + np.arange(count) for i, count in enumerate((3, 0, 5, 4))])
    for source, values in ((ds, listed), (ds.windows(1, stride=stride), None)):
        values = source[:]["data"] if values is None else values
        some = range(rows.start, min(rows.stop, len(values)))
        pairs = [(a, a + 1) for a in some[:-1] if np.all(values[a] // 10 == values[a + 1] // 10)]
        if not pairs:
            continue
        both = ndfeed.open({"p": source.take(some), "q": np.arange(len(some))})
        found = both.windows(2)[:]
        assert found["p"].tolist() == [values[list(pair)].tolist() for pair in pairs]
        assert found["q"].tolist() == [[a - some.start, b - some.start] for a, b in pairs]


def test_where_a_window_lies_is_known(tmp_path):
    """Its file, and its first row there."""
    episodes(tmp_path)
    ds = ndfeed.open(tmp_path, sample="row").windows(3, stride=2, by="episode")
    file, row = ds.locate(np.arange(len(ds)))

    for i in range(len(ds)):
        with np.load(ds.files[file[i]]) as held:
            assert (held["state"][row[i] : row[i] + 3] == ds[i]["state"]).all()


def test_numbers_of_windows_cost_nothing(tmp_path):
    """A file of 18 GB that is mostly a hole has nine billion of them."""
    with (tmp_path / "x.bin").open("wb") as file:
        file.truncate(18 * 10**9)
        file.seek(9 * 10**9)
        file.write(np.arange(1000, dtype="<u2").tobytes())
    ds = ndfeed.open(tmp_path / "x.bin", dtype="uint16", shape=()).windows(1025)

    assert len(ds) == 9 * 10**9 - 1024
    assert (ds[45 * 10**8]["data"][:1000] == np.arange(1000)).all()
    assert len(pickle.dumps(ds)) < 10_000
    with ndfeed.loader(ds, 8, shuffle=True) as loader:
        assert next(iter(loader))["data"].shape == (8, 1025)


FLAT = """
from itertools import islice

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024

def begin_epochs(count):
    for _ in range(count):
        for batch in islice(loader, 5):
            pass

path, mapped = args[0], args[1] == "mapped"
ds = ndfeed.open(path, dtype="uint16", shape=(), mapped=mapped).windows(1025)
# Faults of a mapped file may fill the page cache with all of it.
ds = ds.take(range(5 * 10**8)) if mapped else ds
loader = ndfeed.loader(ds, 16, shuffle=True, threads=1)
begin_epochs(100)
taken = [anonymous()]
for batch in islice(loader, 4000):
    assert batch["data"].shape == (16, 1025)
taken.append(anonymous())
begin_epochs(300)
taken.append(anonymous())
print(*taken)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no RssAnon to ask for")
@pytest.mark.parametrize("way", ["mapped", "by position"])
def test_memory_stays_flat_while_windows_are_read(tmp_path, way):
    """Through thousands of batches of nine billion windows, and from epoch to epoch."""
    with (tmp_path / "x.bin").open("wb") as file:
        file.truncate(18 * 10**9)
    first, within, later = map(int, run(FLAT, tmp_path / "x.bin", way).split())

    # The batches alone are 130 MB, and those prefetched in all the epochs more than a gigabyte.
    assert within - first < 40_000_000
    assert later - first < 40_000_000


def test_windows_of_a_part_of_the_rows_cost_nothing(tmp_path):
    """Training and validation without overlap, as the documentation divides them."""
    with open(tmp_path / "x.bin", "wb") as file:
        file.truncate(18 * 10**9)
    rows = ndfeed.open(tmp_path / "x.bin", dtype="uint16", shape=())
    train, val = rows.take(range(8 * 10**9)), rows.take(range(-(10**9), 0))

    assert (len(train.windows(1025)), len(val.windows(1025))) == (8 * 10**9 - 1024, 10**9 - 1024)
    assert val.windows(1025).locate([0])[1] == [8 * 10**9]
    for ds in (train.windows(1025), rows.windows(1025).take(range(8 * 10**9))):
        assert "1 file" in repr(ds)
        assert len(pickle.dumps(ds)) < 10_000
        with ndfeed.loader(ds, 8, shuffle=True) as loader:
            assert next(iter(loader))["data"].shape == (8, 1025)
            assert loader.state_dict()


def test_checksums_are_compared_under_windows(tmp_path):
    """Damage in any row of a window is found when it is read."""
    np.save(tmp_path / "x.npy", np.arange(400_000))
    ndfeed.pack(tmp_path / "x.npy", tmp_path / "packed", progress=False)
    (path,) = (tmp_path / "packed").glob("**/*.npy")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    ds = ndfeed.open(tmp_path / "packed", verify=True).windows(5)

    assert (ds[0]["data"] == np.arange(5)).all()
    with pytest.raises(ndfeed.Error, match="checksum"):
        ds[len(ds) - 5]


def test_files_that_are_not_mapped_have_windows_too(tmp_path):
    """On a network file system, say."""
    arrays = [np.arange(30).reshape(10, 3), np.arange(60).reshape(20, 3)]
    for i, one in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", one)
    ds = ndfeed.open(tmp_path, sample="row", mapped=False).windows(4, stride=3)
    rows = np.random.default_rng(0).permutation(len(ds))

    assert (ds.read(rows)["data"] == expected_windows(arrays, 4, 3)[rows]).all()


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="no bytes read to ask for")
@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (lambda ds: ds.windows(9), range(9)),
        (lambda ds: ds.windows(offsets=range(0, 9, 2)), range(0, 9, 2)),
        (lambda ds: ds.windows(offsets=[8, 5, 2]), [6, 3, 0]),
        (lambda ds: ds.windows(offsets=[0, 1, 7]), [0, 1, 7]),
        (lambda ds: ds.windows(3).windows(2), [[0, 1, 2], [1, 2, 3]]),
        (lambda ds: ds.take(range(10**6)).windows(3) + ds.windows(3, stride=2), range(3)),
    ],
)
@pytest.mark.parametrize("dtype", ["<u4", ">u4"])
def test_files_that_are_not_mapped_are_not_read_whole(tmp_path, make, rows, dtype):
    """However windows lie in them: they may be as large as the network file system."""
    np.arange(2 * 10**6, dtype=dtype).tofile(tmp_path / "x.bin")
    ds = make(ndfeed.open(tmp_path / "x.bin", dtype=dtype, shape=(), mapped=False))
    some = np.random.default_rng(0).integers(0, 999_990, 64)

    def taken():
        with open("/proc/self/io") as file:
            return int(file.read().split("rchar: ")[1].split()[0])

    before = taken()
    found = ds.read(some)["data"]
    after = taken()
    assert (found == some.reshape(-1, *[1] * np.ndim(rows)) + np.array(rows)).all()
    assert after - before < 100_000


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ds: ds.windows(), "windows() takes a length, offsets=, or both"),
        (lambda ds: ds.windows(0), "length must be at least 1, got 0"),
        (lambda ds: ds.windows(2.5), "length takes whole numbers, got 2.5"),
        (lambda ds: ds.windows(3, stride=0), "stride must be at least 1, got 0"),
        (lambda ds: ds.windows(99), "windows of 99 rows do not fit: the longest of 1 sequence"),
        (lambda ds: ds.windows(3, by="nope"), "'nope'"),
        (lambda ds: ds.windows(3, by=np.arange(20)), "by= takes the name of a field; bounds="),
        (lambda ds: ds.windows(3, by="data"), "or another field than 'data'"),
        (lambda ds: ds.windows(3, bounds=[4, 2]), "bounds= must ascend, got 4 before 2"),
        (lambda ds: ds.windows(3, bounds=[4, 50]), "bounds= must be in [0, 20], got 4 to 50"),
        (lambda ds: ds.windows(3, bounds=[1.5]), "bounds= takes row numbers"),
        (lambda ds: ds.windows(offsets=[]), "offsets= needs at least one"),
        (lambda ds: ds.windows(3, offsets=[0, 1]), "with a length, offsets= takes a dict"),
        (lambda ds: ds.windows(offsets={"a": 0.5}), "offsets= takes whole numbers, got 0.5"),
        (lambda ds: ds.windows(offsets="now"), "offsets= takes a dict or a sequence"),
        (
            lambda ds: ds.windows(offsets={"a": [0, 1], "b": 0}),
            "got a sequence for 'a'; give every name one",
        ),
        (lambda ds: ds.windows(2, offsets={"a": [0, 1]}), "and no length: offsets={"),
        (lambda ds: ds.windows(2**63), "length takes at most 281,474,976,710,656 rows"),
        (lambda ds: ds.windows(2, stride=2**64), "stride takes at most"),
        (lambda ds: ds.windows(offsets={"a": 0, "b": -(2**70)}), "offsets= takes at most"),
        (
            lambda ds: ds.windows(3, bounds=np.array([2**64 - 5], np.uint64)),
            "must be in [0, 20], got 18446744073709551611 to 18446744073709551611",
        ),
        (lambda ds: ds.take([]).windows(3), "there are no rows to make windows of"),
        (lambda ds: ds.map(lambda b: b).windows(3), "windows() comes before map()"),
    ],
)
def test_what_makes_no_windows_is_refused(tmp_path, call, words):
    """In one line that says what to change."""
    np.save(tmp_path / "x.npy", np.arange(20))
    ds = ndfeed.open(tmp_path / "x.npy")

    with pytest.raises((ValueError, TypeError, SchemaError, FieldError)) as caught:
        call(ds)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_files_have_no_rows(tmp_path):
    """The error says how to open them instead."""
    for i in range(2):
        np.save(tmp_path / f"{i}.npy", np.arange(5))

    with pytest.raises(SchemaError, match='open it with sample="row"'):
        ndfeed.open(tmp_path, sample="file").windows(2)


@pytest.mark.parametrize("tail", ["drop", "error"])
def test_a_raw_file_may_end_within_a_sample(tmp_path, tail):
    """What is too short for a sample is left out if asked for."""
    np.arange(10, dtype="u1").tofile(tmp_path / "x.bin")
    options = {"dtype": "u1", "shape": 4}
    if tail == "drop":
        found = ndfeed.open(tmp_path / "x.bin", tail="drop", **options)[:]["data"]
        assert (found == np.arange(8).reshape(2, 4)).all()
        return
    with pytest.raises(FormatError, match='tail="drop"'):
        ndfeed.open(tmp_path / "x.bin", **options)


def test_windows_of_windows_know_their_rows(tmp_path):
    """The strides of both multiply; also where windows are a source of several."""
    np.save(tmp_path / "x.npy", np.arange(40))
    once = ndfeed.open(tmp_path / "x.npy").windows(3, stride=2)
    twice = once.windows(2, stride=3)
    assert (twice.locate(np.arange(len(twice)))[1] == twice[:]["data"][:, 0, 0]).all()
    beside = ndfeed.open({"x": once.take(slice(3, None)), "n": np.arange(len(once) - 3)})
    for ds in (beside, pickle.loads(pickle.dumps(beside))):
        assert (ds.locate(np.arange(len(ds)))[1] == ds[:]["x"][:, 0]).all()


def test_damage_is_found_through_any_windows(tmp_path):
    """Windows of windows, and of a view that is a source: they check the rows they read."""
    np.save(tmp_path / "x.npy", np.arange(2_000_000))
    ndfeed.pack(tmp_path / "x.npy", tmp_path / "packed")
    largest = max((tmp_path / "packed").rglob("*.npy"), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(-2000, 2)
        file.write(b"\xff" * 40)
    for way in (
        lambda ds: ds.windows(5).windows(3),
        lambda ds: ndfeed.open({"x": ds.take(range(1_900_000, 2_000_000))}).windows(7),
    ):
        windows = way(ndfeed.open(tmp_path / "packed", verify=True))
        assert windows[:10]
        with pytest.raises(ChecksumError):
            windows[len(windows) - 300 :]


def test_windows_of_packs_have_their_own_fingerprint(tmp_path):
    """Also as a source of several: a loader must not resume with other windows."""
    np.save(tmp_path / "x.npy", np.arange(40))
    ndfeed.pack(tmp_path / "x.npy", tmp_path / "packed")
    ds = ndfeed.open(tmp_path / "packed")
    one, other = (ndfeed.open({"x": ds.windows(n, stride=2)}) for n in (3, 4))
    assert len(one) == len(other)
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == ndfeed.open({"x": ds.windows(3, stride=2)}).fingerprint


def test_windows_beside_labels_of_files(tmp_path):
    """One label for all rows of a file: a slice of them is still consecutive."""
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.arange(10) + 100 * i)
    labelled = ndfeed.open(tmp_path, sample="row").with_labels(lambda path: int(path[-5]))
    ds = ndfeed.open({"x": labelled.take(slice(4, 26)), "n": np.arange(22)}).windows(4)
    batch = ds[:]
    assert len(ds) == 3 + 7 + 3
    assert (batch["x/data"] // 100 == batch["x/label"]).all()
    assert (batch["n"] - batch["n"][:, :1] == np.arange(4)).all()


def test_rows_that_stand_for_several_samples_are_refused(tmp_path):
    """Windows of the file that has one label for all rows were left out without a word."""
    np.save(tmp_path / "a.npy", np.arange(10))
    np.save(tmp_path / "b.npy", np.arange(10))
    one = ndfeed.open(tmp_path / "a.npy").with_labels(lambda path: 0)
    other = ndfeed.open(tmp_path / "b.npy").with_labels(list(range(10)))
    with pytest.raises(ValueError, match="'label' has the same row for several samples"):
        (one + other).windows(4)


def test_windows_that_go_back_are_packed_from_compressed_rows(tmp_path):
    """A stream is decoded forwards."""
    np.savez_compressed(tmp_path / "x.npz", data=np.arange(40))
    windows = ndfeed.open(tmp_path / "x.npz").windows(offsets=range(0, -3, -1), stride=5)
    packed = ndfeed.pack(windows, tmp_path / "packed", progress=False)
    expected = np.arange(0, 38, 5)[:, None] + [2, 1, 0]
    assert (packed[:]["data"] == expected).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, ">i4"])
def test_bounds_of_any_integer_dtype(tmp_path, dtype):
    """And none at all, as a list without elements."""
    np.save(tmp_path / "x.npy", np.arange(20))
    ds = ndfeed.open(tmp_path / "x.npy")

    assert len(ds.windows(3, bounds=np.array([0, 10, 10, 20], dtype))) == 16
    assert len(ds.windows(3, bounds=[])) == 18


def test_missing_values_are_one_sequence(tmp_path):
    """NaN is the same as NaN, as for ``split(by=...)``."""
    episode = np.array([1, np.nan, np.nan, np.nan, 2, 2])
    np.savez(tmp_path / "x.npz", step=np.arange(6), episode=episode)
    ds = ndfeed.open(tmp_path / "x.npz").windows(2, by="episode")

    assert ds[:]["step"].tolist() == [[1, 2], [2, 3], [4, 5]]


def test_two_fields_of_one_name_are_refused(tmp_path):
    """One of them would silently be the other."""
    np.savez(tmp_path / "x.npz", **{"x": np.arange(5), "offset 0/x": np.arange(5) / 2})
    ds = ndfeed.open(tmp_path / "x.npz")

    with pytest.raises(ValueError, match="would make two fields 'offset 0/x'"):
        ds.windows(offsets={"x": [0, 2, 3]})
    renamed = ds.rename({"offset 0/x": "half"}).windows(offsets={"x": [0, 2, 3]})
    assert renamed[0]["x"].tolist() == [0, 2, 3]
