"""What a caller means by a source: the files, in order, and how strictly to take them."""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import MissingError, SourceError
from ndfeed.files import tree
from ndfeed.files.paths import Paths
from ndfeed.files.tree import Folders

Name = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Source = Name | Sequence[Name]

# In long lists every entry is a file: asking each what it is would cost a stat more.
_MANY = 1000
_URL = re.compile(rb"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
# What ``abspath`` would leave alone: no dots to follow, no doubled or last slash.
_ABSOLUTE = re.compile(rb"(?:/[^/.][^/]*)+")


class Files(NamedTuple):
    """The files of a source. ``picky`` marks those to leave out if they hold no arrays."""

    paths: Paths
    picky: NDArray[np.bool_]
    folders: Folders

    def chosen(self, which: NDArray[np.bool_]) -> "Files":
        """Those that a mask marks."""
        return Files(self.paths.chosen(which), self.picky[which], self.folders)


def spelled(source: Source) -> Paths:
    """The source as absolute paths or patterns, in the caller's order."""
    here = os.path.join(os.getcwdb(), b"")
    if isinstance(source, str | bytes | os.PathLike):
        return Paths((_spelled(source, here),))
    if not isinstance(source, Sequence) and not hasattr(source, "__array__"):
        raise TypeError(f"a source is a path or a list of paths, got {type(source).__name__}")
    return Paths(_spelled(one, here) for one in source)


def _spelled(one: object, here: bytes) -> bytes:
    if not isinstance(one, str | bytes | os.PathLike):
        raise TypeError(f"a source is a path or a list of paths, got {type(one).__name__} in it")
    path = os.fsencode(one)
    if not path:
        raise MissingError("''", 'an empty path; "." is the current folder')
    if b"://" in path and _URL.match(path):
        raise SourceError(path, "URLs are not read; copy the files to a disk first")
    if path.startswith(b"~"):
        path = os.path.expanduser(path)
    if not path.startswith(b"/"):
        path = os.path.join(here, path)
    return path if _ABSOLUTE.fullmatch(path) else os.path.abspath(path)


def find(spellings: Paths) -> Files:
    """Every file that the spellings of one source name."""
    if not spellings:
        raise MissingError("[]", "an empty list of files; give at least one")
    many = len(spellings) > _MANY
    if len(spellings) == 1 and tree.is_folder(spellings[0]):
        found = _walked(spellings[0])
        return Files(found.paths, np.ones(len(found.paths), bool), found.folders)
    paths, picky, folders = Paths(), bytearray(), Folders()
    for spelling in spellings:
        if tree.is_pattern(spelling) and not os.path.lexists(spelling):
            found = tree.match(spelling)
            if not found.paths:
                raise tree.nothing(spelling, "match")
            picky += bytes(len(found.paths))
        elif not many and tree.is_folder(spelling):
            found = _walked(spelling)
            picky += b"\1" * len(found.paths)
        else:
            paths.append(spelling)  # whether it is a file is found out by opening it
            picky.append(False)
            continue
        paths.extend(found.paths)
        folders.extend(found.folders)
    return Files(paths, np.frombuffer(picky, bool), folders)


def _walked(folder: bytes) -> tree.Found:
    found = tree.walk(folder)
    if not found.paths:
        raise tree.nothing(folder, "in this folder")
    return found
