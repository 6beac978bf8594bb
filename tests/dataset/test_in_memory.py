"""Samples loaded into shared memory: by one process or by several, nobody sees a difference."""

import textwrap

import numpy as np
import pytest
from children import WATCHING, processes_at_work, run

import ndfeed
from ndfeed.dataset import in_memory
from ndfeed.files import platform_calls, process_server, processes

pytestmark = pytest.mark.skipif(process_server.why_not() != "", reason="needs fork")


def assert_equal(found, expected):
    """The same samples of the same fields."""
    assert list(found.fields) == list(expected.fields)
    loaded = found[:]
    for name, values in expected[:].items():
        if isinstance(values, np.ndarray):
            np.testing.assert_array_equal(loaded[name], values, strict=True)
            continue
        for one, other in zip(loaded[name], values, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


@pytest.fixture
def by_processes(monkeypatch):
    """Processes load all but the first pieces, however quickly that is done."""
    monkeypatch.setattr(processes, "WORTH_IT", -1)
    monkeypatch.setattr(in_memory, "_PIECE_SAMPLES", 50)
    monkeypatch.setattr(platform_calls, "cores", lambda: 3)


def whole_files(folder, *, ragged=False):
    """Very many samples in few compressed files: enough to do for processes to begin."""
    paths = []
    for i in range(40):
        size = 3 + i % 5 if ragged else 50
        path = folder / f"{i}.npz"
        np.savez_compressed(path, image=np.full((60, size), i, ">i4"), label=i)
        paths.append(path)
    return paths * 150


def rows(folder):
    """Rows of several compressed files, and of some that are empty."""
    rng = np.random.default_rng(0)
    for i in range(40):
        values = rng.integers(0, 9, (0 if i % 7 == 3 else 100 + i, 1000))
        np.savez_compressed(folder / f"{i}.npz", x=values, y=np.arange(len(values)) + i)
    return folder


@pytest.mark.parametrize("ragged", [False, True])
def test_files_are_loaded_by_processes(tmp_path, by_processes, ragged):
    """Also where their samples differ in shape; a field without a ragged one beside it."""
    ds = ndfeed.open(whole_files(tmp_path, ragged=ragged), sample="file")
    with processes_at_work():
        held = ds.in_memory()

    assert_equal(held, ds)


def test_rows_of_compressed_files_are_loaded_by_processes(tmp_path, by_processes):
    """Each process decodes whole streams: none is decoded twice."""
    ds = ndfeed.open([rows(tmp_path)] * 8, sample="row")
    with processes_at_work():
        held = ds.in_memory()

    assert_equal(held, ds)


def test_a_stream_is_decoded_by_one_process(tmp_path, monkeypatch):
    """Pieces end where streams do, whatever their size; rows in any order are one piece."""
    monkeypatch.setattr(in_memory, "_PIECE_SAMPLES", 1)
    ds = ndfeed.open(rows(tmp_path), sample="row")
    starts = ds.groups[0].starts.tolist()
    count = len(ds)

    def cuts(samples):
        return in_memory._cut_rows(ds.groups, samples, ds.nbytes)

    assert cuts(np.arange(count)) == sorted(set(starts))
    assert cuts(np.arange(count)[::-1]) == [0, count]
    assert cuts(np.arange(150, count, 3))[1:-1]
    assert cuts(np.arange(0)) == [0]


def test_views_and_conversions_are_loaded_as_they_are_read(tmp_path, by_processes):
    """Other rows, other names, another dtype, maps that run at every read."""
    ds = ndfeed.open(whole_files(tmp_path), sample="file", dtype={"image": "float64"})
    order = np.random.default_rng(0).permutation(len(ds))[:12_000]
    view = ds.rename({"label": "y"}).take(order)
    with processes_at_work():
        held = view.map(lambda batch: {**batch, "twice": 2 * batch["y"]}).in_memory()

    assert_equal(held, view.map(lambda batch: {**batch, "twice": 2 * batch["y"]}))


def test_the_first_bad_file_is_named(tmp_path, by_processes):
    """As by a loop, though a process may have come to another one before."""
    paths = whole_files(tmp_path)[: 40 * 100]
    for name in ("late", "early"):
        np.savez_compressed(tmp_path / f"{name}.npz", image=np.zeros((60, 50), ">i4"), label=0)
    ds = ndfeed.open(
        [*paths, *paths, tmp_path / "early.npz", *paths, tmp_path / "late.npz"], sample="file"
    )
    for name in ("late", "early"):
        data = bytearray((tmp_path / f"{name}.npz").read_bytes())
        data[60:64] = b"\xff\xff\xff\xff"
        (tmp_path / f"{name}.npz").write_bytes(data)

    with pytest.raises(ndfeed.ChangedError, match=r"early\.npz") as caught:
        ds.in_memory()
    assert caught.value.path == f"{tmp_path}/early.npz"


LONG = f"""{WATCHING}
np.savez_compressed(args[0], x=np.arange(10_000).reshape(10, 1000))
ds = ndfeed.open([args[0]] * 15_000, sample="file", cache=False)
"""


def long_load(tmp_path, code):
    """What a process printed that loads many samples."""
    return run(LONG + textwrap.dedent(code), tmp_path / "x.npz")


def test_killed_processes_change_nothing(tmp_path):
    """What they had to load is loaded here; the memory is sealed as ever."""
    code = """
    threading.Thread(target=watch, args=(kill,), daemon=True).start()
    held = ds.in_memory()
    right = all((held[i:i + 1000]["x"] == ds[0]["x"]).all() for i in range(0, 15_000, 1000))
    print(len(seen), right, workers())
    path = held.groups[0].table.path(0)
    try:
        os.pwrite(os.open(path, os.O_RDWR), b"x", 0)
    except OSError as error:
        print(error.strerror)
    """

    assert long_load(tmp_path, code) == "1 True []\nOperation not permitted\n"


def test_ctrl_c_leaves_no_process(tmp_path):
    """The interrupt is the caller's; the processes end first."""
    code = """
    interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=watch, args=(interrupt,), daemon=True).start()
    try:
        ds.in_memory()
    except KeyboardInterrupt:
        print("interrupted", workers())
    """

    assert long_load(tmp_path, code) == "interrupted []\n"
