"""Keep tables between runs, one file per source in the user's cache folder.

A table is used again if the names in its folders and the device, inode, size, mtime and ctime of
its files are the same. Up to ``CHECKED`` files, all are checked; beyond that, an even sample is,
and every other file when it is read: one that is gone or whose identity differs is an error then,
and the next process to open the table checks all of them (``doubt``). A time so close to the start
of the build that the file may have changed within the same tick counts as a difference; where that
would lead to many checks, the build starts a moment later (``settle``). So does a raw file
described by a JSON file, since that file may have changed alone.

A cache is a convenience: one that is damaged, foreign, or cannot be written is ignored with a
warning. It is JSON and numbers, never anything that runs. It is trusted in three steps: the
folder and the file belong to this user and nobody else can write to them; the last 32 bytes sign
the rest and the file's name with a key that only this user can read; and every number is checked
(``validate``), so that even a forged signature leads nowhere but into the source's files.
"""

import hashlib
import hmac
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import shown
from ndfeed.files import cache_files, platform_calls
from ndfeed.files.listing import Folders, Paths, paths_of
from ndfeed.files.processes import map_with_all_cores
from ndfeed.formats.description import FORMATS, Wanted
from ndfeed.formats.raw import Layout
from ndfeed.index import codec, validate
from ndfeed.index.build import RAW
from ndfeed.index.table import Ints, Table

CHECKED = 10_000
_TICK, _COARSE_TICK = 50_000_000, 2_000_000_000  # nanoseconds
_PATIENCE = 200_000_000  # nanoseconds to wait for folders that have just changed
_KEPT, _KEPT_BYTES = 256, 2 << 30
_AT_ONCE = 4096
_FEW = 64
_ALL_BITS = (1 << 64) - 1
_GONE = 0, 0, 1 << 63, 0, 0  # no file has that size
_FACTS = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
_SIGNATURE = 32
_EXTRA = ("built", "folder_bytes", "folder_ends", "folder_facts")  # what goes with a table
_FOLDER_DTYPES = [np.dtype("u1"), np.dtype("<i8"), np.dtype("<i8")]  # paths, their ends, facts


class Kept(NamedTuple):
    """A table, when its build started, the folders it was found in, and whether it is in doubt."""

    table: Table
    built: int
    folders: Folders
    doubted: bool = False


def place(
    spellings: Paths,
    layout: Layout | None,
    *,
    partial: bool = False,
    wanted: Wanted | None = None,
) -> bytes:
    """Return the path of the cache file for a source.

    If ``partial``, it is the one without bad files; if ``wanted``, the one without unreadable
    arrays that are not requested.
    """
    kind = "partial" if partial else "signed"
    if wanted is not None:
        kind += f" {sorted(wanted)}"
    digest = hashlib.sha256(repr((codec.VERSION, kind, layout)).encode())
    for part in (spellings.base, *spellings.text()):
        digest.update(part)
    return os.path.join(cache_files.cache_folder(), b"index", digest.hexdigest()[:32].encode())


def save(path: bytes, kept: Kept) -> None:
    """Write a table; warn if that is impossible."""
    text, ends = kept.folders.paths.text()
    extra = {
        "built": kept.built,
        "folder_bytes": np.frombuffer(text, np.uint8),
        "folder_ends": np.frombuffer(ends, np.int64),
        "folder_facts": np.frombuffer(kept.folders.facts, np.int64),
    }
    try:
        cache_files.publish(path, _sign(path, codec.encode(kept.table, extra)))
        cache_files.keep_newest(os.path.dirname(path), _KEPT, _KEPT_BYTES)
    except OSError as error:
        warnings.warn(
            f"the index cannot be cached: {error.strerror or error}; make "
            f"{shown(cache_files.cache_folder())} writable for you alone, or set XDG_CACHE_HOME",
            RuntimeWarning,
            stacklevel=2,
        )


def _sign(path: bytes, pieces: list[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the pieces, then the signature. The key is made last: the disk may be full."""
    yield from pieces
    yield _signature(cache_files.secret(make=True), path, pieces)


def _signature(key: bytes, path: bytes, pieces: list[bytes | memoryview]) -> bytes:
    """Sign these bytes and this name, which takes the key."""
    signing = hmac.new(key, os.path.basename(path), "sha256")
    for piece in pieces:
        signing.update(piece)
    return signing.digest()


def load(path: bytes, spellings: Paths) -> Kept | None:
    """Return the table cached at ``path`` for a source, or ``None``."""
    try:
        folder = cache_files.PrivateFolder(os.path.dirname(path))
    except OSError:  # missing, or not ours: ``save`` reports it
        return None
    with folder:
        try:
            data, status = folder.read(os.path.basename(path), platform_calls.memory_bytes() // 2)
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn_unusable(path, error)
            return None
    try:
        table, built, folders = _decode(path, memoryview(data), spellings)
    except (ValueError, RecursionError, MemoryError) as error:
        _warn_unusable(path, error)
        cache_files.discard(path)
        return None
    return Kept(table, built, folders, doubted=status.st_mtime_ns == 0)


def _decode(path: bytes, data: memoryview, spellings: Paths) -> tuple[Table, int, Folders]:
    """Decode a cache; ``ValueError`` unless this user signed it and every number is valid."""
    body, signature = data[:-_SIGNATURE], data[-_SIGNATURE:]
    try:
        key = cache_files.secret()
    except OSError:
        raise ValueError("the key it was signed with is gone") from None
    if not hmac.compare_digest(signature, _signature(key, path, [body])):
        raise ValueError("it is damaged, or somebody else wrote it: the signature is wrong")
    table, extra = codec.decode(body, checked=False, caches=(path,))
    if table.digest:
        raise ValueError("it is the index of a packed dataset")
    validate.check(table, FORMATS)
    validate.check_source(table, spellings)
    return table, *_extra(extra)


def _extra(extra: dict[str, Any]) -> tuple[int, Folders]:
    """Return when the table's build started, and the folders it was found in."""
    if extra.keys() != set(_EXTRA):
        raise ValueError("the folders are missing")
    built, text, ends, facts = (extra[name] for name in _EXTRA)
    if type(built) is not int or not 0 <= built < 1 << 63:
        raise ValueError("the time of building is out of bounds")
    kinds = [getattr(column, "dtype", None) for column in (text, ends, facts)]
    if kinds != _FOLDER_DTYPES:
        raise ValueError("the folders are malformed")
    if not len(ends) or len(facts) != 3 * (len(ends) - 1):
        raise ValueError("the folders differ in number")
    names, bounds = text.tobytes(), ends.tolist()
    pairs = list(pairwise(bounds))
    if bounds[0] or bounds[-1] != len(names) or any(end <= start for start, end in pairs):
        raise ValueError("the folders overlap")
    if b"\0" in names:
        raise ValueError("a folder with a zero byte")
    return built, Folders((names[start:end] for start, end in pairs), facts.tolist())


def doubt(table: Table) -> None:
    """Record that a file of the table has changed: the next process to open it must check all."""
    for path in table.caches:
        cache_files.age(path)


def holds(kept: Kept, layout: Layout | None) -> bool:
    """Are the files the same as when the table was built, as far as a quick look tells?"""
    if kept.doubted or not kept.folders.unchanged():
        return False
    if layout is None and np.count_nonzero(kept.table.format == RAW):
        return False
    last = max(kept.folders.changed_last(), int(kept.table.identity[:, 3:].max()))
    if last >= kept.built - _COARSE_TICK:  # few are written that shortly before they are opened
        folders = np.array([kept.folders.changed_last()])
        if _racy(folders, kept.built).any() or find_uncertain(kept, layout).any():
            return False
    if kept.table.files <= _FEW and _all_same(kept.table):
        return True
    return not len(find_changed(kept.table))


def find_changed(table: Table) -> Ints:
    """Return files that are gone or have changed: of up to ``CHECKED`` all, else of a sample."""
    some = np.arange(0, table.files, -(-table.files // CHECKED) or 1)
    known = _Known(Paths(table.paths_of(some)), table.identity[some])
    found: Ints = some[_differ(None, known)]
    return found


def changed_files(kept: Kept, layout: Layout | None) -> NDArray[np.bool_]:
    """Return for every file whether it is gone or has changed, or may have."""
    with closing(map_with_all_cores(_differ, None, _Pieces(kept.table))) as found:
        return np.concatenate(list(found)) | find_uncertain(kept, layout)


def find_uncertain(kept: Kept, layout: Layout | None) -> NDArray[np.bool_]:
    """Return the files for which a check does not tell whether they changed."""
    table = kept.table
    racy = _racy(np.maximum(table.identity[:, 3], table.identity[:, 4]), kept.built)
    return racy if layout is not None else racy | (table.format == RAW)


def _all_same(table: Table) -> bool:
    """Are few files certainly all unchanged? In lists, which is faster than ``_differ``."""
    try:
        facts = chain.from_iterable(map(_FACTS, map(os.stat, table.paths())))
        return list(facts) == table.identity.reshape(-1).tolist()
    except OSError:
        return False


class _Known(NamedTuple):
    """Some files, and the identity they had."""

    paths: Paths
    identity: Ints


class _Pieces(Sequence[_Known]):
    """The files of a table, many at a time; each piece is cut when it is needed."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._starts = range(0, table.files, _AT_ONCE)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, at: Any) -> Any:  # noqa: ANN401 - one piece
        table, start = self._table, self._starts[at]
        ends = table.path_ends[start : start + _AT_ONCE + 1]
        text = table.path_bytes[ends[0] : ends[-1]].tobytes()
        paths = paths_of(table.base, text, (ends - ends[0]).tobytes())
        return _Known(paths, table.identity[start : start + _AT_ONCE])


def _differ(_: None, known: _Known) -> NDArray[np.bool_]:
    """Return for each file whether it is missing or has changed."""
    paths = list(known.paths)
    try:
        found = chain.from_iterable(map(_FACTS, map(os.stat, paths)))
        facts = np.fromiter(found, np.int64, 5 * len(paths))
    except (OSError, OverflowError):  # some are gone, or have numbers beyond 2**63
        facts = np.array([_facts(path) for path in paths], np.uint64).view(np.int64)
    return np.asarray((facts.reshape(-1, 5) != known.identity).any(axis=1))


def _facts(path: bytes) -> tuple[int, ...]:
    """Return unsigned numbers, as the system has them; tables hold them as signed."""
    try:
        return tuple(number & _ALL_BITS for number in _FACTS(os.stat(path)))
    except OSError:
        return _GONE


def _racy(times: Ints, built: int) -> NDArray[np.bool_]:
    """Return which times a later change could share. Whole seconds mean a coarse clock."""
    tick = np.where(times % 1_000_000_000 == 0, _COARSE_TICK, _TICK)
    return np.asarray(times >= built - tick)


def now() -> int:
    """Return the time to record as the start of a build."""
    return time.time_ns()


def settle(folders: Folders, began: int) -> int:
    """Return when to say that a build starts, after a wait if ``folders`` have just changed.

    Files that were written right before they are opened, as by a script that makes them, would
    otherwise have to be checked one by one by the next process.
    """
    times = np.array(folders.facts, np.int64)[2::3]
    young = np.flatnonzero(_racy(times, began))
    if not len(young):
        return began
    # Twice: a file is complete a little later than its folder has its name.
    wait = int(times.max()) + 2 * _TICK - now()
    if wait > _PATIENCE:
        return began
    time.sleep(max(wait, 0) / 1e9)
    later = now()
    return later if folders.list_again(young.tolist()) else began


def _warn_unusable(path: bytes, error: Exception) -> None:
    problem = getattr(error, "strerror", None) or str(error)
    warnings.warn(
        f"the cached index cannot be used and is built again: {shown(path)}: {shown(problem)}",
        RuntimeWarning,
        stacklevel=3,
    )
