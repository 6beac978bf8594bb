"""Resolve a source: which files it names, in order, and how strictly to treat each."""

import os
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import MissingError, SourceError
from ndfeed.files import listing
from ndfeed.files.listing import Folders, Paths

Name = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Source = Name | Sequence[Name]

# In long lists every entry is a file: checking each would cost one more stat.
MANY = 1000
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
_URL = re.compile(rb"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
# What ``abspath`` would not change: no dots to resolve, no doubled or trailing slash.
_ABSOLUTE = re.compile(rb"(?:/[^/.][^/]*)+")


_LOADED = "; pass the path instead of what opened it"  # np.load, or Python's open


class Files(NamedTuple):
    """The files of a source. ``picky`` marks those to leave out if they contain no arrays."""

    paths: Paths
    picky: NDArray[np.bool_]
    folders: Folders

    def cut(self, start: int, stop: int) -> "Files":
        """Return the files [start, stop), without the folders they were found in."""
        if stop - start == len(self.paths):
            return self._replace(folders=Folders())
        return Files(self.paths.cut(start, stop), self.picky[start:stop], Folders())

    def chosen(self, which: NDArray[np.bool_]) -> "Files":
        """Return the files that a mask marks."""
        return Files(self.paths.chosen(which), self.picky[which], self.folders)


def spell_source(source: Source) -> Paths:
    """The source as absolute paths or patterns, in the caller's order; ``Paths`` are spelled."""
    if isinstance(source, Paths):
        return source
    if isinstance(source, str | bytes | os.PathLike):
        return Paths((_spell(source),))
    if not isinstance(source, Sequence) and not hasattr(source, "__array__"):
        hint = _LOADED if hasattr(source, "files") or hasattr(source, "read") else ""
        problem = f"a source must be a path or a list of paths, got {type(source).__name__}"
        raise TypeError(f"{problem}{hint}")
    kind = getattr(getattr(source, "dtype", None), "kind", "U")
    if kind not in "USO":  # an array of names is accepted as a list
        raise TypeError(
            "a source must be a path or a list of paths, got an array; pass the path instead of "
            "np.load(path), or np.save it first"
        )
    here = os.path.join(os.getcwdb(), b"")  # asked for once, not for every file
    return Paths(_spell(one, here) for one in source)


def _spell(one: object, here: bytes | None = None) -> bytes:
    if isinstance(one, str):
        path = one.encode(_ENCODING, _ERRORS)  # like os.fsencode, in a third of the time
    elif isinstance(one, bytes | os.PathLike):
        path = os.fsencode(one)
    else:
        numbers = isinstance(one, Sequence | int | float | np.number)
        hint = "; np.asarray(list) makes a source of numbers" if numbers else ""
        if hasattr(one, "__array__") and np.ndim(one):
            hint = "; np.stack(list) makes a source of arrays of one shape, np.concatenate(list) "
            hint += "with offsets= one of arrays that differ in length"
        raise TypeError(
            f"a source must be a path or a list of paths, got {type(one).__name__} in it{hint}"
        )
    if not path:
        raise MissingError("''", "an empty path", remedy='"." is the current folder')
    if b"://" in path and _URL.match(path):
        raise SourceError(
            path, "URLs are not supported", remedy="copy the files to a local disk first"
        )
    if path.startswith(b"~"):
        path = os.path.expanduser(path)
    if not path.startswith(b"/"):
        path = os.path.join(os.getcwdb() if here is None else here, path)
    return path if _ABSOLUTE.fullmatch(path) else os.path.abspath(path)


def find(spellings: Paths) -> Files:
    """Find every file that the spellings of one source name."""
    if not spellings:
        raise MissingError("[]", "an empty list of files", remedy="give at least one")
    many = len(spellings) > MANY
    if not any(_is_several(spelling, many) for spelling in spellings):
        return Files(spellings, np.zeros(len(spellings), bool), Folders())
    parts = [_find_files(spelling, many) for spelling in spellings]
    if len(parts) == 1:
        return parts[0]
    paths, folders = Paths(), Folders()
    for part in parts:
        paths.extend(part.paths)
        folders.extend(part.folders)
    return Files(paths, np.concatenate([part.picky for part in parts]), folders)


def _is_several(spelling: bytes, many: bool) -> bool:
    """Return whether this may name other files; opening it shows whether it is one."""
    return listing.is_pattern(spelling) or (not many and listing.is_folder(spelling))


def _find_files(spelling: bytes, many: bool) -> Files:
    if listing.is_pattern(spelling) and not os.path.lexists(spelling):
        found = listing.find_matches(spelling)
        if not found.paths:
            raise listing.nothing_found(spelling, "match")
        return Files(found.paths, np.zeros(len(found.paths), bool), found.folders)
    if not many and listing.is_folder(spelling):
        found = listing.walk(spelling)
        if not found.paths:
            raise listing.nothing_found(spelling, "in this folder")
        return Files(found.paths, np.ones(len(found.paths), bool), found.folders)
    return Files(Paths((spelling,)), np.zeros(1, bool), Folders())
