"""Decides whether batches are built by threads or by processes.

Threads are enough where reading is large copies, or where the consumer is slower anyway. Opening
many files, decoding small ones and most maps hold the GIL: there processes are faster, by as much
as there are cores. For files, what is faster is measured: processes are started when the consumer
has to wait for threads, and kept if they deliver more. Functions given to ``map`` run in processes
only if that was asked for: they may depend on the state of the program, and change it.
"""

import _thread
import os
import sys
import time
from collections.abc import Callable, Sequence

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch, Step
from ndfeed.files import platform_calls
from ndfeed.loading import process_server
from ndfeed.loading.batch_builder import BatchBuilder
from ndfeed.loading.map_rng import SampleSeeds
from ndfeed.loading.process_pool import Processes
from ndfeed.loading.timing import Timing
from ndfeed.order.permutation import Ints

_MAY_WAIT = 0.1  # share of the time that the consumer may wait before anything is tried
_GAIN = 1.1
_LEAST = 0.4  # seconds that either is measured for
_LONGEST = 5.0  # and at most, if batches are slow
_FEW = 8  # batches that are enough to judge
_TRIES = 3  # measurements of processes before threads are compared once more


def share_of_cores() -> int:
    """Return how many cores this process may use: its share of them, if the host has ranks."""
    cores = platform_calls.cores()
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(cores // int(ranks), 1) if ranks.isdecimal() and int(ranks) > 1 else cores


def opens_files(ds: Dataset) -> bool:
    """Is a file opened for every sample, so that reading holds the GIL?"""
    return any(group.by_file for group in ds.groups)


def is_portable(steps: Sequence[Step]) -> bool:
    """Can the functions given to map be found by name in a fresh process?"""
    try:
        process_server.encode(steps)
    except process_server.ServerError:
        return False
    return True


def why_not_fork() -> str:
    """Say why this process should not be forked unless asked to; empty if it can be."""
    if sys.platform != "linux":
        return "forking is not safe on this system"
    for name in ("jax", "tensorflow"):
        if name in sys.modules:
            return f"forking is not safe with {name}"
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return "forking is not safe once CUDA is in use"
    return ""


class Switch:
    """Builds batches by processes if they are wanted and run, otherwise in this process."""

    def __init__(self, local: BatchBuilder, processes: Processes, *, wanted: bool) -> None:
        self.wanted = wanted
        self._local = local
        self._processes = processes

    @property
    def now(self) -> BatchBuilder | Processes:
        """What builds batches now."""
        return self._processes if self.wanted and self._processes.ready else self._local

    def read(self, rows: Ints, timing: Timing) -> Batch | None:
        """Return the stored fields of several batches; ``None`` where each is better read alone."""
        return self.now.read(rows, timing)

    def build(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing, batch: Batch | None = None
    ) -> Batch:
        """Return the batch of ``rows``."""
        return self.now.build(rows, seeds, timing, batch)

    def build_several(
        self, rows: Sequence[Ints], seeds: Sequence[SampleSeeds], timing: Timing
    ) -> list[Batch] | None:
        """Return several small batches that maps make; ``None`` where that is no faster."""
        return self.now.build_several(rows, seeds, timing)


def start_in_background(processes: Processes) -> None:
    """Start processes while batches are built otherwise."""
    processes.reopen()
    try:
        _thread.start_new_thread(processes.start, ())  # a single step: Ctrl-C cannot cut it short
    except RuntimeError as error:
        processes.problem = f"{error}"


class Trial:
    """Tries processes once the consumer waits for threads, and keeps what delivers more.

    Threads, then processes for a while, and unless these were faster threads once more: rates
    increase for some seconds, and on a busy machine a single comparison would often be wrong.
    ``look`` is called now and then by one thread.
    """

    def __init__(
        self, switch: Switch, processes: Processes, threads: int, set_threads: Callable[[int], None]
    ) -> None:
        self.over = False
        self._switch = switch
        self._processes = processes
        self._threads = threads
        self._set_threads = set_threads
        self._at = time.perf_counter()
        self._rows = 0
        self._waited = 0.0
        self._rates = [0.0, 0.0]  # of the threads and of the processes
        self._settling = True
        self._started = False
        self._measured = 0  # how often processes were

    def restart(self, rows: int, waited: float) -> None:
        """Start over after a pause: neither the pause counts nor the first batches."""
        self._settling = True
        self._started = self._started and self._processes.ready  # or a pass ended meanwhile
        self._note(rows, waited)

    def _note(self, rows: int, waited: float) -> None:
        self._at, self._rows, self._waited = time.perf_counter(), rows, waited

    def look(self, rows: int, waited: float, batch: int) -> None:
        """Judge what was delivered since the last call, in batches of ``batch`` rows."""
        taken = time.perf_counter() - self._at
        made = rows - self._rows
        waits = (waited - self._waited) / taken > _MAY_WAIT
        if self._settling or (self._switch.wanted and not self._processes.ready):
            self._note(rows, waited)  # what was in progress before does not count
            self._settling = False
            return
        measured = taken >= _LEAST and made >= _FEW * batch
        if not measured and taken < _LONGEST:
            return
        self._rates[self._switch.wanted] = made / taken
        self._measured += self._switch.wanted
        self._note(rows, waited)
        if self._rates[1]:
            self._judge()
        elif self._processes.problem:
            self.over = True
        elif self._processes.ready:
            self._use_processes()
        elif waits and not self._started:
            self._started = True
            start_in_background(self._processes)

    def _judge(self) -> None:
        threads, processes = self._rates
        if self._switch.wanted and processes < threads * _GAIN:
            if self._measured >= _TRIES:
                self._use_threads()
        elif not self._switch.wanted and processes >= threads * _GAIN:
            self._use_processes()
            self.over = True
        else:
            self.over = True

    def _use_processes(self) -> None:
        self._switch.wanted = self._settling = True
        self._set_threads(self._processes.count + 1)

    def _use_threads(self) -> None:
        self._switch.wanted = False
        self._settling = True
        self._set_threads(self._threads)
