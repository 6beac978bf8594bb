"""Maps that run in processes without having been asked to: only if nobody could tell."""

import sys

import pytest
from children import run

from ndfeed.files import process_server
from ndfeed.loading.builder_switch import _same as same

pytestmark = [
    pytest.mark.skipif(process_server.why_not() != "", reason="needs fork"),
    pytest.mark.skipif(sys.platform != "linux", reason="forks by default only on Linux"),
]

# A map that keeps the GIL while it waits: threads take turns, processes do not.
BEGIN = """
import ctypes, random
np.save(args[0] + "/x.npy", np.arange(2000, dtype="<i8"))
wait = ctypes.PyDLL(None).usleep
os.sched_getaffinity = lambda _: range(4)  # as on a machine with four cores
from ndfeed.loading import process_choice
process_choice._GAIN = 0.1  # whatever a busy machine measures
process_choice._LEAST = 0.1

def loader_of(function, **options):
    ds = ndfeed.open(args[0] + "/x.npy").map(function)
    return ndfeed.loader(ds, 4, seed=3, **options)

def until(loader, seconds=30, condition=lambda r: r.processes or r.obstacle):
    # The values of all epochs until the choice was made, and some more.
    found, at = [], time.monotonic()
    while not condition(loader.report()) and time.monotonic() - at < seconds:
        found.append(np.concatenate([b["data"] for b in loader]))
    found.append(np.concatenate([b["data"] for b in loader]))
    return found
"""


def outcome(code, folder):
    """What a program prints that begins as above."""
    return run(BEGIN + code, folder).splitlines()


def test_a_map_that_keeps_the_gil_runs_in_processes(tmp_path):
    """With nothing said; what it draws is the same as ever, whichever epoch and process."""
    code = """
def noisy(batch, rng):
    wait(1000)
    return {"data": batch["data"] + rng.integers(0, 1000, len(batch["data"]))}

with loader_of(noisy, processes=0) as loader:
    expected = [np.concatenate([b["data"] for b in loader]) for _ in range(2)]
with loader_of(noisy) as loader:
    found = until(loader)
    report = loader.report()
    print(report.processes, report.obstacle)
    loader.epoch = 0
    again = [np.concatenate([b["data"] for b in loader]) for _ in range(2)]
print(all((a == b).all() for a, b in zip(found, expected)), len(found))
print(all((a == b).all() for a, b in zip(again, expected)))
"""
    first, *others = outcome(code, tmp_path)

    assert first == "4 "
    assert others[0].startswith("True")
    assert others[1] == "True"


def test_the_choice_is_made_where_epochs_are_short(tmp_path):
    """Six batches each: if more were compared in every epoch, nothing else would happen."""
    code = """
np.save(args[0] + "/x.npy", np.arange(24, dtype="<i8"))
def f(batch):
    wait(1000)
    return batch
def chosen(_):
    return any(one.snapshot().tried for one in loader._runtimes.every)
with loader_of(f) as loader:
    until(loader, 20, chosen)
    print(chosen(None))
"""
    assert outcome(code, tmp_path) == ["True"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("seen = []\ndef f(b):\n    seen.append(1); wait(500); return b", "map() changes 'seen'"),
        (
            "class F:\n    count = 0\n    def __call__(self, b):\n"
            "        self.count += 1; wait(500); return b\nf = F()\nf.count = 0",
            "map() changes 'self.count'",
        ),
        (
            "import threading\nhere = threading.get_native_id()\ndef f(b):\n    wait(500)\n"
            "    return {'data': b['data'] + os.getpid()}",
            "map() makes another 'data' in a process",
        ),
        (
            "me = os.getpid()\ndef f(b):\n    wait(500)\n    if os.getpid() != me:\n"
            "        raise KeyError('no such thing')\n    return b",
            "map() fails in a process: KeyError: 'no such thing'",
        ),
        (
            "me = os.getpid()\ndef f(b):\n    wait(500)\n    if os.getpid() != me:\n"
            "        os._exit(3)\n    return b",
            "map() fails in a process: WorkerError: process",
        ),
    ],
    ids=["a list grows", "an attribute changes", "other values", "an error", "a death"],
)
def test_what_would_be_noticed_stays_here(tmp_path, code, words):
    """Batches go on as they were, and the report says why."""
    code += """
with loader_of(f) as loader:
    found = until(loader)
    print(loader.report().processes, loader.report().obstacle)
    print(words in str(loader.report()))
print(all((a == found[0]).all() for a in found), len(found[0]))
"""
    lines = outcome(f"words = {words!r}\n{code}", tmp_path)

    assert lines[0].startswith(f"0 {words}")
    assert lines[1:] == ["True", "True 2000"]


def test_a_map_that_hangs_in_a_process_is_left_here(tmp_path):
    """A lock that nobody releases there, say; the consumer waits for a moment, not for ever."""
    code = """
from ndfeed.loading import builder_switch
builder_switch._PATIENCE = 1.0
me = os.getpid()
def f(b):
    wait(500)
    while os.getpid() != me:
        time.sleep(1)
    return b
with loader_of(f) as loader:
    found = until(loader)
    print(loader.report().obstacle)
print(len(found[-1]))
"""
    first, last = outcome(code, tmp_path)

    assert "did not answer and was killed" in first
    assert last == "2000"


def test_global_generators_are_no_obstacle(tmp_path):
    """In threads, what they give is a matter of chance anyway."""
    code = """
def f(b):
    wait(1000)
    return {"data": b["data"] + random.random() + np.random.rand()}
with loader_of(f) as loader:
    until(loader)
    print(loader.report().processes, loader.report().obstacle)
"""
    assert outcome(code, tmp_path) == ["4 "]


def test_nothing_is_forked_while_a_function_runs_here(tmp_path):
    """A lock that it holds at that moment would be held for ever in the child."""
    code = """
import threading
lock = threading.Lock()
def f(b):
    with lock:
        wait(2000)
        return {"data": b["data"] * 2}
with loader_of(f) as loader:
    found = until(loader)
    print(loader.report().processes, loader.report().obstacle)
print((found[-1] == 2 * np.arange(2000)).all())
"""
    assert outcome(code, tmp_path) == ["4 ", "True"]


def test_errors_of_a_map_are_those_of_threads(tmp_path):
    """Later, when processes have run it for a while."""
    code = """
def f(b):
    wait(1000)
    if 1999 in b["data"] and stop.exists():
        raise KeyError("the last one")
    return b
import pathlib
stop = pathlib.Path(args[0]) / "stop"
with loader_of(f) as loader:
    until(loader)
    print(loader.report().processes, loader.report().obstacle)
    stop.touch()
    try:
        for batch in loader:
            pass
    except KeyError as error:
        print(error, batch["data"][-1])
"""
    assert outcome(code, tmp_path) == ["4 ", "'the last one' 1995"]


def test_what_is_printed_is_seen(tmp_path):
    """By a process, too, although it is ended by a signal."""
    code = """
me = os.getpid()
def f(b):
    wait(1000)
    if os.getpid() != me:
        print("from a process")
    return b
with loader_of(f) as loader:
    until(loader)
"""
    assert "from a process" in outcome(code, tmp_path)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ([1, 2.0, "x"], [1, 2.0, "x"], True),
        ([float("nan")], [float("nan")], True),
        ({"a": (1, b"x")}, {"a": (1, b"x")}, True),
        ([1], [1.0], False),
        ([1], [1, 2], False),
        ({"a": 1}, {"b": 1}, False),
        (None, 0, False),
    ],
)
def test_values_are_compared_as_they_are(one, other, equal):
    """Whatever a map may put into a batch."""
    assert same(one, other, loosely=False) is equal


@pytest.mark.parametrize("named", [True, False])
def test_beside_jax_only_functions_of_modules_run_in_processes(tmp_path, named):
    """A fork of a program that uses JAX may hang; a fresh process imports the module anew."""
    (tmp_path / "mine.py").write_text(
        "import ctypes\ndef f(batch):\n    ctypes.PyDLL(None).usleep(1000)\n    return batch\n"
    )
    code = f"""
sys.path.insert(0, args[0])
sys.modules["jax"] = type(sys)("jax")
import mine
with loader_of(mine.f if {named} else lambda batch: mine.f(batch)) as loader:
    until(loader)
    print(loader.report().processes, loader.report().obstacle)
"""
    (found,) = outcome(code, tmp_path)
    why = "forking is not safe with jax, and a fresh process cannot find a function given to map()"

    assert found == "4 " if named else found.startswith(f"0 {why}")


def test_a_module_that_the_program_has_changed_is_noticed(tmp_path):
    """A fresh process would not have the change."""
    (tmp_path / "mine.py").write_text(
        "import ctypes\nfactor = 1\ndef f(batch):\n    ctypes.PyDLL(None).usleep(1000)\n"
        "    return {'data': batch['data'] * factor}\n"
    )
    code = """
sys.path.insert(0, args[0])
sys.modules["jax"] = type(sys)("jax")
import mine
mine.factor = 3
with loader_of(mine.f) as loader:
    found = until(loader)
    print(loader.report().processes, loader.report().obstacle)
print((found[-1] == 3 * np.arange(2000)).all())
"""
    assert outcome(code, tmp_path) == ["0 map() makes another 'data' in a process", "True"]


def test_what_the_program_changes_between_epochs_is_seen(tmp_path):
    """The usual curriculum: an object that is told the epoch."""
    code = """
class Curriculum:
    epoch = 0
    def __call__(self, batch):
        wait(1000)
        return {"data": batch["data"] * 0 + self.epoch}

f = Curriculum()
with loader_of(f) as loader:
    until(loader)
    found = []
    for f.epoch in range(3):
        found.append({int(x) for batch in loader for x in batch["data"]})
    print(loader.report().processes, found)
"""
    assert outcome(code, tmp_path) == ["4 [{0}, {1}, {2}]"]


def test_locks_that_functions_of_other_loaders_hold_are_not_inherited(tmp_path):
    """All functions of the program count."""
    code = """
import threading
lock = threading.Lock()
def f(b):
    with lock:
        wait(1500)
        return b
other = loader_of(f, processes=0, threads=2)
def busy():
    for _ in range(40):
        for batch in other:
            if over:
                return
over = []
thread = threading.Thread(target=busy, daemon=True)
thread.start()
with loader_of(f) as loader:
    found = until(loader)
    print(len(found[-1]), loader.report().processes or loader.report().obstacle)
over.append(1)
thread.join()
other.close()
"""
    assert outcome(code, tmp_path)[0].startswith("2000 ")


def test_a_function_that_waits_for_ever_in_a_process_is_noticed_later_too(tmp_path):
    """For a thread that a fork does not have, say, and only for one sample."""
    code = """
from concurrent.futures import ThreadPoolExecutor
from ndfeed.loading import builder_switch
builder_switch._PATIENCE = 2.0
pool = ThreadPoolExecutor(1)
pool.submit(int).result()
rare = np.array([10**9])
def f(b):
    wait(1000)
    return pool.submit(lambda: b).result() if b["data"][0] == rare[0] else b
with loader_of(f) as loader:
    until(loader)
    print(loader.report().processes)
    rare[0] = 1000
    print(sum(len(b["data"]) for b in loader))
    print("did not answer" in loader.report().obstacle)
"""
    assert outcome(code, tmp_path) == ["4", "2000", "True"]


def test_only_what_processes_draw_counts(tmp_path):
    """Others may draw from a global generator at the same time."""
    code = """
import threading
over = []
def draw():
    while not over:
        np.random.rand(); time.sleep(0.0001)
threading.Thread(target=draw, daemon=True).start()
def f(b):
    wait(500)
    return {"data": b["data"] + os.getpid()}
with loader_of(f) as loader:
    found = until(loader)
    print(loader.report().obstacle)
over.append(1)
print(all((a == found[0]).all() for a in found))
"""
    assert outcome(code, tmp_path) == ["map() makes another 'data' in a process", "True"]


def test_a_sample_that_fails_only_in_a_process_is_no_bad_sample(tmp_path):
    """It is made here, and nothing is skipped."""
    code = """
me, bad = os.getpid(), np.array([10**9])
def f(sample):
    wait(300)
    if os.getpid() != me and sample["data"] == bad[0]:
        raise ValueError("only there")
    return sample
ds = ndfeed.open(args[0] + "/x.npy").map(f, batched=False)
with ndfeed.loader(ds, 4, on_error="skip") as loader:
    until(loader)
    print(loader.report().processes)
    bad[0] = 1500
    print(sum(len(b["data"]) for b in loader), loader.skipped, loader.report().processes)
"""
    assert outcome(code, tmp_path) == ["4", "2000 () 0"]


def test_values_that_cannot_be_compared_stay_here(tmp_path):
    """Whatever an object does when it is compared."""
    code = """
class Odd(np.ndarray):
    def __eq__(self, other):
        raise TypeError("never compare me")
class Thing:
    def __eq__(self, other):
        return np.zeros(3)
def f(b):
    wait(500)
    return {"data": b["data"], "thing": [Thing() for _ in b["data"]]}
with loader_of(f, fields=("data", "thing")) as loader:
    at = time.monotonic()
    while not loader.report().obstacle and time.monotonic() - at < 30:
        list(loader)
    print(bool(loader.report().obstacle))
"""
    assert outcome(code, tmp_path) == ["True"]


# Epochs of six batches: less than starting a process takes.
SHORT = """
import psutil
np.save(args[0] + "/x.npy", np.arange(24, dtype="<i8"))
def pids():
    return {one.pid for one in psutil.Process().children()}
"""


def test_processes_live_from_one_short_epoch_to_the_next(tmp_path):
    """Forked once, as long as nothing changes that functions refer to; with pauses, too."""
    code = """
factor = np.ones(3)
def f(batch):
    wait(1000)
    return {"data": batch["data"] * factor[0]}
with loader_of(f) as loader:
    until(loader)
    before = pids()
    found = [np.concatenate([b["data"] for b in loader]) for _ in range(20)]
    time.sleep(0.1)
    found += [np.concatenate([b["data"] for b in loader]) for _ in range(20)]
    print(loader.report().processes, len(before), pids() == before)
    factor[0] = 2
    changed = np.concatenate([b["data"] for b in loader])
    print(loader.report().processes, len(pids() & before))
print(all((one == np.arange(24)).all() for one in found), (changed == 2 * np.arange(24)).all())
"""
    assert outcome(SHORT + code, tmp_path) == ["4 4 True", "4 0", "True True"]


def test_a_change_that_nobody_can_see_is_found_by_comparing(tmp_path):
    """A variable of an installed package; from then on, every epoch has processes of its own."""
    code = """
import calendar
def f(batch):
    wait(1000)
    return {"data": batch["data"] * 0 + calendar.firstweekday()}
def chosen(report):
    return report.processes and loader._runtimes.every[0].snapshot().tried
with loader_of(f) as loader:
    until(loader, condition=chosen)
    found, used = [], []
    for day in (0, 3, 5, 6, 2, 1):
        calendar.setfirstweekday(day)
        found.append({int(x) for batch in loader for x in batch["data"]})
        used.append(loader.report().processes)
    print(found, used[0], used[-1], loader.report().obstacle)
"""
    assert outcome(SHORT + code, tmp_path) == ["[{0}, {3}, {5}, {6}, {2}, {1}] 4 4 "]


def test_what_the_program_changes_is_not_taken_for_a_change_by_the_map(tmp_path):
    """A curriculum with short epochs: the choice is made all the same."""
    code = """
class Curriculum:
    epoch = 0
    def __call__(self, batch):
        wait(1000)
        return {"data": batch["data"] * 0 + self.epoch}
f = Curriculum()
right = True
with loader_of(f) as loader:
    at = time.monotonic()
    while not loader.report().processes and time.monotonic() - at < 60:
        f.epoch += 1
        right &= {int(x) for batch in loader for x in batch["data"]} == {f.epoch}
    print(right, loader.report().processes, loader.report().obstacle)
"""
    assert outcome(SHORT + code, tmp_path) == ["True 4 "]
