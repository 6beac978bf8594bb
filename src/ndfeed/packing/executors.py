"""Runs tasks in an executor: threads, worker processes, or remote machines.

An executor is any ``concurrent.futures.Executor``. Without one this module makes its own pool:
threads, since copying and inflating release the GIL; or processes, where there are maps, which may
hold it, that can be pickled, and the first task took so long that starting processes pays off.

A task whose worker died is given to another, a few times. Any other error ends the run: tasks not
yet started are cancelled, running ones are waited for, finished ones are recorded.
"""

import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
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
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import WorkerError
from ndfeed.files import platform_calls
from ndfeed.packing.journal import Record
from ndfeed.packing.source_rows import Rows
from ndfeed.packing.tasks import Stopped, stopped, work

_TRIES = 3
_MOST = 16
_AHEAD = 64  # tasks submitted before others are done; recording them may take a while
_WORTH_IT = 4.0  # seconds of work for which processes are started
# Modules whose errors say that a worker is lost, not that the task failed.
_OTHERS = ("distributed.", "ray.")


class Orders(NamedTuple):
    """What all tasks of a plan share: its folder, and the digest of the plan's file.

    ``synced``: must workers sync what they wrote? ``note`` gets the records of finished tasks,
    ``described`` describes a task for people.
    """

    folder: bytes
    digest: str
    synced: bool
    note: Callable[[list[Record]], None]
    described: Callable[[str], str]


class WorkerPool:
    """Runs the tasks of one plan. Use as a context manager."""

    def __init__(self, ds: Dataset, executor: Executor | None, workers: int | None) -> None:
        self.source = Rows(ds)
        self._ds = ds
        self._given = executor
        self._own: Executor | None = None
        self._undecided = executor is None and bool(ds.steps) and _sendable(ds)
        self._processes = False
        most = getattr(executor, "_max_workers", None)
        self.workers = workers or (most if isinstance(most, int) else 0)
        # Threads that wait for the disk leave the cores to others.
        self.workers = self.workers or min(platform_calls.cores() * (1 if ds.steps else 2), _MOST)

    @property
    def _executor(self) -> Executor:
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = self._made()
        return self._own

    def _made(self) -> Executor:
        if not self._processes:
            return ThreadPoolExecutor(self.workers, "ndfeed-pack")
        # Spawned: a fork would copy locks that other threads hold at this moment.
        return ProcessPoolExecutor(self.workers, get_context("spawn"), _ignore_interrupts)

    @property
    def own(self) -> bool:
        """Does this pool own its workers, so that they are on this machine?"""
        return self._given is None

    def run(self, orders: Orders, tasks: Sequence[str]) -> None:
        """Run ``tasks`` of a plan."""
        running: dict[Future[Record], str] = {}
        waiting, tries = deque(tasks), Counter[str]()
        stopped.discard(orders.folder)
        try:
            if self._undecided and len(tasks) > 1 and tasks[0].startswith("rows"):
                self._decide(orders, waiting.popleft(), len(waiting))
            while waiting or running:
                while waiting and len(running) < max(2 * self.workers, _AHEAD):
                    task = waiting.popleft()
                    running[self._submitted(orders, task)] = task
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                lost = _collected({future: running.pop(future) for future in done}, orders.note)
                _retry(lost, tries, waiting, orders.described)
        except BaseException:
            stopped.add(orders.folder)
            _call_off(running)
            raise

    def _decide(self, orders: Orders, task: str, others: int) -> None:
        """Run the first task here, and measure its cost."""
        began = time.perf_counter()
        orders.note([work(orders.folder, orders.digest, self._ds, task, orders.synced)])
        self._undecided = False
        self._processes = (time.perf_counter() - began) * others > _WORTH_IT

    def _submitted(self, orders: Orders, task: str) -> "Future[Record]":
        args = orders.folder, orders.digest, self._ds, task, orders.synced
        try:
            return self._executor.submit(work, *args)
        except BrokenExecutor as error:
            if self._own is None:
                failed: Future[Record] = Future()
                failed.set_exception(error)
                return failed
            self._own.shutdown(wait=False, cancel_futures=True)
            self._own = None
            return self._executor.submit(work, *args)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *error: object) -> None:
        if self._own is not None:
            self._own.shutdown(wait=True, cancel_futures=True)


def _collected(
    done: dict["Future[Record]", str], note: Callable[[list[Record]], None]
) -> list[tuple[str, BaseException]]:
    """Record finished tasks. Raises errors; returns tasks that were lost with their worker."""
    records: list[Record] = []
    lost: list[tuple[str, BaseException]] = []
    wrong: BaseException | None = None
    for future, task in done.items():
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            records.append(future.result())
        elif _is_loss(error):
            lost.append((task, error))
        else:
            wrong = wrong or error
    if records:
        note(records)
    if wrong is not None:
        raise wrong
    return lost


def _call_off(running: dict["Future[Record]", str]) -> None:
    for future in running:
        future.cancel()
    # Nobody writes any more when the caller gets the error.
    wait([future for future in running if not future.cancelled()])


def _retry(
    lost: Iterable[tuple[str, BaseException]],
    tries: "Counter[str]",
    waiting: "deque[str]",
    described: Callable[[str], str],
) -> None:
    """Run lost tasks again, unless that was tried before."""
    for task, error in lost:
        tries[task] += 1
        if tries[task] >= _TRIES:
            raise WorkerError(
                f"a worker died {_TRIES} times over {described(task)}: {_one_line(error)}",
                "it is out of memory or crashes, or a script that packs in processes lacks "
                "if __name__ == '__main__'; rerun to resume",
            ) from error
        waiting.append(task)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _is_loss(error: BaseException) -> bool:
    foreign = type(error).__module__.startswith(_OTHERS)
    return foreign or isinstance(error, BrokenExecutor | CancelledError | Stopped)


def _sendable(ds: Dataset) -> bool:
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
