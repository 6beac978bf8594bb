"""What a caller means by a source: the files, in order, and how strictly to take them."""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from ndfeed.errors import MissingError, SourceError
from ndfeed.files import tree
from ndfeed.files.tree import Folder

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_URL = re.compile(rb"[a-z][a-z0-9+.-]+://")


class Files(NamedTuple):
    """The files of a source. ``picky``: leave out those that hold no arrays."""

    paths: list[bytes]
    folders: list[Folder]
    picky: bool


def spelled(source: Source) -> list[bytes]:
    """The source as absolute paths or patterns, in the caller's order."""
    given = [source] if isinstance(source, (str, bytes, os.PathLike)) else list(source)
    for one in given:
        if not isinstance(one, (str, bytes, os.PathLike)):
            raise TypeError(f"a source is a path or a list of paths, got {type(one).__name__}")
    paths = [os.path.expanduser(os.fsencode(one)) for one in given]
    for path in paths:
        if _URL.match(path):
            raise SourceError(path, "URLs are not read; copy the files to a disk first")
    return [os.path.abspath(path) for path in paths]


def find(spellings: list[bytes]) -> Files:
    """Every file that the spellings of one source name."""
    if not spellings:
        raise MissingError("[]", "an empty list of files; give at least one")
    paths: list[bytes] = []
    folders: list[Folder] = []
    picky = False
    for spelling in spellings:
        if tree.is_pattern(spelling) and not os.path.lexists(spelling):
            found = tree.match(spelling)
            if not found.paths:
                raise tree.nothing(spelling, "match")
        elif len(spellings) > _MANY or tree.kind(spelling) != "folder":
            paths.append(spelling)  # checked when it is opened
            continue
        else:
            picky = True
            found = tree.walk(spelling)
            if not found.paths:
                raise tree.nothing(spelling, "in this folder")
        paths += found.paths
        folders += found.folders
    return Files(paths, folders, picky)


# In long lists every entry is a file: asking each what it is would cost a stat more.
_MANY = 1000
