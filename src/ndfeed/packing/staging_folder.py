"""The staging folder in which a dataset is made, beside the one in which it is to appear.

    .packed.DIGEST-TAG.packing/   named for its target and plan
      owner                     locked by the process that works here, as long as it lives
      plan, order, values       what is to be done
      journal                   what is done
      moved                     parts that are being moved to the target (append)
      spool/, shapes.FIELD      what maps made of ragged fields
      data/                     what becomes the target

TAG is made of plan and target with a key that only this user has, so nobody can prepare such a
folder for others to resume: one whose tag is wrong, or which does not belong to this user alone,
is somebody else's. It is never resumed, never written to, never removed. Where no key can be
stored the tag is random: then nothing can be resumed.

A folder that is not locked belongs to nobody: with the same plan it is resumed, with another it is
removed. Where there are no locks it stays, since nobody can tell; two processes that work in one
folder then write the same bytes to the same places.

To append, finished parts are moved into the dataset first, and then the manifest is replaced. A
process that is killed in between leaves folders that no manifest lists. Before the first is moved,
``moved`` records the inode of each, which stays the same when it is moved, and the names of its
files. Only a folder with the recorded inode is removed or counted as moved, and of its contents
only those files.
"""

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Self

from ndfeed.errors import ConflictError, Error, MissingError
from ndfeed.files import write
from ndfeed.files.cache_files import user_key
from ndfeed.files.folder import PRIVATE, Folder, Layout, clear, is_private, read_contents
from ndfeed.files.write import Lock, not_ours
from ndfeed.formats.untrusted_text import parse_json
from ndfeed.packing.journal import Seal, seal_line, unseal_line

_MOVED = b"moved"
_MOST_BYTES = 256 << 20
_MOST_VALUES = 20_000_000
_FOLDER = re.compile(r"[0-9]{5,20}")
_FILE = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9._%-]{0,254}")


@dataclass(frozen=True)
class MovedParts:
    """Parts by name, each with the inode of its folder and the names of its files."""

    parts: Mapping[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def __or__(self, other: "MovedParts") -> "MovedParts":
        return MovedParts({**self.parts, **other.parts})

    @classmethod
    def read(cls, folder: Folder, seal: Seal) -> "MovedParts":
        """Read the record in a staging folder; empty where it cannot be trusted."""
        try:
            data = read_contents(folder, _MOVED, _MOST_BYTES)
            text = None if data is None else unseal_line(data, seal)
            if text is None:
                return cls()
            found = parse_json(text, objects=1, values=_MOST_VALUES, deepest=4, what="parts")
            return cls({name: _check_part(name, entry) for name, entry in found.items()})
        except (Error, ValueError, TypeError, AttributeError):
            return cls()

    def write(self, folder: Folder, seal: Seal) -> None:
        """Store the record durably in a staging folder."""
        text = json.dumps(self.parts, separators=(",", ":")).encode()
        folder.write(_MOVED, seal_line(text, seal))
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

    def are_in(self, beside: Folder, target: bytes, names: list[str]) -> bool:
        """Are all these parts in the dataset ``target``, moved there?"""
        if not self.parts:
            return False
        try:
            with beside.inner(target) as folder:
                return all(self.has(folder, name) for name in names)
        except (ConflictError, MissingError):  # the dataset no longer exists
            return False

    def refuse_others(self, target: Folder, name: str) -> None:
        """Refuse a folder, or anything else of its name, that is in the way of a new part."""
        if target.status(name.encode()) is not None and not self.has(target, name):
            raise not_ours(
                target.joined(name.encode()), "exists where the new part would be written"
            )

    def remove(self, beside: Folder, target: bytes, kept: Callable[[], frozenset[str]]) -> None:
        """Remove the parts that were moved to the dataset ``target``, except those to be kept."""
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


def _check_part(name: str, entry: object) -> tuple[int, tuple[str, ...]]:
    """Check an entry, or raise ``ValueError``."""
    if not _FOLDER.fullmatch(name) or type(entry) is not list or len(entry) != 2:
        raise ValueError("expected a part with its inode and its files")
    inode, files = entry
    if type(inode) is not int or not 0 <= inode < 1 << 64 or type(files) is not list:
        raise ValueError("expected an inode and a list of files")
    if not all(type(file) is str and _FILE.fullmatch(file) for file in files):
        raise ValueError("expected plain names of files")
    return inode, tuple(files)


def record_inodes(data: Folder, parts: Mapping[str, tuple[str, ...]]) -> MovedParts:
    """Return the record of parts that are in a folder, given the names of their files."""
    found = {}
    for name, files in parts.items():
        status = data.status(name.encode())
        if status is not None:
            found[name] = status.st_ino, files
    return MovedParts(found)


OWNER, JOURNAL = b"owner", b"journal"
_SUFFIX = b".packing"
_TRIES = 100
_LONGEST = 170
_SIGNED = re.compile(rb"([0-9a-f]{32})-([0-9a-f]{32})")

_PART = Layout(re.compile(rb"[A-Za-z0-9_%-][A-Za-z0-9._%-]*\.npy"))
_DATA = Layout(re.compile(rb"ndfeed\.json(\.new)?"), {re.compile(rb"[0-9]{5,}"): _PART})
_SPOOL = Layout(re.compile(rb"[0-9]+\.[0-9]+(\.n)?"))
LAYOUT = Layout(
    re.compile(rb"owner|journal|(plan|order|values|moved|ndfeed\.json)(\.new)?|shapes\.[0-9]+"),
    {re.compile(rb"data"): _DATA, re.compile(rb"spool"): _SPOOL},
    last=OWNER,
)


class StagingFolder:
    """A staging folder for one target and plan, owned within the context."""

    def __init__(self, target: bytes, digest: str) -> None:
        self.target = target
        self.parent, self.name = os.path.split(target)
        self._names = _Names(target, user_key(make=True))
        self._own = self._names.name_of(digest)
        self.folder = os.path.join(self.parent, self._own)
        self._stack = ExitStack()
        self._lock: Lock | None = None
        self._inside: Folder | None = None
        self._beside: Folder | None = None

    @property
    def inside(self) -> Folder:
        """The folder, open; within the context."""
        assert self._inside is not None, "within the context alone"
        return self._inside

    @property
    def beside(self) -> Folder:
        """The folder of the target, open; within the context."""
        assert self._beside is not None, "within the context alone"
        return self._beside

    @property
    def seal(self) -> Seal:
        """The function that signs lines of the journal."""
        return self._names.seal_of(self._own)

    @property
    def exists(self) -> bool:
        """Is there such a folder?"""
        return write.present(self.folder)

    @property
    def is_resumable(self) -> bool:
        """Will the same call find the folder again?"""
        return self._names.known

    @property
    def is_alone(self) -> bool:
        """Is it certain that nobody else writes the target? Not where there are no locks."""
        return self._lock is not None and bool(self._lock.held)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._beside = stack.enter_context(Folder(self.parent, followed=True))
            entered = stack.enter_context(
                _own_folder(self._beside, self._own, self.target, new=True)
            )
            self._inside, self._lock = entered
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._lock = None

    def list_leftovers(self) -> list[bytes]:
        """Return the names of all our staging folders for this target, of whatever plan."""
        return [name for name in self._names.list_similar() if self._names.is_genuine(name)]

    def moved_parts(self) -> MovedParts:
        """Return the parts that earlier runs, of whatever plan, moved to the target."""
        found = MovedParts()
        with Folder(self.parent, followed=True) as beside:
            for name in self.list_leftovers():
                with contextlib.suppress(MissingError), beside.inner(name) as folder:
                    if is_private(folder, beside):
                        found |= MovedParts.read(folder, self._names.seal_of(name))
        return found

    def remove_others(self, kept: Callable[[], frozenset[str]]) -> None:
        """Remove what other runs for the same target left; refuse if one is still running.

        Parts that they moved to the target are removed too, except those that are to be ``kept``.
        """
        for name in self.list_leftovers():
            if name == self._own:
                continue
            try:
                with _own_folder(self.beside, name, self.target, new=False) as (folder, lock):
                    if lock.held:
                        moved = MovedParts.read(folder, self._names.seal_of(name))
                        moved.remove(self.beside, self.name, kept)
                        clear(folder, LAYOUT)
                        self.beside.remove_folder(name)
            except MissingError:  # removed in between
                continue

    def remove(self) -> None:
        """Remove the folder: nothing in it is needed any more."""
        clear(self.inside, LAYOUT)
        self.beside.remove_folder(self._own)

    def warn_of_leftovers(self) -> None:
        """Warn of what cannot be resumed: folders of others, or the one that is made now."""
        for name in self._names.list_similar():
            if not self._names.is_genuine(name):
                warnings.warn(
                    f"{os.fsdecode(os.path.join(self.parent, name))}: looks like an unfinished "
                    f"pack that was not made here by this user, and is ignored; "
                    f"remove it if you know what it is",
                    stacklevel=4,
                )
        if not self.is_resumable:
            warnings.warn(
                "no key can be stored in this user's cache folder, so an interrupted pack starts "
                "over; make the folder writable for this user alone",
                stacklevel=4,
            )


class _Names:
    """The names of staging folders for one target."""

    def __init__(self, target: bytes, key: bytes | None) -> None:
        self._parent, name = os.path.split(target)
        self._target = os.path.join(os.path.realpath(self._parent), name)
        if len(name) > _LONGEST:
            name = hashlib.sha256(name).hexdigest()[:32].encode()
        self._prefix = b"." + name + b"."
        self.known = key is not None
        self._key = key or secrets.token_bytes(32)

    def _sign(self, purpose: bytes, text: bytes) -> bytes:
        signed = b"\0".join([b"ndfeed pack", purpose, self._target, text])
        return hmac.digest(self._key, signed, "sha256")[:16].hex().encode()

    def name_of(self, digest: str) -> bytes:
        """Return the name of the folder for a plan."""
        tag = self._sign(b"folder", digest.encode())
        return b"%s%s-%s%s" % (self._prefix, digest.encode(), tag, _SUFFIX)

    def list_similar(self) -> list[bytes]:
        """Return every name that looks like one of ours."""
        try:
            with Folder(self._parent, followed=True) as folder:
                names = folder.names()
        except (MissingError, ConflictError):
            return []
        begin, end = len(self._prefix), -len(_SUFFIX)
        return [
            name
            for name in names
            if name.startswith(self._prefix)
            and name.endswith(_SUFFIX)
            # Else it belongs to a target whose name continues with a dot.
            and b"." not in name[begin:end]
        ]

    def is_genuine(self, name: bytes) -> bool:
        """Did this user's ndfeed give that name?"""
        found = _SIGNED.fullmatch(name[len(self._prefix) : -len(_SUFFIX)])
        return found is not None and hmac.compare_digest(name, self.name_of(found[1].decode()))

    def seal_of(self, name: bytes) -> Seal:
        """Return the function that signs lines of the journal in a folder."""
        return lambda text: self._sign(b"journal " + name, text)


def find_unfinished(path: bytes) -> tuple[bytes, Seal | None] | None:
    """Find the staging folder that is at ``path``, or for a target that is to be there.

    Also returns the function that signs its journal, or ``None`` if it is not this user's.
    """
    path = os.path.abspath(path)
    parent, name = os.path.split(path)
    if name.startswith(b".") and name.endswith(_SUFFIX) and write.present(path):
        target = os.path.join(parent, name[1 : -len(_SUFFIX)].rpartition(b".")[0])
    else:
        target, name = path, b""
    names = _Names(target, user_key(make=False))
    found = [name] if name else names.list_similar()
    found.sort(key=names.is_genuine, reverse=True)
    for one in found:
        seal = names.seal_of(one) if names.is_genuine(one) else None
        return os.path.join(parent, one), seal
    return None


@contextmanager
def _own_folder(
    beside: Folder, name: bytes, target: bytes, *, new: bool
) -> Iterator[tuple[Folder, Lock]]:
    """Open a staging folder and its lock, within the context; ``new`` makes it if necessary."""
    busy = ConflictError(target, "another process is writing it", remedy="wait for that, or end it")
    for _ in range(_TRIES):
        with beside.inner(name, new=new, mode=PRIVATE) as folder:
            if not is_private(folder, beside):
                raise ConflictError(
                    folder.path,
                    "has the name of a staging folder, but does not belong to this user alone",
                    remedy="remove it",
                )
            try:
                lock = Lock(folder.joined(OWNER), at=folder.fd, refused=busy)
            except MissingError:  # removed in between
                continue
            try:
                if lock.current():
                    yield folder, lock
                    return
            finally:
                lock.release()
    raise ConflictError(target, "other processes keep writing it", remedy="wait for them")
