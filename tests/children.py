"""Python in processes of its own, for what must not happen to the tests' own process."""

import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from contextlib import contextmanager, suppress
from unittest.mock import patch

import psutil
import pytest
from hypothesis import settings

from ndfeed.files import processes

# Some fork, and NumPy has threads of its own: newer versions of Python warn of that.
WARNINGS = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]

PRELUDE = """
import os, resource, signal, sys, time
import numpy as np
import ndfeed
args = sys.argv[1:]
"""


def examples(count):
    """How many examples Hypothesis draws: ``count`` by default, fewer or more by its profile."""
    return max(count * settings.default.max_examples // 30, 10)


def start(code, *args, inside=(), **options):
    """A new interpreter that runs ``code``, with ``args``, numpy and ndfeed at hand.

    ``inside`` are the words of a command that runs another one.
    """
    command = [*inside, sys.executable, *WARNINGS, "-c", PRELUDE + textwrap.dedent(code)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([*command, *map(os.fspath, args)], text=True, **(pipes | options))


def finish(child, timeout=250):
    """What a child printed; it must have ended well, not by a signal or an error."""
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()  # or what is left of it would be the next test's
        raise
    assert child.returncode == 0, f"exit status {child.returncode}\n{err}"
    return out


def run(code, *args, timeout=250, **options):
    """What ``code`` printed, run in a new interpreter to its good end."""
    return finish(start(code, *args, **options), timeout)


def servers():
    """Processes of ours that start workers; multiprocessing has children of its own."""
    found = []
    for one in psutil.Process().children():
        with suppress(psutil.Error):  # it ends just now
            if "process_server" in " ".join(one.cmdline()):
                found.append(one)
    return found


@contextmanager
def processes_at_work():
    """Within, processes of ours work: forks of a server that this process starts; none is left."""
    busy, over = [0.0], threading.Event()

    def watch():
        while not over.wait(0.002):
            for server in servers():
                with suppress(psutil.Error):  # they end just now
                    busy.extend(sum(one.cpu_times()[:2]) for one in server.children())

    def call_when_started(pool, item):
        """On a busy machine this process could be done before others have started."""
        until = time.monotonic() + 100
        while pool._free.empty() and time.monotonic() < until:
            time.sleep(0.001)
        return call(pool, item)

    call = processes._Pool._call
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with patch.object(processes._Pool, "_call", call_when_started):
            yield
    finally:
        over.set()
        watching.join()
    assert max(busy) > 0
    assert not servers()


def in_small_shared_memory():
    """The options of ``run`` for a program that has its own /dev/shm, of 64 MB as in a container.

    Skips the test where the kernel lets nobody mount that.
    """
    own = ["unshare", "--mount", "--propagation", "private"]
    own += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    own += ["sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh"]
    try:
        tried = subprocess.run([*own, "true"], capture_output=True, text=True)
    except FileNotFoundError as error:
        pytest.skip(f"{error}")
    if tried.returncode:
        pytest.skip(f"no /dev/shm of one's own: {tried.stderr.strip()}")
    return {"inside": own}


def names_in_shared_memory():
    """Files under /dev/shm that this process or a child has mapped: other processes make some."""
    mine = psutil.Process()
    processes = [mine, *mine.children(recursive=True)]
    maps = [pathlib.Path(f"/proc/{process.pid}/maps").read_text() for process in processes]
    lines = [line for text in maps for line in text.splitlines() if "/dev/shm/" in line]
    # Those of multiprocessing, which other tests use, are removed as soon as they are made.
    return [line for line in lines if not line.endswith("(deleted)")]


# Root may read everything: what is forbidden can be seen only as somebody else.
AS_NOBODY = """
import numpy.ma  # what is imported late may lie where nobody may read
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    try:
        os.setuid(200_000 + os.getpid())  # whose processes no other test counts
    except OSError:  # a container with fewer users
        os.setuid(65534)
"""


@contextmanager
def folder_for_all():
    """A folder that nobody else is kept out of, as they are of pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


def look(shared, queue):
    """For multiprocessing, whose children import this module and no test."""
    queue.put((os.getpid(), shared.view().tobytes()))


def all_ended(target, arguments, timeout):
    """A spawned process for each of ``arguments``, all at once; how each ended."""
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=target, args=each) for each in arguments]
    for child in children:
        child.start()
    until = time.monotonic() + timeout
    try:
        for child in children:
            child.join(max(0, until - time.monotonic()))
            if child.is_alive():
                raise TimeoutError("a process did not end")
    finally:
        for child in children:
            child.kill()
            child.join()
    return [child.exitcode for child in children]


BREAK_TIME = pathlib.Path("/proc/sys/fs/lease-break-time")


def lease_break_time():
    """Seconds that the kernel makes a writer wait for a lease; 0 where there are no leases."""
    return int(BREAK_TIME.read_text()) if BREAK_TIME.exists() else 0


@contextmanager
def short_lease_breaks(seconds):
    """Within, writers wait no longer than that, if this user may decide it; says if it is so.

    The setting is the machine's: a lock lets one process at a time change it.
    """
    if not os.access(BREAK_TIME, os.W_OK):
        yield False
        return
    import fcntl

    with open(os.path.join(tempfile.gettempdir(), "ndfeed-lease-break-time.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = BREAK_TIME.read_text()
        BREAK_TIME.write_text(str(seconds))
        try:
            yield True
        finally:
            BREAK_TIME.write_text(before)


# For programs that use processes: ``watch(act)`` acts once a server and three workers run.
WATCHING = """
import psutil, threading
from ndfeed.files import platform_calls
platform_calls.cores = lambda: 3
def workers():
    return psutil.Process().children(recursive=True)
def kill():
    for one in workers()[::-1]:
        one.kill()
seen = []
def watch(act):
    while threading.main_thread().is_alive():
        if len(workers()) >= 4:
            time.sleep(0.1)
            seen.append(None)
            act()
            return
        time.sleep(0.001)
"""
