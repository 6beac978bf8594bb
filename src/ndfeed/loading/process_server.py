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
import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ndfeed.files.shared_memory import Block
from ndfeed.loading import worker_process
from ndfeed.loading.buffer_pool import ALIGNED
from ndfeed.loading.worker_process import Child, Main, new_pipe, run_child

_PATIENCE = 60.0  # seconds that the server may take to start
_QUICK = 1.0  # seconds that it may take to end
_ANSWER = _PLACE = struct.Struct("<qq")
_QUESTION = struct.Struct("<cq")
_STATUS_UNKNOWN = 1 << 32

# Libraries would start a thread per core in every worker.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class ServerError(Exception):
    """The server could not be started, or is gone. The text says why."""


class Payload:
    """A job as bytes in shared memory, and where its buffers lie in it."""

    def __init__(self, main: Main, job: object) -> None:
        found: list[pickle.PickleBuffer] = []
        text = pickle.dumps((main, job), protocol=5, buffer_callback=found.append)
        if b"__main__" in text:
            raise ServerError("a function given to map() is defined in the main script")
        pieces = [memoryview(text), *(buffer.raw() for buffer in found)]
        self.places: list[tuple[int, int]] = []
        end = 0
        for piece in pieces:
            self.places.append((end, end + len(piece)))
            end += -(-len(piece) // ALIGNED) * ALIGNED
        self.block = Block.of(max(end, 1))
        for piece, (start, stop) in zip(pieces, self.places, strict=True):
            self.block[start:stop] = np.frombuffer(piece, np.uint8)


def why_not() -> str:
    """Say why no server can be started here; empty if one can."""
    if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
        return "this system cannot fork"
    if getattr(sys, "frozen", False):
        return "the program is frozen"
    name = os.path.basename(sys.executable or "").lower()
    if not name.startswith(("python", "pypy")):
        return f"sys.executable is {sys.executable or 'empty'}, no Python"
    return ""


class Server:
    """A fresh interpreter that forks worker processes of one job. Thread-safe."""

    def __init__(self, payload: Payload) -> None:
        """Start it, and wait until it has loaded the job."""
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start_interpreter(theirs.fileno())
            self._control.settimeout(_PATIENCE)
            # It has a path of its own to the memory: the block's descriptor is only sent.
            head = b"".join(_PLACE.pack(*place) for place in payload.places)
            size = struct.pack("<q", len(head))
            socket.send_fds(self._control, [size + head], [payload.block.fd])
            length, problem = _ANSWER.unpack(_receive(self._control, _ANSWER.size))
            if problem:
                raise ServerError(_receive(self._control, length).decode())
        except (OSError, ServerError) as error:
            self.close()
            raise ServerError(f"{error}" or type(error).__name__) from None

    def start_child(self) -> Child:
        """Start a worker process."""
        with worker_process.starting:
            ours, theirs = new_pipe()
            with theirs:
                pid = self._ask(b"f", 0, [theirs.fileno()])
        if pid < 0:
            ours.close()
            raise ServerError(os.strerror(int(-pid)))
        return _Served(ours, pid, self)

    def status(self, pid: int) -> int | None:
        """Return the exit status of a worker process, ``None`` while it runs."""
        try:
            found = self._ask(b"w", pid)
        except ServerError:
            return 0
        return None if found == _STATUS_UNKNOWN else found

    def _ask(self, what: bytes, number: int, fds: "list[int] | None" = None) -> int:
        try:
            with self._lock:
                socket.send_fds(self._control, [_QUESTION.pack(what, number)], fds or [])
                found: int = _ANSWER.unpack(_receive(self._control, _ANSWER.size))[0]
                return found
        except OSError as error:
            raise ServerError(f"the process that starts workers is gone: {error}") from None

    def close(self) -> None:
        """End the server and all its workers."""
        self._control.close()
        process = getattr(self, "_process", None)
        if process is None:
            return
        try:
            process.wait(_QUICK)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Served(Child):
    """A worker process that a server started: only its parent can wait for it."""

    def __init__(self, pipe: Connection, pid: int, server: Server) -> None:
        super().__init__(pipe, pid)
        self._server = server

    def _find_status(self) -> int | None:
        return self._server.status(self.pid)


def _start_interpreter(fd: int) -> "subprocess.Popen[bytes]":
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from ndfeed.loading.process_server import run_server; run_server({fd})"
    )
    flags = [f"-W{option}" for option in sys.warnoptions]
    flags += ["-I"] * sys.flags.isolated + ["-O"] * sys.flags.optimize
    environment = dict.fromkeys(_ONE_THREAD, "1") | os.environ
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


def _receive(control: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = control.recv(size - len(found))
        if not more:
            raise ConnectionError("it ended")
        found += more
    return found


# What follows runs in the new process.


def run_server(fd: int) -> None:
    """Load the job, then start a worker process whenever asked, until the other side is gone."""
    control = socket.socket(fileno=fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    try:
        main, job = _load(control)
    except BaseException as error:  # noqa: BLE001 - importing a user's module may raise anything
        problem = f"{type(error).__name__}: {error}".encode()[:4096]
        with contextlib.suppress(OSError):
            control.sendall(_ANSWER.pack(len(problem), 1) + problem)
        return
    gc.collect()
    gc.freeze()  # or collections in the workers would copy its memory
    control.sendall(_ANSWER.pack(0, 0))
    workers: dict[int, int | None] = {}  # their exit status, once known
    with contextlib.suppress(OSError):
        while _answer(control, workers, main, job):
            pass
    for pid, status in workers.items():
        if status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _load(control: socket.socket) -> tuple[Main, Any]:
    size, fds, _, _ = socket.recv_fds(control, 8, 1)
    head = _receive(control, struct.unpack("<q", size)[0])
    places = [_PLACE.unpack_from(head, at) for at in range(0, len(head), _PLACE.size)]
    memory = memoryview(mmap.mmap(fds[0], 0, prot=mmap.PROT_READ))
    os.close(fds[0])
    text, *buffers = (memory[start:stop] for start, stop in places)
    found: tuple[Main, Any] = pickle.loads(text, buffers=buffers)  # noqa: S301 - of our own parent
    return found


def _answer(
    control: socket.socket, workers: dict[int, int | None], main: Main, job: object
) -> bool:
    """Answer one question; false where the other side is gone."""
    question, fds, _, _ = socket.recv_fds(control, _QUESTION.size, 1)
    if not question:
        return False
    what, pid = _QUESTION.unpack(question)
    if what == b"f":
        answer = _fork(control, fds[0], main, job)
        if answer > 0:
            workers[answer] = None
    else:
        answer = _wait_for(pid, workers)
    control.sendall(_ANSWER.pack(answer, 0))
    return True


def _fork(control: socket.socket, fd: int, main: Main, job: object) -> int:
    server = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(fd)
        return -(error.errno or 1)
    if not pid:
        control.close()
        run_child(main, job, Connection(fd), server, ())
    os.close(fd)
    return pid


def _wait_for(pid: int, workers: dict[int, int | None]) -> int:
    """Return the exit status of a worker, as far as it has one."""
    if pid in workers and workers[pid] is None:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                workers[pid] = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            workers[pid] = 0
    known = workers.get(pid, 0)
    return _STATUS_UNKNOWN if known is None else known
