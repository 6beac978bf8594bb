"""``os`` as the modules that write see it, with something else happening at one of its calls."""

import errno
import os
import signal
import threading
from contextlib import contextmanager
from functools import partial

from ndfeed.files import folder as folders
from ndfeed.files import secret, write

# Every call by which packing changes the disk is made in one of these.
MODULES = (write, folders, secret)
COUNTED = {
    "close",
    "fsync",
    "ftruncate",
    "listdir",
    "mkdir",
    "open",
    "posix_fallocate",
    "pwrite",
    "rename",
    "replace",
    "rmdir",
    "unlink",
}


class System:
    """``os``, counting its calls: ``happen(name, call, args)`` takes the place of number ``at``."""

    def __init__(self, at=0, happen=None, names=COUNTED):
        self.count = 0
        self.calls = []
        self._at, self._happen, self._names = at, happen, names
        self._lock = threading.Lock()

    def __getattr__(self, name):
        found = getattr(os, name)
        if name not in self._names:
            return found

        def call(*args, **kwargs):
            with self._lock:
                self.count += 1
                self.calls.append(name)
                mine = self.count == self._at
            named = partial(found, **kwargs)
            return self._happen(name, named, args) if mine else named(*args)

        return call


@contextmanager
def system(*args, **kwargs):
    """Within, all that writes has such a system."""
    made = System(*args, **kwargs)
    for module in MODULES:
        module.os = made
    try:
        yield made
    finally:
        for module in MODULES:
            module.os = os


def kill(name, call, args):
    """End the process as the kernel would; a write is cut in the middle."""
    if name == "pwrite":
        call(args[0], args[1][: len(args[1]) // 2], args[2])
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def failing(number):
    """A call that fails with an error number."""

    def fail(name, call, args):
        if name == "close":
            call(*args)  # a descriptor is gone, whatever close says
        raise OSError(number, os.strerror(number))

    return fail


def shorter(name, call, args):
    """A write that writes less than it was given, and says so."""
    return call(args[0], args[1][: max(len(args[1]) // 3, 1)], args[2])


NO_SPACE, BROKEN = failing(errno.ENOSPC), failing(errno.EIO)


def forked(function):
    """Run ``function`` in a forked child; its exit status, negative where a signal ended it."""
    child = os.fork()
    if not child:
        status = 3
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def tree(folder):
    """Every file below a folder with its bytes, and every folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
