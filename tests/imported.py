"""Processes in which a framework is imported already, as forks of one that has done nothing else.

Importing TensorFlow or PyTorch takes seconds of processor time, and dozens of tests need a process
of their own that has it. A program that is run here finds itself in a new process, with its own
environment and arguments; it is only the import that it shares. What an import or the end of an
interpreter does is tested in a fresh one.
"""

import atexit
import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings

import children

_LARGEST = 1 << 18  # bytes of a program with its arguments and environment
_CALL = """
import pickle, sys
function, arguments = pickle.loads(bytes.fromhex(sys.argv[1]))
function(*arguments)
"""

_origins = {}  # for each set of modules, the process that has imported them, and the way to it


class Running:
    """A program, in a process that is a fork of the one with the import."""

    def __init__(self, origin, code, args, environment):
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
        self._told, theirs = socket.socketpair()
        job = json.dumps([code, list(map(str, args)), environment])
        with theirs:
            fds = [self._out.fileno(), self._err.fileno(), theirs.fileno()]
            socket.send_fds(origin[1], [job.encode()], fds)
        self.pid = int.from_bytes(self._told.recv(8), "little")

    def wait(self, timeout):
        """Wait until it has ended; its exit status, and what it printed."""
        self._told.settimeout(max(timeout, 0.001))
        status = int.from_bytes(self._told.recv(8), "little", signed=True)
        self._told.close()
        printed = []
        for file in (self._out, self._err):
            with file:
                file.seek(0)
                printed.append(file.read().decode(errors="replace"))
        return status, *printed

    def kill(self):
        """Kill it, if it still runs."""
        if self._told.fileno() >= 0:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(60)


def start(modules, code, *args, env):
    """Run ``code`` where ``modules`` are imported; ``env`` also counts when they are imported."""
    key = tuple(modules), env.get("KERAS_BACKEND")
    if key not in _origins:
        _origins[key] = _start_origin(modules, env)
    return Running(_origins[key], code, args, env)


def run(modules, code, *args, env, timeout):
    """The exit status of such a program, and what it printed."""
    child = start(modules, code, *args, env=env)
    try:
        return child.wait(timeout)
    finally:
        child.kill()


def all_ended(modules, function, arguments, timeout):
    """Call a function of a module once for each of ``arguments``, all at once; how each ended."""
    if not hasattr(os, "fork"):
        return children.all_ended(function, arguments, timeout)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(os.fspath(p) for p in sys.path if p)}
    jobs = [pickle.dumps((function, each)).hex() for each in arguments]
    started = [start(modules, _CALL, job, env=env) for job in jobs]
    until = time.monotonic() + timeout
    ended = []
    try:
        for child in started:
            status, out, err = child.wait(until - time.monotonic())
            sys.stdout.write(out)
            sys.stderr.write(err)
            ended.append(status)
    finally:
        for child in started:
            child.kill()
    return ended


def _start_origin(modules, env):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _LARGEST)
    with theirs:
        fd = theirs.fileno()
        command = [sys.executable, __file__, str(fd), *modules]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, pass_fds=[fd])
    if not _origins:
        atexit.register(_end_all, os.getpid())
    return process, ours


def _end_all(pid):
    for process, ours in _origins.values():
        ours.close()
        if pid == os.getpid():  # no fork of it
            process.wait(60)


# What follows runs in the process with the import.


def _serve(control):
    """Fork for every program that is asked for; return only in a fork, with the program."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, _LARGEST, 3)
        if not message:
            os._exit(0)
        _reap()
        if not os.fork():
            control.close()
            return _supervise(socket.socket(fileno=fds[2]), json.loads(message), fds[:2])
        for fd in fds:
            os.close(fd)


def _reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _supervise(tell, job, fds):
    """Fork once more, wait for that process and tell how it ended; return in the new one only."""
    code, args, environment = job
    child = os.fork()
    if child:
        tell.send(child.to_bytes(8, "little"))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        tell.send(status.to_bytes(8, "little", signed=True))
        os._exit(0)
    tell.close()
    for stream, fd in zip((1, 2), fds, strict=True):
        os.dup2(fd, stream)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["-c", *args]
    return code


if __name__ == "__main__":
    sys.path[:] = os.environ["PYTHONPATH"].split(os.pathsep) + sys.path[1:]
    for name in sys.argv[2:]:
        importlib.import_module(name)
    with warnings.catch_warnings():  # of JAX and newer versions of Python, which see threads
        warnings.simplefilter("ignore")
        program = _serve(socket.socket(fileno=int(sys.argv[1])))
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
