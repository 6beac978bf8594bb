"""Hostile files: how they are made, and what no file may make the library do.

``damaged`` draws valid files with a few bytes changed; ``watch`` fails a test in which code is
imported, compiled or run, a process or socket is made, or a file is opened that was not named;
``contained`` reads whatever a file holds and lets only the library's own errors pass;
``measured`` does so in a process of its own and says what it cost.
"""

import json
import os
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager

import numpy as np
from hypothesis import strategies as st

import ndfeed

FORBIDDEN = (
    *("import", "compile", "exec", "open", "marshal.", "pickle.", "code.", "ctypes."),
    *("subprocess.", "socket.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.link"),
)
_watched = threading.local()
_MOST_READ = 64


def _hook(event, args):
    seen = getattr(_watched, "seen", None)
    if seen is None or not event.startswith(FORBIDDEN):
        return
    if event == "open" and os.fsencode(args[0]) in _watched.allowed:
        return
    seen.append(f"{event} {args!r:.200}")
    raise RuntimeError(f"forbidden while a file is read: {event} {args!r:.200}")


sys.addaudithook(_hook)


@contextmanager
def watch(*allowed):
    """Fail on imports, code, processes, sockets, and opened files but those ``allowed``."""
    _watched.allowed = {os.fsencode(path) for path in allowed}
    _watched.seen = seen = []
    try:
        yield
    finally:
        _watched.seen = None
        assert not seen, seen


@st.composite
def damaged(draw, samples):
    """One of ``samples`` after a few flips, cuts, insertions, deletions and splices."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(("flip", "set", "cut", "insert", "delete", "splice")))
        if how in ("flip", "set") and at < len(data):
            data[at] = data[at] ^ (1 << at % 8) if how == "flip" else draw(st.integers(0, 255))
        elif how == "cut":
            del data[at:]
        elif how == "insert":
            data[at:at] = draw(st.binary(max_size=12))
        elif how == "delete":
            del data[at : at + draw(st.integers(1, 12))]
        elif how == "splice":
            start = draw(st.integers(0, len(data)))
            data[at:at] = data[start : start + draw(st.integers(1, 40))]
    return bytes(data)


def contained(path, **options):
    """Every field of a file, or nothing if the library refused it, at open or at reading.

    Anything but an ``ndfeed.Error`` whose text begins with the file comes out as it is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with watch(path, f"{os.fspath(path)}.json"):
                ds = ndfeed.open(path, sample="file", cache=False, **options)
                whole = {name: values[0, ...] for name, values in ds.read([0]).items()}
            _read_rows(path, whole, options)
            return whole
        except ndfeed.Error as error:
            problem = str(error)
    assert problem.startswith((f"{os.fspath(path)}:", f"{os.fspath(path)} at byte ")), problem
    return None


def _read_rows(path, whole, options):
    """The first and last rows of every field must be those of the whole."""
    for name, array in whole.items():
        if not array.ndim:
            continue
        with watch(path, f"{os.fspath(path)}.json"):
            ds = ndfeed.open(path, fields=name, sample="row", cache=False, **options)
            assert len(ds) == len(array)
            count = min(len(ds), _MOST_READ)
            for numbers in (np.arange(count), np.arange(len(ds) - count, len(ds))):
                assert ds.read(numbers)[name].tobytes() == array[numbers].tobytes()


_MEASURE = """
import json, resource, sys, time, warnings
import numpy as np
import ndfeed
path, options = sys.argv[1], json.loads(sys.argv[2])
warnings.simplefilter("ignore")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
error = None
try:
    ds = ndfeed.open(path, cache=False, **options)
    for row in (0, -1):
        if len(ds):
            ds[row]
except ndfeed.Error as problem:
    error = [type(problem).__name__, str(problem)]
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"error": error, "bytes": 1024 * used, "seconds": time.process_time() - began}))
"""


def measured(path, **options):
    """What opening and reading a file costs in memory and time, and the error it ends with."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, os.fspath(path), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_harmless(path, *kinds, **options):
    """A bomb of at most 1 MB costs at most 256 MB and 2 s, and ends in one of our errors."""
    assert os.path.getsize(path) <= 1_000_000
    cost = measured(path, **options)

    assert cost["bytes"] <= 256e6, cost
    assert cost["seconds"] <= 2, cost
    assert cost["error"], cost
    kind, text = cost["error"]
    assert kind in kinds, cost
    assert text.startswith(os.fspath(path)), cost
    assert len(text) < 1000, cost
