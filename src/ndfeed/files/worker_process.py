"""A worker process that answers requests, and how it ends.

Processes are forked where possible, so that what they run need not be importable by name, and
they start at once; elsewhere they are spawned. A child does not rely on its parent's threads,
locks or pipes: it closes the pipes, uses none of the locks, and never returns into the code that
started it.

Guarantees:

- A child that dies, for whatever reason, is noticed at once by whoever waits for its answer:
  ``Died``. One that is stuck in a system call, or stopped, for a minute is killed and counts as
  dead, even if it cannot die.
- A child whose parent is gone ends within a second, or when its current task is done.
- It ignores Ctrl-C, which is for the process that has the consumer, and ends on SIGTERM even
  where the parent handles that.
"""

import contextlib
import gc
import math
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn, TypeAlias

from ndfeed.files.platform_calls import keep_freed_memory

_PATIENCE = 1.0  # seconds between checks that the parent lives; and for a graceful end
_MOMENT = 0.002
_STUCK = 60  # times _PATIENCE after which a child in the same system call counts as stuck
_NO_ANSWER = "did not answer"
_HOPELESS = 5.0  # seconds after which a child that was killed is left to the system

Pipe = Connection
Message: TypeAlias = Any  # whatever can be pickled
Main = Callable[["Parent", Any], None]

# One at a time: a child must not inherit the end of a pipe that is meant for another.
starting = threading.Lock()
_pipes: "weakref.WeakSet[Pipe]" = weakref.WeakSet()


def _in_forked_child() -> None:
    global starting
    starting = threading.Lock()
    for pipe in list(_pipes):  # or workers would not notice the end of their parent
        with contextlib.suppress(OSError):
            pipe.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)


def _make_waiter(ends: list[Any]) -> Callable[[float | None], object]:
    """Return a function that waits, for some seconds, until one of ``ends`` can be read from."""
    if not hasattr(select, "poll"):
        return lambda seconds: wait(ends, seconds)
    poll = select.poll()  # made once: a selector for every message takes longer than the message
    for end in ends:
        poll.register(end, select.POLLIN)
    return lambda seconds: poll.poll(None if seconds is None else seconds * 1000)


class Died(Exception):
    """A child ended before it answered, or even before it was ``asked``.

    ``status`` is its exit status, negative for a signal. If it was killed for not answering,
    ``stuck`` says what it did.
    """

    def __init__(
        self, pid: int | None, status: int | None, *, asked: bool = True, stuck: str = ""
    ) -> None:
        super().__init__(pid, status)
        self.pid, self.status, self.asked, self.stuck = pid, status, asked, stuck
        self.unanswered = stuck == _NO_ANSWER

    def __str__(self) -> str:
        if self.stuck:
            return f"process {self.pid} {self.stuck} and was killed"
        if self.status is not None and self.status < 0:
            with contextlib.suppress(ValueError):
                return f"process {self.pid} was ended by {signal.Signals(-self.status).name}"
        return f"process {self.pid} ended with status {self.status}"


class _Stuck(OSError):
    """A child does not answer; the text says what it does instead."""


class Orphaned(BaseException):
    """The parent is gone: nobody waits for an answer."""


class Parent:
    """The parent, as a child sees it."""

    def __init__(self, pipe: Pipe, pid: int) -> None:
        self._pipe = pipe
        self._pid = pid
        self._ready = _make_waiter([pipe])

    def receive(self) -> Message:
        """Receive the next request."""
        try:
            while not self._ready(_PATIENCE):
                if os.getppid() != self._pid:
                    raise Orphaned
            return self._pipe.recv()
        except (EOFError, OSError):
            raise Orphaned from None

    def send(self, answer: Message) -> None:
        """Send an answer."""
        try:
            self._pipe.send(answer)
        except (BrokenPipeError, ConnectionError):
            raise Orphaned from None


class Child:
    """A process, and the pipe to it. Used by one thread at a time."""

    def __init__(self, pipe: Pipe, pid: int, process: BaseProcess | None = None) -> None:
        self.pid = pid
        self._pipe = pipe
        # Held while the pipe is used or closed: a second close, or a read from a closed descriptor,
        # would hit whatever file has its number by then.
        self._using = threading.Lock()
        self._process = process  # only where it was spawned
        self._status: int | None = None
        self._end: Any = None if process is None else process.sentinel
        if process is None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._end = os.pidfd_open(pid)
                weakref.finalize(self, os.close, self._end)
        self._ready = _make_waiter([pipe] if self._end is None else [pipe, self._end])

    def ask(self, question: Message, patience: float | None = None) -> Message:
        """Send a request and wait for the answer, for ``patience`` seconds if that is limited."""
        asked, stuck = False, ""
        with self._using:
            try:
                self._pipe.send(question)
                asked = True
                self._wait(patience)
                if self._end is None or self._pipe.poll():
                    return self._pipe.recv()
            except _Stuck as error:
                stuck = f"{error}"
                self._kill()
            except (EOFError, OSError):
                pass
        self.reap()
        raise Died(self.pid, self._status, asked=asked, stuck=stuck)

    def _wait(self, patience: float | None) -> None:
        """Wait until it answers or ends."""
        until = math.inf if patience is None else time.monotonic() + patience
        looks, before = 0, ""
        while not self._ready(_PATIENCE):
            now = _read_blocked(self.pid)
            looks = looks + 1 if now and now == before else 0
            before = now
            if looks >= _STUCK:
                raise _Stuck("was stuck in a system call or stopped")
            if time.monotonic() > until:
                raise _Stuck(_NO_ANSWER)

    def _is_running(self) -> bool:
        """Return whether it runs, as far as the system tells; for one that is no child of ours."""
        if self._end is None:
            return False
        return not wait([self._end], 0)

    def terminate(self) -> None:
        """Tell it to end; it does so at once, whatever it is doing."""
        if not self._has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, getattr(signal, "SIGKILL", signal.SIGTERM))

    def reap(self) -> None:
        """Wait for it to end, and kill it if it does not."""
        began = time.monotonic()
        while not self._has_ended():
            waited = time.monotonic() - began
            if waited > _HOPELESS:
                break
            if waited > _PATIENCE:
                self._kill()
            time.sleep(_MOMENT)
        if self._using.acquire(timeout=_PATIENCE):  # whoever asks a dead process hears of its end
            try:
                self._pipe.close()
            finally:
                self._using.release()

    def _has_ended(self) -> bool:
        if self._status is None:
            self._status = self._find_status()
        return self._status is not None

    def _find_status(self) -> int | None:
        """Return the exit status; ``None`` while the process runs."""
        if self._process is not None:
            return self._process.exitcode
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has waited for it
            return 0
        return os.waitstatus_to_exitcode(status) if pid else None


def _read_blocked(pid: int) -> str:
    """Return a text that is the same as long as a process does not leave a system call.

    Empty unless the process sleeps so deeply that it cannot even be interrupted, or is stopped.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().decode("ascii", "replace").splitlines()
    except OSError:
        return ""
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    if found.get("State", "")[:1] not in ("D", "T"):
        return ""
    return found["State"] + found.get("voluntary_ctxt_switches", "")


def start_child(main: Main, argument: object) -> Child:
    """Start a process that runs ``main(parent, argument)``.

    Not for a thread that may be interrupted: nobody would know of the process.
    """
    with starting:
        ours, theirs = new_pipe()
        try:
            if not hasattr(os, "fork"):
                return _spawn(main, argument, ours, theirs)
            return Child(ours, _fork(main, argument, theirs))
        finally:
            theirs.close()


def new_pipe() -> tuple[Pipe, Pipe]:
    """Return both ends of a pipe. Forked children close the first, which is for this process."""
    ours, theirs = multiprocessing.Pipe()
    _pipes.add(ours)
    return ours, theirs


def _fork(main: Main, argument: object, pipe: Pipe) -> int:
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):  # or their buffers would be written twice
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    with warnings.catch_warnings():
        # Python and JAX warn about forking with threads. The child touches none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        # A Ctrl-C before the child ignores it would be raised there, in its parent's code.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        pid = os.fork()
        if not pid:
            run_child(main, argument, pipe, parent, blocked)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def run_child(
    main: Main, argument: object, pipe: Pipe, parent: int, mask: Iterable[int]
) -> NoReturn:
    """Run a forked child from start to end."""
    status = 1
    try:
        gc.freeze()  # or the parent's garbage would be collected here as well, CUDA's included
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _serve(main, argument, pipe, parent)
        status = 0
    finally:
        os._exit(status)


def _serve(main: Main, argument: object, pipe: Pipe, parent: int) -> None:
    keep_freed_memory()
    try:
        main(Parent(pipe, parent), argument)
    except Orphaned:
        return


def _spawn(main: Main, argument: object, ours: Pipe, theirs: Pipe) -> Child:
    context = multiprocessing.get_context("spawn")
    args = (main, argument, theirs, os.getpid())
    process = context.Process(target=_serve, args=args, daemon=True, name="ndfeed-map")
    process.start()
    return Child(ours, process.pid or 0, process)
