"""Batches built in processes: the same as from threads, whatever becomes of the processes."""

import fcntl
import os
import signal
import textwrap
import time

import numpy as np
import pytest
from children import (
    AS_NOBODY,
    folder_for_all,
    in_small_shared_memory,
    names_in_shared_memory,
    run,
)
from loading.making import (
    LARGE,
    alive,
    assert_same,
    epoch_of,
    eventually,
    in_process,
    large_rows,
    noisy,
    numbers,
    one_per_file,
    ragged,
    rows_of,
    running,
    threads,
)

import ndfeed
from ndfeed.loading.process_choice import why_not_fork

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="maps here are not importable")


def once(path):
    """Is this the first process to ask? Only one gets a yes."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def note(path, number):
    """Add a line to a file that several processes write to."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{number}\n")


def noted(path):
    return list(map(int, path.read_text().split()))


def test_maps_run_elsewhere(tmp_path):
    """In as many processes as were asked for, and never in this one."""

    def slowly(batch):
        time.sleep(0.01)
        return in_process(batch)

    batches = epoch_of(numbers(tmp_path, 60).map(slowly), 2, processes=2)
    pids = {int(pid) for batch in batches for pid in batch["pid"]}

    assert len(pids) == 2
    assert os.getpid() not in pids
    assert rows_of(batches) == list(range(60))


def test_rows_of_mapped_files_are_read_by_threads(tmp_path):
    """Which copy at the rate of the memory: no process is started for them."""
    with ndfeed.loader(numbers(tmp_path, 40), 4, processes=2) as loader:
        next(iter(loader))
        batches = iter(loader)
        next(batches)

        assert not running()


def test_lambdas_and_closures_work(tmp_path):
    """As they do in threads: nothing has to be found by name."""
    offset = np.arange(3)
    ds = numbers(tmp_path, 20, width=3).map(lambda b: {"data": b["data"] + offset})
    ds = ds.map(lambda s: {"data": s["data"] * 2}, batched=False)

    assert_same(epoch_of(ds, 6, processes=2), epoch_of(ds, 6))


def test_no_name_is_made_in_shared_memory(tmp_path):
    """/dev/shm is small in containers, and names stay behind when everybody is killed."""
    ds = large_rows(tmp_path, 32).map(dict)
    with ndfeed.loader(ds, 8, processes=2) as loader:
        for batch in loader:
            assert not names_in_shared_memory()
            assert batch["image"].nbytes >= LARGE


# Lean processes that read, forks that run a map, lean ones that decode streams; batches and streams
# of 80 MB each.
SMALL_SHARED_MEMORY = """
mode, framework = args[1:]
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 64 << 20
package = __import__("ndfeed.torch").torch if framework == "torch" else ndfeed
sample = "row" if mode == "streams" else "file"
ds = ndfeed.open(args[0], sample=sample, cache=False)
if mode == "map":
    ds = ds.map(lambda batch: {"x": batch["x"] + 1, "y": batch["y"]})
wait = time.monotonic() + 200
with package.loader(ds, 20, processes=2, memory="1GB") as loader:
    while time.monotonic() < wait:
        for batch in loader:
            x, y = np.asarray(batch["x"]), np.asarray(batch["y"])
            assert x.nbytes == 80 << 20
            assert (x[:, 0] == y + (mode == "map")).all() and (x[:, 0] == x[:, -1]).all()
            assert not os.listdir("/dev/shm")
        if loader.report().processes == 2:
            break
    print(loader.report().processes, loader.report().obstacle)
held = ndfeed.open(args[0], sample=sample, cache=False).in_memory()
print(held[7]["y"], os.listdir("/dev/shm"))
"""


@pytest.mark.parametrize(
    ("mode", "framework"),
    [("files", "numpy"), ("map", "numpy"), ("streams", "numpy"), ("map", "torch")],
)
def test_shared_memory_of_a_container_is_enough(tmp_path, mode, framework):
    """64 MB, where DataLoader's workers die of SIGBUS: batches never go through /dev/shm."""
    if framework == "torch":
        pytest.importorskip("torch")
    inside = in_small_shared_memory()
    x, y = np.repeat(np.arange(40, dtype="<i4")[:, None], 1 << 20, axis=1), np.arange(40)
    if mode == "streams":
        for i in range(2):
            np.savez_compressed(tmp_path / f"{i}", x=x[20 * i :][:20], y=y[20 * i :][:20])
    else:
        for i in range(40):
            np.savez(tmp_path / f"{i:02}", x=x[i], y=y[i])

    assert run(SMALL_SHARED_MEMORY, tmp_path, mode, framework, **inside) == "2 \n7 []\n"


@pytest.mark.parametrize("size", [LARGE // 64, LARGE], ids=["small", "large"])
def test_a_map_may_return_its_input_or_views_of_it(tmp_path, size):
    """Reversed, cut, transposed, twice the same array, changed in place."""

    def views(batch):
        image = batch["image"]
        image += 1
        return {
            "same": image,
            "again": image,
            "reversed": image[::-1],
            "every other": image[:, ::2],
            "transposed": image.reshape(len(image), 4, -1).transpose(0, 2, 1),
            "wide": np.broadcast_to(image[:, :1], (len(image), 5)),
            "label": batch["label"],
        }

    ds = large_rows(tmp_path, 20, size=size).map(views)
    expected = epoch_of(ds, 8, shuffle=True)

    for found, wanted in zip(epoch_of(ds, 8, shuffle=True, processes=2), expected, strict=True):
        assert list(found) == list(wanted)
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name], values)


TYPES = {
    "bool": lambda n: np.arange(n) % 2 == 0,
    "half": lambda n: np.arange(n).astype("<f2"),
    "complex": lambda n: np.arange(n) * 1j,
    "big-endian": lambda n: np.arange(n).astype(">i4"),
    "text": lambda n: np.array([f"row {i}" for i in range(n)]),
    "dates": lambda n: np.arange(n).astype("M8[s]"),
    "structured": lambda n: np.zeros(n, [("a", "<f4"), ("b", "u1", (3,))]),
    "nothing": lambda n: np.empty((n, 0)),
    "objects": lambda n: np.array([None, *range(n - 1)], object),
    "a list": lambda n: [np.arange(i) for i in range(n)],
    "masked": lambda n: np.ma.masked_equal(np.arange(n), 1),
}


@pytest.mark.parametrize("width", [1, 1 << 13], ids=["small", "large"])
@pytest.mark.parametrize("kind", TYPES)
def test_whatever_a_map_makes_comes_back(tmp_path, kind, width):
    """Types and kinds of containers are those that a thread would have delivered."""

    def stacked(batch):
        values, rows = TYPES[kind](9), batch["data"].tolist()
        if isinstance(values, list):
            return {"x": [values[row].repeat(width) for row in rows]}
        # Every row repeated, by a way that keeps masks.
        return {"x": values[np.repeat(rows, width)].reshape(len(rows), -1)}

    ds = numbers(tmp_path, 9).map(stacked)
    expected = epoch_of(ds, 9)
    found = epoch_of(ds, 9, processes=1)

    assert type(found[0]["x"]) is type(expected[0]["x"])
    if kind == "a list":
        assert_same(found, expected)
    else:
        assert found[0]["x"].dtype.newbyteorder("=") == expected[0]["x"].dtype.newbyteorder("=")
        np.testing.assert_array_equal(found[0]["x"], expected[0]["x"])
        if kind == "masked":
            np.testing.assert_array_equal(found[0]["x"].mask, expected[0]["x"].mask)


def test_tensors_come_back(tmp_path):
    """A transform of torchvision makes tensors; they arrive as what they are."""
    torch = pytest.importorskip("torch")
    ds = numbers(tmp_path, 20, width=3).map(lambda b: {"data": torch.from_numpy(b["data"]) * 2})
    found = epoch_of(ds, 10, processes=1)

    assert all(isinstance(batch["data"], torch.Tensor) for batch in found)
    assert rows_of(found) == [2 * n for n in range(20)]


def test_results_that_grow_find_room(tmp_path):
    """Room for results is made as large as the largest so far: batches differ."""

    def growing(batch):
        width = 3000 * (1 + int(batch["data"].max()))
        return {"x": np.full((len(batch["data"]), width), batch["data"][:, None])}

    for batch in epoch_of(numbers(tmp_path, 30).map(growing), 3, processes=2):
        assert (batch["x"] == batch["x"][:, :1]).all()


def test_ragged_samples_go_through_processes(tmp_path):
    """Lists of arrays are pickled, and put into form afterwards as in threads."""
    ds = ragged(tmp_path, [3, 0, 7, 20_000, 5]).map(
        lambda s: {"x": s["x"] * 2, "n": s["n"]}, batched=False
    )
    for form in ("list", "pad", "packed"):
        expected = epoch_of(ds, 3, ragged=form)
        assert_same(epoch_of(ds, 3, ragged=form, processes=2), expected)


@pytest.mark.parametrize("processes", [0, 2])
def test_kept_batches_from_processes_never_change(tmp_path, processes):
    """Room for results is lent again when nobody sees it any more, and not before."""
    ds = large_rows(tmp_path, 64).map(lambda b: {"image": b["image"] * 2, "label": b["label"]})
    with ndfeed.loader(ds, 8, shuffle=True, processes=processes) as loader:
        kept = [batch for _ in range(10) for batch in loader]
        parts = []
        for _ in range(10):
            for batch in loader:
                part = batch["image"][2:3, :5]
                parts.append((part, part.copy()))
                del batch, part

    for batch in kept:
        assert (batch["image"] == 2 * batch["label"][:, None]).all()
    assert all((part == copy).all() for part, copy in parts)


def test_a_thousand_kept_batches_do_not_use_up_descriptors(tmp_path):
    """1,024 open files is what most systems allow; memory must not cost one each."""
    large_rows(tmp_path, 64)
    code = """
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    ds = ndfeed.open(args[0] + "/x.npz").map(lambda b: {"image": b["image"], "label": b["label"]})
    kept = []
    with ndfeed.loader(ds, 4, shuffle=True, processes=1) as loader:
        while len(kept) < 1100:
            kept += list(loader)
    assert all((b["image"] == b["label"][:, None]).all() for b in kept)
    print("kept", len(kept))
    """

    assert run(code, tmp_path) == "kept 1104\n"


def test_the_batch_that_is_needed_first_is_not_overtaken(tmp_path):
    """A process is lent to the earliest batch that waits: the consumer waits for that one."""
    for attempt in range(8):
        log = tmp_path / f"log{attempt}"

        def noting(batch, log=log):
            note(log, int(batch["data"][0]))
            time.sleep(0.002)
            return batch

        folder = tmp_path / str(attempt)
        folder.mkdir()
        epoch_of(numbers(folder, 40).map(noting), 1, processes=1, threads=3)

        assert noted(log).index(0) < 3
        assert sorted(noted(log)) == list(range(40))


# Errors.


@pytest.mark.parametrize("error", [EOFError, BrokenPipeError, OSError, KeyError, MemoryError])
def test_an_error_of_a_map_comes_as_it_is(tmp_path, error):
    """np.load of an empty file is EOFError: no other error than in a thread may come of it."""

    def fails(batch):
        if 7 in batch["data"]:
            raise error("no luck with seven")
        return batch

    with ndfeed.loader(numbers(tmp_path, 20).map(fails), 5, processes=2) as loader:
        batches = iter(loader)
        assert rows_of([next(batches)]) == [0, 1, 2, 3, 4]
        with pytest.raises(error, match="no luck with seven") as caught:
            next(batches)
    notes = "\n".join(caught.value.__notes__)

    assert "rows 5, 6, 7, 8, 9" in notes
    assert 'raise error("no luck with seven")' in notes  # where it happened, in that process


class Unpicklable(Exception):
    def __init__(self, words, holder):
        super().__init__(words)
        self.holder = holder

    def __reduce__(self):
        raise TypeError("not this one")


class NotRebuilt(Exception):
    """Pickles, and cannot be made again from what was pickled: a common mistake."""

    def __init__(self, path, problem):
        super().__init__(f"{path}: {problem}")

    def __reduce__(self):  # as by default; tblib, where something imported it, knows a better one
        return NotRebuilt, self.args


@pytest.mark.parametrize("error", [Unpicklable, NotRebuilt])
def test_an_error_that_cannot_travel_still_says_what_it_was(tmp_path, error):
    """Its name and its words, not those of the failed journey."""

    def fails(batch):
        raise error("seven", "is odd")

    with (
        ndfeed.loader(numbers(tmp_path, 20).map(fails), 5, processes=2) as loader,
        pytest.raises(ndfeed.WorkerError, match=f"{error.__name__}: seven") as caught,
    ):
        next(iter(loader))

    assert "in fails" in "\n".join(caught.value.__notes__)


def test_a_result_that_cannot_travel_is_an_error(tmp_path):
    """A generator or a lock among the results; processes=0 would have let it pass."""
    ds = numbers(tmp_path, 20).map(lambda b: {"x": [lambda: 1 for _ in b["data"]]})
    with (
        ndfeed.loader(ds, 5, processes=1) as loader,
        pytest.raises(Exception, match=r"(?i)pickle"),
    ):
        next(iter(loader))

    assert eventually(lambda: not running() and not threads())


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("error", [ValueError, Unpicklable])
def test_single_samples_are_skipped_alike(tmp_path, processes, error):
    """on_error="skip" leaves out the same samples wherever the map runs."""

    def fails(sample):
        if sample["data"] in (3, 8):
            raise error("odd") if error is ValueError else error("odd", None)
        return sample

    ds = numbers(tmp_path, 12).map(fails, batched=False)
    with ndfeed.loader(ds, 5, on_error="skip", processes=processes) as loader:
        assert rows_of(loader) == [0, 1, 2, 4, 5, 6, 7, 9, 10, 11]
        assert sorted(row for row, _ in loader.skipped) == [3, 8]


def test_the_signals_of_the_parent_are_not_the_childrens(tmp_path):
    """Jobs catch SIGTERM to save their state: ending a worker must not run that in the worker."""
    numbers(tmp_path, 40)
    code = """
    import signal
    def save(number, frame):
        with open(args[0] + "/saved", "a") as file:
            file.write("saved\\n")
        sys.exit(1)
    signal.signal(signal.SIGTERM, save)
    ds = ndfeed.open(args[0] + "/x.npy").map(lambda b: b)
    with ndfeed.loader(ds, 5, processes=2) as loader:
        next(iter(loader))
        batches = iter(loader)
        next(batches)
    print(os.path.exists(args[0] + "/saved"))
    """

    assert run(code, tmp_path) == "False\n"


# Deaths.


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM])
def test_a_batch_whose_process_died_is_done_again(tmp_path, number):
    """The kernel ends processes that use too much memory: once is bad luck."""
    mark = tmp_path / "mark"

    def dies(batch, rng):
        if 12 in batch["data"] and once(mark):
            batch["data"] += 1000
            os.kill(os.getpid(), number)
        return noisy(batch, rng=rng)

    plain = numbers(tmp_path, 40)
    found = epoch_of(plain.map(dies), 5, shuffle=True, processes=2)

    assert mark.exists()
    assert_same(found, epoch_of(plain.map(noisy), 5, shuffle=True))


def test_an_exit_of_a_process_is_a_death_too(tmp_path):
    """os._exit in a library, without a signal."""
    mark = tmp_path / "mark"

    def exits(batch):
        if 12 in batch["data"] and once(mark):
            os._exit(3)
        return batch

    assert rows_of(epoch_of(numbers(tmp_path, 40).map(exits), 5, processes=1)) == list(range(40))


@pytest.mark.parametrize(
    ("end", "words"),
    [(lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"), (lambda: os._exit(3), "status 3")],
)
def test_a_batch_that_kills_twice_is_an_error(tmp_path, end, words):
    """Not tried for ever; the error names the rows and how the process ended."""

    def dies(batch):
        if 12 in batch["data"]:
            end()
        return batch

    with ndfeed.loader(numbers(tmp_path, 40).map(dies), 5, processes=2) as loader:
        batches = iter(loader)
        assert rows_of([next(batches), next(batches)]) == list(range(10))
        with pytest.raises(ndfeed.WorkerError, match=f"{words}.* rows 10, 11, 12, 13, 14"):
            next(batches)
        assert eventually(lambda: not running() and not threads())
        assert rows_of([next(iter(loader))]) == [0, 1, 2, 3, 4]


def test_processes_killed_from_outside_are_replaced(tmp_path):
    """All of them, while they rest between epochs and while they work."""
    ds = numbers(tmp_path, 200).map(in_process)
    with ndfeed.loader(ds, 5, processes=2) as loader:
        assert rows_of(loader) == list(range(200))
        for child in running():
            child.kill()
        assert rows_of(loader) == list(range(200))
        found = []
        for number, batch in enumerate(loader):
            found += rows_of([batch])
            if number == 3:
                child = running()[0]
                child.kill()
                assert eventually(lambda pid=child.pid: not alive(pid))
        assert found == list(range(200))


def test_a_death_under_skip_is_still_an_error(tmp_path):
    """A process that dies is no bad sample: leaving samples out would hide it."""

    def dies(sample):
        if sample["data"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    ds = numbers(tmp_path, 12).map(dies, batched=False)
    with (
        ndfeed.loader(ds, 5, on_error="skip", processes=1) as loader,
        pytest.raises(ndfeed.WorkerError, match="rows 0, 1, 2, 3, 4"),
    ):
        next(iter(loader))


def test_processes_share_a_short_epoch(tmp_path):
    """Small batches are asked for several at a time, but not so many that one process has most."""

    def slowly(batch):
        time.sleep(0.01)
        return {"pid": np.full(len(batch["data"]), os.getpid())}

    with ndfeed.loader(numbers(tmp_path, 240).map(slowly), 4, processes=3) as loader:
        list(loader)
        pids = [int(batch["pid"][0]) for batch in loader]

    assert len(set(pids)) == 3
    assert max(map(pids.count, pids)) <= 40


class Curriculum:
    """A map that is told the epoch."""

    def __init__(self):
        self.epoch = 0

    def __call__(self, batch):
        time.sleep(0.005)
        return in_process({"data": batch["data"] * 0 + self.epoch})


@pytest.mark.parametrize("known", [True, False])
def test_what_the_program_changes_is_found_in_the_next_epoch(tmp_path, known):
    """As in threads. Processes go on if nothing has changed, and anything that matters is seen."""
    function, pids = Curriculum(), []
    if not known:
        function.hidden = iter([1])
    with ndfeed.loader(numbers(tmp_path, 40).map(function), 4, processes=2) as loader:
        for function.epoch in (0, 0, 1, 1):
            batches = list(loader)
            pids.append({int(pid) for batch in batches for pid in batch["pid"]})
            assert {int(x) for batch in batches for x in batch["data"]} == {function.epoch}

    sent = bool(why_not_fork())  # then what is sent to processes tells whether it is the same
    assert (pids[0] == pids[1]) == (known or sent)
    assert not pids[1] & pids[2]


@pytest.mark.parametrize("more", [0, 10 << 20])
def test_lean_processes_find_what_the_program_has_changed(tmp_path, more):
    """They are sent the function anew, however much there is of it."""
    (tmp_path / "mine.py").write_text(
        "import os\nclass Curriculum:\n    epoch = 0\n    def __call__(self, batch):\n"
        "        return {'data': [(self.epoch, os.getpid()) for _ in batch['data']]}\n"
    )
    code = """
    sys.path.insert(0, args[0])
    sys.modules["jax"] = type(sys)("jax")  # beside which nothing is forked
    import mine
    function, pids = mine.Curriculum(), []
    function.more = np.zeros(int(args[1]), np.uint8)
    np.save(args[0] + "/x.npy", np.arange(40))
    ds = ndfeed.open(args[0] + "/x.npy").map(function)
    with ndfeed.loader(ds, 4, processes=1) as loader:
        for function.epoch in (0, 0, 1):
            found = {each for batch in loader for each in batch["data"]}
            pids.append({pid for _, pid in found})
            print({epoch for epoch, _ in found})
    print(pids[0] == pids[1], pids[1] == pids[2], os.getpid() in pids[0] | pids[2])
    """
    said = run(code, tmp_path, str(more)).splitlines()

    assert said == ["{0}", "{0}", "{1}", "True False False"]


def test_a_process_that_was_replaced_is_no_reason_to_keep_the_others(tmp_path):
    """It was forked later than these, and has what the program had at that time."""
    function = Curriculum()
    with ndfeed.loader(numbers(tmp_path, 400).map(function), 4, processes=2) as loader:
        for batch in loader:
            if not function.epoch:
                function.epoch = 5
                os.kill(int(batch["pid"][0]), signal.SIGKILL)
        function.epoch = 0

        assert {int(x) for batch in loader for x in batch["data"]} == {0}


@pytest.mark.parametrize("kind", ["npz", "deflated npz"])
def test_a_program_that_nobody_may_look_into_makes_batches_in_threads(kind):
    """As one is that has given up the rights of root: its memory cannot be found by others."""
    code = """
    import ctypes
    ctypes.CDLL(None).prctl(4, 0)
    ds = ndfeed.open(args[0], sample="file", cache=False)
    for made in (ds, ds.map(lambda batch: {name: batch[name] + 1 for name in ("x", "y")})):
        with ndfeed.loader(made, 8, processes=2) as loader:
            for _ in range(2):
                found = [int(y) for batch in loader for y in batch["y"]]
            end = time.monotonic() + 60
            while not loader.report().obstacle and time.monotonic() < end:
                time.sleep(0.01)
            print(found[0], found[-1], loader.report().processes, bool(loader.report().obstacle))
    """
    with folder_for_all() as folder:
        one_per_file(folder / "x", kind, shape=(80, 80))
        lines = run(AS_NOBODY + textwrap.dedent(code), folder / "x").splitlines()

    assert lines == ["0 39 0 True", "1 40 0 True"]
