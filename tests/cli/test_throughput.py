"""Loaders that are run to measure them: what is counted, and over which time."""

import time
from dataclasses import replace

import numpy as np
import pytest

import ndfeed
from ndfeed.cli.throughput import run, run_epochs
from ndfeed.loading.report import Report

ROWS = 10


class Bursts:
    """A loader as those of large compressed files: a wait, then all that was in the file at once.

    It gives ``batches`` batches of 10 rows an epoch; before every fourth it inflates.
    """

    def __init__(self, batches, wait, depth=4):
        self.batches, self.wait, self.depth = batches, wait, depth
        self.closed = False
        self.epochs = 0
        self._report = Report("bursts", threads=2, depth=depth, ready=1)

    def __iter__(self):
        self.epochs += 1
        self._report = replace(self._report, stages={"inflate": 0.0})
        for number in range(self.batches):
            if number % 4 == 0:
                time.sleep(self.wait)
                spent = self._report.stages["inflate"] + self.wait
                self._report = replace(self._report, stages={"inflate": spent})
            yield {"x": np.zeros(ROWS)}

    def report(self):
        return self._report

    def close(self):
        self.closed = True


def test_epochs_are_whole_and_take_their_time():
    """A burst within one says nothing: 40 rows come at once, and then none for 10 ms."""
    loader = Bursts(batches=8, wait=0.01)
    found = run_epochs(loader, at_least=0.1, at_most=60)

    assert found.seconds >= 0.1
    assert found.rows == 8 * ROWS * (loader.epochs - 1)
    assert found.rows_per_second <= 4 * ROWS / 0.01
    assert loader.closed


def test_epochs_that_take_too_long_say_nothing():
    """Neither a part of one nor a first one is a measurement."""
    loader = Bursts(batches=100_000, wait=0.01)
    began = time.perf_counter()

    assert run_epochs(loader, at_least=0.1, at_most=0.2) is None
    assert time.perf_counter() - began < 30
    assert loader.closed
    assert run_epochs(Bursts(batches=0, wait=0), at_least=0.1, at_most=60) is None


def test_what_was_made_ahead_is_not_counted():
    """Four batches wait when the first is taken; their rows cost no time that is measured."""
    found = run(Bursts(batches=100_000, wait=0.01), 0.2, warm_up=0.01)

    assert found.rows_per_second <= 1.5 * 4 * ROWS / 0.01
    assert found.stages["inflate"] <= found.seconds + 0.01


def test_time_of_threads_is_that_of_the_rows_counted(tmp_path):
    """What they did before the measurement is left out, or stages would look too slow."""
    np.savez_compressed(tmp_path / "x.npz", x=np.random.default_rng(0).random((2000, 50)))
    ds = ndfeed.open(tmp_path / "x.npz", sample="row")
    found = run(ndfeed.loader(ds, 16, shuffle=True, threads=1), 0.3, warm_up=0.1)

    assert found.rows > 0
    assert found.threads == 1
    assert 0 < sum(found.stages.values()) <= 1.2 * found.seconds
    assert found.row_bytes == pytest.approx(400)
