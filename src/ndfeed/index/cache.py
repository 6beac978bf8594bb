"""Tables kept between runs, one file per source in the user's cache folder.

A table is used again if the names in its folders and the device, inode, size, mtime and ctime of
its files are the same. Up to ``_CHECKED`` files all are asked; beyond, an even sample is, and
every other file when it is first opened for reading, where a difference is ``ChangedError``
and drops the cache. A time so close to the building that the file may have changed within
the same tick counts as a difference.

A cache is a convenience: one that is damaged, foreign, or cannot be written is passed over
with a warning. It is JSON and numbers, never anything that runs.
"""

import hashlib
import os
import time
import warnings
from typing import Any, NamedTuple

import numpy as np

from ndfeed.errors import Error
from ndfeed.files import publish, tree
from ndfeed.files.file import File, Identity
from ndfeed.files.tree import Folder
from ndfeed.formats.raw import Layout
from ndfeed.index import codec
from ndfeed.index.table import Ints, Table

_CHECKED = 10_000
_TICK, _COARSE_TICK = 50_000_000, 2_000_000_000  # nanoseconds
_KEPT = 256


class Kept(NamedTuple):
    """A table, when it was begun, and the folders it was found in."""

    table: Table
    built: int
    folders: list[Folder]


def place(spellings: list[bytes], layout: Layout | None) -> bytes:
    """The cache file for a source."""
    digest = hashlib.sha256(repr((codec.VERSION, layout)).encode())
    for spelling in spellings:
        digest.update(len(spelling).to_bytes(8, "little") + spelling)
    return os.path.join(publish.cache_folder(), b"index", digest.hexdigest()[:32].encode())


def save(path: bytes, kept: Kept) -> None:
    """Write a table; warn where that is impossible."""
    try:
        folders = [[os.fsdecode(folder.path), *folder[1:]] for folder in kept.folders]
        publish.publish(path, codec.encode(kept.table, {"built": kept.built, "folders": folders}))
        publish.keep_newest(os.path.dirname(path), _KEPT)
    except OSError as error:
        warnings.warn(
            f"the index is not kept for the next time: {error.strerror or error}; make "
            f"{os.fsdecode(publish.cache_folder())} writable or set XDG_CACHE_HOME",
            RuntimeWarning,
            stacklevel=2,
        )


def load(path: bytes) -> Kept | None:
    """The table kept at ``path``, or nothing."""
    try:
        with File(path) as file:
            data = file.read(0, file.size)
    except FileNotFoundError:
        return None
    except Error as error:
        _warn_unusable(str(error))
        return None
    try:
        table, extra = codec.decode(data, checked=True)
        folders = [Folder(os.fsencode(name), *rest) for name, *rest in extra["folders"]]
        return Kept(table, int(extra["built"]), folders)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        _warn_unusable(f"{os.fsdecode(path)}: {error}")
        publish.discard(path)
        return None


def drop(path: bytes) -> None:
    """Forget the table kept at ``path``."""
    publish.discard(path)


def holds(kept: Kept) -> bool:
    """Are the files the same as when the table was built, as far as a quick look tells?"""
    if not tree.unchanged(kept.folders):
        return False
    if _racy(np.array([folder.mtime for folder in kept.folders], np.int64), kept.built).any():
        return False
    if _racy_files(kept).any():
        return False
    step = -(-kept.table.files // _CHECKED) or 1
    return not _differ(kept.table, np.arange(0, kept.table.files, step)).any()


def changed_files(kept: Kept) -> Ints:
    """Every file that is gone, is not what it was, or may not be."""
    files = np.arange(kept.table.files)
    return files[_differ(kept.table, files) | _racy_files(kept)]


def _racy_files(kept: Kept) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return _racy(kept.table.identity[:, 3:].max(axis=1), kept.built)


def _differ(table: Table, files: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each file: is it missing or not what it was?"""
    found = np.zeros((len(files), 5), np.int64)
    for i, file in enumerate(files.tolist()):
        try:
            status = os.stat(table.path(file))
        except OSError:
            continue
        found[i] = (*Identity.of(status), status.st_ctime_ns)
    return (found != table.identity[files]).any(axis=1)


def _racy(times: Ints, built: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Times that a later change could share. Whole seconds mean a coarse clock."""
    tick = np.where(times % 1_000_000_000 == 0, _COARSE_TICK, _TICK)
    return np.asarray(times >= built - tick)


def now() -> int:
    """The time to record as the beginning of a build."""
    return time.time_ns()


def _warn_unusable(problem: str) -> None:
    warnings.warn(
        f"the kept index is passed over and built again: {problem}", RuntimeWarning, stacklevel=3
    )
