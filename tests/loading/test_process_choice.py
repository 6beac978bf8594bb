"""Threads or processes: what is chosen for whom, and that it follows what was measured."""

import sys
import time

import numpy as np
import pytest
from loading.making import (
    assert_same,
    epoch_of,
    eventually,
    in_process,
    numbers,
    one_per_file,
    running,
)

import ndfeed
from ndfeed.files import process_server
from ndfeed.loading import process_choice
from ndfeed.loading.builder_switch import Switch
from ndfeed.loading.process_choice import Trial, is_portable, why_not_fork

pytestmark = pytest.mark.skipif(process_server.why_not() != "", reason="needs fork")


def test_functions_that_have_a_name_are_portable(tmp_path):
    """Others cannot be found by a fresh process."""
    ds = numbers(tmp_path, 4)

    assert is_portable(ds.map(in_process).steps)
    assert is_portable(ds.map(np.square, batched=False).steps)
    assert not is_portable(ds.map(lambda batch: batch).steps)
    own = type("Own", (), {"__call__": lambda self, batch: batch, "__module__": "__main__"})
    assert not is_portable(ds.map(own()).steps)


def test_what_stands_in_the_way_of_forking_is_named(monkeypatch):
    """Threads of TensorFlow and JAX, and CUDA, do not survive it."""
    for name in ("jax", "tensorflow", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if sys.platform == "linux":
        assert why_not_fork() == ""
    monkeypatch.setitem(sys.modules, "jax", object())

    assert why_not_fork() != ""


def test_maps_that_change_something_stay_where_they_are(tmp_path):
    """Unless asked for: what is collected elsewhere is not seen here."""
    seen = []
    ds = one_per_file(tmp_path / "x", "npz").map(lambda batch: seen.append(1) or batch)
    with ndfeed.loader(ds, 4) as loader:
        for _ in range(20):
            list(loader)

        assert len(seen) >= 200
        assert eventually(lambda: not running())


def test_nothing_is_started_that_is_of_no_use(tmp_path):
    """Rows of mapped files, one core, processes=0."""
    files = one_per_file(tmp_path / "x", "npz")
    for ds, options in ((numbers(tmp_path, 4000), {}), (files, {"processes": 0})):
        with ndfeed.loader(ds, 8, **options) as loader:
            for _ in range(40):
                list(loader)
            assert eventually(lambda: not running())
            assert loader.report().processes == 0


class Pool:
    """Processes as far as the choice looks at them; real ones are in the other tests."""

    def __init__(self, count=4):
        self.count, self.ready, self.problem, self.closed = count, False, "", False
        self.threads, self.lean, self.wanted = count + 1, True, False
        self.starting = False

    def reopen(self):
        self.closed, self.starting = False, True

    def start(self):
        self.ready = True

    def close(self):
        self.closed = True


def choose(
    rates, waits=1.0, seconds=20.0, monkeypatch=None, pool=None, steps=(), busy=0.0, cores=2
):
    """What a trial decides where threads and processes deliver rows at ``rates``.

    Threads keep ``busy`` of ``cores`` busy.
    """
    clock = [0.0]
    monkeypatch.setattr(process_choice.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(process_choice.time, "process_time", lambda: busy * clock[0])
    monkeypatch.setattr(process_choice, "share_of_cores", lambda: cores)
    pool = pool or Pool()
    switch = Switch(None, None, pool, careful=False)
    threads = []
    trial = Trial(switch, pool, steps, cores, threads.append)
    rows = waited = 0.0
    while clock[0] < seconds and not trial.over:
        clock[0] += 0.25
        rows += 0.25 * rates[pool.wanted](clock[0])
        waited += 0.25 * waits
        trial.look(int(rows), waited, 10)
        while pool.starting and not pool.ready:  # a thread starts them
            time.sleep(0.001)
    return pool.wanted, trial.over, threads, pool


@pytest.mark.parametrize(
    ("processes", "chosen"), [(5000, True), (2300, True), (2100, False), (500, False)]
)
def test_the_faster_is_kept(monkeypatch, processes, chosen):
    """By a tenth at least: processes take memory."""
    wanted, over, threads, _ = choose(
        [lambda _: 2000, lambda _: processes], monkeypatch=monkeypatch
    )

    assert (wanted, over) == (chosen, True)
    assert threads[-1] == (5 if chosen else 2)


def test_one_slow_moment_does_not_decide(monkeypatch):
    """The machine was busy while processes were tried, and still is when threads come again."""
    rates = [lambda at: 2000 if at < 1.4 else 500, lambda _: 1200]

    assert choose(rates, monkeypatch=monkeypatch)[0]


def test_nobody_is_tried_while_the_consumer_is_slower(monkeypatch):
    """Batches are ready: nothing would come sooner."""
    wanted, over, threads, pool = choose(
        [lambda _: 2000, lambda _: 9000], waits=0.05, monkeypatch=monkeypatch
    )

    assert (wanted, over, threads, pool.ready) == (False, False, [], False)


@pytest.mark.parametrize(
    ("cores", "busy", "chosen"), [(8, 2.0, True), (8, 7.0, False), (2, 1.9, True)]
)
def test_maps_that_release_the_gil_stay_in_threads(tmp_path, monkeypatch, cores, busy, chosen):
    """All cores are busy already, and batches would come slowly while processes start.

    Two cores may be busy with threads that hand the GIL to each other.
    """
    steps = numbers(tmp_path, 4).map(in_process).steps
    rates = [lambda _: 2000, lambda _: 9000]
    wanted, over, _, pool = choose(
        rates, monkeypatch=monkeypatch, steps=steps, busy=busy, cores=cores
    )

    assert (wanted, over, pool.ready) == (chosen, True, chosen)
    assert ("releases the GIL" in pool.problem) != chosen


def test_what_cannot_be_started_is_not_waited_for(monkeypatch):
    """Threads go on, with any number of them."""
    pool = Pool()
    pool.problem = "no more processes can be started"

    assert choose([lambda _: 10, lambda _: 10], monkeypatch=monkeypatch, pool=pool)[:2] == (
        False,
        True,
    )


def test_the_choice_changes_no_batch(tmp_path):
    """Whenever processes take over."""
    ds = one_per_file(tmp_path / "x", "npz", n=300)
    expected = epoch_of(ds, 4, shuffle=True, processes=0)
    with ndfeed.loader(ds, 4, shuffle=True) as loader:
        until = time.monotonic() + 4
        while time.monotonic() < until:
            loader.epoch = 0
            assert_same(list(loader), expected)


@pytest.mark.parametrize(("processes", "chosen"), [(3000, True), (2100, False)])
def test_epochs_with_pauses_between_them_are_added_up(monkeypatch, processes, chosen):
    """Each is shorter than what is measured for, and what happens in a pause does not count."""
    clock, pool, threads = [0.0], Pool(), []
    monkeypatch.setattr(process_choice.time, "perf_counter", lambda: clock[0])
    trial = Trial(Switch(None, None, pool, careful=False), pool, (), 2, threads.append)
    rows = waited = 0.0
    for _ in range(200):
        trial.resume(int(rows), waited)
        clock[0] += 0.2
        rows += 0.2 * [2000, processes][pool.wanted]
        waited += 0.2
        if not trial.over:
            trial.look(int(rows), waited, 10)
        trial.pause(int(rows), waited)
        clock[0] += 3  # the next batches are prefetched, and the consumer does something else
        rows += 100
        while pool.starting and not pool.ready:  # a thread starts them
            time.sleep(0.001)

    assert (trial.over, pool.wanted) == (True, chosen)
