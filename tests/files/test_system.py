"""Everything works with every capability switched off."""

import dataclasses
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from dataset.layouts import LAYOUTS, open_layout, samples
from hypothesis import given
from hypothesis import strategies as st

from ndfeed.files import platform_calls
from ndfeed.files.platform_calls import can

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
