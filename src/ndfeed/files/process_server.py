"""A lean process that starts worker processes: a fresh interpreter that loads a job and forks.

The process that trains is full of threads, locks and perhaps CUDA: forking it is unsafe, and
starting a fresh interpreter for every worker is slow. So one is started, which imports NumPy,
ndfeed and whatever the job needs, and every worker is a fork of that: it takes milliseconds, and
shares its memory. The job arrives in shared memory, which all of them map.

Guarantees:

- Nothing of the user's script is run: neither its top level, nor what it has imported, unless the
  job refers to a module by name.
- The server and its workers end when ``close`` is called or when the process that started it is
  gone, whatever they are doing.
- It does not see Ctrl-C, which is for the process that has the consumer.
"""

import contextlib
import gc
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing import current_process
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.reduction import recv_handle as receive_descriptor
from multiprocessing.reduction import send_handle as send_descriptor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.files import worker_process
from ndfeed.files.shared_memory import Handle, Shared, align
from ndfeed.files.worker_process import Child, Main, Message, new_pipe, run_child

_PATIENCE = 60.0  # seconds that the server may take to start
_QUICK = 1.0  # seconds that it may take to end; and between checks that the parent lives

# Libraries would start a thread per core in every worker.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class ServerError(Exception):
    """The server could not be started, or is gone. The text says why."""


class Payload:
    """A job as bytes in shared memory, and where its buffers lie in it."""

    def __init__(self, main: Main, job: object) -> None:
        text, pieces = encode((main, job))
        self.places: list[tuple[int, int]] = []
        end = 0
        for piece in (text, *pieces):
            self.places.append((end, end + len(piece)))
            end += align(len(piece))
        self.memory = Shared(max(end, 1))

        def write(out: NDArray[np.uint8]) -> None:
            for piece, (start, stop) in zip((text, *pieces), self.places, strict=True):
                out[start:stop] = np.frombuffer(piece, np.uint8)

        self.memory.fill(write)


def encode(job: object) -> tuple[memoryview, list[memoryview]]:
    """Encode what is sent to a fresh process of our own, with its large buffers apart.

    Raises ``ServerError`` where that process could not find a function by its name.
    """
    found: list[Any] = []
    written = io.BytesIO()
    try:
        ForkingPickler(written, 5, False, found.append).dump(job)
    except Exception as error:  # noqa: BLE001 - a lambda, or whatever an object raises
        raise ServerError(f"{error}") from None
    if b"__main__" in written.getbuffer().tobytes():
        raise ServerError("a function given to map() is defined in the main script")
    return written.getbuffer(), [buffer.raw() for buffer in found]


def why_not() -> str:
    """Say why no server can be started here; empty if one can."""
    if not hasattr(os, "fork"):
        return "this system cannot fork"
    if getattr(sys, "frozen", False):
        return "the program is frozen"
    name = os.path.basename(sys.executable or "").lower()
    if not name.startswith(("python", "pypy")):
        return f"sys.executable is {sys.executable or 'empty'}, no Python"
    return ""


class Server:
    """A fresh interpreter that forks worker processes of one job. Thread-safe."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it, before ``load``. ``environment`` is added to its own."""
        self._lock = threading.Lock()
        self._loaded = False
        with worker_process.starting:
            self._control, theirs = new_pipe()
            with theirs:
                try:
                    self._process = _start_interpreter(theirs.fileno(), environment or {})
                except OSError as error:
                    raise ServerError(f"{error}") from None

    def load(self, payload: Payload) -> None:
        """Send it the job, and wait until it has loaded that. ``close`` may end it meanwhile."""
        key = bytes(current_process().authkey)  # with which torch's tensors are fetched
        first = payload.memory.handle(), payload.places, key
        problem = self._ask(lambda: self._control.send(first))
        if problem:
            self.close()
            raise ServerError(problem)
        self._loaded = True

    def start_child(self) -> Child:
        """Start a worker process."""
        with worker_process.starting:
            ours, theirs = new_pipe()
            with theirs:

                def send() -> None:
                    self._control.send(None)
                    send_descriptor(self._control, theirs.fileno(), self._process.pid)

                pid, problem = self._ask(send)
        if problem:
            ours.close()
            raise ServerError(problem)
        return _Served(ours, pid, self)

    def status(self, pid: int) -> int | None:
        """Return the exit status of a worker process, ``None`` while it runs."""
        found: int | None = self._ask(lambda: self._control.send(pid))
        return found

    def _ask(self, send: Callable[[], None]) -> Message:
        """Return the answer to what ``send`` sends."""
        try:
            with self._lock:
                send()
                if not self._control.poll(_PATIENCE):
                    raise EOFError("no answer")
                return self._control.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise ServerError(f"the process that starts workers ended: {error}") from None

    def close(self) -> None:
        """End the server and all its workers. May be called several times, and by any thread."""
        if not self._loaded:  # importing takes a while, and there are no workers yet
            self._process.kill()
        with self._lock:  # a second close, or a use after it, would hit another file
            self._control.close()
        try:
            self._process.wait(_QUICK)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Served(Child):
    """A worker process that a server started: only its parent can wait for it."""

    def __init__(self, pipe: Connection, pid: int, server: Server) -> None:
        super().__init__(pipe, pid)
        self._server = server

    def _find_status(self) -> int | None:
        try:
            return self._server.status(self.pid)
        except ServerError:  # then nobody can tell but the process itself
            return None if self._is_running() else 0


def _start_interpreter(fd: int, more: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    code = (
        f"import sys; sys.path[:] = {list(map(os.fspath, sys.path))!r}; "
        f"from ndfeed.files.process_server import run_server; run_server({fd})"
    )
    flags = [f"-W{option}" for option in sys.warnoptions]
    flags += ["-I"] * sys.flags.isolated + ["-O"] * sys.flags.optimize
    environment = {**dict.fromkeys(_ONE_THREAD, "1"), **os.environ, **more}
    # Inherited by the new process: an early Ctrl-C would be a traceback of its imports.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        return subprocess.Popen(
            [sys.executable, *flags, "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=(fd,),
            env=environment,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# What follows runs in the new process.


def run_server(fd: int) -> None:
    """Load the job, then start a worker process whenever asked, until the other side is gone."""
    control, parent = Connection(fd), os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    workers: dict[int, int | None] = {}  # their exit status, once known
    with contextlib.suppress(EOFError, OSError):
        try:
            main, job = _load(*control.recv())
        except Exception as error:  # noqa: BLE001 - importing a user's module may raise anything
            control.send(f"{type(error).__name__}: {error}")
            return
        gc.collect()
        gc.freeze()  # or collections in the workers would copy its memory
        control.send("")
        while True:
            # A child that the parent has forked may hold the other end open after its death.
            while not control.poll(_QUICK):
                if os.getppid() != parent:
                    raise EOFError
            question = control.recv()
            if question is None:
                control.send(_fork(control, workers, main, job))
            else:
                control.send(_find_status(question, workers))
    for pid, status in workers.items():
        if status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _load(handle: Handle, places: list[tuple[int, int]], key: bytes) -> tuple[Main, Any]:
    current_process().authkey = key
    memory = memoryview(Shared.attach(handle).view())  # type: ignore[arg-type]
    text, *buffers = (memory[start:stop] for start, stop in places)
    found: tuple[Main, Any] = ForkingPickler.loads(text, buffers=buffers)
    return found


def _fork(
    control: Connection, workers: dict[int, int | None], main: Main, job: object
) -> tuple[int, str]:
    """Start a worker; return its number, and what went wrong if anything."""
    server, fd = os.getpid(), receive_descriptor(control)
    try:
        pid = os.fork()
    except OSError as error:
        os.close(fd)
        return 0, f"no more processes can be started: {error.strerror}"
    if not pid:
        control.close()
        run_child(main, job, Connection(fd), server, ())
    os.close(fd)
    workers[pid] = None
    return pid, ""


def _find_status(pid: int, workers: dict[int, int | None]) -> int | None:
    """Return the exit status of a worker, if it has one."""
    if pid in workers and workers[pid] is None:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                workers[pid] = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            workers[pid] = 0
    return workers.get(pid, 0)
