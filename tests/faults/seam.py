"""The one seam between ndfeed and the system, and what can happen at each of its calls.

Every call is made by a module of ``ndfeed.files`` as ``os.…``, ``mmap.mmap`` or ``fcntl.…``. Within
``watch`` these modules see a stand-in that counts the calls and lets something else happen at one
of them: an error, the end of the process, a change of a file by somebody else.
"""

import errno
import fcntl
import importlib
import mmap
import os
import pkgutil
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import ndfeed.files

MODULES = [
    importlib.import_module(f"ndfeed.files.{module.name}")
    for module in pkgutil.iter_modules(ndfeed.files.__path__)
]

# Every call by which packing changes the disk is made in one of these.
WRITERS = [
    module for module in MODULES if module.__name__.endswith((".write", ".folder", ".publish"))
]

_LOOK_UP = (errno.EACCES, errno.EIO, errno.ENOMEM, errno.ESTALE)
_READ = (errno.EIO, errno.ESTALE)
_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_NAMES = (errno.EACCES, errno.EIO, errno.ENOSPC, errno.EROFS)

# Each call, and the errors that the system may give for it.
ERRORS = {
    "open": (errno.EACCES, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOSPC),
    "stat": _LOOK_UP,
    "lstat": _LOOK_UP,
    "fstat": (errno.EIO, errno.ESTALE),
    "statvfs": (errno.EIO, errno.ENOSYS),
    "scandir": _LOOK_UP,
    "listdir": _LOOK_UP,
    "pread": _READ,
    "preadv": (*_READ, errno.ENOMEM),
    "posix_fadvise": (errno.EINVAL, errno.ESPIPE),
    "mmap": (errno.ENOMEM, errno.ENODEV, errno.EACCES),
    "fcntl": (errno.EAGAIN, errno.EACCES, errno.EINVAL),
    "flock": (errno.ENOLCK, errno.EOPNOTSUPP),
    "memfd_create": (errno.EMFILE, errno.ENOMEM),
    "close": (errno.EIO, errno.EDQUOT),
    "fsync": _ROOM,
    "ftruncate": (*_ROOM, errno.EFBIG),
    "posix_fallocate": (*_ROOM, errno.EFBIG, errno.EOPNOTSUPP),
    "pwrite": (*_ROOM, errno.EFBIG),
    "write": _ROOM,
    "mkdir": _NAMES,
    "makedirs": _NAMES,
    "rename": _NAMES,
    "replace": _NAMES,
    "link": (*_NAMES, errno.EPERM),
    "unlink": (errno.EACCES, errno.EIO, errno.EROFS),
    "rmdir": (errno.EACCES, errno.EIO, errno.EROFS),
    "utime": (errno.EACCES, errno.EROFS),
}
# The calls that change a disk.
WRITES = {
    "close", "fsync", "ftruncate", "link", "listdir", "makedirs", "mkdir", "open",
    "posix_fallocate", "pwrite", "rename", "replace", "rmdir", "unlink", "write",
}  # fmt: skip


@dataclass
class Fault:
    """What happens in place of call number ``at`` of those ``named``, or from there on."""

    happen: object = None  # (name, call, args) -> what the call returns
    at: int = 0
    sticky: bool = False
    named: frozenset = frozenset(ERRORS)


class Watch:
    """Counts calls, from all threads of this process."""

    def __init__(self, fault):
        self.calls = []
        self._fault = fault
        self._lock = threading.Lock()

    @property
    def count(self):
        """How many calls there were."""
        return len(self.calls)

    def call(self, name, function, *args, **kwargs):
        """One call: the real one, or the fault."""
        fault = self._fault
        with self._lock:
            counted = name in fault.named
            if counted:
                self.calls.append(name)
            number = len(self.calls)
        called = partial(function, **kwargs)
        if counted and (number == fault.at or (fault.sticky and number > fault.at > 0)):
            return fault.happen(name, called, args)
        return called(*args)


class _Module:
    """A module of the standard library whose calls are watched."""

    def __init__(self, module, watch):
        self._module, self._watch = module, watch

    def __getattr__(self, name):
        found = getattr(self._module, name)
        return partial(self._watch.call, name, found) if name in ERRORS else found


@contextmanager
def watch(fault=None, modules=MODULES):
    """Within, every call of these modules goes through a ``Watch``."""
    made = Watch(fault or Fault())
    real = {"os": os, "fcntl": fcntl, "mmap": mmap}
    seen = [
        (module, name, standard)
        for module in modules
        for name, standard in real.items()
        if getattr(module, name, None) is standard
    ]
    for module, name, standard in seen:
        setattr(module, name, _Module(standard, made))
    try:
        yield made
    finally:
        for module, name, standard in seen:
            setattr(module, name, standard)


@contextmanager
def system(at=0, happen=None, names=WRITES):
    """Within, ``happen`` takes the place of call number ``at`` of all that writes."""
    with watch(Fault(happen, at, named=frozenset(names)), WRITERS) as made:
        yield made


def failing(number):
    """A call that fails with an error number."""

    def fail(name, call, args):
        if name == "close":
            call(*args)  # the descriptor is gone, whatever close says
        raise OSError(number, os.strerror(number))

    return fail


def kill(name, call, args):
    """End the process as the kernel would, a write cut in the middle."""
    if name == "pwrite":
        call(args[0], args[1][: len(args[1]) // 2], args[2])
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


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
