"""``ndfeed.cuda.inflate`` without a GPU: on stand-ins for the driver and for nvCOMP."""

import ctypes
import itertools
import os
import zlib

import numpy as np
import pytest
from children import examples
from cuda.stand_in import StandIn, StandInNvcomp
from cuda.test_feed import Feed, compare, refuse, settle_for
from formats.making import Entry, archive, saved
from hypothesis import given, settings
from hypothesis import strategies as st

import ndfeed
from ndfeed.cuda.feed import allocate_pinned_shared
from ndfeed.loading.engine import BatchGroup
from ndfeed.loading.loader import Loader

STRATEGIES = {
    "default": zlib.Z_DEFAULT_STRATEGY,
    "filtered": zlib.Z_FILTERED,
    "Huffman only": zlib.Z_HUFFMAN_ONLY,
    "runs": zlib.Z_RLE,
    "fixed codes": zlib.Z_FIXED,
}


def deflated(name, array, level=6, strategy="default"):
    """A member of an archive."""
    content = saved(array)
    squeeze = zlib.compressobj(level, zlib.DEFLATED, -15, 8, STRATEGIES[strategy])
    data = squeeze.compress(content) + squeeze.flush()
    return Entry(f"{name}.npy", data, 8, size=len(content), crc=zlib.crc32(content))


def image(number, shape=(40, 41, 3)):
    return np.random.default_rng(number).integers(0, 1 + number % 250, shape).astype(np.uint8)


def images(folder, count=200, shape=(40, 41, 3)):
    """A dataset of deflated images, a label beside each."""
    for number in range(count):
        np.savez_compressed(folder / f"{number:04}", x=image(number, shape), y=np.int64(number))
    return ndfeed.open(folder, sample="file")


class Inflating(Feed):
    """Inflates on the stand-in, however fast that is."""

    least = 0
    compared = 8
    prefer = staticmethod(lambda rates: min(rates) > 0)

    def __init__(self, ds, driver, library):
        super().__init__(ds, driver, on_host=True)
        self.grouped = []  # how many batches were inflated together
        self.load_library = lambda: library
        self.allocate_shared = lambda size: allocate_pinned_shared(driver, size)

    def close(self):
        super().close()
        self._side.memory.trim()

    def send(self, made):
        if not isinstance(made, BatchGroup):
            return (made,)
        self.grouped.append(made.count)
        starts = range(0, made.count * made.size, made.size)
        each = [{n: v[at : at + made.size] for n, v in made.made.made.items()} for at in starts]
        return [made.made._replace(made=one) for one in each]

    def finish(self, made):
        there = {name: values for name, values in made.items() if hasattr(values, "address")}
        assert list(there) == list(made)
        return super().finish(made)


def load(ds, batch_size, driver, library, **options):
    return Loader(settle_for(ds, batch_size, **options), lambda: Inflating(ds, driver, library))


@pytest.mark.parametrize("lag", [0, 0.001])
@pytest.mark.parametrize("processes", [0, 2])
def test_batches_have_the_right_values(tmp_path, lag, processes):
    """Whoever reads the compressed bytes, and whether the device keeps up or lags behind."""
    ds = images(tmp_path)
    driver = StandIn(lag)
    with load(ds, 16, driver, StandInNvcomp(driver), shuffle=True, processes=processes) as loader:
        assert compare(loader, ds, 16, shuffle=True) == 26
        assert "inflated on stand-in by nvCOMP: about" in loader.report().way
    assert driver.faults == []


@pytest.mark.parametrize("processes", [0, 2])
def test_small_batches_are_inflated_together(tmp_path, processes):
    """A device takes as long for one stream as for a thousand; the last batch is short."""
    ds = images(tmp_path)
    driver = StandIn()
    feeds = []

    def adapt():
        feeds.append(Inflating(ds, driver, StandInNvcomp(driver)))
        return feeds[0]

    with Loader(settle_for(ds, 7, shuffle=True, processes=processes), adapt) as loader:
        assert compare(loader, ds, 7, shuffle=True) == 58
    assert max(feeds[0].grouped) > 4
    assert driver.faults == []


def test_several_threads_have_something_inflated_at_a_time(tmp_path):
    """Each in a stream of the device of its own."""
    ds = images(tmp_path)
    driver = StandIn(0.005)
    with load(ds, 16, driver, StandInNvcomp(driver), threads=4) as loader:
        compare(loader, ds, 16)
    assert len(driver.streams) > 2  # our own, and a lane for each thread that came early


def test_fields_that_are_not_deflated_come_beside_the_others(tmp_path):
    """Stored members, those in Fortran order and in the other byte order are read on the CPU."""
    for number in range(60):
        (tmp_path / f"{number:03}.npz").write_bytes(
            archive(
                deflated("x", image(number)),
                Entry("stored.npy", saved(np.full(7, number))),
                deflated("fortran", np.asfortranarray(image(number, (5, 6)))),
                deflated("swapped", np.arange(number, number + 9).astype(">i4")),
            )
        )
    np.save(tmp_path / "labels.npy", np.arange(60))
    ds = ndfeed.open({"f": tmp_path / "*.npz", "label": tmp_path / "labels.npy"})
    driver = StandIn()
    with load(ds, 16, driver, StandInNvcomp(driver), shuffle=True) as loader:
        compare(loader, ds, 16, shuffle=True)
        assert "inflated on stand-in" in loader.report().way
    assert driver.faults == []


@settings(max_examples=examples(25), deadline=None)
@given(
    shape=st.lists(st.integers(0, 40), max_size=3),
    dtype=st.sampled_from(["u1", "<i2", "<f4", "<c16"]),
    level=st.integers(0, 9),
    strategy=st.sampled_from(sorted(STRATEGIES)),
    spread=st.integers(1, 255),
    count=st.integers(1, 40),
)
def test_any_array_by_any_deflate(tmp_path_factory, shape, dtype, level, strategy, spread, count):
    """Stored blocks, fixed codes, nothing but a header."""
    folder = tmp_path_factory.mktemp("any")
    rng = np.random.default_rng(spread)
    for number in range(count):
        values = rng.integers(0, spread, shape).astype(dtype)
        members = deflated("x", values, level, strategy), deflated("y", np.int64(number))
        (folder / f"{number:03}.npz").write_bytes(archive(*members))
    ds = ndfeed.open(folder, sample="file")
    driver = StandIn()
    with load(ds, 7, driver, StandInNvcomp(driver), shuffle=True) as loader:
        compare(loader, ds, 7, shuffle=True)
        assert "inflated on stand-in by nvCOMP: about" in loader.report().way
    assert driver.faults == []


def spoiling(what, after):
    """Makes a stand-in report something wrong for one stream, after some batches."""
    calls = []

    def spoil(found):
        calls.append(found)
        if len(calls) == after:
            if what == "values":
                target = ctypes.c_int64.from_address(found["targets"] + 24).value
                ctypes.memset(target + 200, 7, 50)
            else:
                found[what][3] += 5

    return spoil


@pytest.mark.parametrize("what", ["statuses", "found", "values"])
def test_what_the_device_gets_wrong_is_read_on_the_cpu(tmp_path, what):
    """Whether it says so, or only the size or the checksum does."""
    ds = images(tmp_path, 64)
    driver = StandIn()
    library = StandInNvcomp(driver, spoiling(what, 5))
    with load(ds, 16, driver, library, shuffle=True) as loader:
        compare(loader, ds, 16, shuffle=True)
        assert "by nvCOMP, 1 samples on the CPU" in loader.report().way
    assert driver.faults == []


@pytest.mark.parametrize("damage", ["the data", "the checksum"])
def test_a_damaged_file_is_named_in_its_batch(tmp_path, damage):
    """As on the CPU, which reads it again. The first samples are looked at before."""
    images(tmp_path, 300)
    whole = (tmp_path / "0299.npz").read_bytes()
    entry = deflated("x", image(101))
    changes = {"data": entry.data[:500] + b"\xff\xff" + entry.data[502:]}
    if damage == "the checksum":
        changes = {"data": entry.data}
        entry.crc ^= 1
    bad = archive(
        Entry("x.npy", changes["data"], 8, size=entry.size, crc=entry.crc),
        deflated("y", np.int64(101)),
    )
    assert bad != whole
    (tmp_path / "0101.npz").write_bytes(bad)
    ds = ndfeed.open(tmp_path, sample="file")
    driver = StandIn()
    with load(ds, 20, driver, StandInNvcomp(driver)) as loader:
        batches = iter(loader)
        for number in range(5):
            np.testing.assert_array_equal(next(batches)["y"], np.arange(20) + 20 * number)
        with pytest.raises(ndfeed.FormatError, match=r"0101\.npz"):
            next(batches)
        assert "inflated on stand-in" in loader.report().way
    assert driver.faults == []


def truncated(path):
    os.truncate(path, 200)


def replaced(path):
    other = path.with_name("other")
    other.write_bytes(archive(deflated("x", image(7)), deflated("y", np.int64(7))))
    os.replace(other, path)


def compare_images(epochs):
    """Compare every image with its label, which says what it is."""
    for batch in itertools.chain.from_iterable(epochs):
        for x, y in zip(batch["x"], batch["y"].tolist(), strict=True):
            np.testing.assert_array_equal(np.asarray(x), image(y))


@pytest.mark.parametrize("change", [truncated, replaced])
def test_a_file_that_changes_is_an_error_and_no_wrong_batch(tmp_path, change):
    ds = images(tmp_path, 120)
    driver = StandIn()
    with load(ds, 20, driver, StandInNvcomp(driver)) as loader:
        compare(loader, ds, 20)
        change(tmp_path / "0077.npz")
        with pytest.raises(ndfeed.ChangedError, match=r"0077\.npz"):  # or, at first, what was read
            compare_images(itertools.islice(itertools.repeat(loader), 3))
    assert driver.faults == []


def test_a_device_without_memory_left_leaves_it_to_the_cpu(tmp_path):
    """In the middle of a pass: the values are the same, and the report says why."""
    ds = images(tmp_path, 200)
    driver = StandIn()
    library = StandInNvcomp(driver)
    with load(ds, 20, driver, library) as loader:
        next(iter(loader))
        library.decode = refuse
        compare(loader, ds, 20)
        assert "inflated on the CPU for stand-in, since refused" in loader.report().way
    assert driver.faults == []


def test_memory_is_given_back(tmp_path):
    ds = images(tmp_path, 100)
    driver = StandIn()
    room = driver.room
    for seed in range(2):
        with load(ds, 20, driver, StandInNvcomp(driver), seed=seed, shuffle=True) as loader:
            compare(loader, ds, 20, seed=seed, shuffle=True)
            assert driver.room < room
            streams = len(driver.streams)
        assert driver.room == room
    assert streams < 2 + 2 * 2  # a loader has its own, and lanes are used again
