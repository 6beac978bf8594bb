"""Whoever does the work, it comes out the same; whoever dies over it is replaced."""

import multiprocessing
import os
import shutil
import sys
import textwrap
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from children import processes_at_work, run, servers
from faults.packs import AtOnce
from faults.seam import tree
from packing import making

import ndfeed
from ndfeed.files import platform_calls, process_server
from ndfeed.packing import executors

distributed = pytest.importorskip("distributed")
pytest.importorskip("ndfeed.ray", exc_type=ImportError)

SMALL = 2000  # bytes of memory, so that there are pieces enough


@pytest.fixture
def ds(folder):
    return making.npz_of_rows(folder / "source", files=8, rows=50)


@pytest.fixture
def expected(ds, folder):
    """What comes out without any of this."""
    packed = ndfeed.pack(ds.map(making.slow), folder / "expected", memory="1MB")
    return packed[:]["label"].tolist()


def processes(count=2):
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))


def pack(ds, folder, **options):
    found = ndfeed.pack(ds, folder / "packed", memory=SMALL, **options)
    assert sorted(name for name in os.listdir(folder) if "packed" in name) == ["packed"]
    return found[:]["label"].tolist()


def test_executors_of_others(ds, folder, expected):
    """Threads and processes, the same bytes."""
    mapped = ds.map(making.slow)
    trees = []
    for name, executor in (("a", ThreadPoolExecutor(3)), ("b", processes())):
        with executor:
            ndfeed.pack(mapped, folder / name, memory="1MB", workers=1, executor=executor)
        trees.append(tree(folder / name))

    assert trees[0] == trees[1]


def count_tasks(ds, target, **attributes):
    """How many tasks a pack has: memory is divided among workers, so more of them do less each."""
    executor = AtOnce()
    vars(executor).update(attributes)
    submitted = []
    submit = executor.submit
    executor.submit = lambda *args: submitted.append(args) or submit(*args)
    ndfeed.pack(ds, target, memory=100_000, executor=executor)
    return len(submitted)


def test_executors_may_say_how_many_tasks_run_at_once(tmp_path):
    """In a public attribute; what an executor keeps private is not read."""
    ds = making.npz_of_rows(tmp_path / "source", files=1, rows=20_000, compressed=False)
    one = count_tasks(ds, tmp_path / "a", max_workers=1)

    assert count_tasks(ds, tmp_path / "b", max_workers=8) > 2 * one
    assert count_tasks(ds, tmp_path / "c", max_workers=1, _max_workers=8) == one


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_do_not_draw_the_same_numbers(ds, folder, method):
    """Forked ones begin with copies of one generator, and all have PyTorch's default seed."""
    mapped = ds.map(making.drawn)
    with ProcessPoolExecutor(3, multiprocessing.get_context(method)) as executor:
        packed = ndfeed.pack(mapped, folder / "packed", memory=SMALL, executor=executor)

    for name in ("numpy", "python", "torch"):
        assert len(np.unique(packed[:][name])) == len(ds)


def test_packing_leaves_the_caller_s_generators_alone(ds, folder):
    """What runs in threads of the caller's process draws from the caller's generators."""
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.random(len(ds))  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    ndfeed.pack(ds.map(making.slow), folder / "packed", memory=SMALL, workers=1)

    assert (np.random.random(len(ds)) == expected).all()  # noqa: NPY002


def test_a_process_that_dies_is_replaced(ds, folder, expected):
    """Our own pool: a new one goes on, with nothing done twice that was noted."""
    mapped = ds.map(making.Deadly(folder / "deaths", 2))

    assert pack(mapped, folder, workers=2) == expected
    assert not os.listdir(folder / "deaths")


def test_a_piece_that_kills_whoever_does_it(ds, folder, expected):
    """It is named with its files after a few times; the same again goes on."""
    mapped = ds.map(making.Deadly(folder / "deaths", 3))

    with pytest.raises(
        ndfeed.WorkerError, match=r"3 times while running task 'rows .*\.npz to .*\.npz\)"
    ):
        pack(mapped, folder, workers=1)
    assert not (folder / "packed").exists()
    assert pack(mapped, folder, workers=1) == expected


def test_a_broken_pool_of_the_callers(ds, folder, expected):
    """Nobody but the caller can replace it."""
    mapped = ds.map(making.Deadly(folder / "deaths", 1))
    with processes() as executor, pytest.raises(ndfeed.WorkerError, match="rerun to resume"):
        pack(mapped, folder, executor=executor)
    with processes() as executor:
        assert pack(mapped, folder, executor=executor) == expected


def test_the_same_pack_twice_in_one_pool(ds, folder):
    """Processes that served the first must not look for its folder, which had the same name."""
    with processes(1) as executor:
        for _ in range(2):
            packed = ndfeed.pack(ds, folder / "packed", memory=SMALL, executor=executor)
            assert making.same(packed, ds)
            shutil.rmtree(folder / "packed")


def test_errors_come_back_from_processes(ds, folder):
    """As they were raised."""
    with processes(1) as executor, pytest.raises(ndfeed.CastError, match=r"in row .* cannot hold"):
        pack(ds, folder, executor=executor, dtype={"label": "i1"})


def test_a_worker_that_does_not_see_the_folder(ds, folder):
    """It says where it is, and what is needed."""
    with pytest.raises(ndfeed.WorkerError, match=r"worker on host .* cannot read .*packing"):
        pack(ds, folder, executor=making.Elsewhere())


def test_dask_with_a_worker_killed(ds, folder, expected):
    """A real local cluster: Dask restarts the worker, and gives its piece to another."""
    mapped = ds.map(making.Deadly(folder / "deaths", 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            assert pack(mapped, folder, executor=client.get_executor()) == expected
    assert not os.listdir(folder / "deaths")


def test_ray_with_a_worker_killed(ds, folder, expected, monkeypatch):
    """A real local Ray: it starts another worker."""
    # Its workers find the map by name, as they find ndfeed.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    mapped = ds.map(making.Deadly(folder / "deaths", 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ndfeed.ray.Executor() as executor:
            assert pack(mapped, folder, executor=executor) == expected
            with pytest.raises(ndfeed.CastError, match="cannot hold"):
                ndfeed.pack(ds, folder / "cast", executor=executor, dtype={"label": "i1"})
    assert not os.listdir(folder / "deaths")
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(print)


@pytest.fixture
def many(tmp_path):
    """Samples in files of their own, and enough of them that forks have something to do."""
    paths = []
    for i in range(40):
        paths.append(tmp_path / f"{i}.npz")
        np.savez_compressed(paths[-1], image=np.full((300, 300), i, np.uint8), label=i)
    return ndfeed.open(paths * 60, sample="file")


@pytest.fixture
def by_forks(monkeypatch):
    """Forks of a lean process run most tasks, on a machine that seems to have many cores."""
    if process_server.why_not():
        pytest.skip("needs fork")
    monkeypatch.setattr(platform_calls, "cores", lambda: 8)
    monkeypatch.setattr(executors, "_WORTH_A_FORK", -1)


def test_forks_pack_the_same(many, tmp_path, by_forks):
    """Byte for byte, whoever had which task."""
    with processes_at_work():
        ndfeed.pack(many, tmp_path / "forks")
    ndfeed.pack(many, tmp_path / "threads", workers=2)
    assert ndfeed.verify(tmp_path / "forks").ok

    assert tree(tmp_path / "forks") == tree(tmp_path / "threads")


def test_forks_report_the_error_of_threads(many, tmp_path, by_forks):
    """Which file is bad, in one line."""
    (tmp_path / "39.npz").write_bytes((tmp_path / "38.npz").read_bytes())
    said = []
    for workers in (2, 8):
        with pytest.raises(ndfeed.ChangedError, match=r"39\.npz: changed") as caught:
            ndfeed.pack(many, tmp_path / "packed", workers=workers)
        said.append(str(caught.value))

    assert said[0] == said[1]
    assert not servers()


FORKS = """
import psutil, threading
from ndfeed.files import platform_calls
from ndfeed.packing import executors
platform_calls.cores = lambda: 8
executors._WORTH_A_FORK = -1
ds = ndfeed.open([f"{args[0]}/{i}.npz" for i in range(40)] * 100, sample="file")
def workers():
    return psutil.Process().children(recursive=True)
def watch(act):
    while len(workers()) < 3:  # a server and the first of its workers
        time.sleep(0.001)
    act()
"""


@pytest.mark.skipif(process_server.why_not() != "", reason="needs fork")
def test_killed_forks_are_no_loss(many, tmp_path):
    """Their tasks are run here."""
    code = """
    def kill():
        for one in workers()[::-1]:
            one.kill()
    threading.Thread(target=watch, args=(kill,), daemon=True).start()
    packed = ndfeed.pack(ds, args[1])
    assert ndfeed.verify(args[1]).ok
    print((packed[:]["label"] == np.arange(4000) % 40).all(), workers())
    """

    assert run(FORKS + textwrap.dedent(code), tmp_path, tmp_path / "packed") == "True []\n"


@pytest.mark.skipif(process_server.why_not() != "", reason="needs fork")
def test_ctrl_c_ends_forks_and_the_pack_resumes(many, tmp_path):
    """What was recorded is not done again."""
    code = """
    interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=watch, args=(interrupt,), daemon=True).start()
    try:
        ndfeed.pack(ds, args[1])
    except KeyboardInterrupt:
        print("interrupted", workers())
    first = []
    packed = ndfeed.pack(ds, args[1], progress=lambda rows, _: first.append(rows))
    assert ndfeed.verify(args[1]).ok
    print((packed[:]["label"] == np.arange(4000) % 40).all(), first[0] > 0)
    """
    said = run(FORKS + textwrap.dedent(code), tmp_path, tmp_path / "packed")

    assert said == "interrupted []\nTrue True\n"
