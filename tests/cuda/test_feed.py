"""``ndfeed.cuda`` without a GPU: values, lifetimes and refusals, on a stand-in for the driver."""

import ctypes
import gc
import os
import signal
import threading

import numpy as np
import pytest
from children import run
from cuda.compile_kernels import COMPILED, digest
from cuda.stand_in import StandIn
from loading.making import files

import ndfeed
from ndfeed.cuda.driver import KERNELS, Refused
from ndfeed.cuda.feed import CudaFeed, allocate_pinned, allocate_pinned_shared
from ndfeed.cuda.kernels import Orders
from ndfeed.cuda.own_memory import OwnMemory
from ndfeed.cuda.registered import share_registered
from ndfeed.cuda.side import Sent, Side, resolve
from ndfeed.dataset.column import columns_of
from ndfeed.dataset.reader import reader_of
from ndfeed.files import maps
from ndfeed.files.platform_calls import elapsed
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.host_source import HostSource
from ndfeed.loading.loader import Loader
from ndfeed.loading.options import settle
from ndfeed.order.permutation import permute_by, permuted


class Memory(OwnMemory):
    """Notes which threads are put on our stream."""

    def join(self):
        self.joined.add(threading.get_ident())


class Feed(CudaFeed):
    """Delivers arrays, when the device has filled them."""

    def __init__(self, ds, driver, joined=None, **options):
        self.driver = driver
        fields = {c.field.name: c.field for c in columns_of(ds.groups)}
        memory = Memory(driver, {name: (f.dtype, f.lengths) for name, f in fields.items()})
        memory.joined = set() if joined is None else joined
        side = Side(driver, driver.make_stream(), memory)
        super().__init__(ds, side, settle_for(ds, 1).options.structure, "stand-in", **options)
        self.allocate = lambda size: allocate_pinned(driver, size)

    def finish(self, made):
        return Sent(made, self._side.event)

    def receive(self, made):
        resolve(made.event).wait()
        return {name: copied(span) for name, span in made.made.items()}


def copied(span):
    """What the stand-in's device has in its memory, which is this process's."""
    room = (ctypes.c_uint8 * span.nbytes).from_address(span.address)
    return np.ctypeslib.as_array(room).view(span.dtype).reshape(span.shape).copy()


def settle_for(ds, batch_size, **options):
    given = {"tokens": None, "shard": (0, 1), "drop_last": False, "seed": 0, "fields": None}
    given |= {"memory": "64MB", "threads": None, "processes": None, "ragged": "list"}
    given |= {"on_error": "raise", "pad_to": None, "pad_value": None, "shuffle": False}
    return settle(ds, batch_size, **given | options)


def load(ds, batch_size, driver, *, resident=False, joined=None, **options):
    """A loader that feeds the stand-in."""
    adapt = lambda: Feed(ds, driver, joined, resident=resident)  # noqa: E731
    return Loader(settle_for(ds, batch_size, **options), adapt)


SHAPES = {
    "small": {"x": ("<f4", 5000, 7)},
    "large": {"x": ("u1", 300, 40_000)},
    "image and label": {"x": ("u1", 300, 40_000), "y": ("<i8", 300), "z": ("u1", 300, 3)},
    "many small": {"a": ("<i2", 4000, 3), "b": ("<f8", 4000), "c": ("u1", 4000, 5)},
    "odd": {"x": ("u1", 3000, 13)},
}


def compare(loader, ds, batch_size, *, epoch=0, **options):
    """Compare two epochs with those of a loader of arrays."""
    expected = ndfeed.loader(ds, batch_size, **options)
    expected.epoch = epoch
    count = 0
    for _ in range(2):
        for batch, arrays in zip(loader, expected, strict=True):
            assert list(batch) == list(arrays)
            for name, values in arrays.items():
                np.testing.assert_array_equal(batch[name], values)
            count += 1
    return count


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("label", SHAPES)
@pytest.mark.parametrize("lag", [0, 0.001])
def test_batches_have_the_right_values(tmp_path, label, resident, lag):
    """Whether the device keeps up or lags behind."""
    ds = files(tmp_path, **SHAPES[label])
    driver = StandIn(lag)
    with load(ds, 32, driver, resident=resident, shuffle=True) as loader:
        assert compare(loader, ds, 32, shuffle=True) > 10
        way = loader.report().way
    assert ("resident" if resident else "reads the files") in way
    assert driver.faults == []
    assert driver.registered == 0


@pytest.mark.parametrize("resident", [False, True])
def test_the_thread_of_the_consumer_keeps_its_stream(tmp_path, resident):
    """Only threads of our own are put on our stream: theirs, and who fills a device's memory."""
    ds = files(tmp_path, **SHAPES["small"])
    joined = set()
    with load(ds, 32, StandIn(), resident=resident, joined=joined) as loader:
        assert sum(1 for _ in loader) == 157
    assert joined
    assert threading.get_ident() not in joined


def test_loaders_of_the_same_file_share_its_pages(tmp_path):
    """They can be registered once only, and the first that ends must not take them from others."""
    ds = files(tmp_path, **SHAPES["small"])
    driver = StandIn()
    first, second = (load(ds, 32, driver, shuffle=True, seed=seed) for seed in range(2))
    for _ in zip(first, second, strict=True):
        pass
    ways = [loader.report().way for loader in (first, second)]
    assert all("reads the files" in way for way in ways)
    first.close()
    compare(second, ds, 32, shuffle=True, seed=1, epoch=1)
    second.close()
    assert driver.registered == 0
    assert driver.faults == []


def test_a_thread_that_still_reads_when_its_loader_is_closed(tmp_path):
    """Registering many pages takes longer than ``close`` waits; the device then reads them."""
    ds = files(tmp_path, **SHAPES["small"])
    driver = StandIn(lag=0.02)
    began, go = threading.Event(), threading.Event()
    register = driver.register
    driver.register = lambda *args: (register(*args), began.set(), go.wait(30))
    feed = Feed(ds, driver)
    host = HostSource(ds, settle_for(ds, 1).options, Pool(4), None)
    source, made = feed.source(host), []
    reading = threading.Thread(target=lambda: made.append(source.read(np.arange(50))))
    reading.start()
    assert began.wait(30)
    closing = threading.Thread(target=feed.close)
    closing.start()
    closing.join(0.1)
    go.set()
    for thread in (reading, closing):
        thread.join(30)
    feed._side.flight.settle(0)
    np.testing.assert_array_equal(copied(made[0]["x"]), ds[:50]["x"])
    feed.close()
    assert driver.faults == []
    assert driver.registered == 0


def test_a_device_that_failed_leaves_the_files_to_others(tmp_path):
    """As after an assertion in a kernel of the consumer, whose error must not be hidden by ours."""
    ds = files(tmp_path, **SHAPES["large"])
    driver = StandIn(0.02)
    with load(ds, 8, driver) as loader:
        batches = iter(loader)
        next(batches)
        driver.failed = True
    assert driver.registered == 0
    assert reader_of(ds.groups[0]).maps.release(elapsed() + 10)  # nobody is said to be reading


def test_ctrl_c_while_a_loader_is_closed(tmp_path):
    """What the device has read is given up all the same."""
    ds = files(tmp_path, **SHAPES["large"])
    driver = StandIn()
    driver.go.clear()
    loader = load(ds, 8, driver)
    batches = iter(loader)
    assert driver.held.wait(30)  # the device has work, which closing waits for

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        driver.go.set()

    def close():
        threading.Timer(0.3, interrupt).start()
        loader.close()

    with pytest.raises(KeyboardInterrupt):
        close()
    loader.close()
    assert reader_of(ds.groups[0]).maps.release(elapsed() + 10)
    del batches


@pytest.mark.parametrize(
    ("label", "engines", "by"),
    [
        ("small", True, "a kernel"),
        ("large", True, "its copy engines"),
        ("image and label", True, "both"),
        ("large", False, "a kernel"),
        ("image and label", False, "a kernel"),
    ],
)
def test_the_report_says_who_reads(tmp_path, label, engines, by):
    """Drivers before CUDA 12.8 have no call that lets the copy engines fetch many rows."""
    ds = files(tmp_path, **SHAPES[label])
    driver = StandIn()
    driver.copies_rows = engines
    with load(ds, 32, driver, shuffle=True) as loader:
        compare(loader, ds, 32, shuffle=True)
        assert f"reads the files by {by}, " in loader.report().way
    assert driver.faults == []


def test_many_files_and_a_selection_of_rows(tmp_path):
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", np.full((100 + number, 9), number, "<i4"))
    ds = ndfeed.open(tmp_path, sample="row").take(range(3, 480, 2))
    driver = StandIn()
    with load(ds, 16, driver, shuffle=True) as loader:
        compare(loader, ds, 16, shuffle=True)
    assert driver.faults == []


def test_windows_are_read_by_the_device(tmp_path):
    """Their rows overlap: a window is a record whose pitch is not its size."""
    np.save(tmp_path / "x.npy", np.arange(5000, dtype="<u2"))
    ds = ndfeed.open(tmp_path / "x.npy", sample="row").windows(65)
    driver = StandIn()
    with load(ds, 64, driver, shuffle=True) as loader:
        compare(loader, ds, 64, shuffle=True)
        assert "reads the files" in loader.report().way
    assert driver.faults == []


def volumes(folder, dtype="<i2", order="C"):
    """Cases of different sizes, with a mask of the same size and a number."""
    for number in range(5):
        shape = 20 + number, 24, 30 - number
        values = (np.arange(np.prod(shape)) * 7 % 251).reshape(shape)
        for name, kind in (("image", dtype), ("mask", "u1")):
            (folder / name).mkdir(exist_ok=True)
            np.save(folder / name / f"{number}.npy", np.asarray(values, kind, order=order))
        (folder / "patient").mkdir(exist_ok=True)
        np.save(folder / "patient" / f"{number}.npy", np.full(3, number))
    return ndfeed.open(
        {name: folder / name for name in ("image", "mask", "patient")}, sample="file"
    )


@pytest.mark.parametrize(
    "options",
    [
        {"each": 8},
        {"each": 3, "place": True},
        {"grid": 2},
        {"at": [[0, 1, 2, 3], [4, 0, 5, 9]] * 9},
    ],
)
def test_crops_are_read_by_the_device(tmp_path, options):
    """Stretch by stretch; a field that is not cropped comes with every crop of its case."""
    ds = volumes(tmp_path).crops({"image": (9, 8, 17), "mask": (9, 8, 17)}, **options)
    driver = StandIn(0.0005)
    with load(ds, 4, driver, shuffle=True) as loader:
        assert compare(loader, ds, 4, shuffle=True) > 3
        assert "reads the files by a kernel" in loader.report().way
    assert driver.faults == []
    assert driver.registered == 0


def test_elements_that_are_scattered_go_through_pinned_memory(tmp_path):
    """What says where each of them is would be larger than they are."""
    ds = volumes(tmp_path, order="F").crops({"image": (9, 8, 17), "mask": (9, 8, 17)}, each=3)
    driver = StandIn()
    with load(ds, 4, driver, shuffle=True) as loader:
        compare(loader, ds, 4, shuffle=True)
        assert "through pinned memory to stand-in: rows are" in loader.report().way
    assert driver.faults == []


def test_compressed_rows_go_through_pinned_memory(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(4000).reshape(400, 10))
    ds = ndfeed.open(tmp_path / "x.npz", sample="row")
    driver = StandIn(0.0005)
    with load(ds, 16, driver, shuffle=True) as loader:
        compare(loader, ds, 16, shuffle=True)
        assert "through pinned memory" in loader.report().way
    assert driver.faults == []


def test_labels_are_fetched_for_many_batches_at_once(tmp_path):
    """A call to the driver for each batch's labels would take as long as its images."""
    ds = files(tmp_path, **SHAPES["image and label"])
    driver = StandIn()
    launched = []
    with load(ds, 4, driver, shuffle=True, memory="2MB") as loader:
        stream = next(iter(loader)) and driver.streams[1]
        launch = stream.launch
        stream.launch = lambda *args: (launched.append(args[0]), launch(*args))
        batches = sum(1 for _ in loader)
    assert batches == 75
    assert len(launched) <= 8


def test_a_refusal_in_the_middle_of_a_pass_changes_the_way_alone(tmp_path):
    ds = files(tmp_path, **SHAPES["small"])
    driver = StandIn()
    driver.register = refuse
    with load(ds, 32, driver, shuffle=True) as loader:
        compare(loader, ds, 32, shuffle=True)
        assert "through pinned memory to stand-in: refused" in loader.report().way


def refuse(*_, **__):
    raise Refused("refused")


def test_a_writer_waits_until_the_device_has_read(tmp_path):
    """The lease is given up only when the last copy is done."""
    ds = files(tmp_path, **SHAPES["large"])
    driver = StandIn(0.02)
    with load(ds, 8, driver) as loader:
        batches = (batch for _ in range(1000) for batch in loader)
        next(batches)
        done = threading.Event()

        def write():
            with open(tmp_path / "x.npy", "r+b") as file:  # waits for the lease
                done.set()
                file.seek(5000)
                file.write(b"\xff" * 5000)

        threading.Thread(target=write, daemon=True).start()
        with pytest.raises(ndfeed.ChangedError):
            assert all((batch["x"] < 251).all() for batch in batches)
        assert done.wait(20)
    assert driver.faults == []


def test_a_process_that_was_stopped_before_the_device_was_asked(tmp_path, monkeypatch):
    """Writers wait for a lease for a while only, and do not know that it is stopped."""
    ds = files(tmp_path, **SHAPES["small"])
    driver = StandIn()
    feed = Feed(ds, driver)
    source = feed.source(HostSource(ds, settle_for(ds, 1).options, Pool(4), None))
    source.read(np.arange(50))
    launch = driver.streams[1].launch

    def launch_late(*args):
        os.utime(tmp_path / "x.npy", (0, 0))  # as if somebody had written
        monkeypatch.setattr(maps, "elapsed", lambda: elapsed() + 100)
        launch(*args)

    driver.streams[1].launch = launch_late
    with pytest.raises(ndfeed.ChangedError):
        source.read(np.arange(50))
    feed.close()
    assert driver.faults == []


@pytest.mark.parametrize("n", [9, 500, 513, 70_000, (1 << 32) - 1, 1 << 32, 1 << 40])
def test_an_order_worked_out_elsewhere_is_the_same(n):
    """By the arithmetic of the kernel, in another form."""
    driver = StandIn()
    orders = Orders(driver, many=1)
    positions = np.unique(np.linspace(0, n - 1, 300).astype(np.int64))
    expected = permuted(positions, n, 12345)
    permute_by(orders.permute)
    try:
        found = permuted(positions, n, 12345)
    finally:
        permute_by(None)
    np.testing.assert_array_equal(found, expected)
    assert driver.faults == []


def test_a_device_without_memory_leaves_the_order_to_the_cpu():
    orders = Orders(StandIn(room=0), many=1)
    permute_by(orders.permute)
    try:
        assert sorted(permuted(np.arange(1000), 1000, 3)) == list(range(1000))
    finally:
        permute_by(None)
    assert orders.refused


def test_streams_are_used_again():
    """Every loader works orders out on some of its own, and none is ever destroyed."""
    driver = StandIn()
    for _ in range(3):
        orders = Orders(driver, many=1)
        permute_by(orders.permute)
        try:
            permuted(np.arange(1000), 1000, 3)
        finally:
            permute_by(None)
        orders.close()
    assert len(driver.streams) == 1


def test_the_kernels_are_those_of_the_source():
    """``tests/cuda/compile_kernels.py`` makes them again."""
    code = COMPILED.read_text()
    assert code.startswith(f"{digest()}\n")
    assert all(f".entry {name}(" in code for name in KERNELS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_fork_frees_nothing(tmp_path):
    """It has neither the device nor what was allocated there, only Python's objects."""
    ds = files(tmp_path, **SHAPES["small"])
    driver = StandIn()
    loader = load(ds, 32, driver)
    kept = [next(iter(loader)), allocate_pinned(driver, 4096), allocate_pinned_shared(driver, 4096)]
    kept.append(OwnMemory(driver, {"x": (np.dtype("<f4"), (7,))}))
    kept[-1].take_back(driver.allocate(4096), 4096)
    pages = share_registered(driver, reader_of(ds.groups[0]).maps, [20 << 10])
    pages.ensure(0, np.array([128]), 10, 1 << 30)
    child = os.fork()
    if not child:
        kept.clear()
        pages.release()
        gc.collect()
        os._exit(len(driver.faults))
    _, status = os.waitpid(child, 0)
    pages.release()
    loader.close()

    assert os.waitstatus_to_exitcode(status) == 0


# Stands in for the driver of a GPU.
PAGES = """
import contextlib
from ndfeed.dataset.reader import reader_of
from ndfeed.cuda.registered import share_registered

class Driver:
    context = contextlib.nullcontext
    process = os.getpid()
    def register(self, address, size):
        print("registered", flush=True)
    def unregister(self, address):
        print("taken back", flush=True)

ds = ndfeed.open(args[0])
group = ds.groups[0]
driver = Driver()
pages = share_registered(driver, reader_of(group).maps, group.table.identity[:, 2].tolist())
reader_of(group).maps.enter(0)
pages.ensure(0, np.array([128]), 10, 1 << 30)
"""


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("pages.release()", ["registered", "taken back"]),
        ("del pages", ["registered", "taken back"]),
        ("", ["registered"]),
    ],
    ids=["closed", "gone", "at the end of the process"],
)
def test_pages_are_taken_back_by_who_knows_that_nothing_reads_them(tmp_path, then, said):
    """At its end a process has threads at work still; first the loader must have stopped them."""
    np.save(tmp_path / "x.npy", np.zeros((100, 10), np.uint8))

    assert run(PAGES + then, tmp_path / "x.npy").split("\n")[:-1] == said
