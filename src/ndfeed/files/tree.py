"""Find files: one, a folder's, a pattern's. Natural order, links followed, loops refused.

Paths are bytes throughout: a file name need not be valid text.
"""

import fnmatch
import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from ndfeed.errors import MissingError, SourceError
from ndfeed.files.file import refuse

_DIGITS = re.compile(rb"[0-9]+")
_MAGIC = re.compile(rb"[*?\[]")


class Folder(NamedTuple):
    """A folder that was listed, and what tells whether its list of names still holds."""

    path: bytes
    device: int
    inode: int
    mtime: int


class Found(NamedTuple):
    """Files in natural order, and the folders whose listing they came from."""

    paths: list[bytes]
    folders: list[Folder]


def natural(name: bytes) -> bytes:
    """A sort key under which ``x2`` comes before ``x10``.

    >>> sorted([b"x10", b"x9", b"x010"], key=natural)
    [b'x9', b'x010', b'x10']
    """
    # One byte string a name, not a tuple: a million of these must fit beside the index.
    return _DIGITS.sub(_weighed, name) + b"\0" + name


def _weighed(digits: re.Match[bytes]) -> bytes:
    value = digits[0].lstrip(b"0")
    return b"0" + len(value).to_bytes(2, "big") + value


def is_pattern(path: bytes) -> bool:
    """Does ``path`` hold a wildcard?"""
    return _MAGIC.search(path) is not None


def kind(path: bytes) -> str:
    """ "file", "folder" or "other"; raises ``MissingError`` where there is nothing."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        refuse(path, error)
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def walk(root: bytes) -> Found:
    """Every file below ``root`` whose name does not begin with a dot."""
    found = Found([], [])
    _walk(root, found, ())
    return found


def _walk(path: bytes, found: Found, above: tuple[tuple[int, int], ...]) -> None:
    names, folders = _listed(path, found)
    own = found.folders[-1].device, found.folders[-1].inode
    if own in above:
        raise SourceError(path, "a loop of symbolic links; remove the link")
    for name in names:
        found.paths.append(os.path.join(path, name))
    for name in folders:
        _walk(os.path.join(path, name), found, (*above, own))


def _listed(path: bytes, found: Found) -> tuple[list[bytes], list[bytes]]:
    """Names of files and folders in ``path``, each in natural order."""
    files, folders = [], []
    try:
        status = os.stat(path)
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(b"."):
                    continue
                (folders if entry.is_dir() else files).append(entry.name)
    except OSError as error:
        refuse(path, error)
    found.folders.append(Folder(path, status.st_dev, status.st_ino, status.st_mtime_ns))
    files.sort(key=natural)
    folders.sort(key=natural)
    return files, folders


def match(pattern: bytes) -> Found:
    """Every file that a pattern names: ``*``, ``?``, ``[…]`` and ``**`` for any folders."""
    found = Found([], [])
    parts = pattern.replace(os.fsencode(os.sep), b"/").split(b"/")
    first = next(i for i, part in enumerate(parts) if is_pattern(part))
    base = b"/".join(parts[:first]) or (b"/" if pattern.startswith(b"/") else b".")
    found.paths.extend(_matches(base, parts[first:], found))
    return found


def _matches(folder: bytes, parts: list[bytes], found: Found) -> Iterator[bytes]:
    part, rest = parts[0], parts[1:]
    if part == b"**":
        if not rest:
            below = walk(folder)
            found.folders.extend(below.folders)
            yield from below.paths
            return
        yield from _matches(folder, rest, found)
        for name in _listed(folder, found)[1]:
            yield from _matches(os.path.join(folder, name), parts, found)
        return
    if not is_pattern(part):
        path = os.path.join(folder, part)
        if os.path.lexists(path):
            if rest:
                yield from _matches(path, rest, found)
            else:
                yield path
        return
    files, folders = _listed(folder, found)
    for name in fnmatch.filter(folders if rest else files, part):
        path = os.path.join(folder, name)
        if rest:
            yield from _matches(path, rest, found)
        else:
            yield path


def unchanged(folders: list[Folder]) -> bool:
    """Do all folders still have the names they had?"""
    try:
        return all(
            (status.st_dev, status.st_ino, status.st_mtime_ns) == folder[1:]
            for folder in folders
            for status in (os.stat(folder.path),)
        )
    except OSError:
        return False


def nothing(path: bytes, what: str) -> MissingError:
    """The error for a source without files."""
    return MissingError(
        path,
        f"no array files {what}; .npy, .npz, .npy.gz, .pt and .safetensors are read as they "
        f"are, raw files with dtype= and shape=",
    )
