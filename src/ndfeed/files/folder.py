"""Folders that ndfeed writes: opened once, their contents reached from the descriptor.

No link is followed below an open folder, whatever others do meanwhile. Anything that is not ours
where something of ours belongs is a ``ConflictError`` that names it; it is neither written to nor
removed. Names below a folder may have several parts: ``b"data/00000/x.npy"``.

A ``Layout`` lists the names we make in a folder. ``clear`` removes these and nothing else; if it
finds anything else it removes nothing at all.

Where folders have no descriptors (``can.beneath``) paths are joined, and every part is checked
with ``lstat`` before it is used.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from ndfeed.errors import ConflictError, MissingError, SourceError
from ndfeed.files.file import File
from ndfeed.files.platform_calls import can
from ndfeed.files.write import FLAGS, Output, check_plain, not_ours, refuse

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | FLAGS
_FOLLOWED = _FOLDER & ~getattr(os, "O_NOFOLLOW", 0)
_OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_BY_UMASK = 0o777
PRIVATE = 0o700


class Folder:
    """An open folder. Use as a context manager, or drop it: it is closed with its last reference.

    ``followed`` is for folders that the user named: the path may lead through links.
    """

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: bytes, *, followed: bool = False, at: int | None = None) -> None:
        self.path = path
        self.fd: int | None = None
        name = path if at is None else os.path.basename(path)
        try:
            if not can.beneath:
                found = os.stat(path) if followed else os.lstat(path)
                if not stat.S_ISDIR(found.st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                return
            self.fd = os.open(name, _FOLLOWED if followed else _FOLDER, dir_fd=at)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise not_ours(path, "a link or a file where a folder belongs") from None
            refuse(path, "open this folder", error)

    def _place(self, name: bytes) -> tuple[bytes, int | None]:
        """Return ``name`` as the system needs it, and the descriptor that it is relative to."""
        return (os.path.join(self.path, name), None) if self.fd is None else (name, self.fd)

    def joined(self, *names: bytes) -> bytes:
        """Return the path of something in here, for messages."""
        return os.path.join(self.path, *names)

    @contextmanager
    def _around(self, names: tuple[bytes, ...]) -> Iterator[tuple["Folder", bytes]]:
        """Open the folder that contains something below; also return its name there."""
        *above, name = b"/".join(names).split(b"/")
        folder = self.inner(*above) if above else self
        try:
            yield folder, name
        finally:
            if folder is not self:
                folder.close()

    def inner(self, *names: bytes, new: bool = False, mode: int = _BY_UMASK) -> "Folder":
        """Open a folder below this one; with ``new`` the last of ``names`` is made if necessary."""
        folder = self
        parts = b"/".join(names).split(b"/")
        for number, name in enumerate(parts, 1):
            try:
                if new and number == len(parts):
                    folder._make(name, mode)
                inside = Folder(folder.joined(name), at=folder.fd)
            finally:
                if folder is not self:
                    folder.close()
            folder = inside
        return folder

    def _make(self, name: bytes, mode: int) -> None:
        place, at = self._place(name)
        try:
            os.mkdir(place, mode, dir_fd=at)
        except FileExistsError:
            return
        except OSError as error:
            refuse(self.joined(name), "make this folder", error)

    def status(self, name: bytes) -> os.stat_result | None:
        """Return the ``lstat`` of a name, or ``None`` if it does not exist."""
        place, at = self._place(name)
        try:
            return os.stat(place, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            refuse(self.joined(name), "access it", error)

    def names(self) -> list[bytes]:
        """Return the names in here, sorted."""
        try:
            found = os.listdir(self.path if self.fd is None else self.fd)
        except OSError as error:
            refuse(self.path, "list this folder", error)
        return sorted(map(os.fsencode, found))

    def output(self, *names: bytes, new: bool = False) -> Output:
        """Open a file for writing; ``new`` makes it if it is missing, and its contents stay."""
        with self._around(names) as (folder, name):
            return Output(folder.joined(name), new=new, at=folder.fd)

    def file(self, *names: bytes) -> File:
        """Open a file for reading: the one of that name in here, never the target of a link."""
        with self._around(names) as (folder, name):
            found = folder.status(name)
            path = folder.joined(name)
            if found is None:
                raise MissingError(path, "no such file or folder")
            check_plain(path, found)
            file = File(path)
            if not os.path.samestat(found, file.status):
                file.close()
                raise not_ours(path, "a link, or replaced while it was opened")
            return file

    def write(self, name: bytes, data: bytes) -> None:
        """Make a file hold ``data``, completely or not at all; the folder is not synced.

        Leftovers of an earlier run, under this name with ``.new``, are replaced. So this is for
        folders in which nobody else uses that name.
        """
        beside = name + b".new"
        self.remove(beside)
        with self.output(beside, new=True) as file:
            file.allocate(len(data))
            file.write(0, data)
            file.sync()
        self.move(beside, self, name, over=True)

    def move(self, name: bytes, to: "Folder", new: bytes, *, over: bool = False) -> None:
        """Rename something; with ``over`` it replaces a file of the new name.

        A folder replaces at most an empty folder.
        """
        (old, at), (place, there) = self._place(name), to._place(new)
        rename = os.replace if over else os.rename
        try:
            rename(old, place, src_dir_fd=at, dst_dir_fd=there)
        except OSError as error:
            path = to.joined(new)
            if error.errno in _OCCUPIED:
                raise ConflictError(
                    path, "is there already", remedy="remove it or choose another"
                ) from None
            refuse(path, "rename to it", error)

    def remove(self, name: bytes) -> None:
        """Remove a file, or a link itself, if it exists."""
        place, at = self._place(name)
        try:
            os.unlink(place, dir_fd=at)
        except FileNotFoundError:
            return
        except OSError as error:
            refuse(self.joined(name), "remove it", error)

    def remove_folder(self, name: bytes) -> None:
        """Remove an empty folder. One that is gone, or that somebody else uses, is left alone."""
        place, at = self._place(name)
        try:
            os.rmdir(place, dir_fd=at)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                refuse(self.joined(name), "remove this folder", error)

    def sync(self) -> None:
        """Sync the names in here to disk."""
        if self.fd is None:  # a platform that cannot open folders cannot sync them
            return
        try:
            os.fsync(self.fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that cannot sync folders
                refuse(self.path, "sync this folder", error)

    def close(self) -> None:
        """Close the folder; may be repeated."""
        if self.fd is not None and self.fd >= 0:
            fd, self.fd = self.fd, -1
            with contextlib.suppress(OSError):  # nothing was written through this descriptor
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def read_contents(folder: Folder, name: bytes, most: int) -> bytes | None:
    """Return all of a small file, or ``None`` if missing; ``SourceError`` beyond ``most`` bytes."""
    try:
        with folder.file(name) as file:
            if file.size > most:
                raise SourceError(file.path, f"expected at most {most} bytes, found {file.size}")
            return file.read(0, file.size)
    except MissingError:
        return None


@dataclass(frozen=True)
class Layout:
    """Names that we make in a folder: of files, of folders with a layout each, and the last.

    ``last`` is removed after all others.
    """

    files: re.Pattern[bytes]
    folders: Mapping[re.Pattern[bytes], "Layout"] = field(default_factory=dict)
    last: bytes = b""

    def inside(self, name: bytes) -> "Layout | None":
        """Return the layout of a folder in here, if it is one of ours."""
        return next((of for names, of in self.folders.items() if names.fullmatch(name)), None)


# How NFS renames a file that is removed while it is open. It disappears by itself.
_STILL_OPEN = re.compile(rb"\.nfs[0-9a-f]+")


def find_strangers(folder: Folder, layout: Layout) -> list[bytes]:
    """List the paths in a folder that are not part of its layout, by name and by kind."""
    found = []
    for name in folder.names():
        status = folder.status(name)
        if status is None or _STILL_OPEN.fullmatch(name):
            continue
        inside = layout.inside(name)
        if inside is not None and stat.S_ISDIR(status.st_mode):
            with folder.inner(name) as below:
                found += find_strangers(below, inside)
        elif not (layout.files.fullmatch(name) and stat.S_ISREG(status.st_mode)):
            found.append(folder.joined(name))
    return found


def clear(folder: Folder, layout: Layout) -> None:
    """Remove the contents of a folder; ``ConflictError``, removing nothing, if some is not ours.

    The folder itself stays.
    """
    others = find_strangers(folder, layout)
    if others:
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        raise not_ours(others[0], f"in a folder that is to be removed{more}")
    _clear(folder, layout)


def _clear(folder: Folder, layout: Layout) -> None:
    for name in sorted(folder.names(), key=lambda name: name == layout.last):
        inside = layout.inside(name)
        if inside is not None:
            with contextlib.suppress(MissingError):
                with folder.inner(name) as below:
                    _clear(below, inside)
                folder.remove_folder(name)
        elif layout.files.fullmatch(name):
            folder.remove(name)


def is_private(folder: Folder, beside: Folder) -> bool:
    """Return whether a folder belongs to this user and nobody else can write to it.

    Some file systems give everything one owner or one mode; there the folder is compared with
    ``beside``, which is made for this purpose.
    """
    if not hasattr(os, "geteuid"):
        return True
    found = _owner(folder)
    if found == (os.geteuid(), 0):
        return True
    name = b".ndfeed-" + os.urandom(8).hex().encode()
    made = beside.inner(name, new=True, mode=PRIVATE)
    try:
        return found == _owner(made)
    finally:
        made.close()
        beside.remove_folder(name)


def _owner(folder: Folder) -> tuple[int, int]:
    """Return the owner of a folder, and which others may write to it."""
    try:
        status = os.lstat(folder.path) if folder.fd is None else os.fstat(folder.fd)
    except OSError as error:
        refuse(folder.path, "access it", error)
    return status.st_uid, status.st_mode & _OTHERS_WRITE
