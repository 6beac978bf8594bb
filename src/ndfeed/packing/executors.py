"""Runs tasks in an executor: the worker that threads, processes or machines get, and their pool.

An executor is any ``concurrent.futures.Executor``. Without one this module makes its own pool:
threads, since copying and inflating release the GIL; or processes, if the first tasks show that
starting them pays off. Those are spawned where there are maps, which may hold the GIL, that can be
pickled. Where files of one sample each are opened, which holds the GIL, too, and keeps no more than
about four threads busy, processes are forks of a lean one; threads work until these have started.

A task whose worker died is given to another, a few times. Any other error ends the run: tasks not
yet started are cancelled, running ones are waited for or, in forks of our own, ended; finished ones
are recorded.
"""

import os
import secrets
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import closing
from functools import partial
from itertools import count
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple, Self

from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import WorkerError
from ndfeed.files import platform_calls
from ndfeed.files.processes import map_in_processes, useful_processes
from ndfeed.files.threads import map_in_threads, run_apart
from ndfeed.packing.journal import Record
from ndfeed.packing.plan import RowsTask, Task
from ndfeed.packing.tasks import Job, Stopped, run_task

_TRIES = 3
_MOST = 16
_LOOK_EVERY = 0.2  # seconds between looks for Ctrl-C
_AHEAD = 64  # tasks submitted before others are done; recording them may take a while
_WORTH_IT = 4.0  # seconds of work for which processes are spawned
_WORTH_A_FORK = 0.25  # and for which a lean one is started and forked
_BUSY = 4  # threads that open files at once; more would only wait for the GIL
# Modules whose errors say that a worker is lost, not that the task failed.
_OTHERS = ("distributed.", "ray.")


class Worker:
    """Runs tasks of the plan in ``folder``. Threads share one worker, processes receive copies.

    ``digest`` is that of the plan's file, so that no other plan is mistaken for it. ``is_copy``
    says that this process belongs to the pack, so that maps may seed its global generators.
    """

    def __init__(self, folder: bytes, digest: str, ds: Dataset, *, is_copy: bool = False) -> None:
        self.folder, self.digest, self.ds, self.is_copy = folder, digest, ds, is_copy
        self._id = _PROCESS, os.getpid(), next(_numbers)  # no other worker anywhere has the same
        self._job: Job | None = None
        self._lock = threading.Lock()
        self.stopped = False

    def run(self, task: Task, sync: bool = True) -> Record:
        """Run a task; unless ``sync``, the rows that it writes are synced by the caller."""
        with self._lock:
            if self._job is None:
                where = self.folder, self.digest
                self._job = Job(*where, self.ds, seeds_globals=self.is_copy)
        if self.stopped:
            raise Stopped
        return run_task(self._job, task, sync=sync)

    def stop(self) -> None:
        """Have tasks in threads of this process end with ``Stopped``."""
        self.stopped = True
        if self._job is not None:
            self._job.stopped = True

    def close(self) -> None:
        """Let go of the plan and its folder, when no task is running any more."""
        self._job = None

    def __reduce__(self) -> tuple[object, ...]:
        return _receive_worker, (self._id, self.folder, self.digest, self.ds)


# Random bytes of a process, which its forks share; its number; and the number of the worker in it.
_WorkerId = tuple[bytes, int, int]
_PROCESS = secrets.token_bytes(16)
_numbers = count()
_received: dict[_WorkerId, Worker] = {}  # only the newest
_lock = threading.Lock()


def _receive_worker(worker_id: _WorkerId, folder: bytes, digest: str, ds: Dataset) -> Worker:
    """Return the worker of this process: it arrives with every task, and is opened once.

    Another run may have the same plan in another folder of the same name, so each has its own.
    """
    with _lock:
        worker = _received.get(worker_id)
        if worker is None:
            _received.clear()
            is_copy = worker_id[:2] != (_PROCESS, os.getpid())
            worker = _received[worker_id] = Worker(folder, digest, ds, is_copy=is_copy)
        return worker


class Stage(NamedTuple):
    """Tasks that may run at the same time, and what to do with their records.

    ``sync`` says that workers sync the rows they wrote. ``record`` takes the records of finished
    tasks, ``describe`` describes a task for people.
    """

    worker: Worker
    tasks: Sequence[Task]
    sync: bool
    record: Callable[[list[Record]], None]
    describe: Callable[[Task], str]


class WorkerPool:
    """Runs the tasks of one plan. Use as a context manager.

    ``workers`` is how many tasks run at once: as the caller says, or else as the executor does in
    an attribute ``max_workers``, or else about one for each core.
    """

    def __init__(self, ds: Dataset, executor: Executor | None, workers: int | None) -> None:
        self._given = executor
        self._own: Executor | None = None
        self._undecided = executor is None and bool(ds.steps) and _can_pickle(ds)
        self._processes = False
        self._opens_files = executor is None and not ds.steps and _opens_files(ds)
        known = getattr(executor, "max_workers", None)
        # Threads that wait for the disk leave the cores to others.
        usual = min(platform_calls.cores() * (1 if ds.steps else 2), _MOST)
        self.workers = workers or (known if isinstance(known, int) and known > 0 else usual)

    @property
    def is_local(self) -> bool:
        """Does this pool own its workers, so that they are on this machine?"""
        return self._given is None

    def run(self, stage: Stage) -> None:
        """Run the tasks of a stage, in any order.

        Futures are handled in a thread of their own: Ctrl-C could leave their locks held.
        """
        waiting = deque(stage.tasks)
        if self._undecided and len(waiting) > 1 and isinstance(waiting[0], RowsTask):
            self._choose_kind(stage, waiting.popleft(), len(waiting))
        elif self._opens_files and isinstance(waiting[0], RowsTask):
            self._run_in_forks(stage, waiting)
        run_apart(lambda: self._run_futures(stage, waiting), stage.worker.stop)

    def _run_in_forks(self, stage: Stage, waiting: "deque[Task]") -> None:
        """Run the first tasks here, and all others in forks of a lean process if that pays."""
        forks = min(self.workers, useful_processes())
        if forks <= _BUSY or len(waiting) <= 2 * _BUSY:
            return
        run, stop = partial(_run_task, (stage.worker, stage.sync)), stage.worker.stop
        began = time.perf_counter()
        _record_each(stage, map_in_threads(run, _take(waiting, _BUSY), _BUSY, stop))
        left = (time.perf_counter() - began) / _BUSY * len(waiting)
        if left > _WORTH_A_FORK:
            job = stage.worker, stage.sync
            tasks = _take(waiting, len(waiting))
            _record_each(
                stage, map_in_processes(_run_task, job, tasks, forks, here=_BUSY, stop=stop)
            )

    def _run_futures(self, stage: Stage, waiting: "deque[Task]") -> None:
        running: dict[Future[Record], Task] = {}
        tries = Counter[Task]()
        try:
            while waiting or running:
                if stage.worker.stopped:
                    raise Stopped
                while waiting and len(running) < max(2 * self.workers, _AHEAD):
                    task = waiting.popleft()
                    running[self._submit(stage, task)] = task
                done, _ = wait(running, _LOOK_EVERY, FIRST_COMPLETED)
                lost = _collect({future: running.pop(future) for future in done}, stage.record)
                _retry(lost, tries, waiting, stage.describe)
        except BaseException:
            stage.worker.stop()
            _cancel(running)
            raise

    def _choose_kind(self, stage: Stage, task: Task, others: int) -> None:
        """Run the first task here, and choose processes if the others would take long."""
        began = time.perf_counter()
        try:
            stage.record([stage.worker.run(task, stage.sync)])
        except BaseException:
            stage.worker.stop()
            raise
        self._undecided = False
        self._processes = (time.perf_counter() - began) * others > _WORTH_IT

    def _submit(self, stage: Stage, task: Task) -> "Future[Record]":
        try:
            return self._executor().submit(stage.worker.run, task, stage.sync)
        except BrokenExecutor as error:
            if self._own is None:
                failed: Future[Record] = Future()
                failed.set_exception(error)
                return failed
            self._own.shutdown(wait=False, cancel_futures=True)
            self._own = None
            return self._executor().submit(stage.worker.run, task, stage.sync)

    def _executor(self) -> Executor:
        """Return the caller's executor, or one of our own."""
        if self._given is not None:
            return self._given
        if self._own is None:
            if self._processes:
                # Spawned: a fork would copy locks that other threads hold at this moment.
                spawn = get_context("spawn")
                self._own = ProcessPoolExecutor(self.workers, spawn, _ignore_interrupts)
            else:
                self._own = ThreadPoolExecutor(self.workers, "ndfeed-pack")
        return self._own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._own is not None:
            own = self._own
            run_apart(lambda: own.shutdown(wait=True, cancel_futures=True), lambda: None)


def _take(waiting: "deque[Task]", most: int) -> list[Task]:
    return [waiting.popleft() for _ in range(min(most, len(waiting)))]


def _run_task(job: tuple[Worker, bool], task: Task) -> Record:
    worker, sync = job
    return worker.run(task, sync)


def _record_each(stage: Stage, records: Generator[Record, None, None]) -> None:
    """Record tasks as they are done. A record is written whole, or Ctrl-C comes before it."""
    with closing(records):
        for record in records:
            run_apart(partial(stage.record, [record]), lambda: None)


def _collect(
    done: dict["Future[Record]", Task], record: Callable[[list[Record]], None]
) -> list[tuple[Task, BaseException]]:
    """Record finished tasks. Raises errors; returns tasks that were lost with their worker."""
    records: list[Record] = []
    lost: list[tuple[Task, BaseException]] = []
    wrong: BaseException | None = None
    for future, task in done.items():
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            records.append(future.result())
        elif _is_lost_worker(error):
            lost.append((task, error))
        else:
            wrong = wrong or error
    if records:
        record(records)
    if wrong is not None:
        raise wrong
    return lost


def _cancel(running: dict["Future[Record]", Task]) -> None:
    for future in running:
        future.cancel()
    # Nobody writes any more when the caller gets the error.
    wait([future for future in running if not future.cancelled()])


def _retry(
    lost: Iterable[tuple[Task, BaseException]],
    tries: "Counter[Task]",
    waiting: "deque[Task]",
    describe: Callable[[Task], str],
) -> None:
    """Run lost tasks again, unless that was tried before."""
    for task, error in lost:
        tries[task] += 1
        if tries[task] >= _TRIES:
            raise WorkerError(
                f"a worker died {_TRIES} times while running {describe(task)}: {_one_line(error)}",
                "it is out of memory or crashes, or a script that packs in processes lacks "
                "if __name__ == '__main__'; rerun to resume",
            ) from error
        waiting.append(task)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _is_lost_worker(error: BaseException) -> bool:
    foreign = type(error).__module__.startswith(_OTHERS)
    return foreign or isinstance(error, BrokenExecutor | CancelledError | Stopped)


def _opens_files(ds: Dataset) -> bool:
    """Is a file opened for every sample, one that another process can open, too?"""
    tables = [group.table for group in ds.groups]
    by_file = any(group.by_file for group in ds.groups)
    return by_file and all(table.owner is None for table in tables)


def _can_pickle(ds: Dataset) -> bool:
    """Can the dataset, with its maps, be pickled for another process?"""
    try:
        ForkingPickler.dumps(ds)
    except Exception:  # noqa: BLE001 - whatever a map's own pickling raises
        return False
    return True


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C, which is for the process that waits for the tasks."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
