"""Parts on their way into a packed dataset: folders of ours that no manifest speaks of yet.

To append, finished parts are moved into the dataset first, and then the manifest is replaced. Who
is killed in between leaves folders that nothing in the dataset speaks of. Before the first is
moved, ``moved`` in the folder of work notes the inode of each, which stays the same when it is
moved, and the names of its files. Only a folder with the noted inode is removed or counted as
moved, and of what is in it only those files.
"""

import json
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ndfeed.errors import ConflictError, Error, MissingError
from ndfeed.files.folder import Folder, Layout, clear, contents
from ndfeed.files.write import not_ours
from ndfeed.formats.strictjson import parsed
from ndfeed.pack.journal import Seal, sealed, unsealed

NAME = b"moved"
_MOST = 256 << 20
_MOST_VALUES = 20_000_000
_FOLDER = re.compile(r"[0-9]{5,20}")
_FILE = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9._%-]{0,254}")


@dataclass(frozen=True)
class Moved:
    """Parts by name, each with the inode of its folder and the names of its files."""

    parts: Mapping[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def __or__(self, other: "Moved") -> "Moved":
        return Moved({**self.parts, **other.parts})

    @classmethod
    def read(cls, folder: Folder, seal: Seal) -> "Moved":
        """What is noted in a folder of work; nothing where it cannot be believed."""
        try:
            data = contents(folder, NAME, _MOST)
            text = None if data is None else unsealed(data, seal)
            if text is None:
                return cls()
            found = parsed(text, objects=1, values=_MOST_VALUES, deepest=4, what="parts")
            return cls({name: _part(name, entry) for name, entry in found.items()})
        except (Error, ValueError, TypeError, AttributeError):
            return cls()

    def write(self, folder: Folder, seal: Seal) -> None:
        """Note it in a folder of work, for good."""
        text = json.dumps(self.parts, separators=(",", ":")).encode()
        folder.write(NAME, sealed(text, seal))
        folder.sync()

    def has(self, target: Folder, name: str) -> bool:
        """Is the folder of that name in ``target`` the one that was moved there?"""
        status = target.status(name.encode())
        return (
            status is not None
            and stat.S_ISDIR(status.st_mode)
            and name in self.parts
            and self.parts[name][0] == status.st_ino
        )

    def hold(self, beside: Folder, target: bytes, names: list[str]) -> bool:
        """Are all these parts in the dataset ``target``, moved there?"""
        if not self.parts:
            return False
        try:
            with beside.inner(target) as folder:
                return all(self.has(folder, name) for name in names)
        except (ConflictError, MissingError):  # no dataset any more
            return False

    def check(self, target: Folder, name: str) -> None:
        """Refuse a folder, or whatever has its name, that is in the way of a new part."""
        if target.status(name.encode()) is not None and not self.has(target, name):
            raise not_ours(
                target.joined(name.encode()), "in the place of the part that is to be added"
            )

    def remove(self, beside: Folder, target: bytes, kept: Callable[[], frozenset[str]]) -> None:
        """Remove the parts that were moved to the dataset ``target``, but for those to be kept."""
        if not self.parts:
            return
        try:
            folder = beside.inner(target)
        except (ConflictError, MissingError):  # no dataset any more: nothing of ours is there
            return
        with folder:
            for name in self.parts.keys() - kept():
                if self.has(folder, name):
                    self.remove_part(folder, name)

    def remove_part(self, target: Folder, name: str) -> None:
        """Remove one part that was moved."""
        names = b"|".join(re.escape(one.encode()) for one in self.parts[name][1])
        with target.inner(name.encode()) as folder:
            clear(folder, Layout(re.compile(names)))
        target.remove_folder(name.encode())


def _part(name: str, entry: object) -> tuple[int, tuple[str, ...]]:
    """An entry as it must be, or ``ValueError``."""
    if not _FOLDER.fullmatch(name) or type(entry) is not list or len(entry) != 2:
        raise ValueError("a part with its inode and its files expected")
    inode, files = entry
    if type(inode) is not int or not 0 <= inode < 1 << 64 or type(files) is not list:
        raise ValueError("an inode and a list of files expected")
    if not all(type(file) is str and _FILE.fullmatch(file) for file in files):
        raise ValueError("plain names of files expected")
    return inode, tuple(files)


def inodes(data: Folder, parts: Mapping[str, tuple[str, ...]]) -> Moved:
    """What to note of parts that are in a folder, given the names of their files."""
    found = {}
    for name, files in parts.items():
        status = data.status(name.encode())
        if status is not None:
            found[name] = status.st_ino, files
    return Moved(found)
