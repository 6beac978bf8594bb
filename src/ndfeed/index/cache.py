"""Tables kept between runs, one file per source in the user's cache folder.

A table is used again if the names in its folders and the device, inode, size, mtime and ctime of
its files are the same. Up to ``_CHECKED`` files all are asked; beyond, an even sample is, and
every other file when it is read: one that is gone or whose identity differs is an error there,
and the next to open the table asks all of them (``doubt``). A time so close to the building
that the file may have changed within the same tick counts as a difference, and so does a raw
file that is described by a JSON beside it, since that may have changed alone.

A cache is a convenience: one that is damaged, foreign, or cannot be written is passed over
with a warning. It is JSON and numbers, never anything that runs.
"""

import hashlib
import os
import time
import warnings
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import Error
from ndfeed.files import publish
from ndfeed.files.file import File
from ndfeed.files.paths import Paths
from ndfeed.files.tree import Folders
from ndfeed.formats.raw import Layout
from ndfeed.index import codec
from ndfeed.index.build import RAW
from ndfeed.index.table import Ints, Table

_CHECKED = 10_000
_TICK, _COARSE_TICK = 50_000_000, 2_000_000_000  # nanoseconds
_KEPT, _KEPT_BYTES = 256, 2 << 30
_AT_ONCE = 4096
_ALL_BITS = (1 << 64) - 1
_GONE = 0, 0, 1 << 63, 0, 0  # no file has that size


class Kept(NamedTuple):
    """A table, when it was begun, the folders it was found in, and whether it is in doubt."""

    table: Table
    built: int
    folders: Folders
    doubted: bool = False


def place(spellings: Paths, layout: Layout | None) -> bytes:
    """The cache file for a source."""
    digest = hashlib.sha256(repr((codec.VERSION, layout)).encode())
    for part in (spellings.base, *spellings.text()):
        digest.update(part)
    return os.path.join(publish.cache_folder(), b"index", digest.hexdigest()[:32].encode())


def save(path: bytes, kept: Kept) -> None:
    """Write a table; warn where that is impossible."""
    text, ends = kept.folders.paths.text()
    extra = {
        "built": kept.built,
        "folder_bytes": np.frombuffer(text, np.uint8),
        "folder_ends": np.frombuffer(ends, np.int64),
        "folder_facts": np.frombuffer(kept.folders.facts, np.int64),
    }
    try:
        publish.publish(path, codec.encode(kept.table, extra))
        publish.keep_newest(os.path.dirname(path), _KEPT, _KEPT_BYTES)
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
        ends = extra["folder_ends"].tolist()
        text = extra["folder_bytes"].tobytes()
        paths = (text[start:end] for start, end in pairwise(ends))
        folders = Folders(paths, extra["folder_facts"].tolist())
        return Kept(table, int(extra["built"]), folders, doubted=file.status.st_mtime_ns == 0)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        _warn_unusable(f"{os.fsdecode(path)}: {error}")
        publish.discard(path)
        return None


def doubt(table: Table) -> None:
    """Note that a file of the table is not what it was: the next to open it must ask all."""
    for path in table.caches:
        publish.age(path)


def holds(kept: Kept, layout: Layout | None) -> bool:
    """Are the files the same as when the table was built, as far as a quick look tells?"""
    if kept.doubted or _racy(np.array([kept.folders.changed_last()]), kept.built).any():
        return False
    if not kept.folders.unchanged() or _uncertain(kept, layout).any():
        return False
    step = -(-kept.table.files // _CHECKED) or 1
    return not _differ(kept.table, np.arange(0, kept.table.files, step)).any()


def changed_files(kept: Kept, layout: Layout | None) -> NDArray[np.bool_]:
    """For every file: is it gone, or not what it was, or may it be so?"""
    return _differ(kept.table, np.arange(kept.table.files)) | _uncertain(kept, layout)


def _uncertain(kept: Kept, layout: Layout | None) -> NDArray[np.bool_]:
    """Files of which a look at them does not tell whether they changed."""
    table = kept.table
    racy = _racy(np.maximum(table.identity[:, 3], table.identity[:, 4]), kept.built)
    return racy if layout is not None else racy | (table.format == RAW)


def _differ(table: Table, files: Ints) -> NDArray[np.bool_]:
    """For each file: is it missing or not what it was?"""
    differ = np.zeros(len(files), bool)
    for start in range(0, len(files), _AT_ONCE):
        some = files[start : start + _AT_ONCE]
        found = [_facts(path) for path in table.paths_of(some)]
        # Unsigned as the system has them, then the signed numbers of the same bits.
        same = np.array(found, np.uint64).view(np.int64) == table.identity[some]
        differ[start : start + len(some)] = ~same.all(axis=1)
    return differ


def _facts(path: bytes) -> tuple[int, int, int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return _GONE
    mtime = found.st_mtime_ns & _ALL_BITS  # files may be older than 1970
    return found.st_dev, found.st_ino, found.st_size, mtime, found.st_ctime_ns


def _racy(times: Ints, built: int) -> NDArray[np.bool_]:
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
