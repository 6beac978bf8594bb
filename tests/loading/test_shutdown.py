"""Whatever way a pass ends, threads and processes are gone soon after, and nothing hangs."""

import gc
import multiprocessing
import os
import signal
import sys
import time

import numpy as np
import pytest
from children import finish, run, start
from loading.making import (
    LARGE,
    alive,
    doubled,
    epoch_of,
    eventually,
    in_process,
    large_rows,
    numbers,
    one_per_file,
    rows_of,
    running,
    threads,
)

import ndfeed
from ndfeed.loading.loader import Loader

SOON = 20.0  # seconds: a tenth of that is promised, on a machine that has nothing else to do

each_kind = pytest.mark.parametrize("processes", [0, 2], ids=["threads", "processes"])


@pytest.fixture
def ds(tmp_path):
    """Many batches, most of which are still to come when a test leaves."""
    return numbers(tmp_path, 4000, width=16).map(doubled)


def all_gone():
    return not threads() and not running()


def check_gone(seconds=SOON):
    """Gone by itself, in less time than anything that a test has it wait for."""
    assert eventually(all_gone, seconds), (threads(), running())


@pytest.fixture(autouse=True)
def nothing_before_nor_behind():
    """What a test leaves behind is its own failure, and not that of every test after it."""
    gc.collect()
    check_gone(60)
    yield
    gc.collect()
    try:
        check_gone(60)
    finally:
        for loader in [one for one in gc.get_objects() if type(one) is Loader]:
            loader.close()


@each_kind
def test_close_in_mid_iteration(ds, processes):
    """The other pass is told, whoever holds it."""
    loader = ndfeed.loader(ds, 8, processes=processes, threads=2)
    batches = iter(loader)
    next(batches)
    assert len(threads()) == 2
    # By number: other children of this test run may come and go.
    workers = loader._runtimes.every[0]._processes
    pids = [child.pid for child in workers._all] if workers else []
    assert len(pids) == processes
    assert all(map(alive, pids))
    loader.close()

    assert not threads()
    assert not any(map(alive, pids))
    with pytest.raises(RuntimeError, match=r"this loader was begun|closed"):
        next(batches)


@each_kind
def test_closing_twice_and_never_begun(ds, processes):
    """close() is safe to call at any time."""
    loader = ndfeed.loader(ds, 8, processes=processes)
    loader.close()
    next(iter(loader))
    loader.close()
    loader.close()

    check_gone()


@each_kind
def test_after_close_it_can_be_iterated_again(ds, processes):
    """The epoch that was left counts; the next one is whole."""
    with ndfeed.loader(ds, 500, processes=processes) as loader:
        batches = iter(loader)
        next(batches)
        loader.close()
        assert rows_of(loader) == [2 * n for n in range(4000)]
        assert loader.epoch == 2
        del batches


@each_kind
def test_leaving_a_with_block(ds, processes):
    """The usual way."""
    with ndfeed.loader(ds, 8, processes=processes) as loader:
        for _ in loader:
            break
        next(iter(loader))

    assert all_gone()


@each_kind
def test_breaking_out_of_the_loop(ds, processes):
    """Nobody calls anything: the pass itself is dropped."""
    loader = ndfeed.loader(ds, 8, processes=processes)
    for _ in loader:
        break

    check_gone()
    del loader


@each_kind
def test_dropping_the_loader(ds, processes):
    """In mid-iteration, and between epochs when threads rest."""
    loader = ndfeed.loader(ds, 8, processes=processes)
    batches = iter(loader)
    next(batches)
    del loader, batches
    check_gone()
    loader = ndfeed.loader(ds, 2000, processes=processes)
    assert len(list(loader)) == 2
    assert threads()
    del loader

    check_gone()


def test_dropping_a_loader_in_a_cycle(ds):
    """Trainers refer to their loaders and are referred to by them."""
    holder = {"loader": ndfeed.loader(ds, 8)}
    holder["self"] = holder
    holder["batches"] = iter(holder["loader"])
    next(holder["batches"])
    del holder
    gc.collect()

    check_gone()


COLLECTED = """
import gc, threading
import psutil
ds = ndfeed.open(args[0], sample="file", cache=False)
def begin():
    loader = ndfeed.loader(ds, 1, threads=2, processes=int(args[1]))
    loader.itself = iter(loader)
def left():
    names = {thread.name for thread in threading.enumerate()} - {"ndfeed-leases"}
    return [name for name in names if name.startswith("ndfeed-")] + psutil.Process().children()
gc.freeze()
gc.set_threshold(1)
for _ in range(int(args[2])):
    gc.disable()
    begin()
    gc.enable()
    time.sleep(0.1)  # while its own threads make batches, and collect it
    gc.collect()
until = time.monotonic() + 60
while left() and time.monotonic() < until:
    time.sleep(0.01)
print(left())
"""


@pytest.mark.parametrize(("processes", "times"), [(0, 5), (2, 2)], ids=["threads", "processes"])
def test_a_loader_may_be_collected_by_its_own_thread(tmp_path, processes, times):
    """Wherever that thread is, with whatever lock: it waited for itself, and with it Python's
    garbage collection, so that no other loader in a cycle ended either."""
    one_per_file(tmp_path / "x", "npz", n=400, shape=(4, 4))

    assert run(COLLECTED, tmp_path / "x", str(processes), str(times)) == "[]\n"


@each_kind
def test_a_pass_keeps_its_loader(ds, processes):
    """`for batch in ndfeed.loader(...)`: nobody else holds the loader."""
    assert len(list(ndfeed.loader(ds, 1000, processes=processes))) == 4

    check_gone()


def divide(loader):
    for batch in loader:
        len(batch) / 0


@each_kind
def test_an_error_in_the_consumers_loop(ds, processes):
    """The loop's own iterator is dropped with the error, and the loader goes on with the next."""
    loader = ndfeed.loader(ds, 1000, processes=processes)
    with pytest.raises(ZeroDivisionError, match="division"):
        divide(loader)
    check_gone()

    assert loader.epoch == 0
    assert len(list(loader)) == 4
    loader.close()


@each_kind
def test_an_error_in_a_map(tmp_path, processes):
    """Raised at its batch, then nothing runs any more; the next epoch begins anew."""

    def fails(batch):
        if (batch["data"] == 25).any():
            raise ValueError("row 25 is odd")
        return batch

    loader = ndfeed.loader(numbers(tmp_path, 100).map(fails), 10, processes=processes)
    batches = iter(loader)
    assert rows_of([next(batches), next(batches)]) == list(range(20))
    with pytest.raises(ValueError, match="row 25 is odd"):
        next(batches)
    check_gone()

    with pytest.raises(StopIteration):
        next(batches)
    with pytest.raises(ValueError, match="row 25 is odd"):
        list(loader)
    assert loader.epoch == 1


def test_an_end_does_not_wait_for_a_slow_map(tmp_path):
    """A transform of seconds does not keep close() waiting where processes run it."""

    def slow(batch):
        if batch["data"][0]:
            time.sleep(30)
        return batch

    # No more threads than processes: none of them waits for one.
    loader = ndfeed.loader(numbers(tmp_path, 40).map(slow), 1, processes=2, threads=2)
    next(iter(loader))

    check_gone()


def test_threads_live_from_one_epoch_to_the_next(ds):
    """Starting them costs more than a small epoch."""
    with ndfeed.loader(ds, 1000, threads=3) as loader:
        list(loader)
        first = {thread.ident for thread in threads()}
        for _ in range(3):
            list(loader)

            assert {thread.ident for thread in threads()} == first
        assert len(first) == 3


def test_processes_live_from_one_epoch_to_the_next(tmp_path):
    """A transform may have loaded a model."""
    ds = numbers(tmp_path, 100).map(in_process)
    with ndfeed.loader(ds, 10, processes=1) as loader:
        pids = {int(pid) for _ in range(3) for batch in loader for pid in batch["pid"]}

    assert len(pids) == 1
    assert os.getpid() not in pids


def test_no_descriptor_is_left(ds):
    """A loader a fold, a fold an experiment, hundreds of experiments a process."""
    epoch_of(ds, 500, processes=1)
    before = len(os.listdir("/proc/self/fd"))
    for processes in (0, 1, 0, 2):
        epoch_of(ds, 500, processes=processes)
        for _ in ndfeed.loader(ds, 500, processes=processes):
            break
    gc.collect()

    assert len(os.listdir("/proc/self/fd")) <= before


# Signals and exits, in processes of their own.

ENDLESS = """
import signal, threading, psutil
np.save(args[0] + "/x.npy", np.repeat(np.arange(4000)[:, None], 512, axis=1))
def slowly(batch):
    time.sleep(0.02)
    return {"data": batch["data"] * 2}
ds = ndfeed.open(args[0] + "/x.npy").map(slowly)
loader = ndfeed.loader(ds, 32, shuffle=True, threads=2, processes=int(args[1]))
def left():
    own = [t.name for t in threading.enumerate() if t.name.startswith("ndfeed-")]
    return [n for n in own if n != "ndfeed-leases"], psutil.Process().children(recursive=True)
def gone():
    until = time.monotonic() + 2
    while any(left()) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(left())
"""


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize("waiting", [True, False], ids=["in the loader", "in the consumer"])
def test_ctrl_c(tmp_path, processes, waiting):
    """A real one, to the whole group as a terminal sends it: one traceback, nothing left."""
    code = (
        ENDLESS
        + f"""
try:
    while True:
        for batch in loader:
            print("reading", flush=True)
            time.sleep({0 if waiting else 0.2})
except KeyboardInterrupt:
    print("interrupted")
assert gone(), left()
assert len(next(iter(loader))["data"]) == 32  # and it can be used again
"""
    )
    child = start(code, tmp_path, processes, start_new_session=True)
    for _ in range(3):
        assert child.stdout.readline() == "reading\n"
    os.killpg(child.pid, signal.SIGINT)

    assert finish(child, 30).endswith("interrupted\n")


@pytest.mark.parametrize("processes", ["0", "2"])
def test_ctrl_c_before_the_first_batch(tmp_path, processes):
    """While the consumer waits for a batch that takes for ever."""
    code = (
        ENDLESS
        + """
def for_ever(batch):
    os.write(1, b"mapping\\n")  # in one piece: two of them write
    time.sleep(100 if int(args[1]) else 1.5)
    return batch
loader = ndfeed.loader(ds.map(for_ever), 32, threads=2, processes=int(args[1]))
try:
    next(iter(loader))
except KeyboardInterrupt:
    print("interrupted")
assert gone(), left()
"""
    )
    child = start(code, tmp_path, processes, start_new_session=True)
    assert child.stdout.readline() == "mapping\n"
    os.killpg(child.pid, signal.SIGINT)

    assert finish(child, 30).endswith("interrupted\n")


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize("way", ["", "sys.exit(0)", "del batches; loader.close()", "del loader"])
def test_the_interpreter_exits_cleanly_in_mid_iteration(tmp_path, processes, way):
    """Status 0 and no word on standard error, with a pass under way in a global variable."""
    child = start(ENDLESS + "batches = iter(loader)\nnext(batches)\n" + way, tmp_path, processes)
    out, err = child.communicate(timeout=250)

    assert (child.returncode, out, err) == (0, "", "")


def test_an_unhandled_error_ends_the_interpreter_with_status_one(tmp_path):
    """As it would without a loader; the traceback is that of the error alone."""
    child = start(ENDLESS + "for batch in loader: 1 / 0", tmp_path, "2")
    _, err = child.communicate(timeout=250)

    assert child.returncode == 1
    assert err.count("Traceback") == 1
    assert err.endswith("ZeroDivisionError: division by zero\n")


SLOW_MAP = """
def large(batch):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(float(args[2]))
    return {"data": np.zeros((len(batch["data"]), 60_000))}
def uneven(sample):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(float(args[2]) / 8)
    return {"data": np.zeros(60_000 + int(sample["data"][0]))}
ds = ndfeed.open(args[0] + "/x.npy")
ds = ds.map(large) if args[3] == "array" else ds.map(uneven, batched=False)
list(ndfeed.loader(ds, 8, processes=int(args[1])))
"""


@pytest.mark.parametrize("form", ["array", "list"])
@pytest.mark.parametrize("seconds", ["0.5", "0.005"])
def test_processes_end_when_their_parent_is_killed(tmp_path, seconds, form):
    """SIGKILL leaves no chance to say so; a batch that nobody waits for must not hold them."""
    child = start(ENDLESS + SLOW_MAP, tmp_path, "2", seconds, form)
    pids = {int(child.stdout.readline())}
    while len(pids) < 2:
        pids.add(int(child.stdout.readline()))
    child.kill()
    child.wait()
    ended = eventually(lambda: not any(map(alive, pids)), 6)
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)
    child.communicate()

    assert ended


# Forks.


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_fork(check):
    """Run ``check`` in a forked process; did it come out true?"""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return exit_code(pid) == 0


no_warning = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@no_warning
@each_kind
def test_a_fork_after_iteration_iterates_too(ds, processes):
    """The parent's threads rest; the child has none of them."""
    with ndfeed.loader(ds, 500, shuffle=True, processes=processes) as loader:
        list(loader)
        expected = [2 * n for n in ndfeed.Exact().begin(4000, 0, 1).rows(0, 4000).tolist()]

        assert in_fork(lambda: rows_of(loader) == expected)
        assert rows_of(loader) == expected


@no_warning
@each_kind
@pytest.mark.parametrize("batch_size", [50, 333])
def test_a_fork_in_mid_iteration_goes_on_where_it_was(ds, processes, batch_size):
    """Both sides: each with threads of its own, neither disturbed by the other."""
    with ndfeed.loader(ds, batch_size, shuffle=True, processes=processes) as loader:
        expected = [2 * n for n in ndfeed.Exact().begin(4000, 0, 0).rows(0, 4000).tolist()]
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        rest = expected[3 * batch_size :]

        assert in_fork(lambda: rows_of(batches) == rest and loader.epoch == 1)
        assert rows_of(batches) == rest


@no_warning
@each_kind
def test_a_fork_may_close_or_drop_what_it_inherited(ds, processes):
    """Without a word to the parent's threads and processes."""
    with ndfeed.loader(ds, 500, processes=processes) as loader:
        batches = iter(loader)
        first = rows_of([next(batches)])

        def close():
            nonlocal batches
            loader.close()
            batches = None
            gc.collect()
            return True

        assert in_fork(close)
        assert first + rows_of(batches) == [2 * n for n in range(4000)]


@no_warning
def test_forks_at_any_moment(ds):
    """No lock is inherited in mid-air."""
    with ndfeed.loader(ds, 20, threads=4) as loader:
        batches = iter(loader)
        for _ in range(15):
            next(batches)
            at = loader.state_dict()["samples"]

            assert in_fork(lambda at=at: rows_of([next(batches)])[0] == 2 * at)


def test_a_fork_that_exits_normally_leaves_the_parent_alone(tmp_path):
    """os.fork() with a normal exit runs what is registered for the end of the interpreter."""
    code = (
        ENDLESS
        + """
batches = iter(loader)
next(batches)
workers = psutil.Process().children()
pid = os.fork()
if not pid:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert all(worker.is_running() for worker in workers)
assert psutil.Process().children() == workers
next(batches)
"""
    )
    child = start(code, tmp_path, "2")
    out, err = child.communicate(timeout=250)

    assert (child.returncode, out, err) == (0, "", "")


def iterated(loader, queue):
    queue.put(rows_of(loader))


@no_warning
@each_kind
def test_a_forked_worker_of_multiprocessing_iterates_the_loader(ds, processes):
    """Hyper-parameter searches fork with a loader at hand, in the middle of its pass."""
    context = multiprocessing.get_context("fork")
    with ndfeed.loader(ds, 500, processes=processes) as loader:
        batches = iter(loader)
        first = rows_of([next(batches)])
        queue = context.Queue()
        child = context.Process(target=iterated, args=(loader, queue))
        child.start()

        assert queue.get(timeout=250) == [2 * n for n in range(4000)]
        child.join()
        assert child.exitcode == 0
        assert first + rows_of(batches) == [2 * n for n in range(4000)]


def test_a_thread_that_consumes_is_not_the_main_one(ds):
    """Trainers feed from a thread of their own; ending there is ending too."""
    code = """
    import threading
    ds = ndfeed.open(args[0])
    found = []
    def consume():
        for batch in ndfeed.loader(ds, 500):
            found.append(len(batch["data"]))
            if len(found) == 3:
                break
    thread = threading.Thread(target=consume)
    thread.start()
    thread.join(60)
    names = [t.name for t in threading.enumerate() if t.name.startswith("ndfeed-")]
    print(found, [name for name in names if name != "ndfeed-leases"])
    """

    assert run(code, ds.files[0]) == "[500, 500, 500] []\n"


def test_memory_is_let_go(tmp_path):
    """close() gives buffers back to the system; what the consumer has stays."""
    import psutil

    ds = large_rows(tmp_path, 64, size=LARGE)
    own = psutil.Process().memory_full_info
    gc.collect()
    before = own().uss
    loader = ndfeed.loader(ds, 32, memory="200MB", threads=4)
    for batch in loader:
        kept = batch["image"][:1].copy()
    loader.close()
    del batch, loader
    gc.collect()

    assert own().uss - before < 8 << 20
    assert np.all(kept == kept[0, 0])


# Interrupts at any moment. One process sends them to another, which goes on after each.

INTERRUPTED = """
import faulthandler, gc, random, signal, struct, threading, psutil
folder, processes, rounds = args[0], int(args[1]), int(args[2])
os.setpgid(0, 0)
group, (listen, say) = os.getpid(), os.pipe()
sender = os.fork()
if not sender:
    os.setpgid(0, 0)
    os.close(say)
    while len(delay := os.read(listen, 8)) == 8:
        time.sleep(struct.unpack("d", delay)[0])
        os.killpg(group, signal.SIGINT)
    os._exit(0)
os.close(listen)
signal.signal(signal.SIGINT, signal.default_int_handler)
np.save(f"{folder}/x.npy", np.arange(400 * 64).reshape(400, 64))
ds = ndfeed.open(f"{folder}/x.npy", cache=False)
read, over = [0], threading.Event()
def beside():
    with ndfeed.loader(ds, 16, threads=2) as loader:
        while not over.is_set():
            read[0] += sum(1 for _ in loader)
            loader.close()
            time.sleep(0.001)
other = threading.Thread(target=beside)
other.start()
def left():
    own = [t for t in threading.enumerate() if t.name.startswith("ndfeed-")]
    own = [t.name for t in own if t.name != "ndfeed-leases"]
    kids = [c for c in psutil.Process().children(recursive=True) if c.pid != sender]
    return (own if len(own) > 2 else []) + kids  # two are the other loader's
def iterate(loader, way, until):
    while time.monotonic() < until:
        for number, batch in enumerate(loader):
            if way == 1 and number == 3:
                break
        if way == 2:
            loader.close()
# Of an iterator nothing is known, so that processes are forked anew for every epoch.
rng, unknown = random.Random(0), iter(())
kinds = (ds.map(dict), ds.map(lambda batch: batch or unknown)) if processes else (ds, ds)
for number in range(rounds):
    faulthandler.dump_traceback_later(200, exit=True)
    loader = ndfeed.loader(kinds[number // 3 % 2], 32, shuffle=True, threads=3, processes=processes)
    delay = rng.choice([0.003, 0.02, 0.08]) * rng.random()
    try:
        os.write(say, struct.pack("d", delay))
        iterate(loader, number % 3, time.monotonic() + delay + 0.1)
        time.sleep(100)  # it will come
    except KeyboardInterrupt:
        pass
    began, before = time.monotonic(), read[0]
    if number % 2:
        loader.close()
        assert len(next(iter(loader))["data"]) == 32
    del loader
    gc.collect()
    took = time.monotonic() - began
    while left() and time.monotonic() < began + 60:
        time.sleep(0.005)
    assert not left(), (number, left())
    assert took < 20, (number, took)
    while read[0] == before and time.monotonic() < began + 100:
        time.sleep(0.005)
    assert read[0] > before, f"another thread's iteration hangs after interrupt {number}"
faulthandler.cancel_dump_traceback_later()
over.set()
other.join()
os.close(say)
os.waitpid(sender, 0)
print("done")
"""


@each_kind
def test_interrupts_at_any_moment_leave_nothing_behind(tmp_path, processes):
    """In iteration, at the beginning and the end of a pass, in close, while processes start."""
    child = start(INTERRUPTED, tmp_path, str(processes), "30")

    assert finish(child, 120) == "done\n"
