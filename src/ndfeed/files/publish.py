"""Write small files so that they appear whole or not at all, and find the cache folder."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence


def cache_folder() -> bytes:
    """Where this user's caches belong on this platform."""
    if chosen := os.environ.get("XDG_CACHE_HOME"):
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
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def discard(path: bytes) -> None:
    """Remove a file if it is there and may be removed."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def keep_newest(folder: bytes, count: int) -> None:
    """Remove all but the ``count`` files written last."""
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
        if len(names) > count:
            paths = [os.path.join(folder, name) for name in names]
            paths.sort(key=lambda path: os.stat(path).st_mtime_ns)
            for path in paths[:-count]:
                os.unlink(path)
