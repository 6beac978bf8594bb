"""Find files in folders and by patterns, and store many paths in little memory.

Files are in natural order, links are followed, loops refused. A folder's own files come before
those of its subfolders. Hidden and temporary ones (``.x.npy``, ``x.npy.tmp``) need a pattern.

A folder that several links lead to is listed once per path. Links to links can make millions of
paths, so the work is bounded: ``_MOST_TIMES`` the names in all folders, each counted once.

A million paths in a list take about 100 MB. Here they lie end to end in one buffer, and their
common prefix is stored once. Paths are bytes: a file name need not be valid text.
"""

import fnmatch
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import MissingError, SourceError
from ndfeed.files.file import refuse, signed

_AT_ONCE = 4096


class Paths(Sequence[bytes]):
    """Paths in order, each starting with ``base``. More can be appended."""

    __slots__ = ("_ends", "_text", "base")

    def __init__(self, paths: Iterable[bytes] = (), base: bytes = b"") -> None:
        self.base = base
        self._text = bytearray()
        self._ends = array("q", (0,))
        self.extend(paths)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self._between(start, max(start, stop))
            return [self[at] for at in range(start, stop, step)]
        at = range(len(self))[index]
        return self.base + bytes(self._text[self._ends[at] : self._ends[at + 1]])

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self._between(start, min(start + _AT_ONCE, len(self)))

    def __reduce__(self) -> tuple[Callable[..., "Paths"], tuple[bytes, bytes, bytes]]:
        return paths_of, (self.base, bytes(self._text), self._ends.tobytes())

    def append(self, path: bytes) -> None:
        """Append one path."""
        self.extend((path,))

    def extend(self, paths: Iterable[bytes], folder: bytes = b"") -> None:
        """Append ``paths``, or these names in a ``folder`` that starts with ``base``."""
        start = folder[len(self.base) :]
        cut = 0 if folder else len(self.base)
        left = iter(paths)
        while some := list(islice(left, _AT_ONCE)):
            if cut:
                some = [path[cut:] for path in some]
            self._text += start.join((b"", *some))
            lengths = map(len(start).__add__, map(len, some))
            self._ends.extend(islice(accumulate(lengths, initial=self._ends[-1]), 1, None))

    def chosen(self, which: NDArray[np.bool_]) -> "Paths":
        """Return those that a mask marks."""
        found = Paths(base=self.base)
        for start in range(0, len(self), _AT_ONCE):
            marked = np.flatnonzero(which[start : start + _AT_ONCE]).tolist()
            some = self[start : start + _AT_ONCE] if marked else []
            found.extend(some[i] for i in marked)
        return found

    def cut(self, start: int, stop: int) -> "Paths":
        """Return those from ``start`` to ``stop``."""
        found, first = Paths(base=self.base), self._ends[start]
        found._text += self._text[first : self._ends[stop]]
        found._ends = array("q", (end - first for end in self._ends[start : stop + 1]))
        return found

    def text(self) -> tuple[memoryview, memoryview]:
        """Return all bytes after ``base``, end to end, and each path's end, from 0 on, as int64.

        Not copied: no path may be appended as long as these are used.
        """
        return memoryview(self._text), memoryview(self._ends)

    def _between(self, start: int, stop: int) -> list[bytes]:
        ends = self._ends[start : stop + 1]
        first, base = ends[0], self.base
        text = bytes(self._text[first : ends[-1]])
        return [base + text[a - first : b - first] for a, b in pairwise(ends)]


def paths_of(base: bytes, text: bytes, ends: bytes) -> Paths:
    """Return paths given by the bytes of what ``Paths.text`` returns."""
    made = Paths(base=base)
    made._text += text
    made._ends = array("q", ends)
    return made


def common_folder(paths: Iterable[bytes]) -> bytes:
    """Return the deepest folder that holds all ``paths``, with its slash; empty if none does."""
    # All begin with the base. Mostly, the first and the last have nothing more in common.
    if isinstance(paths, Paths) and paths and _shared_folder(paths[0], paths[-1]) == paths.base:
        return paths.base
    left = iter(paths)
    extremes: list[bytes] = []
    while some := list(islice(left, _AT_ONCE)):
        extremes += min(some), max(some)
    return _shared_folder(min(extremes), max(extremes)) if extremes else b""


def _shared_folder(low: bytes, high: bytes) -> bytes:
    """Return the deepest folder that holds both paths, with its slash."""
    pairs = enumerate(zip(low, high, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(low), len(high)))
    return low[: low.rfind(b"/", 0, same) + 1]


_DIGITS = re.compile(rb"[0-9]+")
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_MAGIC = re.compile(rb"[*?\[]")
_TEMPORARY = b".tmp", b".temp", b".part", b".partial", b".crdownload", b"~"
_FACTS = 3
# How often the names in all folders may be listed, and how many names are always allowed.
_MOST_TIMES, _ALWAYS = 32, 20_000


class Folders:
    """Folders that were listed, and facts that show whether their lists of names are current.

    ``facts`` has the device, the inode and the mtime of each in turn.
    """

    def __init__(self, paths: Iterable[bytes] = (), facts: Iterable[int] = ()) -> None:
        self.paths = Paths(paths)
        self.facts = array("q", facts)
        self._names: list[tuple[int, bool]] = []  # per folder: a hash of them, and are some hidden?
        self._seen: set[tuple[int, int]] = set()
        self._there = self._listed = 0

    def count(self, path: bytes, found: "_Listing", *, hidden: bool) -> None:
        """Count the names in a folder that was listed; refuse if links multiply them."""
        names, own = len(found.files) + len(found.folders), found.own
        self._names.append((found.digest(), hidden))
        self._listed += 1 + names
        if own not in self._seen:
            self._seen.add(own)
            self._there += 1 + names
        if self._listed > max(_MOST_TIMES * self._there, _ALWAYS):
            raise SourceError(
                path,
                f"symbolic links lead to the same folders again and again: listed "
                f"{self._listed:,} names where there are only {self._there:,}",
                remedy="remove the links, or pass a list of folders",
            )

    def add(self, path: bytes, status: os.stat_result) -> tuple[int, int]:
        """Record a folder before it is listed; return its device and inode."""
        device, inode, changed = _facts(status)
        self.paths.append(path)
        self.facts.extend((device, inode, changed))
        return device, inode

    def extend(self, others: "Folders") -> None:
        """Add what others have recorded."""
        self.paths.extend(others.paths)
        self.facts.extend(others.facts)
        self._names += others._names

    def changed_last(self) -> int:
        """The latest mtime of all folders, in nanoseconds."""
        return max(self.facts[_FACTS - 1 :: _FACTS], default=0)

    def list_again(self, which: Iterable[int]) -> bool:
        """Do some folders, listed once more, still have the names that were found in them?"""
        try:
            return all(
                _list_folder(self.paths[at], Folders(), hidden=hidden).digest() == digest
                for at in which
                for digest, hidden in (self._names[at],)
            )
        except SourceError:
            return False

    def unchanged(self) -> bool:
        """Do all folders still have the names they had?"""
        try:
            now = [fact for path in self.paths for fact in _facts(os.stat(path))]
        except OSError:
            return False
        return now == self.facts.tolist()


def _facts(status: os.stat_result) -> tuple[int, int, int]:
    return signed(status.st_dev), signed(status.st_ino), status.st_mtime_ns


class Found(NamedTuple):
    """Files in natural order, and the folders whose listing they came from."""

    paths: Paths
    folders: Folders


class _Listing(NamedTuple):
    """The names of files and folders in a folder, in natural order; its device and inode."""

    files: list[bytes]
    folders: list[bytes]
    own: tuple[int, int]

    def digest(self) -> int:
        """Return a number that differs if any name does, within this process."""
        return hash(b"/".join((*self.files, b"", *self.folders)))


def natural_key(name: bytes) -> bytes:
    """Return a sort key under which ``x2`` comes before ``x10``.

    >>> sorted([b"x10", b"x9", b"x010"], key=natural_key)
    [b'x9', b'x10', b'x010']
    """
    # One byte string per name, not a tuple: a million of these must fit in memory.
    return _DIGITS.sub(_number_key, name)


def _number_key(digits: re.Match[bytes]) -> bytes:
    value = digits[0].lstrip(b"0")
    return b"0" + len(value).to_bytes(2, "big") + value


def is_pattern(path: bytes) -> bool:
    """Return whether ``path`` contains a wildcard."""
    return _MAGIC.search(path) is not None


def is_folder(path: bytes) -> bool:
    """Return whether there is a folder of that name."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False


def exists(path: bytes) -> bool:
    """Return whether there is anything of that name."""
    return os.path.lexists(path)


def is_link(path: bytes) -> bool:
    """Return whether this is a symbolic link."""
    return os.path.islink(path)


def walk(root: bytes) -> Found:
    """Find every file below ``root``, except those named as files that are being written."""
    found = Found(Paths(base=os.path.join(root, b"")), Folders())
    for folder, listing in _below(root, found.folders):
        names = [name for name in listing.files if not name.endswith(_TEMPORARY)]
        found.paths.extend(names, os.path.join(folder, b""))
    return found


def find_matches(pattern: bytes) -> Found:
    """Find every file that matches a pattern: ``*``, ``?``, ``[…]``, and ``**`` for any folders.

    Folders before the first wildcard are taken literally, and so is one that exists under a name
    with wildcards.
    """
    parts = pattern.replace(os.fsencode(os.sep), b"/").split(b"/")
    base = b"/" if pattern.startswith(b"/") else b"."
    while len(parts) > 1 and _literal(base, parts[0]):
        base = os.path.join(base, parts.pop(0))
    once = [p for p, q in zip(parts, [b"", *parts], strict=False) if not p == q == b"**"]
    found = Found(Paths(), Folders())
    paths = _matches(base, once, found.folders)
    # Two of them can match one file in several ways.
    found.paths.extend(dict.fromkeys(paths) if once.count(b"**") > 1 else paths)
    return found


def _literal(folder: bytes, part: bytes) -> bool:
    return not is_pattern(part) or os.path.lexists(os.path.join(folder, part))


def _matches(folder: bytes, parts: list[bytes], folders: Folders) -> Iterator[bytes]:
    part, rest = parts[0], parts[1:]
    if part == b"**":
        yield from _matches_below(folder, rest, folders)
    elif not is_pattern(part):
        path = os.path.join(folder, part)
        if rest and is_folder(path):
            yield from _matches(path, rest, folders)
        elif not rest and os.path.lexists(path) and not is_folder(path):
            yield path
    else:
        listing = _list_folder(folder, folders, hidden=part.startswith(b"."))
        if not rest:
            yield from _match_names(folder, listing.files, part)
            return
        for path in _match_names(folder, listing.folders, part):
            yield from _matches(path, rest, folders)


def _matches_below(folder: bytes, rest: list[bytes], folders: Folders) -> Iterator[bytes]:
    for path, listing in _below(folder, folders):
        last = rest[0] if rest else b"*"
        if len(rest) <= 1 and not last.startswith(b"."):
            # Listed already, and the most common patterns: do not list twice.
            yield from _match_names(path, listing.files, last)
        else:
            yield from _matches(path, rest, folders)


def _match_names(folder: bytes, names: list[bytes], pattern: bytes) -> Iterator[bytes]:
    return (os.path.join(folder, name) for name in fnmatch.filter(names, pattern))


def _below(root: bytes, folders: Folders) -> Iterator[tuple[bytes, _Listing]]:
    """Yield ``root`` and every folder below it. Not recursive: folders nest deeper than calls."""
    above: list[tuple[int, int]] = []
    levels = [(b"", [root])]
    while levels:
        parent, names = levels[-1]
        if not names:
            levels.pop()
            del above[-1:]
            continue
        path = os.path.join(parent, names.pop())
        listing = _list_folder(path, folders)
        if listing.own in above:
            raise SourceError(path, "a loop of symbolic links", remedy="remove the link")
        yield path, listing
        above.append(listing.own)
        levels.append((path, listing.folders[::-1]))


def _list_folder(path: bytes, noted: Folders, *, hidden: bool = False) -> _Listing:
    files: list[bytes] = []
    folders: list[bytes] = []
    try:
        own = noted.add(path, os.stat(path))
        with os.scandir(path) as entries:
            for entry in entries:
                if hidden or not entry.name.startswith(b"."):
                    (folders if _is_folder(entry) else files).append(entry.name)
    except OSError as error:
        refuse(path, error)
    for names in (files, folders):
        names.sort()  # for names that are equal as numbers
        if not _is_padded(names):
            names.sort(key=natural_key)
    found = _Listing(files, folders, own)
    noted.count(path, found, hidden=hidden)
    return found


def _is_padded(names: list[bytes]) -> bool:
    """Return whether all names have their digits in the same places: as text, they are in order."""
    # Several thousand names as one text: translating each would take ten times as long.
    shapes = b"/".join(names).translate(_DIGITS_ALIKE).split(b"/")
    return len(set(shapes)) <= 1


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # for example a link to itself: opening it shows what is wrong


def nothing_found(path: bytes, what: str) -> MissingError:
    """Make the error for a source without files."""
    return MissingError(
        path,
        f"no array files {what}",
        remedy="supported are .npy, .npz, .npy.gz, .pt and .safetensors, "
        "and raw files with dtype= and shape=",
    )
