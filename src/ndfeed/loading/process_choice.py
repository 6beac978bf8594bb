"""Decides whether batches are built by threads or by processes.

Threads are enough where reading is large copies, or where the consumer is slower anyway. Opening
many files, decoding small ones and most maps hold the GIL: there processes are faster, by as much
as there are cores. What is faster is measured: processes are started when the consumer has to wait
for threads, and kept if they deliver more. The same goes for functions given to ``map``, unless
they change what they refer to, or make other batches there than here: they may depend on the state
of the program.
"""

import _thread
import sys
import time
from collections.abc import Callable, Sequence

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Step
from ndfeed.files import process_server
from ndfeed.files.platform_calls import share_of_cores
from ndfeed.loading.builder_switch import Switch
from ndfeed.loading.map_state import State, find_changed, observe
from ndfeed.loading.options import Options
from ndfeed.loading.pool_worker import can_travel
from ndfeed.loading.process_pool import Choice, ProcessPool
from ndfeed.loading.uninterrupted import uninterrupted

_NOT_PORTABLE = (
    "a fresh process cannot find a function given to map(): define it in a module of its own"
)
_NOT_IN_FILES = "some of the data is in memory of this process: pack it, or keep it in files"

_MAY_WAIT = 0.1  # share of the time that the consumer may wait before anything is tried
_GAIN = 1.1
_BUSY = 0.7  # share of the cores that threads may use: above that, the GIL is not what limits them,
_SOME = 4  # if there are some: waiting for the GIL takes time of the processor as well
_LEAST = 0.4  # seconds that either is measured for
_LONGEST = 5.0  # and at most, if batches are slow
_FEW = 8  # batches that are enough to judge
_TRIES = 3  # measurements of processes before threads are compared once more


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
    """Say why this process should better not be forked; empty if it can be."""
    if sys.platform != "linux":
        return "forking is not safe on this system"
    for name in ("jax", "tensorflow"):
        if name in sys.modules:
            return f"forking is not safe with {name}"
    return "forking is not safe once CUDA is in use" if _uses_cuda() else ""


def why_not_start(processes: ProcessPool) -> str:
    """Say why processes that were chosen should not be started any more; empty if they can be."""
    if processes.lean or _uses_cuda():
        return ""
    return why_not_fork()  # a framework may have been imported since


def _uses_cuda() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())


def choose_processes(ds: Dataset, options: Options, *, decodes: bool) -> Choice:
    """Say which processes may be used; ``decodes`` if streams of many rows have to be decoded."""
    asked = options.processes
    if asked == 0 or not (ds.steps or decodes or opens_files(ds)):
        return Choice()
    if asked is None and (options.threads or share_of_cores() == 1):
        return Choice()
    count = asked or share_of_cores()
    obstacle = process_server.why_not() or ("" if can_travel(ds) else _NOT_IN_FILES)
    if not ds.steps:
        return Choice(0 if obstacle else count, True, not decodes, bool(asked), obstacle)
    # As the functions are now, unless this process cannot be forked safely.
    unsafe = why_not_fork()
    lean = bool(unsafe) and not obstacle and is_portable(ds.steps)
    # With CUDA in use, DataLoader forks as well: what it forks does not touch CUDA.
    if unsafe and not (lean or asked or _uses_cuda()):
        return Choice(obstacle=f"{unsafe}, and {obstacle or _NOT_PORTABLE}")
    return Choice(count, lean, not decodes, bool(asked))


def start_in_background(processes: ProcessPool) -> None:
    """Start processes while batches are built otherwise."""
    processes.reopen()
    try:
        _thread.start_new_thread(processes.start, ())  # one step: Ctrl-C cannot cut it short
    except RuntimeError as error:
        processes.problem = f"{error}"


def _try_observing(steps: Sequence[Step]) -> State:
    """Look at what functions refer to; where that fails, it counts as changing all the time."""
    try:
        return observe(steps)
    except Exception as error:  # noqa: BLE001 - objects may do anything when they are looked at
        return {"something": (object(), f"{error}")}


class Trial:
    """Tries processes once the consumer waits for threads, and keeps what delivers more.

    Threads, then processes for a while, and unless these were faster threads once more: rates
    increase for some seconds, and on a busy machine a single comparison would often be wrong.
    What epochs have shown is added up, since each of them may be short. ``look`` is called now and
    then by one thread, ``resume`` and ``pause`` at the start and the end of an epoch.
    """

    def __init__(
        self,
        switch: Switch,
        processes: ProcessPool,
        steps: Sequence[Step],
        threads: int,
        set_threads: Callable[[int], None],
    ) -> None:
        self.over = False
        self._steps = steps
        self._state: State | None = None  # of what functions refer to, when it was first looked at
        self._changed = ""  # what functions have changed
        self._blind = False  # did processes differ although nothing was seen to have changed?
        self._switch = switch
        self._processes = processes
        self._threads = threads
        self._set_threads = set_threads
        self._at = time.perf_counter()
        self._used = time.process_time()
        self._rows = 0
        self._waited = 0.0
        self._paused: tuple[float, int, float] | None = None
        self._rates = [0.0, 0.0]  # of the threads and of the processes
        self._settling = True
        self._started = False
        self._measured = 0  # how often processes were

    def resume(self, rows: int, waited: float) -> None:
        """Go on with the next epoch: what happened since the last one ended does not count."""
        if self._paused is None:  # it was abandoned
            self._settling = True
            self._started = self._started and self._processes.ready
            self._note(rows, waited)
        else:
            at, rows_then, waited_then = self._paused
            self._at += time.perf_counter() - at
            self._rows += rows - rows_then
            self._waited += waited - waited_then
        self._paused = None
        if self._steps:
            self._renew()

    @property
    def uses_processes(self) -> bool:
        """Are processes to be started for this epoch: those chosen, or those to be measured?"""
        return self._processes.wanted or (self._started and not self.over)

    def pause(self, rows: int, waited: float) -> None:
        """Count no further: an epoch has ended."""
        self._paused = time.perf_counter(), rows, waited
        if self._state is not None and not self.over:
            self._look_for_changes()

    def _renew(self) -> None:
        """Keep the processes there are only if functions would find the same in new ones."""
        processes = self._processes
        if self._state is not None and not self.over:
            self._state = _try_observing(self._steps)  # what the program has changed is no sign
        kept = self._keep_or_close()
        self._switch.renew(earlier=kept and not processes.lean)

    def _keep_or_close(self) -> bool:
        """Return whether the processes that were started for an earlier epoch can be used."""
        processes = self._processes
        if self._switch.outdated:
            processes.problem, self._blind = "", True
        forking = self._started and not (self.over or processes.ready or processes.problem)
        if forking and not processes.lean:
            processes.start()  # wait until they are there
        if not self._blind and self.uses_processes:
            return processes.keep_or_close()
        uninterrupted(processes.close)
        return False

    def _note(self, rows: int, waited: float) -> None:
        self._at, self._rows, self._waited = time.perf_counter(), rows, waited
        self._used = time.process_time()

    def look(self, rows: int, waited: float, batch: int) -> None:
        """Judge what was delivered since the last call, in batches of ``batch`` rows."""
        taken = time.perf_counter() - self._at
        made = rows - self._rows
        waits = (waited - self._waited) / taken > _MAY_WAIT
        if self._settling or (self._processes.wanted and not self._can_measure()):
            self._note(rows, waited)  # what was in progress before does not count
            self._settling = False
            if self._state is None:  # batches come before it is looked at again
                self._state = _try_observing(self._steps)
            return
        measured = taken >= _LEAST and made >= _FEW * batch
        if not measured and taken < _LONGEST:
            return
        self._rates[self._processes.wanted] = made / taken
        self._measured += self._processes.wanted
        busy = (time.process_time() - self._used) / taken
        self._note(rows, waited)
        if self._rates[1]:
            self._judge()
        elif self._processes.problem:
            self.over = True
        elif self._processes.ready:
            self._use_processes()
        elif waits and not self._started:
            self._start(busy)

    def _can_measure(self) -> bool:
        """Do processes build batches, and nobody compares them any more?"""
        if self._processes.problem and not self._processes.ready and not self._switch.outdated:
            self._use_threads()
            self.over = True
        return self._processes.ready and self._switch.proven

    def _look_for_changes(self) -> None:
        now = _try_observing(self._steps)
        self._changed = self._changed or find_changed(self._state or {}, now)

    def _start(self, busy: float) -> None:
        """Start processes, unless something speaks against that; threads keep ``busy`` cores busy.

        Those that build batches of maps are forked, and map all memory anew: batches come slowly
        meanwhile, and would for nothing.
        """
        self._look_for_changes()
        problem = why_not_start(self._processes)
        cores = min(self._threads, share_of_cores())
        if self._steps and cores >= _SOME and busy > _BUSY * cores:
            problem = f"map() releases the GIL, so that threads keep {busy:.1f} cores busy"
        if self._changed:
            problem = (
                f"map() changes {self._changed!r}, and nobody would see that in other processes"
            )
        if problem:
            self._processes.problem = problem
            self.over = True
            return
        self._started = True
        start_in_background(self._processes)

    def _judge(self) -> None:
        threads, processes = self._rates
        if self._processes.wanted and processes < threads * _GAIN:
            if self._measured >= _TRIES:
                self._use_threads()
        elif not self._processes.wanted and processes >= threads * _GAIN:
            self._use_processes()
            self.over = True
        else:
            self.over = True

    def _use_processes(self) -> None:
        self._processes.wanted = self._settling = True
        self._set_threads(self._processes.threads)

    def _use_threads(self) -> None:
        self._processes.wanted = False
        self._settling = True
        self._set_threads(self._threads)
