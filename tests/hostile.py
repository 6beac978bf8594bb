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
import tempfile
import threading
import warnings
from contextlib import contextmanager

import numpy as np
import numpy.ma  # np.unique does so when first called
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
    path = args[0] if args and isinstance(args[0], str | bytes | os.PathLike) else b""
    if event == "open" and os.fsencode(path) in _watched.allowed:
        return
    seen.append(f"{event} {args!r:.200}")
    raise RuntimeError(f"forbidden while a file is read: {event} {args!r:.200}")


sys.addaudithook(_hook)
# What the first files of a process bring about, such as looking up how much memory there is, is not
# the doing of a hostile one.
with tempfile.TemporaryDirectory() as _folder, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    np.save(os.path.join(_folder, "mapped.npy"), np.zeros((2, 3)))
    np.save(os.path.join(_folder, "scattered.npy"), np.zeros((2, 3), order="F"))
    np.savez_compressed(os.path.join(_folder, "decoded.npz"), np.zeros((2, 3)))
    for _name in os.listdir(_folder):
        ndfeed.open(os.path.join(_folder, _name), sample="row", cache=False).read([0, 1])


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


# A child for each file, forked where all is imported: what one takes is not held against another.
_MEASURE = """
import json, os, resource, sys, time, warnings
import numpy as np
import ndfeed
options, *paths = json.loads(sys.argv[1])
warnings.simplefilter("ignore")

def cost(path):
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
    seconds = time.process_time() - began
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"error": error, "bytes": 1024 * used, "seconds": seconds}

for path in paths:
    if not os.fork():
        print(json.dumps(cost(path)), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def measured(*paths, **options):
    """What opening and reading each file costs in memory and time, and the error it ends with."""
    given = json.dumps([options, *map(os.fspath, paths)])
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, given], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_harmless(*paths, kinds, **options):
    """Bombs of at most 1 MB cost at most 256 MB and 5 s each, and end in one of our errors."""
    for path, cost in zip(paths, measured(*paths, **options), strict=True):
        assert os.path.getsize(path) <= 1_000_000
        assert cost["bytes"] <= 256e6, (path, cost)
        assert cost["seconds"] <= 5, (path, cost)
        assert cost["error"], (path, cost)
        kind, text = cost["error"]
        assert kind in kinds, (path, cost)
        assert text.startswith(os.fspath(path)), cost
        assert len(text) < 1000, cost
