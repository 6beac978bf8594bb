"""Hints are right where the system has them, and everything works without any capability."""

import dataclasses
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from children import run
from dataset.layouts import LAYOUTS, open_layout, samples
from hypothesis import given
from hypothesis import strategies as st

from ndfeed.files import platform_calls
from ndfeed.files.platform_calls import can


@pytest.fixture
def file(tmp_path):
    """An open file of some pages."""
    path = tmp_path / "x"
    path.write_bytes(bytes(64 << 12))
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_what_was_read_is_in_memory(file):
    """Or rows that are there would be asked for again and again."""
    os.pread(file, 64 << 12, 0)

    assert platform_calls.resident(file, 0)
    assert platform_calls.resident(file, (64 << 12) - 1)


def test_beyond_the_end_nothing_is_missing(file):
    """A file that was shortened is for whoever reads to find out."""
    assert platform_calls.resident(file, 1 << 40)


def test_asking_changes_nothing(file):
    """Neither the offset nor the bytes."""
    platform_calls.will_need(file, [(0, 4096), (8 << 12, 64 << 12), (1 << 40, 1 << 41)])

    assert os.lseek(file, 0, os.SEEK_CUR) == 0
    assert os.pread(file, 8, 0) == bytes(8)


@pytest.mark.parametrize("lacking", ["probe", "advise"])
def test_without_the_calls_everything_counts_as_there(file, monkeypatch, lacking):
    """On platforms that lack them reading is as it was."""
    monkeypatch.setattr(can, lacking, False)
    platform_calls.will_need(file, [(0, 4096)])

    assert platform_calls.resident(file, 0)


def test_a_closed_descriptor_is_no_error():
    """A hint that comes too late is none."""
    platform_calls.will_need(1 << 20, [(0, 1)])

    assert platform_calls.resident(1 << 20, 0)


def test_what_is_dropped_is_read_from_the_disk_again(tmp_path):
    """And no byte is another."""
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 4096)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)  # what the disk lacks is never dropped
    for _ in range(20):  # what was just written is not let go of at once
        platform_calls.drop(fd)
        gone = not platform_calls.resident(fd, 1 << 19)
        if gone:
            break
        time.sleep(0.01)
    data = os.pread(fd, 1 << 20, 0)
    os.close(fd)

    assert data == bytes(range(256)) * 4096
    if not gone:
        pytest.skip("this file system keeps everything in memory, or cannot say what it keeps")


def test_dropping_with_nothing_to_drop_is_no_error(file, monkeypatch):
    """Neither a closed descriptor nor a platform that cannot."""
    platform_calls.drop(1 << 20)
    monkeypatch.setattr(can, "advise", False)
    platform_calls.drop(file)

    assert os.pread(file, 8, 0) == bytes(8)


CAPABILITIES = [field.name for field in dataclasses.fields(can)]
DATA = bytes(range(256)) * 40


def switch_off(monkeypatch, which):
    """Switch off one capability, or all of them."""
    for name in CAPABILITIES if which == "all" else [which]:
        monkeypatch.setattr(can, name, False)


@pytest.fixture
def fd(tmp_path):
    """A file that holds DATA."""
    (tmp_path / "x").write_bytes(DATA)
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.mark.filterwarnings("ignore:.*Fortran")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("off", [*CAPABILITIES, "all"])
def test_reading_is_right_without(tmp_path, monkeypatch, off, layout):
    """What a platform lacks costs time, never data."""
    switch_off(monkeypatch, off)
    ds = open_layout(tmp_path, layout)
    rows = [5, 0, 23, 5, 11]

    np.testing.assert_array_equal(ds.read(rows)["data"], samples()[rows])
    np.testing.assert_array_equal(ds[:]["data"], samples())
    np.testing.assert_array_equal(ds.in_memory().read(rows)["data"], samples()[rows])


ways = pytest.mark.parametrize(
    "off", [(), ("preadv",), ("pread", "preadv")], ids=["all", "no preadv", "no pread"]
)


@ways
@pytest.mark.parametrize("most", [1 << 30, 100])
def test_bytes_are_read_by_position(fd, monkeypatch, off, most):
    """Also where one call of the kernel's gives less than was asked for."""
    monkeypatch.setattr(platform_calls, "MOST_PER_CALL", most)
    for name in off:
        monkeypatch.setattr(can, name, False)

    @given(st.lists(st.integers(0, 700), max_size=12), st.integers(0, len(DATA)))
    def check(lengths, start):
        buffers = [memoryview(bytearray(length)) for length in lengths]
        wanted = DATA[start : start + sum(lengths)]

        assert platform_calls.preadv(fd, buffers, start) == len(wanted)
        assert b"".join(buffers)[: len(wanted)] == wanted
        assert platform_calls.pread(fd, sum(lengths), start) == wanted

    check()


@ways
def test_more_buffers_than_the_kernel_takes(fd, monkeypatch, off):
    """It takes 1024 of them in a call."""
    for name in off:
        monkeypatch.setattr(can, name, False)
    buffers = [memoryview(bytearray(3)) for _ in range(3000)]

    assert platform_calls.preadv(fd, buffers, 10) == 9000
    assert b"".join(buffers) == DATA[10:9010]


def test_threads_do_not_disturb_each_other_without_pread(fd, monkeypatch):
    """There is one offset per descriptor: between moving it and reading nobody may come."""
    switch_off(monkeypatch, "all")
    starts = np.random.default_rng(0).integers(0, len(DATA) - 50, 4000).tolist()
    begin = threading.Barrier(8)

    def read(part):
        begin.wait()
        return [platform_calls.pread(fd, 50, start) == DATA[start : start + 50] for start in part]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, [starts[i::8] for i in range(8)]))

    assert all(map(all, found))


def test_the_machine_can_be_asked():
    """Budgets are taken from these: none, or nonsense, would be a wrong budget."""
    free = platform_calls.free_memory()

    assert platform_calls.open_files_limit() >= 64
    assert platform_calls.memory_bytes() > 1 << 20
    assert free is None or 0 < free <= platform_calls.memory_bytes()
    assert platform_calls.waits() >= 0


def test_private_memory_is_writable_and_empty():
    """As new memory is, in large pages or not."""
    memory = np.frombuffer(platform_calls.private_memory(3 << 20), np.uint8)
    assert not memory.any()
    memory[:] = 7

    assert memory.sum() == 7 * (3 << 20)


def test_what_the_machine_has():
    """Numbers that can be reckoned with."""
    assert 1 <= platform_calls.cores() <= (os.cpu_count() or 1)
    assert platform_calls.memory_bytes() > 1 << 20
    assert (platform_calls.disk_bytes() or 0) >= 0


NAMES = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
)


@pytest.mark.parametrize("name", NAMES)
def test_cores_are_shared_among_ranks(monkeypatch, name):
    """As launchers tell how many there are on this host."""
    monkeypatch.setattr(platform_calls, "cores", lambda: 16)
    monkeypatch.setattr(platform_calls.limits, "cores_of_parent", lambda: 16)
    for other in NAMES:
        monkeypatch.delenv(other, raising=False)
    found = []
    for ranks in ("", "1", "4", "5", "64", "many"):
        monkeypatch.setenv(name, ranks)
        found.append(platform_calls.share_of_cores())

    assert found == [16, 16, 4, 3, 1, 16]


def test_launchers_are_asked_from_the_innermost(monkeypatch):
    """One task of srun on each host, which starts torchrun; and what srun says of several hosts."""
    monkeypatch.setattr(platform_calls, "cores", lambda: 16)
    monkeypatch.setattr(platform_calls.limits, "cores_of_parent", lambda: 16)
    for other in NAMES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "2(x4)")
    assert platform_calls.share_of_cores() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert platform_calls.share_of_cores() == 2


@pytest.mark.parametrize(("own", "share"), [(2, 2), (4, 4), (8, 4), (16, 4)])
def test_a_rank_uses_no_more_than_its_share_of_what_it_is_bound_to(monkeypatch, own, share):
    """To a core or to a socket, of the 16 cores that its launcher has for four ranks."""
    monkeypatch.setattr(platform_calls, "cores", lambda: own)
    monkeypatch.setattr(platform_calls.limits, "cores_of_parent", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")

    assert platform_calls.share_of_cores() == share


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be bound here")
@pytest.mark.skipif(platform_calls.cores() < 2, reason="needs two cores")
def test_cores_that_a_rank_is_bound_to_are_not_divided_again():
    """As by MPI, srun or numactl: a rank has one core of two, and not half of that."""
    code = """
    from ndfeed.files import platform_calls
    os.environ["LOCAL_WORLD_SIZE"] = args[0]
    both = sorted(os.sched_getaffinity(0))[:4]
    os.sched_setaffinity(0, both)
    for own in (both, both[: len(both) // 2], both[:1]):
        if not os.fork():
            os.sched_setaffinity(0, own)
            print(len(both), len(own), platform_calls.share_of_cores(), flush=True)
            os._exit(0)
        os.wait()
    """
    for line in run(code, "2").splitlines():
        both, own, share = map(int, line.split())

        assert share == min(own, both // 2)
