"""Mapped files are guarded: one thread keeps the leases, and a file that shrinks is an error."""

import gc
import signal
import sys
import threading
import weakref

import numpy as np
import pytest
from children import AS_NOBODY, finish, folder_for_all, run, start
from loading.making import eventually

import ndfeed
from ndfeed.dataset.reader import reader_of
from ndfeed.files import map_guard, platform_calls
from ndfeed.files import map_guard as module
from ndfeed.files.map_guard import Keeper
from ndfeed.files.maps import Maps
from ndfeed.files.platform_calls import can


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Looks that tests need not wait for."""
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.005)


class Holder:
    """Wants to be looked after a number of times."""

    def __init__(self, looks, used=False):
        self.looks, self.used = looks, used
        self.released = 0
        self.reading = False  # so that leases cannot be given up

    def tend(self):
        self.looks -= 1
        return self.looks > 0

    def release(self, until):
        self.released += 1
        return not self.reading


def ended(keeper):
    """Wait until the keeper's thread is gone."""
    return eventually(lambda: keeper._thread is None)


def test_descriptors_are_lent_up_to_half_of_what_there_are():
    """The other half is the program's own."""
    keeper = Keeper()
    most = platform_calls.open_files_limit() // 2

    assert keeper.reserve(most, 0)
    assert not keeper.reserve(1, 0)
    keeper.release(10, 0, keeper.generation)
    assert keeper.reserve(10, 0)
    assert not keeper.reserve(1, 0)


def test_maps_of_all_files_together_leave_some_to_the_program():
    """Where a million files may be open, every dataset had as many as if it were alone."""
    keeper = Keeper()
    assert keeper.reserve(0, 16_384)
    assert keeper.reserve(0, 16_384)
    assert not keeper.reserve(0, 1)
    keeper.release(0, 16_384, keeper.generation)

    assert keeper.reserve(0, 16_384)
    assert not keeper.reserve(0, 16_384)


def test_a_child_has_all_descriptors_and_gives_back_none_of_its_parents():
    """What the parent had mapped is closed in the child too, but was never counted there."""
    keeper = Keeper()
    before = keeper.generation
    keeper.reserve(100, 0)
    keeper.after_fork()
    keeper.release(100, 0, before)

    assert keeper.reserve(platform_calls.open_files_limit() // 2, 0)
    assert not keeper.reserve(1, 0)


def test_it_looks_until_nobody_needs_it():
    """And begins again when somebody does."""
    keeper = Keeper()
    first, second = Holder(3), Holder(10)
    keeper.keep(first)
    keeper.keep(second)
    assert ended(keeper)
    assert (first.looks, second.looks) == (0, 0)

    first.looks = 2
    keeper.keep(first)
    assert ended(keeper)
    assert first.looks == 0


def test_who_reads_again_in_between_is_kept():
    """Idle at the look, used a moment later: its new leases must not be left alone."""
    keeper = Keeper()
    holder = Holder(1, used=True)
    keeper.keep(holder)

    assert eventually(lambda: holder.looks < -1)  # idle since 0, and looked at again
    assert keeper._thread is not None
    holder.used = False
    assert ended(keeper)


def test_it_keeps_nobody_alive():
    """A dataset that is dropped is dropped, though its leases are being looked after."""
    keeper = Keeper()
    holder = Holder(10**9)
    gone = weakref.ref(holder)
    keeper.keep(holder)
    del holder
    gc.collect()

    assert ended(keeper)
    assert gone() is None


def test_before_a_fork_everything_is_given_up():
    """The child has no thread to look after what it would inherit."""
    keeper = Keeper()
    holder = Holder(10**9)
    keeper.keep(holder)
    thread = keeper._thread
    keeper.before_fork()

    assert not thread.is_alive()
    assert holder.released == 1
    keeper.keep(holder)
    assert keeper._thread.is_alive()
    keeper.before_fork()


def test_leases_in_use_during_a_fork_stay_with_the_parent():
    """It goes on looking after them."""
    keeper = Keeper()
    holder = Holder(10**9)
    holder.reading = True
    keeper.keep(holder)
    keeper.before_fork()
    keeper.after_fork_in_parent()
    looks = holder.looks

    assert eventually(lambda: holder.looks < looks)
    holder.reading = False
    keeper.before_fork()


def test_an_interrupt_before_the_thread_began_is_made_good():
    """Ctrl-C may come between making a thread and starting it."""
    keeper = Keeper()
    keeper._thread = threading.Thread(target=print)
    keeper.keep(Holder(1))
    keeper.before_fork()
    keeper._thread = threading.Thread(target=print)
    keeper.before_fork()

    assert keeper._thread is None


catches_sigbus = pytest.mark.skipif(not can.catch_sigbus, reason="Linux on 64-bit x86 and ARM only")

# Readers without leases, which would make whoever shortens a file wait.
UNLEASED = """
import faulthandler, signal, threading
from ndfeed.files.platform_calls import can
can.lease = False
folder, layout = args[:2]
names = [f"{folder}/x{i}.npy" for i in range(1 if layout == "one file" else 6)]
width = 65_536 if layout == "large rows" else 1024
for i, name in enumerate(names):
    np.save(name, np.full((4000 * 1024 // width, width), i + 1, "<f4"))
if layout == "ragged":
    samples = [np.full(i % 50, 7, "<f4") for i in range(9000)]
    os.mkdir(f"{folder}/source")
    for i in range(2000):
        np.save(f"{folder}/source/{i:05}.npy", np.full(1000 + i % 50, 7, "<f4"))
    ndfeed.pack(ndfeed.open(f"{folder}/source", sample="file"), f"{folder}/packed")
    names = [f"{folder}/packed/00000/data.values.npy"]
    ds = ndfeed.open(f"{folder}/packed")
else:
    ds = ndfeed.open(names, sample="row", cache=False)
"""

SHORTEN = """
said = []
def read(seed):
    rng = np.random.default_rng(seed)
    try:
        while True:
            for row in ds.read(rng.integers(0, len(ds), 256))["data"]:
                assert row.min() == row.max() > 0
    except ndfeed.ChangedError as error:
        said.append(str(error))
threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
for thread in threads:
    thread.start()
time.sleep(0.2)
if "after" in args:
    faulthandler.enable()
    time.sleep(3)  # it is looked at every second
os.truncate(names[0], 5000)
for thread in threads:
    thread.join(60)
assert all("changed since it was indexed" in one and names[0] in one for one in said), said
print(len(said))
"""


@catches_sigbus
@pytest.mark.parametrize("layout", ["one file", "small rows", "large rows", "ragged"])
def test_a_file_that_is_shortened_is_an_error_for_all_who_read(tmp_path, layout):
    """In every way of copying: with the GIL and without it, four threads at once."""
    assert run(UNLEASED + SHORTEN, tmp_path, layout) == "4\n"


@catches_sigbus
@pytest.mark.parametrize("when", ["before", "after"])
def test_another_handler_does_not_take_our_place(tmp_path, when):
    """pytest enables faulthandler before us, some servers after us."""
    code = "import faulthandler\nfaulthandler.enable()\n" if when == "before" else ""

    assert run(code + UNLEASED + SHORTEN, tmp_path, "one file", when) == "4\n"


@catches_sigbus
def test_a_forked_process_is_guarded_too(tmp_path):
    """It inherits the handler, and maps that it does not use."""
    code = """
ds[0]
pid = os.fork()
if not pid:
    ds[0]
    os.truncate(names[0], 5000)
    try:
        ds[:]
    except ndfeed.ChangedError:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

    assert run(UNLEASED + code, tmp_path, "one file") == "7\n"


@catches_sigbus
def test_files_of_another_user_are_mapped_and_guarded():
    """The usual case on a cluster: no lease can be had on them, and their owner writes."""
    code = """
ds = ndfeed.open(args[0], cache=False)
ds[0]
assert ds.groups[0].__dict__["_reader"].maps.unleased
print("reading", flush=True)
try:
    while True:
        assert (ds.read(np.arange(0, 20_000, 7))["data"] == 1).all()
except ndfeed.ChangedError as error:
    print(error)
"""
    with folder_for_all() as folder:
        np.save(folder / "x.npy", np.ones((20_000, 512), "<f4"))
        child = start(AS_NOBODY + code, folder / "x.npy")
        assert child.stdout.readline() == "reading\n"
        with open(folder / "x.npy", "r+b") as file:
            file.truncate(100_000)

        assert "bytes then, 100000 now); open the dataset again" in finish(child)


FOREIGN = """
import mmap
ds[0]
open(f"{folder}/y", "wb").write(bytes(10_000))
data = mmap.mmap(os.open(f"{folder}/y", os.O_RDONLY), 0, prot=mmap.PROT_READ)
os.truncate(f"{folder}/y", 10)
if "after" in args:
    faulthandler.enable()
    time.sleep(3)
    ds[0]  # we are on top again
print("now", flush=True)
data[5000]
"""


@catches_sigbus
@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_bus_errors_of_others_end_the_process_as_ever(tmp_path, when):
    """What is not ours is not hidden: a debugger, or faulthandler, sees it."""
    code = "import faulthandler\nfaulthandler.enable()\n" if when == "before" else ""
    child = start(code + UNLEASED + FOREIGN, tmp_path, "one file", when)
    out, err = child.communicate(timeout=250)

    assert (out, child.returncode) == ("now\n", -signal.SIGBUS)
    assert ("Fatal Python error: Bus error" in err) == (when != "never")


@catches_sigbus
def test_a_signal_that_was_sent_reaches_its_handler(tmp_path):
    """Whatever somebody uses SIGBUS for."""
    code = """
signal.signal(signal.SIGBUS, lambda *_: print("handled"))
ds[0]
os.kill(os.getpid(), signal.SIGBUS)
assert (ds[0]["data"] == 1).all()
"""

    assert run(UNLEASED + code, tmp_path, "one file") == "handled\n"


@catches_sigbus
def test_nothing_is_installed_by_an_import_or_by_opening(tmp_path):
    """Only who maps files needs it."""
    np.save(tmp_path / "x.npy", np.zeros((3, 3)))
    code = """
    import ctypes, signal
    def installed():
        found = ctypes.create_string_buffer(256)
        ctypes.CDLL(None).sigaction(signal.SIGBUS, None, found)
        return any(found.raw[:8])
    ds = ndfeed.open(args[0], cache=False)
    print(installed())
    ds[0]
    print(installed())
    """

    assert run(code, tmp_path / "x.npy") == "False\nTrue\n"


def watched():
    return len(map_guard._watched)


@catches_sigbus
def test_addresses_are_forgotten_before_they_are_used_again(tmp_path):
    """Whatever is mapped there next is not ours."""
    gc.collect()
    before = watched()
    for i in range(5):
        np.save(tmp_path / f"{i}.npy", np.zeros((3, 3)))
    ds = ndfeed.open(tmp_path, sample="row", cache=False)
    ds[:]
    kept = reader_of(ds.groups[0]).maps.bytes(2)[3:]
    assert watched() == before + 5
    del ds
    gc.collect()
    assert watched() == before + 1
    del kept

    assert watched() == before


@catches_sigbus
def test_a_page_that_cannot_be_read_is_read_by_position(tmp_path):
    """A disk that fails: the file is the same, and a plain read says what is wrong with it."""
    np.save(tmp_path / "x.npy", np.arange(100.0))
    ds = ndfeed.open(tmp_path / "x.npy", cache=False)
    ds[0]
    reader_of(ds.groups[0]).maps._lost.append(0)

    np.testing.assert_array_equal(ds.read([5, 90])["data"], [5, 90])
    np.testing.assert_array_equal(ds[:]["data"], np.arange(100.0))


@catches_sigbus
@pytest.mark.parametrize("leases", [True, False])
def test_without_any_guard_files_are_not_mapped(tmp_path, monkeypatch, leases):
    """On a system where we can neither keep writers away nor survive them."""
    np.save(tmp_path / "x.npy", np.arange(100.0))
    monkeypatch.setattr(can, "catch_sigbus", False)
    monkeypatch.setattr(can, "lease", leases)
    monkeypatch.setattr(can, "maps_keep_size", False)
    ds = ndfeed.open(tmp_path / "x.npy", cache=False)

    np.testing.assert_array_equal(ds.read([5, 90])["data"], [5, 90])
    assert (reader_of(ds.groups[0]).maps is not None) == leases
    if not leases:
        with pytest.raises(ndfeed.SourceError, match="without a guard against writers"):
            Maps(ds.groups[0].table)


@catches_sigbus
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_interpreter_ends_cleanly_with_maps_in_use(tmp_path):
    """Daemon threads read to the end; files are shortened under them; nothing is said."""
    code = """
def read():
    while True:
        try:
            ds[:]
        except ndfeed.ChangedError:
            pass
for _ in range(3):
    threading.Thread(target=read, daemon=True).start()
time.sleep(0.1)
os.truncate(names[0], 5000)
time.sleep(0.05)
"""
    child = start(UNLEASED + code, tmp_path, "small rows")
    out, err = child.communicate(timeout=250)

    if sys.version_info < (3, 14) and child.returncode == -signal.SIGABRT:
        # Python ended a daemon thread inside NumPy's C++ code, which cannot be unwound
        # (python/cpython#87135): nothing of a map.
        assert (out, err) == ("", "terminate called without an active exception\n")
    else:
        assert (out, err, child.returncode) == ("", "", 0)
