"""Worker processes that threads borrow, for work that holds the GIL: opening files, decoding, maps.

Guarantees:

- A process that dies is replaced, and what it was asked for is asked once more; then it is an
  error.
- Processes end when told to and when the process that started them is gone.
- Where no process can be started, ``problem`` says why, and threads do the work.
"""

import _thread
import contextlib
import hashlib
import heapq
import threading
from collections.abc import Callable
from itertools import count as count_up
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from ndfeed.errors import Error, WorkerError
from ndfeed.files.process_server import Payload, Server, ServerError, encode
from ndfeed.files.worker_process import Child, Died, Message, start_child
from ndfeed.loading.batch_builder import running_maps
from ndfeed.loading.buffer_pool import Bytes, discard
from ndfeed.loading.map_snapshot import Snapshot, take_snapshot
from ndfeed.loading.pool_worker import Detached, Job, serve
from ndfeed.loading.uninterrupted import uninterrupted

Result = TypeVar("Result")

_TRIES = 2
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


class Unanswered(WorkerError):
    """A process took longer than it may, and was killed."""


class Choice(NamedTuple):
    """How many processes may be used, of which kind, and for what."""

    processes: int = 0
    lean: bool = True  # forks of a fresh interpreter, or else of this process?
    reads: bool = True  # do they read rows, or decode streams and run maps only?
    wanted: bool = False  # were they asked for, or are they to be tried?
    obstacle: str = ""  # why there are none, where they might help


class ProcessPool:
    """Processes that work at a job, each used by one thread at a time."""

    def __init__(self, choice: Choice, job: Job) -> None:
        self.count = choice.processes
        self.lean = choice.lean
        self.reads = choice.reads
        self.wanted = choice.wanted  # are they to be used now?
        self.problem = ""  # why there are none
        self.patience: float | None = None  # seconds that an answer may take, if limited
        self._job = job
        self._mapped = bool(job.ds.steps)
        self._found: Snapshot | bytes | None = None  # what functions referred to when they started
        self._asked = choice.wanted
        # A function that would take memory of a GPU in every process is to fail instead.
        self._environment = {} if choice.wanted else _NO_GPU
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._idle: list[Child] = []
        self._all: list[Child] = []
        self._server: Server | None = None
        self._coming: Server | None = None  # that loads the job
        # A heap of the positions of batches that wait for a process, each with its queue.
        self._waiting: list[tuple[int, int, SimpleQueue[Child | None]]] = []
        self._number = count_up()
        self._closed = False

    @property
    def threads(self) -> int:
        """How many threads keep them busy: each waits for one, and others read meanwhile."""
        return self.count + 1 + (0 if self.reads else self.count // 4)

    @property
    def ready(self) -> bool:
        """Do all processes run?"""
        return 0 < self.count == len(self._all)

    @property
    def active(self) -> bool:
        """Are they used now?"""
        return self.wanted and self.ready

    def reopen(self) -> None:
        """Allow processes to be started, perhaps again after ``close``."""
        self._closed = False

    def keep_or_close(self) -> bool:
        """Keep the processes if functions find there what they would find in new ones.

        If that is not known they are closed. Return whether there are any.
        """
        if not self._mapped:
            return self.ready
        now = self._look()
        kept = now is not None and now == self._found
        if not kept:
            uninterrupted(self.close)
        return kept and self.ready

    def _look(self) -> Snapshot | bytes | None:
        """Return what functions refer to, so that it can be compared; ``None`` if unknown."""
        steps = self._job.ds.steps
        found = take_snapshot(steps)
        if found is None and self.lean:  # what lean processes would be sent is all they have
            with contextlib.suppress(ServerError):
                text, pieces = encode(steps)
                return b"".join(hashlib.blake2b(one).digest() for one in (text, *pieces))
        return found

    def start(self) -> None:
        """Start what is missing, unless it was closed; ``problem`` says why that failed."""
        uninterrupted(self._start)

    def _start(self) -> None:
        with self._starting:  # one at a time, and others may be used meanwhile
            problem = self._try_starting()
            if problem and self.lean and self._mapped and self._asked:  # whatever it takes
                self.lean = False
                problem = self._try_starting()
            surplus: list[Child] = []
            with self._lock:
                if problem:
                    surplus = self._leave_room()
                    self._give_up(problem)
                ending = self._take_all() if self._closed else ([], None)  # closed meanwhile
            _end(surplus, None)
            _end(*ending)

    def _try_starting(self) -> str:
        """Start what is missing, and return what went wrong."""
        if self._mapped and not self._all:
            self._found = self._look()
        try:
            if self.lean and self._server is None and not self._closed:
                self._server = self._start_server()
                if self._server is None:
                    return ""
            with self._lock:
                while len(self._all) < self.count and not self._closed:
                    self._add()
        except Exception as error:  # noqa: BLE001 - or whoever waits would wait for ever
            return f"{error}" or type(error).__name__
        return ""

    def _start_server(self) -> Server | None:
        """Start a server and wait until it is ready; ``None`` if the pool was closed meanwhile."""
        payload, server = Payload(serve, self._job), Server(self._environment)
        with self._lock:
            closed = self._closed
            self._coming = None if closed else server
        if closed:
            server.close()
            return None
        problem: ServerError | None = None
        try:
            server.load(payload)
        except ServerError as error:
            problem = error
        with self._lock:
            found, self._coming = self._coming, None
        if found is not None and problem is not None:
            raise problem
        return found

    def _leave_room(self) -> list[Child]:
        """Take away half of the processes where there may be no more; the lock is held.

        Each keeps a thread of ours busy, and threads count as well where processes are limited.
        """
        surplus = self._idle[: (len(self._all) + 2) // 2]
        self._idle = self._idle[len(surplus) :]
        self._all = [one for one in self._all if one not in surplus]
        return surplus

    def _give_up(self, problem: str) -> None:
        """Go on with the processes there are; without any, in threads. The lock is held."""
        self.count = len(self._all)
        self.problem = problem
        if not self._all:
            self._turn_away()

    def _turn_away(self) -> None:
        for _, _, handed in self._waiting:
            handed.put(None)
        self._waiting.clear()

    def _add(self) -> None:
        """Start a process; the lock is held."""
        if not self.lean:
            # While no function runs, or a child might have a lock that one of them holds.
            with running_maps.closed() as safe:
                if not (safe or self._asked):
                    raise WorkerError("functions given to map() run for too long at a time to fork")
                made = start_child(serve, self._job)
        elif self._server is not None:
            made = self._server.start_child()
        else:
            raise ServerError("the process that starts workers is gone")
        self._all.append(made)
        self._hand_over(made)

    def _hand_over(self, process: Child) -> None:
        """Give the process to the earliest batch that waits, if any; the lock is held."""
        if self._waiting:
            heapq.heappop(self._waiting)[2].put(process)
        else:
            self._idle.append(process)

    def run(self, position: int, use: Callable[[Child], Result]) -> Result | None:
        """Let ``use`` ask an idle process; ``None`` if there are no processes.

        Where several wait for one, the lowest ``position`` comes first.
        """
        process = self._borrow(position)
        if process is None:
            return None
        alive = True  # even after an error of a map or a file
        try:
            return use(process)
        except Died:
            alive = False
            raise
        except Detached as error:
            self.abandon(f"{error}")
            return None
        finally:
            self._return(process, alive)

    def _borrow(self, position: int) -> Child | None:
        handed: SimpleQueue[Child | None] = SimpleQueue()
        with self._lock:
            if self._closed or (self.problem and not self._all):
                handed.put(None)
            elif self._idle:  # so nobody waits
                # In turn where answers are compared or limited, so that each of them is tried.
                handed.put(self._idle.pop(-1 if self.patience is None else 0))
            else:
                heapq.heappush(self._waiting, (position, next(self._number), handed))
        found = handed.get()
        if found is None and self._closed:
            raise WorkerError("the loader was closed")
        return found

    def _return(self, process: Child, alive: bool) -> None:
        with self._lock:
            known = process in self._all  # or all were abandoned
            if known and alive and not self._closed:
                self._hand_over(process)
                return
            if known:
                self._all.remove(process)
            if known and not self._closed:
                self._replace()
        process.reap()

    def _replace(self) -> None:
        """Start a process in place of one that died; the lock is held."""
        if not self.lean:
            self._found = None  # of the others: this one may find something else
        try:
            self._add()
        except ServerError:  # then all others end, too: start over
            self._server = None
            _thread.start_new_thread(self._start, ())
        except (OSError, Error) as error:
            self._give_up(f"{error}")

    def close(self) -> None:
        """End all processes; threads that wait for one get an error."""
        with self._lock:
            self._closed = True
            ending = self._take_all()
            self._turn_away()
        _end(*ending)

    def abandon(self, problem: str) -> None:
        """End all processes because of a problem: batches are built in threads from now on."""
        with self._lock:
            self.problem = self.problem or problem
            ending = self._take_all()
            self._turn_away()
        _end(*ending)

    def _take_all(self) -> "tuple[list[Child], Server | None]":
        """Forget all processes, and return them; the lock is held."""
        ending, self._all, self._idle = self._all, [], []
        server, self._server, self._coming = self._server or self._coming, None, None
        return ending, server


def _end(processes: list[Child], server: Server | None) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.reap()
    if server is not None:
        server.close()


def ask_into(
    process: Child, question: Message, memory: Bytes | None, patience: float | None = None
) -> Message:
    """Ask a process for something that it writes to ``memory``.

    The memory is not used again if the process could not be killed: it may still write there.
    """
    try:
        answer = process.ask(question, patience)
    except Died as died:
        if died.status is None and memory is not None:
            discard(memory)
        raise
    if answer[0] == "error" and isinstance(answer[1], Detached):
        raise answer[1]
    return answer


def try_twice(
    attempt: Callable[[], Result], describe: Callable[[], str], who: str = "the machine"
) -> Result:
    """Return what ``attempt`` does; call it again if a process dies, and then raise an error.

    ``describe`` says what was attempted.
    """
    left = _TRIES
    while True:
        try:
            return attempt()
        except Died as died:
            if died.unanswered:
                raise Unanswered(f"{died} while {describe()}") from None
            left -= died.asked  # another one may have died while it was idle
            if not left:
                raise WorkerError(
                    f"{died} while {describe()}, as did the one before it",
                    f"check whether {who} runs out of memory",
                ) from None
