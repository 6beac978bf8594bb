"""Write small files so that they appear whole or not at all, and find the cache folder."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence


def cache_folder() -> bytes:
    """Where this user's caches belong on this platform."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):  # the specification has others ignored
        base = chosen
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    elif sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~\\AppData\\Local")
    else:
        base = os.path.expanduser("~/.cache")
    return os.fsencode(os.path.join(base, "ndfeed"))


def publish(path: bytes, pieces: Sequence[bytes | memoryview]) -> None:
    """Make ``path`` hold ``pieces``: written beside it under another name, then renamed.

    A cache needs no fsync: its reader checks it, and a torn one is only built again.
    """
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=b".tmp-", dir=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            for piece in pieces:
                file.write(piece)
        os.replace(temporary, path)
    except BaseException:
        discard(temporary)
        raise


def discard(path: bytes) -> None:
    """Remove a file if it is there and may be removed."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def age(path: bytes) -> None:
    """Make a file look as old as can be, if it is there and may be touched."""
    with contextlib.suppress(OSError):
        os.utime(path, ns=(0, 0))


def keep_newest(folder: bytes, count: int, nbytes: int) -> None:
    """Remove all but the files written last: ``count`` of them, with ``nbytes`` in all.

    The newest is kept whatever its size.
    """
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:
            facts = [(entry.stat(), entry.path) for entry in entries]
        facts.sort(key=lambda fact: fact[0].st_mtime_ns, reverse=True)
        total = 0
        for place, (status, path) in enumerate(facts):
            total += status.st_size
            if place and (place >= count or total > nbytes):
                discard(path)
