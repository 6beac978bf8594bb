"""``files.map_room``: maps of several files, side by side at addresses of chosen remainders."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndfeed.files.map_room import Places, Room
from ndfeed.files.platform_calls import PAGE, can

pytestmark = pytest.mark.skipif(not can.place_maps, reason="Linux on 64-bit x86 and ARM only")


def write(folder, sizes):
    paths = []
    for number, size in enumerate(sizes):
        paths.append(folder / f"{number}")
        paths[-1].write_bytes(bytes((number + i) % 251 for i in range(size)))
    return paths


def count_maps():
    with open("/proc/self/maps") as maps:
        return len(maps.readlines())


@given(
    step=st.integers(1, 20_000),
    files=st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 20_000)), min_size=1, max_size=5),
)
def test_maps_are_where_they_should_be(tmp_path_factory, step, files):
    """At any remainder that a multiple of the page size can have, and apart from each other."""
    sizes = [size for size, _ in files]
    remainder = np.array([turns * PAGE % step for _, turns in files])
    paths = write(tmp_path_factory.mktemp("maps"), sizes)
    room = Room(sizes, Places(step, remainder))
    found = []
    for number, path in enumerate(paths):
        with path.open("rb") as file:
            found.append(np.frombuffer(room.map(number, file.fileno()), "u1"))
    stop = room.start
    for path, one, rest in zip(paths, found, remainder, strict=True):
        assert one.tobytes() == path.read_bytes()
        assert not one.flags.writeable
        assert one.ctypes.data % step == rest
        assert stop <= one.ctypes.data
        stop = one.ctypes.data + one.nbytes
    assert stop <= room.stop


@pytest.mark.parametrize(
    ("size", "step", "remainders", "unit"),
    [
        (3 << 20, 3072, (0, 1024), 2 << 20),
        (3 << 20, 3001, (0, 1, 3000), 2 << 20),
        (3 << 20, 8192, (0, 4096), PAGE),  # where only pages are
        (1 << 20, 3072, (0, 1024), PAGE),  # most of the addresses would be unused
    ],
)
def test_large_files_begin_at_large_pages(tmp_path, size, step, remainders, unit):
    """Their pages then need fewer entries in the tables of the system."""
    sizes = [size + 5 * number for number in range(len(remainders))]
    room = Room(sizes, Places(step, np.array(remainders)))
    starts = []
    for number, size in enumerate(sizes):
        path = tmp_path / f"{number}"
        with path.open("wb") as file:
            file.truncate(size)
        with path.open("rb") as file:
            one = np.frombuffer(room.map(number, file.fileno()), "u1")
        starts.append(one.ctypes.data)
        assert room.start <= starts[-1] <= starts[-1] + one.nbytes <= room.stop
    assert [start % step for start in starts] == list(remainders)
    assert not any(start % unit for start in starts)
    assert unit > PAGE or any(start % (2 << 20) for start in starts)


def test_other_remainders_are_refused():
    """Maps begin at pages: nothing may be shifted by less."""
    with pytest.raises(ValueError, match="no page is at 1 modulo 4096"):
        Room([1], Places(4096, np.array([1])))


def test_a_file_of_another_size_is_not_mapped(tmp_path):
    """It would reach into its neighbour's place, or leave pages that nobody may read."""
    (path,) = write(tmp_path, [5000])
    for size in (4000, 6000):
        room = Room([size], Places(PAGE, np.zeros(1, np.int64)))
        with path.open("rb") as file, pytest.raises(OSError, match="size is another one"):
            room.map(0, file.fileno())


def test_more_addresses_than_a_process_has_are_refused():
    with pytest.raises(OSError, match="too many addresses"):
        Room([1 << 39] * 3, Places(PAGE, np.zeros(3, np.int64)))


def test_addresses_are_given_back(tmp_path):
    """Of the files as well as those around them, once nobody sees a map any more."""
    paths = write(tmp_path, [300] * 50)
    before = count_maps()
    room = Room([300] * 50, Places(3001, np.arange(50) * PAGE % 3001))
    every = []
    for number, path in enumerate(paths):
        with path.open("rb") as file:
            every.append(room.map(number, file.fileno()))
    del room
    assert count_maps() > before + 50
    del every
    assert count_maps() <= before + 2


def test_a_map_that_was_dropped_leaves_its_addresses_reserved(tmp_path):
    """Otherwise other memory could come to lie there, and be dropped with the room."""
    (path,) = write(tmp_path, [9000])
    room = Room([9000], Places(PAGE, np.zeros(1, np.int64)))
    with path.open("rb") as file:
        start = np.frombuffer(room.map(0, file.fileno()), "u1").ctypes.data
        room.clear(0)
        with open("/proc/self/maps") as maps:
            assert str(path) not in maps.read()
        again = np.frombuffer(room.map(0, file.fileno()), "u1")
    assert again.ctypes.data == start
    assert again.tobytes() == path.read_bytes()


def test_a_program_with_few_addresses_maps_files_as_ever():
    """Where a limit is set, none are reserved."""
    code = (
        "import resource; from ndfeed.files.map_room import can_place; "
        "print(can_place(3000)); resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)); "
        "print(can_place(3000))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"]
