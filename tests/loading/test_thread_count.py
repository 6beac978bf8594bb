"""How many threads: a guess by what is read, then whatever turns out to be fastest."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from loading.making import compressed, doubled, made, numbers

import ndfeed
from ndfeed.files import platform_calls
from ndfeed.loading.thread_count import Tuner, guess_threads


def test_warm_small_files_are_read_by_one_thread(tmp_path):
    """Two would hand the interpreter's lock around at every file."""
    assert guess_threads(made(tmp_path / "a", "an npy a sample")) == 1
    assert guess_threads(made(tmp_path / "b", "a stored npz a sample")) == 1


def test_inflating_and_large_copies_take_all_cores(tmp_path):
    """They run outside the interpreter."""
    assert guess_threads(compressed(tmp_path / "z", 2, 4)[0]) == min(platform_calls.cores(), 16)
    assert guess_threads(made(tmp_path / "a", "a deflated npz a sample")) == min(
        platform_calls.cores(), 16
    )
    assert guess_threads(numbers(tmp_path, 10, width=100)) == min(platform_calls.cores(), 16)


@pytest.mark.parametrize("several", [True, False])
def test_small_rows_of_many_files_take_all_cores_if_they_release_the_gil(tmp_path, several):
    """Rows that begin at odd places in some files are gathered by one thread at a time."""
    for i in range(3):
        before = np.zeros((4, 0 if several else i), np.uint8)
        np.savez(tmp_path / f"{i}.npz", a=before, data=np.zeros((4, 3072), np.uint8))
    ds = ndfeed.open(tmp_path, sample="row", fields=("data",))

    assert guess_threads(ds) == (min(3, platform_calls.cores()) if several else 1)


def test_maps_take_two_at_least(tmp_path):
    """One reads while the other computes."""
    ds = made(tmp_path / "a", "an npy a sample").map(doubled)

    assert guess_threads(ds) == min(max(platform_calls.cores(), 2), 16)


def test_nothing_at_all_is_a_guess_too(tmp_path):
    """An empty view has no rows to measure."""
    assert guess_threads(numbers(tmp_path, 10).take([])) >= 1
    np.save(tmp_path / "e.npy", np.zeros((0, 3)))
    assert guess_threads(ndfeed.open(tmp_path / "e.npy")) >= 1


class Machine:
    """Delivers rows at a rate that hangs on the number of threads, by a clock of its own."""

    def __init__(self, monkeypatch, best, first, starved=1.0):
        self.now, self.rows, self.waited = 100.0, 0.0, 0.0
        self.best, self.share = best, starved
        self.used = []
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(sys.modules[Tuner.__module__], "time", clock)
        self.threads = first
        self.tuner = Tuner(first, self.use)

    def use(self, threads):
        self.used.append(threads)
        self.threads = threads

    def go_on(self, looks):
        for _ in range(looks):
            self.now += 0.25
            self.rows += 1000 / (1 + abs(self.threads - self.best))
            self.waited += 0.25 * self.share
            self.tuner.look(int(self.rows), self.waited)


@pytest.mark.parametrize(("best", "first"), [(8, 2), (4, 1), (1, 4), (16, 4)])
def test_the_tuner_finds_a_better_number(monkeypatch, best, first):
    """While the consumer waits; from too few as from too many."""
    machine = Machine(monkeypatch, best, first)
    machine.go_on(200)

    assert abs(machine.tuner.threads - best) <= max(best // 3, 1)


def test_the_tuner_stays_where_it_is_best(monkeypatch):
    """Tries cost: they become rare where they fail."""
    machine = Machine(monkeypatch, 4, 4)
    machine.go_on(400)

    assert machine.tuner.threads == 4
    assert len(machine.used) < 40


def test_nothing_is_tried_while_the_consumer_is_the_limit(monkeypatch):
    """More threads would only take its time."""
    machine = Machine(monkeypatch, 8, 2, starved=0.01)
    machine.go_on(100)

    assert machine.used == []


def test_a_pause_and_the_beginning_after_it_do_not_count(monkeypatch):
    """What is tried when a pass ends is judged by the next one, once that is under way."""
    machine = Machine(monkeypatch, 8, 2)
    while machine.threads == 2:
        machine.go_on(1)
    machine.now += 1000.0
    machine.tuner.restart(int(machine.rows), machine.waited)
    machine.go_on(2)

    assert machine.tuner.threads == machine.threads == 3
